"""Damage to logs of both protocols, and the results of scrubs and reads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kit.clocks import OneThread
from tidelog.errors import TidelogError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Object
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.log import Log
from tidelog.wal.opening import open_log
from tidelog.wal.scrub.report import Problem

Bytes = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The results of a scrub and a read of a log; ``rows`` is None if the read raised an error."""

    problems: list[Problem]
    unnamed: list[str]
    rows: list[dict[str, Any]] | None

    @property
    def complaints(self) -> list[str]:
        return [problem.why for problem in self.problems]


def look(log: Bytes) -> ReadResult:
    """Scrub and read a log without knowledge of its protocol."""
    return asyncio.run(look_at(log))


async def look_at(log: Bytes) -> ReadResult:
    """Do the work of `look` in a running loop, for tests that repeat it often."""
    objects = {key: Object(data, f"m{n}", n) for n, (key, data) in enumerate(log.items())}
    store = MemoryStore(objects=objects, puts_count=len(objects))
    try:
        opened = await open_log(store, name="log", clock=OneThread(), writer="looker")
        found = await opened.scrub()
    except TidelogError as error:
        return ReadResult([Problem(MANIFEST, str(error))], [], None)
    return ReadResult(found.problems, found.unnamed, await _rows(opened))


async def _rows(log: Log) -> list[dict[str, Any]] | None:
    try:
        return [row async for table in log.scan() for row in table.to_pylist()]
    except TidelogError:
        return None


def flip(data: bytes, place: int) -> bytes:
    """Return the data with one bit flipped."""
    changed = bytearray(data)
    changed[place] ^= 1 << (place % 8)
    return bytes(changed)


def without(log: Bytes, key: str) -> dict[str, bytes]:
    return {name: data for name, data in log.items() if name != key}


def swapped(log: Bytes, one: str, other: str) -> dict[str, bytes]:
    return {**log, one: log[other], other: log[one]}
