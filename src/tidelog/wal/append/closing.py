"""Handles that are closed at the end of an ``async with``."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import Self

from tidelog.errors import TidelogError


class Closing(abc.ABC):
    """Something to close, whatever ended its use."""

    __slots__ = ()

    @abc.abstractmethod
    async def close(self) -> None:
        """Wait until all that was appended has been answered, and refuse more."""

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
            error.add_note(f"and closing said: {failed}")
