"""Bytes kept by a survey are used only for the file version that they were read from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kit.sources import lake_of, numbers, reopened, write_numbers
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.source.files import FilesSource
from tidelog.collection.source.port import Plan
from tidelog.persist.handle.together import ShardAppend


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl.gz", ".jsonl"])
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("change", ["another", "more"])
async def test_what_another_ingester_bound_is_computed_as_it_is_now(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    versioned: bool,
    suffix: str,
    timed: bool,
    change: str,
) -> None:
    """The file changes between two surveys: the rows are those of the second binding."""
    kind = "parquet" if suffix == ".parquet" else "json"
    await lake_of(tmp_path, format=kind, time_column="at" if timed else None)
    file = write_numbers(tmp_path / "in" / f"a{suffix}", 1, 2, 3)
    one, other = [await (await reopened(tmp_path)).sources.ingester("c") for _ in "12"]
    for each in (one, other):
        assert isinstance(each.source, FilesSource)
        each.source.is_versioned = versioned
    mint, now = Ingester._mint, (4, 5, 6) if change == "another" else (1, 2, 3, 4, 5)

    async def late(
        self: Ingester, plan: Plan, lower: int, upper: int, rows: Sequence[ShardAppend] = ()
    ) -> bool:
        if self is one:
            if change == "more" and suffix == ".jsonl.gz":
                write_numbers(file, 4, 5, mode="a")
            else:
                write_numbers(file, *now)
            theirs = await other.plan(await other.source.head(), lower)
            assert theirs is not None
            await mint(other, theirs, lower, max(upper, theirs.upper or 0))
        return await mint(self, plan, lower, upper, rows)

    monkeypatch.setattr(Ingester, "_mint", late)
    await one.tick(await one.source.head())

    assert await numbers(tmp_path) == sorted(now)
