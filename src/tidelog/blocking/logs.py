"""The blocking API: logs. Do not edit: `kit.blocking_source` writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.blocking.portal import BlockingTwin, ClosingTwin, documented_as
from tidelog.wal import log as awaited_log
from tidelog.wal import logs as awaited_logs
from tidelog.wal.gc.collector import GRACE_US
from tidelog.wal.gc.deletion import AT_ONCE

if TYPE_CHECKING:
    import builtins
    import os
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    import pyarrow as pa

    from tidelog.store.port import Store
    from tidelog.wal.admin.destroy import DropReport
    from tidelog.wal.append.batching import Batching
    from tidelog.wal.describe import LogInfo
    from tidelog.wal.format.epoch_chain import Seal
    from tidelog.wal.format.fragment import Fragment
    from tidelog.wal.format.pin import Pin
    from tidelog.wal.format.streams import StreamInfo
    from tidelog.wal.gc.collector import CollectReport
    from tidelog.wal.gc.cursors import CursorList, Witness
    from tidelog.wal.gc.deletion import Pace
    from tidelog.wal.gc.orphans import OrphanReport
    from tidelog.wal.gc.pin_objects import PinWitness
    from tidelog.wal.gc.plan import Keep
    from tidelog.wal.read.bounds import Bounds
    from tidelog.wal.read.limits import Limits
    from tidelog.wal.scrub.report import ScrubReport
    from tidelog.wal.slot_protocol.shape import Shape


@documented_as(awaited_logs.Logs)
class Logs(BlockingTwin[awaited_logs.Logs]):
    """The logs of a location."""

    def open(
        self, name: str, *, shape: Shape | None = None, batching: Batching | None = None
    ) -> Log:
        return Log(
            self._portal, self._portal.run(self._inner.open(name, shape=shape, batching=batching))
        )

    def create(
        self,
        name: str,
        *,
        protocol: str = "slot",
        shape: Shape | None = None,
        batching: Batching | None = None,
    ) -> Log:
        return Log(
            self._portal,
            self._portal.run(
                self._inner.create(name, protocol=protocol, shape=shape, batching=batching)
            ),
        )

    def list(self, *, lost: bool = False) -> builtins.list[str]:
        return self._portal.run(self._inner.list(lost=lost))

    def fork(self, source: str, name: str, *, start: int = 0) -> Log:
        return Log(self._portal, self._portal.run(self._inner.fork(source, name, start=start)))

    def copy(self, source: str, name: str, *, protocol: str | None = None, start: int = 0) -> Log:
        return Log(
            self._portal,
            self._portal.run(self._inner.copy(source, name, protocol=protocol, start=start)),
        )

    def export(self, name: str, target: Store | str | os.PathLike[str], *, start: int = 0) -> None:
        self._portal.run(self._inner.export(name, target, start=start))

    def adopt(self, source: Store | str | os.PathLike[str], name: str) -> Log:
        return Log(self._portal, self._portal.run(self._inner.adopt(source, name)))

    def drop(self, name: str, *, grace_us: int = GRACE_US) -> DropReport:
        return self._portal.run(self._inner.drop(name, grace_us=grace_us))

    def rebuild(self, name: str, *, start: int | None = None) -> Log:
        return Log(self._portal, self._portal.run(self._inner.rebuild(name, start=start)))


@documented_as(awaited_log.Log)
class Log(ClosingTwin[awaited_log.Log]):
    """A log; close it, or use it in ``with``. Several threads may use one log at once."""

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def protocol(self) -> str:
        return self._inner.protocol

    def append(
        self,
        records: Sequence[bytes],
        *,
        stream: bytes | None = None,
        key: bytes | None = None,
        timestamp_us: int | None = None,
        wait: bool = True,
    ) -> int:
        return self._portal.run(
            self._inner.append(
                records, stream=stream, key=key, timestamp_us=timestamp_us, wait=wait
            )
        )

    def append_arrow(
        self,
        bodies: pa.BinaryArray,
        *,
        stream: bytes | None = None,
        key: bytes | pa.BinaryArray | None = None,
        timestamp_us: int | None = None,
        wait: bool = True,
    ) -> int:
        return self._portal.run(
            self._inner.append_arrow(
                bodies, stream=stream, key=key, timestamp_us=timestamp_us, wait=wait
            )
        )

    def open_stream(self, stream: bytes, meta: bytes = b"") -> int:
        return self._portal.run(self._inner.open_stream(stream, meta))

    def close_stream(self, stream: bytes) -> int:
        return self._portal.run(self._inner.close_stream(stream))

    def meta_stream(self, stream: bytes, meta: bytes) -> int:
        return self._portal.run(self._inner.meta_stream(stream, meta))

    def streams(self) -> list[StreamInfo]:
        return self._portal.run(self._inner.streams())

    def scan(
        self,
        start: int = 0,
        *,
        limit: int | None = None,
        limits: Limits | None = None,
        stream: bytes | None = None,
        key: bytes | None = None,
        control: bool = False,
    ) -> Iterator[pa.Table]:
        return self._portal.iterate(
            self._inner.scan(
                start, limit=limit, limits=limits, stream=stream, key=key, control=control
            )
        )

    def follow(
        self,
        start: int = 0,
        *,
        stream: bytes | None = None,
        key: bytes | None = None,
        control: bool = False,
    ) -> Iterator[pa.Table]:
        return self._portal.iterate(
            self._inner.follow(start, stream=stream, key=key, control=control)
        )

    def fragments(self, start: int = 0, *, limit: int | None = None) -> list[Fragment]:
        return self._portal.run(self._inner.fragments(start, limit=limit))

    def fetch(self, fragment: Fragment) -> pa.Table:
        return self._portal.run(self._inner.fetch(fragment))

    def position_at(self, when: int | datetime) -> int:
        return self._portal.run(self._inner.position_at(when))

    def scrub(self, start: int = 0, *, limit: int | None = None) -> ScrubReport:
        return self._portal.run(self._inner.scrub(start, limit=limit))

    def seal(self, *, successor: str = "") -> Seal:
        return self._portal.run(self._inner.seal(successor=successor))

    def describe(self) -> LogInfo:
        return self._portal.run(self._inner.describe())

    def close(self) -> None:
        self._portal.run(self._inner.close())

    def bounds(self) -> Bounds:
        return self._portal.run(self._inner.bounds())

    def load_cursor(self, name: str) -> Witness:
        return self._portal.run(self._inner.load_cursor(name))

    def create_cursor(self, name: str, position: int) -> Witness:
        return self._portal.run(self._inner.create_cursor(name, position))

    def move_cursor(self, witness: Witness, position: int, *, allow_back: bool = False) -> Witness:
        return self._portal.run(self._inner.move_cursor(witness, position, allow_back=allow_back))

    def drop_cursor(self, name: str) -> None:
        self._portal.run(self._inner.drop_cursor(name))

    def cursors(self) -> CursorList:
        return self._portal.run(self._inner.cursors())

    def create_pin(self, name: str, *, start: int = 0, limit: int | None = None) -> PinWitness:
        return self._portal.run(self._inner.create_pin(name, start=start, limit=limit))

    def drop_pin(self, name: str, *, force: bool = False) -> None:
        self._portal.run(self._inner.drop_pin(name, force=force))

    def pins(self) -> dict[str, Pin]:
        return self._portal.run(self._inner.pins())

    def scan_pin(
        self,
        name: str,
        *,
        stream: bytes | None = None,
        key: bytes | None = None,
        control: bool = False,
    ) -> Iterator[pa.Table]:
        return self._portal.iterate(
            self._inner.scan_pin(name, stream=stream, key=key, control=control)
        )

    def collect(
        self,
        *,
        keep: Keep | None = None,
        grace_us: int = GRACE_US,
        pace: Pace = AT_ONCE,
        force: bool = False,
    ) -> CollectReport:
        return self._portal.run(
            self._inner.collect(keep=keep, grace_us=grace_us, pace=pace, force=force)
        )

    def sweep(self, *, grace_us: int = GRACE_US, pace: Pace = AT_ONCE) -> OrphanReport:
        return self._portal.run(self._inner.sweep(grace_us=grace_us, pace=pace))
