"""The options of ``format("tidelog")``, parsed once. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from tidelog.collection.formats.times import is_relative, parse_duration_ms, parse_time
from tidelog.core.arguments import DIGITS_MAX, joined_names, quoted, split_names
from tidelog.errors import TidelogError, UsageError

KIND: Final = "kind"
_LOCATION: Final = ("all", "URL of the location; default: `TIDELOG_LOCATION`")
_KIND: Final = ("all", "`collection` (the default), `changes`, `log` or `keyed`")
_WHERE: Final = ("read", "condition on rows, in DuckDB's dialect; skips parts and row groups")
_COLUMNS: Final = ("read", "columns to read, separated by commas; default: all")
_HOLD: Final = ("read", "duration for which the DataFrame stays readable, such as `6h`")
_BOTH: Final = "read, readStream"
STREAM_HOLD_MS: Final = 7 * 24 * 3_600_000
NO_HOLD: Final = "none"
CHECKPOINT_HOLD: Final = "checkpointHold"
_TXN_APP: Final = ("write", "name of a writer; with `txnVersion`, a batch is written once")
_TXN_VERSION: Final = ("write", "number of the batch; it rises with each batch of the writer")
OF_TABLE_WRITES: Final = ("operation", "txnAppId", "txnVersion")
SINK_BYTES_MAX: Final = 1_024
_BATCH: Final = ("readStream", "greatest number of records in a micro-batch")
# The options of each kind; for each option, the methods that accept it and its meaning.
OPTIONS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "collection": {
        "location": _LOCATION,
        "asOf": (
            "read",
            "time to read; default: the newest complete time. Also `timestampAsOf`",
        ),
        "columns": _COLUMNS,
        "where": _WHERE,
        "hold": _HOLD,
        "operation": (
            "write",
            "`insert` (the default); by the key of a table: `upsert` or `delete`",
        ),
        "txnAppId": _TXN_APP,
        "txnVersion": _TXN_VERSION,
        KIND: _KIND,
    },
    "changes": {
        "location": _LOCATION,
        "since": (
            _BOTH,
            "changes after this time (exclusive); a stream needs none. Also `startingTimestamp`",
        ),
        "until": (
            "read",
            "last time (inclusive); default: the newest complete time. Also `endingTimestamp`",
        ),
        "columns": (_BOTH, _COLUMNS[1]),
        "where": (_BOTH, _WHERE[1]),
        "hold": _HOLD,
        CHECKPOINT_HOLD: (
            "readStream",
            "duration for which a stopped query can restart; default: `7d`. `none` for no hold",
        ),
        "changeType": (
            _BOTH,
            "`true` adds `_change_type`, as in Delta's change feed; default: `false`",
        ),
        "maxTimesPerTrigger": ("readStream", "greatest number of commits in a micro-batch"),
        "maxBytesPerTrigger": (
            "readStream",
            "bytes of the parts in a micro-batch, such as `64000000`; at least one commit",
        ),
        KIND: _KIND,
    },
    "log": {
        "location": _LOCATION,
        "start": (
            "read, readStream",
            "first position, or `oldest` (the default); streams: `next`",
        ),
        "limit": ("read", "position before which the read ends; default: the end at `load`"),
        "key": ("read, readStream", "only records with this key, a text"),
        "maxRecordsPerBatch": _BATCH,
        KIND: _KIND,
    },
    "keyed": {
        "location": _LOCATION,
        "key": ("read, readStream", "one key, as text"),
        "keyHex": ("read, readStream", "one key, in hexadecimal digits"),
        "keyBase64": ("read, readStream", "one key, in base64"),
        "prefix": ("read, readStream", "the keys with this prefix, as text"),
        "prefixHex": ("read, readStream", "the keys with this prefix, in hexadecimal digits"),
        "prefixBase64": ("read, readStream", "the keys with this prefix, in base64"),
        "start": (
            "read, readStream",
            "first sequence, or `oldest` (the default); streams: `next`",
        ),
        "limit": ("read", "sequence before which the read ends"),
        "checkpoint": ("read", "the checkpoint to read"),
        "maxRecordsPerBatch": _BATCH,
        "txnAppId": _TXN_APP,
        "txnVersion": _TXN_VERSION,
        KIND: _KIND,
    },
}
NAMED: Final = {
    "collection": "collection",
    "changes": "collection",
    "log": "log",
    "keyed": "keyed log",
}
HAVE: Final = {
    "collection": "a collection has",
    "changes": "changes have",
    "log": "a log has",
    "keyed": "a keyed log has",
}
HIDE: Final = "SPARK_HIDE_TRACEBACK"  # PySpark's handle_worker_exception reads it.
LOCATION_VARIABLE: Final = "TIDELOG_LOCATION"
STARTING: Final = "startingTimestamp"
# Options of Delta and Iceberg with the meaning of one of ours, for each kind.
SYNONYMS: Final[dict[str, dict[str, str]]] = {
    "collection": {"timestampAsOf": "asOf", "as-of-timestamp": "asOf"},
    "changes": {STARTING: "since", "endingTimestamp": "until"},
}
# Other options of Delta, Iceberg and Kafka, and those of another kind, with their counterparts.
_AS_OF: Final = "option('asOf', TIME)"
_NO_VERSIONS: Final = f"{_AS_OF}: a collection is read as of a time, it has no versions"
_SINCE: Final = "option('kind', 'changes') with option('since', TIME)"
_UNTIL: Final = "option('kind', 'changes') with option('until', TIME)"
_START: Final = "option('start', POSITION), 'oldest' or 'next'"
ELSEWHERE: Final = {
    "timestampAsOf": _AS_OF,
    "as-of-timestamp": _AS_OF,
    "versionAsOf": _NO_VERSIONS,
    "snapshot-id": _NO_VERSIONS,
    "readChangeFeed": _SINCE,
    "readChangeData": _SINCE,
    STARTING: _SINCE,
    "startingVersion": _SINCE,
    "endingTimestamp": _UNTIL,
    "endingVersion": _UNTIL,
    "startingOffsets": _START,
    "endingOffsets": "option('limit', POSITION)",
    "maxOffsetsPerTrigger": "option('maxRecordsPerBatch', N)",
    "maxFilesPerTrigger": "option('maxRecordsPerBatch', N), or for changes maxTimesPerTrigger",
}


class UnknownOption(UsageError):
    """An unknown option was given."""


class OptionMissing(UsageError):
    """A required option was not given."""


class SourceError(Exception):
    """An error in the form that Spark shows: ``[TIDELOG_KIND] sentence``, without a traceback.

    PySpark puts the traceback above the message, unless the environment of its worker hides it. The
    error sets that variable until PySpark formats it, so other code's errors keep their tracebacks.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self._hides = HIDE not in os.environ
        os.environ[HIDE] = "1"

    def __str__(self) -> str:
        if self._hides:
            os.environ.pop(HIDE, None)
        return super().__str__()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """The settings of a read of a collection.

    Shape: ``as_of`` is in milliseconds since 1970, a relative time such as ``-1h``, or None for the
        newest complete time. With ``is_changes``, the read returns the changes after ``since``, up
        to ``as_of``; a stream without ``since`` begins with the contents. ``columns`` is None for
        all. ``hold_ms`` is the time for which a hold keeps the data readable; None places no hold.
        ``has_types`` adds the kind of each change.
        ``times_max`` and ``bytes_max`` limit a micro-batch of a stream. ``checkpoint_ms`` is the
        length of the hold of its checkpoint; 0 is no hold, None the default.
    """

    location_url: str
    name: str
    as_of: int | str | None = None
    since: int | str | None = None
    columns: tuple[str, ...] | None = None
    where: str | None = None
    hold_ms: int | None = None
    is_changes: bool = False
    has_types: bool = False
    times_max: int | None = None
    bytes_max: int | None = None
    checkpoint_ms: int | None = None


def read_kind(options: Mapping[str, str]) -> str:
    """Return the kind of data to read; by default ``collection``.

    Raises:
        UsageError: the option ``kind`` has an unknown value.
    """
    values = {name.lower(): value for name, value in options.items()}
    kind = values.get(KIND, "collection").lower()
    if kind not in OPTIONS:
        raise UsageError(f"kind must be one of {', '.join(OPTIONS)}, not {values[KIND]!r}")
    return kind


def told_options(options: Mapping[str, str], *, kind: str, call: str = "load") -> dict[str, str]:
    """Return the options under our names, in lower case; ``path`` is the name of the object.

    ``call`` is the method of Spark that takes the name.

    Raises:
        UnknownOption: the kind has no such option.
        OptionMissing: ``path`` is missing or empty.
        UsageError: two options have one meaning, or ``startingTimestamp`` is not a time.
    """
    synonyms = SYNONYMS.get(kind, {})
    known = {name.lower() for name in (*OPTIONS[kind], *synonyms, "path")}
    values = _in_our_names(options, synonyms)
    for name in options:
        if name.lower() not in known:
            raise UnknownOption(
                f"unknown option {_typed(name)!r}: the options are {', '.join(OPTIONS[kind])}, "
                f"and {call}() takes the name of a {NAMED[kind]}{_hint(name.lower(), kind)}"
            )
    if not values.get("path"):
        raise OptionMissing(f"the name of the {NAMED[kind]} is missing: {call}('NAME')")
    return values


def _in_our_names(options: Mapping[str, str], synonyms: Mapping[str, str]) -> dict[str, str]:
    values = {name.lower(): value for name, value in options.items()}
    for theirs, ours in synonyms.items():
        value = values.pop(theirs.lower(), None)
        if value is None:
            continue
        if ours.lower() in values:
            raise UsageError(f"{ours} and {theirs} have one meaning: remove one of them")
        values[ours.lower()] = _exclusive(value) if theirs == STARTING else value
    return values


def _exclusive(text: str) -> str:
    """Return the time before the inclusive start of Delta's changes."""
    time = parse_time(text, what=STARTING)
    if not time:
        raise UsageError(f"{STARTING} must be after 1970-01-01T00:00:00Z", given=text)
    return str(time - 1)


def _typed(name: str) -> str:
    """Return an option's name in its documented spelling; Spark passes names in lower case."""
    ours = [option for names in OPTIONS.values() for option in names]
    return next((option for option in (*ours, *ELSEWHERE) if option.lower() == name.lower()), name)


def _hint(name: str, kind: str) -> str:
    """Return a hint for an option that the kind does not have: its kind, or a similar option."""
    others = [k for k, names in OPTIONS.items() if name in {n.lower() for n in names}]
    if others:
        return f"; {HAVE[others[0]]} it: option('kind', '{others[0]}')"
    for theirs, instead in ELSEWHERE.items():
        if theirs.lower() == name:
            return f"; use {instead}"
    lower = {option.lower(): option for option in OPTIONS[kind]}
    alike = get_close_matches(name, lower, n=1)
    return f"; did you mean {lower[alike[0]]!r}?" if alike else ""


def location_told(told: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Return the URL of the location, from the options or else the environment.

    Raises:
        OptionMissing: neither contains it.
    """
    location_url = told.get("location") or environment.get(LOCATION_VARIABLE)
    if not location_url:
        named = NAMED[told.get(KIND, "collection").lower()]
        raise OptionMissing(
            f"the location of the {named} is missing: set option('location', URL), "
            f"or {LOCATION_VARIABLE} in the environment in which Spark was started"
        )
    return location_url


def read_settings(options: Mapping[str, str], environment: Mapping[str, str]) -> ReadSettings:
    """Parse the options of ``spark.read``; Spark passes their names in lower case.

    Raises:
        UnknownOption, OptionMissing, UsageError: an option is wrong; the message names it.
    """
    kind = read_kind(options)
    values = told_options(options, kind=kind)
    refuse_options(values, OF_TABLE_WRITES, "applies only to writes")
    location_url = location_told(values, environment)
    return ReadSettings(
        location_url=location_url,
        name=values["path"],
        as_of=_time(values, "until" if kind == "changes" else "asOf"),
        since=_time(values, "since"),
        columns=_columns(values["columns"]) if "columns" in values else None,
        where=values.get("where"),
        hold_ms=hold_length_ms(values["hold"]) if "hold" in values else None,
        is_changes=kind == "changes",
        has_types=_flag(values, "changeType"),
        times_max=_whole(values, "maxTimesPerTrigger"),
        bytes_max=_whole(values, "maxBytesPerTrigger"),
        checkpoint_ms=_checkpoint_ms(values),
    )


def check_for_batch(settings: ReadSettings) -> None:
    """Check that a batch read of changes has a start, and no setting of a stream.

    Raises:
        OptionMissing, UsageError: it has not; the message names the option.
    """
    if settings.is_changes and settings.since is None:
        raise OptionMissing(
            "the start of the changes is missing: set option('since', TIME) to read the changes "
            "after that time"
        )
    if settings.checkpoint_ms is not None:
        raise UsageError(f"{CHECKPOINT_HOLD} needs readStream: use the option 'hold' for a read")
    if settings.times_max is not None or settings.bytes_max is not None:
        raise UsageError(
            "maxTimesPerTrigger and maxBytesPerTrigger need readStream: use the option 'until' to "
            "read less"
        )


def check_for_stream(settings: ReadSettings) -> None:
    """Check that a stream is one of changes, and has no setting of a batch read.

    Raises:
        UsageError: it has one; the message names the option.
    """
    if not settings.is_changes:
        raise UsageError(
            "a stream of a collection reads its changes: set option('kind', 'changes'); read the "
            "contents at a time with spark.read, or stream a log with option('kind', 'log')"
        )
    if settings.as_of is not None:
        raise UsageError("a stream has no end, so it has no option 'until': use spark.read instead")
    if settings.hold_ms is not None:
        raise UsageError(
            f"a stream has no option 'hold': set option('{CHECKPOINT_HOLD}', '30d') to the time "
            "for which the query may stop"
        )


def _checkpoint_ms(values: Mapping[str, str]) -> int | None:
    text = values.get(CHECKPOINT_HOLD.lower())
    if text is None or text.strip().lower() == NO_HOLD:
        return None if text is None else 0
    return hold_length_ms(text, what=CHECKPOINT_HOLD, least="1m", other=f", or {NO_HOLD}")


def hold_length_ms(text: str, *, what: str = "hold", least: str = "1s", other: str = "") -> int:
    """Return the length of a hold, in milliseconds.

    A shorter hold could end before its owner uses or renews it.

    Raises:
        UsageError: the text is not a duration, or a shorter one than ``least``.
    """
    length_ms = parse_duration_ms(text, what=what)
    if length_ms < parse_duration_ms(least, what=what):
        raise UsageError(
            f"{what} must be a duration of at least {least}{other}, not {quoted(text)}: a shorter "
            "hold could end before it is used"
        )
    return length_ms


def _flag(values: Mapping[str, str], name: str) -> bool:
    text = values.get(name.lower(), "false").strip().lower()
    if text not in ("true", "false"):
        raise UsageError(f"the option {name!r} must be true or false, not {text!r}")
    return text == "true"


def _whole(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name.lower())
    return None if text is None else whole_told(name, text, least=1)


def refuse_options(values: Mapping[str, str], names: Iterable[str], why: str) -> None:
    """Refuse options.

    Raises:
        UsageError: one is given; the message names it, and says why it is refused.
    """
    for name in names:
        if name.lower() in values:
            raise UsageError(f"the option {name!r} {why}: remove it")


def checkpoint_of(options: Mapping[str, str]) -> tuple[str | None, dict[str, str]]:
    """Take Spark's option ``checkpointLocation`` out of the options of a write."""
    names = [name for name in options if name.lower() == "checkpointlocation"]
    others = {name: value for name, value in options.items() if name not in names}
    return (options[names[0]] if names else None), others


def batch_named(values: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the name and the number of a batch that is written once; None without a name.

    Raises:
        OptionMissing, UsageError: an option is missing or wrong; the message names it.
    """
    if ("txnappid" in values) != ("txnversion" in values):
        raise OptionMissing("txnAppId and txnVersion name a batch together: set both, or neither")
    name = values.get("txnappid")
    if name is None:
        return None
    size = len(name.encode())
    if not 1 <= size <= SINK_BYTES_MAX:
        raise UsageError(f"txnAppId must have 1 to {SINK_BYTES_MAX} bytes", size_bytes=size)
    # The prefix keeps these names apart from those of micro-batches.
    return f"txn:{name}", whole_told("txnVersion", values["txnversion"], least=0)


def whole_told(name: str, text: str, *, least: int) -> int:
    """Parse a whole number in an option.

    Raises:
        UsageError: it is not one, or not from ``least`` to 2^63-1.
    """
    is_number = text.strip().isdecimal() and len(text) <= DIGITS_MAX
    number = int(text) if is_number else -1
    if not least <= number < 2**63:
        raise UsageError(
            f"the option {name!r} must be a whole number of at least {least}",
            given=text[:DIGITS_MAX],
        )
    return number


def check_columns(wanted: tuple[str, ...], known: list[str]) -> None:
    """Check that the columns exist and are distinct.

    Raises:
        UsageError: they are not; the message lists the existing columns.
    """
    for name in wanted:
        if name not in known:
            raise UsageError(f"no column {name!r} exists: the columns are {joined_names(known)}")
    if len(set(wanted)) != len(wanted):
        raise UsageError("the option 'columns' names a column twice", columns=", ".join(wanted))


@contextmanager
def told_as_spark_tells() -> Iterator[None]:
    """Raise tidelog's errors in the form that users of Spark expect.

    Raises:
        SourceError: the block raised a TidelogError.
    """
    try:
        yield
    except TidelogError as error:
        kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).upper()
        raise SourceError(f"[TIDELOG_{kind}] {error}") from None


def _time(values: Mapping[str, str], name: str) -> int | str | None:
    text = values.get(name.lower())
    if text is None or is_relative(text):
        return text
    return parse_time(text, what=name, now_us=0)


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(split_names(text))
    if not all(names):
        raise UsageError("the option 'columns' must be names separated by commas", given=text)
    return names
