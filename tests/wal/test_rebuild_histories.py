"""Rebuilds after random histories of processes that die, are suspended and land writes late.

The check knows only what readers saw before the manifest was lost.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from kit.histories import ALL, NAME, History
from tidelog.errors import CorruptionError
from tidelog.wal.admin.rebuild import rebuild_log
from tidelog.wal.format.link import DataLink
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.format.paths import place_of
from tidelog.wal.format.slot_object import decode_link
from tidelog.wal.log import Log
from tidelog.wal.slot_protocol.reader import SlotReader

HISTORIES = int(os.environ.get("TIDELOG_HISTORIES", "12"))  # More examples take a while.
Step: TypeAlias = tuple[str, dict[str, Any]]

LANDED = st.lists(st.booleans(), min_size=1, max_size=4)
SHARE = st.floats(0, 1)
PIN = st.sampled_from(["p", "q"])


def step(does: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(does), st.fixed_dictionaries(fields))


STEPS = st.one_of(
    step("write", count=st.integers(1, 4), alpha=st.integers(1, 4), lanes=st.integers(1, 2)),
    step("go_on", count=st.integers(1, 4)),
    step("die_writing", landed=LANDED),
    step("die_opening", landed=LANDED),
    step("sleep_opening"),
    step("wake"),
    step("land", number=st.integers(0, 9)),
    step("pin", name=PIN, share=SHARE),
    step("release", name=PIN),
    step("fork", name=st.sampled_from(["f", "g"])),
    step("collect", share=SHARE),
    step("collect", share=SHARE, cut=st.integers(0, 2)),
    step("sweep"),
)


async def read(log: Log) -> dict[int, bytes]:
    found = log.scan(control=True)
    return {row["position"]: row["body"] async for table in found for row in table.to_pylist()}


async def is_cut_short(history: History) -> bool:
    """Return True if a writer died with a missing slot and data after it, before any fence."""
    end = (await SlotReader(store=history.within, clock=history.clock).end()).tail
    past: dict[int, object] = {}
    for key, data in history.store.objects.items():
        path = key.removeprefix(f"log/{NAME}/")
        place = place_of(path)
        if place is not None and place.epoch == end.epoch.name and place.slot > end.slot:
            past[place.slot] = decode_link(data.data, path=path)
    return bool(past) and isinstance(past[min(past)], DataLink)


@settings(max_examples=HISTORIES)
@given(steps=st.lists(STEPS, min_size=2, max_size=9))
def test_a_lost_manifest_is_made_again_or_refused(steps: list[Step]) -> None:
    """A rebuilt log reads the same since its start, and gives no position out twice.

    A refusal is allowed only if a writer died with a missing slot and no writer took over. That
    state looks like a lost record.
    """
    asyncio.run(_check(steps))


async def _check(steps: list[Step]) -> None:
    history = History()
    await history.begin()
    await history.write(5)
    for does, fields in steps:
        await getattr(history, does)(**fields)
    await history.bury()
    log = await history.logs().open(NAME)
    before, bounds, streams = await read(log), await log.bounds(), await log.streams()
    cut_short = await is_cut_short(history)
    pins = {name: await read_pin(log, name) for name in await log.pins()}
    await history.within.delete([MANIFEST])
    keys = set(history.store.objects)
    try:
        await rebuild_log(history.within, clock=history.clock, writer="me")
    except CorruptionError:
        assert cut_short, "a healthy log was refused"
        assert set(history.store.objects) == keys
        return

    after = await read(log)
    assert {at: body for at, body in after.items() if at >= bounds.oldest} == before
    assert (await log.bounds()).next == bounds.next
    assert await log.streams() == streams
    assert {name: await read_pin(log, name) for name in pins} == pins
    async with await history.logs().open(NAME) as writer:
        assert await writer.append([b"more"]) == bounds.next
    assert (await read(log))[bounds.next] == b"more"
    assert (await log.scrub()).problems == []
    await log.collect(keep=ALL, grace_us=0)
    assert (await log.scrub()).problems == []


async def read_pin(log: Log, name: str) -> list[bytes]:
    found = log.scan_pin(name, control=True)
    return [row["body"] async for table in found for row in table.to_pylist()]
