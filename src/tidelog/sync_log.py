"""The synchronous face of logs; see `tidelog.wal.log.Log`, whose methods these are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from tidelog.portal import Portal
from tidelog.wal import log as aio_log
from tidelog.wal.collection import Keep
from tidelog.wal.collector import GRACE_US, Collected
from tidelog.wal.cursors import Listed, Witness
from tidelog.wal.epoch import Seal
from tidelog.wal.pin import Pin
from tidelog.wal.pins import PinWitness
from tidelog.wal.scrub import Scrubbed
from tidelog.wal.slot_reader import Bounds
from tidelog.wal.sweep import Swept


class Log:
    """One log; close it, or use it in ``with``, so that all that was appended is answered."""

    def __init__(self, portal: Portal, inner: aio_log.Log) -> None:
        self._portal = portal
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def protocol(self) -> str:
        return self._inner.protocol

    def append(
        self, records: Sequence[bytes], *, timestamp_us: int | None = None, wait: bool = True
    ) -> int:
        """Append records; give the position of the first once all are durable."""
        return self._portal.run(self._inner.append(records, timestamp_us=timestamp_us, wait=wait))

    def append_arrow(
        self, bodies: pa.BinaryArray, *, timestamp_us: int | None = None, wait: bool = True
    ) -> int:
        return self._portal.run(
            self._inner.append_arrow(bodies, timestamp_us=timestamp_us, wait=wait)
        )

    def scan(self, start: int = 0, *, limit: int | None = None) -> Iterator[pa.Table]:
        """Give the records of the positions ``[start, limit)`` that there are now."""
        return self._portal.iterate(self._inner.scan(start, limit=limit))

    def follow(self, start: int = 0) -> Iterator[pa.Table]:
        """Give records as they come, until the log is sealed."""
        return self._portal.iterate(self._inner.follow(start))

    def bounds(self) -> Bounds:
        return self._portal.run(self._inner.bounds())

    def describe(self) -> dict[str, Any]:
        return self._portal.run(self._inner.describe())

    def scrub(self, start: int = 0, *, limit: int | None = None) -> Scrubbed:
        """Read all that is stored, or the positions ``[start, limit)`` of it, and check it."""
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

    def scan_pin(self, name: str) -> Iterator[pa.Table]:
        """Give the records that a pin holds, whatever was collected since."""
        return self._portal.iterate(self._inner.scan_pin(name))

    def collect(
        self, *, keep: Keep | None = None, grace_us: int = GRACE_US, force: bool = False
    ) -> Collected:
        """Erase what no cursor needs, once."""
        return self._portal.run(self._inner.collect(keep=keep, grace_us=grace_us, force=force))

    def sweep(self, *, grace_us: int = GRACE_US) -> Swept:
        """Delete what the dead left behind."""
        return self._portal.run(self._inner.sweep(grace_us=grace_us))

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
