"""Guesses of a csv dialect from a sample. Pure.

The sample is read in each possible dialect, by the same rules as records are decoded. The dialect
with the fewest bad records wins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.collection.formats.casts import Formats, cast_values
from tidelog.collection.formats.csv.decode import (
    decode_csv,
    header_names,
    header_of,
    said_delimiter,
)
from tidelog.collection.formats.csv.fields import count_fields, find_fields
from tidelog.collection.formats.csv.types import guess_formats, types_of
from tidelog.collection.formats.lines import CsvDialect, record_ends, split_records
from tidelog.errors import UsageError

Array: TypeAlias = "pa.Array[Any]"

DELIMITERS: Final = (",", ";", "\t", "|")
NULLS: Final = ("NA", "N/A", "n/a", "NULL", "null", "None", "\\N", "-", "?")
_JUDGED_BYTES: Final = 256 * 1024


class CsvOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The csv options of a new source; an option that is None is guessed. See `CsvDialect`."""

    delimiter: str | None = None
    quote: str | None = None
    nulls: tuple[str, ...] | None = None
    date_format: str | None = None
    timestamp_format: str | None = None
    header: bool | None = None
    multiline: bool | None = None

    def dialect(self) -> CsvDialect:
        """Return the dialect with the given options, and defaults for the others."""
        said = {n: v for n in self.__struct_fields__ if (v := getattr(self, n)) is not None}
        said.pop("header", None)
        return CsvDialect(**said)


def check_csv(options: CsvOptions) -> None:
    """Check the csv options.

    Raises:
        UsageError: the delimiter or the quote is not one ASCII character, or both are the same. Or
            a format is not one of strptime.
    """
    for option, mark in (("delimiter=", options.delimiter), ("quote=", options.quote)):
        empty = mark == "" and option == "quote="
        if mark is not None and not empty and (len(mark) != 1 or not 9 <= ord(mark) < 127):
            raise UsageError(f"{option} must be one ASCII character", given=repr(mark))
        if mark in ("\n", "\r"):
            raise UsageError(f"{option} must not be a line end", given=repr(mark))
    if (options.delimiter or ",") == (options.quote if options.quote is not None else '"'):
        raise UsageError("delimiter= and quote= must differ: change one of them")
    for option, form in (
        ("date_format=", options.date_format),
        ("timestamp_format=", options.timestamp_format),
    ):
        if form is not None:
            _check_format(option, form)


def _check_format(option: str, form: str) -> None:
    import duckdb

    try:
        if "%" not in form:
            raise UsageError("it has no part of a date, such as %Y")
        cast_values(pa.array(["x"]), pa.date32(), Formats(date=form))
    except (duckdb.Error, UsageError) as error:
        why = str(error).splitlines()[0]
        raise UsageError(
            f"{option} cannot be read: {why}; write a format of strptime, such as %d.%m.%Y "
            "%H:%M:%S",
            given=repr(form),
        ) from error


Sample: TypeAlias = tuple[bytes, bool]  # The beginning of a file, and True if the file is longer.


def guess_csv(
    sample: bytes,
    options: CsvOptions,
    columns: pa.Schema | None,
    *,
    cut: bool = False,
    others: Sequence[Sample] = (),
) -> tuple[CsvDialect, pa.Schema]:
    """Return the dialect of a sample, and the types of its columns.

    ``columns``, if given, name the columns of files without a header. ``cut`` means that the file
    is longer than the sample. ``others`` are samples of other files: they add columns, types and
    evidence of line breaks in quotes. Those that are of another kind are ignored.

    Raises:
        ValueError: the sample's first line is not a csv record.
    """
    dialect = _guess_marks(sample, options)
    if options.multiline is None and any(_is_multiline(one, dialect) for one in others):
        dialect = msgspec.structs.replace(dialect, multiline=True)
    sample = _whole(sample, dialect, cut=cut)
    names = _header(sample, dialect)
    body = _texts(sample, dialect, names)
    if options.header is False or (options.header is None and _is_data(names, body, columns)):
        known = () if columns is None else columns.names
        named = [known[i] if i < len(known) else f"column{i + 1}" for i in range(len(names))]
        dialect = msgspec.structs.replace(dialect, names=tuple(named))
    wholes = [sample, *(_whole(one, dialect, cut=is_cut) for one, is_cut in others)]
    body = _texts_of_all(wholes, dialect)
    formats = guess_formats(
        [without_nulls(column) if options.nulls is None else column for column in _columns(body)],
        options.date_format,
        options.timestamp_format,
    )
    dialect = msgspec.structs.replace(
        dialect, date_format=formats.date, timestamp_format=formats.timestamp
    )
    if options.nulls is None:
        dialect = msgspec.structs.replace(dialect, nulls=_guess_nulls(body, formats))
        body = _texts_of_all(wholes, dialect)
    if columns is None:
        dialect = msgspec.structs.replace(dialect, inferred=True)
    kinds = types_of(_columns(body), formats)
    return dialect, pa.schema(list(zip(body.column_names, kinds, strict=True)))


def _is_multiline(sample: Sample, dialect: CsvDialect) -> bool:
    """Return True if a sample has fewer bad records with line breaks in quotes."""
    if not dialect.quote or dialect.multiline:
        return False
    broken = msgspec.structs.replace(dialect, multiline=True)
    wholes = [_whole(sample[0], one, cut=sample[1]) for one in (dialect, broken)]
    return _badness(wholes[1], broken) < _badness(wholes[0], dialect)


def _texts_of_all(samples: Sequence[bytes], dialect: CsvDialect) -> pa.Table:
    """Return the records of samples as text, without samples of another kind than the first.

    Samples are of one kind if each has more than half of the columns of all of them. Ingestion
    refuses a file with fewer: see `check_header`.
    """
    first = list(dialect.names) or _header(samples[0], dialect)
    found, known, least = [_texts(samples[0], dialect, first)], {*first}, len({*first})
    for sample in samples[1:]:
        try:
            names = list(dialect.names) or _header(sample, dialect)
        except ValueError:
            continue
        joined = known | {*names}
        least_then = min(least, len({*names}))
        if least_then * 2 > len(joined):
            known, least = joined, least_then
            found.append(_texts(sample, dialect, names))
    return pa.concat_tables(found, promote_options="default")


def _columns(table: pa.Table) -> list[Array]:
    return [column.combine_chunks() for column in table.columns]


def _guess_marks(sample: bytes, options: CsvOptions) -> CsvDialect:
    """Return the best dialect by delimiter, quote and line breaks in quotes."""
    said = options.dialect()
    named = options.delimiter or said_delimiter(sample)[0]
    delimiters = (named,) if named else DELIMITERS
    found = [msgspec.structs.replace(said, delimiter=sign) for sign in delimiters]
    if options.quote is None:
        found = [
            msgspec.structs.replace(one, quote="'") if _has_apostrophes(sample, one) else one
            for one in found
        ]
    if options.multiline is None:
        found = [
            better
            for one in found
            for better in (one, msgspec.structs.replace(one, multiline=bool(one.quote)))
        ]
    # Among equals, the first one wins: commas, and one record per line.
    return min(found, key=lambda one: _badness(sample, one))


def _badness(sample: bytes, dialect: CsvDialect) -> tuple[bool, float, int]:
    """Return the misfit of a dialect, for comparison: the least one fits best.

    It is by the share of records that are bad or have an unusual number of fields. A dialect with a
    single column comes last.
    """
    judged = _whole(sample[:_JUDGED_BYTES], dialect, cut=len(sample) > _JUDGED_BYTES)
    judged = judged[said_delimiter(judged)[1] :]
    starts, ends = split_records(judged, dialect)
    if not len(starts):
        return True, 1.0, 0
    fields = find_fields(judged, starts, ends, dialect)
    whole = np.ones(len(starts), dtype=np.bool_)
    whole[list(fields.faults)] = False
    counts = count_fields(judged, starts[whole], ends[whole], fields.toggles, dialect)
    usual = int(np.bincount(counts).argmax()) if len(counts) else 0
    return usual < 2, 1 - np.count_nonzero(counts == usual) / len(starts), -usual


def _whole(sample: bytes, dialect: CsvDialect, *, cut: bool) -> bytes:
    """Return a sample without a last record that the sample cuts off."""
    ends = record_ends(sample, dialect, final=False)
    return sample[: int(ends[-1])] if cut and len(ends) else sample


def _has_apostrophes(sample: bytes, dialect: CsvDialect) -> bool:
    """Return True if fields are mostly in single quotes, and no double quote occurs."""
    if b'"' in sample:
        return False
    sign = re.escape(dialect.delimiter.encode())
    quoted = re.findall(rb"(?m)(?:^|%b)'[^'\n]*'(?=%b|\r?$)" % (sign, sign), sample)
    return len(quoted) * 2 >= max(1, sample.count(b"\n"))


def _header(sample: bytes, dialect: CsvDialect) -> list[str]:
    return header_names(header_of(sample, dialect) or sample, dialect)


def _texts(sample: bytes, dialect: CsvDialect, names: list[str]) -> pa.Table:
    """Return the sample's records as text; a repeated name means its first column."""
    wanted = pa.schema([(n, pa.string()) for n in dict.fromkeys(names)])
    header = (header_of(sample, dialect) or sample) if dialect.has_header else b""
    return decode_csv(sample, wanted, base=0, header=header, dialect=dialect).table


def _is_data(names: list[str], body: pa.Table, columns: pa.Schema | None) -> bool:
    """Return True if a first line is a record, not a header.

    It is a record if its fields fit the types of the lines after it, and some of these types are
    not text.
    """
    if columns is not None and set(names) & set(columns.names):
        return False
    if len(set(names)) < len(names) or not body.num_rows:
        return False
    values_of = [body.column(name).combine_chunks() for name in names]
    typed = [
        (pa.concat_arrays([pa.array([name], pa.string()), values]), kind)
        for name, values, kind in zip(names, values_of, types_of(values_of), strict=True)
        if not pa.types.is_string(kind)
    ]
    # Test the first column alone before the rest: in most headers it does not fit already.
    return bool(typed) and all(
        types_of([values for values, _ in some]) == [kind for _, kind in some]
        for some in (typed[:1], typed[1:])
    )


def _guess_nulls(body: pa.Table, formats: Formats) -> tuple[str, ...]:
    """Return the texts that are nulls: without them, some text columns have another type."""
    columns = _columns(body)
    texts = [
        (values, there)
        for values, kind in zip(columns, types_of(columns, formats), strict=True)
        if pa.types.is_string(kind) and (there := {*values.filter(_are_nulls(values)).to_pylist()})
    ]
    kinds = types_of([without_nulls(values) for values, _ in texts], formats)
    typed = [there for (_, there), k in zip(texts, kinds, strict=True) if not pa.types.is_string(k)]
    return tuple(text for text in NULLS if any(text in there for there in typed))


def without_nulls(values: Array) -> Array:
    """Return the texts that are not among the usual texts for null."""
    kept: Array = values.filter(pc.invert(_are_nulls(values)))
    return kept


def _are_nulls(values: Array) -> Array:
    found: Array = pc.is_in(values, pa.array(NULLS))
    return found
