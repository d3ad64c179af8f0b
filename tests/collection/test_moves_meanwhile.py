"""Files renamed during a look, or with two ingesters: each row is in once."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from kit.sources import ingested, lake_of, numbers, reopened, run_once, write_numbers
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.files import FilesSource
from tidelog.collection.source.identified import RenameSearch, Search
from tidelog.collection.source.moves import Moves
from tidelog.collection.source.survey_facts import FileCandidate, FileSurvey
from tidelog.store.local.store import LocalStore
from tidelog.store.port import Entry

write = partial(write_numbers, mode="a")


async def ingester(folder: Path) -> Ingester:
    """Return an ingester as another process opens it."""
    found = await (await reopened(folder)).sources.ingester("c")
    await found.refresh()
    return found


@pytest.mark.parametrize("timed", [False, True])
async def test_a_move_is_forgotten_where_another_ingester_went_on_under_the_old_name(
    tmp_path: Path, timed: bool
) -> None:
    """A remembered move is undone, because another ingester has an older listing."""
    await lake_of(tmp_path, time_column="at" if timed else None)
    old, new = (tmp_path / "in" / f"{name}.jsonl" for name in "ab")
    write(old, 1)
    await ingested(tmp_path)
    write(old, 2, 3)
    one, other = await ingester(tmp_path), await ingester(tmp_path)
    older = await other.source.head()
    old.rename(new)
    newer = await one.source.head()
    assert await one.plan(newer, one.upper.time) is not None
    new.rename(old)
    await other.tick(older)
    old.rename(new)

    await one.tick(newer)
    await ingested(tmp_path)
    assert await numbers(tmp_path) == [1, 2, 3]


async def test_a_listing_that_is_older_than_what_was_taken_takes_nothing_again(
    tmp_path: Path,
) -> None:
    """Another ingester's tick after the listing took more of the file."""
    await lake_of(tmp_path)
    old, new = (tmp_path / "in" / f"{name}.jsonl" for name in "ab")
    write(old, 1)
    await ingested(tmp_path)
    one, other = await ingester(tmp_path), await ingester(tmp_path)
    old.rename(new)
    older = await one.source.head()
    new.rename(old)
    write(old, 2, 3)
    await other.tick(await other.source.head())
    old.rename(new)
    await one.refresh()

    await one.tick(older)
    await ingested(tmp_path)
    assert await numbers(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("timed", [False, True])
async def test_a_file_that_goes_while_it_is_looked_at_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timed: bool
) -> None:
    """The file may be a renamed one, which no process can decide once it is gone."""
    await lake_of(tmp_path, time_column="at" if timed else None)
    a, b, c = (tmp_path / "in" / f"{name}.jsonl" for name in "abc")
    write(a, 1, 2)
    await ingested(tmp_path)
    a.rename(b)
    find = Search.run

    async def find_later(search: Search, new: Sequence[FileSurvey]) -> RenameSearch:
        if b.exists():
            b.rename(c)
        return await find(search, new)

    monkeypatch.setattr(Search, "run", find_later)
    first = await ingested(tmp_path)
    second = await ingested(tmp_path)

    assert await numbers(tmp_path) == [1, 2]
    assert list(first.waiting) == [b.name]
    assert second.waiting == {}


def after_entry(monkeypatch: pytest.MonkeyPatch, key: str, change: Callable[[], object]) -> None:
    """Run ``change`` once, after a listing has passed the file ``key``."""
    listed, changes = LocalStore.list, [change]

    async def late(
        store: LocalStore, prefix: str, *, after: str | None = None
    ) -> AsyncIterator[Entry]:
        async for entry in listed(store, prefix, after=after):
            yield entry
            if entry.key == key and changes:
                changes.pop()()

    monkeypatch.setattr(LocalStore, "list", late)


@pytest.mark.parametrize("more", [(), (3,)], ids=["the same", "more"])
async def test_a_file_that_moves_to_another_place_while_they_are_listed_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[int, ...]
) -> None:
    """The listing contains both names of the file."""
    await lake_of(tmp_path, "inbox", "later")
    old, new = (tmp_path / place / "1.jsonl" for place in ("inbox", "later"))
    write(old, 1, 2)
    await ingested(tmp_path)

    def move() -> None:
        write(old.rename(new), *more)

    after_entry(monkeypatch, "inbox/1.jsonl", move)
    await ingested(tmp_path)
    assert new.exists()
    await ingested(tmp_path)
    assert await numbers(tmp_path) == [1, 2, *more]


async def test_a_file_that_gets_its_old_name_back_while_it_is_listed_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing contains both names. Under one, the ingester has taken only a part."""
    await lake_of(tmp_path, "first", "second")
    one, other = (tmp_path / place / "1.jsonl" for place in ("first", "second"))
    write(other, 1)
    await ingested(tmp_path)
    write(other.rename(one), 2)
    await ingested(tmp_path)

    after_entry(monkeypatch, "first/1.jsonl", lambda: one.rename(other))
    await ingested(tmp_path)
    assert other.exists()
    await ingested(tmp_path)
    assert await numbers(tmp_path) == [1, 2]


@pytest.mark.parametrize("timed", [False, True])
async def test_what_is_not_there_when_it_is_bound_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timed: bool
) -> None:
    """The bytes are at hand, but a later run could not determine their file."""
    await lake_of(tmp_path, time_column="at" if timed else None)
    old, new = write(tmp_path / "in" / "b.jsonl", 1), tmp_path / "in" / "c.jsonl"
    find = Search.run

    async def find_earlier(search: Search, files: Sequence[FileSurvey]) -> RenameSearch:
        found = await find(search, files)
        if old.exists():
            old.rename(new)
            os.utime(new, (1, 1))
        return found

    monkeypatch.setattr(Search, "run", find_earlier)
    first = await ingested(tmp_path)
    assert list(first.waiting) == [old.name]
    await ingested(tmp_path)
    assert await numbers(tmp_path) == [1]


def learnt(moves: Moves, path: str, before: FileRange, *, identity: str) -> bool:
    asked = FileCandidate(path=path, start=0, limit=9, size_bytes=9, e_tag="d1")
    return moves.learn(asked, [before], identity=identity, skipped=frozenset())


def test_two_new_names_of_one_file_are_both_known() -> None:
    """A file renamed during a listing has two new names. A copy with its date is another file."""
    moves = Moves()
    before = FileRange(path="a", start=0, limit=9, size_bytes=9, e_tag="i1|d1")
    assert learnt(moves, "copy", before, identity="i2")
    assert learnt(moves, "b", before, identity="i1")
    assert learnt(moves, "c", before, identity="i1")
    assert not learnt(moves, "copy", before, identity="i2")
    assert {path: found.moved for path, found in moves.found.items()} == {"b": "a", "c": "a"}


def test_a_name_that_a_file_had_for_a_moment_is_not_recorded() -> None:
    """No binding would state the origin of a name that no listing shows."""
    moves = Moves()
    before = FileRange(path="a", start=0, limit=9, size_bytes=9, e_tag="i1|d1")
    assert learnt(moves, "b", before, identity="i1")
    assert learnt(moves, "c", moves.found["b"], identity="i1")
    assert {path: found.moved for path, found in moves.found.items()} == {"c": "a"}


async def test_a_second_name_of_a_file_is_not_a_move(tmp_path: Path) -> None:
    """Both names exist, so the ingester takes the file under both."""
    await lake_of(tmp_path)
    old = write(tmp_path / "in" / "a.jsonl", 1)
    await ingested(tmp_path)
    (tmp_path / "in" / "b.jsonl").hardlink_to(old)

    await ingested(tmp_path)
    assert await numbers(tmp_path) == [1, 1]


async def test_a_file_that_is_away_for_a_moment_is_taken_by_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is unchanged, so only another look finds that it can be taken."""
    await lake_of(tmp_path)
    file = write(tmp_path / "in" / "a.jsonl", 1)
    away = tmp_path / "a"
    head, moves = FilesSource.head, [lambda: file.rename(away)]

    async def late(source: FilesSource) -> object:
        found = await head(source)
        while moves:
            moves.pop()()
        return found

    monkeypatch.setattr(FilesSource, "head", late)
    one = await ingester(tmp_path)
    first = await run_once(one)
    away.rename(file)
    second = await run_once(one)

    assert list(first.waiting) == [file.name]
    assert (second.rows, second.waiting) == (1, {})
