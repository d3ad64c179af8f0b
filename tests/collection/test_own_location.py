"""A location among a source's own files is refused, under any names of the two."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.sources import make_source, reopened, run_once
from tidelog.collection.source.files_head import refuse_own_location
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import UsageError
from tidelog.store.urls import split_globs


def is_refused(files: Path, location: Path, *others: Path) -> bool:
    url, patterns = split_globs([str(place) for place in (*others, files)])
    try:
        refuse_own_location(url, patterns[-1], str(location))
    except UsageError as error:
        return "in the source's folder" in str(error)
    return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a location in it; ``link`` leads to it, and ``out`` out of it."""
    (tmp_path / "in" / "lake").mkdir(parents=True)
    (tmp_path / "far" / "lake").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "out").symlink_to(tmp_path / "far")
    return tmp_path


@pytest.mark.parametrize("files", ["in", "link", "in/**/*.parquet", "link/*/status/*.json"])
@pytest.mark.parametrize("location", ["in/lake", "link/lake", "in/new", "link/new/deeper"])
def test_a_symbolic_link_hides_no_location(folder: Path, files: str, location: str) -> None:
    """Each run would otherwise ingest the location's own objects, and create more."""
    deep = files.startswith("link/*") and location.endswith("deeper")
    assert is_refused(folder / files, folder / location) != deep


def test_a_location_behind_a_link_among_the_files_is_refused(folder: Path) -> None:
    """A listing follows the link, so the files include a location outside the folder."""
    assert is_refused(folder / "link", folder / "in" / "out" / "lake")
    assert is_refused(folder / "in", folder / "link" / "out" / "new")


def test_a_location_outside_of_the_files_is_accepted(folder: Path) -> None:
    """A similar name, or a file pattern that excludes the location, is no reason to refuse it."""
    assert not is_refused(folder / "in", folder / "far" / "lake")
    assert not is_refused(folder / "in", folder / "in-2")
    assert not is_refused(folder / "link" / "*.jsonl", folder / "in" / "lake")


def test_the_root_of_a_disk_holds_every_location(folder: Path) -> None:
    """The root may be given alone, or be the common parent of several places."""
    lake = folder / "in" / "lake"
    assert is_refused(Path("/"), lake)
    assert is_refused(Path("/**/*.parquet"), lake)
    assert is_refused(folder / "in", lake, Path("/etc"))
    assert not is_refused(Path("/*.parquet"), lake)
    assert not is_refused(folder / "far", lake, Path("/etc"))


def test_each_of_several_places_is_checked_for_the_location(folder: Path) -> None:
    """Each place is checked, because a link may be in only one of them."""
    (folder / "more").mkdir()
    assert is_refused(folder / "link", folder / "in" / "lake", folder / "more")
    assert not is_refused(folder / "link", folder / "far" / "new-2", folder / "more" / "*.jsonl")


@pytest.mark.parametrize("schema", ["n bigint", None])
async def test_what_a_link_among_the_files_leads_to_is_not_taken(
    folder: Path, schema: str | None
) -> None:
    """The link may be older or newer than the location: names do not decide."""
    (folder / "in" / "a.jsonl").write_text('{"n": 1}\n')
    spec = SourceSpec(name="c", files=str(folder / "in"), schema=schema)
    await make_source(folder / "far" / "lake", spec)
    location = await reopened(folder / "far")

    for rows in (1, 0):
        summary = await run_once(await location.sources.ingester("c"))
        assert (summary.rows, summary.bad, summary.left_bytes) == (rows, 0, 0)
