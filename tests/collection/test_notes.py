"""Reports about files stay in the status until a user acknowledges them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from kit.clocks import OneThread
from kit.dying import DiesWriting
from kit.sources import run_once
from tidelog.collection.ingest.notes import NOTES_MAX, add_notes, load_notes, notes_path
from tidelog.collection.ingest.status import SourceStatus, source_status
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import LocationError, UsageError
from tidelog.location import Location, open_location
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing.faulty import NO_FAULT, FaultyStore


async def opened(store: Store) -> Location:
    return await open_location("memory://", clock=OneThread(), store=store)


async def fed(folder: Path) -> MemoryStore:
    """Return the store of a location that ingested one file."""
    (folder / "a.jsonl").write_text('{"n": 1}\n')
    store = MemoryStore(name="memory://")
    location = await open_location("memory://", create=True, clock=OneThread(), store=store)
    await location.sources.create(SourceSpec(name="c", files=str(folder), schema="n bigint"))
    await run_once(await location.sources.ingester("c"))
    return store


def rewrite(folder: Path, number: int) -> None:
    """Replace the file by another one."""
    (folder / "new.tmp").write_text(f'{{"n": {number}, "more": "{"x" * number}"}}\n')
    (folder / "new.tmp").rename(folder / "a.jsonl")


async def status_of(location: Location) -> SourceStatus:
    return await source_status(await location.sources.ingester("c"))


async def test_a_report_stays_until_it_is_acknowledged(tmp_path: Path) -> None:
    """Cron may have started the run that made the report, without any visible output."""
    location = await opened(await fed(tmp_path))
    rewrite(tmp_path, 2)
    await run_once(await location.sources.ingester("c"))
    for _ in range(2):
        assert not (await run_once(await location.sources.ingester("c"))).notes
        assert "was rewritten" in (await status_of(location)).notes["a.jsonl"]

    with pytest.raises(UsageError, match=r"b\.jsonl"):
        await location.sources.acknowledge("c", "b.jsonl")
    await location.sources.acknowledge("c", "a.jsonl")
    await run_once(await location.sources.ingester("c"))
    assert (await status_of(location)).notes == {}
    rewrite(tmp_path, 3)
    await run_once(await location.sources.ingester("c"))
    assert list((await status_of(location)).notes) == ["a.jsonl"]
    await location.sources.acknowledge("c")
    assert (await status_of(location)).notes == {}


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "lost"])
async def test_no_kill_loses_a_report(tmp_path: Path, landed: bool) -> None:
    """A process may die after binding the rows, and the next run has nothing new to report."""
    for number in range(landed, 100, 2):  # Each case of `landed` takes every second write.
        store, process = await fed(tmp_path), DiesWriting(number, landed)
        rewrite(tmp_path, 2)
        with suppress(LocationError):
            await run_once(
                await (await opened(FaultyStore(store, toss=process.toss))).sources.ingester("c")
            )
        location = await opened(store)
        summary = await run_once(await location.sources.ingester("c"))

        status = await status_of(location)
        assert "was rewritten" in status.notes.get("a.jsonl", ""), (number, summary.notes)
        assert (await (await location.collection("c")).consolidated()).num_rows == 2
        if not process.died:
            break
    assert 3 <= number < 100


async def test_two_ingesters_store_their_reports_at_once() -> None:
    """Each ingester replaces only the version that it read. The oldest reports go first."""
    store = MemoryStore(name="memory://")

    class SlowStore(FaultyStore):
        """Lets the other ingester write between the read and the write."""

        async def put(
            self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
        ) -> str:
            if "other" not in await load_notes(store, "s"):
                await add_notes(store, "s", {"other": "theirs", "both": "theirs"})
            return await super().put(key, data, if_absent=if_absent, if_match=if_match)

    await add_notes(SlowStore(store, toss=lambda _: NO_FAULT), "s", {"own": "ours", "both": "ours"})
    assert await load_notes(store, "s") == {"other": "theirs", "own": "ours", "both": "ours"}

    await add_notes(store, "s", {f"file {n}": "new" for n in range(NOTES_MAX - 1)})
    assert list(await load_notes(store, "s"))[:2] == ["both", "file 0"]


@pytest.mark.parametrize(
    "data", [b'{"a.jsonl": "los', b"[]", b'{"a.jsonl": 5}', b'{"a.jsonl": "\xff"}', b""]
)
async def test_damaged_reports_are_reported_and_stop_no_ingester(
    tmp_path: Path, data: bytes
) -> None:
    """The damaged object may have named lost rows, so the status reports it."""
    store = await fed(tmp_path)
    location = await opened(store)
    key = notes_path((await location.sources.ingester("c")).info.id)
    await store.put(key, data)
    assert "are damaged" in (await status_of(location)).notes[key]

    rewrite(tmp_path, 2)
    await run_once(await location.sources.ingester("c"))
    notes = (await status_of(location)).notes
    assert set(notes) == {"a.jsonl", key}
    assert "source acknowledge" in notes[key]

    await location.sources.acknowledge("c", key)
    assert set((await status_of(location)).notes) == {"a.jsonl"}


async def test_damaged_reports_are_acknowledged_like_others(tmp_path: Path) -> None:
    """Without a path, the command removes all reports, and the damaged object with them."""
    store = await fed(tmp_path)
    location = await opened(store)
    key = notes_path((await location.sources.ingester("c")).info.id)
    await store.put(key, b"{")
    await location.sources.acknowledge("c")
    assert (await status_of(location)).notes == {}
