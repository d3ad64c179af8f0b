"""Columns of json text: any value, exactly as written. Also, the types inferred for json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.sources import ingest, lake_of, table_of
from tidelog.collection.create import source_schema
from tidelog.collection.formats.json import decode
from tidelog.collection.formats.json.decode import decode_json
from tidelog.collection.formats.records import Records
from tidelog.collection.formats.types import is_json, json_field, parse_schema, sql_type_of
from tidelog.collection.source.infer import sample_schema
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import UsageError

SCHEMA = parse_schema('id bigint, x json, "y z" JSON')


def decoded(*lines: str, schema: pa.Schema = SCHEMA) -> Records:
    return decode_json("".join(f"{line}\n" for line in lines).encode(), schema, base=0)


def test_a_value_is_kept_to_the_letter() -> None:
    """Numbers keep all digits, objects keep their spaces, and texts keep their quotes."""
    values = [
        '{"a": [1,  2.50]}',
        '"q"',
        "12345678901234567890123",
        "1.10",
        "true",
        "[]",
        '"\\u00e9"',
    ]

    found = decoded(*(f'{{"id":{n},"x":{value} }}' for n, value in enumerate(values)))

    assert found.table.column("x").to_pylist() == values
    assert not found.misfits
    assert not found.dropped


def test_null_and_nothing_are_null() -> None:
    """A json null and an absent field are both null."""
    found = decoded('{"id":1,"x":null}', '{"id":2,"y z":1}', '{"id":3,"x":"null"}')

    assert found.table.column("x").to_pylist() == [None, None, '"null"']
    assert found.table.column("y z").to_pylist() == [None, "1", None]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"id":1,"x":1,"x":2}', "a field is named twice"),
        ('{"id":1,"x":NaN}', "column 'x' holds NaN, which json does not have"),
        ('{"id":1,"x":[{"y":-Infinity}]}', "column 'x' holds -Infinity, which json does not have"),
        ('{"id":1,"x":{"NaN":Infinity}}', "column 'x' holds Infinity, which json does not have"),
        ('{"id":1,"x":1,"other":NaN}', "column 'other' holds NaN, which json does not have"),
        ('{"id":"1","x":1}', "column 'id' does not fit its type BIGINT"),
        ('{"id":1,"x":[1,]}', "the line is not one json value"),
    ],
)
def test_a_line_without_such_text_is_a_bad_one(line: str, reason: str) -> None:
    """The lines next to a bad one are rows."""
    found = decoded('{"id":0,"x":{"x":{"x":1}}}', line, '{"id":2,"x":"x x \\"x\\" \\"x\\""}')

    assert [m.reason for m in found.misfits] == [reason]
    assert found.table.column("id").to_pylist() == [0, 2]


@pytest.mark.parametrize("bad", ['{"id":1,"x":NaN}', '{"id":1,"id":2,"x":1}', '{"id":1,"x":[1,]}'])
def test_many_bad_lines_are_not_read_again_and_again(
    bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may have many bad lines, because Python writes NaN without quotes."""
    lines = [bad if n % 10 == 0 else f'{{"id":{n},"x":{{"n":{n}}}}}' for n in range(999)]
    read = decode._read
    reads: list[int] = []

    def counted(chunk: bytes, *given: Any, **more: Any) -> Any:
        reads.append(chunk.count(b"\n"))
        return read(chunk, *given, **more)

    monkeypatch.setattr(decode, "_read", counted)

    found = decoded(*lines)

    assert len(found.misfits) == 100
    assert len(reads) < 3 * 100


def test_a_table_of_json_alone_has_its_rows() -> None:
    """If json columns are the only ones, the row count still matches the lines."""
    found = decoded('{"x":1}', "{}", "[]", "null", schema=pa.schema([json_field("x")]))

    assert found.table.column("x").to_pylist() == ["1", None]
    assert len(found.misfits) == 2


def kinds_of(*lines: str) -> dict[str, str]:
    schema = sample_schema("".join(f"{line}\n" for line in lines).encode())
    return {field.name: sql_type_of(field) for field in schema}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", '"two"'], "JSON"),
        (["[1]", '"two"', "null"], "JSON"),
        (['[1,"a"]'], "JSON"),
        (['{"a":1}', '{"a":"q"}'], "JSON"),
        (['{"a":1}', '{"b":"q"}'], 'STRUCT("a" BIGINT, "b" VARCHAR)'),
        ([json.dumps({f"k{n}": n for n in range(300)})], "JSON"),
        (['"2024-01-01"', '"2024-01-01T10:00:00"'], "VARCHAR"),
        (['"2024-01-01T10:00:00.1234567Z"'], "VARCHAR"),
        (['"2024-01-01T10:00:00.123456Z"'], "TIMESTAMPTZ"),
        (['"2024-01-01"', "1"], "JSON"),
        (["18446744073709551616", "1"], "DECIMAL(38, 0)"),
        (["18446744073709551616", "1.5"], "DOUBLE"),
        (["1", "1.5"], "DOUBLE"),
        (["1" * 39], "DOUBLE"),
    ],
)
def test_a_column_gets_a_type_that_takes_its_values(values: list[str], kind: str) -> None:
    """An inferred type takes all values of its column. Good rows would otherwise be bad."""
    lines = [f'{{"id":{n},"v":{value}}}' for n, value in enumerate(values)]

    assert kinds_of(*lines) == {"id": "BIGINT", "v": kind}


_SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=3),
    st.sampled_from(["2024-01-01", "2024-01-01T10:00:00.1234567Z", "10:00:00", "1", "x"]),
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=4,
)


@settings(max_examples=60)
@given(st.lists(st.dictionaries(st.sampled_from(["p", "q r"]), _VALUES), min_size=1, max_size=5))
def test_a_sample_fits_what_was_inferred_from_it(objects: list[dict[str, Any]]) -> None:
    """No line of plain objects is a bad row under the schema inferred from it."""
    lines = [json.dumps({"id": n, **one}) for n, one in enumerate(objects)]
    schema = sample_schema("".join(f"{line}\n" for line in lines).encode())

    found = decoded(*lines, schema=schema)

    assert not found.misfits
    assert found.table.num_rows == len(lines)
    for field in schema:
        if is_json(field):
            texts = found.table.column(field.name).to_pylist()
            values = [one.get(field.name) for one in objects]
            assert [None if text is None else json.loads(text) for text in texts] == values


@pytest.mark.parametrize(
    ("schema", "asked", "said"),
    [
        ('"a""b" json', {}, "cannot have the type JSON"),
        ("t json", {"time_column": "t"}, "must have timestamps, dates or integers"),
    ],
)
def test_what_cannot_be_json_is_refused(schema: str, asked: dict[str, str], said: str) -> None:
    """The type JSON is refused for a name that the parser cannot find, and for a time column."""
    spec = SourceSpec(name="a", files="x", **asked)  # type: ignore[arg-type]

    with pytest.raises(UsageError, match=said):
        source_schema(spec, parse_schema(schema))


async def test_a_map_is_a_list_of_its_entries(tmp_path: Path) -> None:
    """SQL cannot compare maps, so a Parquet map becomes a list of entries."""
    maps = pa.map_(pa.string(), pa.int32())
    values = [[("a", 1), ("b", None)], None, []]
    table = pa.table(
        {"m": pa.array(values, maps), "l": pa.array([[v] for v in values], pa.list_(maps))}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    lake = await lake_of(tmp_path, "*.parquet", format="parquet", schema=None)
    await ingest(lake, "c")

    kept = await table_of(lake)

    assert sql_type_of(kept.schema.field("m")) == 'STRUCT("key" VARCHAR, "value" INTEGER)[]'
    entries = [None if v is None else [{"key": k, "value": n} for k, n in v] for v in values]
    assert sorted(kept.column("m").to_pylist(), key=str) == sorted(entries, key=str)
    assert sorted(kept.column("l").to_pylist(), key=str) == sorted(([e] for e in entries), key=str)


@pytest.mark.parametrize("separator", [":", " : "])
@pytest.mark.parametrize(("name", "twin"), [("é", r"\u00e9"), ("a/b", r"a\/b"), ("p", r"\u0070")])
def test_a_name_that_is_escaped_is_the_same_name(name: str, twin: str, separator: str) -> None:
    """Python escapes characters beyond ASCII. A repeated name makes a bad row."""
    lines = [
        f'{{"{twin}"{separator}1}}',
        f'{{"{twin}"{separator}2,"{twin}"{separator}3}}',
        f'{{"{name}"{separator}4,"{twin}"{separator}5}}',
        f'{{"other":{{"{twin}":1}},"{twin}"{separator}6}}',
    ]

    found = decoded(*lines, schema=pa.schema([json_field(name)]))

    assert found.table.column(name).to_pylist() == ["1", "6"]
    assert [misfit.reason for misfit in found.misfits] == ["a field is named twice"] * 2
