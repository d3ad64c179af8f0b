"""Forks, copies and rebuilt manifests keep the streams that are open at both ends of the log."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from kit.clocks import SwiftClock
from kit.protocols import ALL
from tidelog.errors import NoSuchStream, PositionCollected, UsageError
from tidelog.store.memory import MemoryStore
from tidelog.wal.format.epoch_chain import Chain
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.log import Log
from tidelog.wal.logs import Logs
from tidelog.wal.read.head import load_head
from tidelog.wal.slot_log import SlotLog
from tidelog.wal.slot_protocol.reader import SlotReader
from tidelog.wal.slot_protocol.stream_history import streams_at

CLOCK = SwiftClock()


async def shelf_with_streams() -> tuple[Logs, Log]:
    """Return a log of 12 positions: a opens at 1, b at 2 (closed at 7), c at 9."""
    shelf = Logs(store=MemoryStore(), clock=CLOCK, writer="w")
    log = await shelf.create("source")
    await log.open_stream(b"a", b"of a")
    await log.open_stream(b"b")
    for number in range(4):
        await log.append([b"%d" % number], stream=b"a")
    await log.close_stream(b"b")
    await log.append([b"in none"])
    await log.open_stream(b"c")
    await log.append([b"c"] * 3, stream=b"c")
    await log.close()
    return shelf, await shelf.open("source")


async def chain_of(log: Log) -> Chain:
    chain = (await load_head(log.store)).manifest.chain
    assert chain is not None
    return chain


async def rows_of(log: Log, start: int = 0) -> list[tuple[int, bytes | None, bytes]]:
    return [
        (row["position"], row["stream"], row["body"])
        async for table in log.scan(start, control=True)
        for row in table.to_pylist()
    ]


@pytest.mark.parametrize("way", ["fork", "copy"])
@pytest.mark.parametrize("start", [0, 1, 2, 3, 6, 7, 8, 9, 10])
async def test_what_begins_as_another_log_has_its_streams(way: str, start: int) -> None:
    """A fork or copy has the streams that were open at its start and at its end."""
    shelf, log = await shelf_with_streams()
    other = await (shelf.fork if way == "fork" else shelf.copy)("source", "other", start=start)
    begin = (await other.bounds()).oldest
    wanted = {b"a"[: begin > 1], b"b"[: 2 < begin <= 7], b"c"[: begin > 9]} - {b""}
    chain = await chain_of(other)
    assert {info.id for info in chain.streams_at_start} == wanted
    assert await other.streams() == await log.streams()
    assert [(info.id, info.meta, info.position) for info in chain.streams] == [
        (b"a", b"of a", 1),
        (b"c", b"", 9),
    ]
    assert await rows_of(other, begin) == await rows_of(log, begin)
    with pytest.raises(NoSuchStream):
        await other.append([b"x"], stream=b"b")
    await other.append([b"x"], stream=b"a")
    await other.close()
    assert (await other.scrub()).problems == []


def reader_of(log: SlotLog) -> SlotReader:
    return SlotReader(store=log.store, clock=CLOCK)


async def test_a_log_with_streams_is_not_exported_to_wal3() -> None:
    """wal3's bytes have no place for streams. The refused export closes its reads."""
    shelf, _ = await shelf_with_streams()
    begun: list[Any] = []
    before = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=begun.append)
    try:
        with pytest.raises(UsageError, match="record 1 is in a stream") as refused:
            await shelf.copy("source", "other", protocol="manifest")
    finally:
        sys.set_asyncgen_hooks(*before)

    assert "only a log without streams can be exported or copied" in str(refused.value)
    assert begun
    assert [one for one in begun if one.ag_frame is not None] == []


async def test_a_rebuilt_manifest_has_the_same_streams() -> None:
    """After a collection, a rebuilt manifest has the streams that the remaining links name."""
    shelf, log = await shelf_with_streams()
    before = await chain_of(log)
    await log.store.delete([MANIFEST])
    log = await shelf.rebuild("source")
    after = await chain_of(log)
    assert (after.streams, after.streams_at_start) == (before.streams, before.streams_at_start)

    await log.create_cursor("x", 6)
    await log.collect(keep=ALL, grace_us=0)
    assert {info.id for info in (await chain_of(log)).streams_at_start} == {b"a", b"b"}
    await log.store.delete([MANIFEST])
    log = await shelf.rebuild("source")
    after = await chain_of(log)
    assert {info.id for info in after.streams_at_start} == {b"a", b"b"}
    assert {info.id for info in after.streams} == {b"a", b"c"}
    await log.append([b"x"], stream=b"a")
    await log.close()
    assert (await log.scrub()).problems == []


async def test_what_is_open_is_told_of_every_position_that_is_left() -> None:
    """The open streams are known for each remaining position, and for no collected one."""
    _, log = await shelf_with_streams()
    assert isinstance(log, SlotLog)
    wanted = [b"", b"a", *[b"ab"] * 5, b"a", b"a", *[b"ac"] * 4]
    for position in range(1, 14):
        found = await streams_at(reader_of(log), position)
        assert b"".join(info.id for info in found) == wanted[position - 1], position
    await log.create_cursor("x", 8)
    await log.collect(keep=ALL, grace_us=0)
    oldest = (await log.bounds()).oldest
    for position in range(1, 14):
        if position < oldest:
            with pytest.raises(PositionCollected):
                await streams_at(reader_of(log), position)
        else:
            found = await streams_at(reader_of(log), position)
            assert b"".join(info.id for info in found) == wanted[position - 1], position
