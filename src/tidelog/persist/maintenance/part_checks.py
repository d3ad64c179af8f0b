"""The checks of a shard's parts: plain values that any process with the store can run.

A scrub plans the checks from the shard's state, and a checker runs them: this process, or Spark's
executors. A check reads one part, and compares it with its descriptor.
Source: persist, "Checksums".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import msgspec

from tidelog.core.clock import run_all
from tidelog.errors import CorruptionError, PartMissing
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import ShardSchema, decode_schema, encode_with_known
from tidelog.persist.handle.port import ShardHandle
from tidelog.persist.maintenance.scrub import RESTORE, Damage, check_part
from tidelog.persist.read.reader import PartReader
from tidelog.persist.states.batch import Batch

AT_ONCE: Final = 2
LEAST_BYTES: Final = 8 * 1024 * 1024  # For less, one process is faster than tasks.


class PartCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A part to check, the times ``[lower, upper)`` of its batch, and its name in a report."""

    part: Part
    schema: bytes
    lower: int
    upper: int | None
    where: str


class PartOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check; ``rows`` is None if the part could not be read."""

    rows: int | None = None
    is_missing: bool = False
    damages: tuple[Damage, ...] = ()


class PartChecker(Protocol):
    """The port that runs checks."""

    async def check(self, shard: ShardHandle, checks: Sequence[PartCheck]) -> list[PartOutcome]:
        """Run checks of a shard; return their results in order.

        Raises:
            LocationError: the store failed.
        """
        ...


@dataclass(frozen=True, slots=True)
class CheckerHere:
    """A checker that runs in this process."""

    async def check(self, shard: ShardHandle, checks: Sequence[PartCheck]) -> list[PartOutcome]:
        """See `PartChecker`."""
        work = [partial(check_stored, shard.reader, one) for one in checks]
        return await run_all(work, at_once=AT_ONCE)


HERE: Final = CheckerHere()


def plan_checks(batch: Batch, schema: ShardSchema, state_key: str) -> Iterator[PartCheck]:
    """Yield the checks of a batch; inline parts have the name of the state. Pure."""
    encoded = encode_with_known(schema)
    for part in batch.parts:
        yield PartCheck(
            part=part,
            schema=encoded,
            lower=batch.lower,
            upper=batch.upper,
            where=part.path or state_key,
        )


def is_small(checks: Sequence[PartCheck]) -> bool:
    """Return True if this process runs the checks sooner than a cluster."""
    return sum(one.part.size_bytes for one in checks) < LEAST_BYTES


async def check_stored(reader: PartReader, check: PartCheck) -> PartOutcome:
    """Read a part, and compare it with its descriptor.

    Raises:
        LocationError: the store failed.
    """
    part, schema = check.part, decode_schema(check.schema).of_part(check.part.schema_id)
    try:
        (table,) = await reader.read([part], schema)
    except PartMissing:
        return PartOutcome(is_missing=True)
    except CorruptionError as error:
        return PartOutcome(damages=(Damage(check.where, str(error), RESTORE),))
    found = await reader.clock.offload(lambda: list(check_part(part, table, schema, check)))
    return PartOutcome(
        rows=table.num_rows, damages=tuple(Damage(check.where, why) for why in found)
    )
