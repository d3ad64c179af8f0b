"""The spec of a new source, and checks of the types of its fields. Pure.

Options of the command line always have the right type, but a program may pass any value.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidelog.collection.catalog.catalog import COLLECTION, FILES
from tidelog.collection.catalog.retention import parse_retention_ms
from tidelog.collection.formats.avro.container import AVRO_FORMAT
from tidelog.collection.formats.csv.guess import CsvOptions, check_csv
from tidelog.collection.formats.json.arrays import ARRAY_FORMAT
from tidelog.collection.formats.text import BYTES_FORMAT, ONE_COLUMN, TEXT_FORMAT
from tidelog.collection.formats.times import UNITS, parse_duration_ms
from tidelog.collection.source.kind import ROWS, has_tombstones
from tidelog.core.arguments import check_kind, check_whole, quoted
from tidelog.core.ids import check_name
from tidelog.errors import UsageError
from tidelog.store.urls import secrets_in

FORMATS = ("json", ARRAY_FORMAT, "csv", "parquet", AVRO_FORMAT, TEXT_FORMAT)
FORMATS_OF_KINDS = (ROWS, "json", "csv", AVRO_FORMAT, TEXT_FORMAT, BYTES_FORMAT)
ENVELOPES = ("none", "upsert")
SHARDS_MAX = 256
_OF_COLLECTIONS: Final = ("collection", "column", "created")
_GUESSED = CsvOptions()
_TEXTS: Final = {
    "kind": "files",
    "format": "csv",
    "envelope": "upsert",
    "time_column": "at",
    "time_unit": "ms",
    "max_ahead": "1d",
    "lateness": "10m",
    "delete_when": "gone = true",
    "schema": "flight int, day date",
    "avro_schema": '{"type": "record", ...}',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """The spec of a new source, as a user gives it.

    Shape: ``files`` is a directory, prefix or glob, local or in a store, or several of these in one
        store. A source of another ``kind`` has ``settings`` instead. ``schema`` lists columns with
        SQL types; None means to infer it. With ``evolve``, ingesters add columns for new fields of
        the data, with inferred types. The default ``format`` is json for files. Sources of
        other kinds keep their own columns by default. With ``keep_bindings``, the source remembers
        which data it read at each time, so a new rendition can read the same; None means True for
        sources of files only. ``include`` adds columns of the kind to the fields of the decoded
        text, such as "key" or "timestamp=at" (the kind's name of a column, and the name that it
        gets). If the key is of these, a message without a body deletes the row of its key.
        ``avro_schema`` is the text of the schema of messages in avro.
    """

    name: str
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None
    kind: str = FILES
    settings: Mapping[str, str] = field(default_factory=dict)
    format: str | None = None
    envelope: str = "none"
    key: Sequence[str] = ()
    time_column: str | None = None
    time_unit: str = "ms"
    max_ahead: str = "1d"
    lateness: str = "0s"
    retain: str = "forever"
    delete_when: str | None = None
    schema: str | None = None
    shards: int = 1
    csv: CsvOptions = _GUESSED
    ignore_case: bool = False
    evolve: bool = False
    keep_bindings: bool | None = None
    include: Sequence[str] = ()
    avro_schema: str | None = None

    @property
    def includes(self) -> dict[str, str]:
        """Return the kind's names of the included columns, by the names that they get.

        Raises:
            UsageError: a name is empty, or two columns get one name.
        """
        found: dict[str, str] = {}
        for one in self.include:
            column, mark, name = one.partition("=")
            name = name if mark else column
            if not column or not name:
                raise UsageError(f"include={one!r}: write the name of a column, or COLUMN=NAME")
            if name in found:
                raise UsageError(
                    f"include= has two columns named {name!r}: name one otherwise, as "
                    f"'{column}=other_{column}'"
                )
            found[name] = column
        return found

    @property
    def places(self) -> tuple[str, ...]:
        """Return the places of its files; a source of another kind has none."""
        if self.files is None or isinstance(self.files, str | os.PathLike):
            return () if self.files is None else (os.fspath(self.files),)
        return tuple(os.fspath(one) for one in self.files)

    @property
    def read_as(self) -> str:
        """Return the format, or the default for its kind."""
        return self.format or ("json" if self.kind == FILES else ROWS)

    @property
    def keeps_deletions(self) -> bool:
        """Return True if the ingester must remember deletions: older rows may arrive later."""
        may_delete = has_tombstones(self.envelope, self.key, self.includes)
        return self.time_column is not None and (self.delete_when is not None or may_delete)

    @property
    def max_ahead_ms(self) -> int | None:
        """Return how far after the clock a row's time may be; None means without limit.

        Raises:
            UsageError: the setting is not a duration.
        """
        if self.max_ahead == "any":
            return None
        return parse_duration_ms(self.max_ahead, what="max_ahead=")

    @property
    def lateness_ms(self) -> int:
        """Return how far the upper stays behind the greatest time of the data.

        Raises:
            UsageError: the setting is not a duration, or times are from the clock.
        """
        found = parse_duration_ms(self.lateness, what="lateness=")
        if found and self.time_column is None:
            raise UsageError("lateness= needs time_column=: rows without times are never late")
        return found

    @property
    def retain_ms(self) -> int | None:
        """Return how long past times stay readable; None means always.

        Raises:
            UsageError: the setting is not a duration.
        """
        return parse_retention_ms(self.retain, what="retain=")

    def check(self) -> None:
        """Check all options that can be checked without I/O.

        Raises:
            UsageError: an option is wrong, or needs another option that is missing.
        """
        check_types(self)
        check_name(self.name, of="name of a source")
        self._check_secrets()
        self._check_kind()
        self._check_included()
        self._check_avro()
        _one_of("envelope=", self.envelope, ENVELOPES)
        _one_of("time_unit=", self.time_unit, tuple(UNITS))
        _ = self.max_ahead_ms, self.lateness_ms, self.retain_ms
        if self.envelope == "upsert" and not self.key:
            raise UsageError("envelope='upsert' needs key=: the columns that identify a row")
        if self.envelope == "none" and self.key:
            raise UsageError("key= needs envelope='upsert': add it, or remove key=")
        if self.envelope == "none" and self.delete_when is not None:
            raise UsageError(
                "delete_when= needs envelope='upsert', which can delete rows: add it, or remove "
                "delete_when="
            )
        if self.read_as == "csv":
            check_csv(self.csv)
        elif self.csv != _GUESSED:
            raise UsageError(
                "delimiter=, quote=, null=, date_format=, timestamp_format=, header= and "
                "multiline= need format='csv': add it, or remove them"
            )
        if self.read_as in ONE_COLUMN:
            self._check_text()
        if not 1 <= self.shards <= SHARDS_MAX:
            raise UsageError(f"shards= must be from 1 to {SHARDS_MAX}", given=self.shards)

    def _check_avro(self) -> None:
        has_messages = self.kind != FILES and self.read_as == AVRO_FORMAT
        if has_messages and self.avro_schema is None:
            raise UsageError(
                "format='avro' of a source that reads no files needs avro_schema=: the text of the "
                "schema of its messages"
            )
        if self.avro_schema is not None and not has_messages:
            raise UsageError(
                "avro_schema= is the schema of messages in format='avro'; files have theirs in "
                "their headers: remove avro_schema="
            )

    def _check_followed(self) -> None:
        unknown = [name for name in self.settings if name not in _OF_COLLECTIONS]
        if unknown:
            raise UsageError(
                f"settings[{unknown[0]!r}] is not a setting of a source of the kind 'collection'; "
                "its settings: collection, column"
            )
        if "collection" not in self.settings:
            raise UsageError("a source of the kind 'collection' needs settings['collection']")
        if self.settings["collection"] == self.name:
            raise UsageError(f"the source {self.name!r} would read its own rows: name another one")
        if "column" in self.settings and self.read_as == ROWS:
            raise UsageError(
                "column= names the text to decode, so it needs format=: add it, or remove column="
            )
        self._check_plain("a source of a collection has the updates of that one, with their times")

    def _check_included(self) -> None:
        if not self.includes:
            return
        if self.kind in (FILES, COLLECTION):
            raise UsageError(
                f"a source of the kind {self.kind!r} has no columns next to its text: remove "
                "include="
            )
        if self.read_as == ROWS:
            raise UsageError(
                "include= adds columns to decoded text, and the format 'rows' has all columns: "
                "remove include=, or pass format="
            )

    def _check_text(self) -> None:
        if self.include and not self.ignore_case and not self.evolve:
            return  # The key and the times are in the included columns.
        self._check_plain(
            f"format={self.read_as!r} makes a row of each "
            f"{'line' if self.read_as == TEXT_FORMAT else 'message'}, with one column",
            ignore_case=self.ignore_case,
        )

    def _check_plain(self, why: str, **more: bool) -> None:
        """Check that no option is given that needs a key, times or several columns.

        Raises:
            UsageError: one is; the message begins with ``why``.
        """
        options = {
            "envelope": self.envelope != "none",
            "time_column": self.time_column is not None,
            "evolve": self.evolve,
            **more,
        }
        given = [f"{name}=" for name, is_given in options.items() if is_given]
        if given:
            raise UsageError(f"{why}: remove {' and '.join(given)}")

    def _check_secrets(self) -> None:
        """Check that no URL has credentials: the catalog stores it, and readers would see them."""
        for place in (*self.places, *self.settings.values()):
            found = secrets_in(place)
            if found:
                raise UsageError(
                    "a source's URL is stored, so it must not have credentials: remove "
                    f"{' and '.join(found)}, and pass them in the environment (AWS_ACCESS_KEY_ID, "
                    "AWS_SECRET_ACCESS_KEY), as a profile (?profile=NAME in the URL), or by the "
                    "machine's role"
                )

    def _check_kind(self) -> None:
        if self.kind != FILES:
            _one_of("format= of a source that reads no files", self.read_as, FORMATS_OF_KINDS)
            if self.places:
                raise UsageError(
                    "a source reads files or another kind of data: pass files= or kind=, not both"
                )
            if self.kind == COLLECTION:
                self._check_followed()
            if self.csv.header or self.csv.multiline:
                raise UsageError(
                    "csv records of a source that reads no files have no header and one line "
                    "each: remove header= and multiline="
                )
            return
        _one_of("format=", self.read_as, FORMATS)
        if not self.places:
            raise UsageError("the source has no data to read: pass files= or kind=")
        if self.settings:
            raise UsageError("a source of files has no settings: remove settings=")


def _one_of(option: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise UsageError(f"{option} must be one of {', '.join(known)}, not {given!r}")


def check_types(spec: SourceSpec) -> None:
    """Check the types of a spec's fields.

    Raises:
        UsageError: a field has another type; the message has an example of the right one.
    """
    for name, such in _TEXTS.items():
        value = getattr(spec, name)
        if value is not None:
            check_kind(value, str, f"{name} must be a str, such as {such!r}")
    _check_several("key", spec.key, ("id",), str)
    _check_several("include", spec.include, ("key", "timestamp=at"), str)
    if spec.files is not None and not isinstance(spec.files, str | os.PathLike):
        _check_several("files", spec.files, ("./2025", "./inbox"), str | os.PathLike)
    if not all(isinstance(text, str) for one in spec.settings.items() for text in one):
        raise UsageError(
            "settings must be a mapping of names to str, such as {'rate': '100'}",
            found=quoted(spec.settings),
        )
    check_whole(spec.shards, "shards")
    if spec.keep_bindings is not None:
        check_kind(spec.keep_bindings, bool, "keep_bindings must be True or False")
    check_kind(spec.csv, CsvOptions, "csv must be a tidelog.CsvOptions")


def _check_several(name: str, value: object, such: tuple[str, ...], of: object) -> None:
    # A single text is a sequence too, and its letters would count as names.
    several = isinstance(value, tuple | list)
    if not several or not all(isinstance(one, of) for one in value):  # type: ignore[arg-type,attr-defined]
        raise UsageError(f"{name} must be a tuple of str, such as {such!r}", found=quoted(value))
