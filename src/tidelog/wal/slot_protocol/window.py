"""Puts under way in one epoch: which slots may be acknowledged, and when the writer is over. Pure.

A slot is acknowledged when its own put and all earlier ones were answered as done. A fence that is
met decides nothing about lower slots: their puts are sent until they are answered, and may meet a
fence that is lower still.
Invariants: ``base <= committed <= next``; at most alpha slots from ``committed`` on were given out:
`tidelog.wal.slot_protocol.burst` says how an opener gets ahead of them.
Source: wal3-draft, "Concurrent Writes"; design page 3, "Append"; docs/decisions/0010.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class SendWindow:
    """The slots that a writer was given: ``[base, next)``; those below ``base`` are settled."""

    base: int
    next: int
    done: frozenset[int] = frozenset()
    fence: int | None = None

    @property
    def committed(self) -> int:
        """Return the first slot of which it is not known that its data is in the log."""
        slot = self.base
        while slot in self.done and slot != self.fence:
            slot += 1
        return slot

    @property
    def is_over(self) -> bool:
        """Say whether every slot is settled: those below the first fence are in, no others."""
        return self.fence is not None and self.committed == self.fence

    def has_room(self, alpha: int) -> bool:
        """Say whether another put may be sent."""
        return self.fence is None and self.next - self.committed < alpha


def launch(window: SendWindow) -> SendWindow:
    """Assign the next slot."""
    return replace(window, next=window.next + 1)


def answer(window: SendWindow, slot: int) -> SendWindow:
    """Note that the data of a slot is there."""
    noted = replace(window, done=window.done | {slot})
    base = noted.committed
    return replace(noted, base=base, done=frozenset(s for s in noted.done if s >= base))


def meet_fence(window: SendWindow, slot: int) -> SendWindow:
    """Note that a fence is in a slot instead."""
    fence = slot if window.fence is None else min(window.fence, slot)
    return replace(window, fence=fence)
