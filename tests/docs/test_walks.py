"""The walks of docs/internals: the code that they name exists, and requests are those they show."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from kit.doc_blocks import ROOT, blocks_of
from tidelog.collection.spec_types import SourceSpec
from tidelog.core.ids import group_of
from tidelog.location import Location, open_location
from tidelog.store.memory import MemoryStore
from tidelog.testing.recorded import RecordedRequest, RecordedStore
from tidelog.wal.slot_protocol.shape import Shape

SOURCES = ROOT / "src/tidelog"
INTERNALS = "docs/internals"
FILE = re.compile(r"`([\w/]+\.py)`")
HOUR_US = 3_600_000_000  # No roll-up comes between the appends.
FUNCTION = re.compile(r"`(\w+)\(\)`")
NAMES = {
    r"epoch/\d+-\w+/": "epoch/EPOCH/",
    r"part/\w+/[\w-]+\.parquet": "part/EPOCH/ID.parquet",
    r"run/[\w/-]+?(\.keys)?\.parquet": r"run/ID\1.parquet",
}


def shown(walk: str) -> list[list[str]]:
    """Return the lists of requests that a walk shows, without its comments."""
    blocks = blocks_of(f"{INTERNALS}/walks/{walk}.md", section="Requests")
    texts = [block.text for block in blocks if block.language == "text"]
    return [[line.partition("  #")[0].rstrip() for line in text.splitlines()] for text in texts]


def sent(requests: Sequence[RecordedRequest], names: Mapping[str, str]) -> list[str]:
    """Return requests in the words of the walks: ids are replaced by names."""
    lines = []
    for one in requests:
        line = f"{one.op} {one.key}"
        for pattern, name in {**names, **NAMES}.items():
            line = re.sub(pattern, name, line)
        lines.append(line)
    return lines


class RecordedLocation:
    """A location in memory, and the requests that it was sent since the last call of `take`."""

    def __init__(self) -> None:
        self.store = RecordedStore(MemoryStore(name="memory://"))
        self.names: dict[str, str] = {}

    async def open(self) -> Location:
        return await open_location("memory://", create=True, store=self.store)

    def take(self) -> list[str]:
        found, self.store.records = self.store.records, []
        return sent(found, self.names)


PAGES = sorted((ROOT / INTERNALS).glob("walks/*.md"))


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / INTERNALS / "architecture.md"], ids=lambda page: page.stem
)
def test_the_code_that_a_page_names_exists(page: Path) -> None:
    """A reader must find each file, and each function in one of these files."""
    text = page.read_text()
    files = {SOURCES / name for name in FILE.findall(text) if not name.startswith("tests/")}
    assert len(files) >= 8
    assert sorted(str(path) for path in files if not path.exists()) == []
    defined = {
        node.name
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert sorted({*FUNCTION.findall(text)} - defined) == []


async def collection_in(recording: RecordedLocation, folder: Path, *, rows: int) -> Location:
    """Make a collection of some rows, by one tick of an ingester."""
    location = await recording.open()
    lines = (f'{{"k": {n}, "text": "{n:0>40x}"}}\n' for n in range(rows))
    (folder / "rows.jsonl").write_text("".join(lines))
    spec = SourceSpec(name="s", files=str(folder), schema="k bigint, text varchar")
    info = await location.sources.create(spec)
    _, rendition = await location.sources.find("s")
    shards = {rendition.shards[0]: "OUTPUT", rendition.errors: "ERRORS", rendition.remap: "REMAP"}
    group = group_of(rendition.shards[0])
    named = {str(key): name for key, name in shards.items()}
    recording.names = {**named, str(group): "GROUP", info.id: "SOURCE"}
    ingester = await location.sources.ingester("s")
    assert await ingester.tick(await ingester.source.head()) is not None
    return location


async def test_a_tick_sends_the_requests_of_its_walk(tmp_path: Path) -> None:
    """One new row: one append to all shards, with the binding."""
    recording = RecordedLocation()
    location = await collection_in(recording, tmp_path, rows=1)
    ingester = await location.sources.ingester("s")
    for _ in range(2):  # The second record of a shard costs one more request than later ones.
        with (tmp_path / "rows.jsonl").open("a") as file:
            file.write('{"k": 9, "text": "new"}\n')
        recording.take()
        before = ingester.source.usage()
        tick = await ingester.tick(await ingester.source.head())
        assert tick is not None
        assert tick.rows == 1

    assert [recording.take()] == shown("ingest-tick")
    asked = ingester.source.usage()
    assert asked.list_count - before.list_count == 1
    assert asked.get_count - before.get_count == 3


async def test_a_snapshot_sends_the_requests_of_its_walk(tmp_path: Path) -> None:
    """The states of the shards, and then the parts that they name."""
    recording = RecordedLocation()
    await collection_in(recording, tmp_path, rows=1_000)
    location = await recording.open()
    recording.take()

    collection = await location.collection("s")
    assert (await (await collection.snapshot()).to_arrow()).num_rows == 1_000
    first = recording.take()
    assert (await (await collection.snapshot()).to_arrow()).num_rows == 1_000

    assert [first, recording.take()] == shown("snapshot")


async def test_a_keyed_scan_sends_the_requests_of_its_walk() -> None:
    """One key, of which a run has a record and a loose fragment another one."""
    recording = RecordedLocation()
    location = await recording.open()
    log = await location.keyed.create("orders")
    await log.append([(b"user-7", b"tea"), (b"user-9", b"jam")])
    await log.compact(full=True)
    await log.append([(b"user-7", b"milk")])
    await log.close()
    reader = await location.keyed.reader("orders", refresh_us=0)
    recording.take()

    lists = []
    for _ in range(2):
        found = [table async for table in reader.scan(b"user-7")]
        assert [value for table in found for value in table.column("value").to_pylist()] == [
            b"tea",
            b"milk",
        ]
        lists.append(recording.take())
    await reader.close()

    expected = shown("keyed-scan")
    # The state and the wal are read in order, the sources concurrently.
    assert [requests[:4] for requests in lists] == [requests[:4] for requests in expected]
    assert [sorted(requests) for requests in lists] == [sorted(each) for each in expected]


async def test_an_append_sends_the_requests_of_its_walk() -> None:
    """The first append opens the log, the next one is one request, and a read is several."""
    recording = RecordedLocation()
    location = await recording.open()
    log = await location.logs.create("events", shape=Shape(rollup_interval_us=HOUR_US))
    recording.take()

    lists = []
    for body in (b"one", b"two"):
        await log.append([body])
        lists.append(recording.take())
    await log.close()
    reader = await (await recording.open()).log("events")
    recording.take()
    found = [table async for table in reader.scan(1)]
    lists.append(recording.take())

    assert sum(table.num_rows for table in found) == 2
    expected = shown("append")
    assert lists[:2] == expected[:2]
    assert sorted(lists[2]) == sorted(expected[2])  # Fragments are fetched concurrently.
