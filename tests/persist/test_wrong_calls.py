"""Calls that would read or write something else than the caller means are refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from kit.shard_tables import schema_of
from kit.shards import ALREADY, MISMATCH, SCHEMA, contents, in_memory, rows
from kit.stores import keys_in
from tidelog.errors import DataDiffers, Outcome, UpperMismatch, UsageError
from tidelog.frontier import Frontier
from tidelog.ids import ShardId
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
    """A reader would get swapped columns, and a writer would believe in another key."""
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
    """ALREADY would report a write as stored that is stored nowhere."""
    place = in_memory()
    shard = place.shard()
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 1, token=("w", 7))

    for lower, upper in ((1, 2), (0, 2)):
        with pytest.raises(UsageError, match=r"another interval.*stored=\{0\} to \{1\}"):
            await shard.compare_and_append(rows(("b", 1, lower, 1)), lower, upper, token=("w", 7))
    again = await place.shard().compare_and_append(rows(("a", 1, 0, 1)), 0, 1, token=("w", 7))

    assert again.verdict is ALREADY
    assert (await shard.upper()).time == 1


async def test_a_token_of_another_interval_is_refused_by_transactions() -> None:
    """The tokens of transactions promise the same."""
    place = in_memory()
    clock, consensus = place.shard().clock, place.consensus()
    bank = Transactions(name="b", store=place.store, consensus=consensus, clock=clock)
    shard = Shard(
        id=ShardId("s"), store=place.store, consensus=consensus, clock=clock, schema=SCHEMA
    )
    await bank.register(shard)
    await bank.compare_and_append({"s": rows(("a", 1, 0, 1))}, 0, 1, token=("w", 7))

    with pytest.raises(UsageError, match="another interval"):
        await bank.compare_and_append({"s": rows(("b", 1, 1, 1))}, 1, 2, token=("w", 7))
    for other in ({"s": rows(("b", 1, 0, 1))}, {"s": rows()}, {}):
        with pytest.raises(DataDiffers, match="the token was used"):
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
    """ALREADY would report updates as stored that are stored nowhere."""
    place = in_memory()
    shard = place.shard()
    mine = rows(("a", 1, 0, 1))
    await shard.compare_and_append(None, 0, 0, holds={"h": Frontier.at(0)}, token=("v", 0))
    await shard.compare_and_append(mine, 0, 2, token=("w", 7))
    for upper in range(3, 3 + later):
        await shard.compare_and_append(None, upper - 1, upper)

    with pytest.raises(DataDiffers, match="the token was used") as refused:
        await place.shard().compare_and_append(other, 0, 2, token=("w", 7))

    assert refused.value.outcome is Outcome.NOT_APPLIED
    again = await place.shard().try_compare_and_append(mine, 0, 2, token=("w", 7))
    assert again.verdict is ALREADY
    assert await contents(shard, 1) == {("a", 1): 1}


async def test_a_writer_that_was_dropped_is_not_told_that_other_updates_are_its_own() -> None:
    """Its numbers begin at 0 again, and so may be those of its earlier writes."""
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


async def test_a_token_of_rows_by_an_earlier_schema_is_answered_without_their_sums() -> None:
    """The retried rows have one column more by now, and other sums."""
    place = in_memory()
    shard = place.shard()
    await shard.compare_and_append(rows(("a", 1, 0, 1)), 0, 2, token=("w", 7))
    await shard.evolve_schema(SCHEMA.data.append(pa.field("later", pa.int64())))
    wide = rows(("a", 1, 0, 1)).append_column("later", pa.nulls(1, pa.int64()))

    again = await place.shard(schema=None).compare_and_append(wide, 0, 2, token=("w", 7))
    assert again.verdict is ALREADY


COLUMNS = {"c0": ["a"], "c1": [1], "_time": [0], "_diff": [1]}


@pytest.mark.parametrize(
    ("given", "kind"),
    [(COLUMNS, "dict"), ({}, "dict"), ("c0", "str"), (b"c0", "bytes"), (7, "int")],
)
async def test_updates_of_another_type_are_named_by_their_own_type(given: Any, kind: str) -> None:
    """A mapping is an iterable of its names, and an empty one would be an append of nothing."""
    shard = in_memory().shard()
    for call in (shard.compare_and_append, shard.try_compare_and_append):
        with pytest.raises(UsageError, match=rf"pyarrow.table\(\.\.\.\).*given={kind}\)"):
            await call(given, 0, 1)
    async with await shard.appender("till") as till:
        with pytest.raises(UsageError, match=f"given={kind}"):
            await till.append(given, 1)
    with pytest.raises(UsageError, match=f"not {kind}"):
        await shard.append(given, 0, 1)
    assert await shard.upper() == Frontier.at(0)


async def test_a_data_frame_is_named_as_one() -> None:
    """Pandas iterates over the names of its columns, which are texts."""
    pandas = pytest.importorskip("pandas")
    with pytest.raises(UsageError, match="given=DataFrame"):
        await in_memory().shard().compare_and_append(pandas.DataFrame(COLUMNS), 0, 1)


async def test_a_mismatch_states_what_may_have_moved_the_upper() -> None:
    """The caller's own earlier call is no other writer, and a hole is no lost race."""
    shard = in_memory().shard()
    await shard.compare_and_append(None, 0, 5)

    with pytest.raises(UpperMismatch, match="an earlier call or another writer moved the upper"):
        await shard.compare_and_append(None, 0, 5)
    with pytest.raises(UpperMismatch, match="not written up to the expected upper"):
        await shard.compare_and_append(None, 7, 9)


async def test_collect_deletes_the_parts_of_a_shard_that_ended_by_its_frontiers() -> None:
    """Nothing can read a shard whose since and upper are empty, so its objects are waste."""
    place = in_memory()
    shard = place.shard()
    await shard.compare_and_append(rows(*((f"{n:05}", n, 0, 1) for n in range(5_000))), 0, 1)
    await shard.hold("history", 0)
    await shard.compare_and_append(None, 1, None)
    assert len(await contents(shard, 0)) == 5_000
    await shard.downgrade_since("history", None)
    assert await keys_in(place.store, "shard/s/part/")

    assert await place.shard().collect(after_us=0) > 0

    assert await keys_in(place.store, "shard/s/part/") == []
    state = await place.shard().refresh()
    assert (state.is_buried, len(state.batches), state.totals.rows) == (True, 0, 0)
