"""Files of rows: json arrays and compressed text; and ``table merge``, which reads them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cli.conftest import Cli, refused
from kit.packing import packed
from tidelog.cli import row_files
from tidelog.cli.row_files import _large, _pieces

ROWS = [{"id": n, "item": f"i{n} ], [", "price": n / 2} for n in range(400)]
COLUMNS = "id bigint, item varchar, price double"


@pytest.fixture
def prices(cli: Cli) -> Cli:
    """A location with the table ``prices``, whose key is ``id``."""
    cli.done("table", "create", "prices", "--schema", COLUMNS, "--key", "id")
    return cli


def rows_of(cli: Cli, name: str = "prices") -> list[dict[str, Any]]:
    return cli.done("read", name, "--json").objects


def array_of(rows: list[dict[str, Any]], indent: int | None = None) -> bytes:
    return json.dumps(rows, indent=indent).encode()


@pytest.mark.parametrize("indent", [None, 2], ids=["one line", "many lines"])
@pytest.mark.parametrize("piece", [50, 1 << 20], ids=["pieces", "whole"])
def test_the_elements_of_an_array_are_rows(
    prices: Cli, monkeypatch: pytest.MonkeyPatch, indent: int | None, piece: int
) -> None:
    """An array may have any layout, and ends of reads may be anywhere in it."""
    monkeypatch.setattr(row_files, "READ_BYTES", piece)
    monkeypatch.setattr("tidelog.cli.feed.READ_BYTES", piece)
    prices.done(
        "table", "insert", "prices", given=b"\xef\xbb\xbf \n" + array_of(ROWS, indent) + b"\n\n"
    )

    assert rows_of(prices) == ROWS


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("format", ["json", "jsonl", "csv"])
def test_compressed_text_is_read(prices: Cli, suffix: str, format: str) -> None:
    """The ending before that of the compression names the format."""
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    if format == "json":
        text = array_of(ROWS).decode()
    if format == "csv":
        text = "id,item,price\n" + "".join(f'{r["id"]},"{r["item"]}",{r["price"]}\n' for r in ROWS)
    path = prices.folder / f"rows.{format}{suffix}"
    half = len(text) // 2
    path.write_bytes(packed(text.encode(), suffix, [half]))
    prices.done("table", "upsert", "prices", path)

    assert rows_of(prices) == ROWS


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.json", array_of(ROWS)[:-1], "its last ] is missing"),
        ("a.json", array_of(ROWS)[:-9], "its last ] is missing"),
        ("a.json", b'[{"id": 1}, 7]', "does not fit"),
        ("a.json", b'[{"id": 1}, {"id": [1]', "does not fit"),
        ("a.json", b'[{"id": 1, "x": 2}]', "'x' is not a column"),
        ("a.json.gz", packed(array_of(ROWS), ".gz")[:-20], "compressed data is incomplete"),
        ("a.csv.gz", b"id,item\n1,a\n", "cannot be read"),
        ("a.parquet.gz", packed(b"PAR1", ".gz"), "decompress it first"),
    ],
    ids=range(8),
)
def test_a_damaged_file_writes_nothing(
    prices: Cli, tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    """A file that was cut is not taken for a shorter one."""
    path = tmp_path / name
    path.write_bytes(data)

    refused(prices("table", "insert", "prices", path), words, "nothing was written")
    assert rows_of(prices) == []


async def test_a_read_that_ends_after_the_bracket_is_a_whole_array(tmp_path: Path) -> None:
    """White space may be all that a last read returns."""
    path = tmp_path / "a.json"
    path.write_bytes(b'[{"id": 1}]  \n')
    with (
        path.open("rb") as file,
        patch.object(row_files, "READ_BYTES", 11),
        patch("tidelog.cli.feed.READ_BYTES", 11),
    ):
        found = [one async for one in _large(_pieces(file.fileno(), None, io.BytesIO()))]

    assert found == [(b'[{"id": 1}]', False), (b"  \n", True)]


MERGES = [
    ((), [(1, "b"), (2, "a"), (3, "b")]),
    (("--when-matched", "ignore"), [(1, "a"), (2, "a"), (3, "b")]),
    (("--when-matched", "delete"), [(2, "a"), (3, "b")]),
    (("--when-matched", "delete", "--when-not-matched", "ignore"), [(2, "a")]),
]


@pytest.mark.parametrize(("options", "left"), MERGES, ids=str)
def test_a_merge_updates_deletes_inserts_or_ignores(
    prices: Cli, options: tuple[str, ...], left: list[tuple[int, str]]
) -> None:
    """The two options decide about the rows that match, and about the others."""
    prices.done(
        "table",
        "insert",
        "prices",
        given=array_of([{"id": 1, "item": "a"}, {"id": 2, "item": "a"}]),
    )
    given = array_of([{"id": 1, "item": "b"}, {"id": 3, "item": "b"}])
    done = prices.done("table", "merge", "prices", "-", *options, given=given)

    assert done.err.startswith("2 rows merged (")
    assert [(row["id"], row["item"]) for row in rows_of(prices)] == left


def test_a_merge_compares_the_columns_of_on(cli: Cli) -> None:
    """A table without a key needs them, and each row of the files has them."""
    cli.done("table", "create", "notes", "--schema", COLUMNS)
    cli.done(
        "table", "insert", "notes", given=array_of([{"id": 1, "item": "a"}, {"id": 2, "item": "b"}])
    )
    words = ("table", "merge", "notes", "-")
    cli.done(*words, "--on", "item", "--when-matched", "delete", given=array_of([{"item": "a"}]))
    missing = cli.run("--location", cli.location, *words, given=array_of([{"item": "b"}]))
    absent = cli.run(
        "--location", cli.location, *words, "--on", "id", "--format", "csv", given=b"item\nb\n"
    )
    unknown = cli("table", "merge", "notes", "--when-matched", "drop")

    refused(missing, "--on")
    refused(absent, "missing column 'id'")
    refused(unknown, "--when-matched", "'drop'")
    assert [(row["id"], row["item"]) for row in rows_of(cli, "notes")] == [(2, "b")]
