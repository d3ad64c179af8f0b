"""Scans: each row of a snapshot is in exactly one share, for any division."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.errors import CorruptionError
from tidelog.persist.format.part import Part, encode_part
from tidelog.persist.format.schema import (
    DIFF,
    TIME,
    ShardSchema,
    encode_with_known,
    shard_schema,
)
from tidelog.persist.format.updates import sort_updates
from tidelog.spark import scan as scans
from tidelog.spark.scan import (
    Scan,
    batches_of,
    can_share_keys,
    choose_cuts,
    contents,
    decode_share,
    pack_scans,
    read_groups,
    share_keys,
    share_parts,
    with_change_types,
)

TYPES: dict[str, pa.DataType] = {"k": pa.int64(), "v": pa.string()}
KEYED = shard_schema(pa.schema(TYPES), key=["k"])
KEYLESS = shard_schema(pa.schema(TYPES), key=[])
Update = tuple[int | None, str, int, int]


def part_of(
    updates: Sequence[Update], schema: ShardSchema = KEYED, *, inline: bool = False
) -> tuple[Part, bytes]:
    """Return a part and its bytes; a part outside the state has row groups of three rows."""
    rows = [dict(zip(("k", "v", TIME, DIFF), u, strict=True)) for u in updates]
    table = sort_updates(pa.Table.from_pylist(rows, schema=schema.updates), schema)
    return stored_part(table, schema, inline=inline)


def stored_part(table: pa.Table, schema: ShardSchema, *, inline: bool) -> tuple[Part, bytes]:
    part, data = encode_part(table, schema, path="p", is_sorted=True, inline=inline)
    if data is None:
        return part, part.inline or b""
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=3, store_schema=True)
    data = sink.getvalue()
    digest = xxhash.xxh3_128_digest(data)
    return Part(**{**_fields(part), "size_bytes": len(data), "xxh3": digest}), data


def _fields(part: Part) -> dict[str, Any]:
    return {name: getattr(part, name) for name in part.__struct_fields__}


def scan_of(
    parts: Sequence[Part],
    schema: ShardSchema = KEYED,
    *,
    as_of: int = 9,
    columns: tuple[str, ...] = ("k", "v"),
    appended: bool = False,
) -> Scan:
    encoded = schema.encoded
    return Scan(schema=encoded, columns=columns, as_of=as_of, parts=tuple(parts), appended=appended)


def read(scan: Scan, data: dict[int, bytes]) -> Counter[tuple[Any, ...]]:
    """Return how often a scan returns each row; ``data`` is by the parts' checksums."""
    tables = [decode_share(p, data[hash(p.xxh3)], scan) for p in scan.parts]
    found: Counter[tuple[Any, ...]] = Counter()
    for table in contents(tables, scan):
        target = pa.schema([KEYED.data.field(name) for name in scan.columns])
        for batch in batches_of(table, target):
            assert batch.schema.equals(target)
            found.update(tuple(row.values()) for row in batch.to_pylist())
    return found


def model(updates: Sequence[Update], *, as_of: int = 9) -> Counter[tuple[Any, ...]]:
    """Return the rows of a list of updates with their counts."""
    found: Counter[tuple[Any, ...]] = Counter()
    for k, v, time, diff in updates:
        if time <= as_of:
            found[k, v] += diff
    return Counter({row: count for row, count in found.items() if count})


@pytest.mark.parametrize("inline", [True, False])
def test_t64_a_part_of_an_earlier_schema_gives_nulls_for_what_it_has_not(inline: bool) -> None:
    """A task gets the schemas with its scan, and fills missing columns with nulls."""
    types: dict[str, pa.DataType] = {"k": pa.int64(), "w": pa.date32()}
    newest = pa.schema(types)
    schema = ShardSchema(newest, 1, known=(KEYED.data, newest))
    part, data = part_of([(1, "a", 0, 1), (2, "b", 0, 1)], inline=inline)
    scan = Scan(schema=encode_with_known(schema), columns=("w", "k"), as_of=9, parts=(part,))
    boxed = msgspec.structs.replace(scan, box={"w": (0, 9)})

    assert decode_share(part, data, scan).select(["w", "k"]).to_pylist() == [
        {"w": None, "k": 1},
        {"w": None, "k": 2},
    ]
    assert decode_share(part, data, boxed).num_rows == 0


def histories() -> st.SearchStrategy[list[list[Update]]]:
    """Return parts of updates, some of which retract rows of other parts."""
    rows = st.tuples(st.one_of(st.none(), st.integers(-5, 20)), st.sampled_from("abc"))
    entry = st.tuples(rows, st.integers(0, 6), st.integers(0, 6), st.booleans(), st.integers(0, 2))

    def build(entries: list[Any]) -> list[list[Update]]:
        parts: list[list[Update]] = [[], [], []]
        for (k, v), start, length, ends, place in entries:
            parts[place].append((k, v, start, 1))
            if ends:
                parts[(place + length) % 3].append((k, v, start + length, -1))
        return [p for p in parts if p]

    return st.lists(entry, min_size=1, max_size=40).map(build)


@settings(deadline=None)
@given(parts=histories(), as_of=st.integers(0, 12), cuts=st.integers(1, 6))
def test_shares_by_key_come_to_the_whole(parts: list[list[Update]], as_of: int, cuts: int) -> None:
    """The updates of a row stay in one share, or a retracted row would appear."""
    made = [part_of(p) for p in parts]
    data = {hash(part.xxh3): found for part, found in made}
    whole = scan_of([part for part, _ in made], as_of=as_of)
    groups = [
        group for _, found in made for group in read_groups(pq.read_metadata(io.BytesIO(found)))
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scans, "PARTITION_BYTES", max(1, whole.size_bytes // cuts))
        shares = share_keys(whole, groups)

    together: Counter[tuple[Any, ...]] = Counter()
    for share in shares:
        rows = read(share, data)
        assert not set(rows) & set(together)
        together += rows
    expected = model([u for p in parts for u in p], as_of=as_of)
    assert together == expected
    assert read(whole, data) == expected


def test_shares_by_key_leave_out_what_they_cannot_need() -> None:
    """A share lists only the parts that it needs."""
    low = part_of([(n, "a", 0, 1) for n in range(30)])
    high = part_of([(n, "a", 0, 1) for n in range(100, 130)])
    whole = scan_of([low[0], high[0]])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scans, "PARTITION_BYTES", whole.size_bytes // 2)
        first, last = share_keys(whole, [(0, 30), (100, 30)])

    assert first.parts == (low[0],)
    assert last.parts == (high[0],)


def test_days_beyond_python_are_shared_out_too() -> None:
    """A key may be a date after the last year of Python's dates."""
    types: dict[str, pa.DataType] = {**TYPES, "k": pa.date32()}
    schema = shard_schema(pa.schema(types), key=["k"])
    days = range(2_932_000, 2_934_000, 50)  # Python's last day is the 2,932,896th.
    numbers: Any = pa.array(days, pa.int32())
    rows = {"k": numbers.cast(pa.date32()), "v": ["a"] * 40, TIME: [0] * 40, DIFF: [1] * 40}
    part, data = stored_part(pa.table(rows, schema=schema.updates), schema, inline=False)
    whole = scan_of([part], schema)
    groups = list(read_groups(pq.read_metadata(pa.BufferReader(data))))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scans, "PARTITION_BYTES", whole.size_bytes // 3)
        shares = share_keys(whole, groups)

    found = [decode_share(part, data, share) for share in shares]

    assert len(shares) >= 3
    assert all(table.num_rows < 20 for table in found)
    assert pa.concat_tables(found).column("k").cast(pa.int32()).to_pylist() == list(days)


def test_shares_by_part_come_to_the_whole() -> None:
    """Shares of an appended collection need no meeting of updates, since none is retracted."""
    parts = [[(n, "a", n % 3, 1), (7, "b", 0, 2)] for n in range(20)]
    made = [part_of(p, KEYLESS) for p in parts]
    data = {hash(part.xxh3): found for part, found in made}
    whole = scan_of([p for p, _ in made], KEYLESS, as_of=1, appended=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scans, "PARTITION_BYTES", whole.size_bytes // 4)
        shares = share_parts(whole)

    assert len(shares) >= 4
    together = sum((read(share, data) for share in shares), Counter[tuple[Any, ...]]())
    assert together == model([u for p in parts for u in p], as_of=1)


def test_columns_that_were_left_out_do_not_merge_rows() -> None:
    """Rows that differ in an unselected column stay separate."""
    updates: list[Update] = [(1, "a", 0, 1), (2, "a", 0, 1), (3, "a", 0, 1), (3, "a", 1, -1)]
    part, data = part_of(updates)

    assert read(scan_of([part], columns=("v",)), {hash(part.xxh3): data}) == {("a",): 2}


def test_parts_in_the_state_are_read_like_others() -> None:
    """Parts stored in the state are read like others."""
    part, data = part_of([(1, "a", 0, 1), (2, "b", 5, 1)], inline=True)

    assert part.inline is not None
    assert read(scan_of([part], as_of=4), {hash(part.xxh3): data}) == {(1, "a"): 1}


def test_bytes_that_are_not_those_written_are_refused() -> None:
    """A changed byte raises CorruptionError."""
    part, data = part_of([(1, "a", 0, 1)])

    with pytest.raises(CorruptionError, match="do not match its checksum"):
        decode_share(part, data[:-1] + b"x", scan_of([part]))


def test_a_row_that_an_appended_collection_lost_is_corruption() -> None:
    """A retraction in an appended collection raises, since its shares are not consolidated."""
    part, data = part_of([(1, "a", 0, -1)], KEYLESS)
    scan = scan_of([part], KEYLESS, appended=True)

    with pytest.raises(CorruptionError, match="has a negative diff"):
        list(contents([decode_share(part, data, scan)], scan))


def test_rows_are_given_as_often_as_they_are_there_in_batches_of_bounded_size() -> None:
    """A row is repeated by its count, in batches of limited size."""
    table = pa.table({"v": ["a", "b", "c"], DIFF: pa.array([1, 200_000, 2], pa.int64())})
    batches = list(batches_of(table, pa.schema([("v", pa.string())])))

    assert max(b.num_rows for b in batches) <= scans.BATCH_ROWS_MAX
    found = Counter(value for b in batches for value in b.column("v").to_pylist())
    assert found == {"a": 1, "b": 200_000, "c": 2}


def test_large_rows_come_in_small_batches() -> None:
    """Large rows arrive in batches of few rows."""
    table = pa.table({"v": ["x" * 1_000_000] * 40, DIFF: pa.array([1] * 40, pa.int64())})
    batches = list(batches_of(table, pa.schema([("v", pa.string())])))

    assert len(batches) >= 3
    assert sum(b.num_rows for b in batches) == 40


def test_small_scans_share_a_partition() -> None:
    """Small scans share a partition, or hundreds of nearly empty shards would cost seconds."""
    part, _ = part_of([(1, "a", 0, 1)])
    packed = pack_scans([scan_of([part])] * 300)

    assert len(packed) == 1


def test_cuts_are_between_like_numbers_of_rows() -> None:
    """Cuts divide the rows evenly, since all tasks wait for the slowest."""
    groups = [(n, 10) for n in range(100)]

    assert choose_cuts(groups, 4 * scans.PARTITION_BYTES) == [25, 50, 75]
    assert choose_cuts(groups, scans.PARTITION_BYTES) == []
    assert choose_cuts([(1, 10)] * 100, 4 * scans.PARTITION_BYTES) == []


@pytest.mark.parametrize(
    ("dtype", "can"),
    [(pa.int64(), True), (pa.string(), True), (pa.date32(), True), (pa.float64(), False)],
)
def test_only_keys_of_a_plain_order_are_cut_by(dtype: pa.DataType, can: bool) -> None:
    """Floats are not cut by, since NaN is in no range."""
    schema = shard_schema(pa.schema([("k", dtype)]), key=["k"])

    assert can_share_keys(schema) == can
    assert not can_share_keys(shard_schema(pa.schema([("k", dtype)]), key=[]))


def test_change_types_are_those_of_deltas_change_feed() -> None:
    """A removal and an addition of one key at one time are an update; other changes are not."""
    rows: list[Update] = [(1, "a", 1, 1), (1, "a", 2, -1), (1, "b", 2, 1), (2, "c", 2, -1)]
    columns = [dict(zip(("k", "v", TIME, DIFF), row, strict=True)) for row in rows]
    changes = pa.Table.from_pylist(columns, schema=KEYED.updates)

    found = with_change_types(changes, KEYED.key).column("_change_type").to_pylist()
    plain = with_change_types(changes, ()).column("_change_type").to_pylist()

    assert found == ["insert", "update_preimage", "update_postimage", "delete"]
    assert plain == ["insert", "delete", "insert", "delete"]
    assert with_change_types(changes.slice(0, 0), KEYED.key).num_rows == 0
