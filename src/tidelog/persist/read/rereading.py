"""Reading while parts are merged and deleted: by the newest state, where it must.

A merge changes no contents, so that who has given out nothing yet begins again, and nobody sees it.
Source: persist, "Compaction"; design page 4, "Reading".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypeVar

from tidelog.errors import PartMissing, ReadOvertaken

READS_MAX: Final = 5

T = TypeVar("T")


async def reread(
    read: Callable[[], AsyncGenerator[T, None]],
    check: Callable[[PartMissing], Awaitable[object]],
) -> AsyncGenerator[T, None]:
    """Yield what ``read`` does, begun anew where a part was missing before it yielded anything.

    ``check`` reads the newest state, and raises where that does not tell of other parts.

    Raises:
        ReadOvertaken: what was still to come was merged and deleted meanwhile. Whatever ``read``
            and ``check`` raise.
    """
    has_begun = False
    for _ in range(READS_MAX):
        try:
            async with aclosing(read()) as pieces:
                async for piece in pieces:
                    has_begun = True
                    yield piece
        except PartMissing as error:
            await check(error)
            if has_begun:
                break
        else:
            return
    raise overtaken()


def overtaken() -> ReadOvertaken:
    """Return the error of a read whose parts go quicker than it reads them."""
    return ReadOvertaken(
        "what was still to be read was merged and deleted meanwhile: read again, or collect less "
        "eagerly (tidelog collect --after)"
    )
