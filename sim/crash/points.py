"""Crash points: whatever can befall a client at a request, tried at each of its requests.

A story is told once to count its victim's requests, then once for each of them and each fate there;
then it is recovered from, and all invariants are checked.

The four outcomes are: did it happen or not, was the victim told or not. At each, the victim either
dies, or lives on with what it was told; a failure can besides be told before the change lands.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Protocol

from sim.checkers.demands import demand
from sim.kernel.fates import Fate, Script
from sim.kernel.world import Client

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
class Marks:
    """From which of the victim's requests on a story, as it goes untroubled, is about what."""

    begins: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def begin(self, name: str, client: Client) -> None:
        """Note that what the victim asks for from now on is for ``name``."""
        if client.name == VICTIM:
            self.begins.append(client.requests_count)
            self.names.append(name)

    def at(self, index: int) -> str:
        place = bisect_right(self.begins, index)
        return self.names[place - 1] if place else ""


@dataclass(slots=True)
class Visits:
    """What was visited: ``requests`` of the victim in the untroubled story, and fates at them.

    ``struck_at`` counts fates by what the request was for, where the story tells.
    """

    story: str
    requests: int
    visited: int = 0
    struck: int = 0
    struck_at: Counter[str] = field(default_factory=Counter)


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
    untroubled = Script()
    found = Visits(story.name, story.tell(untroubled, seed=seed))
    demand(found.requests > 0, "the victim asked for nothing")
    about = _about(story, untroubled)
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
            if any(r.client == VICTIM and r.index == index for r in script.seen):
                found.struck += 1
                found.struck_at[about.get(index, "")] += 1
    return found


def kinds_of(story: Story, *, fates: tuple[Fate, ...], stride: int) -> Counter[str]:
    """Return at what `visit` would strike, by kinds, as far as nothing changes by being struck."""
    untroubled = Script()
    story.tell(untroubled, seed=0)
    about = _about(story, untroubled)
    places = ((n, k) for n in about for k in range(len(fates)))
    return Counter(about[index] for index, k in places if not (index + k) % stride)


def _about(story: Story, untroubled: Script) -> dict[int, str]:
    """Return what each of the victim's requests is for."""
    marks: Marks = getattr(story, "marks", Marks())
    marks = Marks(list(marks.begins), list(marks.names))
    keys = {r.index: r.key for r in untroubled.seen if r.client == VICTIM}
    return {n: "rollup" if "/rollup/" in key else marks.at(n) for n, key in keys.items()}
