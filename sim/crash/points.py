"""Crash points: every fault that can strike a client's request, tried at each of its requests.

A story runs once to count its victim's requests. It then runs once for each request and fault; an
heir recovers, and all invariants are checked.

A request has four outcomes: it happened or not, and the victim got the answer or not. In each, the
victim dies or continues with what it knows. In addition, a victim can get an error before its
change lands.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Protocol

from sim.checkers.demands import demand
from sim.kernel.faults import Fault, Script
from sim.kernel.world import Client

VICTIM: Final = "victim"

KILLED: Final = tuple(
    Fault(happened=happened, told=told, dies=True)
    for happened in (True, False)
    for told in (True, False)
)
FAILED: Final = (
    Fault(happened=True, told=False),
    Fault(happened=False, told=True),
    Fault(happened=False, told=False),
    Fault(happened=False, told=False, late_us=40_000),
)


class Story(Protocol):
    """The work of the victim and other clients, the recovery, and the checks."""

    name: str

    def tell(self, schedule: Script, *, seed: int) -> int:
        """Run the story and check it; return the number of the victim's requests.

        Raises:
            Violated: a check failed.
        """
        ...


@dataclass(slots=True)
class Marks:
    """The purpose of the victim's requests, by the first request of each step without faults."""

    begins: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def begin(self, name: str, client: Client) -> None:
        """Record that the victim's next requests are for ``name``."""
        if client.name == VICTIM:
            self.begins.append(client.requests_count)
            self.names.append(name)

    def at(self, index: int) -> str:
        place = bisect_right(self.begins, index)
        return self.names[place - 1] if place else ""


@dataclass(slots=True)
class Visits:
    """The results of a visit: the victim's ``requests`` without faults, and the faults tried.

    ``struck_at`` counts faults by the purpose of the request, if the story records it.
    """

    story: str
    requests: int
    visited: int = 0
    struck: int = 0
    struck_at: Counter[str] = field(default_factory=Counter)


def visit(
    story: Story,
    *,
    faults: tuple[Fault, ...] = (*KILLED, *FAILED),
    seed: int = 0,
    stride: int = 1,
) -> Visits:
    """Visit the crash points of a story: all, or one in ``stride``.

    Raises:
        AssertionError: a check failed; the message names the request and the fault.
    """
    untroubled = Script()
    found = Visits(story.name, story.tell(untroubled, seed=seed))
    demand(found.requests > 0, "the victim asked for nothing")
    about = _about(story, untroubled)
    for index in range(found.requests):
        for number, fault in enumerate(faults):
            if (index + number) % stride:
                continue
            script = Script({(VICTIM, index): fault})
            try:
                story.tell(script, seed=seed)
            except Exception as error:
                raise AssertionError(
                    f"{story.name}: at request {index} of seed {seed}, {fault}"
                ) from error
            found.visited += 1
            if any(r.client == VICTIM and r.index == index for r in script.seen):
                found.struck += 1
                found.struck_at[about.get(index, "")] += 1
    return found


def kinds_of(story: Story, *, faults: tuple[Fault, ...], stride: int) -> Counter[str]:
    """Return the purposes of the requests that `visit` would strike, if no fault changed them."""
    untroubled = Script()
    story.tell(untroubled, seed=0)
    about = _about(story, untroubled)
    places = ((n, k) for n in about for k in range(len(faults)))
    return Counter(about[index] for index, k in places if not (index + k) % stride)


def _about(story: Story, untroubled: Script) -> dict[int, str]:
    """Return the purpose of each of the victim's requests."""
    marks: Marks = getattr(story, "marks", Marks())
    marks = Marks(list(marks.begins), list(marks.names))
    keys = {r.index: r.key for r in untroubled.seen if r.client == VICTIM}
    return {n: "rollup" if "/rollup/" in key else marks.at(n) for n, key in keys.items()}
