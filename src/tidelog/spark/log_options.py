"""The options of ``format("tidelog")`` with ``kind`` ``log``, parsed once. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.core.arguments import DIGITS_MAX
from tidelog.errors import UsageError
from tidelog.spark.options import location_told, told_options, whole_told
from tidelog.wal.format.fragment_sets import check_key
from tidelog.wal.read.bounds import check_range

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The settings of a read of a log.

    Shape: ``start`` is a position; 0 means the oldest one. ``from_latest`` overrides it. A batch
        read ends before the position ``limit``. ``key`` selects the records with this key; None
        selects all. ``batch_records_max`` applies to streams.
    """

    location_url: str
    name: str
    start: int = 0
    from_latest: bool = False
    limit: int | None = None
    key: bytes | None = None
    batch_records_max: int | None = None


def read_log_settings(options: Mapping[str, str], environment: Mapping[str, str]) -> LogSettings:
    """Parse the options of a log, for ``spark.read`` and ``spark.readStream``.

    Raises:
        UnknownOption, OptionMissing, UsageError: an option is wrong; the message names it.
    """
    values = told_options(options, kind="log")
    said = start_word(values)
    start = 0 if said in (EARLIEST, LATEST) else start_told(said)
    limit = whole_told("limit", values["limit"], least=0) if "limit" in values else None
    check_range(start, limit)
    return LogSettings(
        location_url=location_told(values, environment),
        name=values["path"],
        start=start,
        from_latest=said == LATEST,
        limit=limit,
        key=_key(values["key"]) if "key" in values else None,
        batch_records_max=whole_told("maxRecordsPerBatch", values["maxrecordsperbatch"], least=1)
        if "maxrecordsperbatch" in values
        else None,
    )


def check_for_batch(settings: LogSettings) -> None:
    """Check that no setting applies only to a stream.

    Raises:
        UsageError: one does.
    """
    if settings.from_latest:
        raise UsageError("start 'next' needs readStream: remove the option to read all records")
    if settings.batch_records_max is not None:
        raise UsageError("maxRecordsPerBatch needs readStream: use the option 'limit' to read less")


def check_for_stream(settings: LogSettings) -> None:
    """Check that no setting applies only to a batch read.

    Raises:
        UsageError: one does.
    """
    if settings.limit is not None:
        raise UsageError("a stream has no end, so it has no option 'limit': use spark.read instead")


def _key(text: str) -> bytes:
    """Return the bytes of the option ``key``, checked to be a valid key."""
    try:
        key = text.encode()
    except UnicodeEncodeError:
        raise UsageError(
            "the option 'key' must be text, but has a lone surrogate (half of a UTF-16 pair): "
            "remove it"
        ) from None
    check_key(key)
    return key


def start_word(told: Mapping[str, str]) -> str:
    """Return the option ``start`` in Spark's words; it may also have the words of the commands."""
    said = told.get("start", EARLIEST).strip().lower()
    return {"oldest": EARLIEST, "next": LATEST}.get(said, said)


def start_told(text: str, *, of: str = "a position") -> int:
    """Parse the option ``start``.

    Raises:
        UsageError: it is not a number of records.
    """
    try:
        return whole_told("start", text, least=0)
    except UsageError:
        raise UsageError(
            f"start must be {of} (from 1), oldest or next, not {text[:DIGITS_MAX]!r}"
        ) from None
