"""Errors, grouped by what the caller does next.

Every error says in ``outcome`` whether the change it was asked for happened, and in ``kind`` which
of the nine groups it belongs to (a stable word, for metrics, exit codes and HTTP).
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Sequence
from typing import ClassVar


class Outcome(enum.Enum):
    """What is known of a change whose call failed."""

    NOT_APPLIED = "not_applied"
    APPLIED = "applied"
    UNKNOWN = "unknown"


class TidelogError(Exception):
    """The root of all errors raised on purpose.

    A message is a sentence that says what to do, then facts as ``name=value``.
    """

    kind: ClassVar[str] = "error"

    def __init__(
        self, sentence: str, *, outcome: Outcome = Outcome.NOT_APPLIED, **facts: object
    ) -> None:
        told = " ".join(f"{name}={_shown(value)}" for name, value in facts.items())
        super().__init__(f"{sentence} ({told})" if told else sentence)
        self.sentence = sentence
        self.facts = facts
        self.outcome = outcome

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders (Spark tasks): keyword facts do not survive the default way.
        return (_rebuild, (type(self), self.sentence, self.outcome, dict(self.facts)))


def _shown(value: object) -> str:
    """Return a fact as a person may read it: names of streams are bytes, and mostly text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace")
    return str(value)


def _rebuild(
    kind: type[TidelogError], sentence: str, outcome: Outcome, facts: dict[str, object]
) -> TidelogError:
    error = kind.__new__(kind)
    TidelogError.__init__(error, sentence, outcome=outcome, **facts)
    return error


class UsageError(TidelogError, ValueError):
    """The call is wrong: correct it."""

    kind = "usage"


class AsOfBeforeSince(UsageError):
    """The time asked for can no longer be told apart from later ones."""


class AsOfNotComplete(UsageError):
    """The time asked for is not complete yet, and the caller chose not to wait."""


class ShardRegistered(UsageError):
    """The shard is written by transactions alone."""


class NotRegistered(UsageError):
    """The shard is not, or not any more, one of those that the transactions write."""


class SchemaIncompatible(UsageError):
    """A shard's schema cannot become this one; the message says what it can become."""


class ExpressionTooSlow(UsageError):
    """A condition took longer on some rows than it may; nothing is known of these rows."""


class NoSuchStream(UsageError):
    """The log has no open stream of that id."""


class NoSuchSegment(UsageError):
    """A keyed log has no such segment."""


class NameTaken(UsageError):
    """Something of that name exists."""


class VerificationError(UsageError):
    """A collection would erase more of a log at once than it may: look at its cursors first."""


class GoneError(TidelogError, LookupError):
    """What was asked for is not there (any more): start from what is."""

    kind = "gone"


class ObjectNotFound(GoneError):
    """No object has that key."""


class NoSuchLocation(GoneError):
    """Nothing has been created at that URL."""


class NoSuchCollection(GoneError):
    """No collection or source has that name."""


class NoSuchLog(GoneError):
    """There is no log here."""


class NoSuchShard(GoneError):
    """Nobody has made a shard of that name."""


class NoSuchHold(GoneError):
    """Nobody has placed a hold of that name."""


class ManifestLost(NoSuchLog):
    """The log's manifest is not there, and its records are."""


class CopyUnfinished(ManifestLost):
    """The log has no manifest, and the records of a copy that was killed, or lost its manifest."""


class NoSuchCheckpoint(GoneError):
    """A keyed log has no such checkpoint."""


class NoSuchCursor(GoneError):
    """The log has no cursor of that name."""


class NoSuchPin(GoneError):
    """A log has no such pin."""


class PositionCollected(GoneError):
    """The records asked for were collected; the message has the oldest that are left."""


class SequenceRetired(GoneError):
    """Records asked for were let go of; the message has the oldest sequence that is left."""


class LogSealed(GoneError):
    """The log takes no more records; the message has its successor, if it has one."""


class ReadOvertaken(GoneError):
    """What a read had still to come was merged and deleted meanwhile: it took too long."""


class SourceDropped(GoneError):
    """The source was dropped while it was being ingested."""


class ContentionError(TidelogError):
    """Somebody else was first: read again, decide again."""

    kind = "contention"


class ObjectExists(ContentionError):
    """An object of that key exists already (a put that must create)."""


class ObjectChanged(ContentionError):
    """The object is not the one whose e_tag was given."""


class CursorMoved(ContentionError):
    """Another process made, moved or deleted the cursor: load it and decide again."""


class ManifestMoved(ContentionError):
    """The log's manifest is not the one that was planned from: plan again."""


class UpperMismatch(ContentionError):
    """The shard's upper is not the expected one."""


class PartsSwept(ContentionError):
    """Parts waited so long to be committed that a sweep may have taken them."""


class BusyError(TidelogError):
    """A limit is reached: back off, then retry."""

    kind = "busy"


class LogFull(BusyError):
    """Too much waits to be written; ``records`` are what was given, to be appended later."""

    records: Sequence[tuple[bytes, bytes]] = ()

    def __init__(
        self,
        sentence: str,
        *,
        records: Sequence[tuple[bytes, bytes]] = (),
        outcome: Outcome = Outcome.NOT_APPLIED,
        **facts: object,
    ) -> None:
        super().__init__(sentence, outcome=outcome, **facts)
        self.records = records


class HandleError(TidelogError):
    """This handle is over: open another."""

    kind = "handle"


class SchemaEvolved(HandleError):
    """The shard's schema is another by now, by which this handle cannot go on."""


class Fenced(HandleError):
    """Another writer took over the log."""


class ConsensusMoved(HandleError):
    """The location's consensus was moved since the location was opened."""


class HoldFenced(HandleError):
    """A hold has a newer owner; the message has its token, and where the hold stands."""


class HoldExpired(HandleError):
    """A reader's lease is over: what it held may be gone."""


class LocationError(TidelogError):
    """The store failed: retry if NOT_APPLIED, read back if UNKNOWN."""

    kind = "location"


class StoreRefused(LocationError):
    """The store refused us, as it will again, or does not keep the promises that tidelog needs."""


class DeadlineExceeded(LocationError):
    """The call did not finish within its timeout."""


class OutcomeUnknown(LocationError):
    """Whether a change happened can provably not be decided any more."""

    def __init__(
        self, sentence: str, *, outcome: Outcome = Outcome.UNKNOWN, **facts: object
    ) -> None:
        super().__init__(sentence, outcome=outcome, **facts)


class CorruptionError(TidelogError):
    """Stored bytes are wrong: stop, tell a person."""

    kind = "corruption"


class PartMissing(CorruptionError):
    """An object that a shard's state named is not there: a newer state may name another instead."""


class ConsensusGone(CorruptionError):
    """The database of consensus is not there, or knows nothing of the location."""


class NameInUse(CorruptionError):
    """What lies under a name that was to be used is something else."""


class DataDiffers(CorruptionError):
    """Two writers brought different data for the same times of one shard."""


class SourceRewritten(CorruptionError):
    """A source gave other bytes for an address than it gave before."""


class HeaderDiffers(CorruptionError):
    """A file lacks most of the columns that its source has, or all of them."""


class SourceRowsRefused(TidelogError):
    """``--strict`` was asked for, and rows do not fit the schema."""

    kind = "refused"


class InvariantError(TidelogError):
    """tidelog is wrong: stop, file a bug."""

    kind = "invariant"


# What a machine lacks, not what somebody did wrong: room, open files, rights.
_OF_THE_MACHINE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE, errno.ENFILE}
)


def unforeseen(error: Exception, what: str) -> TidelogError:
    """Return what to raise for an error that nobody foresaw, met at ``what``."""
    said = str(error).strip().partition("\n")[0]
    named = type(error).__name__ + (f": {said}" if said else "")
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
        return LocationError(
            f"this machine failed at {what}: {said}; make room where TMPDIR is, or raise its "
            "limits, and try again"
        )
    return InvariantError(f"tidelog failed at {what}: {named}")


def require(condition: object, sentence: str, **facts: object) -> None:
    """Raise InvariantError unless ``condition`` holds; also under ``python -O``."""
    if not condition:
        error = InvariantError(sentence)
        raise _rebuild(InvariantError, sentence, error.outcome, facts)
