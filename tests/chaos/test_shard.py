"""Eight processes on one shard, killed and stopped, with wrong clocks: the contents are right.

A checker of consensus histories judges the printed lines from outside. An interval of one time and
one row is a record, upper is the head, and a snapshot is a scan.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest

from chaos.conftest import Fight
from chaos.fighters import ANSWERS, SECONDS, check_fight, fight
from kit.shards import Place
from sim.checkers.linear import UNSURE, History, Read, Set, check_history
from tidelog.persist.maintenance.sweeper import usage_of_shard

LOST_MIN = 3  # Lost races of a fight.


def history_of(said: list[tuple[str, list[Any]]]) -> History:
    """Return calls and answers. A call without an answer is unsure, and may land at any time."""
    found = History()
    begun: dict[str, tuple[str, int, float]] = {}
    ended: dict[str, tuple[str, float]] = {}
    for name, (what, *rest) in said:
        if what == "begins":
            begun[rest[0]] = (name, rest[1], rest[2])
        elif what in ANSWERS:
            ended[rest[0]] = (ANSWERS[what], rest[2])
        elif what == "read":
            seen = tuple((seqno, value.encode()) for seqno, value in rest[1])
            read = Read(client=name, begin=rest[0], end=rest[2], start=1, found=seen)
            found.reads.append(read)
    for value, (name, lower, begin) in begun.items():
        answer, end = ended.get(value, (UNSURE, math.inf))
        end = math.inf if answer == UNSURE else end
        found.sets.append(
            Set(
                client=name,
                seqno=lower + 1,
                value=value.encode(),
                begin=begin,
                end=end,
                answer=answer,
            )
        )
    return found


async def read_all(place: Place) -> list[list[Any]]:
    """Return each row with its time, as a new reader sees it; all objects are accounted for."""
    reader = place.shard()
    upper = (await reader.upper()).time
    table = await (await reader.snapshot(upper - 1)).to_arrow()
    assert set(table.column("_diff").to_pylist()) == {1}
    for _ in range(4):
        await place.shard().collect(after_us=0)
        await place.shard().sweep()
    usage = await usage_of_shard(place.shard())
    listed = [entry async for entry in place.store.list("shard/s/")]
    assert sum(usage.objects.values()) == len(listed)
    again = await (await place.shard().snapshot(upper - 1)).to_arrow()
    assert again.equals(table)
    found: list[dict[str, Any]] = table.to_pylist()
    return sorted([row["c1"] + 1, row["c0"].rstrip()] for row in found)


@pytest.mark.timeout(1200 + SECONDS)
def test_t60_what_processes_at_one_shard_are_told_is_linearizable(
    fought_at: Fight,
) -> None:
    """The results that processes print are linearizable under kills, stops, clocks, outages."""
    place, where, outage = fought_at
    asyncio.run(place.shard().hold("history", 0))
    fought = fight(where, "shard_writer", seed=7, outage=outage, lost=LOST_MIN)
    found = asyncio.run(read_all(place))
    now = time.monotonic()
    fought.said.append(("last", ["read", now, found, now + 1]))
    history = history_of(fought.said)
    assert [seqno for seqno, _ in found] == [*range(1, len(found) + 1)]
    check_history(history)
    check_fight(
        fought, (call.answer for call in history.sets), lost=LOST_MIN, outage=outage is not None
    )


def test_a_row_that_is_lost_or_doubled_is_seen() -> None:
    """The canary: the checker detects a lost or doubled row."""
    said: list[tuple[str, list[Any]]] = [
        ("a", ["begins", "a 0", 0, 1.0]),
        ("a", ["landed", "a 0", 0, 2.0]),
        ("b", ["begins", "b 0", 0, 1.0]),
        ("b", ["lost", "b 0", 0, 2.5]),
    ]
    for found in ([], [[1, "b 0"]], [[1, "a 0"], [2, "a 0"]]):
        with pytest.raises(AssertionError):
            check_history(history_of([*said, ("last", ["read", 3.0, found, 4.0])]))
    check_history(history_of([*said, ("last", ["read", 3.0, [[1, "a 0"]], 4.0])]))
