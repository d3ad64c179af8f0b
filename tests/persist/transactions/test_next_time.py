"""Commits at the next time: their decisions, their parts, and the lazy apply of shards."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from contextlib import ExitStack
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.shards import ALREADY, COMMITTED, MISMATCH, Place, contents, heard, in_memory
from kit.transactions import held, registered, row, transactions
from tidelog.core.frontier import Frontier
from tidelog.errors import (
    DataDiffers,
    LocationError,
    NotRegistered,
    Outcome,
    OutcomeUnknown,
    PartMissing,
    PartsSwept,
    UpperMismatch,
    UsageError,
)
from tidelog.machine.machine import Machine
from tidelog.persist.format.part import Part, part_at
from tidelog.persist.maintenance import merge_rows
from tidelog.persist.maintenance.scrubber import scrub
from tidelog.persist.read.opened import PartOpener
from tidelog.persist.read.pieces import SnapshotQuery, changes_in_pieces
from tidelog.persist.states.state import Commit, State
from tidelog.persist.states.transition import AppendResult, difference
from tidelog.persist.transactions.applying import APPLY_BYTES, is_due
from tidelog.persist.transactions.language import TransactionLanguage
from tidelog.persist.transactions.next_time import CommitNext, Reads, decide_next
from tidelog.persist.transactions.state import (
    COMMITS_KEPT,
    Forgotten,
    Pending,
    RegisteredShard,
    TransactionDiff,
    TransactionState,
    Write,
    apply_diff,
)
from tidelog.persist.transactions.transition import TableParts
from tidelog.rowhash import RowSum
from tidelog.spark.scan import Scan, decode_share
from tidelog.testing.models import updates_of

TABLES = {"a": RegisteredShard(1, 0, 0), "b": RegisteredShard(1, 0, 0)}
LARGE = 2_000  # Enough rows for a part that is an object.


def part(time: int, value: int = 7) -> Part:
    return Part(
        inline=b"x",
        size_bytes=1,
        xxh3=b"",
        rows=1,
        diffs=1,
        time_min=time,
        time_max=time,
        sum_v=RowSum(value, 0).to_bytes(),
        sum_t=RowSum(time, value).to_bytes(),
    )


def command(
    *names: str,
    earliest: int = 0,
    number: int = 0,
    reads: Reads | None = None,
    named: bool = False,
    fresh: bool = True,
    value: int = 7,
) -> CommitNext:
    return CommitNext(
        writes={name: TableParts(1, (part(0, value),)) for name in names},
        earliest=earliest,
        token=("w", number),
        known_upper=0,
        named=named,
        fresh=fresh,
        reads=reads,
        applied={},
    )


def after(state: TransactionState, one: CommitNext) -> tuple[AppendResult, TransactionState]:
    done = decide_next(state, one)
    return done.result, state if done.diff is None else apply_diff(state, done.diff)


@given(st.lists(st.integers(0, 50), max_size=12))
def test_times_rise_and_are_never_before_the_earliest_that_is_asked(asked: list[int]) -> None:
    """Each commit gets the greater of its earliest time and the next one, whatever clocks say."""
    state, times = TransactionState(tables=TABLES), []
    for number, earliest in enumerate(asked):
        done, state = after(state, command("a", earliest=earliest, number=number))
        assert done.verdict is COMMITTED
        times.append(done.upper.time - 1)
        (stored,) = msgspec.msgpack.decode(
            state.pending[-1].writes["a"].packed, type=tuple[Part, ...]
        )
        assert stored.time_min == stored.time_max == times[-1]

    assert times == sorted(set(times))
    assert all(time >= earliest for time, earliest in zip(times, asked, strict=True))


def test_only_a_shard_that_was_read_or_written_conflicts() -> None:
    """A commit that read first conflicts with a later write of its shards, and of no others."""
    state = TransactionState(tables=TABLES, moved={"a": 0, "b": 0})
    reads = Reads(upper=0, shards=("a",))
    _, state = after(state, command("b"))

    of_a = decide_next(state, command("a", number=1, reads=reads))
    of_b = decide_next(state, command("b", number=1, reads=reads))
    blind = decide_next(state, command("b", number=1))
    assert of_a.result == AppendResult(COMMITTED, Frontier.at(2))
    assert (of_b.result, of_b.diff) == (AppendResult(MISMATCH, Frontier.at(1)), None)
    assert blind.result.verdict is COMMITTED
    with pytest.raises(NotRegistered):
        decide_next(state, command(reads=Reads(upper=1, shards=("c",))))


def test_a_registration_counts_as_a_write_since_other_writers_may_have_come_before_it() -> None:
    """A shard that was forgotten, written and registered again has moved."""
    state = TransactionState(tables=TABLES, upper=4, moved={"a": 2, "b": 2})
    fenced = apply_diff(state, TransactionDiff(tables={"a": RegisteredShard(1, 0, 1)}))
    again = apply_diff(state, TransactionDiff(upper=6, tables={"a": RegisteredShard(3, 6, 0)}))
    gone = apply_diff(state, TransactionDiff(forgotten={"a": Forgotten(1, 4)}))

    assert fenced.moved == state.moved
    assert again.moved == {"a": 6, "b": 2}
    assert gone.moved == {"b": 2}


def test_a_named_writer_commits_each_number_once() -> None:
    """The state keeps a named writer's newest number, however many commits come after it."""
    state = TransactionState(tables=TABLES)
    _, state = after(state, command("a", number=5, named=True))
    for number in range(COMMITS_KEPT + 2):
        _, state = after(state, command("b", number=number))

    again, same = after(state, command("a", number=5, named=True))
    assert (again, same) == (AppendResult(ALREADY, Frontier.at(1)), state)
    with pytest.raises(DataDiffers):
        decide_next(state, command("a", number=5, named=True, value=8))
    with pytest.raises(OutcomeUnknown, match="committed a greater number"):
        decide_next(state, command("a", number=4, named=True))
    assert decide_next(state, command("a", number=6, named=True)).result.verdict is COMMITTED


def test_a_retry_without_a_name_is_recognized_or_unknown_but_never_repeated() -> None:
    """A retry finds its token among the newest commits; later, the result is unknown."""
    state = TransactionState(tables=TABLES)
    _, state = after(state, command("a"))
    again = command("a", fresh=False)

    assert decide_next(state, again).result == AppendResult(ALREADY, Frontier.at(1))
    for number in range(1, COMMITS_KEPT + 2):
        _, state = after(state, command("b", number=number))
    with pytest.raises(OutcomeUnknown, match="so old"):
        decide_next(state, again)


def test_a_part_for_the_next_time_has_one_time_that_is_not_later() -> None:
    """A part moves forward to the time of its commit; any other part is refused."""
    assert part_at(part(3), 3) == part(3)
    assert part_at(part_at(part(3), 4), 9).stored_time == 3
    for odd in (part(10), msgspec.structs.replace(part(3), time_max=4)):
        with pytest.raises(UsageError, match="one time"):
            part_at(odd, 9)


def test_a_state_of_format_1_counts_each_shard_as_written_last() -> None:
    """Format 1 does not state which shard the last commit wrote, so any of them conflicts."""
    old = msgspec.msgpack.encode({"format": 1, "upper": 9, "tables": TABLES})
    state = TransactionLanguage().decode_state(old)

    assert state.moved == {"a": 9, "b": 9}
    reads = Reads(upper=8, shards=("a",))
    assert decide_next(state, command("b", reads=reads)).result.verdict is MISMATCH


def test_sums_over_moved_times_are_not_compared() -> None:
    """T has the times of the stored bytes, so it says nothing about moved updates."""
    none = bytes(16)
    commits = (Commit("w", 0, 0, 2, none), Commit("w", 1, 2, 4, none, {"is_moved": True}))
    state = State(upper=6, commits=(*commits, Commit("w", 2, 4, 6, none)))

    assert difference(state, Frontier.at(0), Frontier.at(2)) is not None
    assert difference(state, Frontier.at(4), Frontier.at(6)) is not None
    assert difference(state, Frontier.at(2), Frontier.at(4)) is None
    assert difference(state, Frontier.at(0), Frontier.at(6)) is None


def test_what_waits_is_limited_by_bytes_too() -> None:
    """Few large descriptors are applied as early as many small ones."""
    state = TransactionState(pending=(Pending(0, 1, {"a": Write(1, bytes(APPLY_BYTES))}),))

    assert is_due(state, {})
    assert not is_due(state, {"a": 1})


def some(*keys: str, diff: int = 1) -> pa.Table:
    values = list(range(len(keys)))
    return pa.table({"c0": list(keys), "c1": values, "_diff": [diff] * len(keys)})


def many() -> pa.Table:
    return some(*(f"k{number:05}" for number in range(LARGE)))


async def test_blind_inserts_of_several_handles_never_conflict(place: Place) -> None:
    """Each insert gets a time of its own, also from a handle whose state is old."""
    found = await registered(place, "a", "b")
    other = transactions(place)
    await other.refresh()
    times = []
    for number in range(4):
        for handle in (found, other):
            done = await handle.insert({"a": some(f"{number}"), "b": some("x")}, at=0)
            assert done.verdict is COMMITTED
            times.append(done.upper.time - 1)

    assert times == list(range(8))
    for time in range(8):
        assert (await held(transactions(place), "b", time)).total() == time + 1


async def test_the_time_is_the_clocks_or_the_callers(place: Place) -> None:
    """Without ``at``, the time is the clock's milliseconds; it never goes back."""
    found = await registered(place, "a")
    now = found.clock.now_us() // 1_000
    first = (await found.insert({"a": some("x")})).upper.time - 1
    later = (await found.insert({"a": some("y")}, at=first + 5)).upper.time - 1
    back = (await found.insert({"a": some("z")}, at=3)).upper.time - 1

    assert first >= now
    assert (later, back) == (first + 5, first + 6)


async def test_an_insert_of_any_number_of_shards_is_one_request() -> None:
    """The record of the transactions is the only request, once the handle knows its shards."""
    place = in_memory()
    found = await registered(place, "a", "b", "c")
    rows = {name: some("x") for name in "abc"}
    await found.insert(rows)
    before = {name: shard.machine.seqno for name, shard in found.shards.items()}

    with patch.object(type(found.consensus), "scan", side_effect=AssertionError("a read")):
        for _ in range(5):
            assert (await found.insert(rows)).verdict is COMMITTED
    assert {name: shard.machine.seqno for name, shard in found.shards.items()} == before


async def test_inserts_that_wait_go_into_one_record() -> None:
    """Calls that arrive while a record is under way are stored together, each at its own time."""
    place = in_memory()
    found = await registered(place, "a")
    seqno = found.machine.seqno

    done = await asyncio.gather(*(found.insert({"a": some(f"{n}")}, at=0) for n in range(16)))

    assert sorted(one.upper.time for one in done) == list(range(1, 17))
    assert found.machine.seqno - seqno < 8
    assert (await held(transactions(place), "a", 15)).total() == 16


async def test_readers_add_what_the_shard_does_not_have_and_write_nothing(place: Place) -> None:
    """Snapshots and listeners see unapplied transactions, and the shard's state stays."""
    found = await registered(place, "a", "b")
    for number in range(3):
        await found.insert({"a": some(f"{number}")}, at=0)
    reader = transactions(place)

    for time in range(3):
        assert (await held(reader, "a", time)).total() == time + 1
    told = await heard(reader.listen("a", 0), 3)
    assert [(update.row[0], update.time) for update in told] == [("1", 1), ("2", 2)]
    assert (await place.shard(name="a").refresh()).upper == 0


async def test_a_reader_of_the_shard_alone_gets_all_transactions(place: Place) -> None:
    """The upper of a registered shard is that of its transactions, and its times are readable."""
    found = await registered(place, "a")
    for number in range(3):
        await found.insert({"a": some(f"{number}")}, at=0)
    shard = place.shard(name="a")

    assert await shard.upper() == Frontier.at(3)
    assert (await contents(shard, 2)).total() == 3


async def test_holds_leases_and_merges_come_after_what_is_committed(place: Place) -> None:
    """A call that names a committed time, and a merge, first apply the transactions."""
    found = await registered(place, "a")
    reader = await place.shard(name="a").lease()
    for call in ("hold", "move", "lease", "move a lease", "merge"):
        upper = 1 + found.state.upper
        for _ in range(2):
            upper = (await found.insert({"a": many()}, at=0)).upper.time
        shard = place.shard(name="a")
        if call == "hold":
            await shard.hold("h", upper)
        elif call == "move":
            await shard.move_hold("h", upper)
        elif call == "lease":
            async with await shard.lease(upper):
                pass
        elif call == "move a lease":
            await reader.move_hold(upper)
            await reader.close()
        else:
            assert (await shard.compact(full=True)).merges == 1
        assert (await place.shard(name="a").refresh()).upper == upper, call
        with pytest.raises(UsageError):
            await shard.hold("later", upper + 1)
    assert (await held(found, "a", upper - 1)).total() == 10 * LARGE


async def check_moved_times(place: Place) -> None:
    """Check that each reader sees one row at 5 and the others at 6, and that scrub is clean."""
    found, shard = transactions(place), place.shard(name="a")
    assert (await held(found, "a", 5)).total() == 1
    assert (await held(found, "a", 6)).total() == LARGE + 3
    for listener in (found.listen("a", 4), shard.listen(4)):
        told = await heard(listener, 7)
        assert Counter(update.time for update in told) == {5: 1, 6: LARGE + 2}
    snapshot = await shard.snapshot(6)
    for one in snapshot.parts:
        scan = Scan(
            schema=snapshot.splits(1)[0].schema, columns=("c0",), as_of=6, parts=(one,), after=4
        )
        data = one.inline or (await shard.store.get(one.path or "")).data
        assert set(decode_share(one, data, scan).column("_time").to_pylist()) <= {5, 6}
    wanted = SnapshotQuery(as_of=6, after=4, columns=("c0",), box={})
    opener = PartOpener(store=shard.store, clock=shard.clock, schema=snapshot.schema)
    pieces = [piece async for piece in changes_in_pieces(snapshot.parts, wanted, opener)]
    assert Counter(pa.concat_tables(pieces).column("_time").to_pylist()) == {5: 1, 6: LARGE + 2}
    report = await scrub(shard)
    assert report.is_clean, report.damages


@pytest.mark.parametrize("way", ["in memory", "by ranges", "in files"])
async def test_moved_times_are_read_merged_and_scrubbed(place: Place, way: str) -> None:
    """All readers see the time of the commit, though the stored bytes have an earlier one."""
    found = await registered(place, "a")
    parts = {"a": [await found.write_parts("a", rows) for rows in (many(), some("x", "y"))]}
    await found.insert({"a": some("z")}, at=5)
    done = await found.commit_parts(parts, at=3, token=("w", 0))
    assert done.upper == Frontier.at(7)
    await check_moved_times(place)
    shard = place.shard(name="a")
    with ExitStack() as stack:
        if way != "in memory":
            stack.enter_context(patch.object(merge_rows, "IN_MEMORY_BYTES", 0))
        if way == "in files":
            stack.enter_context(patch.object(merge_rows, "can_range", return_value=False))
        assert (await shard.compact(full=True)).merges == 1
    assert all(one.stored_time is None for batch in shard.state.batches for one in batch.parts)
    await check_moved_times(place)


async def test_parts_of_other_processes_are_committed_once(place: Place) -> None:
    """Parts are plain values; a retry of their commit by any process changes nothing."""
    await registered(place, "a", "b")
    written: dict[str, list[TableParts]] = {"a": [], "b": []}
    for task in range(3):
        worker = transactions(place)
        for name in ("a", "b"):
            parts = await worker.write_parts(name, some(f"{task}"))
            written[name].append(pickle.loads(pickle.dumps(parts)))

    first = await transactions(place).commit_parts(written, at=0, token=("query", 7))
    again = await transactions(place).commit_parts(written, at=9, token=("query", 7))

    assert first == AppendResult(COMMITTED, Frontier.at(1))
    assert again == AppendResult(ALREADY, Frontier.at(1))
    for name in ("a", "b"):
        assert (await held(transactions(place), name, 0)).total() == 3
    with pytest.raises(DataDiffers):
        await transactions(place).commit_parts({"a": written["a"]}, token=("query", 7))
    assert await transactions(place).drop_writer("query")
    assert not await transactions(place).drop_writer("query")


async def test_parts_that_came_too_late_are_refused(place: Place) -> None:
    """Parts that sweeps may have deleted, or of an earlier registration, are not committed."""
    found = await registered(place, "a")
    late = await found.write_parts("a", many())
    for _ in range(3):
        await place.shard(name="a").sweep()
    with pytest.raises(PartsSwept):
        await found.commit_parts({"a": [late]}, token=("w", 0))
    early = await found.write_parts("a", some("x"))
    await found.forget("a")
    await found.register(place.shard(name="a"))
    again = await found.write_parts("a", some("x"))
    for parts in ([early], [early, again]):
        with pytest.raises(NotRegistered, match="registered again"):
            await found.commit_parts({"a": parts}, token=("w", 0))
    assert (await found.commit_parts({"a": [again]}, token=("w", 0))).verdict is COMMITTED


async def test_sweeps_keep_parts_that_only_the_transactions_name(place: Place) -> None:
    """Committed parts are never deleted, however many sweeps come before they are applied."""
    found = await registered(place, "a")
    for number in range(4):
        await found.insert({"a": many()}, at=0)
        for _ in range(number):
            await place.shard(name="a").sweep()

    assert (await held(transactions(place), "a", 3)).total() == 4 * LARGE


async def test_a_reader_plans_again_when_a_merge_replaced_the_parts_that_it_planned(
    place: Place,
) -> None:
    """The plan of a reader of unapplied parts stays readable, or the reader plans again."""
    found = await registered(place, "a")
    for _ in range(2):
        await found.insert({"a": many()}, at=0)
    reader = transactions(place)
    snapshot = await reader.snapshot("a", 1)
    shard = place.shard(name="a")
    await shard.compact(full=True)
    assert await shard.collect(after_us=0) == 2
    await found.insert({"a": many()}, at=0)

    assert (await snapshot.to_arrow()).num_rows == 2 * LARGE


async def test_a_lost_unapplied_part_is_an_error_of_readers(place: Place) -> None:
    """If the object of a committed part is lost, a read raises PartMissing instead of waiting."""
    found = await registered(place, "a")
    for _ in range(2):
        await found.insert({"a": many()}, at=0)
    (kept, lost) = [one async for one in found.store.list("shard/a/part/")]
    await found.store.delete([lost.key, kept.key])

    with pytest.raises(PartMissing):
        await heard(transactions(place).listen("a", 0), 2)
    with pytest.raises(PartMissing):
        await held(transactions(place), "a", 1)


async def test_a_lost_answer_is_read_back(place: Place) -> None:
    """If the store loses the answer of a commit, the handle finds the commit by its token."""
    found = await registered(place, "a")
    append, lost = Machine.append, [True, True]

    async def losing(machine: Machine[object, object], *args: object) -> bool:
        done = await append(machine, *args)  # type: ignore[arg-type]
        if machine.key == found.machine.key and lost and lost.pop():
            machine.state, machine.seqno = machine.language.initial(), type(machine.seqno)(0)
            raise LocationError("the answer is lost", outcome=Outcome.UNKNOWN)
        return done

    with patch.object(Machine, "append", losing):
        done = [await found.insert({"a": some(f"{n}")}, at=0) for n in range(3)]

    assert not lost
    assert [one.verdict for one in done] == [COMMITTED] * 3
    assert (await held(transactions(place), "a", 2)).total() == 3


async def test_a_transaction_goes_on_next_to_writes_of_other_shards(place: Place) -> None:
    """A transaction conflicts only with writes of its own shards, and the error names these."""
    found = await registered(place, "a", "b", "c")
    await found.insert({"a": some("x"), "b": some("y")}, at=0)
    of_a, of_b = await found.begin(), await found.begin()
    for one, name in ((of_a, "a"), (of_b, "b")):
        await one.snapshot(name)
        one.write("c" if name == "b" else "a", some("z"))
    await transactions(place).insert({"b": some("late")}, at=0)

    assert (await of_a.commit()).upper == Frontier.at(3)
    assert (await of_a.commit()).verdict is ALREADY
    with pytest.raises(UpperMismatch, match=r"written=\['b'\]"):
        await of_b.commit()
    assert updates_of(row("z", 0, 2)) == await heard(transactions(place).listen("a", 0), 3)
    at_clock = await found.begin()
    at_clock.write("c", some("w"))
    assert (await at_clock.commit(at=90)).upper == Frontier.at(91)


async def test_a_named_retry_is_answered_after_its_shard_was_forgotten(place: Place) -> None:
    """The rows are stored, so a retry returns ALREADY; a new number is refused."""
    found = await registered(place, "a")
    await found.insert({"a": some("x")}, at=0, token=("w", 0))
    await found.forget("a")
    late = transactions(place)

    assert (await late.insert({"a": some("x")}, token=("w", 0))).verdict is ALREADY
    with pytest.raises(NotRegistered):
        await late.insert({"a": some("x")}, token=("w", 1))


async def test_a_named_retry_of_rows_that_no_longer_fit_returns_already(place: Place) -> None:
    """The rows are stored, although the shard has another column since."""
    found = await registered(place, "a")
    await found.insert({"a": some("x")}, at=0, token=("w", 0))
    await found.forget("a")
    shard = place.shard(name="a", schema=None)
    await shard.refresh()
    await shard.evolve_schema(shard.written_schema().data.append(pa.field("more", pa.int64())))
    late = transactions(place)
    await late.register(shard)

    assert (await late.insert({"a": some("x")}, token=("w", 0))).verdict is ALREADY
    with pytest.raises(UsageError):
        await late.insert({"a": some("x")}, token=("w", 1))


async def test_an_older_version_refuses_a_shard_whose_times_the_state_moves(place: Place) -> None:
    """The bytes of its parts have other times. Shards without transactions keep format 2."""
    found = await registered(place, "a")
    await found.commit_parts({"a": [await found.write_parts("a", some("x"))]}, at=5, token=("w", 0))
    await found.apply()
    await found.forget("a")
    alone = place.shard(name="b")
    await alone.compare_and_append(row("b", 1, 0), 0, 1)

    forms = []
    for shard in (found.shard("a"), alone):
        data = shard.machine.language.encode_state(shard.state)
        forms.append(msgspec.msgpack.decode(data)["format"])
        assert shard.machine.language.decode_state(data) == shard.state

    assert forms == [3, 2]


async def test_bad_calls_of_inserts_change_nothing() -> None:
    """Bad rows, times and tokens are refused before anything is stored."""
    found = await registered(in_memory(), "a")
    seqno = found.machine.seqno
    for rows in (pa.table({"_time": [1]}), pa.table({"c0": ["x"]}), [1]):
        with pytest.raises(UsageError):
            await found.insert({"a": rows})  # type: ignore[dict-item]
    for time in (-1, 2**63 - 1, 2**63, "now"):
        with pytest.raises(UsageError):
            await found.insert({"a": some("x")}, at=time)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        await found.insert({"a": some("x")}, token="w")  # type: ignore[arg-type]
    assert found.machine.seqno == seqno
