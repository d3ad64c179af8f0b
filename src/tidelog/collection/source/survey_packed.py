"""Surveys and reads of compressed files.

A file is copied to this machine unchanged, and decompressed here in pieces. A survey of a new file
decompresses all of it, since only its end proves that it is not damaged. Bindings then use one
range of its text after another. A read of a range begins to decompress at the start of a member,
so it decompresses some text before the range too.
"""

from __future__ import annotations

import tempfile
from collections.abc import MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import BinaryIO, Final, cast

import msgspec

from tidelog.collection.formats.json.arrays import ARRAY_FORMAT
from tidelog.collection.formats.packed.packed import (
    PackedRange,
    codec_of,
    decode_packed,
    is_packed,
)
from tidelog.collection.formats.packed.text import TORN_MEMBER, Extent, PackedText
from tidelog.collection.source.binding import FileRange, are_blocks, sum_of
from tidelog.collection.source.decoded_cache import KeepRows
from tidelog.collection.source.fetch import OpenedFile
from tidelog.collection.source.survey_facts import SHORTER, Keep, SurveyFacts, SurveyPiece
from tidelog.collection.source.survey_result import (
    HEAD_BYTES,
    SurveyJob,
    has_record_end,
    look_at_text,
)
from tidelog.core.clock import Clock
from tidelog.errors import CorruptionError, SourceRewritten
from tidelog.store.keys import is_version

COPIED_BYTES: Final = 8 * 1024 * 1024
IN_MEMORY_BYTES: Final = 32 * 1024 * 1024
TAIL_BYTES: Final = 64 * 1024
FREE_RAW_BYTES: Final = 2**62


@dataclass(slots=True, kw_only=True)
class OpenText:
    """The open text of one version of a file, with which the next survey can continue."""

    e_tag: str
    raw: BinaryIO
    raw_from: int
    text: PackedText

    def __del__(self) -> None:
        self.raw.close()  # There may be no next survey.


OpenTexts = MutableMapping[str, OpenText]  # By path.


async def survey_packed(
    piece: SurveyPiece,
    job: SurveyJob,
    file: OpenedFile,
    *,
    clock: Clock,
    keep: Keep | None,
    keep_rows: KeepRows | None,
    texts: OpenTexts,
) -> SurveyFacts:
    """Survey a compressed file. If its new bytes are damaged, they wait, with the damage as reason.

    Raises:
        SourceRewritten: the bytes bound before have changed. GoneError: the file no longer exists.
        LocationError: the store failed.
    """
    asked, before = piece.candidate, piece.candidate.before
    known = decode_packed(before.packed) if before is not None else None
    if asked.checked and before is not None and known is not None:
        await check_packed(before, known, file)
    opened = texts.pop(asked.path, None)
    with ExitStack() as stack:
        if opened is not None:
            stack.enter_context(opened.raw)
        if opened is None or opened.e_tag != asked.e_tag or opened.text.first > asked.start:
            at, text_at = (known.raw_at, known.text_at) if known is not None else (0, 0)
            raw = stack.enter_context(_copy())
            if not await _fill(raw, file, at, asked.size_bytes):
                return SurveyFacts(waits=SHORTER, packed=known or PackedRange())
            text = PackedText(raw, codec_of(asked.path) or "gzip", at=at, text_at=text_at)
            opened = OpenText(e_tag=asked.e_tag, raw=raw, raw_from=at, text=text)
        one = _Survey(piece, job, known, opened, keep_rows)
        try:
            data, told = await clock.offload(one.look)
        except SourceRewritten:
            raise
        except CorruptionError as error:
            return SurveyFacts(waits=error.sentence, packed=known or PackedRange())
        if keep is not None:
            keep(asked.path, asked.start, data)
        if one.goes_on:
            texts[asked.path] = opened
            stack.pop_all()
    return told


@dataclass(slots=True)
class _Survey:
    """The survey of one compressed file whose bytes are copied."""

    piece: SurveyPiece
    job: SurveyJob
    known: PackedRange | None
    opened: OpenText
    keep_rows: KeepRows | None = None
    goes_on: bool = False

    def look(self) -> tuple[bytes, SurveyFacts]:
        """Return the surveyed text, and the result.

        Raises:
            CorruptionError: the file is damaged, or is not text of the source's format.
            HeaderDiffers: the header lacks most of the source's columns.
        """
        asked, text = self.piece.candidate, self.opened.text
        size, source = asked.limit - asked.start, self.job.source
        data = text.get(
            asked.start,
            size,
            lambda some: has_record_end(some, size, asked.start, source, before=asked.before),
        )
        raw_limit = text.raw_at
        extent = self._extent()
        data = data[: max(0, extent.text_bytes - asked.start)]
        packed = self._packed(extent, raw_limit)
        limit = min(asked.limit, extent.text_bytes)
        if limit <= asked.start:
            return data, SurveyFacts(waits=TORN_MEMBER if extent.torn else None, packed=packed)
        # A torn file has more text after its whole members, and the last line may continue there.
        # So the size counts one byte more than the whole text.
        size = extent.text_bytes + extent.torn
        of_text = msgspec.structs.replace(asked, limit=limit, size_bytes=size)
        piece = SurveyPiece(candidate=of_text, low=asked.start, high=limit)
        before = asked.before
        header = before.header if before is not None else b""
        found = look_at_text(data, piece, self.job, header=header, keep_rows=self.keep_rows)
        head = self._raw(0, min(HEAD_BYTES, extent.whole_bytes)) if before is None else b""
        # A record that does not end within the limit was searched for to the end of the whole text.
        sees_all = limit == extent.text_bytes or (
            found.limit is None and asked.start + len(data) == extent.text_bytes
        )
        torn = TORN_MEMBER if extent.torn and sees_all else ""
        if before is None:
            packed = msgspec.structs.replace(
                packed, text_head=found.head, text_head_bytes=found.head_bytes
            )
        return data, msgspec.structs.replace(
            found, packed=packed, torn=torn or found.torn, head=sum_of(head), head_bytes=len(head)
        )

    def _extent(self) -> Extent:
        """Return how much of the file is whole; decompress it to its end unless that is known."""
        asked, known, before = self.piece.candidate, self.known, self.piece.candidate.before
        is_same = before is not None and is_version(asked.e_tag, before.e_tag)
        if known is None or before is None or before.unread or not is_same:
            return self.opened.text.measure(by_lines=self.job.source.format != ARRAY_FORMAT)
        self.goes_on = asked.limit < known.text_bytes
        return Extent(known.whole_bytes, known.text_bytes, known.whole_bytes < asked.size_bytes)

    def _packed(self, extent: Extent, raw_limit: int) -> PackedRange:
        known, whole = self.known, extent.whole_bytes
        member = self.opened.text.member
        if known is not None and known.whole_bytes == whole:
            tail, tail_bytes = known.tail, known.tail_bytes
        else:
            first = max(self.opened.raw_from, whole - TAIL_BYTES)
            tail, tail_bytes = sum_of(self._raw(first, whole)), whole - first
        head = (known.text_head, known.text_head_bytes) if known is not None else (b"", 0)
        return PackedRange(whole, extent.text_bytes, tail, tail_bytes, *member, raw_limit, *head)

    def _raw(self, start: int, limit: int) -> bytes:
        self.opened.raw.seek(start - self.opened.raw_from)
        return self.opened.raw.read(limit - start)


async def read_packed(file: OpenedFile, found: FileRange, *, clock: Clock) -> bytes:
    """Return the text of a bound range.

    Raises:
        SourceRewritten: the text is not the bound one. GoneError: the file no longer exists.
    """
    packed = decode_packed(found.packed) or PackedRange()

    def text_of(raw: BinaryIO) -> bytes:
        text = PackedText(
            raw, codec_of(found.path) or "gzip", at=packed.raw_at, text_at=packed.text_at
        )
        data = text.get(found.start, found.limit - found.start)[: found.limit - found.start]
        proven = not found.is_summed or are_blocks(
            data, found.start, start=found.start, sums=found.sums, block_bytes=found.block_bytes
        )
        if not proven or len(data) < found.limit - found.start:
            raise file.rewritten()
        return data

    with _copy() as raw:
        if not await _fill(raw, file, packed.raw_at, packed.raw_limit):
            raise file.rewritten()
        try:
            return await clock.offload(lambda: text_of(raw))
        except SourceRewritten:
            raise
        except CorruptionError as error:
            raise file.rewritten() from error


async def check_packed(before: FileRange, known: PackedRange, file: OpenedFile) -> None:
    """Check that a new version of a file still has the bytes bound before: its head and tail.

    Raises:
        SourceRewritten: the bytes differ.
    """
    head = await file.get(0, before.head_bytes)
    tail = await file.get(known.whole_bytes - known.tail_bytes, known.whole_bytes)
    if sum_of(head) != before.head or sum_of(tail) != known.tail:
        raise file.rewritten()


async def read_any_text(
    file: OpenedFile, span: tuple[int, int], *, format: str, clock: Clock
) -> bytes:
    """Return a span of a file's text, decompressed if the file is compressed.

    The result is shorter if the text ends before the span does.

    Raises:
        GoneError: the file no longer exists.
        CorruptionError: the file is damaged before the span's end.
    """
    if not is_packed(file.path, format):
        return await file.get(*span)
    [text] = await read_text(file, [span], clock=clock)
    return text


async def read_text(
    file: OpenedFile,
    spans: Sequence[tuple[int, int]],
    *,
    clock: Clock,
    limit: int = FREE_RAW_BYTES,
) -> list[bytes]:
    """Return spans of a compressed file's text, in the order of their starts.

    A span is shorter if the text ends before it does. ``limit`` bounds the bytes of the file that
    are read.

    Raises:
        GoneError: the file no longer exists.
        CorruptionError: the file is damaged before the last span's end.
    """

    def cut(raw: BinaryIO) -> list[bytes]:
        text = PackedText(raw, codec_of(file.path) or "gzip", at=0, text_at=0)
        return [text.get(low, high - low)[: high - low] for low, high in spans]

    with _copy() as raw:
        await _fill(raw, file, 0, limit)
        return await clock.offload(lambda: cut(raw))


def _copy() -> BinaryIO:
    """Return a temporary file for a copy: in memory, or on disk above `IN_MEMORY_BYTES`."""
    found = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES)  # noqa: SIM115 - its users do
    return cast("BinaryIO", found)  # It has the methods, but not the declared type.


async def _fill(raw: BinaryIO, file: OpenedFile, start: int, limit: int) -> bool:
    """Copy the bytes ``[start, limit)`` of a file; return False if the file ends before."""
    for at in range(start, limit, COPIED_BYTES):
        wanted = min(COPIED_BYTES, limit - at)
        data = await file.get(at, at + wanted)
        raw.write(data)
        if len(data) < wanted:
            return False
    return True
