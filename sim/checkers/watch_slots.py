"""A watch on a log's slots: it derives the log from one rule, whatever manifests say.

The first fence in slot order ends an epoch. A slot's data is committed if all earlier slots have
data too. The watch applies this slot by slot as objects land, and remembers collected data. It
knows the opener of each epoch, and so detects a fenced writer that takes over again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sim.checkers.demands import demand
from tidelog.wal.format.link import EPOCHS, DataLink, Epoch, FenceLink, Link
from tidelog.wal.format.manifest import MANIFEST, decode_manifest
from tidelog.wal.format.paths import place_of
from tidelog.wal.format.slot_object import decode_data, decode_link


@dataclass(frozen=True, slots=True)
class WatchedEpoch:
    """An epoch of the log, with its opener; ``fence`` is the slot that opened it."""

    epoch: str
    opener: str
    fence: int


@dataclass(frozen=True, slots=True)
class CommittedSlot:
    """The data of a committed slot: the positions ``[start, limit)``."""

    start: int
    limit: int
    data: bytes


@dataclass(slots=True)
class SlotWatch:
    """A watch; see the module. ``folder`` is the log's folder, with a slash at its end, or empty.

    The watch begins with the first manifest that it sees; a fork begins where its source's records
    end. ``holding`` are the epochs that received data, in the log or not.
    """

    folder: str = ""
    violations: list[str] = field(default_factory=list)
    turns: list[WatchedEpoch] = field(default_factory=list)
    committed: list[CommittedSlot] = field(default_factory=list)
    holding: set[str] = field(default_factory=set)
    is_sealed: bool = False
    first: int = 1
    slot: int = 0
    position: int = 0
    _seen: dict[str, bytes] = field(default_factory=dict)
    _ahead: dict[tuple[str, int], tuple[Link, bytes]] = field(default_factory=dict)

    @property
    def is_begun(self) -> bool:
        return bool(self.turns)

    @property
    def is_opened(self) -> bool:
        """Return True if a writer ever opened the log."""
        return len(self.turns) > 1 or self.is_sealed

    def copy(self) -> SlotWatch:
        """Return a copy that later changes do not affect."""
        return replace(
            self,
            violations=list(self.violations),
            turns=list(self.turns),
            committed=list(self.committed),
            holding=set(self.holding),
            _seen=dict(self._seen),
            _ahead=dict(self._ahead),
        )

    def on_put(self, key: str, data: bytes) -> None:
        if not key.startswith(self.folder):
            return
        path = key.removeprefix(self.folder)
        if path == MANIFEST and not self.is_begun:
            self._begin(decode_manifest(data))
        place = place_of(path)
        if place is None:
            return
        if self._seen.setdefault(key, data) != data:
            self.violations.append(f"{key} was created once, and then was another")
        link = decode_link(data, path=path)
        if isinstance(link, DataLink):
            self.holding.add(place.epoch)
        if place.slot >= self.slot:
            self._ahead[place.epoch, place.slot] = link, data
            self._go_on()

    def on_delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._seen.pop(key, None)

    def bodies(self, start: int = 0) -> list[bytes]:
        """Return the records ever committed at or after a position."""
        found: list[bytes] = []
        for one in self.committed:
            if one.limit > start:
                rows = decode_data(one.data, path="")[1].to_pylist()
                found += [row["body"] for row in rows if row["position"] >= start]
        return found

    def unvoided(self) -> list[int]:
        """Return the slots of the last epoch that hold data after its first missing slot."""
        last = self.turns[-1].epoch
        held = [(slot, link) for (epoch, slot), (link, _) in self._ahead.items() if epoch == last]
        return [slot for slot, link in held if isinstance(link, DataLink) and slot > self.slot]

    def acknowledged(self, bodies: Sequence[bytes], position: int) -> None:
        """Check that records acknowledged to a caller are already in the log."""
        if position + len(bodies) > self.position:
            self.violations.append(f"{bodies} was acknowledged, and is not committed")

    def told_durable(self, position: int) -> None:
        """Check that all records below a position are in the log, as a writer reported."""
        if position > self.position:
            self.violations.append(f"all below {position} was said to be durable, and is not")

    def check(self) -> None:
        """Check the steps seen so far.

        Raises:
            Violated: a slot was written twice, an append was acknowledged too early, or a
                fenced writer
            fenced its successor.
        """
        demand(not self.violations, "; ".join(self.violations[:3]))
        deposed: dict[str, int] = {}
        has_data: set[str] = set()
        for before, after in zip(self.turns, self.turns[1:], strict=False):
            if before.epoch in self.holding:
                has_data.add(before.opener)
            if before.opener != after.opener and before.opener in has_data:
                deposed.setdefault(before.opener, after.fence)
            demand(
                after.opener not in deposed,
                "a writer was fenced by another, and took over again",
                writer=after.opener,
                fenced_at=deposed.get(after.opener),
                again_at=after.fence,
            )

    def _begin(self, manifest: object) -> None:
        last: Epoch = manifest.chain.last  # type: ignore[attr-defined]
        self.slot = manifest.next_seq_no  # type: ignore[attr-defined]
        self.first = self.position = manifest.next  # type: ignore[attr-defined]
        # The first epoch has no opener, so the first opener deposes no writer.
        self.turns.append(WatchedEpoch(last.name, "", self.slot))

    def _go_on(self) -> None:
        while not self.is_sealed and self.is_begun:
            link, data = self._ahead.pop((self.turns[-1].epoch, self.slot), (None, b""))
            if isinstance(link, DataLink):
                self._commit(link, data)
            elif isinstance(link, FenceLink) and link.next is not None:
                self.turns.append(WatchedEpoch(link.next.name, link.next.opener, self.slot))
            elif isinstance(link, FenceLink):
                self.is_sealed = True
            else:
                return

    def _commit(self, link: DataLink, data: bytes) -> None:
        if link.start != self.position:
            self.violations.append(f"slot {self.slot} begins at {link.start}, not {self.position}")
        self.committed.append(CommittedSlot(link.start, link.limit, data))
        self.slot, self.position = self.slot + 1, link.limit


def is_slot(key: str, folder: str = "") -> bool:
    """Return True if an object is a slot of the log."""
    return key.startswith(f"{folder}{EPOCHS}")
