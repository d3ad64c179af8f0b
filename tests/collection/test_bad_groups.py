"""Bad rows and bad row groups of Parquet files: each is reported, and good rows stay readable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kit.decoding import decoded_parquet, parquet
from kit.sources import ingest, lake_of, table_of
from tidelog.collection.formats.parquet import group_starts, pack_range, read_footer
from tidelog.collection.formats.records import Records, listed, row_texts
from tidelog.collection.formats.types import plain_type, without_maps
from tidelog.collection.source import decode
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.decode import DecodedRows, decode_range
from tidelog.persist.format.schema import canonical_type

COLUMNS: dict[str, pa.DataType] = {"n": pa.int64(), "s": pa.string()}
WANTED = pa.schema(COLUMNS)


class LibraryError(Exception):
    """A library's exception that tidelog does not expect."""


FAR: Any = pa.array([3_000_000], pa.int32()).cast(pa.date32())


def test_a_bad_row_of_parquet_with_a_time_beyond_python_spoils_no_other() -> None:
    """A date beyond Python's range is shown as text in the bad row, also inside nested values."""
    far = pa.concat_arrays([FAR] * 4)
    days = pa.StructArray.from_arrays([far], names=["day"])
    lists = pa.ListArray.from_arrays(pa.array(range(5), pa.int32()), far)
    table = pa.table({"n": [0, None, 2, None], "day": far, "in": days, "days": lists})

    made = decoded_parquet(table, table.schema, required=("n",), row_group_size=2)

    assert made.rows.column("n").to_pylist() == [0, 2]
    assert made.errors.column("offset").to_pylist() == [1, 3]
    texts = made.errors.column("text").to_pylist()
    told = "'day': '10183-09-21', 'in': {'day': '10183-09-21'}, 'days': ['10183-09-21']"
    assert texts == [f"{{'n': None, {told}}}"] * 2


def test_the_text_of_a_bad_row_does_not_depend_on_its_neighbours() -> None:
    """Two ingesters may read different ranges."""
    near: Any = pa.array([1, 2], pa.int32()).cast(pa.date32())
    nanos: Any = pa.array([1_000, 1], pa.int64()).cast(pa.timestamp("ns"))
    rows = pa.table(
        {
            "day": pa.concat_arrays([near, FAR]),
            "at": pa.concat_arrays([nanos, nanos[:1]]),
            "in": pa.ListArray.from_arrays([0, 1, 2, 3], pa.concat_arrays([near, FAR])),
        }
    )

    together = listed(row_texts(rows))

    assert together == [text for at in range(3) for text in listed(row_texts(rows.slice(at, 1)))]
    assert "1970-01-01 00:00:00.000001000" in together[0]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_row_group_that_breaks_a_library_is_one_bad_row_wherever_its_range_begins(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row group that a library cannot decode is one bad row, wherever the range starts."""
    table = pa.table({"n": range(90), "s": [f"row {n}" for n in range(90)]})
    file, footer = parquet(table, row_group_size=30)
    metadata = read_footer(footer)
    starts = [*group_starts(metadata).tolist(), len(file)]
    made = decode.fit_records

    def breaking(records: Records, *given: Any, **more: Any) -> DecodedRows:
        if 30 * at + 3 in records.offsets:
            raise LibraryError
        return made(records, *given, **more)

    monkeypatch.setattr(decode, "fit_records", breaking)

    good: list[int] = []
    bad: list[tuple[int, str, str]] = []
    for start, limit in ((starts[0], starts[1]), (starts[1], starts[3])):
        found = FileRange(path="p", start=start, limit=limit)
        done = decode_range(pack_range(footer, file[start:limit]), found, WANTED, format="parquet")
        good += [int(n) for n in done.rows.column("n").to_pylist() if n is not None]
        told = done.errors.select(["offset", "reason", "text"]).to_pylist()
        bad += [tuple(row.values()) for row in told]
        offsets = done.rows.column("_tidelog_offset").to_numpy()[::-1]
        assert done.texts(offsets) == row_texts(table.take(offsets))

    why = "the row group cannot be decoded: LibraryError"
    assert bad == [(30 * at, why, "30 rows from this one")]
    assert good == [n for n in range(90) if n // 30 != at]


VIEWS: dict[str, tuple[Any, Any]] = {
    "text": (pa.string_view(), ["a", None, "b", "c"]),
    "bytes": (pa.binary_view(), [b"a", None, b"b", b"c"]),
    "lists": (pa.list_(pa.string_view()), [["a", None], None, [], ["b"]]),
    "structs": (pa.struct([("x", pa.string_view())]), [{"x": "a"}, {"x": None}, None, {"x": "b"}]),
    "maps": (pa.map_(pa.string_view(), pa.string_view()), [[("a", "b")], None, [], [("c", None)]]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_what_they_show(name: str) -> None:
    """Columns of view types, which tools in Rust write, decode as plain types."""
    kind, values = VIEWS[name]
    table = pa.table({"n": [0, None, 2, 3], "v": pa.array(values, kind)})
    plain = canonical_type(without_maps(plain_type(kind)))
    wanted = pa.schema([pa.field("n", pa.int64()), pa.field("v", plain)])

    made = decoded_parquet(table, wanted, required=("n",))

    assert made.errors.column("offset").to_pylist() == [1]
    assert made.rows.column("n").to_pylist() == [0, 2, 3]
    expected = [value for n, value in enumerate(values) if n != 1]
    if name == "maps":
        expected = [[{"key": k, "value": v} for k, v in entries] for entries in expected]
    assert made.rows.column("v").to_pylist() == expected


async def test_extensions_are_what_they_are_stored_as(tmp_path: Path) -> None:
    """Extension types (uuid, json) are ingested as their storage types."""
    ids: Any = pa.array([b"0123456789abcdef", None], pa.uuid())
    texts: Any = pa.array(['{"a":1}', None], pa.json_())
    pq.write_table(pa.table({"n": [1, 2], "id": ids, "text": texts}), tmp_path / "a.parquet")
    location = await lake_of(tmp_path, "*.parquet", format="parquet", schema=None)

    await ingest(location, "c")

    rows = await table_of(location)
    assert rows.drop_columns(["_diff"]).sort_by("n").to_pylist() == [
        {"n": 1, "id": b"0123456789abcdef", "text": '{"a":1}'},
        {"n": 2, "id": None, "text": None},
    ]
