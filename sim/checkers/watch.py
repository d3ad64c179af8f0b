"""A watch on the shared store: all decisions ever made in it, and any step not allowed.

It sees every change at once, and remembers objects that are truncated or deleted later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import xxhash

from tidelog.consensus import object_consensus as objects
from tidelog.consensus.group_object import GroupObject, decode_group
from tidelog.consensus.object_consensus import ConsensusEntry, ConsensusObject
from tidelog.core.ids import NamedKind, SeqNo, is_group
from tidelog.machine.record import Record, decode_record
from tidelog.persist.format.part import Part
from tidelog.persist.states.state import ShardLanguage
from tidelog.persist.transactions.language import TransactionLanguage
from tidelog.store.memory import MemoryStore

_BOX = "consensus/"
TRANSACTIONS = NamedKind.TRANSACTIONS.prefix


@dataclass(slots=True)
class Watch:
    """A watch; see the module. ``shards``: consensus keys hold shards and their transactions."""

    store: MemoryStore
    shards: bool = True
    violations: list[str] = field(default_factory=list)
    entries: dict[str, list[ConsensusEntry]] = field(default_factory=dict)
    rollups: dict[str, bytes] = field(default_factory=dict)
    parts: dict[str, bytes] = field(default_factory=dict)
    _named: set[str] = field(default_factory=set)
    _sums: dict[str, bytes] = field(default_factory=dict)

    def on_put(self, key: str, data: bytes) -> None:
        if key.startswith(_BOX):
            name = key.removeprefix(_BOX)
            if is_group(name):
                self._on_group(decode_group(data, group=name))
            else:
                self._on_object(name, objects.decode_object(data, key=key))
        elif "/part/" in key or "/rollup/" in key or key.startswith("consensus-spill/"):
            found = xxhash.xxh3_128_digest(data)
            if "/rollup/" in key:
                self.rollups[key] = data
            if "/part/" in key:
                self.parts[key] = data
            if self._sums.setdefault(key, found) != found:
                self.violations.append(f"{key} was written twice, with other bytes")

    def on_delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key.startswith(_BOX) or key in self._named:
                self.violations.append(f"{key} was deleted, and is needed")

    def records(self, key: str) -> list[Record]:
        """Return every record that was ever decided, from the first."""
        return [
            decode_record(entry.data, key=key, seqno=SeqNo(entry.seqno))
            for entry in self.entries.get(key, [])
        ]

    def _on_group(self, group: GroupObject) -> None:
        for key, member in group.members.items():
            entries = tuple(ConsensusEntry(one.seqno, "", one.data) for one in member.records)
            contents = ConsensusObject(
                objects.FORMAT, group.stamp, member.spills, entries, writes=()
            )
            self._on_object(key, contents)

    def _on_object(self, key: str, contents: ConsensusObject) -> None:
        known = self.entries.setdefault(key, [])
        new = [entry for entry in contents.records if entry.seqno > len(known)]
        for entry in contents.records:
            if entry.seqno <= len(known) and known[entry.seqno - 1] != entry:
                self.violations.append(f"{key}: record {entry.seqno} was changed")
        if not contents.records or contents.head_seqno < len(known):
            self.violations.append(f"{key}: records after {contents.head_seqno} were lost")
        if len(new) > 1 or (new and new[0].seqno != len(known) + 1):
            self.violations.append(f"{key}: records are not dense after {len(known)}")
        for spill in contents.spills:
            if spill.path not in self.store.objects:
                self.violations.append(f"{key}: the spill {spill.path} is named and not there")
        known.extend(new)
        for entry in new if self.shards else []:
            self._on_record(key, decode_record(entry.data, key=key, seqno=SeqNo(entry.seqno)))

    def _on_record(self, key: str, record: Record) -> None:
        named: list[str] = []
        if key.startswith(TRANSACTIONS):
            named = _parts_of(record)
            self._named.update(named)
        shard = not key.startswith(TRANSACTIONS)
        for diff in (ShardLanguage().decode_diff(data) for data in record.diffs if shard):
            merged = diff.merged
            batches = [diff.batch, None if merged is None else merged.batch]
            found = [p.path for b in batches if b is not None for p in b.parts]
            named += [path for path in found if path is not None]
            self._named.update(named)
            self._named.difference_update(() if merged is None else merged.vanished)
        if record.rollup is not None:
            named.append(record.rollup.path)
        self.violations.extend(
            f"{key}: {path} is named and not there"
            for path in named
            if path not in self.store.objects
        )


def _parts_of(record: Record) -> list[str]:
    """Return the objects that a record's transactions name, before shards receive them."""
    diffs = [TransactionLanguage().decode_diff(data) for data in record.diffs]
    packed = [write.packed for diff in diffs for write in diff.writes.values()]
    parts = [p for data in packed for p in msgspec.msgpack.decode(data, type=tuple[Part, ...])]
    return [part.path for part in parts if part.path is not None]
