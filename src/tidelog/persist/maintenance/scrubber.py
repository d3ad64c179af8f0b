"""Scrubbing a shard: all objects that its state names are read and checked; see `scrub`.

It writes nothing and can run concurrently with all other work. If parts are merged in the meantime,
it checks those of the newest state. It also checks the parts of commits that a registered shard
does not have yet.
Source: persist, "Checksums".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tidelog.core.ids import consensus_object
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
from tidelog.persist.format.part import Part, missing_part
from tidelog.persist.handle.shard import Shard
from tidelog.persist.maintenance.part_checks import HERE, PartCheck, PartChecker, plan_checks
from tidelog.persist.maintenance.scrub import (
    RESTORE,
    Damage,
    ShardScrubReport,
    check_batch,
    check_state,
    check_t,
)
from tidelog.persist.read.snapshot import require_replaced
from tidelog.persist.states.batch import Batch
from tidelog.persist.states.evolution import newest_schema
from tidelog.persist.states.state import Diff, State
from tidelog.persist.transactions.applier import complete_state

ROUNDS = 5


async def scrub(shard: Shard, checker: PartChecker = HERE) -> ShardScrubReport:
    """Read all objects of a shard, and return the defects found; ``checker`` reads the parts.

    Raises:
        LocationError: the store failed. HandleError: the location has moved.
    """
    return await _ShardScrub(shard, checker).run()


@dataclass(slots=True)
class _ShardScrub:
    shard: Shard
    checker: PartChecker
    found: ShardScrubReport = field(default_factory=ShardScrubReport)
    seen: set[int] = field(default_factory=set)

    @property
    def state_key(self) -> str:
        """The name of the state's records, as users know it."""
        return f"consensus/{consensus_object(self.shard.id)}"

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
            checks: list[PartCheck] = []
            for batch in new:
                self.seen.add(batch.digest)
                self._note_all(self.state_key, check_batch(batch))
                checks += plan_checks(batch, newest_schema(state), self.state_key)
            await self._check_parts(checks)
            if not new:
                break
        await self._check_state(self.shard.state)
        await self._check_past()
        return self.found

    async def _check_parts(self, checks: Sequence[PartCheck], *, is_held: bool = False) -> None:
        outcomes = await self.checker.check(self.shard, checks)
        for one, outcome in zip(checks, outcomes, strict=True):
            self.found.damages += outcome.damages
            if outcome.rows is not None:
                self.found.parts += 1
                self.found.rows += outcome.rows
                self.found.bytes_read += one.part.size_bytes
            if outcome.is_missing and (is_held or await self._is_lost(one.part)):
                self.found.damages.append(Damage(one.where, "the object is missing", RESTORE))

    async def _is_lost(self, part: Part) -> bool:
        try:
            require_replaced([await complete_state(self.shard)], missing_part(part.path or ""))
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
        checks: dict[str, PartCheck] = {}
        for batch in batches:
            for one in plan_checks(batch, schema, self.state_key):
                if one.part.path in held:
                    checks.setdefault(one.part.path, one)
        await self._check_parts([*checks.values()], is_held=True)

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
