"""The streams open at an older position of a slot log, by replay of control records."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tidelog.core.clock import Clock, run_all
from tidelog.core.lookahead import AT_ONCE_MAX
from tidelog.errors import ObjectNotFound, PositionCollected
from tidelog.store.port import Store
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.fragment_sets import may_hold
from tidelog.wal.format.manifest import Manifest, chain_of
from tidelog.wal.format.slot_object import controls_of
from tidelog.wal.format.streams import CONTROL, Controls, Streams, apply_controls
from tidelog.wal.read.head import load_past, read_again
from tidelog.wal.slot_protocol.reader import SlotReader


async def streams_at(reader: SlotReader, position: int) -> Streams:
    """Return the streams open at a position; only fragments with control records are read.

    Raises:
        PositionCollected: records before the position were collected.
        CorruptionError: an object is missing or changed.
        LocationError: the store failed.
    """
    while True:
        manifest = await reader.manifest()
        if position < manifest.oldest:
            raise PositionCollected(
                f"records before {manifest.oldest} were collected, so the streams open at "
                f"{position} are unknown: pass {manifest.oldest} or a later position",
                oldest=manifest.oldest,
            )
        try:
            controls = await _controls_below(reader, manifest, position)
        except ObjectNotFound as error:
            await load_past(reader.store, manifest, error)
            continue
        if (await reader.manifest()).oldest == manifest.oldest:
            return apply_controls(chain_of(manifest).streams_at_start, controls)


async def _controls_below(reader: SlotReader, manifest: Manifest, position: int) -> Controls:
    if position == manifest.oldest:
        return ()
    found = await reader.fragments(manifest.oldest, limit=position)
    holding = [one for one in found if may_hold(one.streams, CONTROL)]
    said = await read_controls(reader.store, reader.clock, holding)
    return tuple(pair for pair in said if pair[0] < position)


async def read_controls(
    store: Store, clock: Clock, fragments: Sequence[Fragment], *, at_once: int = AT_ONCE_MAX
) -> Controls:
    """Read the control records of fragments from their links.

    Raises:
        ObjectNotFound: a fragment is missing.
        CorruptionError: a fragment is changed.
    """

    async def read(fragment: Fragment) -> Controls:
        data = (await store.get(fragment.path)).data
        return await clock.offload(partial(controls_of, data, fragment))

    work = [partial(read_again, partial(read, one)) for one in fragments]
    found = await run_all(work, at_once=at_once)
    return tuple(pair for controls in found for pair in controls)
