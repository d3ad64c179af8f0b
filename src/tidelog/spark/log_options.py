"""The options of ``format("tidelog")`` with ``kind`` ``log``, parsed once. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.arguments import DIGITS_MAX
from tidelog.errors import UsageError
from tidelog.spark.options import location_told, told_options
from tidelog.wal.format.key_set import check_key
from tidelog.wal.read.bounds import check_range

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What is to be read of a log.

    Shape: ``start`` is a position, 0 for the oldest that is left; ``from_latest`` wins over it.
        ``limit`` is the position before which a batch read ends; ``key`` is that of the records to
        be read, None for all; ``batch_records_max`` is of streams.
    """

    location_url: str
    name: str
    start: int = 0
    from_latest: bool = False
    limit: int | None = None
    key: bytes | None = None
    batch_records_max: int | None = None


def read_log_settings(options: Mapping[str, str], environment: Mapping[str, str]) -> LogSettings:
    """Read the options of a log, of ``spark.read`` and ``spark.readStream`` alike.

    Raises:
        UnknownOption, OptionMissing, UsageError: what to correct.
    """
    told = told_options(options, kind="log")
    said = told.get("start", EARLIEST).strip().lower()
    start = 0 if said in (EARLIEST, LATEST) else start_told(said)
    limit = whole_told("limit", told["limit"], least=0) if "limit" in told else None
    check_range(start, limit)
    return LogSettings(
        location_url=location_told(told, environment),
        name=told["path"],
        start=start,
        from_latest=said == LATEST,
        limit=limit,
        key=_key(told["key"]) if "key" in told else None,
        batch_records_max=whole_told("maxRecordsPerBatch", told["maxrecordsperbatch"], least=1)
        if "maxrecordsperbatch" in told
        else None,
    )


def check_for_batch(settings: LogSettings) -> None:
    """Refuse what only a stream can do.

    Raises:
        UsageError: so it is.
    """
    if settings.from_latest:
        raise UsageError("start 'latest' is one for readStream: a read starts at what there is")
    if settings.batch_records_max is not None:
        raise UsageError("maxRecordsPerBatch is one for readStream: a read has the option 'limit'")


def check_for_stream(settings: LogSettings) -> None:
    """Refuse what only a batch read can do.

    Raises:
        UsageError: so it is.
    """
    if settings.limit is not None:
        raise UsageError("a stream has no end, so it has no option 'limit': use spark.read")


def _key(text: str) -> bytes:
    """Return the bytes of a text, which a key is that can be asked for here."""
    try:
        key = text.encode()
    except UnicodeEncodeError:
        raise UsageError("the option 'key' is a text, and this has half a character") from None
    check_key(key)
    return key


def start_told(text: str, *, of: str = "a position") -> int:
    """Return where to start, as an option says it.

    Raises:
        UsageError: it is no such number.
    """
    try:
        return whole_told("start", text, least=0)
    except UsageError:
        raise UsageError(
            f"start {text[:DIGITS_MAX]!r} is neither {of} (they count from 1) nor "
            f"{EARLIEST} or {LATEST}"
        ) from None


def whole_told(name: str, text: str, *, least: int) -> int:
    """Return a whole number, as an option says it.

    Raises:
        UsageError: it is none, or too small, or too large.
    """
    is_number = text.strip().isdecimal() and len(text) <= DIGITS_MAX
    found = int(text) if is_number else -1
    if not least <= found < 2**63:
        raise UsageError(
            f"the option {name!r} is a whole number from {least} on", given=text[:DIGITS_MAX]
        )
    return found
