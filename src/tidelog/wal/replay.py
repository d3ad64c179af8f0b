"""Which streams were open at a position of a slot log: control records, replayed up to there."""

from __future__ import annotations

from functools import partial

from tidelog.clock import run_all
from tidelog.errors import CorruptionError, ObjectNotFound, PositionCollected
from tidelog.wal.held import may_hold
from tidelog.wal.manifest import Manifest
from tidelog.wal.slot import controls_of
from tidelog.wal.slot_reader import SlotReader
from tidelog.wal.snapshot import Fragment
from tidelog.wal.streams import CONTROL, Controls, Streams, apply_controls
from tidelog.wal.walk import chain_of


async def streams_at(reader: SlotReader, position: int) -> Streams:
    """Give the streams that are open at a position; only objects with control records are read.

    Raises:
        PositionCollected: what is before it cannot be told any more. CorruptionError: an object is
        missing, or is not what was written. LocationError: the store failed.
    """
    while True:
        manifest = await reader.manifest()
        if position < manifest.oldest:
            raise PositionCollected(
                f"what was open at {position} was collected: the oldest is {manifest.oldest}",
                oldest=manifest.oldest,
            )
        try:
            controls = await _controls_below(reader, manifest, position)
        except ObjectNotFound as error:
            if await reader.manifest() == manifest:
                raise CorruptionError(
                    f"the log names an object that is not there: restore it ({error})"
                ) from error
            continue
        if (await reader.manifest()).oldest == manifest.oldest:
            return apply_controls(chain_of(manifest).streams_at_start, controls)


async def _controls_below(reader: SlotReader, manifest: Manifest, position: int) -> Controls:
    async def read(fragment: Fragment) -> Controls:
        data = (await reader.store.get(fragment.path)).data
        return await reader.clock.offload(partial(controls_of, data, fragment))

    if position == manifest.oldest:
        return ()
    found = await reader.fragments(manifest.oldest, limit=position)
    work = [partial(read, one) for one in found if may_hold(one.streams, CONTROL)]
    said = await run_all(work, at_once=reader.reads) if work else []
    return tuple(pair for controls in said for pair in controls if pair[0] < position)
