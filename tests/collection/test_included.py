"""Columns of a source next to the fields of its text, messages without text, and secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.clocks import SwiftClock
from kit.renditions import handle_of
from kit.shelf_kind import Row, Shelf, empty_shelves
from kit.shelf_kind import shelf_row as row
from kit.sources import ingest, table_of
from tidelog import RenditionSpec, SourceSpec
from tidelog.collection.source.kind import OpenedWith
from tidelog.collection.source.kinds import register_kind
from tidelog.errors import UsageError
from tidelog.location import Location, open_location
from tidelog.store.memory import MemoryStore


@pytest.fixture(autouse=True)
def _empty_shelves() -> Iterator[None]:
    with empty_shelves():
        yield


def text(**fields: object) -> bytes:
    return json.dumps(fields).encode()


async def location_with(**asked: Any) -> Location:
    store = MemoryStore(name="memory://")
    location = await open_location("memory://", create=True, clock=SwiftClock(), store=store)
    spec = {"name": "s", "kind": "shelf", "format": "json", **asked}
    await location.sources.create(SourceSpec(**spec))
    return location


async def contents(location: Location, name: str = "s") -> list[dict[str, Any]]:
    table = (await table_of(location, name)).drop_columns(["_diff"])
    return sorted(table.to_pylist(), key=str)


async def test_columns_of_the_source_come_next_to_the_fields_of_its_text() -> None:
    """A column keeps its type, and can get another name."""
    Shelf.rows["a"] = [row(n, 10 * n, body=text(v=f"x{n}")) for n in range(3)]
    location = await location_with(include=("k", "at=when"))

    await ingest(location, "s")

    assert await contents(location) == [{"v": f"x{n}", "k": n, "when": 10 * n} for n in range(3)]


async def test_a_given_schema_decides_the_types_of_included_columns() -> None:
    """A column that the schema lacks keeps its own type."""
    Shelf.rows["a"] = [row(1, 2, body=text(v=1))]
    location = await location_with(include=("k", "at"), schema="k varchar, v int")

    await ingest(location, "s")

    assert await contents(location) == [{"k": "1", "v": 1, "at": 2}]


@pytest.mark.parametrize("bytes_max", [10, 10**6])
async def test_a_message_without_text_deletes_the_row_of_its_key(bytes_max: int) -> None:
    """A later message of the key adds its row again. An empty text is a bad row."""
    bodies = [text(v=1), text(v=2), None, text(v=3), b"", None]
    keys = [1, 2, 1, 1, 2, 7]
    Shelf.rows["a"] = [
        row(k, n, body=body) for n, (k, body) in enumerate(zip(keys, bodies, strict=True))
    ]
    location = await location_with(
        include=("k",), envelope="upsert", key=("k",), schema="k bigint, v int"
    )

    await ingest(location, "s", bytes_max=bytes_max)

    assert await contents(location) == [{"k": 1, "v": 3}, {"k": 2, "v": 2}]
    bad = await contents(location, "s_errors")
    assert [(one["offset"], one["reason"]) for one in bad] == [(4, "the record is empty")]


async def test_a_key_in_the_text_needs_the_text() -> None:
    """Then a message without text names no key, so it is a bad row."""
    Shelf.rows["a"] = [row(1, 1, body=text(v=1)), row(2, 2)]
    location = await location_with(
        include=("k",), envelope="upsert", key=("k", "v"), schema="k bigint, v int"
    )

    await ingest(location, "s")

    assert await contents(location) == [{"k": 1, "v": 1}]
    assert [one["offset"] for one in await contents(location, "s_errors")] == [1]


async def test_a_late_message_does_not_return_a_deleted_row() -> None:
    """With times from the data, the ingester remembers the deletion of a key."""
    Shelf.rows["a"] = [row(1, 100, body=text(v=1)), row(1, 300), row(2, 400, body=text(v=2))]
    asked = {"include": ("k", "at"), "envelope": "upsert", "key": ("k",), "time_column": "at"}
    location = await location_with(**asked, schema="k bigint, at bigint, v int")
    await ingest(location, "s")

    Shelf.rows["a"] += [row(1, 200, body=text(v=9)), row(2, 500), row(2, 450, body=text(v=9))]
    await ingest(location, "s")

    assert await contents(location) == []
    assert await contents(location, "s_errors") == []


async def test_a_row_is_bad_once_if_its_text_or_its_column_is_bad() -> None:
    """The bad row has the address and the text of the message."""
    Shelf.rows["a"] = [
        row(5, 1, body=text(v=1)),
        row(500, 1, body=text(v=2)),
        row(6, 1, body=b"{"),
        row(600, 1, body=b"["),
    ]
    location = await location_with(include=("k",), schema="k tinyint, v int")

    await ingest(location, "s")

    assert await contents(location) == [{"k": 5, "v": 1}]
    bad = await contents(location, "s_errors")
    assert [(one["offset"], one["text"]) for one in bad] == [
        (1, '{"v": 2}'),
        (2, "{"),
        (3, "["),
    ]


async def test_lines_of_text_and_csv_can_have_a_key() -> None:
    """The text of the newest message of a key is its row."""
    Shelf.rows["a"] = [row(k, 1, body=body) for k, body in [(1, b"a,b"), (2, b"c,d"), (1, b"e,f")]]
    location = await location_with(format="text", include=("k",), envelope="upsert", key=("k",))
    csv = SourceSpec(name="c", kind="shelf", format="csv", include=("k",), schema="x text, y text")
    await location.sources.create(csv)

    await ingest(location, "s")
    await ingest(location, "c")

    assert await contents(location) == [{"k": 1, "line": "e,f"}, {"k": 2, "line": "c,d"}]
    found = sorted((one["k"], one["x"], one["y"]) for one in await contents(location, "c"))
    assert found == [(1, "a", "b"), (1, "e", "f"), (2, "c", "d")]


@pytest.mark.parametrize("is_keyed", [False, True])
async def test_messages_can_stay_as_they_are(is_keyed: bool) -> None:
    """Bytes of any kind are a row. A message without them is a null, or deletes its key."""
    bodies = [b"two\nlines", None, b"\xff\x00", b"", b"last"]
    Shelf.rows["a"] = [row(n % 2, 1, body=body) for n, body in enumerate(bodies)]
    keyed: dict[str, Any] = {"include": ("k",), "envelope": "upsert", "key": ("k",)}
    location = await location_with(format="bytes", **(keyed if is_keyed else {}))

    await ingest(location, "s")

    found = [one["body"] for one in await contents(location)]
    assert sorted(found, key=str) == ([b"", b"last"] if is_keyed else sorted(bodies, key=str))
    assert await contents(location, "s_errors") == []


async def test_new_fields_become_columns_next_to_included_ones() -> None:
    """A field with the name of an included column is not taken for it."""
    Shelf.rows["a"] = [row(1, 1, body=text(v=1))]
    location = await location_with(include=("k",), evolve=True)
    await ingest(location, "s")

    Shelf.rows["a"].append(row(2, 1, body=text(v=2, k=77, w="new")))
    await ingest(location, "s")

    assert await contents(location) == [
        {"v": 1, "k": 1, "w": None},
        {"v": 2, "k": 2, "w": "new"},
    ]


async def test_a_rendition_includes_the_same_columns() -> None:
    """It reads the source again, with another key."""
    Shelf.rows["a"] = [row(n % 2, n, body=text(v=n)) for n in range(4)]
    location = await location_with(include=("k",), keep_bindings=True)
    await ingest(location, "s")

    spec = RenditionSpec(name="keyed", envelope="upsert", key=("k",))
    await location.renditions.create(spec, of="s")
    await ingest(location, "keyed")

    rendition = await handle_of(location, "keyed")
    rows = (await rendition.consolidated()).to_pylist()
    assert sorted((one["k"], one["v"]) for one in rows) == [(0, 2), (1, 3)]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"include": ("nothing",)}, "include= has 'nothing', which is not a column next to"),
        ({"include": ("body",)}, "include= has 'body', which is not a column next to"),
        ({"include": ("k", "at=k")}, "include= has two columns named 'k'"),
        ({"include": ("k=",)}, "write the name of a column, or COLUMN=NAME"),
        ({"include": ("k=v",)}, "the text has a field 'v', too: give the included column another"),
        ({"include": ("k",), "format": "rows"}, "the format 'rows' has all columns"),
        ({"include": ("k",), "schema": "k bigint"}, "schema= has no field of the text"),
        ({"format": "bytes", "schema": "b varchar"}, "format='bytes' has one column of bytes"),
        ({"format": "bytes", "evolve": True}, "makes a row of each message, with one column"),
        ({"include": "k"}, "include must be a tuple of str"),
    ],
)
async def test_a_wrong_include_is_refused(asked: dict[str, Any], said: str) -> None:
    """The message says what to write instead."""
    Shelf.rows["a"] = [row(1, 1, body=text(v=1))]
    with pytest.raises(UsageError) as refused:
        await location_with(**asked)
    assert said in str(refused.value)


async def test_a_source_of_files_has_nothing_to_include(tmp_path: Path) -> None:
    """Its rows have no columns next to their text."""
    (tmp_path / "a.json").write_bytes(text(v=1))
    Shelf.rows["a"] = [row(1, 1, body=text(v=1))]
    location = await location_with()
    spec = SourceSpec(name="f", files=tmp_path, include=("k",))
    with pytest.raises(UsageError, match="has no columns next to its text"):
        await location.sources.create(spec)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 20), st.one_of(st.none(), st.integers(0, 9))),
        max_size=25,
    ),
    st.lists(st.integers(0, 25), max_size=3),
    st.booleans(),
)
async def test_contents_are_those_of_a_dict(
    messages: list[tuple[int, int, int | None]], cuts: list[int], is_timed: bool
) -> None:
    """The newest message of each key decides, in ticks of any size, at any time."""
    with empty_shelves():
        asked: dict[str, Any] = {"time_column": "at"} if is_timed else {}
        location = await location_with(
            include=("k", "at"),
            envelope="upsert",
            key=("k",),
            schema="k bigint, at bigint, v int",
            **asked,
        )
        made: list[Row | None] = [
            row(k, at, body=None if v is None else text(v=v)) for k, at, v in messages
        ]
        for limit in sorted(cuts):
            Shelf.rows["a"] = made[:limit]
            await ingest(location, "s", bytes_max=30)
        Shelf.rows["a"] = made
        await ingest(location, "s", bytes_max=30)

        expected: dict[int, tuple[int, int | None]] = {}
        for k, at, v in messages:
            if not is_timed or k not in expected or at >= expected[k][0]:
                expected[k] = (at, v)
        there = await contents(location) if messages else []
        rows = {one["k"]: (one["at"], one["v"]) for one in there}
        assert rows == {k: found for k, found in expected.items() if found[1] is not None}


@register_kind
class Guarded(Shelf):
    """A shelf that needs a password."""

    name = "guarded"
    knows: ClassVar[Mapping[str, str]] = {"password": "env:NAME or file:PATH"}
    secrets = frozenset({"password"})
    seen: ClassVar[list[str | None]] = []

    def __init__(self, opening: OpenedWith) -> None:
        super().__init__(opening)
        self.seen.append(opening.secret("password"))


async def test_a_secret_is_named_and_never_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable or a file has it. The setting has the place only."""
    Shelf.rows["a"] = [row(1, 1, body=text(v=1))]
    monkeypatch.setenv("SHELF_PASSWORD", "open sesame")
    (tmp_path / "password").write_text("open barley\n")
    location = await location_with(kind="guarded", settings={"password": "env:SHELF_PASSWORD"})
    assert Guarded.seen[-1] == "open sesame"
    there = SourceSpec(
        name="f", kind="guarded", settings={"password": f"file:{tmp_path / 'password'}"}
    )
    await location.sources.create(there)
    assert Guarded.seen[-1] == "open barley"

    stored = [one.settings for one in (await location.controller.catalog()).sources.values()]
    assert "sesame" not in str(stored)

    monkeypatch.delenv("SHELF_PASSWORD")
    with pytest.raises(UsageError, match="set SHELF_PASSWORD in its environment"):
        await ingest(location, "s")


@pytest.mark.parametrize(
    ("password", "said"),
    [
        ("open sesame", "would be stored, so it must not have the secret itself"),
        ("env:NO_SUCH_VARIABLE", "set NO_SUCH_VARIABLE in its environment"),
        ("file:/no/such/file", "names a file that this process cannot read"),
    ],
)
async def test_a_secret_that_cannot_be_had_is_refused(password: str, said: str) -> None:
    """The message does not repeat a password."""
    with pytest.raises(UsageError) as refused:
        await location_with(kind="guarded", settings={"password": password})
    assert said in str(refused.value)
    assert "sesame" not in str(refused.value)
