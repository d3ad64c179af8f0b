"""Errors for states that are missing, set back or of another key, and how to detect a loss."""

from __future__ import annotations

from tidelog.core.ids import consensus_object
from tidelog.errors import CorruptionError
from tidelog.store.listing import first_entry
from tidelog.store.port import Store


async def was_written(store: Store, prefix: str) -> bool:
    """Return True if objects exist that are written only after the first record.

    These are rollups and all other objects that sort after the parts. Parts do not count: a writer
    stores a part before the first record, and may die before it writes the record.
    """
    after = f"{prefix}/part0"  # "0" is the character after "/".
    return await first_entry(store, f"{prefix}/", after=after) is not None


async def has_parts(store: Store, prefix: str) -> bool:
    """Return True if a part exists; see `was_written`."""
    return await first_entry(store, f"{prefix}/part/") is not None


def state_lost(key: str) -> CorruptionError:
    """Return the error for a state that is missing although other objects of its key exist."""
    return CorruptionError(
        f"the state of {key!r} is missing, though it was written: restore the object "
        f"consensus/{consensus_object(key)} (from a backup or an older version) before any write"
    )


def state_set_back(key: str) -> CorruptionError:
    """Return the error for a state that is older than an object written after it."""
    return CorruptionError(
        f"the state of {key!r} is older than a later write: restore the newest version of "
        f"consensus/{consensus_object(key)} (from a backup or an older version) before any write"
    )


def state_of_another(key: str) -> CorruptionError:
    """Return the error for a state that names objects of another key."""
    return CorruptionError(
        f"the object consensus/{consensus_object(key)} is the state of another shard: restore the "
        "right object (from a backup or an older version) before any write"
    )
