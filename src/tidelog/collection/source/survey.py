"""Surveys of pieces of files: each is read once, summed and examined, in any process.

Source: design page 6, "Who reads what".
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from tidelog.collection.formats.avro.container import AVRO_FORMAT
from tidelog.collection.formats.csv.decode import header_of
from tidelog.collection.formats.lines import WHITE
from tidelog.collection.formats.packed.packed import BINARY_FORMATS, decode_packed, is_packed
from tidelog.collection.formats.parquet import footer_bytes, group_span, groups_between, read_footer
from tidelog.collection.source.binding import FileRange, are_blocks, covering, sum_of
from tidelog.collection.source.decoded_cache import KeepRows
from tidelog.collection.source.fetch import READ_ON_BYTES, OpenedFile, read_footer_of
from tidelog.collection.source.survey_avro import survey_blocks
from tidelog.collection.source.survey_facts import (
    CHANGED,
    SHORTER,
    TORN,
    TORN_ARRAY,
    WENT,
    FileCandidate,
    Keep,
    SurveyFacts,
    SurveyPiece,
    array_and_more,
)
from tidelog.collection.source.survey_packed import (
    OpenTexts,
    check_packed,
    read_any_text,
    survey_packed,
)
from tidelog.collection.source.survey_result import (
    ReadGroups,
    SurveyJob,
    check_columns,
    check_header,
    check_text,
    end_of_groups,
    has_record_end,
    look_at_groups,
    look_at_text,
)
from tidelog.core.clock import Clock
from tidelog.errors import (
    CorruptionError,
    GoneError,
    SourceRewritten,
    TidelogError,
    unforeseen,
)

CHECKED_BYTES: Final = 4_096


async def survey_piece(
    piece: SurveyPiece,
    job: SurveyJob,
    file: OpenedFile,
    *,
    clock: Clock,
    texts: OpenTexts,
    keep: Keep | None = None,
    keep_rows: KeepRows | None = None,
) -> SurveyFacts:
    """Survey a piece of a file. If the file must wait, the result has the reason.

    A fault of one file must not stop the others. So it is a reason to wait, not an error; the
    reason `CHANGED` means that bytes bound before have changed.

    Raises:
        LocationError: the store failed.
    """
    asked = piece.candidate
    try:
        if asked.checked and job.is_versioned:
            # The file is opened in the bound version, so this read fails if the version has
            # changed. It succeeds if only the listing is older than the binding.
            await file.get(0, 1)
            return SurveyFacts()
        if job.source.format in BINARY_FORMATS:
            return await _survey_binary(piece, job, file, clock=clock, keep=keep)
        if is_packed(asked.path, job.source.format):
            return await survey_packed(
                piece, job, file, clock=clock, keep=keep, keep_rows=keep_rows, texts=texts
            )
        if asked.checked and asked.before is not None and piece.is_first:
            await _check_unchanged(asked.before, file)
            if asked.start >= asked.limit:
                return SurveyFacts()
        return await _survey_text(piece, job, file, clock=clock, keep=keep, keep_rows=keep_rows)
    except GoneError:
        # Committed rows stay. Bound ranges are not surveyed again: a tick reads them.
        return SurveyFacts(waits=WENT)
    except SourceRewritten:
        return SurveyFacts(waits=CHANGED)
    except CorruptionError as error:
        # Another process may still be writing or moving the file. A later survey reads it again.
        return SurveyFacts(waits=error.sentence)
    except (TidelogError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - one file must not stop the others
        return SurveyFacts(waits=unforeseen(error, f"offset {piece.low}").sentence)


async def _survey_text(
    piece: SurveyPiece,
    job: SurveyJob,
    file: OpenedFile,
    *,
    clock: Clock,
    keep: Keep | None,
    keep_rows: KeepRows | None,
) -> SurveyFacts:
    asked = piece.candidate
    header = asked.before.header if asked.before is not None else b""
    needs_header = asked.before is None and job.source.dialect is not None
    if needs_header and (piece.low > 0 or job.is_light(asked.path)):
        header = await _read_header(asked, job, file)
    if job.is_light(asked.path):
        return SurveyFacts(limit=asked.limit, header=header)
    data = await file.get(piece.low, piece.high)
    if len(data) < piece.high - piece.low:
        return SurveyFacts(waits=SHORTER)
    if piece.is_last or job.is_timed:
        data = await _read_on(data, piece, job, file)
    if keep is not None:
        keep(asked.path, piece.low, data)
    lead = await _read_back(data, piece, job, file)
    found = await clock.offload(
        partial(look_at_text, data, piece, job, header=header, lead=lead, keep_rows=keep_rows)
    )
    if found.torn == TORN_ARRAY and piece.low:
        return msgspec.structs.replace(found, torn=await _why_array_waits(piece.low, file))
    return found


async def _why_array_waits(start: int, file: OpenedFile) -> str:
    """Return why the text from ``start`` waits: the array is not closed, or text follows it.

    ``start`` is after the last bound element. If the bytes before it end with the array's bracket,
    the array is closed.
    """
    low = max(0, start - READ_ON_BYTES)
    taken = (await file.get(low, start)).rstrip(WHITE)
    return array_and_more(low + len(taken)) if taken.endswith(b"]") else TORN_ARRAY


async def _read_on(data: bytes, piece: SurveyPiece, job: SurveyJob, file: OpenedFile) -> bytes:
    """Return a piece's bytes, and the bytes after it up to the end of its last record."""
    size, more = piece.candidate.size_bytes, READ_ON_BYTES
    looked = piece.high - piece.low - piece.is_last
    while piece.low + len(data) < size:
        if has_record_end(data, looked + 1, piece.low, job.source, before=piece.candidate.before):
            break
        looked = len(data)
        at = piece.low + len(data)
        next_ = await file.get(at, min(size, at + more))
        if not next_:
            break
        data, more = data + next_, more * 4
    return data


async def _read_back(
    data: bytes, piece: SurveyPiece, job: SurveyJob, file: OpenedFile
) -> bytes | None:
    """Return the beginning of a last json record if it is in earlier pieces; else None.

    With it, `look_at_text` can tell whether a last record without a line end is whole.
    """
    asked, low = piece.candidate, piece.low
    at_end = piece.is_last and low + len(data) >= asked.size_bytes
    if not at_end or piece.is_first or job.source.dialect is not None or b"\n" in data:
        return None
    lead, more = b"", READ_ON_BYTES
    while low > asked.start and b"\n" not in lead:
        start = max(asked.start, low - more)
        lead = await file.get(start, low) + lead
        low, more = start, more * 4
    return lead[lead.rfind(b"\n") + 1 :]


async def _read_header(asked: FileCandidate, job: SurveyJob, file: OpenedFile) -> bytes:
    """Return the checked header line of a csv file; b"" if the files have no header.

    Raises:
        HeaderDiffers: the header lacks most of the source's columns.
        CorruptionError: the header has no line end yet.
    """
    dialect = job.source.dialect
    if dialect is None or not dialect.has_header:
        return b""
    wanted = READ_ON_BYTES
    while True:
        data = await file.get(0, min(wanted, asked.size_bytes))
        found = header_of(data, dialect)
        check_text(data, job.source)
        if found is None and wanted >= asked.size_bytes:
            if not job.is_final:
                raise CorruptionError(TORN)
            found = data
        if found is not None:
            check_header(found, job.data_schema, dialect, path=asked.path)
            return found
        wanted *= 4


async def is_unchanged(before: FileRange, file: OpenedFile, *, format: str) -> bool:
    """Return True if a file has the bytes of a range; the caller has compared the beginnings.

    Raises:
        GoneError: the file no longer exists. LocationError: the store failed.
    """
    packed = decode_packed(before.packed)
    try:
        if packed is not None:
            await check_packed(before, packed, file)
        elif format != "parquet":
            await _check_unchanged(before, file)
    except SourceRewritten:
        return False
    return True


async def has_text_of(before: FileRange, file: OpenedFile, *, format: str, clock: Clock) -> bool:
    """Return True if a file has the text of a range; either file, or both, may be compressed.

    Raises:
        GoneError: the file no longer exists. LocationError: the store failed.
    """
    span = _last_blocks(before)
    try:
        last = await read_any_text(file, span, format=format, clock=clock)
    except CorruptionError:
        return False
    return len(last) == span[1] - span[0] and are_blocks(
        last, span[0], start=before.start, sums=before.sums, block_bytes=before.block_bytes
    )


def _last_blocks(before: FileRange) -> tuple[int, int]:
    """Return the bounds of the blocks with the last 4 KiB of a range.

    The last block alone may have only a few bytes, and prove too little.
    """
    low = max(before.start, min(before.limit - 1, before.limit - CHECKED_BYTES))
    return covering(before.start, before.limit, low, before.limit, before.block_bytes)


async def _check_unchanged(before: FileRange, file: OpenedFile) -> None:
    """Check that a new version of a file still has the bytes bound before.

    Only its first record and the last one or two bound blocks are read again. So the check of a
    file that grew has a fixed cost.

    Raises:
        SourceRewritten: the bytes differ.
    """
    head = await file.get(0, before.head_bytes)
    low, high = _last_blocks(before)
    last = await file.get(low, high)
    same = len(last) == high - low and are_blocks(
        last, low, start=before.start, sums=before.sums, block_bytes=before.block_bytes
    )
    if not same or sum_of(head) != before.head:
        raise file.rewritten()


async def _survey_binary(
    piece: SurveyPiece, job: SurveyJob, file: OpenedFile, *, clock: Clock, keep: Keep | None
) -> SurveyFacts:
    asked = piece.candidate
    if job.source.format != AVRO_FORMAT:
        return await _survey_groups(piece, job, file, clock=clock, keep=keep)
    if asked.checked and asked.before is not None and piece.is_first:
        await _check_unchanged(asked.before, file)
    return await survey_blocks(piece, job, file, clock=clock, keep=keep)


async def _survey_groups(
    piece: SurveyPiece, job: SurveyJob, file: OpenedFile, *, clock: Clock, keep: Keep | None
) -> SurveyFacts:
    asked, before = piece.candidate, piece.candidate.before
    size = asked.size_bytes
    footer = await read_footer_of(
        file, size, known_bytes=before.head_bytes if before is not None else 0
    )
    # A parquet file is written once, so one with another footer is another file.
    if before is not None and (before.size_bytes != size or sum_of(footer) != before.head):
        raise file.rewritten()
    footer_bytes(footer[-8:])
    metadata = read_footer(footer)
    if before is None and metadata.num_rows:
        check_columns(metadata.schema.to_arrow_schema().names, job, path=asked.path)
    if asked.start >= asked.limit:
        return SurveyFacts()
    if job.is_light(asked.path):
        return SurveyFacts(limit=asked.limit, head=sum_of(footer), head_bytes=len(footer))
    first, last = groups_between(metadata, *piece.window)
    start, limit = group_span(metadata, first, last)
    if not job.is_timed:
        start, limit = piece.low, piece.low
    if not job.is_versioned:
        end = end_of_groups(metadata, piece) if piece.is_last else piece.high
        start, limit = piece.low, max(piece.high, end, limit)
    data = await file.get(start, limit)
    if len(data) < limit - start:
        return SurveyFacts(waits=SHORTER)
    if keep is not None:
        keep(asked.path, start, data)
        keep(asked.path, size - len(footer), footer)
    return await clock.offload(
        partial(look_at_groups, ReadGroups(data, start, footer, metadata), piece, job)
    )
