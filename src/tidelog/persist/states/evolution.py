"""Evolution: the allowed changes of a shard's schema, and the handles that it still serves. Pure.

Columns are identified by name. A dropped name is never used again, so a column of a name means the
same in each part.
Source: persist, "Codec"; decision 18.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import pyarrow as pa

from tidelog.core.frontier import Frontier
from tidelog.errors import SchemaEvolved, SchemaIncompatible, ShardRegistered, UsageError
from tidelog.machine.language import Decision
from tidelog.persist.format.schema import ShardSchema, decode_schema, shard_schema
from tidelog.persist.states.state import Diff, State, apply_diff

ALLOWED = (
    "a schema may drop columns outside the key, and may add nullable columns at its end whose "
    "names no earlier schema used"
)


class EvolveVerdict(enum.Enum):
    """The result of a call that evolves a schema."""

    EVOLVED = "evolved"
    ALREADY = "already"
    MISMATCH = "mismatch"


@dataclass(frozen=True, slots=True)
class EvolveResult:
    """The verdict, and the id of the shard's schema after it."""

    verdict: EvolveVerdict
    schema_id: int


def decide_evolve(
    state: State, wanted: pa.Schema, expected: int | None
) -> Decision[Diff, EvolveResult]:
    """Decide to make ``wanted`` the schema, if the newest one's id is ``expected`` (None: any).

    Raises:
        SchemaIncompatible: the change is not allowed; the message lists the allowed changes.
        UsageError: the shard has no schema yet, or is finished.
        ShardRegistered: the shard is registered in a transaction shard.
    """
    if not state.schema:
        raise UsageError("the shard has no schema yet: open it with this schema, and write to it")
    newest = newest_schema(state)
    _check_nullable(wanted, newest)
    new = shard_schema(wanted, key=_kept_key(wanted, newest))
    if new.encoded == state.schema:
        return Decision(EvolveResult(EvolveVerdict.ALREADY, state.schema_id))
    if expected is not None and expected != state.schema_id:
        return Decision(EvolveResult(EvolveVerdict.MISMATCH, state.schema_id))
    if state.upper is None:
        raise UsageError("the shard is finished, so its schema cannot change: create another shard")
    if state.registered.name:
        # A transaction that is not applied yet holds rows of the schema with which it began.
        raise ShardRegistered(
            "a shard that is registered in transactions keeps its schema: forget it there, change "
            "its schema, and register it again",
            transactions=state.registered.name,
        )
    check_successor(newest, new)
    after = EvolveResult(EvolveVerdict.EVOLVED, state.schema_id + 1)
    return Decision(after, Diff(schema=new.encoded))


def decide_found(state: State, first: ShardSchema) -> Decision[Diff, None]:
    """Decide to give the schema ``first`` to a shard that was never written; others keep theirs.

    Raises:
        UsageError: the shard is finished.
    """
    if state.upper is None:
        raise UsageError("the shard is finished, so its schema cannot change: create another shard")
    return Decision(None) if state.schema else Decision(None, Diff(schema=first.encoded))


def check_successor(old: ShardSchema, new: ShardSchema) -> None:
    """Check that schema ``new`` may follow ``old``; ``old`` includes the schemas before it.

    Raises:
        SchemaIncompatible: the change is not allowed.
    """
    kept = [name for name in new.names if name in old.names]
    added = new.names[len(kept) :]
    if new.names[: len(kept)] != kept or kept != [n for n in old.names if n in kept]:
        raise _incompatible("columns are in another order, or a new column is not at the end")
    for name in kept:
        was, will = old.data.field(name), new.data.field(name)
        if not was.equals(will, check_metadata=True):
            raise _incompatible(f"the type or the meaning of column {name!r} would change")
    ever = {name.lower() for schema in (*old.known, old.data) for name in schema.names}
    for name in added:
        if name.lower() in ever:
            raise _incompatible(f"an earlier schema used the column name {name!r}")


def _check_nullable(wanted: pa.Schema, old: ShardSchema) -> None:
    for field in wanted:
        if field.name not in old.names and not field.nullable:
            raise _incompatible(f"the new column {field.name!r} is not nullable")


def _kept_key(wanted: pa.Schema, old: ShardSchema) -> list[str]:
    for name in old.key:
        if name not in wanted.names:
            raise _incompatible(f"the key column {name!r} would be dropped")
    return old.key


def _incompatible(why: str) -> SchemaIncompatible:
    return SchemaIncompatible(f"the schema cannot change to this one, because {why}: {ALLOWED}")


def newest_schema(state: State) -> ShardSchema:
    """Return the newest schema of a state that has one; it includes the schemas before it."""
    return _with_known(state.schema, tuple(one.schema for one in state.retired))


@lru_cache(maxsize=256)
def _with_known(newest: bytes, retired: tuple[bytes, ...]) -> ShardSchema:
    found = decode_schema(newest)
    known = (*(decode_schema(one).data for one in retired), found.data)
    return replace(found, known=known)


def with_schemas(state: State, schemas: Sequence[bytes]) -> State:
    """Return the state that a shard will have with all of ``schemas``; it has the first ones."""
    for schema in schemas[state.schema_id + 1 :] if state.schema else ():
        state = apply_diff(state, Diff(schema=schema))
    return state


def served_schema(state: State, wanted: ShardSchema | None) -> ShardSchema:
    """Return the schema in which a reader gets rows: the one it asked for, or the newest.

    Raises:
        SchemaEvolved: a column of the wanted schema was dropped.
        UsageError: see `check_opened`.
    """
    if not state.schema:
        return wanted or ShardSchema(pa.schema([]), 0)
    newest = newest_schema(state)
    if wanted is None:
        return newest
    check_opened(state, wanted)
    if wanted.data.equals(newest.data):
        return newest
    for name in wanted.names:
        if name not in newest.names:
            raise evolved(f"its column {name!r} was dropped", state)
    return replace(wanted, known=newest.known)


def check_opened(state: State, wanted: ShardSchema | None) -> None:
    """Check that a handle was opened with the shard's schema, an earlier one, or none.

    Raises:
        UsageError: it was opened with another schema or another key; the message names both.
    """
    if wanted is None or not state.schema:
        return
    newest = newest_schema(state)
    if wanted.key != newest.key or not any(wanted.data.equals(one) for one in newest.known):
        raise _other_schema(newest, wanted)


def _other_schema(newest: ShardSchema, wanted: ShardSchema) -> UsageError:
    return UsageError(
        f"the shard has {_shown(newest)}, but it was opened with {_shown(wanted)}: open it with "
        "its own schema, or without a schema"
    )


def _shown(schema: ShardSchema) -> str:
    columns = ", ".join(f"{field.name} {field.type}" for field in schema.data)
    key = f"the key {', '.join(schema.key)}" if schema.key else "no key"
    return f"the columns ({columns}) and {key}"


def schema_to_write(state: State, wanted: ShardSchema | None) -> ShardSchema | None:
    """Return the schema in which a handle writes; None if neither it nor the state has one.

    Raises:
        SchemaEvolved: the handle was opened with a schema that is no longer the newest.
    """
    if not state.schema:
        return wanted
    if wanted is not None:
        check_newest(state, wanted.encoded)
    return newest_schema(state)


def check_newest(state: State, schema: bytes) -> None:
    """Refuse a write in any schema but the newest.

    Rows of an earlier schema would be stored with nulls in the new columns. A writer that retracts
    rows that it read would then retract rows that do not exist, and their counts would become
    negative.

    Raises:
        SchemaEvolved: the schema is an earlier one. UsageError: the shard never had this schema.
    """
    if not state.schema or state.schema == schema:
        return
    if any(one.schema == schema for one in state.retired):
        raise evolved("columns were added or dropped", state)
    raise _other_schema(newest_schema(state), decode_schema(schema))


def evolved(why: str, state: State) -> SchemaEvolved:
    return SchemaEvolved(
        f"the schema has evolved since this handle was opened ({why}): repeat the command, or "
        "open the table, collection or shard again (a shard with its newest schema, or with none)",
        schema_id=state.schema_id,
    )


def schema_id_at(state: State, time: int) -> int:
    """Return the id of the schema in which the updates at a time were first written."""
    earlier = (n for n, one in enumerate(state.retired) if time < one.upper)
    return next(earlier, state.schema_id)


def reign_of_newest(state: State) -> Frontier:
    """Return the upper after which all updates were written in the newest schema."""
    return Frontier.at(state.retired[-1].upper if state.retired else 0)
