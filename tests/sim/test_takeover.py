"""Takeovers of a writer that keeps alpha puts under way end, and soon, whatever puts and gets take.

The table of all cases is ``python -m sim.takeover``.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from sim.canaries.mended import opener_starts_over_where_it_began
from sim.kernel.clock import SimClock
from sim.kernel.loop import run
from sim.takeover import WORK, Case, Net, main, measure
from tidelog.errors import ContentionError, ObjectExists
from tidelog.store.memory import MemoryStore
from tidelog.wal.slot_log import SlotLog
from tidelog.wal.slot_protocol.chain_reader import LINKS_MAX

ROUND_TRIPS_MAX = 12


@pytest.mark.parametrize(("put_ms", "get_ms"), [(60, 60), (100, 20), (20, 100)])
@pytest.mark.parametrize("alpha", [1, 8])
def test_a_takeover_of_a_busy_writer_ends(put_ms: int, get_ms: int, alpha: int) -> None:
    """Within 12 round trips, its own first append included, and 4 x alpha + 20 requests."""
    found = measure(Case(put_ms=put_ms, get_ms=get_ms, alpha=alpha), WORK["takeover"])

    assert found is not None, "the takeover never ended"
    assert found.requests <= 4 * alpha + 20
    assert found.trips <= ROUND_TRIPS_MAX
    assert found.seconds <= ROUND_TRIPS_MAX * max(put_ms, get_ms) / 1_000 * 1.2  # Jitter.


def test_an_opener_that_goes_no_farther_never_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever fences again and again where the writer has been: the table would show it."""
    monkeypatch.setattr("sim.takeover.PATIENCE_S", 3)

    with opener_starts_over_where_it_began():
        found = measure(Case(put_ms=20, get_ms=100, alpha=1), WORK["takeover"])

    assert found is None


def test_slots_that_the_manifest_does_not_name_are_walked() -> None:
    """Each is a get more, several at once: a roll-up is due once a second, whatever a put takes."""
    found = measure(Case(put_ms=10, get_ms=10, alpha=1), WORK["takeover"])

    assert found is not None, "the takeover never ended"
    assert found.walked > 20
    assert found.requests - found.walked <= 4 + 20
    assert found.trips <= ROUND_TRIPS_MAX + -(-found.walked // LINKS_MAX)


def test_round_trips_are_the_longest_chain_of_requests() -> None:
    """What is sent at once counts once, and what waits for the slowest of them counts on top."""

    async def ask() -> tuple[int, int, int]:
        net = Net(MemoryStore(), SimClock(1), 60_000, 20_000, random.Random(1))

        async def look_twice() -> None:
            await net.refresh(key, e_tag)
            await net.refresh(key, e_tag)

        key, slot = "x", "log/x/epoch/1/00/1.parquet"
        await net.put(slot, b"1")
        e_tag = await net.put(key, b"1")
        await asyncio.gather(net.put("y", b"1"), look_twice())
        await net.delete(["y"])
        with suppress(ObjectExists):
            await net.put(slot, b"2", if_absent=True)
        for _ in range(2):  # The first reads back what was in the way.
            await net.get(slot)
        return net.trips, net.requests, net.walked

    found: list[tuple[int, int, int]] = []

    async def keep() -> None:
        found.append(await ask())

    run(keep, 1)

    # Two puts, two looks beside another put, a deletion; a refused put, and two gets.
    assert found == [(8, 9, 1)]


def test_the_table_tells_round_trips_and_requests(capsys: pytest.CaptureFixture[str]) -> None:
    """The docs cite what it prints: who checks them must find the same units there."""
    assert main(["--work", "bounds", "--seeds", "1", "--alpha", "1"]) == 0

    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["put/get", "ms", "alpha", "bounds"]
    assert len(rows) == 5
    assert all(" trips " in row and " rq, " in row and row.endswith(" walked") for row in rows)


def test_who_gives_up_is_told_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """One line of work that never comes through must not keep the others from being printed."""

    async def lose(log: SlotLog) -> None:
        raise ContentionError("others were first every time")

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(WORK, "bounds", lose)
        assert main(["--work", "bounds", "--seeds", "1", "--alpha", "1"]) == 0

    rows = capsys.readouterr().out.splitlines()[1:]
    assert all(row.endswith("gave up: others were first") for row in rows)
    assert len(rows) == 5
