"""A location in memory with everything that a connection can read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pyarrow as pa

from tidelog.collection.spec_types import SourceSpec
from tidelog.location import Location, open_location
from tidelog.store.memory import MemoryStore

COLUMNS: Final[dict[str, pa.DataType]] = {"k": pa.int64(), "v": pa.string()}
SCHEMA: Final = pa.schema(COLUMNS)


def filled_store(folder: Path) -> MemoryStore:
    """Return a store with logs, keyed logs, shards, transactions, tables and a collection.

    The collection's source reads a file in ``folder``.
    """
    store = MemoryStore()

    async def work() -> None:
        await _fill(await open_location("memory://", create=True, store=store), folder)

    asyncio.run(work())
    return store


def rows(*keys: int) -> pa.Table:
    return pa.table({"k": keys, "v": [f"v{key}" for key in keys]}, schema=SCHEMA)


def updates(time: int, *keys: int) -> pa.Table:
    ones = {"_time": [time] * len(keys), "_diff": [1] * len(keys)}
    return pa.table({**rows(*keys).to_pydict(), **ones})


async def _fill(lake: Location, folder: Path) -> None:
    for protocol in ("slot", "manifest"):
        async with await lake.logs.create(protocol, protocol=protocol) as log:
            await log.append([b"a", b"b", b"c"])
            await log.create_cursor("cursor", 1)
            if protocol == "slot":
                await log.create_pin("pin", start=1, limit=2)
    keyed = await lake.keyed.create("keyed")
    await keyed.append([(b"a", b"1"), (b"b", b"2")])
    await keyed.seal()
    await keyed.compact(full=True)
    await keyed.create_checkpoint("point")
    await keyed.append([(b"a", b"3")])
    await keyed.close()
    for time in range(4):
        await lake.shard("shard", schema=SCHEMA).append(updates(time, 1, 2), time, time + 1)
    both = lake.shards.transactions("both")
    for name in ("first", "second"):
        await both.register(lake.shard(name, schema=SCHEMA))
    for key in range(4):  # Only the transactions have these rows.
        await both.insert({"first": rows(key), "second": rows(key)})
    table = await lake.tables.create("table", SCHEMA, key=["k"], shards=2)
    await table.insert(rows(1, 2))
    await table.upsert(rows(2, 3))
    direct = await lake.tables.create("direct", SCHEMA, key=["k"], mode="direct")
    await direct.insert(rows(1, 2))
    (folder / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\nwrong\n')
    await lake.sources.create(SourceSpec(name="files", files=str(folder / "*.jsonl")))
    await lake.sources.ingest("files")
