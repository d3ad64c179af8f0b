"""A log's source that is dropped while it is ingested: nothing of it is left in the log."""

from __future__ import annotations

from contextlib import suppress

import pytest

from kit.clocks import SwiftClock
from kit.named_logs import log_of
from kit.sources import run_once
from tidelog.collection.create import SourceSpec
from tidelog.collection.ingest.ingest import Ingester
from tidelog.errors import SourceDropped
from tidelog.location import open_location
from tidelog.store.memory import MemoryStore


async def test_a_source_that_is_dropped_as_it_begins_leaves_no_cursor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would hold the log's records for ever, for nobody."""
    store = MemoryStore(name="memory://")
    location = await open_location("memory://", create=True, clock=SwiftClock(), store=store)
    await log_of(store, "l", 3)
    await location.create_source(SourceSpec(name="s", kind="log", settings={"log": "l"}))
    ingester, hold = await location.ingester("s"), Ingester._hold

    async def late(one: Ingester, *, make: bool) -> None:
        if make:
            await location.drop_source("s")
        await hold(one, make=make)

    monkeypatch.setattr(Ingester, "_hold", late)
    with suppress(SourceDropped):
        await run_once(ingester)
    assert (await (await location.log("l")).cursors()).cursors == {}
