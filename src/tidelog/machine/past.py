"""The kept past of a machine: its records, and its state at a seqno.

Readers and writers do not use this module. Scrubbing and the commands that show history do.
Source: persist, "Incremental State".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from tidelog.core.ids import SeqNo
from tidelog.errors import ObjectNotFound, UsageError
from tidelog.machine import record as records
from tidelog.machine.language import D, S
from tidelog.machine.machine import Machine
from tidelog.machine.record import Record


@dataclass(frozen=True, slots=True)
class PastRecord(Generic[D]):
    """A kept record and its decoded changes."""

    seqno: int
    record: Record
    diffs: tuple[D, ...]


async def kept_records(machine: Machine[S, D], start: int = 1) -> list[PastRecord[D]]:
    """Return the kept records from ``start``, oldest first.

    Raises:
        CorruptionError: a record cannot be read. LocationError: the store failed.
    """
    kept = []
    for version in await machine.consensus.scan(machine.key, SeqNo(start)):
        record = records.decode_record(version.data, key=machine.key, seqno=version.seqno)
        kept.append(PastRecord(version.seqno, record, machine.diffs_of(record, version.seqno)))
    return kept


async def state_at(machine: Machine[S, D], seqno: int) -> S:
    """Return the state at a seqno.

    Raises:
        UsageError: the seqno does not exist yet, or its state is no longer kept; the message names
            the kept seqnos. CorruptionError, LocationError: see `kept_records`.
    """
    await machine.refresh()
    kept = await kept_records(machine)
    rollups = [rollup for rollup in machine.history.rollups if rollup.seqno <= seqno]
    first = kept[0].seqno if kept else 1
    oldest = first if first == 1 else next((r.seqno for r in machine.history.rollups), first)
    if not oldest <= seqno <= machine.seqno:
        raise UsageError(
            f"no state has the seqno {seqno}: the states from {oldest} to {machine.seqno} exist"
        )
    state, at = machine.language.initial(), 0
    if rollups and (first > 1 or rollups[-1].seqno >= first):
        try:
            state, _ = await machine.load_rollup(rollups[-1])
        except ObjectNotFound:
            # A collection deleted the rollup while we read the records.
            raise UsageError(
                f"a collector has just deleted the state of seqno {seqno}: read a newer one"
            ) from None
        at = rollups[-1].seqno
    for past_record in kept:
        if at < past_record.seqno <= seqno:
            for diff in past_record.diffs:
                state = machine.language.apply(state, diff)
    return state
