"""Takeovers of a writer that keeps alpha puts under way end soon, at any latency.

``python -m sim.takeover`` prints the table of all cases.
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
    """A takeover ends within 12 round trips, with its first append, and 4 x alpha + 20 requests."""
    found = measure(Case(put_ms=put_ms, get_ms=get_ms, alpha=alpha), WORK["takeover"])

    assert found is not None, "the takeover never ended"
    assert found.requests <= 4 * alpha + 20
    assert found.trips <= ROUND_TRIPS_MAX
    assert found.seconds <= ROUND_TRIPS_MAX * max(put_ms, get_ms) / 1_000 * 1.2  # Jitter.


def test_an_opener_that_goes_no_farther_never_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """An opener that fences only slots the writer has passed never takes over."""
    monkeypatch.setattr("sim.takeover.PATIENCE_S", 3)

    with opener_starts_over_where_it_began():
        found = measure(Case(put_ms=20, get_ms=100, alpha=1), WORK["takeover"])

    assert found is None


def test_slots_that_the_manifest_does_not_name_are_walked() -> None:
    """An opener gets each unnamed slot, several at once, as roll-ups are due only once a second."""
    found = measure(Case(put_ms=10, get_ms=10, alpha=1), WORK["takeover"])

    assert found is not None, "the takeover never ended"
    assert found.walked > 20
    assert found.requests - found.walked <= 4 + 20
    assert found.trips <= ROUND_TRIPS_MAX + -(-found.walked // LINKS_MAX)


def test_round_trips_are_the_longest_chain_of_requests() -> None:
    """Parallel requests count as one trip, and a request after the slowest adds another."""

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
        for _ in range(2):  # The first get reads back the object that refused the put.
            await net.get(slot)
        return net.trips, net.requests, net.walked

    found: list[tuple[int, int, int]] = []

    async def keep() -> None:
        found.append(await ask())

    run(keep, 1)

    # Two puts, two refreshes next to another put, a deletion; a refused put, and two gets.
    assert found == [(8, 9, 1)]


def test_the_table_tells_round_trips_and_requests(capsys: pytest.CaptureFixture[str]) -> None:
    """The table names seconds, trips and requests, since the docs cite them."""
    assert main(["--work", "bounds", "--seeds", "1", "--alpha", "1"]) == 0

    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["put/get", "ms", "alpha", "bounds"]
    assert len(rows) == 5
    assert all(" trips " in row and " rq, " in row and row.endswith(" walked") for row in rows)


def test_who_gives_up_is_told_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """The table reports an operation that gives up, and prints the other lines."""

    async def lose(log: SlotLog) -> None:
        raise ContentionError("others were first every time")

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(WORK, "bounds", lose)
        assert main(["--work", "bounds", "--seeds", "1", "--alpha", "1"]) == 0

    rows = capsys.readouterr().out.splitlines()[1:]
    assert all(row.endswith("gave up: others were first") for row in rows)
    assert len(rows) == 5
