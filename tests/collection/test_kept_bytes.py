"""Bytes kept by a survey are used only for the file version that they were read from."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kit.sources import make_source, numbers
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.source.files import FilesSource
from tidelog.collection.source.port import Plan
from tidelog.collection.spec_types import SourceSpec
from tidelog.location import open_location


def rows(*numbers: int) -> bytes:
    return "".join(f'{{"n": {n}, "at": {n}}}\n' for n in numbers).encode()


def write(path: Path, *numbers: int) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"n": numbers, "at": numbers}), path)
    else:
        path.write_bytes(gzip.compress(rows(*numbers)) if path.suffix == ".gz" else rows(*numbers))


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
    """The rows are those of the second binding.

    The file changes between the surveys of the two ingesters.
    """
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / f"a{suffix}"
    write(file, 1, 2, 3)
    spec = SourceSpec(
        name="c",
        files=str(tmp_path / "in"),
        format="parquet" if suffix == ".parquet" else "json",
        schema="n bigint, at bigint",
        time_column="at" if timed else None,
    )
    await make_source(tmp_path / "lake", spec)
    one, other = [
        await (await open_location(str(tmp_path / "lake"))).sources.ingester("c") for _ in "12"
    ]
    for each in (one, other):
        assert isinstance(each.source, FilesSource)
        each.source.is_versioned = versioned
    mint, now = Ingester._mint, (4, 5, 6) if change == "another" else (1, 2, 3, 4, 5)

    async def late(self: Ingester, plan: Plan, lower: int, upper: int) -> None:
        if self is one:
            if change == "more" and suffix == ".jsonl.gz":
                with file.open("ab") as more:
                    more.write(gzip.compress(rows(4, 5)))
            else:
                write(file, *now)
            theirs = await other.plan(await other.source.head(), lower)
            assert theirs is not None
            await mint(other, theirs, lower, max(upper, theirs.upper or 0))
        await mint(self, plan, lower, upper)

    monkeypatch.setattr(Ingester, "_mint", late)
    await one.tick(await one.source.head())

    assert await numbers(tmp_path) == sorted(now)
