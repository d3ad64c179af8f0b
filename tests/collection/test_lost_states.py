"""States that are gone: a consensus object that somebody deleted is damage, not "nothing yet"."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from kit.sources import contents, ingested, make_source
from tidelog.collection.create import SourceSpec
from tidelog.collection.ingest.status import source_status
from tidelog.errors import CorruptionError, NoSuchCollection
from tidelog.location import Location, open_location

SCHEMA = pa.schema([("n", pa.int64())])
LOST = r"the state of '{}' is gone, though it was written: restore the object consensus/{}"


async def fed(folder: Path, *, runs: int) -> Location:
    spec = SourceSpec(
        name="c", files=str(folder / "*.jsonl"), schema="n bigint, t bigint", shards=2,
        time_column="t",
    )  # fmt: skip
    await make_source(folder / "lake", spec)
    for run in range(runs):
        (folder / f"{run}.jsonl").write_text(f'{{"n": {run}, "t": {1_000 * (run + 1)}}}\n')
        await ingested(folder)
    return await open_location(str(folder / "lake"))


def lose(folder: Path, state: str) -> None:
    (folder / "lake" / "consensus" / state).unlink()


@pytest.mark.parametrize(
    ("which", "runs"), [("output", 1), ("output", 2), ("remap", 1), ("errors", 2)]
)
async def test_a_collection_one_of_whose_states_is_gone_is_damaged(
    tmp_path: Path, which: str, runs: int
) -> None:
    """It read as one that nothing was ingested into, and was ingested into anew."""
    location = await fed(tmp_path, runs=runs)
    _, rendition = await location.source("c")
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
        await source_status(await location.ingester("c"))


async def test_a_location_whose_catalog_is_gone_is_damaged(tmp_path: Path) -> None:
    """It read as one without sources, and took a new one of the same name."""
    location = await fed(tmp_path, runs=1)
    lose(tmp_path, "catalog")
    location = await open_location(str(tmp_path / "lake"))

    with pytest.raises(CorruptionError, match=LOST.format("catalog", "catalog")):
        await location.collection("c")
    with pytest.raises(CorruptionError, match=LOST.format("catalog", "catalog")):
        await location.create_source(
            SourceSpec(name="c", files=str(tmp_path / "*.jsonl"), schema="n bigint")
        )


async def test_a_location_without_its_mark_is_damaged(tmp_path: Path) -> None:
    """It read as none at all, and was made anew over what is there."""
    location = await fed(tmp_path, runs=1)
    (tmp_path / "lake" / "tidelog.json").unlink()

    for create in (False, True):
        with pytest.raises(CorruptionError, match=r"tidelog\.json is gone from .* restore"):
            await open_location(str(tmp_path / "lake"), create=create)
    assert not (tmp_path / "lake" / "tidelog.json").exists()
    await location.store.put("tidelog.json", b'{"format":1,"created_us":1,"consensus":"store"}')
    await (await open_location(str(tmp_path / "lake"))).collection("c")


async def test_a_location_of_logs_and_shards_alone_has_no_sources(tmp_path: Path) -> None:
    """A shard that somebody made by its name is nothing that a source writes."""
    location = await open_location(str(tmp_path / "lake"), create=True)
    shard = location.shard("s1", schema=SCHEMA)
    await shard.compare_and_append(None, 0, 1)
    await location.create_log("orders")

    with pytest.raises(NoSuchCollection, match="there are none yet"):
        await location.collection("c")


async def test_a_shard_that_has_a_rollup_was_written(tmp_path: Path) -> None:
    """Nothing but a record of the state leads to one, whatever died on the way."""
    location = await open_location(str(tmp_path / "lake"), create=True)
    shard = location.shard("s1", schema=SCHEMA)
    for time in range(66):
        await shard.compare_and_append(None, time, time + 1)
    lose(tmp_path, "s1")

    with pytest.raises(CorruptionError, match=LOST.format("s1", "s1")):
        await (await open_location(str(tmp_path / "lake"))).shard("s1").refresh()
