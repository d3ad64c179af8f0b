"""Invariants: rules that hold for every shard after any run, whatever faults struck.

The checks use the store's bytes, all bytes ever written to it, and all records ever decided. They
sum decoded rows again and apply the states from the first record on. Merged parts must equal the
appended updates, as far as a reader can still distinguish them.
"""

from __future__ import annotations

from dataclasses import dataclass

import xxhash

from sim.checkers.appended_updates import AppendedUpdates, check_part, is_tombstone
from sim.checkers.demands import demand
from sim.checkers.watch import TRANSACTIONS, Watch
from tidelog.core.frontier import Frontier
from tidelog.core.ids import SeqNo
from tidelog.machine.record import decode_record, decode_rollup
from tidelog.persist.states.evolution import newest_schema
from tidelog.persist.states.state import BatchMerge, Diff, ShardLanguage, State
from tidelog.rowhash import RowSum
from tidelog.store.memory import MemoryStore
from tidelog.testing.models import Update, consolidate


@dataclass(frozen=True, slots=True)
class ObservedShard:
    """A shard after a run: all its states from the first, and all its updates as appended.

    Shape: rows of ``updates`` have the columns ``names``: all columns that the shard ever had, in
        order of creation; a column that a row's own schema lacks is null.
    """

    id: str
    names: list[str]
    states: list[State]
    updates: list[Update]
    intervals: list[tuple[int, int | None, str, int]]  # lower, upper, writer, number

    @property
    def state(self) -> State:
        return self.states[-1]

    @property
    def upper(self) -> int | None:
        return self.state.upper

    def within(self, lower: int, upper: int | None) -> list[Update]:
        """Return the updates at times in ``[lower, upper)``."""
        return [u for u in self.updates if lower <= u.time and (upper is None or u.time < upper)]


def check_all(store: MemoryStore, watch: Watch) -> dict[str, ObservedShard]:
    """Check every shard in a store; return each one's states and updates."""
    demand(not watch.violations, "a step was not allowed", violations=watch.violations)
    shards = [key for key in sorted(watch.entries) if not key.startswith(TRANSACTIONS)]
    return {key: check_shard(store, watch, key) for key in shards}


def check_shard(store: MemoryStore, watch: Watch, key: str) -> ObservedShard:
    """Check one shard."""
    language = ShardLanguage()
    states = [language.initial()]
    appended = AppendedUpdates(watch)
    intervals: list[tuple[int, int | None, str, int]] = []
    for seqno, record in enumerate(watch.records(key), start=1):
        after = states[-1]
        for data in record.diffs:
            diff = language.decode_diff(data)
            before, after = after, language.apply(after, diff)
            restated = appended.follow(diff, before, after)
            _check_step(before, after, diff, seqno, restated)
            if diff.upper is not None and diff.token is not None:
                intervals.append((before.upper or 0, after.upper, *diff.token))
        states.append(after)
        if record.rollup is not None:
            rollup = record.rollup
            demand(rollup.seqno < seqno, "a rollup covers what comes after it", seqno=seqno)
            found = watch.rollups.get(rollup.path)
            demand(found is not None, "a rollup was never written", shard=key, seqno=seqno)
            demand(
                found is not None
                and decode_rollup(rollup, found).state
                == language.encode_state(states[rollup.seqno]),
                "a rollup is not the state that its seqno had",
                shard=key,
                seqno=seqno,
            )
    _check_kept(store, watch, key, len(states) - 1)
    state = states[-1]
    if state.schema:
        _check_parts(store, state, appended)
    demand(
        len({(writer, number) for _, _, writer, number in intervals}) == len(intervals),
        "a token was committed twice",
        shard=key,
    )
    return ObservedShard(key, appended.names, states, appended.updates, intervals)


def _check_step(before: State, after: State, diff: Diff, seqno: int, restated: RowSum) -> None:
    demand(before.since_frontier <= after.since_frontier, "since went back", seqno=seqno)
    demand(before.upper_frontier <= after.upper_frontier, "upper went back", seqno=seqno)
    there, now = list(before.batches), list(after.batches)
    if diff.merged is not None:
        _check_merge(before, after, diff.merged, seqno, restated)
    else:
        demand(now[: len(there)] == there, "a batch was lost", seqno=seqno)
        for batch in now[len(there) :]:
            demand(batch.lower == before.upper, "a batch does not begin at upper", seqno=seqno)
            demand(batch.upper == after.upper, "a batch does not end at upper", seqno=seqno)
    held = [hold.frontier for hold in after.holds.values()]
    demand(all(after.since_frontier <= hold for hold in held), "since is past a hold", seqno=seqno)


def _check_merge(
    before: State, after: State, merged: BatchMerge, seqno: int, restated: RowSum
) -> None:
    there, now = list(before.batches), list(after.batches)
    old = [b for b in there if b not in now]
    at = there.index(old[0])
    new = [] if merged.batch is None else [merged.batch]
    demand(there[at : at + len(old)] == old, "batches apart were merged", seqno=seqno)
    whole = [*there[:at], *new, *there[at + len(old) :]]
    demand(now == whole, "a merge changed more than its inputs", seqno=seqno)
    for batch in new:
        ends = (old[0].lower, old[-1].upper)
        demand((batch.lower, batch.upper) == ends, "a merge has other times", seqno=seqno)
        demand(Frontier.at(batch.since) <= before.since_frontier, "a merge is ahead of since")
    if is_tombstone(after):
        return  # A deleted shard has no readers.
    sum_v = RowSum.from_bytes(before.totals.sum_v) + restated
    demand(sum_v.to_bytes() == after.totals.sum_v, "a merge changed V", seqno=seqno)
    demand(before.totals.diffs == after.totals.diffs, "a merge changed diffs", seqno=seqno)


def _check_kept(store: MemoryStore, watch: Watch, key: str, head: int) -> None:
    """Demand that a new client can load the shard: the newest record and its rollup are intact."""
    if not head:
        return
    newest = watch.entries[key][-1]
    record = decode_record(newest.data, key=key, seqno=SeqNo(newest.seqno))
    if record.rollup is not None:
        found = store.objects.get(record.rollup.path)
        demand(found is not None, "the newest rollup is missing", shard=key)
        demand(
            found is not None and xxhash.xxh3_128_digest(found.data) == record.rollup.xxh3,
            "the newest rollup has other bytes",
            shard=key,
        )


def _check_parts(store: MemoryStore, state: State, appended: AppendedUpdates) -> None:
    found: list[Update] = []
    for batch in state.batches:
        for part in batch.parts:
            demand(part.path is None or part.path in store.objects, "a part is missing")
            data = part.inline or store.objects[part.path or ""].data
            updates, _ = check_part(data, batch, part, newest_schema(state))
            found += appended.widened(updates, part.schema_id)
    parts = [p for b in state.batches for p in b.parts]
    demand(state.totals.rows == len(found), "the state counts other rows", found=len(found))
    demand(state.totals.diffs == sum(u.diff for u in found), "the state counts other diffs")
    size_bytes = sum(p.size_bytes for p in parts)
    demand(state.totals.size_bytes == size_bytes, "the state counts other bytes")
    since = state.since
    if since is not None:
        demand(
            consolidate(_from(appended.now(found), since))
            == consolidate(_from(appended.now(appended.updates), since)),
            "the state holds other updates than were appended",
        )


def _from(updates: list[Update], since: int) -> list[Update]:
    """Return updates as seen by a reader at or after since."""
    return [Update(u.row, max(u.time, since), u.diff) for u in updates]
