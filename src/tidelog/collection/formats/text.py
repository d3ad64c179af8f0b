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
# The columns of the formats that decode nothing, unless the user names them otherwise.
ONE_COLUMN: Final = {TEXT_FORMAT: TEXT_COLUMNS, BYTES_FORMAT: pa.schema([("body", pa.binary())])}
_WORDS: Final = {
    TEXT_FORMAT: ("text", "lines", "varchar"),
    BYTES_FORMAT: ("bytes", "messages", "blob"),
}
NOT_UTF8: Final = "the line is not UTF-8"
_MARK: Final = b"\xef\xbb\xbf"  # Some editors write it at the beginning of a UTF-8 file.


def check_one_column(columns: pa.Schema, format: str) -> None:
    """Check the columns of a source of text, or of bytes.

    Raises:
        UsageError: they are not one column of the format's type.
    """
    (own,) = ONE_COLUMN[format]
    if len(columns) != 1 or columns.field(0).type != own.type:
        kind, parts, sql = _WORDS[format]
        raise UsageError(
            f"a source with format={format!r} has one column of {kind}, with the {parts}: pass "
            f"schema='{own.name} {sql}', with any name, or remove schema="
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
