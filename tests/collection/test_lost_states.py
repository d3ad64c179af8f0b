"""Lost states: a deleted consensus object is damage, not an empty shard."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from kit.sources import (
    consensus_key,
    contents,
    ingested,
    lake_of,
    make_shards_alone,
    numbers,
    reopened,
    write_numbers,
)
from tidelog.collection.ingest.status import source_status
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import CorruptionError, NoSuchCollection
from tidelog.location import Location, open_location

SCHEMA = pa.schema([("n", pa.int64())])
LOST = r"the state of '{}' is missing, though it was written: restore the object consensus/{}"


async def fed(folder: Path, *, runs: int) -> Location:
    """Create a source, and ingest the given number of files."""
    await lake_of(folder, "*.jsonl", shards=2, time_column="at")
    await fed_more(folder, runs=range(runs))
    return await reopened(folder)


async def fed_more(folder: Path, *, runs: Iterable[int]) -> None:
    for run in runs:
        write_numbers(folder / f"{run}.jsonl", run, at=1_000 * (run + 1))
        await ingested(folder)


def lose(folder: Path, state: str) -> None:
    (folder / "lake" / "consensus" / state).unlink()


@pytest.mark.parametrize(
    ("which", "runs"), [("output", 1), ("output", 2), ("remap", 1), ("errors", 2)]
)
async def test_a_collection_one_of_whose_states_is_gone_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str, runs: int
) -> None:
    """Reads and ingestion raise CorruptionError. An empty state would be ingested again."""
    make_shards_alone(monkeypatch)
    location = await fed(tmp_path, runs=runs)
    _, rendition = await location.sources.find("c")
    shards = {"output": rendition.shards[1], "remap": rendition.remap, "errors": rendition.errors}
    lost = shards[which] or ""
    lose(tmp_path, lost)

    for name in ("c", "c_errors") if which != "remap" else ():
        with pytest.raises(CorruptionError, match=LOST.format(lost, lost)):
            await contents(location, name)
        with pytest.raises(CorruptionError, match=LOST.format(lost, lost)):
            await (await location.collection(name)).describe()
    with pytest.raises(CorruptionError, match=LOST.format(lost, lost)):
        await ingested(tmp_path)
    with pytest.raises(CorruptionError, match=LOST.format(lost, lost)):
        await source_status(await location.sources.ingester("c"))


async def test_a_collection_whose_group_is_gone_is_damaged(tmp_path: Path) -> None:
    """All states of a source are in one object. Without it, nothing starts from the beginning."""
    location = await fed(tmp_path, runs=1)
    _, rendition = await location.sources.find("c")
    key = consensus_key(rendition.shards[0])
    lose(tmp_path, key.removeprefix("consensus/"))
    message = f"is missing, though it was written: restore the object {key}"

    location = await reopened(tmp_path)
    for name in ("c", "c_errors"):
        with pytest.raises(CorruptionError, match=message):
            await contents(location, name)
    with pytest.raises(CorruptionError, match=message):
        await ingested(tmp_path)
    with pytest.raises(CorruptionError, match=message):
        await source_status(await location.sources.ingester("c"))


async def test_a_group_that_was_set_back_during_its_use_is_damaged(tmp_path: Path) -> None:
    """A process that knows a newer version reports it, and writes nothing."""
    location = await fed(tmp_path, runs=1)
    _, rendition = await location.sources.find("c")
    place = tmp_path / "lake" / consensus_key(rendition.shards[0])
    older = place.read_bytes()
    await fed_more(tmp_path, runs=[1])
    ingester = await location.sources.ingester("c")
    await ingester.refresh()
    place.write_bytes(older)
    write_numbers(tmp_path / "2.jsonl", 2, at=9_000)

    with pytest.raises(CorruptionError, match="was set back to an older state during its use"):
        await ingester.tick(await ingester.source.head())
    assert place.read_bytes() == older


@pytest.mark.parametrize("which", ["output", "remap", "errors"])
async def test_a_collection_one_of_whose_states_was_set_back_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """A state restored from an old backup raises CorruptionError. The other objects are newer."""
    make_shards_alone(monkeypatch)
    location = await fed(tmp_path, runs=1)
    _, rendition = await location.sources.find("c")
    shards = {"output": rendition.shards[0], "remap": rendition.remap, "errors": rendition.errors}
    place = tmp_path / "lake" / "consensus" / (shards[which] or "")
    older = place.read_bytes()
    await fed_more(tmp_path, runs=[1, 2])
    newest = place.read_bytes()
    place.write_bytes(older)

    message = f"the state of '{shards[which]}' is older than a later write"
    with pytest.raises(CorruptionError, match=message):
        await ingested(tmp_path)
    with pytest.raises(CorruptionError, match=message):
        await source_status(await location.sources.ingester("c"))
    place.write_bytes(newest)
    await fed_more(tmp_path, runs=[3])
    assert await numbers(tmp_path) == [0, 1, 2, 3]


async def test_what_was_set_back_by_less_than_a_binding_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between two commits leaves such a state."""
    make_shards_alone(monkeypatch)
    location = await fed(tmp_path, runs=1)
    _, rendition = await location.sources.find("c")
    place = tmp_path / "lake" / "consensus" / rendition.shards[0]
    older = place.read_bytes()
    await fed_more(tmp_path, runs=[1])
    place.write_bytes(older)

    await fed_more(tmp_path, runs=[2])
    assert await numbers(tmp_path) == [0, 1, 2]


async def test_states_that_changed_their_names_are_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Swapped states raise CorruptionError. Rows of a key would otherwise be in the wrong shard."""
    make_shards_alone(monkeypatch)
    location = await fed(tmp_path, runs=1)
    _, rendition = await location.sources.find("c")
    one, other = (tmp_path / "lake" / "consensus" / name for name in rendition.shards)
    (tmp_path / "5.jsonl").write_text(
        "".join(f'{{"n": {n}, "at": 5000, "pad": "{n}"}}\n' for n in range(2_000))
    )
    await ingested(tmp_path)
    for swapped in (one, other):
        swapped.rename(swapped.with_suffix(".kept"))
    one.with_suffix(".kept").rename(other)
    other.with_suffix(".kept").rename(one)

    # Both are read concurrently, so either may be the first.
    told = f"consensus/({one.name}|{other.name}) is the state of another"
    with pytest.raises(CorruptionError, match=told):
        await contents(location, "c")
    with pytest.raises(CorruptionError, match=told):
        await ingested(tmp_path)


async def test_a_location_whose_catalog_is_gone_is_damaged(tmp_path: Path) -> None:
    """Without its catalog, a location would read as empty and accept new sources."""
    location = await fed(tmp_path, runs=1)
    lose(tmp_path, "catalog")
    location = await open_location(str(tmp_path / "lake"))

    with pytest.raises(CorruptionError, match=LOST.format("catalog", "catalog")):
        await location.collection("c")
    with pytest.raises(CorruptionError, match=LOST.format("catalog", "catalog")):
        await location.sources.create(
            SourceSpec(name="c", files=str(tmp_path / "*.jsonl"), schema="n bigint")
        )


async def test_a_location_without_its_mark_is_damaged(tmp_path: Path) -> None:
    """A location with data but without `tidelog.json` can be neither opened nor created."""
    location = await fed(tmp_path, runs=1)
    (tmp_path / "lake" / "tidelog.json").unlink()

    for create in (False, True):
        with pytest.raises(CorruptionError, match=r"tidelog\.json is gone from .* restore"):
            await open_location(str(tmp_path / "lake"), create=create)
    assert not (tmp_path / "lake" / "tidelog.json").exists()
    await location.store.put("tidelog.json", b'{"format":1,"created_us":1,"consensus":"store"}')
    await (await open_location(str(tmp_path / "lake"))).collection("c")


async def test_a_location_of_logs_and_shards_alone_has_no_sources(tmp_path: Path) -> None:
    """A user's shard is not a sign of a lost catalog."""
    location = await open_location(str(tmp_path / "lake"), create=True)
    shard = location.shard("s1", schema=SCHEMA)
    await shard.compare_and_append(None, 0, 1)
    await location.logs.create("orders")

    with pytest.raises(NoSuchCollection, match="no collection exists yet"):
        await location.collection("c")


async def test_a_shard_that_has_a_rollup_was_written(tmp_path: Path) -> None:
    """A shard with a rollup but no state raises: only a record leads to a rollup."""
    location = await open_location(str(tmp_path / "lake"), create=True)
    shard = location.shard("s1", schema=SCHEMA)
    for time in range(66):
        await shard.compare_and_append(None, time, time + 1)
    lose(tmp_path, "user.s1")

    with pytest.raises(CorruptionError, match=LOST.format("user.s1", "user.s1")):
        await (await open_location(str(tmp_path / "lake"))).shard("s1").refresh()
