"""Decoding of text and bytes: each line, or each message, is a row with one column. Pure.

A line loses its line end (LF or CRLF) and nothing else. Blank lines are no rows, as in the other
formats of lines. With the format ``bytes``, a message of a source without files stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from tidelog.collection.formats.lines import Int64s, are_text, split_records
from tidelog.collection.formats.records import Misfit, Records, shown, texts_of
from tidelog.errors import UsageError

TEXT_FORMAT: Final = "text"
LINE: Final = "line"  # The name of the column, unless the user names another one.
TEXT_COLUMNS: Final = pa.schema([(LINE, pa.string())])
BYTES_FORMAT: Final = "bytes"
BYTES_COLUMNS: Final = pa.schema([("body", pa.binary())])
NOT_UTF8: Final = "the line is not UTF-8"
_MARK: Final = b"\xef\xbb\xbf"  # Some editors write it at the beginning of a UTF-8 file.


def check_text_columns(columns: pa.Schema) -> None:
    """Check the columns of a source of text.

    Raises:
        UsageError: they are not one column of text.
    """
    if len(columns) != 1 or not pa.types.is_string(columns.field(0).type):
        raise UsageError(
            "a source with format='text' has one column of text, with the lines: pass "
            f"schema='{LINE} varchar', with any name, or remove schema="
        )


def check_bytes_columns(columns: pa.Schema) -> None:
    """Check the columns of a source of bytes.

    Raises:
        UsageError: they are not one column of bytes.
    """
    if len(columns) != 1 or not pa.types.is_binary(columns.field(0).type):
        raise UsageError(
            "a source with format='bytes' has one column of bytes, with the messages: pass "
            f"schema='{BYTES_COLUMNS.names[0]} blob', with any name, or remove schema="
        )


def decode_bytes(bodies: Sequence[bytes | None], offsets: Int64s, wanted: pa.Schema) -> Records:
    """Return messages as they are; a message without a body has a null."""
    return Records(
        pa.table({wanted.names[0]: pa.array(bodies, pa.binary())}),
        offsets,
        lambda some: texts_of([shown(bodies[row] or b"") for row in some.tolist()]),
    )


def decode_text(data: bytes, wanted: pa.Schema, *, base: int) -> Records:
    """Return the lines of a range that starts at offset ``base`` of its file."""
    begin = len(_MARK) if base == 0 and data.startswith(_MARK) else 0
    body = data[begin:]
    starts, ends = split_records(body)
    good = are_text(body, ends) if len(starts) else np.zeros(0, np.bool_)
    rows = np.flatnonzero(good)

    def line(row: int) -> bytes:
        return body[starts[row] : ends[row]].removesuffix(b"\n").removesuffix(b"\r")

    texts = pa.array([line(row).decode() for row in rows.tolist()], pa.string())
    table = pa.table({wanted.names[0]: texts})
    return Records(
        table,
        base + begin + starts[rows],
        lambda some: texts_of([shown(line(row)) for row in rows[some].tolist()]),
        [
            Misfit(base + begin + int(starts[row]), NOT_UTF8, shown(line(row)))
            for row in np.flatnonzero(~good).tolist()
        ],
    )
