"""Key listings: the keys of all sources, merged in byte order, a page at a time.

Each source yields its keys in order. The least last key of the current pages limits the keys that
are known for all sources. The keys up to that limit are merged by columns, each once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.keyed.format.records import KEY_ROWS, added_up
from tidelog.keyed.read.sources import Source


async def merged_keys(
    sources: Sequence[Source], first: bytes, last: bytes | None, start: int, limit: int | None
) -> AsyncGenerator[pa.Table, None]:
    """Yield the keys ``[first, last)`` of all sources, as `KEY_ROWS`, each once."""
    async with AsyncExitStack() as stack:
        streams = [
            _Stream(
                await stack.enter_async_context(aclosing(source.keys(first, last, start, limit)))
            )
            for source in sources
        ]
        for stream in streams:
            await stream.fill()
        while at_hand := [stream for stream in streams if stream.page is not None]:
            # A source without further pages sets no limit, so a thousand small runs give one page.
            bound = min((stream.last for stream in at_hand if stream.has_more), default=None)
            yield _together([stream.take(bound) for stream in at_hand])
            for stream in at_hand:
                await stream.fill()


class _Stream:
    """The keys of one source, with its current page; None after the last page."""

    def __init__(self, pages: AsyncGenerator[pa.Table, None]) -> None:
        self._pages = pages
        self._ahead: pa.Table | None = None
        self._is_begun = False
        self.page: pa.Table | None = None

    @property
    def last(self) -> bytes:
        assert self.page is not None
        key: bytes = self.page.column("key")[-1].as_py()
        return key

    @property
    def has_more(self) -> bool:
        """True if the source has keys after the current page."""
        return self._ahead is not None

    async def fill(self) -> None:
        if self.page is not None and self.page.num_rows:
            return
        if not self._is_begun:
            self._is_begun = True
            self._ahead = await self._next()
        self.page = self._ahead
        if self.page is not None:
            self._ahead = await self._next()

    async def _next(self) -> pa.Table | None:
        async for page in self._pages:
            if page.num_rows:
                return page
        return None

    def take(self, bound: bytes | None) -> pa.Table:
        """Take the keys up to a limit, or all, from the page."""
        assert self.page is not None
        count = self.page.num_rows
        if bound is not None:
            is_within: Any = pc.less_equal(self.page.column("key"), pa.scalar(bound, pa.binary()))
            count = pc.sum(is_within).as_py() or 0
        taken, self.page = self.page.slice(0, count), self.page.slice(count)
        return taken


def _together(pages: Sequence[pa.Table]) -> pa.Table:
    together = pa.concat_tables([KEY_ROWS.empty_table(), *pages])
    return together if len(pages) == 1 else added_up(together)
