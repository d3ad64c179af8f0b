"""Records: the result of a format's parser, before conversion to the wanted types. Pure.

A parser of many rows reports at most that one of them is bad. Cheap guesses select the suspect
rows. The other rows are parsed at once, and each suspect is parsed alone. A guess decides nothing:
a row is bad only if it does not parse alone. So the result for a row never depends on its
neighbours. If no guess helps, the rows are halved until each bad one is alone. The same bisection
does work without the rows that make a library fail.

The errors collection has the text of bad rows: Python's repr of a dictionary of the values of a
row, as in earlier versions. Arrow writes whole columns. Values that need Python are written one by
one, equal ones once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.collection.formats.lines import Array, Bools, Int64s, as_mask
from tidelog.errors import TidelogError
from tidelog.persist.format.schema import OWN_PREFIX

OFFSET: Final = OWN_PREFIX + "offset"
T = TypeVar("T")
Guess = Callable[[Int64s], Bools]
Texts: TypeAlias = "pa.ChunkedArray[Any]"


@dataclass(frozen=True, slots=True)
class Misfit:
    """A bad record: one that does not parse or does not fit, with its offset, reason and text."""

    offset: int
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Records:
    """Parsed records in address order: a table of wire types, and each row's offset.

    ``texts`` returns the text of some rows.
    """

    table: pa.Table
    offsets: Int64s
    texts: Callable[[Int64s], Texts]
    misfits: Sequence[Misfit] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class BadRowSearch(Generic[T]):
    """The isolation of bad rows: the parsed rows so far, and the bad ones.

    Shape: ``parse`` returns None if one of the rows is bad. ``guesses`` return masks of suspect
        rows, the cheapest guess first. ``first_guess`` is the guess that helped with the last
        block, if any. It runs before the first parse: a failed parse costs as much as a good one.
        ``is_sure`` returns True only for rows that surely do not parse alone: if many rows are bad,
        parsing each alone takes most of the time. ``parsed`` has the results, each with its rows.
    """

    parse: Callable[[Int64s], T | None]
    guesses: Sequence[Guess]
    first_guess: Guess | None = None
    is_sure: Guess | None = None
    parsed: list[tuple[Int64s, T]] = field(default_factory=list)
    bad: list[int] = field(default_factory=list)

    def take(self, rows: Int64s) -> None:
        """Parse some rows."""
        first, self.first_guess = self.first_guess, None
        if first is None and self._try(rows):
            return
        others = [guess for guess in self.guesses if guess is not first]
        for guess in others if first is None else [first, *others]:
            suspect = guess(rows)
            if suspect.any():
                self.first_guess = guess
                self._take_suspects(rows[suspect])
                rows = rows[~suspect]
            if (suspect.any() or guess is first) and self._try(rows):
                return
        self._halve(rows)

    def ordered(self) -> tuple[list[T], Int64s, Int64s | None]:
        """Return the results, their row numbers, and the permutation that sorts the row numbers.

        The permutation is None if they are sorted.
        """
        nothing = np.zeros(0, dtype=np.int64)
        rows = np.concatenate([nothing, *(rows for rows, _ in self.parsed)])
        found = [one for _, one in self.parsed]
        if np.all(rows[1:] > rows[:-1]):
            return found, rows, None
        return found, rows, np.argsort(rows)

    def _try(self, rows: Int64s) -> bool:
        if not len(rows):
            return True
        found = self.parse(rows)
        if found is not None:
            self.parsed.append((rows, found))
        return found is not None

    def _take_suspects(self, rows: Int64s) -> None:
        """Parse suspect rows: most of them are bad, or all are good."""
        if len(rows) > 1 and self._try(rows):
            return
        if self.is_sure is not None:
            sure = self.is_sure(rows)
            self.bad.extend(rows[sure].tolist())
            rows = rows[~sure]
            if sure.any() and self._try(rows):
                return
        for place in range(len(rows)):
            if not self._try(rows[place : place + 1]):
                self.bad.append(int(rows[place]))

    def _halve(self, rows: Int64s) -> None:
        """Parse rows that do not parse together, in ever smaller halves."""
        bad = bisect(len(rows), lambda start, limit: self._try(rows[start:limit]))
        self.bad.extend(rows[bad].tolist())


def parsed_rows(search: BadRowSearch[pa.Table], nothing: pa.Table) -> tuple[pa.Table, Int64s]:
    """Return the parsed rows of a search as one table, with their row numbers, in order.

    If no row parsed, the table is ``nothing``.
    """
    tables, rows, order = search.ordered()
    table = pa.concat_tables(tables) if tables else nothing
    return (table, rows) if order is None else (table.take(order), rows[order])


def shown(data: bytes) -> str:
    """Return a record's bytes as text for the errors collection."""
    return data.decode("utf-8", errors="replace").strip("\r\n")


def blocks_of(starts: Int64s, rows: Int64s, block_bytes: int) -> Iterator[Int64s]:
    """Yield rows, in order, in blocks of about ``block_bytes``."""
    if len(rows):
        block = starts[rows] // block_bytes
        yield from np.split(rows, np.flatnonzero(np.diff(block)) + 1)


def gather(data: bytes, starts: Int64s, ends: Int64s, rows: Int64s) -> bytes:
    """Return the bytes of some records (in order, at least one), one after another."""
    breaks = np.flatnonzero(np.diff(rows) != 1)
    if not len(breaks):
        return data[starts[rows[0]] : ends[rows[-1]]]
    firsts = starts[rows[np.append(0, breaks + 1)]].tolist()
    lasts = ends[rows[np.append(breaks, len(rows) - 1)]].tolist()
    return b"".join([data[start:end] for start, end in zip(firsts, lasts, strict=True)])


def do_without_bad_rows(
    count: int, work: Callable[[int, int], T]
) -> tuple[list[T], dict[int, str]]:
    """Do work on ``count`` rows; if it fails, split the rows in halves and do each half.

    Return the results in order, and the name of the error for each row that fails alone. An error
    of tidelog, or a lack of memory, is not the fault of a row, and is raised.
    """
    done: list[T] = []
    names: dict[int, str] = {}

    def attempt(start: int, limit: int) -> bool:
        try:
            done.append(work(start, limit))
        except (TidelogError, MemoryError):
            raise
        except Exception as error:
            if start == limit:
                raise  # The work fails even without rows.
            names[start] = type(error).__name__
            return False
        return True

    bad = [] if attempt(0, count) else bisect(count, attempt)
    return done, {row: names[row] for row in bad}


def bisect(count: int, attempt: Callable[[int, int], bool]) -> list[int]:
    """Return the rows that fail alone, of ``count`` rows that fail together.

    ``attempt`` tries the rows ``[start, limit)`` and returns False if they fail. The ranges are
    tried in the order of their rows, so the results of those that succeed are in order.
    """
    bad: list[int] = []
    waiting = [(0, count, True)]
    while waiting:
        start, limit, has_failed = waiting.pop()
        if not has_failed and attempt(start, limit):
            continue
        if limit - start == 1:
            bad.append(start)
            continue
        middle = (start + limit) // 2
        waiting += [(middle, limit, False), (start, middle, False)]
    return bad


TEXT_MAX: Final = 4_096
_join: Final[Any] = pc.binary_join_element_wise  # Its stubs do not accept plain texts.
_CELLS_AT_ONCE: Final = 1 << 17  # With TEXT_MAX characters each, they fit in an array of 2 GiB.
_PLAIN: Final = r"\A[ -&(-\[\]-~]*\z"  # Python's repr of such text has no escape.
_SCALE_MAX: Final = 6  # With a larger scale, Python may write a small decimal with an exponent.
_UNITS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000}
_PLAIN_MIN, _PLAIN_MAX = 1e-3, 1e15
_BITS: Final = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
# The years 1 to 9999, in seconds since 1970.
_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799


def row_texts(rows: pa.Table) -> Texts:
    """Return the text of each row, cut at `TEXT_MAX` characters."""
    size = max(1, _CELLS_AT_ONCE // max(1, rows.num_columns))
    pieces = [_texts(rows.slice(at, size)) for at in range(0, rows.num_rows, size)]
    return pa.chunked_array(pieces, pa.string())


def listed(texts: Texts) -> list[str]:
    return cast("list[str]", texts.to_pylist())


def texts_of(texts: list[str]) -> Texts:
    """Return texts, cut at `TEXT_MAX` characters, as an array."""
    return pa.chunked_array([pa.array([text[:TEXT_MAX] for text in texts], pa.string())])


def _texts(rows: pa.Table) -> Array:
    # If two columns have one name, the dictionary has the value of the last one.
    columns = dict(zip(rows.column_names, rows.columns, strict=True))
    pieces: list[Any] = []
    lead = "{"
    for name, column in columns.items():
        pieces += [f"{lead}{name!r}: ", _cut(_cells(pa.concat_arrays(column.chunks)))]
        lead = ", "
    return _cut(_join(*pieces, "}", ""))


def _cut(texts: Array) -> Array:
    lengths: Any = pc.binary_length(cast("pa.StringArray", texts))
    longest = pc.max(lengths).as_py() or 0
    return texts if longest <= TEXT_MAX else pc.utf8_slice_codeunits(texts, 0, TEXT_MAX)


def _cells(values: Array) -> Array:
    """Return Python's repr of each value."""
    dtype: Any = values.type
    if pa.types.is_dictionary(dtype):
        return _cells(values.cast(dtype.value_type))
    if pa.types.is_integer(dtype):
        written = values.cast(pa.string())
    elif pa.types.is_boolean(dtype):
        written = pc.if_else(values, "True", "False")
    elif pa.types.is_string(dtype) or pa.types.is_binary(dtype):
        return _quoted(values)
    elif dtype == pa.float64():
        return _doubles(values)
    elif pa.types.is_decimal(dtype) and 0 <= dtype.scale <= _SCALE_MAX:
        written = _join("Decimal('", values.cast(pa.string()), "')", "")
    elif pa.types.is_timestamp(dtype) and dtype.tz in (None, "UTC") and _is_datetime(values):
        written = _moments(values)
    else:
        return _distinct(values)
    return written.fill_null("None")


def _quoted(values: Array) -> Array:
    """Return Python's repr of text; bytes are written as text."""
    plain = as_mask(pc.match_substring_regex(values, _PLAIN))
    known = pc.if_else(pa.array(plain), values, pa.scalar("", values.type)).cast(pa.string())
    return _with_odd(_join("'", known, "'", ""), values, ~plain)


def _doubles(values: Array) -> Array:
    """Return Python's repr of doubles: the fewest digits that are exact."""
    filled: Any = values.fill_null(0.0)
    sizes = np.abs(filled.to_numpy())
    written = filled.cast(pa.string())
    # Outside of these bounds Python may write an exponent; Arrow may even within them.
    is_plain = (sizes >= _PLAIN_MIN) & (sizes < _PLAIN_MAX)
    is_plain &= ~as_mask(pc.match_substring(written, "e"))
    point = pc.if_else(pa.array(np.trunc(sizes) == sizes), ".0", "")
    return _with_odd(_join(written, point, ""), values, ~is_plain)


def _with_odd(written: Array, values: Array, are_odd: Bools) -> Array:
    """Return the written texts, with those of the odd values written by Python."""
    if not are_odd.any():
        return written
    odd = pa.array(are_odd)
    found: Array = pc.replace_with_mask(written, odd, _distinct(values.filter(odd)))
    return found


def _is_datetime(values: Array) -> bool:
    """Return True if Python's datetime can represent each value."""
    unit = cast("pa.TimestampType[Any]", values.type).unit
    bounds: Any = pc.min_max(values.cast(pa.int64())).as_py()
    if unit not in _UNITS or bounds["min"] is None:
        return False
    low, high = (bounds[end] // _UNITS[unit] for end in ("min", "max"))
    return bool(low >= _FIRST_S and high <= _LAST_S)


def _moments(values: Array) -> Array:
    dtype = cast("pa.TimestampType[Any]", values.type)
    epoch: Any = pa.scalar(0, dtype).as_py()
    zone = epoch.tzinfo
    end = ")" if zone is None else f", tzinfo={zone!r})"
    micros: Any = values.cast(pa.timestamp("us", tz=dtype.tz)).cast(pa.int64()).fill_null(0)
    numbers = micros.to_numpy()
    fraction, seconds = numbers % 1_000_000, numbers // 1_000_000 % 60
    plain = pa.array(numbers, pa.timestamp("us"))
    parts = [part(plain) for part in (pc.year, pc.month, pc.day, pc.hour, pc.minute)]
    minutes = _join(*[one.cast(pa.string()) for one in parts], ", ")
    tail: Any = pc.if_else(
        pa.array((seconds != 0) | (fraction != 0)), _after_comma(seconds), pa.scalar("")
    )
    tail = _join(
        tail, pc.if_else(pa.array(fraction != 0), _after_comma(fraction), pa.scalar("")), ""
    )
    written = _join("datetime.datetime(", minutes, tail, end, "")
    found: Array = pc.if_else(values.is_valid(), written, pa.scalar(None, pa.string()))
    return found


def _after_comma(numbers: Int64s) -> Array:
    found: Array = _join(", ", pa.array(numbers).cast(pa.string()), "")
    return found


def _distinct(values: Array) -> Array:
    """Return Python's repr of values; equal values are written once, if Arrow can compare them."""
    dtype = values.type
    if pa.types.is_nested(dtype) or pa.types.is_null(dtype):
        return _by_python(values)
    try:
        # Compare floats by their bits: 0.0 and -0.0 are equal, but have different texts.
        bits = values.view(_BITS[dtype.bit_width]) if pa.types.is_floating(dtype) else values
        encoded: Any = bits.dictionary_encode()
        distinct = encoded.dictionary.view(dtype)
    except pa.ArrowException:
        return _by_python(values)
    return _by_python(distinct).take(encoded.indices).fill_null("None")


def _by_python(values: Array) -> Array:
    return pa.array([repr(_readable(one))[:TEXT_MAX] for one in _values(values)], pa.string())


def _values(column: Array) -> Iterator[Any]:
    """Return the values of a column as Python objects.

    A time that Python cannot represent becomes text. So do nanoseconds: only pandas has a type for
    them.
    """
    if not _has_nanos(column.type):
        with suppress(ValueError, OverflowError, KeyError):
            return iter(column.to_pylist())
    return (_value(scalar) for scalar in column)


def _has_nanos(dtype: Any) -> bool:
    if pa.types.is_nested(dtype):
        return any(_has_nanos(dtype.field(place).type) for place in range(dtype.num_fields))
    return pa.types.is_temporal(dtype) and getattr(dtype, "unit", "") == "ns"


def _value(scalar: Any) -> Any:
    dtype = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_dictionary(dtype):
        return _value(scalar.value)
    if pa.types.is_struct(dtype):
        return {dtype.field(n).name: _value(scalar[n]) for n in range(dtype.num_fields)}
    if pa.types.is_map(dtype):
        return [(_value(entry[0]), _value(entry[1])) for entry in scalar.values]
    if pa.types.is_nested(dtype):
        return [_value(one) for one in scalar.values]
    if not _has_nanos(dtype):
        with suppress(ValueError, OverflowError, KeyError):
            return scalar.as_py()
    if pa.types.is_timestamp(dtype):
        # Write the time in UTC: its zone's clock would need a database of time zones.
        scalar = scalar.cast(pa.timestamp(dtype.unit))
    return scalar.cast(pa.string()).as_py()


def _readable(value: Any) -> Any:
    """Return a value with its bytes decoded as text; bytes that are not UTF-8 are replaced."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, dict):
        return {name: _readable(one) for name, one in value.items()}
    return [_readable(one) for one in value] if isinstance(value, list) else value
