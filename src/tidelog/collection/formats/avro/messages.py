"""Avro messages: one value each, in a known schema, or with a header that names it. Pure.

A message has the bytes of one record, alone or after a header. A header of 10 bytes has C3 01, and
the fingerprint of the schema ("single-object encoding"). A header of 5 bytes has 0, and the id of
the schema in a registry. This module looks up no id: the caller has the schemas.
Source: the Avro specification 1.12, "Single-object encoding".
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidelog.collection.formats.avro.decode import AvroDecoder
from tidelog.collection.formats.avro.schema import (
    AvroSchema,
    parse_avro_schema,
    require_fastavro,
)
from tidelog.collection.formats.lines import Int64s
from tidelog.collection.formats.records import Misfit, Records, do_without_bad_rows
from tidelog.errors import CorruptionError

_ROWS_AT_ONCE: Final = 4_096
_MARK: Final = b"\xc3\x01"
_FINGERPRINT: Final = slice(2, 10)
_SINGLE_BYTES: Final = 10
_REGISTERED_BYTES: Final = 5
_SHOWN_BYTES_MAX: Final = 2_047  # Two digits each, in a text of 4,096 characters.


@dataclass(frozen=True, slots=True)
class MessageSchemas:
    """The schemas of some messages, as texts in json.

    Shape: messages without a header, or with the header of its fingerprint, have the schema
        ``own``. With ``by_id``, each message has the header of a registry instead, with one of
        these ids.
    """

    own: str | None = None
    by_id: Mapping[int, str] = field(default_factory=dict)

    def of(self, body: bytes) -> tuple[str, bytes]:
        """Return the schema of a message, and its bytes without the header.

        Raises:
            CorruptionError: the message has no header, or names a schema that is not known.
        """
        if self.own is None:
            if len(body) < _REGISTERED_BYTES or body[0] != 0:
                raise CorruptionError("the message does not begin with the id of a schema")
            number = int.from_bytes(body[1:_REGISTERED_BYTES], "big")
            if number not in self.by_id:
                raise CorruptionError(f"the message names the schema {number}, which is not known")
            return self.by_id[number], body[_REGISTERED_BYTES:]
        if body[:2] == _MARK and body[_FINGERPRINT] == fingerprint_of(self.own):
            return self.own, body[_SINGLE_BYTES:]
        # A record may begin with these bytes too, so another fingerprint proves nothing.
        return self.own, body


@lru_cache(maxsize=64)
def fingerprint_of(text: str) -> bytes:
    """Return the fingerprint of a schema (CRC-64-AVRO), lowest byte first."""
    library: Any = require_fastavro().schema
    canonical = library.to_parsing_canonical_form(library.parse_schema(json.loads(text)))
    return bytes.fromhex(library.fingerprint(canonical, "CRC-64-AVRO"))


def decode_messages_of_avro(
    bodies: Sequence[bytes | None],
    addresses: Int64s,
    wanted: pa.Schema,
    schemas: MessageSchemas,
    *,
    folds_case: bool = False,
) -> list[Records]:
    """Decode messages, which have these addresses. Each writer's schema has records of its own.

    Raises:
        CorruptionError: a schema cannot be read. UsageError: fastavro is not installed.
    """
    misfits: list[Misfit] = []
    places: dict[str, list[int]] = {}
    data: dict[str, list[bytes]] = {}
    for place, body in enumerate(bodies):
        try:
            if body is None:
                raise CorruptionError("the message is empty")
            text, rest = schemas.of(body)
        except CorruptionError as error:
            misfits.append(Misfit(int(addresses[place]), error.sentence, shown_bytes(body or b"")))
            continue
        places.setdefault(text, []).append(place)
        data.setdefault(text, []).append(rest)
    texts = [*places] or [schemas.own or next(iter(schemas.by_id.values()))]
    found: list[Records] = []
    for text in texts:
        some = _Messages(
            AvroDecoder(parse_avro_schema(text), wanted, folds_case),
            [bodies[place] or b"" for place in places.get(text, [])],
            data.get(text, []),
            addresses[np.array(places.get(text, []), np.int64)],
        )
        found.append(some.records(misfits if text == texts[0] else []))
    return found


def shown_bytes(body: bytes) -> str:
    """Return bytes as hexadecimal digits, for the errors collection."""
    return f"0x{body[:_SHOWN_BYTES_MAX].hex()}" if body else ""


@dataclass(frozen=True, slots=True)
class _Messages:
    """Messages of one schema: whole, and without their headers."""

    decoder: AvroDecoder
    bodies: Sequence[bytes]
    data: Sequence[bytes]
    addresses: Int64s

    def records(self, misfits: Sequence[Misfit]) -> Records:
        """Return the decoded messages; each that cannot be decoded is a bad row, with its bytes."""
        self.decoder.misfits.extend(misfits)
        for start in range(0, len(self.data), _ROWS_AT_ONCE):
            self._take(start, min(len(self.data), start + _ROWS_AT_ONCE))
        return self.decoder.records()

    def _take(self, start: int, limit: int) -> None:
        schema, read = self.decoder.schema, require_fastavro().schemaless_reader
        rows: list[Any] = []
        places: list[int] = []
        for place in range(start, limit):
            try:
                rows.append(_read(self.data[place], schema, read))
                places.append(place)
            except CorruptionError as error:
                self._add_bad(place, error.sentence)
            except Exception as error:  # noqa: BLE001 - bytes that make a library fail are bad
                self._add_bad(place, f"the message cannot be decoded: {type(error).__name__}")

        def some(low: int, high: int) -> None:
            array: Any = pa.array(rows[low:high], schema.raw)
            self.decoder.take([array], self.addresses[np.array(places[low:high], np.int64)])

        _, failed = do_without_bad_rows(len(rows), some)
        for row, name in failed.items():
            self._add_bad(places[row], f"the message cannot be decoded: {name}")

    def _add_bad(self, place: int, why: str) -> None:
        address, text = int(self.addresses[place]), shown_bytes(self.bodies[place])
        self.decoder.misfits.append(Misfit(address, why, text))


def _read(data: bytes, schema: AvroSchema, read: Any) -> Any:
    stream = io.BytesIO(data)
    row = read(stream, schema.plain)
    if stream.tell() != len(data):
        left = len(data) - stream.tell()
        raise CorruptionError(f"the message cannot be decoded: {left:,} bytes follow its record")
    return row
