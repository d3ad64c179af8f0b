"""All updates ever appended to a shard, read from the bytes written at the time.

Each part is decoded by the schema that it was written with. Its rows are then widened to all
columns that the shard ever had: a column name is never used twice, so this holds under every
schema.
"""

from __future__ import annotations

from sim.checkers.demands import demand
from sim.checkers.watch import Watch
from tidelog.persist.format.part import Part, decode_own, decode_part, sums_of, with_time
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.format.updates import time_bounds
from tidelog.persist.states.batch import Batch
from tidelog.persist.states.evolution import newest_schema
from tidelog.persist.states.state import Diff, State
from tidelog.rowhash import RowSum
from tidelog.testing.models import Update, updates_of


class AppendedUpdates:
    """All updates of a shard, in the columns ``names``, which grow; and their sums.

    ``known`` are the columns of each schema, by their ids.
    """

    def __init__(self, watch: Watch) -> None:
        self.names: list[str] = []
        self.known: list[list[str]] = []
        self._found: list[tuple[int, list[Update]]] = []
        self._sum_t = self._sum_v = RowSum.zero()
        self._watch = watch

    @property
    def updates(self) -> list[Update]:
        found = [self.widened(updates, schema_id) for schema_id, updates in self._found]
        return [update for updates in found for update in updates]

    def follow(self, diff: Diff, before: State, after: State) -> RowSum:
        """Apply a change; return by how much a merge into newer columns changes V."""
        restated = RowSum.zero()
        if after.schema:
            self.known = [list(schema.names) for schema in newest_schema(after).known]
            ever = [name for names in self.known for name in names]
            self.names += [name for name in dict.fromkeys(ever) if name not in self.names]
        if diff.batch is not None:
            schema = newest_schema(after)
            for part in diff.batch.parts:
                demand(part.schema_id == after.schema_id, "a part is not of the newest schema")
                updates, sums = check_part(self._bytes_of(part), diff.batch, part, schema)
                self._found.append((part.schema_id, updates))
                self._sum_t, self._sum_v = self._sum_t + sums[0], self._sum_v + sums[1]
        if diff.merged is not None:
            restated = self._restated(before, diff)
            self._sum_v = self._sum_v + restated
        if is_tombstone(after):
            self._sum_v = RowSum.zero()
        self._check_sums(after)
        return restated

    def widened(self, updates: list[Update], schema_id: int) -> list[Update]:
        """Return updates of a schema in the columns ``names``."""
        own = self.known[schema_id]
        if own == self.names:
            return updates
        at = [own.index(name) if name in own else None for name in self.names]
        return [
            Update(tuple(None if n is None else u.row[n] for n in at), u.time, u.diff)
            for u in updates
        ]

    def now(self, updates: list[Update]) -> list[Update]:
        """Return updates that are in ``names`` in the newest columns."""
        return projected(updates, self.names, self.known[-1]) if self.known else updates

    def _restated(self, before: State, diff: Diff) -> RowSum:
        """Return the change of V if a merge rewrites parts of earlier schemas in newer columns."""
        merged = diff.merged
        found = RowSum.zero()
        if merged is None or not before.schema:
            return found
        newest = newest_schema(before)
        into = None if merged.batch is None else {p.schema_id for p in merged.batch.parts}
        if into is not None and len(into) == 1:
            # The schema may have changed while the merge was under way.
            newest = newest.of_part(min(into))
        for batch in before.batches.within(merged.lower, merged.upper):
            for part in batch.parts:
                own = newest.of_part(part.schema_id)
                if own.data.equals(newest.data):
                    continue
                now = decode_part(part, self._bytes_of(part), newest)
                found = found + sums_of(now, newest)[0] - part.v
        return found

    def _bytes_of(self, part: Part) -> bytes:
        return part.inline or self._watch.parts[part.path or ""]

    def _check_sums(self, after: State) -> None:
        demand(
            after.totals.sum_t == self._sum_t.to_bytes(), "T of the state is not that of its rows"
        )
        demand(
            after.totals.sum_v == self._sum_v.to_bytes(), "V of the state is not that of its rows"
        )
        for commit in after.commits[-1:]:
            demand(commit.sum_t == after.totals.sum_t, "T at an upper is wrong", commit=commit)


def projected(updates: list[Update], names: list[str], wanted: list[str]) -> list[Update]:
    """Return updates with some of their columns."""
    if names == wanted:
        return updates
    at = [names.index(name) for name in wanted]
    return [Update(tuple(u.row[n] for n in at), u.time, u.diff) for u in updates]


def is_tombstone(state: State) -> bool:
    """Return True if a shard is deleted: it is finished, and not readable at any time."""
    return state.upper is None and state.since is None and not len(state.batches)


def check_part(
    data: bytes, batch: Batch, part: Part, schema: ShardSchema
) -> tuple[list[Update], tuple[RowSum, RowSum]]:
    """Check a part against its descriptor; return its updates as written, and their T and V."""
    own = schema.of_part(part.schema_id)
    table = decode_own(part, data, own)
    least, greatest = time_bounds(table)
    demand((least, greatest) == (part.time_min, part.time_max), "a part's time bounds are wrong")
    demand(
        batch.lower <= least and (batch.upper is None or greatest < batch.upper),
        "an update lies outside its batch",
        batch=(batch.lower, batch.upper),
        times=(least, greatest),
    )
    updates = updates_of(table)
    demand(len(updates) == part.rows, "a part counts other rows")
    demand(sum(u.diff for u in updates) == part.diffs, "a part counts other diffs")
    demand(all(u.diff for u in updates), "a part holds an update of 0")
    # A commit may move the times of a part, and T remains that of the bytes.
    stored = table if part.stored_time is None else with_time(table, part.stored_time)
    sum_v, sum_t = sums_of(stored, own)
    demand((sum_t, sum_v) == (part.t, part.v), "a part's sums are not those of its rows")
    return updates, (sum_t, sum_v)
