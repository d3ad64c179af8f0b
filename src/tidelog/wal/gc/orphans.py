"""A sweep of a log: it lists all objects, and deletes dead ones that no plan names.

A collection deletes only the objects that its plan names. Others remain: the snapshots of a removed
plan, a fragment whose writer was suspended during a collection, and everything left by Chroma's
collector if it dies after replacing the manifest. The sweep deletes an object only if the manifest
proves it dead. These are fragments below the manifest's first number, snapshots that begin below
its first position, and in slot logs void objects. Newer objects may belong to a writer that has not
updated the manifest yet. Objects that a pin names are kept.
Source: docs/internals/wal3.md, docs/internals/log-collection.md.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tidelog.core.clock import Clock
from tidelog.errors import CorruptionError, ObjectNotFound
from tidelog.store.port import Store
from tidelog.wal.format.epoch_chain import Chain
from tidelog.wal.format.fragment import fragment_path
from tidelog.wal.format.link import EPOCHS
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.format.paths import Place, place_of
from tidelog.wal.format.snapshot import decode_snapshot, is_named_by_its_sum, maker_of, sum_of
from tidelog.wal.gc.collector import GRACE_US
from tidelog.wal.gc.deletion import AT_ONCE, Pace, delete_all
from tidelog.wal.gc.pin_reach import paths_pinned
from tidelog.wal.read.epoch_history import with_all_epochs
from tidelog.wal.read.head import TreeReader, read_decoded
from tidelog.wal.read.tree_paths import paths_named

_FRAGMENT: Final = re.compile(r"log/.*FragmentSeqNo=([0-9a-f]{16})\.parquet")
SNAPSHOT: Final = re.compile(
    r"snapshot/SNAPSHOT\.(?:[0-9a-f]{2}\.)?[0-9a-f]{64}(?:\.[0-9a-f]{16})?"
)


class OrphanVerdict(enum.Enum):
    """The fate of an object that the log does not name."""

    DEAD = "the log can no longer name it"
    KEPT = "it is the fence that ended an epoch, which is never deleted"
    UNPROVEN = "it may still become part of the log"
    FOREIGN = "it is not an object of a log"


@dataclass(slots=True)
class OrphanReport:
    """The keys that a sweep found and the log does not name.

    Shape: ``deleted`` were dead. ``unproven`` may still become part of the log. ``foreign`` are not
    objects of a log.
    """

    deleted: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


async def sweep(
    store: Store, *, clock: Clock, grace_us: int = GRACE_US, pace: Pace = AT_ONCE
) -> OrphanReport:
    """Delete the dead objects of the log at the root of ``store``; report other unnamed ones.

    Units:
        grace_us: microseconds between the read of the manifest and the deletion, for readers that
        started before a collector replaced the manifest.

    Raises:
        NoSuchLog: the log does not exist.
        CorruptionError: the log names a missing object; nothing was deleted.
        LocationError: the store failed; some objects may have been deleted.
    """
    manifest, named = await paths_named(TreeReader(store=store, clock=clock))
    if manifest.chain is not None:
        named |= await paths_pinned(store, clock)
        manifest = replace(manifest, chain=(await with_all_epochs(store, manifest.chain)).chain)
    found = OrphanReport()
    told = {
        OrphanVerdict.DEAD: found.deleted,
        OrphanVerdict.UNPROVEN: found.unproven,
        OrphanVerdict.FOREIGN: found.foreign,
    }
    for prefix in ("log/" if manifest.chain is None else EPOCHS, "snapshot/"):
        async for entry in store.list(prefix):
            if entry.key in named:
                continue
            verdict = await _judge(store, manifest, entry.key)
            if verdict in told:
                told[verdict].append(entry.key)
    if found.deleted:
        await clock.sleep(grace_us)
        await delete_all(store, found.deleted, clock=clock, pace=pace)
    return found


async def _judge(store: Store, manifest: Manifest, key: str) -> OrphanVerdict:
    if not SNAPSHOT.fullmatch(key):
        return judge_fragment(manifest, key)
    try:
        snapshot = await read_decoded(
            store, key, lambda read: decode_snapshot(read.data, where=key)
        )
    except ObjectNotFound:
        return OrphanVerdict.KEPT  # It was deleted concurrently.
    except CorruptionError:
        return OrphanVerdict.FOREIGN
    children = snapshot.children
    is_whole = snapshot.setsum == sum_of(children) and is_named_by_its_sum(snapshot)
    if not children or not is_whole or key != snapshot.path:
        return OrphanVerdict.FOREIGN
    # A fork, copy or rebuild stored it before its own manifest, and lost: this log has another one.
    is_others = maker_of(key) is not None
    return (
        OrphanVerdict.DEAD
        if is_others or children[0].start < manifest.oldest
        else OrphanVerdict.UNPROVEN
    )


def judge_fragment(manifest: Manifest, key: str) -> OrphanVerdict:
    """Judge an object of records, or a fence, that the manifest does not name. Pure."""
    first_kept = manifest.initial_seq_no or 0
    if manifest.chain is not None:
        place = place_of(key)
        return (
            OrphanVerdict.FOREIGN
            if place is None
            else _judge_slot(manifest.chain, place, first_kept)
        )
    number = _FRAGMENT.fullmatch(key)
    if number is None or key != fragment_path(int(number[1], 16)):
        return OrphanVerdict.FOREIGN
    return OrphanVerdict.DEAD if int(number[1], 16) < first_kept else OrphanVerdict.UNPROVEN


def _judge_slot(chain: Chain, place: Place, first_kept: int) -> OrphanVerdict:
    epoch = next((epoch for epoch in chain.epochs if epoch.name == place.epoch), None)
    if epoch is None:
        # A suspended opener named or fenced this epoch late; the log does not contain it.
        return OrphanVerdict.DEAD if place.number <= chain.last.number else OrphanVerdict.UNPROVEN
    if place.lane != place.slot % epoch.lanes or place.slot < epoch.first_slot:
        return OrphanVerdict.FOREIGN
    fence = next((slot for ended, slot in chain.ends() if ended == epoch), None)
    if place.slot == fence:
        return OrphanVerdict.KEPT
    if place.slot < first_kept or (fence is not None and place.slot > fence):
        return OrphanVerdict.DEAD
    return OrphanVerdict.UNPROVEN
