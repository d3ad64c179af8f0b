"""The requests of a process that dies at a write."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.testing.faulty import NO_FAULT, Fault, Request


@dataclass
class DiesWriting:
    """The faults of a process that dies at its write ``number``: all later requests fail.

    With ``landed``, that write takes effect, although its answer is lost.
    """

    number: int
    landed: bool
    writes: int = 0

    @property
    def died(self) -> bool:
        return self.writes > self.number

    def toss(self, request: Request) -> Fault:
        if self.died:
            return Fault(happened=False)
        self.writes += request.changes
        is_last = self.writes == self.number + 1
        return Fault(happened=self.landed, told=False) if is_last else NO_FAULT
