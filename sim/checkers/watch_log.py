"""A watch on a log's objects: all that the log ever held, and any step not allowed.

It observes the shared store, and sees every change at once. It remembers collected records. Clients
report the positions that they rely on.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelog.core.setsum import Setsum
from tidelog.store.memory import MemoryStore
from tidelog.wal.format.cursor import CURSORS
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import MANIFEST, Manifest, decode_manifest, problems_of_manifest
from tidelog.wal.format.pin import decode_pin, pin_name
from tidelog.wal.format.slot_object import decode_data
from tidelog.wal.format.snapshot import Pointer, decode_snapshot, problems_of_snapshot
from tidelog.wal.format.wal3_records import decode_fragment


@dataclass(slots=True)
class LogWatch:
    """A watch; see the module. Units: ``grace_us`` is the grace promised to readers.

    ``held``: by cursor name, the position after which a client relies on everything. ``pinned``: by
    pin name, the range on which a client relies.
    """

    store: MemoryStore
    grace_us: int
    held: dict[str, int] = field(default_factory=dict)
    pinned: dict[str, tuple[int, int]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)
    manifest: Manifest | None = None
    _fragments: list[Fragment] = field(default_factory=list)
    _said: list[tuple[int, bytes]] = field(default_factory=list)
    _named: set[str] = field(default_factory=set)
    _starts: dict[str, int] = field(default_factory=dict)
    _left_at: dict[str, float] = field(default_factory=dict)
    _holding: frozenset[str] = frozenset()

    def copy_for(self, store: MemoryStore) -> LogWatch:
        """Return a watch with the same history that continues at a copy of the store."""
        other = LogWatch(store, self.grace_us, bodies=list(self.bodies), manifest=self.manifest)
        other._fragments, other._starts = list(self._fragments), dict(self._starts)
        other._said, other._holding = list(self._said), self._holding
        other._named, other._left_at = set(self._named), dict(self._left_at)
        return other

    def hold(self, name: str, position: int) -> None:
        """Record that a client was promised, and relies on, everything from ``position`` on."""
        self.held[name] = position
        if self.manifest is not None and position < self.manifest.oldest:
            self._violated(f"{name} holds {position}, and is gone already")

    def on_put(self, key: str, data: bytes) -> None:
        if key == MANIFEST:
            self._on_manifest(decode_manifest(data))
        elif key.startswith("snapshot/"):
            self._starts[key] = decode_snapshot(data, where=key).children[0].start
        elif pin_name(key) is not None:
            is_held = decode_pin(data, where=key).is_held
            self._holding = self._holding | {key} if is_held else self._holding - {key}

    def on_delete(self, keys: Sequence[str]) -> None:
        now = asyncio.get_running_loop().time()
        for key in keys:
            if key.startswith(CURSORS):
                continue
            if pin_name(key) is not None:
                if key in self._holding:
                    self._violated(f"{key} was deleted, and is a pin that holds something")
                continue
            left_at = self._left_at.get(key)
            if key in self._pinned_paths():
                self._violated(f"{key} was deleted, and a pin holds it")
            if key in self._named or (left_at is None and not self._is_dead(key)):
                self._violated(f"{key} was deleted, and nothing proves it dead")
            elif left_at is not None and round((now - left_at) * 1e6) < self.grace_us:
                self._violated(f"{key} was deleted before the readers' grace was over")
            self.deleted.add(key)

    def _on_manifest(self, new: Manifest) -> None:
        old, self.manifest = self.manifest, new
        named, fragments = self._tree(new)
        for fragment in fragments:
            self._on_fragment(fragment)
        if old is not None and (new.oldest < old.oldest or new.next < old.next):
            self._violated("the log went back")
        for problem in problems_of_manifest(new):
            self._violated(f"the manifest contradicts itself: {problem}")
        gone = [f for f in self._fragments if f.limit <= new.oldest]
        if new.collected != _sum_of(gone) or new.setsum != _sum_of(self._fragments):
            self._violated("the manifest's sums are not those of all that there ever was")
        if old is None or new.oldest > old.oldest:
            for name, position in self.held.items():
                if position < new.oldest:
                    self._violated(f"{name} holds {position}, and the log begins at {new.oldest}")
        if (chain := new.chain) is not None:
            for streams, limit in ((chain.streams_at_start, new.oldest), (chain.streams, new.next)):
                if {info.id: (info.meta, info.position) for info in streams} != self._open(limit):
                    self._violated(f"the manifest has other streams than were open at {limit}")
        now = asyncio.get_running_loop().time()
        self._left_at.update(dict.fromkeys(self._named - named, now))
        self._named = named

    def _open(self, limit: int) -> dict[bytes, tuple[bytes, int]]:
        """Return the streams open at a position, from all control records ever written."""
        found: dict[bytes, tuple[bytes, int]] = {}
        for position, body in self._said:
            if position >= limit:
                break
            said = json.loads(body)
            stream = b64decode(said["stream"])
            if said["op"] == "close":
                del found[stream]
            else:
                begun = found[stream][1] if said["op"] == "meta" else position
                found[stream] = (b64decode(said["meta"]), begun)
        return found

    def _pinned_paths(self) -> set[str]:
        return {
            fragment.path
            for start, limit in self.pinned.values()
            for fragment in self._fragments
            if fragment.limit > start and fragment.start < limit
        }

    def _is_dead(self, key: str) -> bool:
        """Return True if an object that was never named can no longer become named."""
        if self.manifest is None or not key.startswith("epoch/"):
            return self.manifest is not None and self._starts.get(key, 2**64) < self.manifest.oldest
        chain = self.manifest.chain
        assert chain is not None
        _, name, _, leaf = key.split("/")
        slot = int(leaf.removesuffix(".parquet"), 16)
        fences = {epoch.name: fence for epoch, fence in chain.ends()}
        if name not in {epoch.name for epoch in chain.epochs}:
            return int(name[:16], 16) <= chain.last.number
        fence = fences.get(name, 2**64)
        return slot > fence or (slot < fence and slot < (self.manifest.initial_seq_no or 0))

    def _on_fragment(self, fragment: Fragment) -> None:
        if fragment.seq_no <= len(self._fragments):
            if self._fragments[fragment.seq_no - 1] != fragment:
                self._violated(f"the fragment {fragment.seq_no} became another")
            return
        if fragment.seq_no != len(self._fragments) + 1:
            self._violated(f"the fragment {fragment.seq_no} follows none")
        self._fragments.append(fragment)
        data = self.store.objects[fragment.path].data
        if fragment.path.startswith("epoch/"):
            records = decode_data(data, path=fragment.path)[1]
        else:
            records = decode_fragment(data, path=fragment.path)
        rows = records.to_pylist()
        self.bodies += [row["body"] for row in rows]
        self._said += [(row["position"], row["body"]) for row in rows if row.get("stream") == b""]

    def _tree(self, manifest: Manifest) -> tuple[set[str], list[Fragment]]:
        """Return all paths and fragments that a manifest names; all must exist and be intact."""
        named: set[str] = set()
        fragments: list[Fragment] = []
        level: list[Pointer | Fragment] = manifest.children
        while level:
            named |= {child.path for child in level}
            fragments += [child for child in level if isinstance(child, Fragment)]
            for path in [child.path for child in level if child.path not in self.store.objects]:
                self._violated(f"{path} is named and not there")
            below: list[Pointer | Fragment] = []
            for child in level:
                if isinstance(child, Pointer) and child.path in self.store.objects:
                    data = self.store.objects[child.path].data
                    snapshot = decode_snapshot(data, where=child.path)
                    for problem in problems_of_snapshot(snapshot, child):
                        self._violated(f"{child.path}: {problem}")
                    below += snapshot.children
            level = below
        return named, sorted(fragments, key=lambda fragment: fragment.seq_no)

    def _violated(self, sentence: str) -> None:
        self.violations.append(sentence)


def _sum_of(fragments: Sequence[Fragment]) -> Setsum:
    total = Setsum.zero()
    for fragment in fragments:
        total = total + fragment.setsum
    return total
