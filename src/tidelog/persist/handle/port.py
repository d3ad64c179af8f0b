"""The port of a shard: the part of `tidelog.persist.handle.shard.Shard` that its agents use.

The agents are appends, appenders, leases and listeners. `Shard` imports them, so they cannot import
it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tidelog.consensus.port import Consensus
from tidelog.core.clock import Clock
from tidelog.core.frontier import Frontier
from tidelog.core.ids import ShardId
from tidelog.errors import PartMissing
from tidelog.machine.machine import Machine
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.read.reader import PartReader
from tidelog.persist.read.snapshot import ShardSnapshot
from tidelog.persist.states.holding import Beats
from tidelog.persist.states.state import Diff, State
from tidelog.persist.write.writer import PartWriter
from tidelog.store.port import Store


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of a listener: all updates at times in ``[lower, upper)``."""

    updates: pa.Table
    lower: Frontier
    upper: Frontier


class ShardHandle(Protocol):
    """One shard: its components, its state as last read, and its reads."""

    id: ShardId
    store: Store
    consensus: Consensus
    clock: Clock
    schema: ShardSchema | None
    first_holds: Mapping[str, Frontier]
    timeout_us: int | None
    location_url: str
    beats: Beats
    machine: Machine[State, Diff]
    reader: PartReader

    @property
    def state(self) -> State: ...

    @property
    def may_inline(self) -> bool: ...

    async def refresh(self) -> State: ...

    async def check_replaced(self, error: PartMissing) -> State: ...

    def writer(self, schema: ShardSchema | None = None) -> PartWriter: ...

    def written_schema(self) -> ShardSchema: ...

    async def drop_hold(self, name: str, *, token: int | None = None) -> bool: ...

    async def snapshot(
        self,
        as_of: int,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        wait: bool = False,
        timeout_us: int | None = None,
    ) -> ShardSnapshot: ...

    def listen(
        self,
        as_of: int,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        wait: bool = False,
    ) -> AsyncGenerator[Progress, None]: ...
