"""Skipped files: every ingester continues permanently without a file that is gone or changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.sources import bound, contents_in, ingested, lake_of, write_numbers
from tidelog.collection.ingest.status import source_status
from tidelog.collection.source.binding import Binding
from tidelog.errors import DataDiffers, GoneError, SourceRewritten, UsageError
from tidelog.location import Location


async def made(folder: Path, *, shards: int = 1) -> Location:
    given = {"schema": "n bigint", "key": ("n",), "envelope": "upsert", "shards": shards}
    return await lake_of(folder, "*.jsonl", **given)


@pytest.mark.parametrize("spoil", ["gone", "changed"])
async def test_a_binding_whose_file_is_gone_or_changed_is_finished_without_it(
    tmp_path: Path, spoil: str
) -> None:
    """The error names the command. The range is one bad row, and other files are rows."""
    write_numbers(tmp_path / "a.jsonl", 1, 2)
    write_numbers(tmp_path / "b c.jsonl", 3)
    location = await made(tmp_path)
    await bound(location)
    if spoil == "gone":
        (tmp_path / "b c.jsonl").unlink()
    else:
        write_numbers(tmp_path / "b c.jsonl", 4)
    with pytest.raises((GoneError, SourceRewritten), match=r"source skip c 'b c\.jsonl'$"):
        await ingested(tmp_path)
    with pytest.raises(UsageError, match="does not block the source"):
        await location.sources.skip("c", "a.jsonl")

    await location.sources.skip("c", "b c.jsonl")
    summary = await ingested(tmp_path)
    assert (summary.rows, summary.bad, summary.left_bytes) == (2, 1, 0)
    assert await contents_in(tmp_path) == ["{'n': 1}", "{'n': 2}"]
    (bad,) = await contents_in(tmp_path, "c_errors")
    assert "'b c.jsonl'" in bad
    assert "'tidelog source skip'" in bad
    # A later file of the same name is another file.
    write_numbers(tmp_path / "b c.jsonl", 5, 6)
    write_numbers(tmp_path / "d.jsonl", 7)
    assert (await ingested(tmp_path)).rows == 3
    with pytest.raises(UsageError, match="is already skipped"):
        await location.sources.skip("c", "b c.jsonl")
    status = await source_status(await location.sources.ingester("c"))
    assert list(status.skipped) == ["b c.jsonl"]
    assert status.left_bytes == 0


async def test_a_rewritten_file_stops_nothing(tmp_path: Path) -> None:
    """The committed rows stay. The ingester reports the new file as another one."""
    write_numbers(tmp_path / "a.jsonl", 1, 2)
    location = await made(tmp_path)
    await ingested(tmp_path)
    write_numbers(tmp_path / "a.jsonl", 3, 4, 5)
    write_numbers(tmp_path / "b.jsonl", 6)

    summary = await ingested(tmp_path)
    assert (summary.rows, summary.bad, summary.left_bytes) == (4, 0, 0)
    assert "rows that both files have occur twice" in summary.notes["a.jsonl"]
    with pytest.raises(UsageError, match="cannot be skipped"):
        await location.sources.skip("c", "a.jsonl")
    assert await contents_in(tmp_path) == [f"{{'n': {n}}}" for n in range(1, 7)]


async def test_a_skip_of_an_older_version_skips_the_name(tmp_path: Path) -> None:
    """The catalog of an older version stores only a path, and it skips that name permanently."""
    write_numbers(tmp_path / "a.jsonl", 1)
    location = await made(tmp_path)
    await ingested(tmp_path)
    await location.controller.skip_files("c", ["b.jsonl"])
    write_numbers(tmp_path / "b.jsonl", 2)

    assert (await ingested(tmp_path)).rows == 0
    assert list((await source_status(await location.sources.ingester("c"))).skipped) == ["b.jsonl"]


async def test_a_file_that_blocks_nothing_cannot_be_skipped(tmp_path: Path) -> None:
    """A file that blocks nothing gets one message, whether new, waiting, deleted or unknown."""
    write_numbers(tmp_path / "a.jsonl", 1)
    write_numbers(tmp_path / "gone.jsonl", 2)
    location = await made(tmp_path)
    await ingested(tmp_path)
    (tmp_path / "gone.jsonl").unlink()
    write_numbers(tmp_path / "new.jsonl", 3)
    (tmp_path / "torn.jsonl").write_text('{"n":')

    for name in ("a.jsonl", "gone.jsonl", "new.jsonl", "torn.jsonl", "none.jsonl"):
        with pytest.raises(UsageError, match="cannot be skipped: 'tidelog source status c'"):
            await location.sources.skip("c", name)
    assert (await ingested(tmp_path)).rows == 1


async def test_an_ingester_that_had_the_file_is_no_error(tmp_path: Path) -> None:
    """The two ingesters compute other rows, and the first commit wins."""
    write_numbers(tmp_path / "a.jsonl", 1)
    location = await made(tmp_path, shards=2)
    early, binding = await bound(location)
    computed = await early._compute(binding)
    (tmp_path / "a.jsonl").unlink()
    await location.sources.skip("c", "a.jsonl")
    await ingested(tmp_path)

    won, unchecked, _ = await early._commit(binding, computed)
    assert won == 0
    assert unchecked
    assert await contents_in(tmp_path) == []


async def test_other_data_without_a_skipped_file_is_still_an_error(tmp_path: Path) -> None:
    """Two versions of the code could otherwise compute differently without an error."""
    write_numbers(tmp_path / "a.jsonl", 1)
    location = await made(tmp_path)
    early, binding = await bound(location)
    await ingested(tmp_path)
    write_numbers(tmp_path / "other.jsonl", 2)
    other = await location.sources.ingester("c")
    plan = await other.plan(await other.source.head(), other.upper.time)
    assert plan is not None
    wrong = await other._compute(Binding(binding.lower, binding.upper, plan.ranges))

    with pytest.raises(DataDiffers):
        await early._commit(binding, wrong)


async def test_a_file_that_only_has_another_name_cannot_be_skipped(tmp_path: Path) -> None:
    """The rows are in, so no ingester reads the binding of the new name."""
    first = write_numbers(tmp_path / "a.jsonl", 1, 2)
    location = await made(tmp_path)
    await ingested(tmp_path)
    first.rename(tmp_path / "b.jsonl")
    write_numbers(tmp_path / "c.jsonl", 3)
    ingester = await location.sources.ingester("c")
    lower = ingester.upper.time
    plan = await ingester.plan(await ingester.source.head(), lower)
    assert plan is not None
    assert {found.path for found in plan.ranges} == {"b.jsonl", "c.jsonl"}
    await ingester._check_there()
    await ingester._mint(plan, lower, lower + 1_000)
    (tmp_path / "b.jsonl").unlink()

    with pytest.raises(UsageError, match="does not block the source"):
        await location.sources.skip("c", "b.jsonl")
    await ingested(tmp_path)
    assert await contents_in(tmp_path) == ["{'n': 1}", "{'n': 2}", "{'n': 3}"]
