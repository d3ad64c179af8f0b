"""The synchronous API of logs; see `tidelog.wal.log.Log` for its methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

import pyarrow as pa

from tidelog.portal import Blocking, documented_as
from tidelog.wal import log as aio_log
from tidelog.wal.describe import LogInfo
from tidelog.wal.format.epoch_chain import Seal
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.pin import Pin
from tidelog.wal.format.streams import StreamInfo
from tidelog.wal.gc.collector import GRACE_US, Collected
from tidelog.wal.gc.cursors import Listed, Witness
from tidelog.wal.gc.deletion import AT_ONCE, Pace
from tidelog.wal.gc.orphans import Swept
from tidelog.wal.gc.pin_objects import PinWitness
from tidelog.wal.gc.plan import Keep
from tidelog.wal.read.bounds import Bounds
from tidelog.wal.read.limits import Limits
from tidelog.wal.scrub.report import Scrubbed


@documented_as(aio_log.Log)
class Log(Blocking[aio_log.Log]):
    """One log; close it, or use it in ``with``, so that every append is acknowledged.

    Many threads may use it concurrently. An iterator of `scan` or `follow` is for one thread.
    """

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def name(self) -> str:
        """Return the name of the log."""
        return self._inner.name

    @property
    def protocol(self) -> str:
        """Return ``slot`` or ``manifest``."""
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
        found = self._inner.scan(
            start, limit=limit, limits=limits, stream=stream, key=key, control=control
        )
        return self._portal.iterate(found)

    def follow(
        self,
        start: int = 0,
        *,
        stream: bytes | None = None,
        key: bytes | None = None,
        control: bool = False,
    ) -> Iterator[pa.Table]:
        found = self._inner.follow(start, stream=stream, key=key, control=control)
        return self._portal.iterate(found)

    def fragments(self, start: int = 0, *, limit: int | None = None) -> list[Fragment]:
        return self._portal.run(self._inner.fragments(start, limit=limit))

    def fetch(self, fragment: Fragment) -> pa.Table:
        return self._portal.run(self._inner.fetch(fragment))

    def position_at(self, when: int | datetime) -> int:
        return self._portal.run(self._inner.position_at(when))

    def bounds(self) -> Bounds:
        return self._portal.run(self._inner.bounds())

    def describe(self) -> LogInfo:
        return self._portal.run(self._inner.describe())

    def scrub(self, start: int = 0, *, limit: int | None = None) -> Scrubbed:
        return self._portal.run(self._inner.scrub(start, limit=limit))

    def seal(self, *, successor: str = "") -> Seal:
        return self._portal.run(self._inner.seal(successor=successor))

    def load_cursor(self, name: str) -> Witness:
        return self._portal.run(self._inner.load_cursor(name))

    def create_cursor(self, name: str, position: int) -> Witness:
        return self._portal.run(self._inner.create_cursor(name, position))

    def save_cursor(self, witness: Witness, position: int, *, allow_back: bool = False) -> Witness:
        return self._portal.run(self._inner.save_cursor(witness, position, allow_back=allow_back))

    def delete_cursor(self, name: str) -> None:
        self._portal.run(self._inner.delete_cursor(name))

    def cursors(self) -> Listed:
        return self._portal.run(self._inner.cursors())

    def create_pin(self, name: str, *, start: int = 0, limit: int | None = None) -> PinWitness:
        return self._portal.run(self._inner.create_pin(name, start=start, limit=limit))

    def release_pin(self, name: str, *, force: bool = False) -> None:
        self._portal.run(self._inner.release_pin(name, force=force))

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
        found = self._inner.scan_pin(name, stream=stream, key=key, control=control)
        return self._portal.iterate(found)

    def collect(
        self,
        *,
        keep: Keep | None = None,
        grace_us: int = GRACE_US,
        pace: Pace = AT_ONCE,
        force: bool = False,
    ) -> Collected:
        done = self._inner.collect(keep=keep, grace_us=grace_us, pace=pace, force=force)
        return self._portal.run(done)

    def sweep(self, *, grace_us: int = GRACE_US, pace: Pace = AT_ONCE) -> Swept:
        return self._portal.run(self._inner.sweep(grace_us=grace_us, pace=pace))

    def close(self) -> None:
        self._portal.run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
