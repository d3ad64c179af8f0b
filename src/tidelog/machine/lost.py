"""States that are gone, older than they were, or another's: told by what is beside them."""

from __future__ import annotations

from tidelog.errors import CorruptionError
from tidelog.store.listing import first_entry
from tidelog.store.port import Store


async def was_written(store: Store, prefix: str) -> bool:
    """Say whether there are objects that are only written once there are records.

    Those are rollups, and what else follows parts in a listing: a part may be older than the first
    record, or of a writer that died before it.
    """
    after = f"{prefix}/part0"  # "0" follows "/".
    return await first_entry(store, f"{prefix}/", after=after) is not None


def state_lost(key: str) -> CorruptionError:
    """Return the error that a state is gone of which other objects are left."""
    return CorruptionError(
        f"the state of {key!r} is gone, though it was written: restore the object "
        f"consensus/{key} (from a backup, or an older version of it), and write nothing before"
    )


def state_set_back(key: str) -> CorruptionError:
    """Return the error that a state is older than others which were written after it."""
    return CorruptionError(
        f"the state of {key!r} is older than what was written after it: put the newest version of "
        f"consensus/{key} back (from a backup, or an older version of the object), and write "
        "nothing before"
    )


def state_of_another(key: str) -> CorruptionError:
    """Return the error that a state names what lies below another key."""
    return CorruptionError(
        f"the object consensus/{key} is the state of another shard: put the one back that is its "
        "own (from a backup, or an older version of it), and write nothing before"
    )
