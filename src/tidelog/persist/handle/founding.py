"""Founding: creating an empty shard with a schema. Otherwise, the first write creates a shard.

Source: persist, "API".
"""

from __future__ import annotations

from tidelog.errors import NameTaken
from tidelog.machine.language import Decision
from tidelog.persist.format.schema import ShardSchema, encode_schema
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.state import Diff, State


async def found(shard: Shard, schema: ShardSchema, *, name: str) -> None:
    """Create a shard that does not exist yet; users know it as ``name``.

    Raises:
        NameTaken: the shard exists. LocationError: the store failed.
    """
    encoded = encode_schema(schema)
    if not await shard.machine.commit(lambda state: decide_found(state, encoded)):
        raise NameTaken(
            f"a shard named {name!r} already exists: choose another name, or append to that shard"
        )
    shard.schema = schema


def decide_found(state: State, schema: bytes) -> Decision[Diff, bool]:
    """Decide to create an empty shard with a schema; False if the shard exists."""
    if state.schema or state.upper != 0:
        return Decision(False)
    return Decision(True, Diff(schema=schema))
