"""Creating and opening the log at the root of a store, for either protocol.

Source: wal3, "Interface"; design page 3.
"""

from __future__ import annotations

from typing import Final

from tidelog.core.arguments import quoted
from tidelog.core.clock import Clock
from tidelog.errors import CopyUnfinished, ManifestLost, NameTaken, NoSuchLog, UsageError
from tidelog.store.listing import first_entry
from tidelog.store.port import Store
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.fragment import FRAGMENTS
from tidelog.wal.format.gc_plan import GARBAGE
from tidelog.wal.format.link import EPOCHS, FIRST_EPOCHS
from tidelog.wal.log import Log
from tidelog.wal.manifest_log import ManifestLog
from tidelog.wal.manifest_protocol.committer import Committer
from tidelog.wal.read.head import Head, has_manifest, read_head
from tidelog.wal.slot_log import SlotLog
from tidelog.wal.slot_protocol.fencing import make_log
from tidelog.wal.slot_protocol.shape import Shape

PROTOCOLS: Final = ("slot", "manifest")


def check_protocol(protocol: str) -> None:
    """Check the name of a protocol of logs.

    Raises:
        UsageError: no protocol has the name.
    """
    if protocol not in PROTOCOLS:
        raise UsageError(f"protocol= must be one of {', '.join(PROTOCOLS)}, not {quoted(protocol)}")


async def create_log(
    store: Store,
    *,
    name: str,
    clock: Clock,
    writer: str,
    protocol: str = "slot",
    shape: Shape | None = None,
    batching: Batching | None = None,
) -> Log:
    """Create a log at the root of a store, and open it; see `Logs.open`.

    Raises:
        UsageError: the protocol is unknown, or the store has objects of another log.
        NameTaken: the log exists, or was dropped.
    """
    check_protocol(protocol)
    await _refuse_remains(store, name)
    if protocol == "slot":
        made = await make_log(store, clock=clock, writer=writer)
    else:
        made = await Committer(store=store, clock=clock, writer=writer).make()
    if not made:
        manifest = (await read_head(store)).manifest
        if manifest.is_destroyed:
            raise NameTaken(
                f"a log named {name!r} was dropped, and names are not reused, because old "
                "writers may still use them: choose another name"
            )
        raise NameTaken(f"a log named {name!r} already exists: open it, or choose another name")
    return await open_log(
        store, name=name, clock=clock, writer=writer, shape=shape, batching=batching
    )


async def _refuse_remains(store: Store, name: str) -> None:
    """Refuse to create a log over the objects of another.

    A log that lost its manifest could no longer be rebuilt. The new log would adopt a fragment in
    wal3's form as one of a crashed writer. A cursor would hold back records that its reader never
    saw.

    Raises:
        UsageError: the store has objects but no manifest.
    """
    entry = await first_entry(store, "")
    if entry is None or await has_manifest(store):
        return
    raise UsageError(
        f"the name {name!r} has objects of a log without a manifest, either a damaged log or an "
        f"unfinished copy or fork: run 'tidelog log rebuild {name}', repeat the copy or fork, or "
        "choose another name",
        key=entry.key,
    )


async def open_log(
    store: Store,
    *,
    name: str,
    clock: Clock,
    writer: str,
    shape: Shape | None = None,
    batching: Batching | None = None,
) -> Log:
    """Open the log at the root of a store, of either protocol; see `Logs.open`.

    Raises:
        NoSuchLog: the log does not exist, or was dropped.
        CorruptionError: its manifest cannot be read.
    """
    manifest = (await opened_head(store, name=name)).manifest
    kind = ManifestLog if manifest.chain is None else SlotLog
    return kind(
        name=name,
        store=store,
        clock=clock,
        writer=writer,
        shape=shape or Shape(),
        batching=batching or Batching(),
    )


async def opened_head(store: Store, *, name: str) -> Head:
    """Return the head of the log at the root of a store; see `open_log`."""
    try:
        head = await read_head(store)
    except NoSuchLog:
        raise await log_missing(store, name) from None
    if head.manifest.is_destroyed:
        raise NoSuchLog(f"the log {name!r} was dropped: open another log")
    return head


async def log_missing(store: Store, name: str) -> NoSuchLog:
    """Return the error of a log without a manifest, with the remedy.

    Raises:
        LocationError: the store failed.
    """
    told = f"no log named {name!r} at {store.url}"
    unfinished = f"{told}: it is an unfinished copy, or lost its manifest"
    if await first_entry(store, EPOCHS) is not None:
        # A writer opens an epoch of its own; a copy stores all records in the first one.
        if await first_entry(store, EPOCHS, after=f"{FIRST_EPOCHS}\U0010ffff") is None:
            return CopyUnfinished(
                f"{unfinished}: repeat the copy, or run 'tidelog log drop {name}'; if it lost "
                f"its manifest, run 'tidelog log rebuild {name}'"
            )
        return ManifestLost(
            f"{told}: its objects exist, but its manifest is missing: run 'tidelog log rebuild "
            f"{name}'"
        )
    if await first_entry(store, FRAGMENTS) is not None:
        advice = (
            "restore manifest/MANIFEST, because a log of the manifest protocol cannot be rebuilt"
        )
        if (
            await first_entry(store, "snapshot/") is None
            and await first_entry(store, GARBAGE) is None
        ):
            return CopyUnfinished(
                f"{unfinished}: repeat the copy or adoption, or run 'tidelog log drop {name}'; "
                f"if it lost its manifest, {advice}"
            )
        return ManifestLost(f"{told}: its objects exist, but its manifest is missing: {advice}")
    return NoSuchLog(f"{told}: 'tidelog log list' lists the logs, 'tidelog log create' creates one")
