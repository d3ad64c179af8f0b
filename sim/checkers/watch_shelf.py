"""A watch on the logs of one place: the content of each, shared objects, and deletions.

It observes the shared store, and sees every change at once. It knows manifests and pins by their
bytes alone, and follows both from log to log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sim.checkers.watch_slots import SlotWatch
from tidelog.store.memory import MemoryStore
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import (
    MANIFEST,
    Manifest,
    chain_of,
    decode_manifest,
    problems_of_manifest,
)
from tidelog.wal.format.pin import Pin, decode_pin, pin_name
from tidelog.wal.format.slot_object import decode_data
from tidelog.wal.format.snapshot import Pointer, decode_snapshot, problems_of_snapshot

LOGS = "log/"


@dataclass(slots=True)
class Folder:
    """A log: ``bodies`` are all its records ever, by position; ``held`` are its objects' ranges.

    ``first`` is the position of its first own record; earlier records of a fork are its source's.
    """

    name: str
    manifest: Manifest
    first: int = 1
    bodies: dict[int, bytes] = field(default_factory=dict)
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    destroyed_at: float | None = None

    @property
    def is_live(self) -> bool:
        return self.destroyed_at is None

    def own(self) -> list[bytes]:
        """Return the records appended to this log, in order."""
        return [self.bodies[place] for place in sorted(self.bodies) if place >= self.first]

    def path_of(self, relative: str) -> str:
        """Return the store key of a path relative to the log."""
        beside = relative.removeprefix("../")
        return f"{LOGS}{self.name}/{relative}" if beside == relative else LOGS + beside

    def fences(self) -> set[str]:
        """Return the keys of the fences that ended the epochs known to it, its own or inherited."""
        return {self.path_of(epoch.path(slot)) for epoch, slot in chain_of(self.manifest).ends()}


@dataclass(slots=True)
class ShelfWatch:
    """A watch; see the module. ``logs`` by name; ``pins`` by log name and path in the log."""

    store: MemoryStore
    logs: dict[str, Folder] = field(default_factory=dict)
    pins: dict[tuple[str, str], Pin] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)
    shared_deleted: int = 0
    _slots: dict[str, SlotWatch] = field(default_factory=dict)

    def slots(self, name: str) -> SlotWatch:
        """Return the watch on the slots of a log."""
        return self._slots.setdefault(name, SlotWatch(f"{LOGS}{name}/"))

    def live(self) -> list[str]:
        """Return the names of the logs that exist."""
        return [name for name, folder in self.logs.items() if folder.is_live]

    def on_put(self, key: str, data: bytes) -> None:
        _, name, relative = key.split("/", 2)
        self.slots(name).on_put(key, data)
        if relative == MANIFEST:
            self._on_manifest(name, decode_manifest(data))
        elif pin_name(relative) is not None:
            self.pins[name, relative] = decode_pin(data, where=relative)

    def on_delete(self, keys: Sequence[str]) -> None:
        needed = dict(self._needed())
        for key in keys:
            _, name, relative = key.split("/", 2)
            self.slots(name).on_delete([key])
            if key in needed:
                self.violations.append(f"{key} was deleted, and {needed[key]}")
            elif relative.startswith("epoch/") and not self._is_dead(self.logs[name], relative):
                self.violations.append(f"{key} was deleted, and nothing proves it dead")
            elif relative == MANIFEST:
                self.violations.append(f"{key} was deleted")
            elif (pin := self.pins.get((name, relative))) and pin.is_sure and pin.is_held:
                self.violations.append(f"{key} was deleted, and is a pin that holds something")
            self.deleted.add(key)
            self.shared_deleted += any(
                key in folder.held for other, folder in self.logs.items() if other != name
            )

    def _needed(self) -> Iterator[tuple[str, str]]:
        """Yield all objects that must not be deleted now, and why."""
        for name, folder in self.logs.items():
            for path in folder.fences():
                yield path, f"it is the fence that ended an epoch of {name}"
            if folder.is_live:
                for path in folder.named:
                    yield path, f"the log {name} names it"
        for (name, pin_of), pin in self.pins.items():
            folder = self.logs[name]
            if pin.is_sure and pin.is_held and (folder.is_live or pin.holder):
                for path, (start, limit) in folder.held.items():
                    if limit > pin.start and start < pin.limit:
                        yield path, f"the pin {pin_of} of {name} holds it"

    @staticmethod
    def _is_dead(folder: Folder, relative: str) -> bool:
        """Return True if a slot's object is not in its log and can no longer enter it."""
        if not folder.is_live:
            return True
        manifest, chain = folder.manifest, chain_of(folder.manifest)
        _, epoch, _, leaf = relative.split("/")
        slot = int(leaf.removesuffix(".parquet"), 16)
        if epoch not in {each.name for each in chain.epochs}:
            return int(epoch[:16], 16) <= chain.last.number
        fence = {each.name: at for each, at in chain.ends()}.get(epoch, 2**64)
        return slot > fence or (slot < fence and slot < (manifest.initial_seq_no or 0))

    def _on_manifest(self, name: str, new: Manifest) -> None:
        chain = chain_of(new)
        if (folder := self.logs.get(name)) is None:
            folder = self.logs[name] = Folder(name, new)
            if chain.origin is not None:
                folder.first = new.next
        old, folder.manifest = folder.manifest, new
        if new.oldest < old.oldest or new.next < old.next:
            self.violations.append(f"{name} went back")
        if not folder.is_live:
            self.violations.append(f"{name} was dropped, and its manifest was replaced")
        self.violations += [f"{name}: {problem}" for problem in problems_of_manifest(new)]
        folder.named = set()
        for child in self._tree(folder, new.children):
            path = folder.path_of(child.path)
            folder.named.add(path)
            if isinstance(child, Fragment) and path not in folder.held:
                self._on_fragment(folder, path, child)
        if old is new and chain.origin is not None:
            self._on_fork(folder, self.logs[chain.origin.log])
        if chain.is_destroyed and folder.is_live:
            folder.destroyed_at = asyncio.get_running_loop().time()

    def _on_fragment(self, folder: Folder, path: str, fragment: Fragment) -> None:
        if path not in self.store.objects:
            return  # A violation is recorded already.
        rows = decode_data(self.store.objects[path].data, path=fragment.path)[1].to_pylist()
        folder.held[path] = fragment.start, fragment.limit
        for row in rows:
            if folder.bodies.setdefault(row["position"], row["body"]) != row["body"]:
                self.violations.append(f"{folder.name}: {row['position']} became another")

    def _on_fork(self, fork: Folder, source: Folder) -> None:
        manifest = fork.manifest
        shared = range(manifest.oldest, manifest.next)
        if [fork.bodies.get(n) for n in shared] != [source.bodies.get(n) for n in shared]:
            self.violations.append(f"{fork.name} does not begin as {source.name}")

    def _tree(
        self, folder: Folder, children: Sequence[Pointer | Fragment]
    ) -> Iterator[Pointer | Fragment]:
        """Yield all objects that a manifest reaches; each must exist and be intact."""
        for child in children:
            yield child
            path = folder.path_of(child.path)
            if path not in self.store.objects:
                self.violations.append(f"{path} is named by {folder.name}, and not there")
            elif isinstance(child, Pointer):
                snapshot = decode_snapshot(self.store.objects[path].data, where=path)
                self.violations += [f"{path}: {p}" for p in problems_of_snapshot(snapshot, child)]
                yield from self._tree(folder, snapshot.children)
