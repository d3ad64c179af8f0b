"""The requests of a tick stay within limits; `bench/ticks.py` measures them."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import Any

import pytest

from tidelog.location import open_location

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(name="bench")
def _bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("ticks")


# Puts, gets and lists of a tick, at most. Lower a limit after a change that saves requests.
BUSY = {
    (False, 1): (1.6, 0.2, 0),
    (False, 3): (2.1, 0.2, 0),
    (True, 1): (1.6, 0.2, 0),
    (True, 3): (2.1, 0.2, 0),
}


@pytest.mark.parametrize(("timed", "shards"), BUSY)
def test_a_tick_needs_few_requests(bench: Any, tmp_path: Path, timed: bool, shards: int) -> None:
    """Each request of a tick is paid for at each tick, and this keeps the benchmark running."""
    url = str(tmp_path / "in")
    run = bench.Run(shards=shards, timed=timed, ticks=12)

    cost = asyncio.run(run.measure(bench.Place(None, url, url)))

    puts, gets, lists = BUSY[timed, shards]
    found, files = cost.location, cost.files
    assert cost.ticks == 12
    assert 1 <= found.put_count / cost.ticks <= puts, cost.requests
    assert found.get_count / cost.ticks <= gets, cost.requests
    assert found.list_count / cost.ticks <= lists, cost.requests
    # A slow machine may list again before a binding.
    assert files.get_count == 12 <= files.list_count <= 24
    assert len(cost.requests) >= 1


def test_a_merge_reads_no_part_that_this_process_wrote(bench: Any, tmp_path: Path) -> None:
    """A tick of a thousand rows writes a part, which is merged once at least."""
    url = str(tmp_path / "in")
    run = bench.Run(rows=1_000, ticks=12)

    cost = asyncio.run(run.measure(bench.Place(None, url, url)))

    assert cost.location.put_count / cost.ticks >= 2
    assert cost.location.get_count / cost.ticks <= 0.2, cost.requests


@pytest.mark.parametrize("cache", ["off", "1MiB", None])
async def test_the_ingesters_of_a_location_share_a_cache_unless_one_is_set(
    cache: str | None,
) -> None:
    """A user who sets the cache also limits the memory of the ingesters."""
    location = await open_location("memory://", create=True, cache=cache)

    assert (location.ingest_store is location.store) == (cache is not None)
    assert location.ingest_store is location.ingest_store


def test_an_idle_source_needs_few_requests(bench: Any, tmp_path: Path) -> None:
    """A location may have a hundred sources, most of which get no data for hours."""
    url = str(tmp_path / "in")
    run = bench.Run(hours=0.5, interval=60)

    cost = asyncio.run(run.measure(bench.Place(None, url, url)))

    assert 0.49 < cost.hours < 0.55
    assert 1 < cost.location.put_count <= 100
    assert cost.location.get_count <= 35
    assert cost.location.list_count == 0
    assert 25 < cost.files.list_count <= 35
