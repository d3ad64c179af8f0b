"""Founding: a shard is made by its first write, or by nothing but saying its schema.

Source: persist, "API".
"""

from __future__ import annotations

from tidelog.errors import NameTaken
from tidelog.machine.language import Decision
from tidelog.persist.format.schema import ShardSchema, encode_schema
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.state import Diff, State


async def found(shard: Shard, schema: ShardSchema, *, name: str) -> None:
    """Make a shard that nobody has made, which users call ``name``.

    Raises:
        NameTaken: somebody has. LocationError: the store failed.
    """
    encoded = encode_schema(schema)
    if not await shard.machine.commit(lambda state: decide_found(state, encoded)):
        raise NameTaken(
            f"there is a shard {name!r} already: choose another name, or append to that one"
        )
    shard.schema = schema


def decide_found(state: State, schema: bytes) -> Decision[Diff, bool]:
    """Decide that a shard begins, empty, with a schema; False if it has begun already."""
    if state.schema or state.upper != 0:
        return Decision(False)
    return Decision(True, Diff(schema=schema))
