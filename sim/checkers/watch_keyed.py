"""A watch on the keyed logs of a store: the state of each, and the deletions allowed.

It observes the shared store, and sees every change at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sim.checkers.demands import Violated
from sim.checkers.keyed_truth import KeyedTruth
from sim.checkers.watch import Watch
from sim.checkers.watch_slots import SlotWatch
from tidelog.core.ids import NamedKind, SeqNo
from tidelog.keyed.states.language import KeyedLanguage
from tidelog.machine.record import decode_record
from tidelog.store.memory import MemoryStore

WALS = "keylog/"
RUNS = "keyed/"
_BOX = f"consensus/{NamedKind.KEYED.prefix}"


@dataclass(slots=True)
class KeyedWatch:
    """A watch; see the module. ``logs`` by name; ``violations`` are sentences.

    ``wals`` are the logs that feed them, by folder; a failed fork leaves a wal without a keyed log.
    """

    store: MemoryStore
    now_us: Callable[[], int]
    clocks_jump: bool = False
    logs: dict[str, KeyedTruth] = field(default_factory=dict)
    wals: dict[str, SlotWatch] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    boxes: Watch = field(init=False)
    _followed: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.boxes = Watch(self.store, shards=False)

    def log(self, name: str) -> KeyedTruth:
        """Return the model of a log; the log need not exist."""
        if name not in self.logs:
            self.logs[name] = KeyedTruth(
                name=name,
                wal=self.wal(name),
                fetch=self._fetch,
                now_us=self.now_us,
                clocks_jump=self.clocks_jump,
            )
        return self.logs[name]

    def wal(self, name: str) -> SlotWatch:
        """Return the watch on a log that may feed a keyed log."""
        return self.wals.setdefault(name, SlotWatch(f"{WALS}{name}/"))

    def living(self) -> list[str]:
        """Return the names of the logs that exist."""
        return [name for name, one in self.logs.items() if one.is_made and not one.is_dropped]

    def on_put(self, key: str, data: bytes) -> None:
        if key.startswith(WALS):
            wal = self.wal(key.split("/", 2)[1])
            wal.on_put(key, data)
            for one in self.logs.values():
                if one.wal is wal:
                    one.take_slots()
        self.boxes.on_put(key, data)
        if key.startswith(_BOX):
            self._follow(key.removeprefix(_BOX))

    def on_delete(self, keys: Sequence[str]) -> None:
        self.boxes.on_delete(keys)
        named = {path for one in self.logs.values() for path in one.named()}
        for key in keys:
            if key in named:
                self.violations.append(f"{key} was deleted, and is named")
            if key.startswith(WALS):
                self.wal(key.split("/", 2)[1]).on_delete([key])

    def check(self) -> None:
        """Check the steps seen so far.

        Raises:
            Violated: a step was not allowed.
        """
        found = [*self.violations, *self.boxes.violations]
        found += [sentence for one in self.wals.values() for sentence in one.violations]
        if found:
            raise Violated("; ".join(found[:3]))

    def _follow(self, name: str) -> None:
        box, language = f"{NamedKind.KEYED.prefix}{name}", KeyedLanguage(name)
        entries = self.boxes.entries[box]
        for entry in entries[self._followed.get(name, 0) :]:
            record = decode_record(entry.data, key=box, seqno=SeqNo(entry.seqno))
            for data in record.diffs:
                diff = language.decode_diff(data)
                source = None
                if diff.wal is not None:
                    self.log(name).wal = self.wal(diff.wal)
                    self.log(name).take_slots()
                if diff.origin is not None and diff.origin[0] is not None:
                    source = self.log(diff.origin[0].log)
                try:
                    self.log(name).follow(diff, source)
                except Violated as error:
                    self.violations.append(str(error))
        self._followed[name] = len(entries)

    def _fetch(self, path: str) -> bytes | None:
        found = self.store.objects.get(path)
        return None if found is None else found.data
