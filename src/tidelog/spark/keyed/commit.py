"""Committing a batch: all its records and its mark by one append, unless it is in the log already.

A committer takes the log over first, by an append of its own: from then on nobody who was at it
before, be it this batch's first try, can append any more. Then it looks for the sink's newest mark,
in what is loose, newest first, else in the state; and appends only what is not there. So a batch
that has a name is in the log once, if it was committed once, or twice, or by two at a time.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, Final

import pyarrow as pa

from tidelog.clock import run_all, wall_us
from tidelog.errors import Fenced, TidelogError, UsageError
from tidelog.keyed.format.mark import BEGINS, encode_mark
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.logs import KeyedLogs
from tidelog.keyed.read.standing import KeyedStanding
from tidelog.keyed.upkeep.compactor import Compactor
from tidelog.spark.keyed.staging import Staged, load_block
from tidelog.store.port import Store
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.parquet import RECORDS_MAX

BATCH_BYTES_MAX: Final = 512 * 1024 * 1024
TRIES: Final = 3
LOADS_AT_ONCE: Final = 4


async def commit_batch(
    logs: KeyedLogs, log_name: str, staged: Staged, name: tuple[str, int] | None
) -> bool:
    """Append what was staged, in order; False if it was there.

    ``name`` is a sink and a number, which rises. Without one, what is large is several appends, of
    which a failure may leave the first ones.

    Raises:
        UsageError: what has a name is too much for one append. Fenced: others take the log over
        again and again. Otherwise see `tidelog.keyed.port.KeyedWrites.append`.
    """
    if not staged.rows:
        return False
    if name is not None:
        _check_size(staged)
    is_new = await _committed(logs, log_name, staged, name)
    await discard_staged(logs.store, staged)
    with suppress(TidelogError):
        # Nobody else may compact what is due, where only batches are written.
        await Compactor(standing=await logs.standing(log_name)).compact()
    return is_new


async def is_committed(standing: KeyedStanding, sink: str, number: int) -> bool:
    """Say whether a batch of a sink is in the log, or a later one.

    Raises:
        NoSuchLog: the log is gone. LocationError: the store failed.
    """
    await standing.refresh()
    for piece in reversed(standing.tail.pieces):
        if piece.fragment is not None and piece.fragment.keys == ():
            continue  # A mark stands with records.
        await standing.tail.records(piece)
        if (mark := piece.marks.get(sink)) is not None:
            return mark.number >= number
    known = standing.state.sinks.get(sink)
    return known is not None and known.number >= number


async def discard_staged(store: Store, staged: Staged) -> None:
    """Delete what was staged; what cannot be deleted now is swept."""
    if staged.paths:
        with suppress(TidelogError):
            await store.delete(staged.paths)


async def _committed(
    logs: KeyedLogs, log_name: str, staged: Staged, name: tuple[str, int] | None
) -> bool:
    if name is not None:
        for _ in range(TRIES - 1):
            with suppress(Fenced):
                return await _commit_once(logs, log_name, staged, name)
    return await _commit_once(logs, log_name, staged, name)


async def _commit_once(
    logs: KeyedLogs, log_name: str, staged: Staged, name: tuple[str, int] | None
) -> bool:
    log = await logs.open(log_name, batching=Batching(interval_us=0), upkeep=False)
    try:
        if name is not None:
            return await _append_once(log, staged, *name)
        await _append_all(log, staged)
        return True
    finally:
        with suppress(TidelogError):
            await log.close()


async def _append_once(log: KeyedLog, staged: Staged, sink: str, number: int) -> bool:
    clock = log.standing.clock
    begin = pa.array([encode_mark(sink, BEGINS)], pa.binary())
    await log.wal.append_arrow(begin, timestamp_us=wall_us(clock))
    if await is_committed(log.standing, sink, number):
        return False
    store = log.standing.store
    work = [partial(load_block, store, block) for block in staged.blocks]
    together = pa.concat_tables(await run_all(work, at_once=LOADS_AT_ONCE))
    keys: Any = pa.concat_arrays([*together.column("key").chunks, pa.nulls(1, pa.binary())])
    mark = pa.array([encode_mark(sink, number)], pa.binary())
    values: Any = pa.concat_arrays([*together.column("value").chunks, mark])
    await log.wal.append_arrow(values, key=keys, timestamp_us=wall_us(clock))
    return True


async def _append_all(log: KeyedLog, staged: Staged) -> None:
    for block in staged.blocks:
        await log.append_arrow(await load_block(log.standing.store, block))


def _check_size(staged: Staged) -> None:
    """Refuse what is too large for one append, before anything is appended."""
    if staged.num_bytes > BATCH_BYTES_MAX or staged.rows >= RECORDS_MAX:
        raise UsageError(
            f"a batch that is written once is one append, of at most {BATCH_BYTES_MAX} bytes and "
            f"{RECORDS_MAX - 1} records: have the stream read less at a time",
            size_bytes=staged.num_bytes,
            records=staged.rows,
        )
