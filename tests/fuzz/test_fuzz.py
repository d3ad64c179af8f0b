"""Damaged logs give written records or an error, for 2,000 changes of all kinds of objects.

More of them, and others: ``make fuzz FUZZ_ARGS="--seed 7 --cases 20000"``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz import looking, unseen
from fuzz.asking import Asker
from fuzz.case import prepare, run_case
from fuzz.clock import StillClock
from fuzz.looking import Looker
from fuzz.runner import run
from fuzz.specimens import RECIPES, Truth, specimen, store_of
from fuzz.writing import Doer
from tidelog.wal.logs import Logs

SEED, CASES, SHARES = 1, 2_000, 4
DOCS = Path(__file__).resolve().parents[2] / "docs/internals"
NAME = "slots ahead"


@pytest.mark.parametrize("share", range(SHARES))
def test_no_change_is_served_as_the_truth(share: int) -> None:
    """Each answer, and each copy, is the truth or a named error, within 1 GB and 10 s of CPU.

    A failed case runs again by its number: ``make fuzz FUZZ_ARGS="--seed 1 --case N"``.
    """
    step = CASES // SHARES

    report = run(SEED, share * step, (share + 1) * step)

    assert report.cases == step
    assert not report.failed, str(report)


def test_all_kinds_of_objects_are_changed_in_all_ways() -> None:
    """The test above would otherwise prove little."""
    done = [each for number in range(600) for each in prepare(SEED, number)[2]]
    roles, kinds = Counter(each.role for each in done), Counter(each.kind for each in done)

    wanted = {"manifest", "snapshot", "data", "fence", "fragment", "cursor", "pin", "plan"}
    assert {role for role, count in roles.items() if count >= 10} >= wanted, roles
    assert set(kinds) >= {"bytes", "json", "parquet", "lost", "copied", "swapped", "strayed"}
    assert sum(each.is_summed for each in done) > 100


def test_a_case_is_the_same_each_time() -> None:
    """A case is the same each time, so that a failure can be repeated."""
    for number in range(5):
        one, other = run_case(SEED, number), run_case(SEED, number)
        assert str(one) == str(other)
        assert prepare(SEED, number)[1] == prepare(SEED, number)[1]


@pytest.fixture(scope="module")
def made() -> None:
    """Make all specimens before any loop runs, for any order of tests."""
    for name in RECIPES:
        specimen(name)


async def asked(name: str, change: Callable[[Truth], Truth] = lambda truth: truth) -> Asker:
    """Make all calls on an unchanged log, and compare them with a truth that may be changed."""
    found = specimen(name)
    truth, clock, dice = change(found.logs["log"]), StillClock("test"), random.Random(name)
    asker = Asker("log")
    logs = Logs(store=store_of(found.objects), clock=clock, writer="test")
    log = await logs.open("log")
    looker = Looker(asker=asker, log=log, truth=truth, clock=clock, dice=dice)
    is_whole = await looker.look()
    doer = Doer(
        asker=asker,
        objects=found.objects,
        truth=truth,
        clock=clock,
        dice=dice,
        is_whole=is_whole,
    )
    await doer.do(doer.steps_count)
    return asker


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("name", RECIPES)
async def test_unchanged_specimens_give_no_complaint(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other complaint is then about a change."""
    monkeypatch.setattr(looking, "ASKED", 8)

    found = await asked(name)

    assert [str(complaint) for complaint in found.complaints] == []


LIES: dict[str, tuple[Callable[[Truth], Truth], set[str]]] = {
    "a record": (
        lambda t: replace(t, rows=[*t.rows[:3], (4, 0, None, b"never written"), *t.rows[4:]]),
        {"scan", "fetch", "follow"},
    ),
    "a record more": (
        lambda t: replace(t, rows=[*t.rows, (t.next, 0, None, b"")], next=t.next + 1),
        {"scan", "bounds", "describe"},
    ),
    "a pin": (lambda t: replace(t, pins={**t.pins, "part": t.rows[:1]}), {"pin part"}),
    "a cursor": (lambda t: replace(t, cursors={"slow": 1}), {"cursors"}),
    "streams": (lambda t: replace(t, streams=[b"other"]), {"streams"}),
    "a seal": (lambda t: replace(t, is_sealed=True), {"seal"}),
    "what was collected": (
        lambda t: replace(t, history={**t.history, 2: (2, 0, None, b"")}),
        {"rebuild, then scan"},
    ),
}


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_is_found(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: each question complains if the log differs from the expected truth."""
    monkeypatch.setattr(looking, "ASKED", 8)
    change, steps = LIES[lie]

    found = await asked(NAME, change)

    assert {complaint.step for complaint in found.complaints} >= steps


def test_what_cannot_be_seen_is_in_the_docs() -> None:
    """The docs list every undetectable change in the words of its rule."""
    docs = " ".join((DOCS / "log-claims.md").read_text().split())
    docs += " ".join((DOCS / "wal3.md").read_text().split())
    for rule in unseen.RULES:
        sentence = (rule.__doc__ or "").partition("\n")[0].rstrip(".")
        assert sentence.lower() in docs.lower(), sentence
