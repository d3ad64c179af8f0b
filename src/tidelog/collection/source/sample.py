"""Samples: the beginning of a text file, decompressed if the file is compressed."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Final

from tidelog.collection.formats.json.arrays import (
    ARRAY_FORMAT,
    array_end,
    array_lines,
    array_mark,
)
from tidelog.collection.formats.lines import record_ends
from tidelog.collection.formats.packed.inflate import READ_BYTES, open_inflater
from tidelog.collection.formats.packed.packed import codec_of
from tidelog.errors import CorruptionError
from tidelog.store.port import Entry, Store

FILE_BYTES_MAX: Final = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileSample:
    """The beginning of a file's text; ``why`` is the reason if none of it can be read."""

    text: bytes
    is_cut: bool
    why: str | None = None

    @property
    def is_array(self) -> bool:
        """Return True if the text is a json array."""
        return bool(array_mark(self.text))

    def lines(self, format: str) -> bytes:
        """Return the json records as lines, without a last one that the sample cuts off."""
        text = self.text
        if format == ARRAY_FORMAT and self.is_array:
            end = array_end(text, inside=False)  # Text after the array is not an element.
            text = array_lines(text, inside=False)[:end]
        ends = record_ends(text)
        return text[: int(ends[-1])] if self.is_cut and len(ends) else text


async def read_sample(entry: Entry, store: Store) -> FileSample:
    """Read the beginning of a file: at most 2 MiB of its bytes, and 2 MiB of its text.

    Raises:
        LocationError: the store failed.
    """
    data = (await store.get(entry.key, limit=FILE_BYTES_MAX)).data
    codec = codec_of(entry.key)
    if codec is None:
        return FileSample(data, len(data) >= FILE_BYTES_MAX)
    inflater = open_inflater(io.BytesIO(data), codec, at=0, text_at=0)
    text, why = b"", None
    try:
        while len(text) < FILE_BYTES_MAX and (more := inflater.read(READ_BYTES)):
            text += more
    except CorruptionError as error:
        why = error.sentence
    is_cut = why is not None or inflater.torn or len(text) >= FILE_BYTES_MAX
    why = None if text else why or "it has no complete part"
    return FileSample(text, is_cut or len(data) < entry.size_bytes, why)
