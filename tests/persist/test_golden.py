"""T61: a location stored by an earlier version can be read, checked and written.

tests/golden/location.zip was made by `kit.golden_location`, before the shards of a source shared an
object; tests/golden/groups.zip was made after it. Each holds each stored form of shards.
These are records and rollups with two schemas, holds of each kind, claims and named writers. There
are also parts inline and as objects, a dropped shard, transactions, and a source with its
catalog.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from kit.golden_location import EVOLVED, check_stored_as_then, make, rows
from kit.sources import make_shards_alone, run_once
from tidelog.errors import AsOfBeforeSince
from tidelog.location import Location, open_location
from tidelog.persist.states.state import HoldKind
from tidelog.persist.states.transition import Verdict

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
ARCHIVES = ("location.zip", "groups.zip")
CONTENTS = [("b", None, None, 1), ("a", 2, None, 1), ("c", 3, None, 1), ("d", 4, "new", 1)]


@pytest.fixture(params=ARCHIVES)
async def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    with zipfile.ZipFile(GOLDEN / request.param) as packed:
        packed.extractall(tmp_path)
    return await open_location(tmp_path)


def tuples(table: pa.Table) -> set[tuple[object, ...]]:
    return set(zip(*(table.column(n).to_pylist() for n in table.column_names), strict=True))


async def test_a_shard_of_then_is_read_now(golden: Location) -> None:
    """Every retained time, hold, writer, claim and schema of the old shard is readable."""
    shard = golden.shard("prices")
    state = await shard.refresh()
    assert tuples(await (await shard.snapshot(78)).to_arrow()) == set(CONTENTS)
    early = await (await shard.snapshot(3)).to_arrow(consolidated=True)
    assert tuples(early) == {("a", 2, None, 1), ("b", None, None, 2)}
    assert (state.since, state.upper, len(state.batches)) == (1, 79, 2)
    kinds = {name.partition("-")[0]: hold.kind for name, hold in state.holds.items()}
    assert kinds == {
        "history": HoldKind.CRITICAL,
        "sink": HoldKind.CRITICAL,
        "term": HoldKind.FIXED,
    }
    assert state.holds["sink"].token == 3
    assert {name: (w.number, w.upper) for name, w in state.writers.items()} == {"till": (0, 8)}
    assert [claim.who for claim in state.claims] == ["somebody"]
    assert [schema.names for schema in await shard.schemas()] == [["k", "v"], EVOLVED.names]


async def test_all_of_it_is_checked_and_nothing_is_found_wrong(golden: Location) -> None:
    """A scrub of the old location is clean: bytes, sums, bounds, and rollups against changes."""
    maintenance = golden.maintenance
    found = [one async for one in maintenance.scrub(await maintenance.groups())]
    assert {one.name for one in found} >= {"prices", "over", "giro", "savings", "seen"}
    assert [(one.name, one.found.damages) for one in found if not one.found.is_clean] == []


async def test_it_is_written_on(golden: Location) -> None:
    """A writer can append to the old shard and compact it."""
    shard = golden.shard("prices")
    await shard.refresh()
    done = await shard.compare_and_append(rows(EVOLVED, ("e", 5, None, 79, 1)), 79, 80)
    assert done.verdict is Verdict.COMMITTED
    await shard.compact(full=True)
    wanted = {*CONTENTS, ("e", 5, None, 1)}
    assert tuples(await (await golden.shard("prices").snapshot(79)).to_arrow()) == wanted


async def test_transactions_of_then_go_on(golden: Location) -> None:
    """The old transaction group reads both shards, and commits a new transaction."""
    bank = golden.shards.transactions("bank")
    begun = await bank.begin()
    found = await (await begun.snapshot("giro")).to_arrow()
    assert tuples(found) == {("ann", 0, 1), ("ann", 1, 1)}
    begun.write("savings", pa.table({"k": ["bob"], "v": [1]}))
    assert (await begun.commit()).verdict is Verdict.COMMITTED
    now = (await bank.upper()).time - 1
    held = tuples(await (await bank.snapshot("savings", now)).to_arrow())
    assert held == {("ann", 0, 1), ("ann", 10, 1), ("bob", 1, 1)}


async def test_a_collection_of_then_is_read_and_what_is_over_is_over(golden: Location) -> None:
    """A collection's newest contents and `since` are readable. A dropped shard has no time."""
    collection = await golden.collection("seen")
    found = await collection.consolidated()
    assert {*found.column("key").to_pylist()} == {0, 1, 2, 3, 4}
    assert collection.since.time > 0
    with pytest.raises(AsOfBeforeSince, match="no time is readable"):
        await golden.shard("over").snapshot(1)


@pytest.mark.parametrize("archive", ARCHIVES)
async def test_what_is_stored_now_is_stored_as_it_was_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archive: str
) -> None:
    """Stored forms are equal byte for byte, except Parquet, so no form changes by accident."""
    if archive == "location.zip":
        make_shards_alone(monkeypatch)
    await check_stored_as_then(tmp_path, GOLDEN / archive, make)


async def test_a_source_of_then_is_ingested_on(tmp_path: Path) -> None:
    """Its shards keep an object each, and the next ticks write all of them."""
    with zipfile.ZipFile(GOLDEN / "location.zip") as packed:
        packed.extractall(tmp_path)
    location = await open_location(tmp_path)
    ingester = await location.sources.ingester("seen")
    assert len(ingester.groups) == len(ingester.written) > 1
    before = ingester.remap.state.upper or 0
    await run_once(ingester)
    assert (ingester.remap.state.upper or 0) >= before
    assert not ingester.is_behind
