"""The commit of a batch: one append of all its records and its marker, unless the log has them.

A committer first opens the log and appends, which fences every earlier writer, such as a first try
of the same batch. Then it looks for the sink's newest marker: in the loose records, newest first,
then in the state. It appends only a batch that is not in the log. So a named batch is in the log
once, even if it is committed twice, or by two processes concurrently.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, Final

import pyarrow as pa

from tidelog.collection.staged import IsRepeat, is_older
from tidelog.core.clock import run_all, wall_us
from tidelog.errors import Fenced, TidelogError, UsageError
from tidelog.keyed.format.records import BEGINS, encode_marker
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.logs import KeyedLogs
from tidelog.keyed.maintenance.compactor import Compactor
from tidelog.keyed.read.state_handle import KeyedStateHandle
from tidelog.spark.keyed.staging import StagedBatch, load_block
from tidelog.store.port import Store
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.parquet import RECORDS_MAX

BATCH_BYTES_MAX: Final = 512 * 1024 * 1024
TRIES: Final = 3
LOADS_AT_ONCE: Final = 4


async def commit_batch(
    logs: KeyedLogs,
    log_name: str,
    staged: StagedBatch,
    name: tuple[str, int] | None,
    is_repeat: IsRepeat = is_older,
) -> bool:
    """Append the staged records, in order; return False if the log already has them.

    ``name`` is a sink and its batch number, which rises. ``is_repeat`` compares the sink's
    number in the log with that of the batch, and may raise. Without a name, a large batch takes
    several appends, and a failure may leave the first of them in the log.

    Raises:
        UsageError: a batch with a name is too large for one append.
        Fenced: other writers opened the log at every try.
        Other errors: see `tidelog.keyed.port.KeyedWrites.append`.
    """
    if not staged.rows:
        return False
    if name is not None:
        _check_size(staged)
    is_new = await _committed(logs, log_name, staged, name, is_repeat)
    await discard_staged(logs.store, staged)
    with suppress(TidelogError):
        # A log that only batches write has no other process to compact it.
        await Compactor(state_handle=await logs.state_handle(log_name)).compact()
    return is_new


async def last_batch(state_handle: KeyedStateHandle, sink: str) -> int | None:
    """Return the number of a sink's newest batch in the log, or None.

    Raises:
        NoSuchLog: the log no longer exists.
        LocationError: the store failed.
    """
    await state_handle.refresh()
    for piece in reversed(state_handle.tail.pieces):
        if piece.fragment is not None and piece.fragment.keys == ():
            continue  # A marker is always in one append with records, and these have keys.
        await state_handle.tail.records(piece)
        if (mark := piece.marks.get(sink)) is not None:
            return mark.number
    known = state_handle.state.sinks.get(sink)
    return None if known is None else known.number


async def discard_staged(store: Store, staged: StagedBatch) -> None:
    """Delete the staged objects; a sweep deletes those that this call cannot."""
    if staged.paths:
        with suppress(TidelogError):
            await store.delete(staged.paths)


async def _committed(
    logs: KeyedLogs,
    log_name: str,
    staged: StagedBatch,
    name: tuple[str, int] | None,
    is_repeat: IsRepeat,
) -> bool:
    if name is not None:
        for _ in range(TRIES - 1):
            with suppress(Fenced):
                return await _commit_once(logs, log_name, staged, name, is_repeat)
    return await _commit_once(logs, log_name, staged, name, is_repeat)


async def _commit_once(
    logs: KeyedLogs,
    log_name: str,
    staged: StagedBatch,
    name: tuple[str, int] | None,
    is_repeat: IsRepeat,
) -> bool:
    log = await logs.open(log_name, batching=Batching(interval_us=0), maintenance=False)
    try:
        if name is not None:
            return await _append_once(log, staged, *name, is_repeat)
        await _append_all(log, staged)
        return True
    finally:
        with suppress(TidelogError):
            await log.close()


async def _append_once(
    log: KeyedLog, staged: StagedBatch, sink: str, number: int, is_repeat: IsRepeat
) -> bool:
    clock = log.state_handle.clock
    begin = pa.array([encode_marker(sink, BEGINS)], pa.binary())
    await log.wal.append_arrow(begin, timestamp_us=wall_us(clock))
    if is_repeat(await last_batch(log.state_handle, sink), number):
        return False
    store = log.state_handle.store
    work = [partial(load_block, store, block) for block in staged.blocks]
    together = pa.concat_tables(await run_all(work, at_once=LOADS_AT_ONCE))
    keys: Any = pa.concat_arrays([*together.column("key").chunks, pa.nulls(1, pa.binary())])
    mark = pa.array([encode_marker(sink, number)], pa.binary())
    values: Any = pa.concat_arrays([*together.column("value").chunks, mark])
    await log.wal.append_arrow(values, key=keys, timestamp_us=wall_us(clock))
    return True


async def _append_all(log: KeyedLog, staged: StagedBatch) -> None:
    for block in staged.blocks:
        await log.append_arrow(await load_block(log.state_handle.store, block))


def _check_size(staged: StagedBatch) -> None:
    """Check, before the first append, that a batch fits into one append."""
    if staged.num_bytes > BATCH_BYTES_MAX or staged.rows >= RECORDS_MAX:
        raise UsageError(
            f"a batch that is written once must fit into one append of {BATCH_BYTES_MAX} bytes and "
            f"{RECORDS_MAX - 1} records: use smaller batches",
            size_bytes=staged.num_bytes,
            records=staged.rows,
        )
