"""The transactions decided in a transaction shard, and a check of the answers to calls.

Each transaction begins where the one before ended, so their order is the order of their times. A
history is linearizable under two conditions. Each transaction was decided between its call's begin
and the first answer that reports it. Each read of upper saw every transaction reported before the
read, and none that began after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sim.checkers.demands import demand
from sim.checkers.watch import TRANSACTIONS, Watch
from tidelog.persist.states.state import ShardLanguage, Token
from tidelog.persist.transactions.language import TransactionLanguage


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """A transaction that was committed."""

    token: Token
    lower: int
    upper: int
    shards: tuple[str, ...]


def decided_in(watch: Watch, name: str) -> list[CommittedTransaction]:
    """Return all transactions, in the order of their decisions."""
    language = TransactionLanguage()
    state = language.initial()
    found: list[CommittedTransaction] = []
    for record in watch.records(f"{TRANSACTIONS}{name}"):
        for data in record.diffs:
            diff = language.decode_diff(data)
            after = language.apply(state, diff)
            demand(state.upper <= after.upper, "upper of transactions went back")
            if diff.token is not None:
                found.append(
                    CommittedTransaction(
                        diff.token, state.upper, after.upper, tuple(sorted(diff.writes))
                    )
                )
            state = after
    return found


def decided_in_shard(watch: Watch, shard: str) -> list[CommittedTransaction]:
    """Return all writes of a shard that have a token, in the order of their decisions."""
    language = ShardLanguage()
    state = language.initial()
    found: list[CommittedTransaction] = []
    for record in watch.records(shard):
        for data in record.diffs:
            diff = language.decode_diff(data)
            after = language.apply(state, diff)
            lower, upper = state.upper or 0, after.upper or 0
            demand(lower <= upper, "upper of a shard went back")
            if diff.token is not None:
                wrote = (shard,) if diff.batch is not None else ()
                found.append(CommittedTransaction(diff.token, lower, upper, wrote))
            state = after
    return found


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
