"""Canaries of keyed logs: builds that lose records, return too many, or delete needed objects.

Each is a context manager: inside the block, the code has the fault of its docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from tidelog.keyed import log as logs_log
from tidelog.keyed.format.records import SinkMark
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.logs import KeyedLogs
from tidelog.keyed.maintenance import collecting, compactor
from tidelog.keyed.maintenance.compactor import Compactor
from tidelog.keyed.maintenance.plan import LooseWindow
from tidelog.keyed.read.feed import KeyedFeed
from tidelog.keyed.read.scanning import ViewScan
from tidelog.keyed.read.sources import LoosePiece, RunSource
from tidelog.keyed.read.state_handle import KeyedStateHandle, KeyedView, LooseTail
from tidelog.keyed.states import transition
from tidelog.keyed.states.forking import decide_release_checkpoint
from tidelog.keyed.states.run import Run, paths_of
from tidelog.keyed.states.state import KeyedDiff, KeyedState, MergedRuns
from tidelog.keyed.states.transition import Decided, decide_checkpoint
from tidelog.keyed.write.pending import PendingAppends
from tidelog.machine.language import Decision


@contextmanager
def compaction_takes_the_newest_first() -> Iterator[None]:
    """A run holds the newest fragment only, but its window begins at all loose records."""
    run_of = Compactor._run_of

    async def newest(self: Compactor, pieces: Sequence[LoosePiece], start: int, limit: int) -> Run:
        within = [one for one in pieces if one.start < limit and one.limit > start]
        found = await run_of(self, pieces, max(start, within[-1].start), limit)
        return replace(found, lower=start)

    with patch.object(Compactor, "_run_of", newest):
        yield


@contextmanager
def compaction_does_not_compare() -> Iterator[None]:
    """A run is added although another client has compacted the same records."""

    def lax(_: KeyedState, runs: Sequence[Run], sinks: dict[str, SinkMark]) -> Decided:
        diff = KeyedDiff(compacted=runs[-1].upper, added=tuple(runs), sinks=sinks)
        return Decision(True, diff)

    with patch.object(compactor, "decide_compact", lax):
        yield


@contextmanager
def merge_commits_over_vanished_inputs() -> Iterator[None]:
    """A merge is committed though some of its inputs have vanished."""

    def lax(state: KeyedState, ids: Sequence[str], run: Run) -> Decided:
        if all(one.id != ids[0] for one in state.runs):
            return Decision(True, KeyedDiff(added=(run,), compacted=run.upper))
        return Decision(True, KeyedDiff(merged=MergedRuns(ids=tuple(ids), run=run)))

    with patch.object(compactor, "decide_merge_runs", lax):
        yield


@contextmanager
def compaction_reaches_over_seals() -> Iterator[None]:
    """A run is made of all loose records, even of several segments."""

    def all_of_it(
        state: KeyedState, loose: Sequence[LooseWindow], *, full: bool = False
    ) -> list[tuple[int, int]]:
        del full
        return [(state.compacted, loose[-1].limit)] if len(loose) > 1 else []

    def lax(state: KeyedState, runs: Sequence[Run], sinks: dict[str, SinkMark]) -> Decided:
        if runs[0].lower != state.compacted:
            return Decision(False)
        diff = KeyedDiff(compacted=runs[-1].upper, added=tuple(runs), sinks=sinks)
        return Decision(True, diff)

    with (
        patch.object(compactor, "windows_to_compact", all_of_it),
        patch.object(compactor, "decide_compact", lax),
    ):
        yield


@contextmanager
def wal_goes_before_runs_are_named() -> Iterator[None]:
    """The wal is erased up to the newest seal, without regard to runs."""

    def early(state: KeyedState, before_us: int) -> int:
        del before_us
        return max([state.compacted, *(seal.limit for seal in state.seals)])

    with patch.object(collecting, "needed_from", early):
        yield


@contextmanager
def sweep_takes_runs_that_are_being_written() -> Iterator[None]:
    """Unnamed objects are deleted even if a client is still writing them."""
    with patch.object(collecting, "EPOCHS_LATE", -1_000):
        yield


@contextmanager
def collection_forgets_checkpoints() -> Iterator[None]:
    """Objects named only by a checkpoint count as garbage."""

    def runs_alone(state: KeyedState) -> set[str]:
        return paths_of(state.runs)

    with (
        patch.object(collecting, "named_by", runs_alone),
        patch.object(transition, "named_by", runs_alone),
    ):
        yield


@contextmanager
def retirement_takes_the_active_segment() -> Iterator[None]:
    """All compacted records are retired, including those of the active segment."""

    def everything(state: KeyedState, retired: int) -> Decision[KeyedDiff, int]:
        del retired
        if state.compacted <= state.retired:
            return Decision(0)
        return Decision(1, KeyedDiff(retired=state.compacted))

    with patch.object(logs_log, "decide_retire", everything):
        yield


@contextmanager
def next_sequence_is_one_too_large() -> Iterator[None]:
    """A scan returns a next sequence that is one too large."""

    def past(self: ViewScan) -> int:
        return self._frontier + 1

    with patch.object(ViewScan, "next_sequence", property(past)):
        yield


@contextmanager
def forks_hold_nothing() -> Iterator[None]:
    """The source of a fork does not keep the objects that the fork reads."""
    fork = KeyedLogs.fork

    async def unheld(self: KeyedLogs, source: str, name: str) -> KeyedLog:
        found = await fork(self, source, name)
        machine = (await self._living(source)).machine
        for held, one in list(machine.state.checkpoints.items()):
            if one.fork == name:
                await machine.commit(partial(decide_release_checkpoint, checkpoint=held))
        return found

    with patch.object(KeyedLogs, "fork", unheld):
        yield


@contextmanager
def checkpoints_leave_out_what_is_loose() -> Iterator[None]:
    """A checkpoint leaves out loose records."""

    def early(state: KeyedState, name: str, *, next_sequence: int, at_us: int) -> object:
        del next_sequence
        return decide_checkpoint(state, name, next_sequence=0, at_us=at_us)

    with patch.object(logs_log, "decide_checkpoint", early):
        yield


@contextmanager
def tail_passes_over_gaps() -> Iterator[None]:
    """A handle takes its append for the successor of the records it knows, in spite of a gap."""

    def lax(self: LooseTail, piece: LoosePiece) -> None:
        if piece.limit > self.next:
            self.pieces.append(piece)
            self.next = piece.limit
            self.is_behind = False

    with patch.object(LooseTail, "add", lax):
        yield


@contextmanager
def flush_tells_nothing_of_what_is_lost() -> Iterator[None]:
    """A flush waits, and does not raise for lost records."""
    flush = PendingAppends.flush

    async def content(self: PendingAppends) -> None:
        self._lost.clear()
        for one in list(self._held):
            await one.settled()
        self._lost.clear()
        await flush(self)

    with patch.object(PendingAppends, "flush", content):
        yield


@contextmanager
def followers_believe_that_the_window_has_all() -> Iterator[None]:
    """A follower that fell behind continues with the records in memory."""

    def from_the_start(feed: KeyedFeed) -> int:
        # An empty window has no records, so a follower would read it without an end.
        return 0 if feed._window else feed.end

    with patch.object(KeyedFeed, "begin", property(from_the_start)):
        yield


@contextmanager
def durable_reads_show_what_is_ordered() -> Iterator[None]:
    """A handle with durable reads returns all records that it sent."""
    look = KeyedLog._look

    async def everything(self: KeyedLog, fresh: bool) -> KeyedView:
        await look(self, fresh)
        return self.state_handle.view(self._pending.pieces())

    with patch.object(KeyedLog, "_look", everything):
        yield


@contextmanager
def memory_hides_what_is_ordered() -> Iterator[None]:
    """A handle that must return its sent records returns durable records only."""
    view = KeyedStateHandle.view

    def durable(self: KeyedStateHandle, pending: object = ()) -> KeyedView:
        del pending
        return view(self)

    with patch.object(KeyedStateHandle, "view", durable):
        yield


@contextmanager
def counts_are_of_whole_runs() -> Iterator[None]:
    """A count includes all of a key's records in a run, even before the start."""
    count = RunSource.count

    async def whole(self: RunSource, key: bytes, start: int, limit: int | None) -> int:
        del start
        return await count(self, key, 0, limit)

    with patch.object(RunSource, "count", whole):
        yield


@contextmanager
def tail_lets_go_and_goes_on() -> Iterator[None]:
    """With full memory, a handle forgets its appends but counts them as known."""

    def forget(self: LooseTail) -> None:
        self.pieces.clear()
        self._kept.clear()

    with patch.object(LooseTail, "_forget_own", forget), _uncovered():
        yield


@contextmanager
def _uncovered() -> Iterator[None]:
    """Runs are made of the pieces at hand, without the check for gaps."""

    def lax(condition: Any, *_: object, **__: object) -> None:
        del condition

    with patch.object(compactor, "require", lax):
        yield


Canary = Callable[[], AbstractContextManager[None]]
FOR_KEYED: Final[tuple[Canary, ...]] = (
    compaction_takes_the_newest_first,
    compaction_does_not_compare,
    merge_commits_over_vanished_inputs,
    compaction_reaches_over_seals,
    wal_goes_before_runs_are_named,
    sweep_takes_runs_that_are_being_written,
    collection_forgets_checkpoints,
    retirement_takes_the_active_segment,
    next_sequence_is_one_too_large,
    forks_hold_nothing,
    checkpoints_leave_out_what_is_loose,
    tail_passes_over_gaps,
    flush_tells_nothing_of_what_is_lost,
    followers_believe_that_the_window_has_all,
    durable_reads_show_what_is_ordered,
    memory_hides_what_is_ordered,
    counts_are_of_whole_runs,
    tail_lets_go_and_goes_on,
)
