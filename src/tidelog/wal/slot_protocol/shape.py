"""Settings of a slot log's writer: lanes, puts in flight and roll-ups. Pure.

Source: wal3-draft, "Sharding" and "Concurrent Writes"; design page 3, "Slot commit".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.core.arguments import check_kind, check_whole
from tidelog.errors import UsageError
from tidelog.wal.format.link import check_shape
from tidelog.wal.format.manifest_update import Rollover


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The settings with which a writer opens its epochs.

    Units:
        alpha: puts in flight, at most.
        lanes: directories of an epoch.
        rollup_slots: slots after which the writer rolls up.
        rollup_interval_us: time after which it rolls up, if that is sooner.
    """

    lanes: int = 1
    alpha: int = 8
    rollup_slots: int = 64
    rollup_interval_us: int = 1_000_000
    rollover: Rollover = field(default_factory=Rollover)

    def __post_init__(self) -> None:
        check_shape(lanes=self.lanes, alpha=self.alpha)
        for name in ("rollup_slots", "rollup_interval_us"):
            check_whole(getattr(self, name), name)
        check_kind(self.rollover, Rollover, "rollover must be a Rollover")
        if not self.rollup_slots:
            raise UsageError("rollup_slots must be at least 1", rollup_slots=self.rollup_slots)
