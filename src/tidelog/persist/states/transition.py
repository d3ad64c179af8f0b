"""Transitions: pure functions from a shard's state and a command to a decision.

Shape: each returns a `Decision`: the result, and the diff to write (None: no change).
Source: persist, "State Machine"; design page 4, "Writing" and "Holds".
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tidelog.core.frontier import Frontier
from tidelog.core.ids import TABLES
from tidelog.errors import (
    DataDiffers,
    OutcomeUnknown,
    PartsSwept,
    ShardRegistered,
    UpperMismatch,
    UsageError,
)
from tidelog.machine.language import Decision
from tidelog.persist.format.part import Part, epoch_of
from tidelog.persist.states.batch import Batch, make_batch
from tidelog.persist.states.evolution import check_newest, evolved, schema_id_at
from tidelog.persist.states.holding import moved_by_append, time_of
from tidelog.persist.states.state import BatchMerge, Commit, Diff, Registration, State, Token
from tidelog.rowhash import RowSum


class Verdict(enum.Enum):
    """The result of a compare_and_append."""

    COMMITTED = "committed"
    ALREADY = "already"
    MISMATCH = "mismatch"


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The verdict, and the shard's upper after it."""

    verdict: Verdict
    upper: Frontier

    def landed(self, *, expected: Frontier) -> AppendResult:
        """Return this result if the write is stored; ``expected`` is the upper that it expected.

        Raises:
            UpperMismatch: the shard's upper is another one. NOT_APPLIED.
        """
        if self.verdict is not Verdict.MISMATCH:
            return self
        if self.upper.is_empty:
            why = (
                "the shard is finished and accepts no updates, and nothing was appended: append to "
                "another shard"
            )
        elif self.upper < expected:
            why = (
                "the shard's upper is below the expected upper, and nothing was appended: pass "
                "the shard's upper as the expected one"
            )
        else:
            why = (
                "an earlier call or another writer moved the upper past the expected one, and "
                "nothing was appended: read the updates since then, and append after them"
            )
        raise UpperMismatch(why, upper=self.upper, expected=expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareAndAppend:
    """A write of parts for the times ``[expected_upper, upper)``.

    ``fresh`` states that the token was made for this call, so no earlier call can have committed
    it. The same change moves or creates ``holds``. Only the first write of a shard uses ``schema``
    and ``first_holds``; a later one only checks ``schema``. With a ``write_epoch``, the write lands
    only while the shard has that one.
    """

    schema: bytes
    parts: Sequence[Part]
    expected_upper: Frontier
    upper: Frontier
    token: Token
    named: bool = False
    fresh: bool = False
    holds: Mapping[str, Frontier] = field(default_factory=dict)
    first_holds: Mapping[str, Frontier] = field(default_factory=dict)
    write_epoch: int | None = None


def check_interval(lower: Frontier, upper: Frontier, *, rows: int) -> None:
    """Check the interval, as far as possible without a state.

    Raises:
        UsageError: lower is past upper, or an empty interval has updates.
    """
    if not lower <= upper:
        raise UsageError(
            "lower is past upper, and the times before lower are complete: pass a greater upper",
            lower=lower,
            upper=upper,
        )
    if rows and lower == upper:
        raise UsageError(
            "an empty interval cannot have updates: pass an upper past their times",
            lower=lower,
            upper=upper,
        )


def decide_append(
    state: State, command: CompareAndAppend, *, by: Registration | None = None
) -> Decision[Diff, AppendResult]:
    """Decide a compare_and_append; ``by`` is the registration of the transaction shard that writes.

    Raises:
        OutcomeUnknown: a retry so old that its token may have been forgotten.
        DataDiffers: the unnamed token was used for other updates.
        ShardRegistered: the shard is registered in a transaction shard, which is not the writer.
        SchemaEvolved: the parts, or the earlier write of the token, have an earlier schema.
        UsageError: the shard has another schema, a part's times are outside the interval, or a hold
            would be past upper.
        PartsSwept: the parts are so old that a sweep may have deleted them.
    """
    check_interval(command.expected_upper, command.upper, rows=len(command.parts))
    check_times(command.parts, command.expected_upper, command.upper)
    sum_t = sum_t_of(command.parts)
    # A retry is answered first: since its commit the upper, the schema and the registration may
    # have changed, and the write is stored nevertheless.
    told = decide_retry(state, command, sum_t=sum_t)
    if told is not None:
        return Decision(told)
    check_newest(state, command.schema)
    if by is None:
        check_unregistered(state)
    if command.expected_upper != state.upper_frontier or state.upper is None:
        return Decision(AppendResult(Verdict.MISMATCH, state.upper_frontier))
    if command.write_epoch not in (None, state.write_epoch):
        return Decision(AppendResult(Verdict.MISMATCH, state.upper_frontier))
    # After the check of upper: a write that does not land names no parts.
    check_epochs(state.write_epoch, command.parts)
    # A reader may already have placed a hold, to read from the beginning.
    first = command.first_holds if state.upper == 0 and not state.commits else {}
    holds, since = moved_by_append(state, {**first, **command.holds}, command.upper)
    # An empty interval changes nothing, so it needs no record, and a retry of it is harmless.
    if command.upper == command.expected_upper and not holds:
        return Decision(AppendResult(Verdict.COMMITTED, state.upper_frontier))
    diff = Diff(
        schema=None if state.schema else command.schema,
        upper=(time_of(command.upper),),
        batch=_batch_of(command, state.schema_id),
        sum_t=sum_t,
        is_moved=any(part.stored_time is not None for part in command.parts),
        token=command.token,
        named=command.named,
        holds=holds,
        since=since,
    )
    return Decision(AppendResult(Verdict.COMMITTED, command.upper), diff)


def check_times(parts: Sequence[Part], lower: Frontier, upper: Frontier) -> None:
    """Check that the times of parts are within the interval of the write.

    Raises:
        UsageError: a part has a time outside the interval.
    """
    # The writer of a part checked each row, but the caller may bring another part here.
    for part in parts:
        if lower.passed(part.time_min) or not upper.passed(part.time_max):
            raise UsageError(
                "a part's times are outside the interval of the write: pass a lower and an upper "
                "around them",
                least=part.time_min,
                greatest=part.time_max,
                lower=lower,
                upper=upper,
            )


def _batch_of(command: CompareAndAppend, schema_id: int) -> Batch | None:
    if not command.parts:
        return None
    # The writer of a part knows its schema, but perhaps not the schema's id.
    parts = [msgspec.structs.replace(part, schema_id=schema_id) for part in command.parts]
    return make_batch(parts, lower=command.expected_upper.time, upper=time_of(command.upper))


def sum_t_of(parts: Sequence[Part]) -> bytes:
    """Return T of the updates in some parts."""
    total = RowSum.zero()
    for part in parts:
        total = total + part.t
    return total.to_bytes()


def decide_retry(state: State, command: CompareAndAppend, *, sum_t: bytes) -> AppendResult | None:
    """Return the result of a token that was committed before; None if it was not committed.

    This is decided first, because the shard's columns may have changed. ``sum_t`` is T of the
    updates in the command's schema.

    A commit from ``expected_upper`` was possible only while that was the upper. If the remembered
    commits cover that upper, they prove whether the token was committed. If that commit was
    forgotten, only a fresh token is known to be new.

    Raises:
        OutcomeUnknown: the write is so old that its commit may have been forgotten.
        UsageError, DataDiffers: an unnamed token was used for another interval or other updates.
        SchemaEvolved: the token's write has another schema than the command, so sums are
            incomparable.
    """
    writer, number = command.token
    if command.named and writer in state.writers:
        last = state.writers[writer]
        if number < last.number:
            raise OutcomeUnknown(
                "the writer has made a newer write since, so the outcome of this one is not "
                "recorded: read the shard to find out whether it has the updates",
                writer=writer,
                number=number,
                newest=last.number,
            )
        # Another process may write under the same name and have come first. Its number is then the
        # same, but its updates differ, so compare their sums.
        is_told = (last.number, last.upper) == (number, time_of(command.upper))
        if is_told and last.sum_t == sum_t:
            return AppendResult(Verdict.ALREADY, Frontier.of(last.upper))
        return None
    for commit in reversed(state.commits):
        if (commit.writer, commit.number) != (writer, number):
            continue
        # A writer whose name was dropped counts from 0 again, so its number alone identifies no
        # write.
        if not command.named:
            stored = Frontier.at(commit.lower), Frontier.of(commit.upper)
            check_same_interval(
                command.token, stored=stored, given=(command.expected_upper, command.upper)
            )
            if not _has_sum(state, commit, command, sum_t):
                raise reused(command.token, *stored)
        elif not _is_of(commit, command) or not _has_sum(state, commit, command, sum_t):
            continue
        return AppendResult(Verdict.ALREADY, Frontier.of(commit.upper))
    behind = command.expected_upper < state.upper_frontier
    if command.fresh or not behind or not state.commits_forgotten:
        return None
    oldest = Frontier.at(state.commits[0].lower)
    # A commit of an empty interval begins where the commit after it begins.
    is_empty = command.expected_upper == command.upper
    if command.expected_upper < oldest or (is_empty and command.expected_upper == oldest):
        raise OutcomeUnknown(
            "the write is so old that its token may no longer be recorded: read the shard to find "
            "out whether it has the updates",
            writer=writer,
            expected_upper=command.expected_upper,
            oldest=oldest,
        )
    return None


def check_same_interval(
    token: Token, *, stored: tuple[Frontier, Frontier], given: tuple[Frontier, Frontier]
) -> None:
    """Check that a write is a retry of the stored one that used its token.

    Raises:
        UsageError: the stored write has another interval.
    """
    if stored != given:
        raise UsageError(
            "an earlier write of another interval used the token, and nothing was appended: pass "
            "a new token for each write",
            token=token,
            stored=" to ".join(map(str, stored)),
            given=" to ".join(map(str, given)),
        )


def reused(token: Token, lower: Frontier, upper: Frontier) -> DataDiffers:
    """Return the error for a write whose token belongs to a stored write of other updates."""
    return DataDiffers(
        "an earlier write with other rows used the token, and nothing was written: pass a new "
        "token for each write",
        token=token,
        lower=lower,
        upper=upper,
    )


def _has_sum(state: State, commit: Commit, command: CompareAndAppend, sum_t: bytes) -> bool:
    """Return True if T of a commit's updates is ``sum_t``.

    Raises:
        OutcomeUnknown: the sum below the commit was forgotten.
        SchemaEvolved: ``sum_t`` is of another schema than the commit's.
    """
    if command.fresh:
        return True
    lower = Frontier.at(commit.lower)
    if commit.lower != commit.upper and command.schema != _schema_at(state, commit.lower):
        raise evolved("the write with this token used an earlier schema", state)
    stored = difference(state, lower, Frontier.of(commit.upper))
    if stored is None:
        raise OutcomeUnknown(
            "the write is so old that its token may no longer be recorded: read the shard to find "
            "out whether it has the updates",
            writer=commit.writer,
            expected_upper=lower,
        )
    return stored.to_bytes() == sum_t


def _schema_at(state: State, time: int) -> bytes:
    return (*(one.schema for one in state.retired), state.schema)[schema_id_at(state, time)]


def check_not_dropped(state: State) -> None:
    """Refuse a write to a shard whose since and upper are empty, as after a drop.

    Raises:
        UsageError: the shard was dropped.
    """
    if state.is_dropped:
        raise UsageError("the shard was dropped and accepts no updates: append to another shard")


def check_unregistered(state: State) -> None:
    """Refuse a write that bypasses the transaction shard in which a shard is registered.

    Raises:
        ShardRegistered: the shard is registered.
    """
    name = state.registered.name
    if name == TABLES:
        raise ShardRegistered(
            "the shard belongs to a table, so only its table can write it: lake.table(name)"
        )
    if name:
        raise ShardRegistered(
            f"the shard is registered in the transactions {name!r}: write to it in a transaction, "
            "or forget it there first",
            transactions=name,
        )


def _is_of(commit: Commit, command: CompareAndAppend) -> bool:
    """Return True if a commit moved upper over the interval of a command."""
    lower, upper = Frontier.at(commit.lower), Frontier.of(commit.upper)
    return lower != upper and (lower, upper) == (command.expected_upper, command.upper)


def check_epochs(write_epoch: int, parts: Iterable[Part]) -> None:
    """Refuse parts that a sweep may have deleted, or may still delete, by the epoch in their path.

    A sweep deletes unnamed parts of epochs before the one that preceded the write epoch.

    Raises:
        PartsSwept: a part is that old.
    """
    for part in parts:
        epoch = None if part.path is None else epoch_of(part.path)
        if epoch is not None and epoch < write_epoch - 1:
            raise PartsSwept(
                "the parts waited too long for their commit, so a sweep may have deleted them: "
                "write them again",
                path=part.path,
                write_epoch=write_epoch,
            )


def decide_drop_writer(state: State, name: str) -> Decision[Diff, bool]:
    """Decide to forget a named writer; the result is whether it existed."""
    if name not in state.writers:
        return Decision(False)
    return Decision(True, Diff(dropped_writers=(name,)))


def decide_epoch(state: State, known: int) -> Decision[Diff, int]:
    """Decide to raise the write epoch from ``known``; the result is the newest epoch.

    The epoch of a finished shard rises too: a killed writer may have left a part, and compactors
    still write. Only its transaction shard raises the epoch of a registered shard: see
    `tidelog.persist.transactions`.
    """
    if state.write_epoch != known or state.registered.name:
        return Decision(state.write_epoch)
    return Decision(known + 1, Diff(write_epoch=known + 1))


def decide_drop(state: State) -> Decision[Diff, int]:
    """Decide to drop a shard: no writes, no readable time, no parts.

    The result is the number of objects that vanish.
    """
    if state.upper is None and state.since is None and not len(state.batches):
        return Decision(0)
    check_unregistered(state)
    batches = list(state.batches)
    paths = [part.path for batch in batches for part in batch.parts]
    vanished = tuple(path for path in paths if path is not None)
    merged = BatchMerge(
        lower=batches[0].lower if batches else 0,
        upper=None,
        inputs=tuple(batch.digest for batch in batches),
        batch=None,
        vanished=vanished,
    )
    diff = Diff(
        upper=None if state.upper is None else (None,),
        since=None if state.since is None else (None,),
        released=tuple(state.holds),
        token=("tombstone", 0),  # Each advance of upper names its writer.
        merged=merged if batches else None,
    )
    return Decision(len(vanished), diff)


def difference(state: State, lower: Frontier, upper: Frontier) -> RowSum | None:
    """Return T of the updates in ``[lower, upper)``; None unless both are remembered uppers.

    The result is also None if a transaction moved the times of some of these updates.
    """
    for commit in state.commits:
        if (
            commit.is_moved
            and lower < Frontier.of(commit.upper)
            and Frontier.at(commit.lower) < upper
        ):
            return None
    above, below = state.sum_at(upper), state.sum_at(lower)
    return None if above is None or below is None else above - below
