"""``tidelog table alter`` and ``tidelog source alter``: new and dropped columns, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Cli, refused

TEA, JAM = {"id": 1, "item": "tea", "price": 3.0}, {"id": 2, "item": "jam", "price": 8.0}


@pytest.fixture
def prices(cli: Cli) -> Cli:
    """A location with the table ``prices``, whose key is ``id``, and one row."""
    schema = "id bigint, item varchar, price double"
    cli.done("table", "create", "prices", "--schema", schema, "--key", "id")
    put(cli, TEA)
    return cli


def put(cli: Cli, row: dict[str, Any]) -> None:
    cli.done("table", "insert", "prices", given=json.dumps(row).encode())


def rows_of(cli: Cli) -> list[dict[str, Any]]:
    return cli.done("read", "prices", "--json").objects


def test_alter_adds_and_drops_columns(prices: Cli) -> None:
    """Old rows have null in a new column; a column with values is dropped only with --yes."""
    done = prices.done("table", "alter", "prices", "--add", "w double", "--add", "n int", "--json")
    assert done.object == {"table": "prices", "columns": ["id", "item", "price", "w", "n"]}
    put(prices, {**JAM, "w": 0.5})
    assert rows_of(prices) == [{**TEA, "w": None, "n": None}, {**JAM, "w": 0.5, "n": None}]

    prices.done("table", "alter", "prices", "--drop", "n")
    refused(prices("table", "alter", "prices", "--drop", "w"), "pass --yes to drop columns")
    prices.done("table", "alter", "prices", "--drop", "w", "--yes")
    assert rows_of(prices) == [TEA, JAM]
    prices.done("table", "alter", "prices", "--add", '"a, b" int, c int, d int, e int')
    done = prices.done("table", "alter", "prices", "--drop", '"a, b", c', "--drop", "e", "--json")
    assert done.object["columns"] == ["id", "item", "price", "d"]


def test_a_wrong_alter_is_refused(prices: Cli) -> None:
    """Each message names the option or the column, and the command changes nothing.

    The command does not ask for a yes to an alteration that it would refuse.
    """
    for given, words in {
        (): "--add",
        ("--add", "w"): "--add cannot be read at 'w'",
        ("--add", "a.b int"): "put names with other characters in double quotes",
        ("--add", "w money"): "--add cannot be read: 'money' is not a type; the types are",
        ("--add", "item int"): "has a column 'item' already",
        ("--drop", "x", "--yes"): "no column 'x'; the columns are id, item, price",
        ("--drop", "id", "--yes"): "'id' cannot be dropped, because it is in the key",
        ("--drop", "id"): "'id' cannot be dropped, because it is in the key",
    }.items():
        refused(prices("table", "alter", "prices", *given), words)
    assert "item" in prices.done("table", "describe", "prices").out


def test_alter_adds_and_drops_columns_of_a_source(cli: Cli, tmp_path: Path) -> None:
    """Later files fill a new column; a column with values is dropped only with --yes."""
    (tmp_path / "1.jsonl").write_text('{"id": 1}\n')
    cli.done("source", "create", "c", "--files", str(tmp_path / "*.jsonl"))
    (tmp_path / "2.jsonl").write_text('{"id": 2, "x": 5}\n')
    said = cli.ingest("c")
    assert "add the column with 'tidelog source alter'" in said.err
    done = cli.done("source", "alter", "c", "--add", "x bigint", "--add", "y int", "--json")
    assert done.object == {"source": "c", "columns": ["id", "x", "y"]}
    (tmp_path / "3.jsonl").write_text('{"id": 3, "x": 6}\n')
    cli.ingest("c")
    rows = cli.done("read", "c", "--json").objects
    assert sorted((row["id"], row["x"]) for row in rows) == [(1, None), (2, None), (3, 6)]

    cli.done("source", "alter", "c", "--drop", "y")
    refused(cli("source", "alter", "c", "--drop", "x"), "pass --yes to drop columns")
    assert cli.done("source", "alter", "c", "--drop", "x", "--yes").err == (
        "The source 'c' has the columns id.\n"
    )


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("c", (), "nothing to alter: pass --add with new columns, or --drop with names"),
        ("c", ("--add", "w"), "'w'"),
        ("c", ("--drop", "x", "--yes"), "the source 'c' has no column 'x'"),
        ("none", ("--drop", "x"), "no source named 'none'"),
        ("c", ("--drop", "id"), "'id' cannot be dropped, because it is in the key of the source"),
    ],
)
def test_a_wrong_alter_of_a_source_is_refused(
    name: str, given: tuple[str, ...], words: str, cli: Cli, tmp_path: Path
) -> None:
    """Each message names the option or the column."""
    (tmp_path / "1.jsonl").write_text('{"id": 1}\n')
    files = str(tmp_path / "*.jsonl")
    cli.done("source", "create", "c", "--files", files, "--envelope", "upsert", "--key", "id")
    cli.ingest("c")
    refused(cli("source", "alter", name, *given), words)
