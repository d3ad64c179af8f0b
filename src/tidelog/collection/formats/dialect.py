"""The dialect of a source's files, guessed or given when the source is created. Pure."""

from __future__ import annotations

import msgspec


class CsvDialect(msgspec.Struct, frozen=True, kw_only=True):
    """The dialect of csv files; ``ignore_case`` applies to files of every format.

    Shape: ``delimiter`` and ``quote`` are one ASCII character each; ``quote`` is "" if fields are
        never quoted. A field without quotes is null if it is empty or one of ``nulls``.
        ``date_format`` and ``timestamp_format`` are for strptime; ISO 8601 is always read too.
        ``names`` are the column names of files without a header, and else empty. With
        ``multiline``, quoted fields may have line breaks. ``inferred`` is True if the column types
        were inferred: then texts must match the patterns of inference. It is unset if the types
        were given, and in sources of older versions.
    """

    delimiter: str = ","
    quote: str = '"'
    nulls: tuple[str, ...] = ()
    date_format: str | None = None
    timestamp_format: str | None = None
    names: tuple[str, ...] = ()
    multiline: bool = False
    inferred: bool | msgspec.UnsetType = msgspec.UNSET
    ignore_case: bool | msgspec.UnsetType = msgspec.UNSET

    @property
    def folds_case(self) -> bool:
        """Return True if names in files match those of the source whatever their case."""
        return self.ignore_case is True

    @property
    def is_inferred(self) -> bool:
        return self.inferred is True

    @property
    def has_header(self) -> bool:
        return not self.names
