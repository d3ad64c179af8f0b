"""Scrubbing a shard: all objects that its state names are read and checked; see `scrub`.

It writes nothing and can run concurrently with all other work. If parts are merged in the meantime,
it checks those of the newest state. It also checks the parts of commits that a registered shard
does not have yet.
Source: persist, "Checksums".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from tidelog.core.clock import run_all
from tidelog.errors import (
    CorruptionError,
    HandleError,
    LocationError,
    ObjectNotFound,
    PartMissing,
    TidelogError,
)
from tidelog.machine.past import PastRecord, kept_records
from tidelog.machine.record import Rollup
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.handle.shard import Shard
from tidelog.persist.maintenance.scrub import (
    RESTORE,
    Damage,
    ShardScrubReport,
    check_batch,
    check_part,
    check_state,
    check_t,
)
from tidelog.persist.read.snapshot import require_replaced
from tidelog.persist.states.batch import Batch
from tidelog.persist.states.evolution import newest_schema
from tidelog.persist.states.state import Diff, State
from tidelog.persist.transactions.applier import complete_state

AT_ONCE = 2
ROUNDS = 5


async def scrub(shard: Shard) -> ShardScrubReport:
    """Read all objects of a shard, and return the defects found.

    Raises:
        LocationError: the store failed. HandleError: the location has moved.
    """
    return await _ShardScrub(shard).run()


@dataclass(slots=True)
class _ShardScrub:
    shard: Shard
    found: ShardScrubReport = field(default_factory=ShardScrubReport)
    seen: set[int] = field(default_factory=set)

    @property
    def state_key(self) -> str:
        """The name of the state's records, as users know it."""
        return f"consensus/{self.shard.id}"

    async def run(self) -> ShardScrubReport:
        for _ in range(ROUNDS):
            try:
                state = await complete_state(self.shard)
            except (LocationError, HandleError):
                raise
            except TidelogError as error:
                # The message has the path of a damaged rollup or part. The rest of the state is
                # unreadable then.
                self._note(str(error.facts.get("path", self.state_key)), error)
                return self.found
            new = [b for b in state.batches if b.digest not in self.seen]
            if not new and self.seen:
                break
            for batch in new:
                self.seen.add(batch.digest)
                await self._check_parts(batch, newest_schema(state))
            if not new:
                break
        await self._check_state(self.shard.state)
        await self._check_past()
        return self.found

    async def _check_parts(self, batch: Batch, schema: ShardSchema) -> None:
        self._note_all(self.state_key, check_batch(batch))
        work = [partial(self._check_part, part, schema, batch) for part in batch.parts]
        await run_all(work, at_once=AT_ONCE)

    async def _check_part(
        self, part: Part, schema: ShardSchema, batch: Batch, *, is_held: bool = False
    ) -> None:
        where = part.path or self.state_key
        own = schema.of_part(part.schema_id)
        try:
            (table,) = await self.shard.reader.read([part], own)
        except PartMissing as error:
            if is_held or await self._is_lost(error):
                self.found.damages.append(Damage(where, "the object is missing", RESTORE))
            return
        except CorruptionError as error:
            self._note(where, error)
            return
        self.found.parts += 1
        self.found.rows += table.num_rows
        self.found.bytes_read += part.size_bytes
        told = await self.shard.clock.offload(lambda: _told(part, table, own, batch))
        self._note_all(where, iter(told))

    async def _is_lost(self, error: PartMissing) -> bool:
        try:
            require_replaced([await complete_state(self.shard)], error)
        except PartMissing:
            return True
        return False

    async def _check_state(self, state: State) -> None:
        self._note_all(self.state_key, check_state(state))
        sums = []
        for batch in state.batches:
            total = batch.parts[0].t
            for part in batch.parts[1:]:
                total = total + part.t
            sums.append((batch, total))
        compared = check_t(state, sums)
        self.found.unseen_t = compared is None and state.upper != 0
        self._note_all(self.state_key, iter(compared or ()))

    async def _check_past(self) -> None:
        """Check that each kept rollup, plus the changes after it, equals the newest state."""
        machine = self.shard.machine
        state, seqno = machine.state, int(machine.seqno)
        try:
            records = [one for one in await kept_records(machine) if one.seqno <= seqno]
        except (LocationError, HandleError):
            raise
        except TidelogError as error:
            self._note(self.state_key, error)
            return
        self.found.records = len(records)
        if records and records[0].seqno == 1:
            self._check_same(machine.language.initial(), 0, records, state, self.state_key)
        batches = [b for one in records for diff in one.diffs for b in _brought(diff)]
        for rollup in machine.history.rollups:
            batches += await self._check_rollup(rollup, records, state)
        await self._check_held(batches)

    async def _check_held(self, batches: list[Batch]) -> None:
        """Check the parts that the state no longer names but a lease still holds."""
        machine = self.shard.machine
        since = machine.language.seqno_since(machine.state)
        if since is None:
            return
        held = {path for g in machine.history.gone if g.seqno > since for path in g.paths}
        schema = newest_schema(machine.state)
        for batch in batches:
            for part in batch.parts:
                if part.path in held:
                    held.discard(part.path)
                    await self._check_part(part, schema, batch, is_held=True)

    async def _check_rollup(
        self, rollup: Rollup, records: list[PastRecord[Diff]], state: State
    ) -> list[Batch]:
        """Check a rollup; return its batches if it is readable."""
        try:
            old, _ = await self.shard.machine.load_rollup(rollup)
        except ObjectNotFound:
            await self.shard.refresh()
            if rollup in self.shard.machine.history.rollups:
                self.found.damages.append(Damage(rollup.path, "the object is missing", RESTORE))
            return []
        except LocationError:
            raise
        except TidelogError as error:
            self._note(rollup.path, error)
            return []
        if records and records[0].seqno <= rollup.seqno + 1:
            self._check_same(old, rollup.seqno, records, state, rollup.path)
        return list(old.batches)

    def _check_same(
        self, old: State, seqno: int, records: list[PastRecord[Diff]], state: State, path: str
    ) -> None:
        for one in records:
            if one.seqno > seqno:
                for diff in one.diffs:
                    old = self.shard.machine.language.apply(old, diff)
        self.found.states += 1
        if old != state:
            why = "with its later changes applied, it differs from the newest state"
            self.found.damages.append(Damage(path, why))

    def _note(self, path: str, error: TidelogError) -> None:
        self.found.damages.append(Damage(path, str(error), RESTORE))

    def _note_all(self, path: str, told: Iterator[str]) -> None:
        try:
            self.found.damages += [Damage(path, why) for why in told]
        except CorruptionError as error:
            self._note(path, error)


def _brought(diff: Diff) -> list[Batch]:
    merged = None if diff.merged is None else diff.merged.batch
    return [batch for batch in (diff.batch, merged) if batch is not None]


def _told(part: Part, table: pa.Table, schema: ShardSchema, batch: Batch) -> list[str]:
    return list(check_part(part, table, schema, batch))
