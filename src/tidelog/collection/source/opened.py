"""One file of a source, opened to be read: as a listing showed it, or as it was bound."""

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
    """A file, of which bytes are read that are those of one version, where ``e_tag`` names it.

    ``kept`` are spans of it that are at hand: where each begins, and its bytes. ``source`` is the
    name of what it is a file of.
    """

    store: Store
    path: str
    e_tag: str | None = None
    source: str = ""
    kept: Sequence[tuple[int, bytes]] = field(default_factory=list)

    async def get(self, start: int, limit: int) -> bytes:
        """Return the bytes ``[start, limit)``, or as many of them as there are.

        Raises:
            GoneError: the file is. SourceRewritten: it is of another version.
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
        """Return the error that the file is not what it was."""
        return SourceRewritten(
            f"the file {self.path!r} was rewritten after some of it was taken: put it back as it "
            f"was, or go on without it: {self._skip}"
        )

    def gone(self) -> GoneError:
        """Return the error that the file is not there."""
        return GoneError(
            f"the file {self.path!r} is gone, though its messages are bound to times: put it back, "
            f"or go on without it: {self._skip}"
        )

    @property
    def _skip(self) -> str:
        return f"tidelog source skip {self.source} {shlex.quote(self.path)}"


@dataclass(slots=True, kw_only=True)
class BoundFile:
    """The file of a range that was bound: what is read of it, are the bytes that were bound."""

    file: OpenedFile
    found: FileRange

    async def get(self, start: int, limit: int) -> tuple[int, bytes]:
        """Return bytes of the file in which ``[start, limit)`` lies, and where they begin.

        Of a range with sums they are whole blocks of it, checked, and no others.

        Raises:
            SourceRewritten: they are not those that were bound. GoneError: the file is gone.
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
    """Return the bytes ``[start, limit)`` out of spans in order; None if some are not there."""
    found: list[bytes] = []
    at = start
    for begin, data in kept:
        if begin <= at < begin + len(data):
            found.append(data[at - begin : limit - begin])
            at += len(found[-1])
    return b"".join(found) if at >= limit else None
