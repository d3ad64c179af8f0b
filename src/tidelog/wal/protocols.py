"""The two commit protocols: making a log of one, and opening a log of whichever it is."""

from __future__ import annotations

from typing import Any, Final

from tidelog.clock import Clock
from tidelog.errors import NameTaken, NoSuchLog, UsageError
from tidelog.store.port import Store
from tidelog.wal.committer import Committer
from tidelog.wal.head import load_head
from tidelog.wal.log import Log
from tidelog.wal.manifest_log import ManifestLog
from tidelog.wal.opener import make_log
from tidelog.wal.slot_log import SlotLog

PROTOCOLS: Final = ("slot", "manifest")


async def create_log(
    store: Store, *, name: str, clock: Clock, writer: str, protocol: str = "slot", **options: Any
) -> Log:
    """Make a log at the root of a store, and open it; ``options`` are those of `Log`.

    Raises:
        UsageError: there is no such protocol. NameTaken: there is a log already.
    """
    if protocol not in PROTOCOLS:
        raise UsageError(f"there is no protocol {protocol!r}: it is one of {', '.join(PROTOCOLS)}")
    made = False
    if protocol == "slot":
        made = await make_log(store, clock=clock, writer=writer)
    else:
        committer = Committer(store=store, clock=clock, writer=writer)
        made = await committer.make()
    if not made:
        manifest = (await load_head(store)).manifest
        if manifest.chain is not None and manifest.chain.is_destroyed:
            raise NameTaken(
                f"a log {name!r} was destroyed, and its name stays taken, for writers who have not "
                "heard of it yet: choose another"
            )
        raise NameTaken(f"there is a log {name!r} already: open it, or choose another name")
    return await open_log(store, name=name, clock=clock, writer=writer, **options)


async def open_log(store: Store, *, name: str, clock: Clock, writer: str, **options: Any) -> Log:
    """Open the log at the root of a store, of whichever protocol it is.

    Raises:
        NoSuchLog: there is none, or it was destroyed. CorruptionError: its manifest cannot be read.
    """
    manifest = (await load_head(store)).manifest
    if manifest.chain is not None and manifest.chain.is_destroyed:
        raise NoSuchLog(f"the log {name!r} was destroyed")
    kind = ManifestLog if manifest.chain is None else SlotLog
    return kind(name=name, store=store, clock=clock, writer=writer, **options)
