"""Eight processes that commit to several shards at once, killed and stopped: all or nothing, once.

A checker judges the printed lines from outside: see `sim.checkers.linear_transactions`.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest

from chaos.conftest import Fight
from chaos.fighters import ANSWERS, SECONDS, check_fight, fight
from chaos.shard_writer import SCHEMA, rows_of
from chaos.transaction_writer import ALWAYS, LOOSE, NAME
from kit.clocks import SwiftClock
from kit.shards import Place
from sim.checkers.linear import UNSURE, NotLinear
from sim.checkers.linear_transactions import Commit, Look, check_transactions_outside
from tidelog.persist.transactions.transactions import Transactions

Said = list[tuple[str, list[Any]]]

LOST_MIN = 2  # Lost races of a fight.


def commits_of(said: Said) -> list[Commit]:
    """Return calls and answers. A call without an answer is unsure, and may land at any time."""
    ended = {rest[0]: (ANSWERS[what], rest[2]) for _, (what, *rest) in said if what in ANSWERS}
    found: list[Commit] = []
    for client, (what, *rest) in said:
        if what != "begins":
            continue
        name, lower, shards, begin = rest
        answer, end = ended.get(name, (UNSURE, math.inf))
        commit = Commit(
            client=client,
            name=name,
            lower=lower,
            shards=frozenset(shards),
            begin=begin,
            end=math.inf if answer == UNSURE else end,
            answer=answer,
        )
        found.append(commit)
    return found


def looks_of(said: Said) -> list[Look]:
    found: list[Look] = []
    for client, (what, *rest) in said:
        if what == "read":
            begin, shards, end = rest
            seen = {name: tuple((at, who) for at, who in rows) for name, rows in shards.items()}
            found.append(Look(client=client, begin=begin, end=end, seen=seen))
    return found


def transactions_at(place: Place) -> Transactions:
    shard = place.shard()
    return Transactions(name=NAME, store=shard.store, consensus=shard.consensus, clock=SwiftClock())


async def register_all(place: Place) -> None:
    found = transactions_at(place)
    for name in (*ALWAYS, LOOSE):
        await found.register(place.shard(name=name, schema=SCHEMA))


async def read_all(place: Place) -> tuple[int, dict[str, list[tuple[int, str]]]]:
    """Return upper, and each shard's rows as a new reader sees them, also after a sweep."""
    found = transactions_at(place)
    await found.register(place.shard(name=LOOSE, schema=SCHEMA))
    upper = (await found.upper()).time
    seen: dict[str, list[tuple[int, str]]] = {}
    for name in (*ALWAYS, LOOSE):
        table = await (await found.snapshot(name, upper - 1)).to_arrow()
        shard = place.shard(name=name, schema=SCHEMA)
        for _ in range(4):
            await shard.collect(after_us=0)
            await shard.sweep()
        again = await place.shard(name=name, schema=SCHEMA).snapshot(upper - 1)
        assert (await again.to_arrow()).equals(table)
        seen[name] = rows_of(table)
    return upper, seen


@pytest.mark.parametrize("fought_at", ["store on local", "sqlite", "postgres"], indirect=True)
@pytest.mark.timeout(1200 + SECONDS)
def test_t60_what_processes_are_told_of_transactions_is_linearizable(fought_at: Fight) -> None:
    """A process may die between a commit and its application, or lose the server."""
    place, where, outage = fought_at
    asyncio.run(register_all(place))
    fought = fight(where, "transaction_writer", seed=11, outage=outage, lost=LOST_MIN)
    upper, seen = asyncio.run(read_all(place))
    now = time.monotonic()
    fought.said.append(("last", ["read", now, seen, now + 1]))
    history = check_transactions_outside(commits_of(fought.said), looks_of(fought.said))
    assert [seqno for seqno, _ in history.reads[-1].found] == [*range(1, upper + 1)]
    check_fight(
        fought, (call.answer for call in history.sets), lost=LOST_MIN, outage=outage is not None
    )


def test_a_transaction_that_is_torn_or_lost_is_seen() -> None:
    """The canary: the checker detects a partial or lost transaction."""
    said: Said = [
        ("v", ["begins", "v 0", 0, ["a", "b"], 1.0]),
        ("v", ["landed", "v 0", 0, 2.0]),
        ("w", ["begins", "w 0", 0, ["a"], 1.0]),
        ("w", ["lost", "w 0", 0, 2.5]),
    ]
    whole: dict[str, list[Any]] = {"a": [[0, "v 0"]], "b": [[0, "v 0"]]}
    doubled = {**whole, "a": [[0, "v 0"], [1, "w 0"]]}
    wrong: list[dict[str, list[Any]]] = [{**whole, "b": []}, {"a": [], "b": []}, doubled]
    for seen in wrong:
        torn: Said = [*said, ("last", ["read", 3.0, seen, 4.0])]
        with pytest.raises(NotLinear):
            check_transactions_outside(commits_of(torn), looks_of(torn))
    right: Said = [*said, ("last", ["read", 3.0, whole, 4.0])]
    check_transactions_outside(commits_of(right), looks_of(right))
