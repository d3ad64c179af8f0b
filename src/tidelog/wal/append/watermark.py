"""The durable position of a log, as far as its writer knows, and its listeners."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

Told: TypeAlias = Callable[[int], object]


@dataclass(slots=True)
class Watermark:
    """The position below which all records are durable. It never falls; 1 means unknown."""

    position: int = 1
    _told: dict[int, Told] = field(default_factory=dict)
    _given: int = 0

    def advance(self, position: int) -> None:
        """Raise the durable position, and call the listeners if it rose."""
        if position <= self.position:
            return
        self.position = position
        loop = asyncio.get_running_loop()
        for number in list(self._told):
            # Each listener runs in a callback of its own, so its error cannot stop the writer.
            loop.call_soon(self._tell, number, position)

    def subscribe(self, told: Told) -> Callable[[], None]:
        """Call a function with each new position; return a function that ends the subscription."""
        self._given += 1
        number = self._given
        self._told[number] = told
        return lambda: self._forget(number)

    def _tell(self, number: int, position: int) -> None:
        if (told := self._told.get(number)) is not None:
            told(position)

    def _forget(self, number: int) -> None:
        self._told.pop(number, None)
