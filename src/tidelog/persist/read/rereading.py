"""Rereading: a read whose parts were merged and deleted continues from the newest state.

A merge does not change the contents. A read that has not yet yielded anything can therefore start
again, unnoticed by its caller.
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
    """Yield from ``read``; start it again if a part is missing before the first piece.

    ``check`` reads the newest state, and raises if that state names no other parts.

    Raises:
        ReadOvertaken: the rest of the read was merged and deleted concurrently. All errors of
            ``read`` and ``check``.
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
    """Return the error of a read whose parts are deleted faster than it reads them."""
    return ReadOvertaken(
        "a merge and a collector deleted objects before the read reached them: read again, or "
        "collect later ('tidelog collect --grace', in Python after_us=)"
    )
