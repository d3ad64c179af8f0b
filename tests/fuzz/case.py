"""One case: a specimen, changed in one or two places by the dice of a seed and a number."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from fuzz.asking import CHANGED, TIME, Asker, Complaint
from fuzz.clock import StillClock
from fuzz.looking import Looker
from fuzz.mutation import Mutation, mutate
from fuzz.specimens import RECIPES, Specimen, specimen, store_of
from fuzz.unseen import reason_of
from fuzz.writing import Doer
from tidelog.wal.logs import Logs

WEIGHTS: Final = {"slots ahead": 5, "slots collected": 3, "wal3": 5, "Chroma's a_tiny": 4}
NO_LIMIT: Final = nullcontext()
WRITES: Final = 2  # The number of writing steps in each case.


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The result of a case: complaints, and changes that no reader can detect."""

    seed: int
    number: int
    specimen: str
    done: Sequence[Mutation]
    complaints: list[Complaint] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)

    def judge(self, complaint: Complaint, found: Specimen) -> None:
        """Sort a complaint into one of the two lists."""
        if reason := reason_of(complaint, self.done, found):
            self.unseen.append(reason)
        else:
            self.complaints.append(complaint)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, case {self.number}: {self.specimen}"]
        lines += [f"  {each}" for each in self.done]
        lines += [f"    {each}" for each in self.complaints]
        return "\n".join(lines)


class OutOfTime(BaseException):
    """The time limit of a case. As a BaseException, it is not caught as an error of the case."""


def run_case(
    seed: int, number: int, *, limit: AbstractContextManager[object] = NO_LIMIT
) -> Outcome:
    """Run one case.

    The same seed and number give the same case.

    ``limit`` is a context that raises OutOfTime after its time.
    """
    found, objects, done, dice = prepare(seed, number)
    outcome = Outcome(seed=seed, number=number, specimen=found.name, done=done)
    askers: list[Asker] = []
    try:
        with limit:
            asyncio.run(_ask_all(found, objects, dice, askers))
    except OutOfTime:
        last = askers[-1]
        last.complain(TIME, last.step, "it goes on")
    for asker in askers:
        for complaint in asker.complaints:
            outcome.judge(complaint, found)
    return outcome


def prepare(
    seed: int, number: int
) -> tuple[Specimen, dict[str, bytes], list[Mutation], random.Random]:
    """Choose a specimen and change it. Return both, the changes, and the dice for the rest."""
    dice = random.Random(f"fuzz {seed} {number}")
    (name,) = dice.choices(list(RECIPES), [WEIGHTS.get(name, 2) for name in RECIPES])
    found = specimen(name)
    return found, *mutate(found, dice), dice


async def _ask_all(
    found: Specimen, objects: dict[str, bytes], dice: random.Random, askers: list[Asker]
) -> None:
    for name, truth in found.logs.items():
        if not found.touches(objects, name):
            continue
        asker, clock = Asker(name), StillClock("case")
        askers.append(asker)
        store = store_of(objects)
        log = await asker.ask("open", Logs(store=store, clock=clock, writer="looker").open(name))
        is_whole = (
            log is not None
            and await Looker(asker=asker, log=log, truth=truth, clock=clock, dice=dice).look()
        )
        if {key: one.data for key, one in store.objects.items()} != objects:
            asker.complain(CHANGED, "look", "whoever only looked has changed something")
        doer = Doer(
            asker=asker, objects=objects, truth=truth, clock=clock, dice=dice, is_whole=is_whole
        )
        await doer.do(WRITES)
