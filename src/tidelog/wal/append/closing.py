"""Handles that an ``async with`` block closes."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import Self

from tidelog.errors import TidelogError


class ClosingHandle(abc.ABC):
    """A handle that is closed at the end of its block, also after an error."""

    __slots__ = ()

    @abc.abstractmethod
    async def close(self) -> None:
        """Wait until every append has its answer, and refuse further ones."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except TidelogError as failed:
            if error is None:
                raise
            error.add_note(f"closing the log also failed: {failed}")
