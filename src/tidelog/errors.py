"""Errors, grouped by the caller's next step.

``outcome`` states whether the change was applied. ``kind`` is the error's group, a stable word for
metrics, exit codes and HTTP. Each docstring states the fault, then the remedy; the reference of
errors in docs/ is made from them.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Mapping, Sequence
from typing import ClassVar


class Outcome(enum.Enum):
    """The state of a change whose call failed."""

    NOT_APPLIED = "not_applied"
    APPLIED = "applied"
    UNKNOWN = "unknown"


class TidelogError(Exception):
    """The base class of tidelog's errors.

    A message is a sentence with the remedy, then facts as ``name=value``.
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
        # Errors are pickled across processes (Spark tasks); the default way loses keyword facts.
        return (_rebuild, (type(self), self.sentence, self.outcome, dict(self.facts)))


def _shown(value: object) -> str:
    """Return a fact as text; bytes, such as the names of streams, are mostly UTF-8."""
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
    """The call is wrong.

    Remedy: correct the call; the message names the argument.
    """

    kind = "usage"


class AsOfBeforeSince(UsageError):
    """The time is earlier than `since`, so it is no longer readable.

    Remedy: read at the earliest readable time, which the message names; create a hold to keep
    times.
    """


class AsOfNotComplete(UsageError):
    """The time is not complete yet, and the call does not wait.

    Remedy: read at an earlier time than `upper`, or wait with `wait=True`.
    """


class ShardRegistered(UsageError):
    """Only its transactions may write this shard.

    Remedy: write it in a transaction, or call `forget` on the transactions first.
    """


class NotRegistered(UsageError):
    """The shard is not registered in these transactions.

    Remedy: call `register` first.
    """


class SchemaIncompatible(UsageError):
    """A shard's schema cannot change to this one.

    Remedy: choose one of the schemas that the message names, or create a new shard.
    """


class ExpressionTooSlow(UsageError):
    """A condition exceeded its time limit on some rows. The result is unknown.

    Remedy: simplify the condition.
    """


class HandoverRefused(UsageError):
    """Readers cannot change to another rendition at this time.

    Remedy: the message names the condition that is not met; pass another time, or wait.
    """


class NoSuchStream(UsageError):
    """The log has no open stream with that id.

    Remedy: open the stream first.
    """


class NoSuchSegment(UsageError):
    """The keyed log has no such segment.

    Remedy: list the segments, and name one of them.
    """


class NameTaken(UsageError):
    """An object of that name exists, or existed: names of destroyed logs are not reused.

    Remedy: open it, or choose another name.
    """


class CheckpointCopied(UsageError):
    """A stream's checkpoint is a copy: the target has another batch of the query by its number.

    Remedy: start the query with a new checkpoint.
    """


class KeyExists(UsageError):
    """An inserted key exists in the table; the message names it.

    Remedy: choose another key, or upsert the row.
    """


class DeletesAllRows(UsageError):
    """A delete would leave no row in the table, and the caller did not permit that.

    Remedy: check the condition or the keys, then permit it.
    """


class VerificationError(UsageError):
    """A collection would erase more of a log at once than `share_max` allows.

    Remedy: check the cursors of the log; then raise `share_max`, or pass `force=True`.
    """


class GoneError(TidelogError, LookupError):
    """The object or record does not exist, or no longer exists.

    Remedy: continue with the data that remains.
    """

    kind = "gone"


class ObjectNotFound(GoneError):
    """No object has that key.

    Remedy: check the key, or restore the object.
    """


class NoSuchLocation(GoneError):
    """No location exists at that URL.

    Remedy: check the URL, or create the location with `create=True`.
    """


class NoSuchCollection(GoneError):
    """No collection or source has that name.

    Remedy: list the names: `tidelog collection list`.
    """


class NoSuchLog(GoneError):
    """No log exists under that name, or the log was dropped.

    Remedy: list the names: `tidelog log list`.
    """


class NoSuchShard(GoneError):
    """No shard has that name.

    Remedy: list the names: `tidelog shard list`.
    """


class NoSuchHold(GoneError):
    """No hold has that name.

    Remedy: list the holds: `tidelog hold list NAME`.
    """


class ManifestLost(NoSuchLog):
    """The log's records exist, but its manifest is missing.

    Remedy: run `tidelog log rebuild NAME`, then `tidelog log scrub NAME`.
    """


class CopyUnfinished(ManifestLost):
    """An interrupted copy left records without a manifest, or a copy lost its manifest.

    Remedy: repeat the copy, or run `tidelog log drop NAME`.
    """


class NoSuchCheckpoint(GoneError):
    """The keyed log has no such checkpoint.

    Remedy: list the checkpoints: `tidelog keyed checkpoint list NAME`.
    """


class NoSuchCursor(GoneError):
    """The log has no cursor of that name.

    Remedy: create the cursor.
    """


class NoSuchPin(GoneError):
    """The log has no pin of that name.

    Remedy: create the pin.
    """


class PositionCollected(GoneError):
    """The records were collected.

    Remedy: continue at the oldest position, which the message names; hold a cursor in future.
    """


class SequenceRetired(GoneError):
    """The records were retired.

    Remedy: continue at the oldest sequence, which the message names.
    """


class LogSealed(GoneError):
    """The log is sealed: it refuses appends.

    Remedy: append to its successor, which the message names if one exists.
    """


class ReadOvertaken(GoneError):
    """A merge or a collection deleted objects before a slow read reached them.

    Remedy: start the read again, or hold a lease during long reads.
    """


class SourceDropped(GoneError):
    """Another process dropped the source during its ingestion.

    Remedy: stop the ingester.
    """


class RenditionSucceeded(GoneError):
    """Readers of the collection read another rendition since a handover.

    Remedy: ingest the rendition that the message names.
    """


class ContentionError(TidelogError):
    """Another process changed the state first.

    Remedy: read again, and decide again.
    """

    kind = "contention"


class ObjectExists(ContentionError):
    """A put that must create an object found one with that key.

    Remedy: read the object, and decide again.
    """


class ObjectChanged(ContentionError):
    """The object no longer has the expected e_tag.

    Remedy: read the object, and decide again.
    """


class CursorMoved(ContentionError):
    """Another process created, moved or dropped the cursor.

    Remedy: read the cursor again, and decide again.
    """


class ManifestMoved(ContentionError):
    """Another process replaced the log's manifest after this plan was made.

    Remedy: read the manifest, and plan again.
    """


class UpperMismatch(ContentionError):
    """The shard's `upper` is not the expected one.

    Remedy: read at the upper that the message names, and decide again.
    """


class PartsSwept(ContentionError):
    """A sweep may have deleted parts that waited too long for their commit.

    Remedy: write the parts again.
    """


class BusyError(TidelogError):
    """A limit is reached.

    Remedy: wait, then retry.
    """

    kind = "busy"


class LogFull(BusyError):
    """Too many bytes wait to be written; `records` has the records not taken.

    Remedy: wait, then append `records`.
    """

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
    """This handle is finished, or belongs to the parent process of a fork.

    Remedy: open another handle.
    """

    kind = "handle"


class SchemaEvolved(HandleError):
    """The shard's schema has changed, and this handle cannot write the new one.

    Remedy: open the shard with its new schema.
    """


class Fenced(HandleError):
    """Another writer took over the log.

    Remedy: stop, or open the log again, which fences the other writer.
    """


class ConsensusMoved(HandleError):
    """The location's consensus was moved after this process opened the location.

    Remedy: open the location again.
    """


class HoldFenced(HandleError):
    """The hold has a newer owner; the message has its token.

    Remedy: stop, or take the hold over with a greater token.
    """


class HoldExpired(HandleError):
    """The reader's lease has ended, so its objects may be deleted.

    Remedy: open another reader.
    """


class LocationError(TidelogError):
    """The store failed.

    Remedy: retry if the outcome is NOT_APPLIED; read back if it is UNKNOWN.
    """

    kind = "location"


class StoreRefused(LocationError):
    """The store refuses the requests, or lacks conditional writes.

    Remedy: correct the credentials, rights, region or clock, or choose another store.
    """


class DeadlineExceeded(LocationError):
    """The call did not finish within its timeout.

    Remedy: retry, with a longer timeout.
    """


class OutcomeUnknown(LocationError):
    """The process cannot find out whether the change was applied.

    Remedy: read the data back before the change is repeated.
    """

    def __init__(
        self, sentence: str, *, outcome: Outcome = Outcome.UNKNOWN, **facts: object
    ) -> None:
        super().__init__(sentence, outcome=outcome, **facts)


class CorruptionError(TidelogError):
    """Stored bytes are wrong.

    Remedy: stop; find the damage with `tidelog scrub` or `tidelog log scrub`, and restore the
    object.
    """

    kind = "corruption"


class PartMissing(CorruptionError):
    """An object that a shard's state names is missing.

    Remedy: read again, because a merge may have replaced it; else restore the object.
    """


class ConsensusGone(CorruptionError):
    """The database of consensus is missing, or does not know this location.

    Remedy: restore the database, or name the right one with `consensus=` (`--consensus`).
    """


class NameInUse(CorruptionError):
    """A foreign or broken object has a name that tidelog needs.

    Remedy: move the object away.
    """


class DataDiffers(CorruptionError):
    """Two writers wrote different data for the same times of one shard.

    Remedy: stop both, and find out which one is right.
    """


class ProgramDiffers(UsageError):
    """This process would decide other rows of a source than the one that created its rendition.

    Remedy: ingest with the same versions as before, or create a rendition and hand over to it.
    """


class SourceRewritten(CorruptionError):
    """A source returned other bytes for an address than before.

    Remedy: restore the source's data, or drop the source and create it again.
    """


class HeaderDiffers(CorruptionError):
    """A file lacks most of its source's columns, or all of them.

    Remedy: correct the file's header, or move the file away.
    """


class SourceRowsRefused(TidelogError):
    """Ingestion with `strict=True` (`--strict`) met rows that do not fit the schema.

    Remedy: correct the rows, or ingest without `strict`.
    """

    kind = "refused"


class SourcesFailed(TidelogError):
    """Some of the sources that were ingested together failed; `failed` has their errors by name.

    Remedy: remove each cause, and ingest again. The other sources were ingested.
    """

    kind = "partial"
    failed: Mapping[str, TidelogError] = {}

    def __init__(
        self,
        sentence: str,
        failed: Mapping[str, TidelogError] | None = None,
        *,
        outcome: Outcome = Outcome.NOT_APPLIED,
        **facts: object,
    ) -> None:
        super().__init__(sentence, outcome=outcome, **facts)
        self.failed = failed or {}


class InvariantError(TidelogError):
    """tidelog is wrong.

    Remedy: stop, and report the bug.
    """

    kind = "invariant"


# Faults of the machine, not of the caller: space, open files, rights.
_OF_THE_MACHINE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE, errno.ENFILE}
)


def unforeseen(error: Exception, what: str) -> TidelogError:
    """Return the error to raise for an unexpected one, met at ``what``."""
    said = str(error).strip().partition("\n")[0]
    named = type(error).__name__ + (f": {said}" if said else "")
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
        return LocationError(
            f"this machine failed at {what}: {said}. Free space in TMPDIR, correct its "
            "permissions or raise the limit of open files, then try again"
        )
    return InvariantError(f"tidelog failed at {what}: {named}")


def require(condition: object, sentence: str, **facts: object) -> None:
    """Raise InvariantError unless ``condition`` holds; also under ``python -O``."""
    if not condition:
        error = InvariantError(sentence)
        raise _rebuild(InvariantError, sentence, error.outcome, facts)
