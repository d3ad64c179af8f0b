"""The pure parts of a source that reads another collection: see `tidelog.collection.upstream`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidelog.collection.catalog.catalog import COLLECTION, Catalog, SourceInfo
from tidelog.collection.formats.records import OFFSET
from tidelog.collection.source.binding import AddressRange, Taken
from tidelog.collection.source.decode_messages import decode_messages
from tidelog.collection.source.kind import BODY, ROWS, RowRange
from tidelog.errors import InvariantError, UsageError
from tidelog.persist.format.part import int64_of
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema
from tidelog.persist.format.updates import consolidate

UPSTREAM: Final = "collection"  # The settings of such a source: the name of the other collection,
COLUMN: Final = "column"  # the column whose text is decoded,
CREATED: Final = "created"  # and when the other collection was created.
WHOLE: Final = "contents"  # The proof of a range that begins with all rows of its first time.


def hold_of(info: SourceInfo) -> str:
    """Return the name of the hold of a source on its upstream."""
    return f"source-{info.id}"


def readers_of(catalog: Catalog, name: str) -> list[str]:
    """Return the names of the sources that read a collection, sorted. Pure."""
    there = catalog.collections.get(name)
    if there is None:
        return []
    return sorted(
        one.name
        for one in catalog.sources.values()
        if one.kind == COLLECTION
        and (one.settings[UPSTREAM], one.settings[CREATED]) == (name, str(there.created_us))
    )


class UpdateSpan(NamedTuple):
    """The updates of a range: those after ``since`` and up to ``until``.

    With ``is_whole``, the contents as of ``since`` come first.
    """

    since: int
    until: int
    is_whole: bool


def span_of(found: AddressRange) -> UpdateSpan:
    """Return the updates that a range has."""
    if not isinstance(found, RowRange):
        raise InvariantError("a source was given another source's range")
    is_whole = found.proof == WHOLE
    return UpdateSpan(found.start if is_whole else found.start - 1, found.limit - 1, is_whole)


def as_data(updates: pa.Table, source: SourceInfo) -> pa.Table:
    """Return consolidated updates of the upstream as the data of a range, to decode them.

    Shape: `OFFSET` has the index of each update.
    """
    if source.format != ROWS:
        column = source.settings[COLUMN]
        updates = updates.rename_columns([BODY if n == column else n for n in updates.column_names])
    return updates.append_column(OFFSET, pa.array(np.arange(updates.num_rows)))


@dataclass(frozen=True, slots=True)
class FollowedHead:
    """The upper of the upstream, and the end and size in bytes of each of its batches."""

    upper: int
    batches: Sequence[tuple[int, int]]

    def left_bytes(self, taken: Taken) -> int:
        return self._after(max((found.limit for found in taken.values()), default=0))

    def left_after(self, left_bytes: int, taken: Taken, ranges: Iterable[AddressRange]) -> int:
        limits = [found.limit for found in ranges]
        return self._after(max(limits)) if limits else left_bytes

    def _after(self, time: int) -> int:
        return sum(size for end, size in self.batches if time < end)

    def end_of_step(self, after: int, bytes_max: int) -> int:
        """Return the end of a step of about ``bytes_max``: that of a batch past ``after``."""
        ahead = sorted({*(end for end, _ in self.batches if after < end < self.upper), self.upper})
        left = self._after(after)
        fitting = [end for end in ahead if left - self._after(end) <= bytes_max]
        return fitting[-1] if fitting else ahead[0]


def followed_updates(
    data: pa.Table, found: AddressRange, schema: ShardSchema, source: SourceInfo
) -> tuple[pa.Table, pa.Table, Mapping[str, int], int]:
    """Return the decoded updates, consolidated; bad rows; counts of unknown fields; and of rows.

    Pure. The number of rows is that before the consolidation, so it does not depend on the division
    of the updates into tasks. A row that is taken back counts, too.

    A bad row is reported when the upstream gets it, and not when it is taken back. Its offset is
    its time in the upstream.
    """
    times, diffs = int64_of(data, TIME), int64_of(data, DIFF)
    decoded = decode_messages(data, found, schema.data, source=source)
    rows = decoded.rows
    places = int64_of(rows, OFFSET)
    updates = rows.select(schema.names)
    updates = updates.append_column(TIME, pa.array(times[places]))
    updates = updates.append_column(DIFF, pa.array(diffs[places])).cast(schema.updates)
    errors = decoded.errors
    bad = int64_of(errors, "offset")
    at = errors.schema.get_field_index("offset")
    told = errors.set_column(at, errors.schema.field(at), pa.array(times[bad]))
    kept = told.filter(pa.array(diffs[bad] > 0)).sort_by("offset")
    count = int(np.abs(diffs[places]).sum())
    return consolidate([updates], schema), kept, decoded.dropped, count


def text_column(columns: pa.Schema, wanted: str | None, path: str) -> str:
    """Return the column of an upstream that is decoded: ``wanted``, or the only one of text.

    Raises:
        UsageError: there is no such column, or it is neither text nor bytes.
    """
    texts = [one.name for one in columns if _is_text(one.type)]
    if wanted is None and len(texts) == 1:
        return texts[0]
    if wanted is None:
        raise UsageError(
            f"{path!r} has {len(texts) or 'no'} columns of text or bytes"
            + (f" ({', '.join(texts)}): pass one as column=" if texts else ": remove format=")
        )
    if wanted not in columns.names:
        raise UsageError(
            f"column= names {wanted!r}, which is not a column of {path!r}: its columns are "
            f"{', '.join(columns.names)}"
        )
    if wanted not in texts:
        raise UsageError(
            f"column={wanted!r} of {path!r} has the type {columns.field(wanted).type}, so it "
            "cannot be decoded: pass a column of text or bytes"
        )
    return wanted


def _is_text(dtype: pa.DataType) -> bool:
    return pa.types.is_string(dtype) or pa.types.is_binary(dtype)


def check_no_cycle(catalog: Catalog, name: str, path: str) -> None:
    """Check that no collection that an upstream reads, itself included, has the source's name.

    Raises:
        UsageError: the source would read its own rows.
    """
    seen: list[str] = []
    at: str | None = path
    while at is not None and at not in seen:
        seen.append(at)
        feeders = [
            one.settings[UPSTREAM]
            for one in catalog.sources.values()
            if one.kind == COLLECTION and catalog.renditions[one.rendition].collection == at
        ]
        at = feeders[0] if feeders else None
    if name in seen:
        way = " reads ".join(map(repr, [name, *seen[: seen.index(name) + 1]]))
        raise UsageError(f"the source would read its own rows, because {way}: name another one")
