"""The program of a rendition: an ingester that would decide other rows is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from kit.renditions import lake_on, put, rows_at, rows_of
from kit.shelf_kind import Shelf, empty_shelves, shelf_row
from kit.sources import ingest, lake_of, reopened, write_numbers
from tidelog.collection.ingest import compute, program
from tidelog.collection.ingest.envelope import StampedRows, stamp_rows
from tidelog.collection.rendition_spec import RenditionSpec
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import ProgramDiffers, UsageError
from tidelog.store.memory import MemoryStore

# The digests of this version. A change of one stops every ingester of a source of that format,
# until a rendition is created: change the code back, unless other rows are the purpose.
DIGESTS = {
    ("avro", False, False): "0572143241dfca7c",
    ("avro", False, True): "c555e0a253fb2c13",
    ("avro", True, False): "41e2e6ae1b5c8c58",
    ("avro", True, True): "2a0e243e10c14810",
    ("avro messages", False, False): "92efc146f97d7be7",
    ("avro messages", False, True): "33cbb4f1c9dffb44",
    ("avro messages", True, False): "314ae70d613c7ee8",
    ("avro messages", True, True): "1293d16b674a9699",
    ("csv", False, False): "60db8ff0fe8eef63",
    ("csv", False, True): "aabf5e90a83b2b45",
    ("csv", True, False): "c628a891b500a725",
    ("csv", True, True): "61a92041b002b4ce",
    ("json", False, False): "2cb49528d7a3f0a4",
    ("json", False, True): "03eb0621b916e8a9",
    ("json", True, False): "c32f26115e7bdc09",
    ("json", True, True): "cc0bcb3c329c64b0",
    ("parquet", False, False): "dcee5426d9bacb6f",
    ("parquet", False, True): "869798e290e22c72",
    ("parquet", True, False): "455d490904f061ef",
    ("parquet", True, True): "501a3caf2608a3da",
}


@pytest.fixture(autouse=True)
def digests_anew() -> Iterator[None]:
    """Let each test compute the digests of its own code."""
    program._digest.cache_clear()
    yield
    program._digest.cache_clear()


def break_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process decide other rows: the first row of each range is lost."""

    def cut(rows: pa.Table, *args: object, **options: object) -> StampedRows:
        return stamp_rows(rows.slice(1), *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(compute, "stamp_rows", cut)
    program._digest.cache_clear()


def mend_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process decide rows as before."""
    monkeypatch.undo()
    program._digest.cache_clear()


@pytest.mark.parametrize(("format", "upsert", "timed"), DIGESTS)
def test_the_code_decides_the_same_rows_as_ever(format: str, upsert: bool, timed: bool) -> None:
    """A digest has the updates of a sample with odd, late and bad records, and their shards."""
    assert program._digest(format, upsert=upsert, timed=timed) == DIGESTS[format, upsert, timed]


async def test_an_ingester_with_another_program_binds_and_computes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after all others have stopped, so no sums could show the difference."""
    lake = await lake_of(tmp_path)
    write_numbers(tmp_path / "in" / "1.jsonl", 1, 2)
    await ingest(lake, "c")
    rows, before = await rows_at(lake), await lake.sources.ingester("c")
    write_numbers(tmp_path / "in" / "2.jsonl", 3, 4)
    break_decoder(monkeypatch)

    with pytest.raises(ProgramDiffers, match=r"other rows of 'c'.*'tidelog rendition create'"):
        await ingest(await reopened(tmp_path), "c")

    after = await lake.sources.ingester("c")
    assert after.remap.state.upper == before.remap.state.upper
    assert await rows_at(lake) == rows
    mend_decoder(monkeypatch)
    await ingest(await reopened(tmp_path), "c")
    assert sum((await rows_at(lake)).values()) == 4


async def test_an_ingester_with_another_program_leaves_a_waiting_binding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another ingester has made the binding, and died before its commit."""
    lake = await lake_of(tmp_path)
    write_numbers(tmp_path / "in" / "1.jsonl", 1, 2)
    first = await lake.sources.ingester("c")
    head = await first.source.head()
    plan = await first.plan(head, 0)
    assert plan is not None
    await first._mint(plan, 0, 1_000)
    break_decoder(monkeypatch)

    with pytest.raises(ProgramDiffers):
        await ingest(lake, "c")

    assert (await lake.sources.ingester("c")).upper.time == 0
    mend_decoder(monkeypatch)
    await ingest(await reopened(tmp_path), "c")
    assert sum((await rows_at(lake)).values()) == 2


async def test_an_idle_ingester_does_not_compute_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The samples load libraries that a run without data does not need."""
    lake = await lake_of(tmp_path)
    write_numbers(tmp_path / "in" / "1.jsonl", 1)
    await ingest(lake, "c")
    break_decoder(monkeypatch)

    await ingest(await reopened(tmp_path), "c")

    assert program._digest.cache_info().currsize == 0


async def test_a_rendition_is_the_way_on_for_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that creates the rendition fills it; the earlier one is refused there."""
    lake = await lake_of(tmp_path)
    write_numbers(tmp_path / "in" / "1.jsonl", 1, 2)
    await ingest(lake, "c")
    break_decoder(monkeypatch)
    lake = await reopened(tmp_path)

    await lake.renditions.create(RenditionSpec(name="c2"), of="c")
    await ingest(lake, "c2")
    at = await lake.renditions.handover("c", to="c2")

    assert sum((await rows_of(lake, "c2", at - 1)).values()) == 1
    mend_decoder(monkeypatch)
    write_numbers(tmp_path / "in" / "2.jsonl", 3)
    with pytest.raises(ProgramDiffers):
        await ingest(await reopened(tmp_path), "c2")


async def test_a_kind_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The author of a kind raises its version, because no sample can show its rows."""
    store = MemoryStore(name="memory://")
    with empty_shelves():
        lake = await lake_on(store, create=True)
        await lake.sources.create(SourceSpec(name="c", kind="shelf", schema="k bigint"))
        put(shelf_row(1, 1_000))
        monkeypatch.setattr(Shelf, "version", 2)

        with pytest.raises(ProgramDiffers, match=r"kind shelf: 2 here, 1 there"):
            await ingest(await lake_on(store), "c")


async def test_a_source_of_an_earlier_version_is_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entry in the catalog has no program."""
    lake = await lake_of(tmp_path)
    info, _ = await lake.sources.find("c")
    assert isinstance(info.program, dict)
    break_decoder(monkeypatch)

    program.check_program(msgspec.structs.replace(info, program=msgspec.UNSET))
    with pytest.raises(ProgramDiffers):
        program.check_program(info)
    program.check_program(msgspec.structs.replace(info, program={"csv append 9": "x"}))


async def test_the_version_of_a_kind_is_a_whole_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another value could differ from process to process."""
    with empty_shelves():
        lake = await lake_on(MemoryStore(name="memory://"), create=True)
        for version in (object(), "1", True, -1):
            monkeypatch.setattr(Shelf, "version", version)
            with pytest.raises(UsageError, match=r"version of the kind 'shelf'"):
                await lake.sources.create(SourceSpec(name="c", kind="shelf", schema="k bigint"))
