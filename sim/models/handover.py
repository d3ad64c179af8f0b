"""The handover of a collection, with writers, merges, readers, two commands, and a drop.

All steps of all processes are interleaved. The decisions are those of the code: `decide_mark` and
`decide_bar` on the state of a shard. Times are the numbers from 0 to ``TIMES``.

Invariants: all reads of one time read the same rendition. A rendition that readers read is never
dropped, and the time of the mark stays readable in it. A hold on a time that was acknowledged keeps
that time readable in the rendition that is read then.
Source: design page 6, "Record of a handover"; decision 33.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from sim.models.explore import Exploration, explore
from tidelog.errors import HandoverRefused
from tidelog.persist.states.handover import decide_bar, decide_mark
from tidelog.persist.states.state import Mark, State, apply_diff

TIMES: Final = 3
OLD, NEW = "r1", "r2"
RULES: Final = ("hold", "bar", "upper", "copy")  # Without one of them, harm is done.


@dataclass(frozen=True, slots=True)
class World:
    """The shards of both renditions, the catalog, and the next step of each process.

    Shape: ``holds`` are the times that the command holds in the new rendition; ``reader_old`` and
        ``reader_new`` are the times at which a reader's hold is in each rendition. ``seen`` has the
        rendition that was read at each time, or "". ``steps`` are the next steps of the handover
        commands, each with the time that it chose.
    """

    upper_old: int = 1
    upper_new: int = 0
    since_new: int = 0
    mark: tuple[int, str] | None = None
    barred: bool = False
    dropping: bool = False
    listed: bool = True
    dropped: bool = False
    holds: frozenset[int] = frozenset()
    reader_old: int | None = None
    reader_new: int | None = None
    acknowledged: bool = False
    copied: bool = False
    seen: tuple[str, ...] = ("",) * (TIMES + 1)
    steps: tuple[tuple[str, int], ...] = (("begin", 0), ("begin", 0))
    drop: str = "begin"
    hold: str = "begin"


def state_of(world: World) -> State:
    """Return the state of the old rendition's first shard."""
    mark = None if world.mark is None else Mark(*world.mark)
    return State(upper=world.upper_old, mark=mark, barred=(NEW,) if world.barred else ())


@lru_cache(maxsize=4096)
def marked(upper: int, mark: tuple[int, str] | None, barred: bool, at: int) -> bool:
    """Return True if the state machine accepts the mark."""
    state = state_of(World(upper_old=upper, mark=mark, barred=barred))
    try:
        found = decide_mark(state, Mark(at, NEW))
    except HandoverRefused:
        return False
    after = state if found.diff is None else apply_diff(state, found.diff)
    assert after.mark == Mark(at, NEW)
    return True


@lru_cache(maxsize=4096)
def barred(upper: int, mark: tuple[int, str] | None, was: bool) -> bool:
    """Return True if the bar stands afterwards; False if a mark was first."""
    return decide_bar(state_of(World(upper_old=upper, mark=mark, barred=was)), NEW).result is None


@dataclass(frozen=True, slots=True)
class Handover:
    """The model; ``without`` names a rule that is broken."""

    without: str = ""

    def explored(self) -> Exploration[World]:
        return explore(World(), self.successors, check=check, check_step=never_goes_back)

    def successors(self, world: World) -> Iterator[tuple[str, World]]:
        yield from self.writes(world)
        yield from self.reads(world)
        for number in range(len(world.steps)):
            yield from self.hands_over(world, number)
        yield from self.drops(world)
        yield from self.holds(world)

    def writes(self, world: World) -> Iterator[tuple[str, World]]:
        if world.upper_old < TIMES:
            yield "write old", replace(world, upper_old=world.upper_old + 1)
        if world.upper_new < TIMES and not world.dropped:
            yield "write new", replace(world, upper_new=world.upper_new + 1)
        held = [*world.holds, *(() if world.reader_new is None else (world.reader_new,))]
        least = min([world.upper_new - 1, *held])
        if world.since_new < least and not world.dropped:
            yield "merge new", replace(world, since_new=world.since_new + 1)

    def reads(self, world: World) -> Iterator[tuple[str, World]]:
        """Read at a time: the state of the old rendition says which one is read."""
        for time in range(TIMES):
            if world.mark is None or time < world.mark[0]:
                found = OLD if time < world.upper_old else ""
            else:
                found = NEW if time < world.upper_new else ""
            if found and world.seen[time] != found:
                both = found if not world.seen[time] else "both"
                seen = (*world.seen[:time], both, *world.seen[time + 1 :])
                yield f"read {time}", replace(world, seen=seen)

    def hands_over(self, world: World, number: int) -> Iterator[tuple[str, World]]:
        step, at = world.steps[number]

        def then(step: str, at: int, **changed: object) -> World:
            steps = list(world.steps)
            steps[number] = step, at
            return replace(world, steps=tuple(steps), **changed)  # type: ignore[arg-type]

        if step == "begin" and world.mark is None and world.listed and not world.dropping:
            yield f"look {number}", then("look", 0)
        elif step == "look" and not world.dropped:
            low = world.since_new if self.without == "upper" else world.upper_old
            for time in range(max(low, world.since_new), world.upper_new + 1):
                yield f"choose {number} {time}", then("hold", time)
        elif step == "hold" and (world.dropped or at < world.since_new):
            yield f"refused hold {number}", then("end", at)
        elif step == "hold":
            held = world.holds if self.without == "hold" else world.holds | {at}
            yield f"hold {number}", then("mark", at, holds=held)
        elif step == "mark" and self.may_mark(world, at):
            yield f"mark {number}", then("copy", at, mark=(at, NEW))
        elif step == "mark":
            yield f"refused {number}", then("end", at, holds=self.released(world, number))
        elif step == "copy":
            copied = world.reader_new
            if self.without != "copy" and world.reader_old is not None and copied is None:
                copied = max(world.reader_old, at)
            yield f"copy {number}", then("release", at, reader_new=copied, copied=True)
        elif step == "release":
            yield f"release {number}", then("end", at, holds=self.released(world, number))

    def may_mark(self, world: World, at: int) -> bool:
        upper = 0 if self.without == "upper" else world.upper_old
        is_first = world.mark in (None, (at, NEW))
        return is_first and marked(upper, world.mark, world.barred and self.without != "bar", at)

    def released(self, world: World, number: int) -> frozenset[int]:
        """Return the command's holds that stay: the other command may need the same one."""
        others = {
            t for n, (s, t) in enumerate(world.steps) if n != number and s in ("mark", "copy")
        }
        return world.holds - ({world.steps[number][1]} - others)

    def drops(self, world: World) -> Iterator[tuple[str, World]]:
        if world.drop == "begin":
            yield "drop: list", replace(world, dropping=True, drop="bar")
        elif world.drop == "bar":
            if self.without == "bar":
                is_read = world.mark is not None
            else:
                is_read = not barred(world.upper_old, world.mark, world.barred)
            if is_read:
                yield "drop: refused", replace(world, dropping=False, drop="end")
            else:
                yield "drop: bar", replace(world, barred=True, drop="forget")
        elif world.drop == "forget":
            yield "drop: forget", replace(world, listed=False, dropped=True, drop="end")

    def holds(self, world: World) -> Iterator[tuple[str, World]]:
        """A reader holds time 1: first in the old rendition, then it meets the mark or not."""
        if world.hold == "begin":
            yield "reader: hold old", replace(world, reader_old=1, hold="look")
        elif world.hold == "look":
            if world.mark is None:
                yield "reader: no mark", replace(world, hold="end", acknowledged=True)
            elif world.since_new <= max(1, world.mark[0]):
                at = max(1, world.mark[0])
                new = at if world.reader_new is None else world.reader_new
                yield (
                    "reader: hold new",
                    replace(world, reader_new=new, hold="end", acknowledged=True),
                )


def check(world: World) -> str | None:
    """Return the violated invariant of a state."""
    if "both" in world.seen:
        return "two reads of one time read different renditions"
    if world.mark is not None:
        if world.dropped:
            return "a rendition that readers read was dropped"
        at = world.mark[0]
        if not world.copied and at < world.since_new:
            return "the time of the handover is unreadable before the readers' holds are copied"
        if world.acknowledged and max(1, at) < world.since_new:
            return "a time that a reader holds is unreadable"
    return None


def never_goes_back(before: World, after: World) -> str | None:
    """Return a violation if a mark was changed or taken back."""
    if before.mark is not None and after.mark != before.mark:
        return "a mark was changed"
    return None
