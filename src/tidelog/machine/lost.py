"""States that are gone: told from those that were never written, by what is left beside them."""

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
