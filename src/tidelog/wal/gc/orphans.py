"""Sweeping a log: what collectors and writers that died left behind is found by listing.

A collection deletes what its plan names. What no plan names any more, such as the snapshots of a
plan that was taken away, or a fragment whose writer slept through a collection, is left; so is what
Chroma's collector leaves when it dies after the manifest. Here everything is listed, and deleted
if, and only if, the manifest proves it dead: fragments below its first number, snapshots that begin
below its first position, and in slot logs what is void. What lies above may be a writer's, who has
not come to the manifest. What a pin names is left to lie.
Source: docs/internals/wal3.md, docs/internals/log-collection.md.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tidelog.clock import Clock
from tidelog.errors import CorruptionError, ObjectNotFound
from tidelog.store.port import Store
from tidelog.wal.format.epoch import EPOCHS, Place, place_of
from tidelog.wal.format.epoch_chain import Chain
from tidelog.wal.format.fragment import fragment_path
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.format.snapshot import decode_snapshot, is_named_by_its_sum, maker_of, sum_of
from tidelog.wal.gc.collector import GRACE_US
from tidelog.wal.gc.deletion import AT_ONCE, Pace, delete_all
from tidelog.wal.gc.pin_reach import paths_pinned
from tidelog.wal.read.epoch_history import with_all_epochs
from tidelog.wal.read.read_again import read_decoded
from tidelog.wal.read.tree_paths import paths_named
from tidelog.wal.read.tree_reader import TreeReader

_FRAGMENT: Final = re.compile(r"log/.*FragmentSeqNo=([0-9a-f]{16})\.parquet")
SNAPSHOT: Final = re.compile(
    r"snapshot/SNAPSHOT\.(?:[0-9a-f]{2}\.)?[0-9a-f]{64}(?:\.[0-9a-f]{16})?"
)


class OrphanVerdict(enum.Enum):
    """What is to become of an object that the log does not name."""

    DEAD = "nobody will name it any more"
    KEPT = "the fence that ended an epoch stays for ever"
    UNPROVEN = "it may still become part of the log"
    FOREIGN = "it is none of a log's"


@dataclass(slots=True)
class Swept:
    """What a sweep found that the log does not name.

    Shape: keys. ``unproven`` may still become part of the log; ``foreign`` are no objects of a log.
    """

    deleted: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


async def sweep(
    store: Store, *, clock: Clock, grace_us: int = GRACE_US, pace: Pace = AT_ONCE
) -> Swept:
    """Delete the objects of the log at the root of ``store`` that are dead, and tell of others.

    Units: ``grace_us`` microseconds pass between the look at the manifest and the deletion, since
        another collector may have replaced it just before.

    Raises:
        NoSuchLog: there is none. CorruptionError: it names what is not there; nothing was deleted.
        LocationError: the store failed; some may have been deleted.
    """
    manifest, named = await paths_named(TreeReader(store=store, clock=clock))
    if manifest.chain is not None:
        named |= await paths_pinned(store, clock)
        manifest = replace(manifest, chain=(await with_all_epochs(store, manifest.chain)).chain)
    found = Swept()
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
        return OrphanVerdict.KEPT  # It has gone meanwhile.
    except CorruptionError:
        return OrphanVerdict.FOREIGN
    children = snapshot.children
    is_whole = snapshot.setsum == sum_of(children) and is_named_by_its_sum(snapshot)
    if not children or not is_whole or key != snapshot.path:
        return OrphanVerdict.FOREIGN
    # Stored for another's manifest, which was to be the first here: there is one.
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
        # An opener who had slept named it, or fenced it: the log went another way.
        return OrphanVerdict.DEAD if place.number <= chain.last.number else OrphanVerdict.UNPROVEN
    if place.lane != place.slot % epoch.lanes or place.slot < epoch.first_slot:
        return OrphanVerdict.FOREIGN
    fence = next((slot for ended, slot in chain.ends() if ended == epoch), None)
    if place.slot == fence:
        return OrphanVerdict.KEPT
    if place.slot < first_kept or (fence is not None and place.slot > fence):
        return OrphanVerdict.DEAD
    return OrphanVerdict.UNPROVEN
