"""The shards of a location, by name: create, open, list and drop.

The state of a shard decides whether it exists. `Shards.open` makes no request.
Source: persist, "API"; design page 4.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass

import pyarrow as pa

from tidelog.consensus.port import Consensus
from tidelog.core.arguments import check_kind, check_names
from tidelog.core.clock import Clock
from tidelog.core.frontier import Frontier
from tidelog.core.ids import NamedKind, name_of, named_id
from tidelog.errors import NameTaken, NoSuchShard
from tidelog.machine.language import Decision
from tidelog.persist.format.schema import shard_schema
from tidelog.persist.handle.listening import caught_up
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.holding import HISTORY_HOLD
from tidelog.persist.states.state import Diff, State
from tidelog.persist.transactions.transactions import Transactions
from tidelog.store.port import Store
from tidelog.store.wrappers.read_only import refuses_writes

NAMES_SHOWN = 20


@refuses_writes()
@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """All shards that users created; other processes open the store by ``location_url``."""

    store: Store
    consensus: Consensus
    clock: Clock
    location_url: str = ""

    def open(
        self, name: str, *, schema: pa.Schema | None = None, key: builtins.list[str] | None = None
    ) -> Shard:
        """Return the handle of a shard; without a schema, that of a shard with a schema.

        The first write to a shard creates it, with the hold ``history`` at 0. That hold keeps all
        times readable, until ``shard.move_hold("history", time)`` moves it.

        Raises:
            UsageError: the name or the schema is invalid.
        """
        if schema is not None:
            check_kind(schema, pa.Schema, "the schema of a shard must be a pyarrow.Schema")
        if key is not None:
            check_names(key, "key")
        return Shard(
            id=named_id(NamedKind.SHARD, name),
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            schema=None if schema is None else shard_schema(schema, key=key),
            first_holds={HISTORY_HOLD: Frontier.at(0)},
            location_url=self.location_url,
        )

    async def create(
        self, name: str, *, schema: pa.Schema, key: builtins.list[str] | None = None
    ) -> Shard:
        """Create an empty shard with a schema, and open it; see `open`.

        Raises:
            UsageError: the name or the schema is invalid.
            NameTaken: the shard exists.
            LocationError: the store failed.
        """
        shard = self.open(name, schema=schema, key=key)
        assert shard.schema is not None
        encoded = shard.schema.encoded
        if not await shard.machine.commit(lambda state: decide_found(state, encoded)):
            if shard.state.is_dropped:
                raise NameTaken(
                    f"a shard named {name!r} was dropped, and names are not reused: choose another "
                    "name"
                )
            raise NameTaken(
                f"a shard named {name!r} already exists: choose another name, or append to that "
                "shard"
            )
        return shard

    async def find(self, name: str) -> Shard:
        """Return the handle of a shard that exists, with its newest state.

        Transactions that are committed to the shard are applied first.

        Raises:
            UsageError: the name is invalid.
            NoSuchShard: the shard does not exist; the message names shards that exist.
        """
        shard = self.open(name)
        state = await shard.refresh()
        if state.registered.name:
            await caught_up(shard)
        if state.schema or shard.machine.seqno:
            return shard
        known = ", ".join((await self.list())[:NAMES_SHOWN])
        remedy = f"existing shards: {known}" if known else "create it with tidelog shard create"
        raise NoSuchShard(f"no shard named {name!r}: {remedy}")

    async def list(self) -> builtins.list[str]:
        """Return the names of all shards in order, including dropped ones."""
        keys = self.consensus.list_keys(NamedKind.SHARD.prefix)
        names = [name_of(NamedKind.SHARD, key) async for key in keys]
        return sorted(name for name in names if name is not None)

    async def drop(self, name: str) -> int:
        """Drop a shard permanently; its name is never reused. See `Shard.drop`.

        Raises:
            NoSuchShard: the shard does not exist.
        """
        return await (await self.find(name)).drop()

    def transactions(self, name: str) -> Transactions:
        """Return the handle of transactions, which write several shards at one time.

        Raises:
            UsageError: the name is invalid.
        """
        named_id(NamedKind.TRANSACTIONS, name)
        return Transactions(
            name=name,
            kind=NamedKind.SHARD,
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
        )


def decide_found(state: State, schema: bytes) -> Decision[Diff, bool]:
    """Decide to create an empty shard with a schema; False if the shard exists."""
    if state.schema or state.upper != 0:
        return Decision(False)
    return Decision(True, Diff(schema=schema))
