"""A checker of transaction histories. It knows calls, answers and reads only.

Each transaction covers one time and writes a row with its name to each of its shards. Each begins
where another ended, so the n-th time is a record and upper is the head. A read of several shards as
of one time is a scan of all records up to that time: each transaction is in all of its shards or in
none. `sim.checkers.linear` judges the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sim.checkers.linear import History, NotLinear, Read, Set, check_history

TailProbe = tuple[tuple[int, str], ...]  # The lower and the name of each transaction.


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A call to commit ``name`` (unique in a history) for ``[lower, lower + 1)``, to some shards.

    ``answer`` and units: see `sim.checkers.linear.Set`.
    """

    client: str
    name: str
    lower: int
    shards: frozenset[str]
    begin: float
    end: float
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A read of several shards as of one time; it covers a shard of each transaction."""

    client: str
    begin: float
    end: float
    seen: Mapping[str, TailProbe]


def check_transactions_outside(commits: Iterable[Commit], looks: Iterable[Look]) -> History:
    """Check a history, which ends with a read of everything; return it as records.

    Raises:
        NotLinear: a transaction was seen in part, or no order explains the answers.
    """
    by_name = {commit.name: commit for commit in commits}
    history = History(sets=[_set_of(commit) for commit in by_name.values()])
    for look in looks:
        history.reads.append(_read_of(look, by_name))
    check_history(history)
    return history


def _set_of(commit: Commit) -> Set:
    return Set(
        client=commit.client,
        seqno=commit.lower + 1,
        value=commit.name.encode(),
        begin=commit.begin,
        end=commit.end,
        answer=commit.answer,
    )


def _read_of(look: Look, by_name: Mapping[str, Commit]) -> Read:
    found = sorted({one for seen in look.seen.values() for one in seen})
    for lower, name in found:
        commit = by_name.get(name)
        if commit is None:
            raise NotLinear(f"a row was seen that nobody wrote: {name} at {lower}")
        for shard, seen in look.seen.items():
            times = seen.count((lower, name))
            if times != (shard in commit.shards):
                raise NotLinear(
                    f"a transaction was seen in part: {name} is {times} times in {shard}, and was "
                    f"written to {sorted(commit.shards)}: {look}"
                )
    records = tuple((lower + 1, name.encode()) for lower, name in found)
    return Read(client=look.client, begin=look.begin, end=look.end, start=1, found=records)
