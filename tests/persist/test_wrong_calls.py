"""Calls that would read or write other data than the caller means are refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from kit.shard_tables import schema_of
from kit.shards import ALREADY, MISMATCH, SCHEMA, Place, contents, in_memory, rows
from kit.stores import keys_in
from tidelog.core.frontier import Frontier
from tidelog.errors import DataDiffers, Outcome, OutcomeUnknown, UpperMismatch, UsageError
from tidelog.persist.format.schema import ShardSchema, shard_schema
from tidelog.persist.handle.shard import Shard
from tidelog.persist.transactions.transactions import Transactions

OTHERS = {
    "columns swapped": shard_schema(pa.schema([SCHEMA.data.field(1), SCHEMA.data.field(0)])),
    "a column less": shard_schema(pa.schema([SCHEMA.data.field(0)]), key=["c0"]),
    "another type": schema_of(["string", "string"], keys=1),
    "another key": shard_schema(SCHEMA.data, key=["c0", "c1"]),
}
USES: dict[str, Callable[[Shard], Awaitable[object]]] = {
    "upper": lambda shard: shard.upper(),
    "snapshot": lambda shard: shard.snapshot(0),
    "listen": lambda shard: anext(aiter(shard.listen(0))),
    "lease": lambda shard: shard.lease(),
    "hold": lambda shard: shard.hold("h"),
    "compact": lambda shard: shard.compact(),
    "appender": lambda shard: shard.appender("till"),
    "compare_and_append": lambda shard: shard.compare_and_append(None, 1, 2),
    "append": lambda shard: shard.append(rows(("a", 1, 1, 1)), 1, 2),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
async def test_the_first_use_of_a_handle_with_another_schema_names_both(
    other: ShardSchema, use: Callable[[Shard], Awaitable[object]]
) -> None:
    """UsageError names both schemas. A reader would get swapped columns."""
    place = in_memory()
    await place.shard().compare_and_append(rows(("a", 1, 0, 1)), 0, 1)

    with pytest.raises(UsageError) as refused:
        await use(place.shard(schema=other))

    stored, _, given = str(refused.value).partition("but it was opened with")
    assert "c0 string, c1 int64" in stored
    assert "the key c0" in stored
    assert all(f"{field.name} {field.type}" in given for field in other.data)
    assert ("no key" if not other.key else f"the key {', '.join(other.key)}") in given


async def test_a_token_of_another_interval_is_refused() -> None:
    """ALREADY would report a write that is not stored."""
    place = in_memory()
    shard = place.shard()
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 1, token=("w", 7))

    for lower, upper in ((1, 2), (0, 2)):
        with pytest.raises(UsageError, match=r"another interval.*stored=0 to 1"):
            await shard.compare_and_append(rows(("b", 1, lower, 1)), lower, upper, token=("w", 7))
    again = await place.shard().compare_and_append(rows(("a", 1, 0, 1)), 0, 1, token=("w", 7))

    assert again.verdict is ALREADY
    assert (await shard.upper()).time == 1


async def test_a_token_of_another_interval_is_refused_by_transactions() -> None:
    """Transactions also refuse a token of another interval, or of other updates."""
    place = in_memory()
    bank = bank_of(place)
    await bank.register(place.shard(name="s"))
    await bank.compare_and_append({"s": rows(("a", 1, 0, 1))}, 0, 1, token=("w", 7))

    with pytest.raises(UsageError, match="another interval"):
        await bank.compare_and_append({"s": rows(("b", 1, 1, 1))}, 1, 2, token=("w", 7))
    for other in ({"s": rows(("b", 1, 0, 1))}, {"s": rows()}, {}):
        with pytest.raises(DataDiffers, match="used the token"):
            await bank.compare_and_append(other, 0, 1, token=("w", 7))
    again = await bank.compare_and_append({"s": rows(("a", 1, 0, 1))}, 0, 1, token=("w", 7))
    assert again.verdict is ALREADY


@pytest.mark.parametrize(
    "other",
    [rows(("b", 1, 0, 1)), rows(("a", 1, 0, 2)), rows(("a", 1, 1, 1)), rows()],
    ids=["key", "diff", "time", "nothing"],
)
@pytest.mark.parametrize("later", [0, 1, 63])
async def test_a_token_of_other_updates_is_refused(other: pa.Table, later: int) -> None:
    """ALREADY would report updates that are not stored."""
    place = in_memory()
    shard = place.shard()
    mine = rows(("a", 1, 0, 1))
    await shard.compare_and_append(None, 0, 0, holds={"h": Frontier.at(0)}, token=("v", 0))
    await shard.compare_and_append(mine, 0, 2, token=("w", 7))
    for upper in range(3, 3 + later):
        await shard.compare_and_append(None, upper - 1, upper)

    with pytest.raises(DataDiffers, match="used the token") as refused:
        await place.shard().compare_and_append(other, 0, 2, token=("w", 7))

    assert refused.value.outcome is Outcome.NOT_APPLIED
    again = await place.shard().try_compare_and_append(mine, 0, 2, token=("w", 7))
    assert again.verdict is ALREADY
    assert await contents(shard, 1) == {("a", 1): 1}


async def test_a_writer_that_was_dropped_is_not_told_that_other_updates_are_its_own() -> None:
    """Other updates under an old number of a dropped writer get MISMATCH, not ALREADY."""
    shard = in_memory().shard()
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 2, token=("till", 0), named=True)
    await shard.drop_writer("till")

    done = await shard.try_compare_and_append(
        rows(("b", 1, 0, 1)), 0, 2, token=("till", 0), named=True
    )
    assert done.verdict is MISMATCH
    again = await shard.try_compare_and_append(
        rows(("a", 1, 0, 1)), 0, 2, token=("till", 0), named=True
    )
    assert again.verdict is ALREADY


WIDE = SCHEMA.data.append(pa.field("later", pa.int64()))
NARROW = pa.schema([SCHEMA.data.field("c0"), pa.field("later", pa.int64())])


def with_later(table: pa.Table, value: int | None) -> pa.Table:
    return table.append_column("later", pa.array([value] * table.num_rows, pa.int64()))


@pytest.mark.parametrize("newest", [[WIDE], [WIDE, NARROW]], ids=["added", "dropped"])
@pytest.mark.parametrize(
    ("given", "is_same"),
    [
        (rows(("a", 1, 0, 1)), True),
        (with_later(rows(("a", 1, 0, 1)), None), True),
        (rows(("b", 1, 0, 1)), False),
        (with_later(rows(("b", 1, 0, 1)), None), False),
        (rows(), False),
        (None, False),
    ],
    ids=["old", "new", "old-key", "new-key", "empty", "nothing"],
)
@pytest.mark.parametrize("opened", [SCHEMA, None], ids=["old-handle", "new-handle"])
async def test_a_token_of_an_earlier_schema_is_answered_only_for_the_same_rows(
    newest: list[pa.Schema], given: pa.Table | None, is_same: bool, opened: ShardSchema | None
) -> None:
    """Only equal rows get ALREADY, in old or new columns. Absent columns are null."""
    place = in_memory()
    shard = place.shard()
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 2, token=("w", 7))
    for schema in newest:
        await place.shard(schema=None).evolve_schema(schema)
    late = place.shard(schema=opened)
    if opened is None:
        await late.refresh()

    for _ in range(2):
        retry = late.compare_and_append(given, 0, 2, token=("w", 7))
        if is_same:
            assert (await retry).verdict is ALREADY
        else:
            with pytest.raises(DataDiffers, match="used the token"):
                await retry


async def test_rows_in_the_newest_columns_are_compared_with_what_a_drop_left() -> None:
    """A dropped column is left out of the comparison. Rows before `since` cannot be compared."""
    place = in_memory()
    shard = place.shard()
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 2, token=("w", 7))
    for schema in (WIDE, NARROW):
        await place.shard(schema=None).evolve_schema(schema)
    late = place.shard(schema=None)
    mine = with_later(rows(("a", 1, 0, 1)), None).drop_columns(["c1"])
    others = [
        with_later(rows((key, 1, 0, 1)), value).drop_columns(["c1"])
        for key, value in (("a", 5), ("b", None))
    ]

    assert (await late.compare_and_append(mine, 0, 2, token=("w", 7))).verdict is ALREADY
    for other in others:
        with pytest.raises(DataDiffers, match="used the token"):
            await late.compare_and_append(iter([other]), 0, 2, token=("w", 7))
    await late.hold("h")
    await late.move_hold("h", 1)
    with pytest.raises(OutcomeUnknown, match="read the shard"):
        await late.compare_and_append(mine, 0, 2, token=("w", 7))


async def test_a_retry_in_the_stored_columns_needs_no_times_that_were_given_up() -> None:
    """The stored sum alone answers a writer that retries after a crash, without reading rows."""
    place = in_memory()
    mine = rows(("a", 1, 0, 1))
    await place.shard().compare_and_append(mine, 0, 2, token=("w", 7))
    late = place.shard(schema=None)
    await late.evolve_schema(WIDE)
    await late.hold("h")
    await late.move_hold("h", 1)

    given = with_later(mine, None)
    assert (await late.compare_and_append(given, 0, 2, token=("w", 7))).verdict is ALREADY
    other = with_later(rows(("b", 1, 0, 1)), None)
    with pytest.raises(DataDiffers, match="used the token"):
        await late.compare_and_append(other, 0, 2, token=("w", 7))


async def test_a_dropped_name_of_other_rows_of_an_earlier_schema_is_no_retry() -> None:
    """After an evolution, a new writer of a dropped name gets ALREADY only for equal rows."""
    place = in_memory()
    shard = place.shard()
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 2, token=("till", 0), named=True)
    await shard.drop_writer("till")
    await shard.evolve_schema(WIDE)
    late = place.shard(schema=None)

    for key, verdict in (("b", MISMATCH), ("a", ALREADY)):
        given = with_later(rows((key, 1, 0, 1)), None)
        done = await late.try_compare_and_append(given, 0, 2, token=("till", 0), named=True)
        assert done.verdict is verdict


async def test_a_token_is_refused_with_rows_of_a_shard_registered_since() -> None:
    """DataDiffers: the stored transaction has none of the rows."""
    place = in_memory()
    bank = bank_of(place)
    await bank.register(place.shard(name="s"))
    mine = rows(("a", 1, 0, 1))
    await bank.compare_and_append({"s": mine}, 0, 1, token=("w", 7))
    later = {"s": mine, "t": rows(("b", 1, 0, 1))}
    await place.shard(name="t").compare_and_append(None, 0, 0, holds={"h": Frontier.at(0)})

    for _ in range(2):
        with pytest.raises(DataDiffers, match="used the token"):
            await bank_of(place).compare_and_append(later, 0, 1, token=("w", 7))
        await bank.register(place.shard(name="t"))
    again = await bank.compare_and_append({"s": mine, "t": rows()}, 0, 1, token=("w", 7))
    assert again.verdict is ALREADY


@pytest.mark.parametrize("is_back", [False, True])
async def test_transactions_compare_rows_of_a_shard_that_evolved_since(is_back: bool) -> None:
    """Transactions compare a retry in the columns with which the shard was written."""
    place = in_memory()
    bank = bank_of(place)
    await bank.register(place.shard(name="s"))
    await bank.compare_and_append({"s": rows(("a", 1, 0, 1))}, 0, 1, token=("w", 7))
    await bank.forget("s")
    await place.shard(name="s").evolve_schema(WIDE)
    if is_back:
        await bank.register(place.shard(name="s", schema=None))

    for given in (rows(("a", 1, 0, 1)), with_later(rows(("a", 1, 0, 1)), None)):
        again = await bank_of(place).compare_and_append({"s": given}, 0, 1, token=("w", 7))
        assert again.verdict is ALREADY
    for given in (rows(("b", 1, 0, 1)), with_later(rows(("a", 1, 0, 1)), 5), rows()):
        with pytest.raises(DataDiffers, match="used the token"):
            await bank_of(place).compare_and_append({"s": given}, 0, 1, token=("w", 7))
    narrow = with_later(rows(("a", 1, 0, 1)), None).drop_columns(["c1"])
    with pytest.raises(OutcomeUnknown, match="cannot be compared"):
        await bank_of(place).compare_and_append({"s": narrow}, 0, 1, token=("w", 7))


def bank_of(place: Place) -> Transactions:
    return Transactions(
        name="b", store=place.store, consensus=place.consensus(), clock=place.shard().clock
    )


COLUMNS = {"c0": ["a"], "c1": [1], "_time": [0], "_diff": [1]}


@pytest.mark.parametrize(
    ("given", "kind"),
    [(COLUMNS, "dict"), ({}, "dict"), ("c0", "str"), (b"c0", "bytes"), (7, "int")],
)
async def test_updates_of_another_type_are_named_by_their_own_type(given: Any, kind: str) -> None:
    """UsageError names the type. An empty mapping is not an empty append."""
    shard = in_memory().shard()
    for call in (shard.compare_and_append, shard.try_compare_and_append):
        with pytest.raises(UsageError, match=f"rows must be an Arrow table.*, not {kind}"):
            await call(given, 0, 1)
    async with await shard.appender("till") as till:
        with pytest.raises(UsageError, match=f"not {kind}"):
            await till.append(given, 1)
    with pytest.raises(UsageError, match=f"not {kind}"):
        await shard.append(given, 0, 1)
    assert await shard.upper() == Frontier.at(0)


async def test_a_dict_of_columns_is_refused_with_the_remedy() -> None:
    """A dict of columns is refused, because a list of dicts is a list of rows."""
    with pytest.raises(UsageError, match=r"not dict: convert .* with pyarrow\.table\(\.\.\.\)"):
        await in_memory().shard().compare_and_append(COLUMNS, 0, 1)


async def test_a_mismatch_states_what_may_have_moved_the_upper() -> None:
    """The message covers an earlier call of the same caller, and an expected upper ahead."""
    shard = in_memory().shard()
    await shard.compare_and_append(None, 0, 5)

    with pytest.raises(UpperMismatch, match="an earlier call or another writer moved the upper"):
        await shard.compare_and_append(None, 0, 5)
    with pytest.raises(UpperMismatch, match="upper is below the expected upper"):
        await shard.compare_and_append(None, 7, 9)


async def test_collect_deletes_the_parts_of_a_shard_that_ended_by_its_frontiers() -> None:
    """No reader can read a shard whose since and upper are empty, so its objects are garbage."""
    place = in_memory()
    shard = place.shard()
    await shard.compare_and_append(rows(*((f"{n:05}", n, 0, 1) for n in range(5_000))), 0, 1)
    await shard.hold("history", 0)
    await shard.compare_and_append(None, 1, None)
    assert len(await contents(shard, 0)) == 5_000
    await shard.move_hold("history", None)
    assert await keys_in(place.store, "shard/s/part/")

    assert await place.shard().collect(after_us=0) > 0

    assert await keys_in(place.store, "shard/s/part/") == []
    state = await place.shard().refresh()
    assert (state.is_dropped, len(state.batches), state.totals.rows) == (True, 0, 0)
