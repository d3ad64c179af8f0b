"""How far a log is durable, as far as its writer knows, and who is told when that moves on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

Told: TypeAlias = Callable[[int], object]


@dataclass(slots=True)
class Watermark:
    """The position below which all is durable; it never goes back. 1 says that nothing is known."""

    position: int = 1
    _told: dict[int, Told] = field(default_factory=dict)
    _given: int = 0

    def advance(self, position: int) -> None:
        """Note that all below a position is durable, and tell those who asked, if that is news."""
        if position <= self.position:
            return
        self.position = position
        loop = asyncio.get_running_loop()
        for number in list(self._told):
            # In a turn of the loop of its own: what a listener raises is not the writer's trouble.
            loop.call_soon(self._tell, number, position)

    def subscribe(self, told: Told) -> Callable[[], None]:
        """Have a function called with each new position; return what ends that."""
        self._given += 1
        number = self._given
        self._told[number] = told
        return lambda: self._forget(number)

    def _tell(self, number: int, position: int) -> None:
        if (told := self._told.get(number)) is not None:
            told(position)

    def _forget(self, number: int) -> None:
        self._told.pop(number, None)
