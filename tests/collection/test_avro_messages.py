"""Messages of avro: one record each, of a known schema, and bad ones with their bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.avro import datum, long, record
from kit.clocks import SwiftClock
from kit.sources import ingest, table_of
from tidelog.collection.formats.avro.messages import (
    MessageSchemas,
    decode_messages_of_avro,
    fingerprint_of,
)
from tidelog.collection.formats.types import parse_schema
from tidelog.collection.ingest.checking import check_source
from tidelog.collection.rendition_spec import RenditionSpec
from tidelog.collection.source.binding import AddressRange
from tidelog.collection.source.decode import DecodedRows
from tidelog.collection.source.decode_messages import decode_rows
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import CorruptionError, UsageError
from tidelog.location import Location, open_location

EVENT = record(n="long", kind={"type": "enum", "name": "k", "symbols": ["A", "B"]})
TEXT = json.dumps(EVENT)
OWN = MessageSchemas(TEXT)


def event(n: int, kind: str = "A") -> bytes:
    return datum(EVENT, {"n": n, "kind": kind})


def decoded(
    bodies: list[bytes | None], wanted: str = "n bigint, kind text", schemas: MessageSchemas = OWN
) -> DecodedRows:
    """Decode messages with the addresses 10, 20, ..."""
    addresses = pa.array(range(10, 10 + 10 * len(bodies), 10), pa.int64())
    table = pa.table({"body": pa.array(bodies, pa.binary()), "_tidelog_offset": addresses})
    found = AddressRange(path="p", start=0, limit=10**6)
    return decode_rows(table, found, parse_schema(wanted), format="avro", schemas=schemas)


def numbers(found: DecodedRows) -> list[tuple[int, Any]]:
    rows = found.rows.to_pylist()
    return [(row["_tidelog_offset"], row["n"]) for row in rows]


def reasons(found: DecodedRows) -> list[tuple[int, str, str]]:
    return [(e["offset"], e["reason"], e["text"]) for e in found.errors.to_pylist()]


def test_each_message_is_a_row_or_a_bad_row_with_its_bytes() -> None:
    """The bytes of a bad one are in hexadecimal digits, because they are no text."""
    bad = [event(3)[:-1], event(4) + b"\xff", long(5) + long(2), b"", None]
    found = decoded([event(1), *bad, event(2, "B")])

    assert numbers(found) == [(10, 1), (70, 2)]
    assert found.rows.column("kind").to_pylist() == ["A", "B"]
    assert reasons(found) == [
        (20, "the message cannot be decoded: EOFError", "0x06"),
        (30, "the message cannot be decoded: 1 bytes follow its record", "0x0800ff"),
        (40, "the message cannot be decoded: ArrowIndexError", "0x0a04"),
        (50, "the message cannot be decoded: EOFError", ""),
        (60, "the message is empty", ""),
    ]


def test_a_row_that_does_not_fit_is_bad_alone() -> None:
    """Fields outside of the columns are counted."""
    found = decoded([event(1), event(2**40), event(3)], "n integer")

    assert numbers(found) == [(10, 1), (30, 3)]
    assert [(at, why) for at, why, _ in reasons(found)] == [
        (20, "column 'n' does not fit its type INTEGER")
    ]
    assert found.dropped == {"kind": 3}


def test_the_single_object_header_of_the_schema_is_accepted() -> None:
    """The canonical form decides its fingerprint, so white space and docs do not matter."""
    spaced = MessageSchemas(json.dumps({"doc": "an event", **EVENT}, indent=2))
    canonical = fastavro.schema.to_parsing_canonical_form(fastavro.parse_schema(EVENT))
    mark = bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))
    assert fingerprint_of(TEXT) == mark

    found = decoded(
        [b"\xc3\x01" + mark + event(7), b"\xc3\x01" + bytes(8) + event(8)], schemas=spaced
    )
    assert numbers(found) == [(10, 7)]
    assert [at for at, *_ in reasons(found)] == [20]


def test_a_record_may_begin_like_a_single_object_header() -> None:
    """The number -98 is written as C3 01."""
    assert event(-98)[:2] == b"\xc3\x01"

    assert numbers(decoded([event(-98), event(1)])) == [(10, -98), (20, 1)]


def test_messages_of_several_schemas_stay_in_order() -> None:
    """With the schemas of a registry, each message names its own by an id."""
    newer = record(n="int", more="string")
    schemas = MessageSchemas(by_id={1: TEXT, 258: json.dumps(newer)})
    bodies: list[bytes | None] = []
    for n in range(6):
        body = datum(newer, {"n": n, "more": "x"}) if n % 2 else event(n)
        bodies.append(b"\0" + (258 if n % 2 else 1).to_bytes(4, "big") + body)
    found = decoded([*bodies, b"\0\0\0\0\x09" + event(1), event(1)], schemas=schemas)

    assert numbers(found) == [(10 * n + 10, n) for n in range(6)]
    assert found.rows.column("kind").to_pylist() == ["A", None] * 3
    assert [(at, why) for at, why, _ in reasons(found)] == [
        (70, "the message names the schema 9, which is not known"),
        (80, "the message does not begin with the id of a schema"),
    ]
    assert found.dropped == {"more": 3}
    shown = found.texts(np.array([20, 30]))
    assert [str(one)[:7] for one in shown.to_pylist()] == ["{'n': 1", "{'n': 2"]


def test_a_schema_that_cannot_be_read_is_an_error() -> None:
    """No message can be decoded without it, so this is no fault of a row."""
    with pytest.raises(CorruptionError, match="avro schema cannot be read"):
        decode_messages_of_avro([b"x"], np.array([1]), pa.schema([]), MessageSchemas("{"))


@settings(max_examples=60)
@given(bodies=st.lists(st.binary(max_size=6), max_size=20))
def test_any_bytes_are_rows_and_bad_rows(bodies: list[bytes]) -> None:
    """Each message has one of both, and those of others do not change it."""
    found = decoded([*bodies])
    alone = [decoded([body]) for body in bodies]

    assert found.rows.num_rows + found.errors.num_rows == len(bodies)
    assert [n for _, n in numbers(found)] == [n for one in alone for _, n in numbers(one)]


def test_columns_of_the_kind_come_next_to_the_record() -> None:
    """A message without a body deletes the row of its key, in avro as in other formats."""
    table = pa.table(
        {
            "body": pa.array([event(1), None, b"\xff"], pa.binary()),
            "key": ["a", "b", "c"],
            "_tidelog_offset": pa.array([1, 2, 3], pa.int64()),
        }
    )
    found = decode_rows(
        table,
        AddressRange(path="p", start=0, limit=9),
        parse_schema("key text, n bigint"),
        format="avro",
        schemas=OWN,
        include={"key": "key"},
        are_tombstones=True,
    )

    rows = found.rows.to_pylist()
    assert [(row["key"], row["n"]) for row in rows] == [("a", 1), ("b", None)]
    assert [(at, text) for at, _, text in reasons(found)] == [(3, "0xff")]


async def lake_with(*bodies: bytes) -> Location:
    """Make a lake in memory with the log ``l`` of these records."""
    location = await open_location("memory://", create=True, clock=SwiftClock())
    await location.logs.create("l")
    async with await location.logs.open("l") as log:
        await log.append(list(bodies))
    return location


def spec_of(**asked: Any) -> SourceSpec:
    """Return the spec of a source of the log."""
    given = {"format": "avro", "avro_schema": TEXT, **asked}
    return SourceSpec(name="s", kind="log", settings={"log": "l"}, **given)


async def test_a_log_of_messages_becomes_a_collection() -> None:
    """The columns come from the schema, which is stored with the source."""
    location = await lake_with(event(1), b"\xff", event(2, "B"))
    info = await location.sources.create(spec_of())
    await ingest(location, "s")
    errors = (await table_of(location, "s_errors")).to_pylist()

    rows = (await table_of(location, "s")).to_pylist()
    assert sorted((row["n"], row["kind"]) for row in rows) == [(1, "A"), (2, "B")]
    assert [one["text"] for one in errors] == ["0xff"]
    assert info.avro_schema == TEXT
    checked = await check_source(await location.sources.ingester("s"))
    assert (checked.first, checked.rows) == (None, 3)


async def test_a_new_field_becomes_a_column() -> None:
    """With `--evolve`: the schema has the field's type."""
    location = await lake_with(event(1))
    await location.sources.create(spec_of(schema="n bigint", evolve=True))
    await ingest(location, "s")

    (row,) = (await table_of(location, "s")).to_pylist()
    assert (row["n"], row["kind"]) == (1, "A")


async def test_a_rendition_has_the_schema_of_its_source() -> None:
    """It decodes the same messages into other columns."""
    location = await lake_with(event(1))
    await location.sources.create(spec_of(keep_bindings=True))
    await ingest(location, "s")
    await location.renditions.create(RenditionSpec(name="r", schema="n text"), of="s")
    await ingest(location, "r")

    (row,) = (await table_of(location, "r")).to_pylist()
    assert row["n"] == "1"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"kind": "log", "format": "avro"}, r"needs avro_schema=: the text"),
        ({"kind": "log", "format": "avro", "avro_schema": "{"}, r"avro_schema= cannot be used"),
        ({"kind": "log", "avro_schema": TEXT}, r"remove avro_schema="),
        ({"files": "x", "format": "avro", "avro_schema": TEXT}, r"remove avro_schema="),
        (
            {"kind": "log", "format": "avro", "avro_schema": json.dumps(record(x="null"))},
            r"only fields of nulls",
        ),
    ],
)
async def test_a_schema_that_is_missing_or_useless_is_refused(
    asked: dict[str, Any], why: str, tmp_path: Path
) -> None:
    """The message names the argument and the remedy."""
    location = await lake_with(event(1))
    given = {"settings": {"log": "l"}, **asked} if "kind" in asked else asked

    with pytest.raises(UsageError, match=why):
        await location.sources.create(SourceSpec(name="s", **given))
