"""Files that change between listing and binding: the ingester binds none of them and continues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kit.sources import ingested, lake_of, numbers, write_numbers
from tidelog.collection.source import files, still_there
from tidelog.collection.source.files import FilesSource


def after_listing(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Run ``change`` once, after the next listing."""
    head, changes = FilesSource.head, [change]

    async def late(source: FilesSource) -> object:
        found = await head(source)
        while changes:
            changes.pop()()
        return found

    monkeypatch.setattr(FilesSource, "head", late)


async def test_a_file_that_grew_and_is_archived_meanwhile_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ingester keeps the rows already taken, and binds no more of the file."""
    await lake_of(tmp_path)
    file = write_numbers(tmp_path / "in" / "a.jsonl", 1)
    await ingested(tmp_path)
    write_numbers(file, 1, 2)
    write_numbers(tmp_path / "in" / "b.jsonl", 3)
    after_listing(monkeypatch, file.unlink)

    await ingested(tmp_path)
    assert await numbers(tmp_path) == [1, 3]


@pytest.mark.parametrize("what", ["gone", "replaced"])
@pytest.mark.parametrize("page", [1, 0], ids=["listed", "asked for"])
async def test_an_object_that_goes_between_listing_and_binding_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, page: int
) -> None:
    """The ingester binds the other files, and leaves this one to the next listing."""
    monkeypatch.setattr(files, "NEW_US", 0)
    monkeypatch.setattr(still_there, "_PAGE", page)
    await lake_of(tmp_path)
    file = write_numbers(tmp_path / "in" / "a.jsonl", 1)
    write_numbers(tmp_path / "in" / "b.jsonl", 3)
    write_numbers(tmp_path / "in" / "c.jsonl", 5)
    after_listing(
        monkeypatch, file.unlink if what == "gone" else lambda: (write_numbers(file, 4), None)[1]
    )

    first = await ingested(tmp_path, versioned=True)
    assert list(first.waiting) == ["a.jsonl"]
    assert await numbers(tmp_path) == [3, 5]
    second = await ingested(tmp_path, versioned=True)
    assert second.waiting == {}
    assert await numbers(tmp_path) == ([3, 5] if what == "gone" else [3, 4, 5])


async def test_what_was_just_listed_is_bound_without_another_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second look at a listed file would cost a request per thousand files."""
    await lake_of(tmp_path)
    write_numbers(tmp_path / "in" / "a.jsonl", 1)
    monkeypatch.setattr(files, "find_lost", None)  # A call of it raises TypeError.

    assert (await ingested(tmp_path, versioned=True)).rows == 1


async def test_a_file_that_grew_and_was_renamed_while_rows_wait_goes_on(tmp_path: Path) -> None:
    """The ingester reads the file's rows under the new name, each exactly once."""
    await lake_of(tmp_path, time_column="at", lateness="10s")
    file, other = (tmp_path / "in" / f"{name}.jsonl" for name in "ab")
    write_numbers(file, 1, 2, 30)
    await ingested(tmp_path)
    with file.open("a") as sink:
        sink.write('{"n": 31, "at": 31000}\n')
    file.rename(other)

    await ingested(tmp_path, final=True)
    assert await numbers(tmp_path) == [1, 2, 30, 31]
