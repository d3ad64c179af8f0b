"""Data for the benchmarks of logs: bodies, and trees of logs with very many fragments."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tidelog.core.setsum import Setsum
from tidelog.store.memory import MemoryStore
from tidelog.wal.format.epoch_chain import Chain
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.link import Epoch, fragment_of
from tidelog.wal.format.manifest import MANIFEST, Manifest, encode_manifest, tail_of
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.format.slot_object import encode_data, place_slot_records
from tidelog.wal.format.snapshot import encode_snapshot
from tidelog.wal.slot_protocol.checkpoint import roll_all


def noise(count: int, size: int) -> pa.BinaryArray:
    """Return bodies that cannot be compressed."""
    block = os.urandom(count * size)
    cut = [block[at : at + size] for at in range(0, count * size, size)]
    bodies: pa.BinaryArray = pa.array(cut, pa.binary())
    return bodies


async def write_deep_log(store: MemoryStore, count: int) -> None:
    """Write the tree of a log of ``count`` fragments; only the first fragment has an object."""
    epoch = Epoch(number=0, id="0" * 16, first_slot=1, opener="bench")
    manifest = Manifest(writer="bench", chain=Chain(epochs=(epoch,)))
    records = place_slot_records(noise(1, 100), start=1, times=np.ones(1, dtype=np.int64))
    tail = tail_of(manifest)
    link, data = encode_data(records, tail, writer="bench")
    await store.put(tail.path, data)
    one = fragment_of(link, tail.path, len(data))
    total, step = Setsum.zero(), 128
    for first in range(1, count + 1, step):
        added = list[Fragment]()
        for slot in range(first, min(first + step, count + 1)):
            place = {"path": epoch.path(slot), "seq_no": slot, "start": slot, "limit": slot + 1}
            setsum = one.setsum if slot == 1 else Setsum.of(b"%d" % slot)
            added.append(replace(one, **place, setsum=setsum))  # type: ignore[arg-type]
            total = total + setsum
        fragments = (*manifest.fragments, *added)
        size = manifest.acc_bytes + sum(fragment.num_bytes for fragment in added)
        manifest = replace(manifest, setsum=total, acc_bytes=size, fragments=fragments)
        manifest, snapshots = roll_all(manifest, Rollover(), writer="bench")
        for snapshot in snapshots:
            await store.put(snapshot.path, encode_snapshot(snapshot))
    await store.put(MANIFEST, encode_manifest(manifest))
