"""Plans for a machine's past: every state that a process may hold stays whole."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tidelog.core.ids import SeqNo
from tidelog.machine.record import (
    History,
    Record,
    Rollup,
    RollupBody,
    begin_history,
    decode_rollup,
    describe_rollup,
    encode_rollup,
    follow,
    plan_collection,
)


def rollup(seqno: int) -> Rollup:
    return describe_rollup(SeqNo(seqno), f"rollup/{seqno}", b"")


@dataclass(slots=True)
class World:
    """A machine's past as plain lists: the objects that each record names, and those that exist.

    Each record adds an object. Some records also remove the oldest named object.
    """

    records: list[Record] = field(default_factory=list)
    gone: list[tuple[str, ...]] = field(default_factory=list)
    named: list[tuple[str, ...]] = field(default_factory=lambda: [()])
    objects: set[str] = field(default_factory=set)
    pending: Rollup | None = None
    floor: int = 0
    erased: int = 0
    now_us: int = 0

    def commit(self, *, merges: bool, skew_us: int = 0) -> None:
        seqno, before = len(self.records) + 1, self.named[-1]
        gone = before[:1] if merges else ()
        new = f"part/{seqno}"
        self.objects.add(new)
        newest = self.pending or (self.records[-1].rollup if self.records else None)
        at_us = self.now_us + skew_us
        record = Record(rollup=newest, floor=self.floor, erased=self.erased, at_us=at_us)
        self.records.append(record)
        self.gone.append(gone)
        self.named.append((*before[len(gone) :], new))

    def history(self, start: int) -> History:
        """Return the history known from the rollup of a seqno and the records after it."""
        found = History()
        if start:
            known = self._at(start)
            body = RollupBody(
                state=b"",
                floor=known.floor,
                rollups=known.rollups,
                erased=known.erased,
                gone=known.gone,
            )
            data = encode_rollup(body)
            named = describe_rollup(SeqNo(start), f"rollup/{start}", data)
            found = begin_history(rollup(start), decode_rollup(named, data))
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


STEPS = ["write", "merge", "roll up", "collect", "wait"]


@given(steps=st.lists(st.sampled_from(STEPS), max_size=60), data=st.data())
def test_a_state_that_may_be_held_is_whole(steps: list[str], data: st.DataObject) -> None:
    """Each state that a process may hold stays whole; objects below the mark are erased."""
    world = World()
    for step in steps:
        seqno = len(world.records)
        if step in ("write", "merge"):
            world.commit(merges=step == "merge")
        elif step == "wait":
            world.now_us += data.draw(st.integers(1, 10), label="time passes")
        elif step == "roll up" and seqno:
            world.pending = rollup(seqno)
        elif step == "collect" and seqno:
            starts = [one.seqno for one in world.history(0).rollups]
            history = world.history(data.draw(st.sampled_from([0, *starts]), label="began at"))
            least = max(world.floor, world.erased)
            since = data.draw(st.none() | st.integers(least, seqno), label="held")
            before = data.draw(st.integers(0, world.now_us + 1), label="vanished before")
            eager = data.draw(st.booleans(), label="eager")
            found = plan_collection(history, since, before_us=before, eager=eager)
            if found is None:
                continue
            young = {
                path
                for record, gone in zip(world.records, world.gone, strict=True)
                for path in gone
                if record.at_us >= before
            }
            assert not young & {*found.objects}, "somebody may still read what has just vanished"
            world.objects -= {*found.objects}
            world.floor, world.erased = found.floor, found.erased
            assert since is None or max(found.floor, found.erased) <= since
        for held in range(max(world.floor, world.erased), len(world.named)):
            assert {*world.named[held]} <= world.objects, (step, held)
    dead = {path for gone in world.gone[: world.erased] for path in gone}
    assert not dead & world.objects, "what is told erased is still there"
    known = {path for one in world.history(0).gone for path in one.paths}
    vanished = {path for gone in world.gone for path in gone}
    assert vanished & world.objects <= known, "what is not told erased is forgotten: a leak"


def test_a_clock_that_is_wrong_holds_up_nothing_for_long() -> None:
    """A writer's clock a year ahead delays no deletion, as earlier changes count no later."""
    world = World()
    for _ in range(3):
        world.commit(merges=False)
    world.commit(merges=True, skew_us=1_000_000)
    history = world.history(0)
    assert plan_collection(history, None, before_us=5, eager=True) is None
    world.commit(merges=True)
    found = plan_collection(world.history(0), None, before_us=5, eager=True)
    assert found is not None
    assert (found.objects, found.erased) == (("part/1", "part/2"), 5)


def test_objects_alone_are_no_reason_but_for_the_eager() -> None:
    """A commit would cost requests for single objects, so few start no collection."""
    history = follow(History(), 1, Record(), ("part/0",))
    assert plan_collection(history, None, before_us=1) is None
    found = plan_collection(history, None, before_us=1, eager=True)
    assert found is not None
    assert (found.floor, found.raises_floor, found.erased) == (0, False, 1)

    named = follow(history, 2, Record(rollup=rollup(1)), ())
    found = plan_collection(named, None, before_us=1)
    assert found is not None
    assert (found.floor, found.objects, found.rollups) == (1, ("part/0",), ())
    assert plan_collection(named, 0, before_us=1) is None, "somebody holds the state before"


def test_rollups_that_a_reader_needs_stay() -> None:
    """Only the newest of the passed rollups stays, because readers need it."""
    history = History()
    for seqno in range(1, 8):
        history = follow(
            history, seqno, Record(rollup=rollup(seqno - 1) if seqno > 1 else None), ()
        )

    found = plan_collection(history, 4, before_us=1)
    assert found is not None
    assert (found.floor, found.rollups) == (4, ("rollup/1", "rollup/2", "rollup/3"))
    after = follow(history, 8, Record(rollup=rollup(6), floor=4), ())
    assert [one.seqno for one in after.rollups] == [4, 5, 6]
