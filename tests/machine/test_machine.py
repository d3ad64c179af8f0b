"""The machine: a loop that reads, decides and writes conditionally, over any kind of state."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import pytest

from kit.words import CLOCK, Place, Words, WordsLanguage, say, say_all, say_once
from tidelog.consensus.memory import MemoryConsensus
from tidelog.consensus.port import VersionedRecord
from tidelog.consensus.store import StoreConsensus
from tidelog.core.clock import SystemClock
from tidelog.core.ids import SeqNo
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    LocationError,
    Outcome,
    UsageError,
)
from tidelog.machine.language import Decision
from tidelog.machine.machine import Machine
from tidelog.machine.record import decode_record
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Object
from tidelog.testing import Fault, FaultyStore, RecordedStore, Request


async def test_every_machine_sees_a_committed_change() -> None:
    """A committed change is visible to every machine, which replays the records."""
    place = Place()

    first, second = place.machine(), place.machine()
    assert await first.commit(say("a")) == 1
    assert await second.commit(say("b")) == 2
    assert await first.refresh() == ("a", "b")
    assert await place.machine().refresh() == ("a", "b")


async def test_a_decision_is_made_again_over_the_newer_state() -> None:
    """A machine that loses a race decides again over the newer state."""
    place = Place()

    slow, quick = place.machine(), place.machine()
    await slow.refresh()
    await quick.commit(say_once("mine"))

    assert await slow.commit(say_once("mine")) is False
    assert await place.machine().refresh() == ("mine",)


async def test_a_refusal_is_believed_only_over_a_fresh_state() -> None:
    """A refusal counts only over the newest state. An error over an old state would be wrong."""
    place = Place()

    def only_after_hello(state: Words) -> Decision[str, str]:
        if "hello" not in state:
            raise UsageError("say hello first")
        return Decision("welcome", "in")

    behind, ahead = place.machine(), place.machine()
    await behind.refresh()
    await ahead.commit(say("hello"))

    assert await behind.commit(only_after_hello) == "welcome"
    with pytest.raises(UsageError, match="say hello first"):
        await Place().machine().commit(only_after_hello)


async def test_one_machine_commits_one_change_at_a_time() -> None:
    """The calls of one machine never race each other, and none is lost."""
    place = Place()

    machine = place.machine(rollup_every=3)
    answers = await asyncio.gather(*(machine.commit(say(str(n))) for n in range(30)))

    assert sorted(answers) == list(range(1, 31))
    assert sorted(await place.machine().refresh()) == sorted(map(str, range(30)))


async def test_many_machines_lose_nothing() -> None:
    """Many machines lose no change. A lost race costs only another try."""
    place = Place()

    machines = [place.machine(rollup_every=4) for _ in range(5)]
    await asyncio.gather(*(say_all(m, "abcdef") for m in machines))

    assert sorted(await place.machine().refresh()) == sorted("abcdef" * 5)


async def test_who_never_wins_is_told() -> None:
    """A machine that never wins raises ContentionError after a limit."""

    class Never(MemoryConsensus):
        async def compare_and_set(self, key: str, seqno: SeqNo, data: bytes) -> bool:
            return False

    machine = Place().machine(consensus=Never(), commits_max=3)
    with pytest.raises(ContentionError) as caught:
        await machine.commit(say("a"))
    assert caught.value.outcome is Outcome.NOT_APPLIED


async def test_a_rollup_is_written_named_and_then_records_go() -> None:
    """A machine writes a rollup, names it in a record, and then deletes older records."""
    place = Place()

    machine = place.machine(rollup_every=4)
    await say_all(machine, "abcdefghijklmnopq")

    assert len(place.rollups()) <= 2
    assert len(place.kept()) <= 6
    asked = RecordedStore(place.store)
    newcomer = place.machine(store=asked)
    assert await newcomer.refresh() == tuple("abcdefghijklmnopq")
    assert len(asked.records) == 1


@pytest.mark.parametrize("every", [1, 2, 3, 7])
async def test_the_state_at_every_seqno_is_that_of_all_diffs_before_it(every: int) -> None:
    """A reader at any seqno reaches the same state. The state equals all diffs over the rollup."""
    place = Place()

    writers = [place.machine(rollup_every=every) for _ in range(2)]
    readers: list[tuple[int, Machine[Words, str]]] = []
    for number, word in enumerate("abcdefghijklmnopqrst"):
        reader = place.machine()
        await reader.refresh()
        readers.append((number, reader))
        await writers[number % 2].commit(say(word))
        for seen, behind in readers[:: number // 2 + 1]:
            assert behind.seqno >= seen
            assert await behind.refresh() == tuple("abcdefghijklmnopqrst"[: number + 1])
            assert behind.seqno >= number + 1  # One may reach no further than the newest rollup.


async def test_rollups_go_on_after_another_writer_was_quicker() -> None:
    """An unnamed rollup of a faster writer does not stop the next rollup."""
    place = Place()

    first, second = place.machine(rollup_every=4), place.machine(rollup_every=4)
    await say_all(first, "abc")
    await second.refresh()
    # Both write a rollup at their fourth and fifth change; only one can be the newest.
    await first.commit(say("d"))
    await second.commit(say("e"))
    await second.commit(say("f"))
    await first.commit(say("g"))
    # From here, the first writer is alone.
    await say_all(first, "hijklmnopqrstuvwxyz")

    assert len(place.kept()) <= 8
    assert await place.machine().refresh() == tuple("abcdefghijklmnopqrstuvwxyz")


async def test_no_rollup_stays_that_nothing_names() -> None:
    """No unnamed rollup stays. Otherwise two writers would leave twice as many objects."""
    place = Place()

    writers = place.machine(rollup_every=4), place.machine(rollup_every=4)
    for number in range(40):
        await writers[number % 3 > 0].commit(say(f"{number}"))
    for writer in writers:
        await writer.commit(say("last"))
        await writer.commit(say("last"))
    named = {rollup.path for rollup in writers[1].history.rollups}
    pending = {
        one.path for w in writers if (one := w.maintenance.to_name(w.history)[0]) is not None
    }

    assert set(place.rollups()) <= named | pending
    assert len(await place.machine().refresh()) == 44


async def test_rollups_go_on_after_a_lost_answer() -> None:
    """A rollup follows although the record that names the last one lost its answer."""
    place = Place()

    class LosesOne(MemoryConsensus):
        async def compare_and_set(self, key: str, seqno: SeqNo, data: bytes) -> bool:
            landed = await place.consensus.compare_and_set(key, seqno, data)
            if landed and seqno == 5:
                raise LocationError("the answer was lost", outcome=Outcome.UNKNOWN)
            return landed

        async def scan(
            self, key: str, start: SeqNo, limit: int | None = None
        ) -> list[VersionedRecord]:
            return await place.consensus.scan(key, start, limit)

        async def truncate(self, key: str, before: SeqNo) -> int:
            return await place.consensus.truncate(key, before)

    machine = place.machine(rollup_every=4, consensus=LosesOne())
    await say_all(machine, "abcd")
    with pytest.raises(LocationError):
        await machine.commit(say("e"))
    await say_all(machine, "fghijklmnopqrstuvwxyz")

    assert len(place.kept()) <= 8
    assert await place.machine().refresh() == tuple("abcdefghijklmnopqrstuvwxyz")


async def test_a_reader_that_fell_behind_starts_from_the_rollup() -> None:
    """A reader that fell behind starts from the newest rollup, as records may be deleted."""
    place = Place()

    sleeper, machine = place.machine(), place.machine(rollup_every=3)
    await machine.commit(say("a"))
    await sleeper.refresh()
    await say_all(machine, "bcdefghijkl")

    assert place.kept()[0] > 2
    assert await sleeper.refresh() == tuple("abcdefghijkl")
    assert await sleeper.commit(say("m")) == 13


async def test_a_failed_rollup_stops_no_commit() -> None:
    """A rollup that cannot be written stops no commit, because the change has landed."""
    place = Place()

    def refuse(request: Request) -> Fault:
        return Fault(happened=request.op != "put")

    await say_all(
        place.machine(rollup_every=2, store=FaultyStore(place.store, toss=refuse)), "abcde"
    )

    assert await place.machine().refresh() == tuple("abcde")


async def test_what_is_missing_or_changed_is_corruption_never_a_state() -> None:
    """A missing or changed object raises CorruptionError, never a wrong state."""

    async def broken(spoil: Callable[[Place], None]) -> None:
        place = Place()
        await say_all(place.machine(rollup_every=3), "abcdefgh")
        spoil(place)
        with pytest.raises(CorruptionError):
            await place.machine(clock=ImpatientClock()).refresh()

    def flip(place: Place) -> None:
        newest = place.consensus.records["k"][-1]
        rollup = decode_record(newest.data, key="k", seqno=newest.seqno).rollup
        assert rollup is not None
        found = place.store.objects[rollup.path]
        data = bytes([found.data[0] ^ 1]) + found.data[1:]
        place.store.objects[rollup.path] = Object(data, found.e_tag, found.modified_us)

    def lose_rollups(place: Place) -> None:
        place.store.objects.clear()

    def lose_a_record(place: Place) -> None:
        del place.consensus.records["k"][-2]

    def lose_all_before_the_newest(place: Place) -> None:
        del place.consensus.records["k"][:-1]

    await broken(lose_rollups)
    await broken(lose_a_record)
    await broken(lose_all_before_the_newest)
    await broken(flip)


class ImpatientClock(SystemClock):
    async def sleep(self, duration_us: int) -> None:
        await asyncio.sleep(0)


async def test_a_state_of_a_newer_tidelog_is_left_alone() -> None:
    """An older process must not undo a change that it cannot read."""
    place = Place()

    await place.machine().commit(say("a"))
    newest = place.consensus.records["k"][-1]
    newer = newest.data.replace(b"\xa1v\x02", b"\xa1v\x03")
    assert newer != newest.data
    place.consensus.records["k"][-1] = type(newest)(newest.seqno, newer)

    with pytest.raises(UsageError, match="newer tidelog"):
        await place.machine().commit(say("b"))
    assert place.consensus.records["k"][-1].data == newer


async def test_bytes_of_a_change_do_not_grow_with_the_state() -> None:
    """The bytes of a change do not grow with the state."""
    place = Place()

    machine = place.machine(rollup_every=10_000)
    await say_all(machine, "x" * 500)

    sizes = [len(r.data) for r in place.consensus.records["k"]]
    assert max(sizes) == min(sizes)


async def test_machines_work_on_a_store_alone() -> None:
    """Machines work on a store alone, with consensus and rollups in it."""
    store = MemoryStore()

    machines = [
        Place().machine(
            rollup_every=5, store=store, consensus=StoreConsensus(store=store, clock=CLOCK)
        )
        for _ in range(3)
    ]
    await asyncio.gather(*(say_all(m, "abcdefgh") for m in machines))

    found = [await m.refresh() for m in machines]
    assert found[0] == found[1] == found[2]
    assert sorted(found[0]) == sorted("abcdefgh" * 3)


async def test_commands_that_wait_share_a_record() -> None:
    """Waiting commands share a record. Separate records would each cost a round trip."""
    place = Place()
    machine = place.machine()

    answers = await asyncio.gather(*(machine.commit(say(str(n))) for n in range(50)))

    assert answers == list(range(1, 51))
    assert len(place.kept()) <= 2
    assert await place.machine().refresh() == tuple(map(str, range(50)))


async def test_commands_that_share_a_record_are_refused_alone() -> None:
    """Commands that share a record fail alone. An error of one does not affect the others."""
    machine = Place().machine()

    def refuse(state: Words) -> Decision[str, int]:
        raise UsageError("not this one")

    def broken(state: Words) -> Decision[str, int]:
        raise ZeroDivisionError

    calls = [say("a"), refuse, say("b"), broken, say("c")]
    found = await asyncio.gather(*(machine.commit(c) for c in calls), return_exceptions=True)

    assert [type(one) for one in found] == [int, UsageError, int, ZeroDivisionError, int]
    assert machine.state == ("a", "b", "c")


async def test_each_command_is_decided_over_those_before_it() -> None:
    """Six concurrent commands that add a word once add it once."""
    place = Place()
    first, second = place.machine(), place.machine()

    found = await asyncio.gather(*(m.commit(say_once("x")) for m in [first] * 3 + [second] * 3))

    assert sorted(found) == [False] * 5 + [True]
    assert await place.machine().refresh() == ("x",)


async def test_a_call_that_is_cancelled_takes_no_other_with_it() -> None:
    """A cancelled call cancels no other, even if the record was begun for it."""
    place, begun, go_on = Place(), asyncio.Event(), asyncio.Event()

    class SlowConsensus(MemoryConsensus):
        async def compare_and_set(self, key: str, seqno: SeqNo, data: bytes) -> bool:
            begun.set()
            await go_on.wait()
            return await place.consensus.compare_and_set(key, seqno, data)

    machine = place.machine(consensus=SlowConsensus())
    cancelled = asyncio.create_task(machine.commit(say("a")))
    await begun.wait()
    other = asyncio.create_task(machine.commit(say("b")))
    cancelled.cancel()
    go_on.set()

    assert await other == 2
    assert cancelled.cancelled()
    assert await place.machine().refresh() == ("a", "b")


async def test_a_call_that_was_cancelled_is_told_of_nothing_at_the_end() -> None:
    """The error of a cancelled call reaches no caller, because it has moved on."""
    place, begun, go_on = Place(), asyncio.Event(), asyncio.Event()

    class FailingConsensus(MemoryConsensus):
        async def compare_and_set(self, key: str, seqno: SeqNo, data: bytes) -> bool:
            begun.set()
            await go_on.wait()
            raise LocationError("the store failed")

    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    cancelled = asyncio.create_task(place.machine(consensus=FailingConsensus()).commit(say("a")))
    await begun.wait()
    cancelled.cancel()
    await asyncio.wait({cancelled})
    go_on.set()
    for _ in range(10):
        await asyncio.sleep(0)
    del cancelled
    gc.collect()

    assert told == []


async def test_processes_that_commit_once_have_rollups_named() -> None:
    """Processes that commit once name each other's rollups and write no second one."""
    place = Place()
    for number in range(20):
        await say_all(place.machine(rollup_every=4), f"{number % 10}")

    reader = place.machine(rollup_every=4)
    await reader.refresh()
    assert len(place.rollups()) == len(reader.history.rollups) <= 2
    assert len(place.kept()) < 12


async def test_damaged_bytes_are_named_by_their_key_and_seqno() -> None:
    """A language knows no paths, so the machine adds the key and the seqno of a damaged record."""
    place = Place()
    await place.machine().commit(say("a"))

    class Garbled(WordsLanguage):
        def decode_diff(self, data: bytes) -> str:
            raise CorruptionError("a word cannot be decoded: restore it", word=data.decode())

    reader = place.machine()
    reader.language = Garbled()

    with pytest.raises(CorruptionError) as raised:
        await reader.refresh()
    assert raised.value.facts == {"word": "a", "key": "k", "seqno": 1}
