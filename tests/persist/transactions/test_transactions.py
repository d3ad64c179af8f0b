"""Transactions over several shards: atomic, exclusive, and applied by any process (T65, T66)."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock, patch

import pyarrow as pa
import pytest

from kit.shards import ALREADY, COMMITTED, MISMATCH, Place, contents, heard, in_memory, rows
from kit.transactions import held, registered, row, transactions
from tidelog.core.frontier import Frontier
from tidelog.core.ids import NamedKind
from tidelog.errors import (
    AsOfNotComplete,
    DeadlineExceeded,
    NotRegistered,
    PartsSwept,
    ShardRegistered,
    UpperMismatch,
    UsageError,
)
from tidelog.location import open_location
from tidelog.persist.maintenance.usage import ObjectUse
from tidelog.persist.states.transition import AppendResult
from tidelog.persist.transactions import committing
from tidelog.persist.transactions.applier import Applier
from tidelog.persist.transactions.applying import APPLY_COUNT
from tidelog.persist.transactions.transactions import PENDING_MAX, Transactions
from tidelog.persist.transactions.transition import TableParts
from tidelog.store.memory import MemoryStore
from tidelog.testing.models import updates_of

LARGE = 2_000  # Enough rows for a part that is an object.


async def commit_only(
    found: Transactions, updates: dict[str, pa.Table], lower: int, upper: int
) -> AppendResult:
    """Commit without applying, as a committer that dies right afterwards."""
    with patch.object(Transactions, "_apply_known", AsyncMock(return_value=0)):
        return await found.compare_and_append(updates, lower, upper)


async def committed(place: Place, *names: str) -> Transactions:
    """Return a handle with one committed, unapplied row per shard at time 0."""
    found = await registered(place, *names)
    await commit_only(found, {name: row(name, 1, 0) for name in names}, 0, 1)
    return found


async def test_a_transaction_ends_with_its_commit(place: Place) -> None:
    """A write after the commit would be lost, so it raises UsageError."""
    found = await registered(place, "a")
    move = await found.begin()
    move.write("a", pa.table({"c0": ["x"], "c1": [1]}))
    await move.commit()
    with pytest.raises(UsageError, match="begin another"):
        move.write("a", pa.table({"c0": ["y"], "c1": [1]}))
    assert (await move.commit()).verdict is ALREADY


async def test_rows_of_a_transaction_that_do_not_go_together_are_refused(place: Place) -> None:
    """Rows of a wrong type or with other columns raise UsageError."""
    found = await registered(place, "a")
    odd: list[Any] = [[1], None, {"k": 1}, pa.table({"_time": [1]})]
    for rows_ in odd:
        with pytest.raises(UsageError):
            (await found.begin()).write("a", rows_)
    other: Any
    for other in (pa.table({"c0": ["x"]}), pa.table({"c0": ["x"], "c1": ["y"]})):
        move = await found.begin()
        move.write("a", pa.table({"c0": ["x"], "c1": [1]}))
        move.write("a", other)
        with pytest.raises(UsageError):
            await move.commit()
    move = await found.begin()
    move.write("a", pa.table({"c0": ["x"], "c1": [1]}))
    move.write("a", pa.record_batch({"c1": pa.nulls(1), "c0": ["y"]}))
    await move.commit()
    assert await held(found, "a", move.at) == {("x", 1): 1, ("y", None): 1}


def large(time: int) -> pa.Table:
    return rows(*((f"k{n:05}", n, time, 1) for n in range(LARGE)))


async def test_t65_a_transaction_is_there_in_all_shards_or_in_none(place: Place) -> None:
    """If the committer dies after the commit, every reader of each shard sees the transaction."""
    await committed(place, "a", "b", "c")
    assert [(await place.shard(name=n).refresh()).upper for n in "abc"] == [0, 0, 0]

    for name in "abc":
        assert await held(transactions(place), name, 0) == {(name, 1): 1}
    with pytest.raises(DeadlineExceeded):
        await transactions(place).snapshot("a", 1, timeout_us=0)


async def test_t65_who_knows_only_the_shard_reads_the_same(place: Place) -> None:
    """A reader of a single shard, such as Spark, also sees committed transactions."""
    found = await committed(place, "a", "b")
    await commit_only(found, {"b": row("b", 2, 1)}, 1, 5)

    assert await contents(place.shard(name="a"), 4) == {("a", 1): 1}
    assert await contents(place.shard(name="b"), 0) == {("b", 1): 1}
    assert [u.row for u in await heard(place.shard(name="b").listen(0), 5)] == [("b", 2)]


async def test_t65_whoever_applies_second_changes_nothing(place: Place) -> None:
    """Committers and readers all apply the remaining steps, and a repeated step changes nothing."""
    first = await committed(place, "a", "b")
    second = transactions(place)
    await second.refresh()

    assert (await first.apply(), await second.apply()) == (2, 2)
    await second._apply_known()
    for found in (first, second):
        assert await held(found, "a", 0) == {("a", 1): 1}
    assert len((await place.shard(name="a").refresh()).batches) == 1


async def test_t65_transactions_are_applied_one_after_the_other() -> None:
    """A shard applies transactions in the order of their commits."""
    place = in_memory()
    found = await committed(place, "a")
    for time in range(1, 9):
        await commit_only(found, {"a": row("x", time, time)}, time, time + 1)
    before = found.machine.seqno

    await transactions(place).apply()

    state = await place.shard(name="a").refresh()
    assert [(b.lower, b.upper) for b in state.batches] == [(t, t + 1) for t in range(9)]
    assert found.machine.seqno == before
    assert len(await held(found, "a", 8)) == 9


async def test_t65_tidy_drops_what_is_applied_and_twice_is_once(place: Place) -> None:
    """The state drops transactions that all shards have applied, so it stays small."""
    found = await committed(place, "a", "b")
    await commit_only(found, {"b": row("b", 2, 1)}, 1, 2)

    assert await found.tidy() == 2
    seqno = found.machine.seqno
    assert (await found.tidy(), found.machine.seqno) == (0, seqno)
    assert (await transactions(place).refresh()).pending == ()
    assert await held(transactions(place), "b", 1) == {("b", 1): 1, ("b", 2): 1}


async def test_a_later_commit_applies_many_at_once_and_drops_them() -> None:
    """A commit applies the pending transactions, once there are many, in one write of a shard."""
    place = in_memory()
    found = await registered(place, "a", "b")
    before = found.shard("a").machine.seqno

    for time in range(2 * APPLY_COUNT):
        await found.compare_and_append({"a": row("a", time, time)}, time, time + 1)
        assert len(found.state.pending) <= APPLY_COUNT + 1

    assert found.shard("a").machine.seqno == before + 1
    assert len(await held(found, "a", 2 * APPLY_COUNT - 1)) == 2 * APPLY_COUNT


async def test_a_state_is_bounded_where_appliers_die() -> None:
    """The next committer applies the pending transactions before they become too many."""
    place = in_memory()
    for time in range(PENDING_MAX + 5):
        found = transactions(place) if time else await registered(place, "a")
        await found.refresh()
        await commit_only(found, {"a": row("a", time, time)}, time, time + 1)
        if len(found.state.pending) > PENDING_MAX:
            break

    with patch.object(Transactions, "apply", autospec=True, side_effect=Transactions.apply) as seen:
        await transactions(place).refresh()
        late = transactions(place)
        await late.refresh()
        await late.compare_and_append({}, late.state.upper, late.state.upper + 1)
    assert seen.call_count == 1
    assert len(await held(late, "a", late.state.upper - 1)) == late.state.upper - 1


async def test_t65_idle_shards_move_on_by_one_write(place: Place) -> None:
    """An empty transaction advances all registered shards by one write of the transaction state."""
    found = await registered(place, *"abcdefgh")
    seqnos = {n: s.machine.seqno for n, s in found.shards.items()}

    await found.compare_and_append({}, 0, 1_000)

    assert {n: s.machine.seqno for n, s in found.shards.items()} == seqnos
    for name in "abcdefgh":
        assert await held(transactions(place), name, 999) == {}
    fresh = {n: await place.shard(name=n).refresh() for n in "abcdefgh"}
    assert {state.upper for state in fresh.values()} == {0}


async def test_expected_upper_decides_and_the_newest_is_told(place: Place) -> None:
    """If two writers read the same time, only one of them can write the next."""
    found = await registered(place, "a", "b")
    other = transactions(place)
    first = await found.compare_and_append({"a": row("a", 1, 0)}, 0, 1)
    second = await other.try_compare_and_append({"b": row("b", 1, 0)}, 0, 1)

    assert (first, second) == (
        AppendResult(COMMITTED, Frontier.at(1)),
        AppendResult(MISMATCH, Frontier.at(1)),
    )
    assert await held(other, "b", 0) == {}


async def test_a_token_makes_a_retry_safe_in_another_process(place: Place) -> None:
    """A retry with the same token lands once, even after other commits."""
    found = await registered(place, "a")
    await found.compare_and_append({"a": row("a", 1, 0)}, 0, 1, token=("w", 0))
    await found.compare_and_append({"a": row("a", 2, 1)}, 1, 2)

    again = await transactions(place).compare_and_append(
        {"a": row("a", 1, 0)}, 0, 1, token=("w", 0)
    )
    other = await transactions(place).try_compare_and_append(
        {"a": row("a", 9, 0)}, 0, 1, token=("w", 1)
    )

    assert again == AppendResult(ALREADY, Frontier.at(1))
    assert other == AppendResult(MISMATCH, Frontier.at(2))
    assert await held(found, "a", 1) == {("a", 1): 1, ("a", 2): 1}


async def test_a_retry_is_answered_though_its_shard_was_forgotten(place: Place) -> None:
    """A retry returns ALREADY, although the shard was forgotten, because its rows are stored."""
    found = await registered(place, "a")
    await found.compare_and_append({"a": row("a", 1, 0)}, 0, 1, token=("w", 0))
    await transactions(place).forget("a")

    for again in (found, transactions(place)):
        done = await again.compare_and_append({"a": row("a", 1, 0)}, 0, 1, token=("w", 0))
        assert done == AppendResult(ALREADY, Frontier.at(1))
        with pytest.raises(NotRegistered):
            await again.compare_and_append({"a": row("a", 1, 1)}, 1, 2, token=("w", 1))


async def test_who_calls_shards_by_names_reads_on_after_they_were_forgotten(place: Place) -> None:
    """A reader by name continues after its shard was forgotten.

    The forgetting process may have died.
    """
    found = transactions(place)
    found.kind = NamedKind.SHARD
    await found.register(place.shard(name="user.a"))
    await found.compare_and_append({"a": row("a", 1, 0)}, 0, 1)
    with patch.object(Applier, "applied", side_effect=KeyError), pytest.raises(KeyError):
        await found.forget("a")
    reader = transactions(place)
    reader.kind = NamedKind.SHARD
    with pytest.raises(DeadlineExceeded):
        await reader.snapshot("a", 1, timeout_us=0)
    await place.shard(name="user.a").compare_and_append(row("a", 2, 1), 1, 2)

    assert await held(reader, "a", 1) == {("a", 1): 1, ("a", 2): 1}


async def test_t66_nobody_writes_a_registered_shard_but_transactions(place: Place) -> None:
    """A direct write to a registered shard raises ShardRegistered.

    It could fall into complete times.
    """
    early = place.shard(name="a")
    await early.compare_and_append(rows(("z", 0, 0, 1)), 0, 1, token=("w", 0))
    found = await registered(place, "a")
    shard = place.shard(name="a")

    for write in (
        lambda: shard.compare_and_append(row("a", 1, 1), 1, 2),
        lambda: early.compare_and_append(row("a", 1, 1), 1, 2),
        lambda: shard.append(row("a", 1, 1), 1, 2),
        lambda: shard.compare_and_append(None, 1, None),
        lambda: shard.compare_and_append(None, 1, 1, holds={"h": Frontier.at(0)}),
        shard.drop,
        lambda: shard.evolve_schema(pa.schema([("c0", pa.string())])),
        lambda: transactions(place, name="u").register(place.shard(name="a")),
    ):
        with pytest.raises(ShardRegistered, match="transactions=t"):
            await write()
    again = await shard.compare_and_append(rows(("z", 0, 0, 1)), 0, 1, token=("w", 0))
    assert again.verdict is ALREADY
    assert await held(found, "a", 0) == {("z", 0): 1}


async def test_a_shard_is_registered_where_it_is(place: Place) -> None:
    """A shard is registered at its own upper, ahead of the transactions or behind them."""
    ahead, behind = place.shard(name="ahead"), place.shard(name="behind")
    await ahead.compare_and_append(row("x", 1, 6), 0, 7)
    await behind.compare_and_append(row("y", 1, 0), 0, 1)
    found = transactions(place)

    assert await found.register(behind) == Frontier.at(1)
    assert await found.register(ahead) == Frontier.at(7)
    assert await found.register(ahead) == Frontier.at(7)
    assert await held(found, "behind", 6) == {("y", 1): 1}
    done = await found.compare_and_append({n: row(n, 2, 7) for n in ("ahead", "behind")}, 7, 8)
    assert done.verdict is COMMITTED
    assert await held(transactions(place), "ahead", 7) == {("x", 1): 1, ("ahead", 2): 1}
    assert await found.tables() == ["ahead", "behind"]


async def test_a_finished_shard_and_one_without_a_schema_are_not_registered() -> None:
    """Registering a finished shard, or one without a schema, raises UsageError."""
    place = in_memory()
    await place.shard(name="over").compare_and_append(row("x", 1, 0), 0, None)
    found = transactions(place)

    with pytest.raises(UsageError, match="is finished"):
        await found.register(place.shard(name="over"))
    with pytest.raises(UsageError, match="with its schema"):
        await found.register(place.shard(name="new", schema=None))


async def test_a_registration_that_was_broken_off_is_ended_or_undone(place: Place) -> None:
    """A crash can leave a shard registered without an entry in the transactions.

    A later call completes or undoes it.
    """
    for ends in (True, False):
        name = f"s{ends}"
        found, shard = transactions(place), place.shard(name=name)
        with (
            patch(
                "tidelog.persist.transactions.transactions.decide_register",
                side_effect=KeyError("dead"),
            ),
            pytest.raises(KeyError),
        ):
            await found.register(shard)
        with pytest.raises(ShardRegistered):
            await shard.compare_and_append(row("x", 1, 0), 0, 1)
        with pytest.raises(NotRegistered):
            await found.compare_and_append({name: row("x", 1, 0)}, 0, 1)

        if ends:
            await transactions(place).register(place.shard(name=name))
            assert name in await found.tables()
        else:
            await transactions(place).forget(name)
            done = await place.shard(name=name).compare_and_append(row("x", 1, 0), 0, 1)
            assert done.verdict is COMMITTED


async def test_a_forgotten_shard_is_its_own_again_with_all_that_was_committed(
    place: Place,
) -> None:
    """A forgotten shard starts at the upper of the transactions.

    Earlier times were reported complete.
    """
    found = await committed(place, "a", "b")
    await commit_only(found, {"b": row("b", 2, 1)}, 1, 5)

    assert await transactions(place).forget("a") == Frontier.at(5)
    assert await transactions(place).forget("a") == Frontier.at(5)
    shard = place.shard(name="a")
    assert (await shard.refresh()).upper == 5
    assert await contents(shard, 4) == {("a", 1): 1}
    with pytest.raises(NotRegistered, match="no longer registered"):
        await found.compare_and_append({"a": row("a", 3, 5)}, 5, 6)
    assert (await shard.compare_and_append(row("a", 3, 5), 5, 6)).verdict is COMMITTED
    assert await held(found, "a", 5) == {("a", 1): 1, ("a", 3): 1}
    assert await held(found, "b", 4) == {("b", 1): 1, ("b", 2): 1}

    assert await found.register(place.shard(name="a")) == Frontier.at(6)
    await found.compare_and_append({"a": row("a", 4, 6)}, 6, 7)
    assert await held(transactions(place), "a", 6) == {("a", 1): 1, ("a", 3): 1, ("a", 4): 1}
    with pytest.raises(NotRegistered, match="is not registered in these transactions"):
        await found.forget("never")


async def test_parts_of_an_earlier_registration_are_not_committed(place: Place) -> None:
    """Parts of an earlier registration raise NotRegistered. Schema and epoch may have changed."""
    found = await registered(place, "a")
    stale = await committing.write_parts(found, "a", row("a", 1, 0), Frontier.at(0), Frontier.at(1))
    await found.forget("a")
    await found.register(place.shard(name="a"))

    with (
        patch.object(committing, "write_parts", return_value=stale),
        pytest.raises(NotRegistered, match="registered again"),
    ):
        await found.compare_and_append({"a": row("a", 1, 0)}, 0, 1)


async def test_a_forgetting_that_was_broken_off_is_ended_by_who_reads(place: Place) -> None:
    """A reader completes an interrupted forget, because the transactions have committed it."""
    found = await committed(place, "a")
    await found.apply()
    with (
        patch("tidelog.persist.transactions.applier.decide_leave", side_effect=KeyError("dead")),
        pytest.raises(KeyError),
    ):
        await found.forget("a")
    await found.compare_and_append({}, 1, 9)
    with pytest.raises(DeadlineExceeded):
        await place.shard(name="a").snapshot(5, timeout_us=0)

    done = await place.shard(name="a").compare_and_append(row("a", 2, 1), 1, 2)
    assert done.verdict is COMMITTED
    assert await held(found, "a", 1) == {("a", 1): 1, ("a", 2): 1}


async def test_a_forgotten_shard_is_read_on_by_the_name_that_users_gave_it() -> None:
    """The name and the id of a shard differ, and a reader by name uses the right one."""
    place = in_memory()
    found = transactions(place)
    found.kind = NamedKind.SHARD
    await found.register(place.shard(name="user.a"))
    await found.compare_and_append({"a": row("a", 1, 0)}, 0, 1)
    assert await found.tables() == ["a"]
    with (
        patch("tidelog.persist.transactions.applier.decide_leave", side_effect=KeyError("dead")),
        pytest.raises(KeyError),
    ):
        await found.forget("a")
    await found.compare_and_append({}, 1, 9)
    late = transactions(place)
    late.kind = NamedKind.SHARD
    with pytest.raises(DeadlineExceeded):
        await late.snapshot("a", 5, timeout_us=0)
    done = await place.shard(name="user.a").compare_and_append(row("a", 2, 1), 1, 6)
    assert done.verdict is COMMITTED
    assert await held(late, "a", 5) == {("a", 1): 1, ("a", 2): 1}


async def test_merges_and_collections_of_registered_shards_go_on(place: Place) -> None:
    """Registered shards permit merges and collections, which change no contents."""
    found = await registered(place, "a")
    for time in range(10):
        await found.compare_and_append({"a": large(time)}, time, time + 1)
    shard = place.shard(name="a")
    await shard.hold("h", 9)
    await shard.move_hold("h", 9)
    before = await held(found, "a", 9)

    merged = await shard.compact(full=True)
    gone = await shard.collect(after_us=0)

    assert (merged.merges, gone) == (1, 10)
    assert await held(found, "a", 9) == before
    assert (await found.compare_and_append({"a": large(10)}, 10, 11)).verdict is COMMITTED


async def test_sweeps_leave_what_is_committed_and_not_applied(place: Place) -> None:
    """The sweeper keeps committed parts that are not applied.

    Only the transaction state names them.
    """
    found = await registered(place, "a", "b")
    await commit_only(found, {"a": large(0), "b": large(0)}, 0, 1)

    for _ in range(5):
        await place.shard(name="a").sweep()

    assert len(await held(transactions(place), "a", 0)) == LARGE
    assert len(await held(transactions(place), "b", 0)) == LARGE


async def test_sweeps_of_registered_shards_delete_what_was_never_committed(place: Place) -> None:
    """The sweeper deletes the parts of a dead committer."""
    await registered(place, "a")
    leaked = transactions(place)
    await leaked.refresh()
    stale = await committing.write_parts(leaked, "a", large(0), Frontier.at(0), Frontier.at(1))

    swept = [await place.shard(name="a").sweep() for _ in range(4)]

    assert sum(one.deleted for one in swept) == 1
    assert swept[-1].usage.objects[ObjectUse.YOUNG] == 0
    answers, write = [stale], committing.write_parts

    async def late(sleeper: Transactions, *args: Any, **options: Any) -> TableParts:
        return answers.pop() if answers else await write(sleeper, *args, **options)

    with patch.object(committing, "write_parts", late):
        done = await leaked.compare_and_append({"a": large(0)}, 0, 1)
    assert done.verdict is COMMITTED
    assert len(await held(transactions(place), "a", 0)) == LARGE


async def test_what_is_too_old_to_be_committed_is_refused_not_torn(place: Place) -> None:
    """The commit raises PartsSwept for parts that are too old.

    A later failure would leave half a transaction.
    """
    found = await registered(place, "a", "b")
    sleeper = transactions(place)
    await sleeper.refresh()
    stale = await committing.write_parts(sleeper, "a", large(0), Frontier.at(0), Frontier.at(1))
    for _ in range(2):
        await place.shard(name="a").sweep()

    before = await found.refresh()
    with patch.object(committing, "write_parts", return_value=stale), pytest.raises(PartsSwept):
        await sleeper.compare_and_append({"a": large(0)}, 0, 1)
    assert await found.refresh() == before
    assert before.upper == 0


async def test_a_transaction_reads_before_it_writes_or_begins_anew(place: Place) -> None:
    """If another transaction commits after the read, the commit raises UpperMismatch."""
    found = await registered(place, "from", "to")
    first = await found.begin()
    with pytest.raises(AsOfNotComplete):
        await first.snapshot("from")
    first.write("from", pa.table({"c0": ["x"], "c1": [10]}))
    assert (await first.commit()).verdict is COMMITTED
    assert (await first.commit()).verdict is ALREADY

    move, other = await found.begin(), await transactions(place).begin()
    for one in (move, other):
        (was,) = (await (await one.snapshot("from")).to_arrow()).to_pylist()
        one.write("from", pa.table({"c0": ["x"], "c1": [was["c1"]], "_diff": [-1]}))
        one.write("from", pa.table({"c0": ["x"], "c1": [was["c1"] - 3]}))
        one.write("to", pa.table({"c0": ["y"], "c1": [3]}))
    with pytest.raises(UsageError, match="remove the column _time"):
        move.write("to", row("y", 1, 1))

    assert (await move.commit()).verdict is COMMITTED
    with pytest.raises(UpperMismatch, match=r"upper=2 expected=1"):
        await other.commit()
    assert await held(found, "from", 1) == {("x", 7): 1}
    assert await held(found, "to", 1) == {("y", 3): 1}


async def test_listeners_hear_each_transaction_once(place: Place) -> None:
    """A listener follows the upper of the transactions, not that of the shard."""
    found = await committed(place, "a", "b")
    listener = transactions(place).listen("a", 0)
    await commit_only(found, {"b": row("b", 2, 1)}, 1, 2)
    await commit_only(found, {"a": row("a", 3, 2)}, 2, 6)

    assert await heard(listener, 6) == updates_of(row("a", 3, 2))
    whole = await heard(transactions(place).listen("b", 0), 6)
    assert whole == updates_of(row("b", 2, 1))


async def test_bad_calls_are_told_before_anything_is_sent() -> None:
    """An invalid call raises before any state change."""
    found = await registered(in_memory(), "a")
    seqno = found.machine.seqno

    with pytest.raises(UsageError, match="past upper"):
        await found.compare_and_append({}, 2, 1)
    with pytest.raises(UsageError, match="empty interval"):
        await found.compare_and_append({"a": row("a", 1, 0)}, 0, 0)
    with pytest.raises(UsageError, match="cannot be finished"):
        await found.compare_and_append({}, 0, Frontier.of(None))
    with pytest.raises(UsageError, match="outside the interval"):
        await found.compare_and_append({"a": row("a", 1, 5)}, 0, 1)
    with pytest.raises(NotRegistered, match="'b' is not registered"):
        await found.compare_and_append({"a": row("a", 1, 0), "b": row("b", 1, 0)}, 0, 1)
    assert (await found.refresh(), found.machine.seqno) == (found.state, seqno)


async def test_a_shard_that_transactions_make_keeps_its_past() -> None:
    """A lease that moves its hold releases only its own times, not the history."""
    location = await open_location("memory://lake", create=True, store=MemoryStore())
    bank = location.shards.transactions("bank")
    shard = location.shard("giro", schema=pa.schema([("k", pa.string())]))
    await bank.register(shard)
    await bank.compare_and_append({}, 0, 9)

    async with await shard.lease() as reader:
        await shard.snapshot(8)
        await reader.move_hold(8)
    assert (await shard.since()).time == 0
    assert (await shard.move_hold("history", 8)).time == 8
