"""The transactions decided in a transaction shard, and a check of the answers to calls.

Each transaction begins where the one before ended, so their order is the order of their times. A
history is linearizable under two conditions. Each transaction was decided between its call's begin
and the first answer that reports it. Each read of upper saw every transaction reported before the
read, and none that began after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from sim.checkers.demands import demand
from sim.checkers.watch import TRANSACTIONS, Watch
from tidelog.machine.language import Language
from tidelog.persist.states.state import ShardLanguage, Token
from tidelog.persist.transactions.language import TransactionLanguage

S = TypeVar("S")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """A transaction that was committed."""

    token: Token
    lower: int
    upper: int
    shards: tuple[str, ...]


def decided_in(watch: Watch, name: str) -> list[CommittedTransaction]:
    """Return all transactions, in the order of their decisions."""
    found: list[CommittedTransaction] = []
    for before, diff, after in _steps(watch, f"{TRANSACTIONS}{name}", TransactionLanguage()):
        demand(before.upper <= after.upper, "upper of transactions went back")
        if diff.token is not None:
            wrote = tuple(sorted(diff.writes))
            found.append(CommittedTransaction(diff.token, before.upper, after.upper, wrote))
    return found


def decided_in_shard(watch: Watch, shard: str) -> list[CommittedTransaction]:
    """Return all writes of a shard that have a token, in the order of their decisions."""
    found: list[CommittedTransaction] = []
    for before, diff, after in _steps(watch, shard, ShardLanguage()):
        lower, upper = before.upper or 0, after.upper or 0
        demand(lower <= upper, "upper of a shard went back")
        if diff.token is not None:
            wrote = (shard,) if diff.batch is not None else ()
            found.append(CommittedTransaction(diff.token, lower, upper, wrote))
    return found


def _steps(watch: Watch, key: str, language: Language[S, D]) -> Iterator[tuple[S, D, S]]:
    """Yield each decided change, between the states before and after it."""
    state = language.initial()
    for record in watch.records(key):
        for data in record.diffs:
            diff = language.decode_diff(data)
            after = language.apply(state, diff)
            yield state, diff, after
            state = after


@dataclass(slots=True)
class History:
    """Calls and answers. Units: moments of the world's clock; a read is (begin, end, upper)."""

    begun: list[tuple[float, Token]] = field(default_factory=list)
    told: list[tuple[float, Token]] = field(default_factory=list)
    reads: list[tuple[float, float, int]] = field(default_factory=list)

    def check(self, decided: list[CommittedTransaction]) -> None:
        """Check that an order explains the answers.

        Raises:
            Violated: no order does.
        """
        uppers = {one.token: one.upper for one in decided}
        begun = {token: moment for moment, token in self.begun}
        told = [(moment, uppers[token]) for moment, token in self.told if token in uppers]
        for moment, upper in told:
            later = [one for one in decided if one.upper < upper and begun[one.token] > moment]
            demand(not later, "a transaction came before one that was told before it began")
        for begin, end, saw in self.reads:
            known = max((upper for moment, upper in told if moment < begin), default=0)
            demand(known <= saw, "a read missed what was told before it", known=known, saw=saw)
            future = [one for one in decided if one.upper <= saw and begun[one.token] > end]
            demand(not future, "a read saw what was not begun", saw=saw)
