"""tidelog's protobuf codec against the protobuf package, by the shipped description."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import UNSET, Struct

import tidelog.http.api
from kit import proto_source
from tidelog.errors import UsageError
from tidelog.http.api import messages
from tidelog.http.api.keys import Base64, json_bytes
from tidelog.http.api.protobuf_wire import decode_message, encode_message

PROTO = Path(tidelog.http.api.__file__).parent / "keyed_log.proto"
_MESSAGE = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^  (optional |repeated )?(\w+) (\w+) = (\d+);", re.MULTILINE)
_KINDS = {"string": 9, "bytes": 12, "bool": 8, "uint64": 4}


def described() -> dict[str, list[tuple[str, str, str, int]]]:
    """Return the messages of the description: label, type, name and number of each field."""
    return {
        name: [(a.strip(), b, c, int(d)) for a, b, c, d in _FIELD.findall(body)]
        for name, body in _MESSAGE.findall(PROTO.read_text())
    }


def foreign() -> dict[str, Any]:
    """Return the package's classes for the description."""
    file = descriptor_pb2.FileDescriptorProto(name="keyed_log.proto", package="t", syntax="proto3")
    for name, fields in described().items():
        message = file.message_type.add(name=name)
        for label, kind, field_name, number in fields:
            field = message.field.add(name=field_name, number=number)
            field.label = field.LABEL_REPEATED if label == "repeated" else field.LABEL_OPTIONAL
            if kind in _KINDS:
                field.type = _KINDS[kind]  # type: ignore[assignment]
            else:
                field.type, field.type_name = field.TYPE_MESSAGE, f".t.{kind}"
            if label == "optional":
                field.proto3_optional = True
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field_name}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}"))
        for name in described()
    }


FOREIGN = foreign()
OURS: dict[str, type[Struct]] = {name: getattr(messages, name) for name in FOREIGN}

keys = st.binary(max_size=20)
numbers = st.integers(0, 2**63 - 1)


def test_the_description_is_made_from_the_messages() -> None:
    """The shipped description is what the messages give: ``python -m kit.proto_source``."""
    assert PROTO.read_text() == proto_source.source()
    assert set(OURS) == {message.__name__ for message in proto_source.message_types()}


@given(
    pairs=st.lists(st.tuples(keys, keys), min_size=1, max_size=5),
    durable=st.none() | st.booleans(),
    timestamp_us=st.none() | numbers,
)
def test_requests_are_read_as_they_were_written_elsewhere(
    pairs: list[tuple[bytes, bytes]], durable: bool | None, timestamp_us: int | None
) -> None:
    """A request of the package decodes to the same values; an absent field differs from 0."""
    theirs = FOREIGN["AppendRequest"]()
    for key, value in pairs:
        theirs.records.add(key=key, value=value)
    if durable is not None:
        theirs.await_durable = durable
    if timestamp_us is not None:
        theirs.timestamp_us = timestamp_us
    data = theirs.SerializeToString()

    ours = decode_message(data, messages.AppendRequest, items_max=10)

    assert ours.await_durable is (UNSET if durable is None else durable)
    assert ours.timestamp_us == (UNSET if timestamp_us is None else timestamp_us)
    assert [(one.key, one.value) for one in ours.records] == [
        (Base64(key), Base64(value)) for key, value in pairs
    ]
    again = FOREIGN["AppendRequest"].FromString(data)
    assert [(one.key, one.value) for one in again.records] == pairs


@given(
    values=st.lists(st.tuples(numbers, keys, numbers, st.none() | keys), max_size=5),
    key=st.none() | keys,
    next_sequence=numbers,
    more=st.booleans(),
)
def test_answers_are_read_elsewhere(
    values: list[tuple[int, bytes, int, bytes | None]],
    key: bytes | None,
    next_sequence: int,
    more: bool,
) -> None:
    """The package decodes an answer to the same values."""
    answer = messages.ScanAnswer(
        key=UNSET if key is None else json_bytes(key),
        values=[
            messages.ScanValue(
                sequence=a,
                value=json_bytes(b),
                timestamp_us=c,
                key=UNSET if d is None else json_bytes(d),
            )
            for a, b, c, d in values
        ],
        next_sequence=next_sequence,
        more=more,
    )
    data = encode_message(answer)
    theirs = FOREIGN["ScanAnswer"].FromString(data)

    assert (theirs.status, theirs.next_sequence, theirs.more) == ("success", next_sequence, more)
    assert theirs.HasField("key") == (key is not None)
    assert theirs.key == (key or b"")
    assert [(v.sequence, v.value, v.timestamp_us) for v in theirs.values] == [
        value[:3] for value in values
    ]
    assert theirs.SerializeToString() == data


@given(data=st.binary(max_size=64))
@example(data=b"\x0b\x0c")  # A group.
@example(data=b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")  # A length past the end.
@example(data=b"\x10" + b"\xff" * 10)  # A number of too many bytes.
@example(data=b"\x08\x01")  # A list as a number.
@example(data=b"\x00\x00")
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    """The codec accepts no bytes that the package refuses."""
    try:
        FOREIGN["AppendRequest"].FromString(data)
        is_theirs = True
    except DecodeError:
        is_theirs = False
    try:
        decode_message(data, messages.AppendRequest, items_max=10)
    except UsageError:
        return
    assert is_theirs


def test_too_many_items_are_refused_before_they_are_made() -> None:
    """A record takes two bytes, and fifty times as many as a Python object."""
    with pytest.raises(UsageError, match="more than 10 items"):
        decode_message(b"\x0a\x00" * 1_000_000, messages.AppendRequest, items_max=10)


def test_bytes_are_pinned() -> None:
    """The bytes are those of OpenData's clients: a record's key is field 1, its value field 2."""
    data = bytes.fromhex("0a0a0a036b65791203 76616c".replace(" ", "")) + b"\x10\x01"
    found = decode_message(data, messages.AppendRequest, items_max=1)
    assert (found.records[0].key, found.records[0].value) == (Base64(b"key"), Base64(b"val"))
    assert found.await_durable is True
    answer = messages.AppendAnswer(records_appended=1, start_sequence=300)
    assert encode_message(answer) == b"\x0a\x07success\x10\x01\x18\xac\x02"
