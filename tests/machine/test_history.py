"""What of the past is kept, and what may go: every state that somebody may hold stays whole."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tidelog.ids import SeqNo
from tidelog.machine.history import (
    History,
    begin_history,
    follow,
    missing_records,
    plan_collection,
)
from tidelog.machine.record import Record, RolledUp, Rollup, describe_rollup


def rollup(seqno: int) -> Rollup:
    return describe_rollup(SeqNo(seqno), f"rollup/{seqno}", b"")


@dataclass(slots=True)
class World:
    """A machine's past, as a plain list: what each record named, and which objects are there.

    Each record but some brings an object; some make the oldest one that is named vanish.
    """

    records: list[Record] = field(default_factory=list)
    gone: list[tuple[str, ...]] = field(default_factory=list)
    named: list[tuple[str, ...]] = field(default_factory=lambda: [()])
    objects: set[str] = field(default_factory=set)
    pending: Rollup | None = None
    floor: int = 0

    def commit(self, *, merges: bool) -> None:
        seqno, before = len(self.records) + 1, self.named[-1]
        gone = before[:1] if merges else ()
        new = f"part/{seqno}"
        self.objects.add(new)
        newest = self.pending or (self.records[-1].rollup if self.records else None)
        self.records.append(Record(rollup=newest, floor=self.floor))
        self.gone.append(gone)
        self.named.append((*before[len(gone) :], new))

    def history(self, start: int) -> History:
        """Return what is known to who read the rollup of a seqno, and the records after it."""
        found = History()
        if start:
            known = self._at(start)
            body = RolledUp(state=b"", floor=known.floor, rollups=known.rollups)
            found = begin_history(rollup(start), body)
        return self._follow(found, start)

    def _at(self, seqno: int) -> History:
        found = History()
        for number in range(seqno):
            found = follow(found, number + 1, self.records[number], self.gone[number])
        return found

    def _follow(self, found: History, start: int) -> History:
        for number in range(start, len(self.records)):
            found = follow(found, number + 1, self.records[number], self.gone[number])
        return found


@given(
    steps=st.lists(st.sampled_from(["write", "merge", "roll up", "collect"]), max_size=60),
    data=st.data(),
)
def test_a_state_that_may_be_held_is_whole(steps: list[str], data: st.DataObject) -> None:
    """Whoever collects, from wherever he began; and what nobody can reach any more is gone."""
    world = World()
    for step in steps:
        seqno = len(world.records)
        if step in ("write", "merge"):
            world.commit(merges=step == "merge")
        elif step == "roll up" and seqno:
            world.pending = rollup(seqno)
        elif step == "collect" and seqno:
            starts = [one.seqno for one in world.history(0).rollups]
            history = world.history(data.draw(st.sampled_from([0, *starts]), label="began at"))
            since = data.draw(st.none() | st.integers(world.floor, seqno), label="held")
            missing = missing_records(history)
            older = []
            if missing is not None:
                older = [(n, world.gone[n - 1]) for n in range(missing[0], missing[1] + 1)]
            found = plan_collection(history, since, older)
            if found is None:
                continue
            world.objects -= {*found.objects}
            world.floor = found.floor
            assert since is None or found.floor <= since
        for held in range(world.floor, len(world.named)):
            assert {*world.named[held]} <= world.objects, (step, held)
    dead = {path for gone in world.gone[: world.floor] for path in gone}
    assert not dead & world.objects, "what no state from the floor on names is still there"


def test_nothing_goes_before_a_rollup_is_named() -> None:
    """A newcomer starts from one: until then it needs every record."""
    history = follow(History(), 1, Record(), ("part/0",))
    assert plan_collection(history, None) is None

    named = follow(history, 2, Record(rollup=rollup(1)), ())
    found = plan_collection(named, None)
    assert found is not None
    assert (found.floor, found.objects, found.rollups) == (1, ("part/0",), ())
    assert plan_collection(named, 0) is None, "somebody holds the state before"


def test_rollups_that_a_reader_needs_stay() -> None:
    """Of several that were passed, all but the newest go at once."""
    history = History()
    for seqno in range(1, 8):
        history = follow(
            history, seqno, Record(rollup=rollup(seqno - 1) if seqno > 1 else None), ()
        )

    found = plan_collection(history, 4)
    assert found is not None
    assert (found.floor, found.rollups) == (4, ("rollup/1", "rollup/2", "rollup/3"))
    after = follow(history, 8, Record(rollup=rollup(6), floor=4), ())
    assert [one.seqno for one in after.rollups] == [4, 5, 6]
