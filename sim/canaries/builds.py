"""Canaries: broken builds of tidelog, each of which the simulator must catch.

Each is a context manager: inside the block, the code has the fault of its docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa

from sim.canaries.merge import (
    lease_holds_no_objects,
    merge_advances_past_since,
    merge_deletes_before_it_commits,
    reader_takes_merged_for_lost,
    sweep_takes_the_young,
)
from tidelog.collection.catalog.catalog import Catalog, Change
from tidelog.collection.catalog.controller import Controller
from tidelog.collection.ingest import compute, envelope
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.ingest.tick import Commits
from tidelog.collection.source.binding import Binding
from tidelog.collection.source.port import Plan
from tidelog.consensus.store import StoreConsensus
from tidelog.core.frontier import Frontier
from tidelog.errors import LocationError
from tidelog.machine.maintenance import MachineMaintenance
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.handle import listening, shard
from tidelog.persist.handle.together import ShardAppend
from tidelog.persist.read import reader
from tidelog.persist.states import holding, transition
from tidelog.persist.states.state import State
from tidelog.persist.states.transition import Verdict
from tidelog.rowhash import Hashes


@contextmanager
def consensus_blind_to_write_ids() -> Iterator[None]:
    """A refused write counts as lost, though the stored record may be its own."""

    async def never(*_: object, **__: object) -> bool:
        return False

    with patch.object(StoreConsensus, "_is_ours", never):
        yield


@contextmanager
def consensus_trusts_itself() -> Iterator[None]:
    """A write whose answer was lost counts as landed if any record has its seqno."""

    async def always(*_: object, **__: object) -> bool:
        return True

    with patch.object(StoreConsensus, "_is_ours", always):
        yield


@contextmanager
def consensus_without_condition() -> Iterator[None]:
    """The object is replaced without a condition."""
    put = StoreConsensus._replace

    async def replace(self: StoreConsensus, key: str, held: Any, box: Any) -> None:
        class CarelessStore:
            async def put(self, key: str, data: bytes, **_: object) -> str:
                return await store.put(key, data)

        store = self.store
        self.store = CarelessStore()  # type: ignore[assignment]
        try:
            await put(self, key, held, box)
        finally:
            self.store = store

    with patch.object(StoreConsensus, "_replace", replace):
        yield


@contextmanager
def consensus_reads_what_it_has() -> Iterator[None]:
    """A read answers from memory if it holds anything."""
    refresh = StoreConsensus._refresh

    async def lazy(self: StoreConsensus, key: str) -> Any:
        return self._held.get(key) or await refresh(self, key)

    with patch.object(StoreConsensus, "_refresh", lazy):
        yield


@contextmanager
def commit_ignores_upper() -> Iterator[None]:
    """A compare_and_append does not compare."""
    decide = transition.decide_append

    def careless(state: State, command: Any) -> Any:
        if state.upper is None or command.upper.is_empty or command.upper.time <= state.upper:
            return decide(state, command)
        forged = {f: getattr(command, f) for f in command.__dataclass_fields__}
        forged["expected_upper"] = state.upper_frontier
        return decide(state, transition.CompareAndAppend(**forged))

    with patch.object(transition, "decide_append", careless):
        yield


@contextmanager
def commit_forgets_tokens() -> Iterator[None]:
    """The shard does not recognize a committed token."""
    with patch.object(transition, "decide_retry", lambda *_, **__: None):
        yield


@contextmanager
def reader_skips_newest() -> Iterator[None]:
    """A snapshot leaves out the newest batch."""

    def until(state: State, as_of: int) -> list[Part]:
        return [p for b in list(state.batches)[:-1] for p in b.parts if p.time_min <= as_of]

    with patch.object(shard, "parts_until", until):
        yield


@contextmanager
def listener_skips_split_parts() -> Iterator[None]:
    """A listener leaves out parts that begin at or before its position."""
    between = reader.parts_between

    def after_only(state: State, after: int, until: int) -> list[Part]:
        return [p for p in between(state, after, until) if p.time_min > after + 1]

    with patch.object(listening, "parts_between", after_only):
        yield


@contextmanager
def since_follows_the_first_hold() -> Iterator[None]:
    """Since moves with any hold, not with the last of them."""

    def hasty(state: State, moved: Any) -> Any:
        holds = {**state.holds, **moved}
        most = max((hold.since for hold in holds.values() if hold.since is not None), default=0)
        return (most,) if state.since is not None and most > state.since else None

    with patch.object(holding, "since_after", hasty):
        yield


@contextmanager
def rollup_named_before_it_is_there() -> Iterator[None]:
    """A rollup counts as written although its put failed."""
    roll_up = MachineMaintenance._roll_up

    async def hasty(self: MachineMaintenance[Any, Any]) -> None:
        store = self.machine.store

        class HopefulStore:
            async def put(self, key: str, data: bytes) -> str:
                try:
                    return await store.put(key, data)
                except LocationError:
                    return "never mind"

        self.machine.store = HopefulStore()  # type: ignore[assignment]
        try:
            await roll_up(self)
        finally:
            self.machine.store = store

    with patch.object(MachineMaintenance, "_roll_up", hasty):
        yield


@contextmanager
def truncates_before_it_names() -> Iterator[None]:
    """Records are truncated once a rollup is written, before any record names it."""
    roll_up = MachineMaintenance._roll_up

    async def hasty(self: MachineMaintenance[Any, Any]) -> None:
        before = self._pending
        await roll_up(self)
        if self._pending is not before:
            await self.machine.consensus.truncate(self.machine.key, self.machine.seqno)

    with patch.object(MachineMaintenance, "_roll_up", hasty):
        yield


@contextmanager
def ingester_obeys_itself() -> Iterator[None]:
    """The ingester uses the binding that it proposed, not the recorded one."""
    mint, binding = Ingester._mint, Ingester._binding
    proposed: dict[int, Binding] = {}

    async def keep(
        self: Ingester, plan: Plan, lower: int, upper: int, rows: Sequence[ShardAppend] = ()
    ) -> bool:
        landed = await mint(self, plan, lower, upper, rows)
        proposed[id(self)] = Binding(lower, upper, plan.ranges)
        return landed

    async def own(self: Ingester, lower: int) -> Binding:
        kept = proposed.pop(id(self), None)
        return kept if kept is not None and kept.lower == lower else await binding(self, lower)

    with patch.object(Ingester, "_mint", keep), patch.object(Ingester, "_binding", own):
        yield


@contextmanager
def ingester_commits_at_any_upper() -> Iterator[None]:
    """The ingester commits a tick at any upper of the shard."""

    async def commit(self: Ingester, binding: Binding, computed: Any) -> Commits:
        upper = Frontier.at(binding.upper)
        won = 0
        for written, parts in zip(self.written, self.parts_of(computed), strict=True):
            while (await written.refresh()).upper_frontier < upper:
                reached = written.state.upper_frontier
                done = await written.commit_parts(list(parts), reached, upper)
                if done.verdict is not Verdict.MISMATCH:
                    won += 1
                    break
            else:
                if parts:
                    beyond = Frontier.at(written.state.upper_frontier.time + 1)
                    await written.commit_parts(list(parts), written.state.upper_frontier, beyond)
        return Commits(won, 0, is_completed=True)

    alone = patch.object(Ingester, "_binds_with_rows", lambda *_: False)
    with alone, patch.object(Ingester, "_commit", commit):
        yield


@contextmanager
def ingester_feeds_back_too_old() -> Iterator[None]:
    """The ingester reads its output as of one time too early."""
    current = envelope.current_rows

    def old(updates: list[pa.Table], named: Hashes, schema: ShardSchema, *, as_of: int) -> Any:
        return current(updates, named, schema, as_of=as_of - 1)

    with patch.object(compute, "current_rows", old):
        yield


@contextmanager
def controller_writes_piecemeal() -> Iterator[None]:
    """A command becomes several commits, one per row."""
    change = Controller._change

    async def piecemeal(self: Controller, plan: Callable[[Catalog], list[Change]]) -> None:
        for row in plan(await self.catalog()):
            await change(self, partial(_only, row))

    with patch.object(Controller, "_change", piecemeal):
        yield


def _only(row: Change, _: Catalog) -> list[Change]:
    return [row]


Canary = Callable[[], AbstractContextManager[None]]

FOR_CONSENSUS: Final[tuple[Canary, ...]] = (
    consensus_blind_to_write_ids,
    consensus_trusts_itself,
    consensus_without_condition,
    consensus_reads_what_it_has,
)
FOR_SHARDS: Final[tuple[Canary, ...]] = (
    consensus_trusts_itself,
    commit_ignores_upper,
    commit_forgets_tokens,
    reader_skips_newest,
    listener_skips_split_parts,
    since_follows_the_first_hold,
    rollup_named_before_it_is_there,
    truncates_before_it_names,
    merge_deletes_before_it_commits,
    merge_advances_past_since,
    reader_takes_merged_for_lost,
    sweep_takes_the_young,
    lease_holds_no_objects,
)
FOR_INGEST: Final[tuple[Canary, ...]] = (
    ingester_obeys_itself,
    ingester_commits_at_any_upper,
    ingester_feeds_back_too_old,
    reader_skips_newest,
)


def caught_by(
    canary: Canary, simulate: Callable[[int], object], *, seeds: Iterable[int]
) -> tuple[int, BaseException] | None:
    """Return the first seed with which a canary fails, and the error; None if none fails."""
    for seed in seeds:
        with canary():
            try:
                simulate(seed)
            except Exception as error:  # noqa: BLE001 - any failure is a catch
                return seed, innermost(error)
    return None


def innermost(error: BaseException) -> BaseException:
    """Return the first error that is not a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
