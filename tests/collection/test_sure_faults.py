"""Certain faults: a line refused without Arrow's reader is one that the reader refuses."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.json as pj
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kit.decoding import decoded
from kit.work import calls_of
from tidelog.collection.formats.json.doubt import FaultFinder, overflows
from tidelog.collection.formats.lines import are_text
from tidelog.collection.formats.types import json_wire

COLUMNS: dict[str, pa.DataType] = {
    "i": pa.int64(),
    "u": pa.uint8(),
    "f": pa.float64(),
    "g": pa.float32(),
    "b": pa.bool_(),
    "t": pa.string(),
    "d": pa.decimal128(5, 2),
    "l": pa.list_(pa.field("item", pa.int64())),
    "s": pa.struct([pa.field("a", pa.int64()), pa.field("d", pa.decimal128(5, 2))]),
}
WANTED = pa.schema(COLUMNS)
WIRE = pa.schema([pa.field(field.name, json_wire(field.type)) for field in WANTED])
VALUES = [
    *["1", "-1", "0", "-0", "300", "1.0", "1.5", "1e2", "1e400", "-1e-400", "9" * 20, "9" * 400],
    *["1.25", "1.255", "1.250", "99999", "999", '"1.25"', '"1.255"', '" 1.25"', '"1e1"', '"1_0"'],
    *['"x"', '""', "true", "null", "NaN", "Inf", "-Infinity", "Nan", "01", "1.", ".5", "+1", "-"],
    *["[]", "[1]", "[1.5]", "[null]", '["x"]', "[1", "{}", '{"a": 1}', '{"a": "x"}', '{"a": 1.5}'],
    *['{"a": 1, "a": 2}', '{"d": 1.255}', '{"z": 1, "z": 2}', '"\\ud800"', '"\\udc00"', '"\\x"'],
    *['"\t"', '"\x00"', "\x00", "[[1]]", '{"a": {"a": 1}}', "3.5e38", "9223372036854775808"],
]
FIELDS = [*WANTED.names, "z", "\\u0069", ""]
pairs = st.tuples(st.sampled_from(FIELDS), st.sampled_from(VALUES))
lines = st.lists(pairs, max_size=4).map(
    lambda found: "{" + ", ".join(f'"{name}": {value}' for name, value in found) + "}"
)


def is_taken(line: bytes) -> bool:
    """Return True if the reader accepts the line."""
    try:
        found = pj.read_json(
            io.BytesIO(line + b"\n"),
            parse_options=pj.ParseOptions(explicit_schema=WIRE, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid:
        return False
    return found.num_rows == 1 and not overflows(line, WIRE)


@given(lines, st.sampled_from(["", "", "", "}", "x}", "{}", '\0 "i": 1}', ",}"]))
@example('{"i": 1, "i": 2}', "")
@example('{"f": Inf, "i": 1}', "")
def test_a_fault_that_is_sure_is_one_for_the_reader(text: str, more: str) -> None:
    """A good row would otherwise be bad because of its neighbours."""
    line = (text + more).encode()

    if FaultFinder(WANTED, WIRE).find(line).is_sure:
        assert not is_taken(line)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", ["i", "f", "d", "l", "s"])
def test_what_becomes_of_a_line_does_not_depend_on_how_many_are_bad(name: str, value: str) -> None:
    """The same lines are bad for the same reasons, alone or among many."""
    line = f'{{"{name}": {value}}}'.encode()
    good, count = b'{"i": 1}', 3
    if not are_text(line, pa.array([len(line)]).to_numpy())[0]:
        return
    alone, among = (
        decoded(data, WANTED) for data in (line + b"\n", (line + b"\n" + good + b"\n") * count)
    )

    assert among.errors.num_rows == alone.errors.num_rows * count
    reasons = {*alone.errors.column("reason").to_pylist()}
    assert {*among.errors.column("reason").to_pylist()} == reasons


@pytest.mark.parametrize(
    "bad",
    [
        "{not json}",
        '{"i": "x"}',
        '{"i": 1.5}',
        '{"i": 1, "i": 2}',
        '{"d": "1.255"}',
        '{"l": ["x"]}',
        '{"s": {"a": 1, "a": 2}}',
        '{"f": 1e400}',
    ],
)
def test_many_bad_lines_cost_few_calls_of_the_reader(
    bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call takes as long as a thousand good lines, and half of the lines may be bad."""
    calls: list[int] = []
    read = pj.read_json

    def counting(*given: object, **named: object) -> pa.Table:
        calls.append(1)
        return read(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(pj, "read_json", counting)
    data = f'{bad}\n{{"i": 1}}\n'.encode() * 500

    assert decoded(data, WANTED).errors.num_rows == 500
    assert len(calls) <= 20


@pytest.mark.parametrize("bad", ['{"i": 1, "i": 1}', '{"i": 1, "d": "1.255"}', '{"i": "x"}'])
def test_many_bad_lines_cost_few_calls_each(bad: str) -> None:
    """A file of mostly bad lines takes a small multiple of the time of a good one."""
    count = 1_000
    text = '{"i": 1, "t": "x", "f": 1.5, "b": true, "u": 2}'.replace('"i": 1', bad[1:-1])
    data = (text + "\n").encode() * count
    assert decoded(data, WANTED).errors.num_rows == count

    assert calls_of(lambda: decoded(data, WANTED)) < 100 * count
