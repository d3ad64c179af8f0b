"""Cursors of logs.

| scenario of wal3's | shown by |
| --- | --- |
| init, load, save, load; the writer's name is ours | test_a_cursor_is_made_moved_and_loaded |
| the intrinsic cursor: forward, no rollback, forced | test_back_only_by_force |
| a lost race | test_the_loser_of_a_race_gets_cursor_moved |
| names and paths | test_names_that_cannot_be, wal/test_cursors.py: test_names_that_chroma_cannot_list_are_refused |
| every crash and race with a collection | sim/test_collect.py: test_no_order_of_requests_breaks_a_hold |
"""  # noqa: E501

from __future__ import annotations

import json

import pytest

from kit.protocols import Kind, cursors_on
from tidelog.errors import CursorMoved, NoSuchCursor, UsageError
from tidelog.store.port import Store
from tidelog.wal.format.cursor import INTRINSIC, cursor_path
from tidelog.wal.gc.cursors import Cursors


async def log_with_cursors(kind: Kind, store: Store) -> tuple[Cursors, Cursors]:
    """Return the handles of two processes to the cursors of a log with ten records."""
    await kind.make(store)
    async with kind.writer(store) as writer:
        await writer.append([b"x"] * 10)
    one, other = (cursors_on(store, name) for name in ("one", "other"))
    return one, other


async def test_a_cursor_is_made_moved_and_loaded(kind: Kind, store: Store) -> None:
    """Two processes move one cursor in turn; the stored fields are wal3's."""
    one, other = await log_with_cursors(kind, store)
    with pytest.raises(NoSuchCursor):
        await one.load("reader")
    made = await one.create("reader", 3)
    assert (await other.load("reader")).position == 3
    moved = await one.save(made, 7)
    assert await other.load("reader") == moved
    again = await other.save(moved, 11)
    found = json.loads((await store.get("cursor/reader.json")).data)
    assert list(found) == ["position", "epoch_us", "writer"]
    assert found["position"] == {"offset": 11}
    assert found["writer"].startswith("other")
    assert {name: c.position for name, c in (await one.list()).cursors.items()} == {"reader": 11}
    assert again.position == 11
    for _ in range(2):
        await one.delete("reader")
    assert (await one.list()).cursors == {}
    with pytest.raises(NoSuchCursor):
        await other.load("reader")


async def test_the_loser_of_a_race_gets_cursor_moved(kind: Kind, store: Store) -> None:
    """The loser creates or moves nothing, also to the same position; the winner's cursor stays."""
    one, other = await log_with_cursors(kind, store)
    made = await one.create("reader", 3)
    for position in (3, 5):
        with pytest.raises(CursorMoved):
            await other.create("reader", position)
    moved = await other.save(made, 6)
    for position in (6, 8):
        with pytest.raises(CursorMoved):
            await one.save(made, position)
    assert await one.load("reader") == moved
    await one.delete("reader")
    with pytest.raises(CursorMoved):
        await other.save(moved, 9)
    assert (await one.list()).cursors == {}


async def test_back_only_by_force(kind: Kind, store: Store) -> None:
    """A cursor moves back only with ``allow_back``, and never out of the log."""
    one, _ = await log_with_cursors(kind, store)
    witness = await one.create(INTRINSIC, 1)
    witness = await one.save(witness, 6)
    with pytest.raises(UsageError, match=r"is before the cursor.*allow_back"):
        await one.save(witness, 5)
    assert await one.load(INTRINSIC) == witness
    witness = await one.save(witness, 5, allow_back=True)
    assert (await one.load(INTRINSIC)).position == 5
    for position in (0, 12):
        with pytest.raises(UsageError):
            await one.save(witness, position, allow_back=True)


async def test_a_cursor_on_a_log_that_goes_on(kind: Kind, store: Store) -> None:
    """A cursor may be right after the last record, also while the manifest is behind."""
    one, _ = await log_with_cursors(kind, store)
    witness = await one.create("reader", 11)
    async with kind.writer(store, name="more") as writer:
        await writer.append([b"y"])
        witness = await one.save(witness, 12)
        with pytest.raises(UsageError):
            await one.save(witness, 13)
    assert (await one.load("reader")).position == 12


async def test_names_that_cannot_be(kind: Kind, store: Store) -> None:
    """A name has letters, digits and underscores; a listing reports other objects as foreign."""
    one, _ = await log_with_cursors(kind, store)
    assert cursor_path("Reader_1") == "cursor/Reader_1.json"
    for name in ("", "a-b", "a b", "../x"):
        with pytest.raises(UsageError):
            await one.create(name, 1)
    await one.create("Reader_1", 2)
    await store.put("cursor/a-b.json", b"{}")
    listed = await one.list()
    assert (list(listed.cursors), listed.foreign) == (["Reader_1"], ["cursor/a-b.json"])
