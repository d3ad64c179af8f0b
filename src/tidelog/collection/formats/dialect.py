"""How a source's files are written, as guessed or given when the source is created. Pure."""

from __future__ import annotations

import msgspec


class CsvDialect(msgspec.Struct, frozen=True, kw_only=True):
    """How csv is written, and whether the case of names counts, in every format.

    Shape: ``delimiter`` is one ASCII character, and so is ``quote``, or it is empty where there is
        none. A field that is empty, or one of ``nulls``, and not quoted is null. ``date_format``
        and ``timestamp_format`` are strptime's; ISO 8601 is always read. ``names`` are those of the
        columns of files that have no header; with a header there are none. ``inferred`` says that
        the columns' types were inferred, so that texts have to look as inference wants them; it is
        not stored where they were given, nor by versions before it.
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
        """Return True if names in files are those of the source whatever their case."""
        return self.ignore_case is True

    @property
    def is_inferred(self) -> bool:
        return self.inferred is True

    @property
    def has_header(self) -> bool:
        return not self.names
