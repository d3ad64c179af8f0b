"""Reads of one file of a source: in the version that a listing showed, or with the bound bytes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.blocks import are_blocks, covering
from tidelog.errors import GoneError, ObjectNotFound, SourceRewritten
from tidelog.store.port import Store, is_version


@dataclass(slots=True, kw_only=True)
class OpenedFile:
    """A file. If ``e_tag`` is given, all bytes read are of that version.

    ``kept`` are cached spans of the file: the offset of each, and its bytes. ``source`` is the name
    of the file's source, for messages.
    """

    store: Store
    path: str
    e_tag: str | None = None
    source: str = ""
    kept: Sequence[tuple[int, bytes]] = field(default_factory=list)

    async def get(self, start: int, limit: int) -> bytes:
        """Return the bytes ``[start, limit)``, or fewer if the file ends before ``limit``.

        Raises:
            GoneError: the file no longer exists. SourceRewritten: it has another version now.
        """
        if start >= limit:
            return b""
        kept = join_kept(self.kept, start, limit)
        if kept is not None:
            return kept
        try:
            found = await self.store.get(self.path, start=start, limit=limit)
        except ObjectNotFound as error:
            raise self.gone() from error
        if self.e_tag is not None and not is_version(self.e_tag, found.e_tag):
            raise self.rewritten()
        return found.data

    def rewritten(self) -> SourceRewritten:
        """Return the error for a file whose ingested bytes have changed."""
        return SourceRewritten(
            f"the file {self.path!r} was rewritten after some of its rows were ingested: restore "
            f"it, or continue without it: {self._skip}"
        )

    def gone(self) -> GoneError:
        """Return the error for a bound file that no longer exists."""
        return GoneError(
            f"the file {self.path!r} no longer exists, but a tick needs its rows: restore it, or "
            f"continue without it: {self._skip}"
        )

    @property
    def _skip(self) -> str:
        return f"tidelog source skip {self.source} {shlex.quote(self.path)}"


@dataclass(slots=True, kw_only=True)
class BoundFile:
    """The file of a bound range. A read returns the bound bytes, or fails."""

    file: OpenedFile
    found: FileRange

    async def get(self, start: int, limit: int) -> tuple[int, bytes]:
        """Return the offset and the bytes of a span that covers ``[start, limit)``.

        If the range has sums, the span consists of whole blocks of it, and they are checked.

        Raises:
            SourceRewritten: the bytes are not those bound. GoneError: the file no longer exists.
        """
        found = self.found
        if not found.is_summed:
            return start, await self.file.get(start, limit)
        low, high = covering(found.start, found.limit, start, limit, found.block_bytes)
        data = await self.file.get(low, high)
        proven = are_blocks(
            data, low, start=found.start, sums=found.sums, block_bytes=found.block_bytes
        )
        if not proven or len(data) != max(0, high - low):
            raise self.file.rewritten()
        return low, data


def join_kept(kept: Sequence[tuple[int, bytes]], start: int, limit: int) -> bytes | None:
    """Return the bytes ``[start, limit)`` from sorted spans; None if some bytes are missing."""
    found: list[bytes] = []
    at = start
    for begin, data in kept:
        if begin <= at < begin + len(data):
            found.append(data[at - begin : limit - begin])
            at += len(found[-1])
    return b"".join(found) if at >= limit else None
