"""Crash points: whatever can befall a client at a request, tried at each of its requests.

A story is told once to count its victim's requests, then once for each of them and each fate there;
then it is recovered from, and all invariants are checked.

The four outcomes are: did it happen or not, was the victim told or not. At each, the victim either
dies, or lives on with what it was told; a failure can besides be told before the change lands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from sim.checkers.demands import demand
from sim.kernel.fates import Fate, Script

VICTIM: Final = "victim"

KILLED: Final = tuple(
    Fate(happened=happened, told=told, dies=True)
    for happened in (True, False)
    for told in (True, False)
)
FAILED: Final = (
    Fate(happened=True, told=False),
    Fate(happened=False, told=True),
    Fate(happened=False, told=False),
    Fate(happened=False, told=False, late_us=40_000),
)


class Story(Protocol):
    """What the victim and the others do, how it is recovered from, and what must hold after."""

    name: str

    def tell(self, fates: Script, *, seed: int) -> int:
        """Tell the story and check it; return how many requests the victim made.

        Raises:
            Violated: something does not hold.
        """
        ...


@dataclass(slots=True)
class Visits:
    """What was visited: ``requests`` of the victim in the untroubled story, and fates at them."""

    story: str
    requests: int
    visited: int = 0
    struck: int = 0


def visit(
    story: Story,
    *,
    fates: tuple[Fate, ...] = (*KILLED, *FAILED),
    seed: int = 0,
    stride: int = 1,
) -> Visits:
    """Visit the crash points of a story: all, or one in ``stride``.

    Raises:
        AssertionError: the sentence says at which request which fate did harm.
    """
    found = Visits(story.name, story.tell(Script(), seed=seed))
    demand(found.requests > 0, "the victim asked for nothing")
    for index in range(found.requests):
        for number, fate in enumerate(fates):
            if (index + number) % stride:
                continue
            script = Script({(VICTIM, index): fate})
            try:
                story.tell(script, seed=seed)
            except Exception as error:
                raise AssertionError(
                    f"{story.name}: at request {index} of seed {seed}, {fate}"
                ) from error
            found.visited += 1
            found.struck += any(r.client == VICTIM and r.index == index for r in script.seen)
    return found
