"""``sql``: answers in every format, the common time, and the prompt of a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cli.conftest import Cli


@pytest.fixture
def shop(cli: Cli) -> Cli:
    """Two collections; orders is complete at a later time than prices."""
    for name, key, rows in (
        ("orders", "id", [{"id": n, "item": "tea", "at": 1_000} for n in range(3)]),
        ("prices", "item", [{"item": "tea", "price": 5, "at": 1_000}]),
    ):
        path = cli.write_lines(f"{name}/1.jsonl", *rows)
        upsert = ("--envelope", "upsert", "--key", key, "--time-column", "at")
        cli.done("source", "create", name, "--files", path.with_name("*.jsonl"), *upsert)
        cli.ingest(name)
    cli.write_lines("orders/2.jsonl", {"id": 9, "item": "jam", "at": 5_000})
    cli.ingest("orders")
    return cli


JOIN = "SELECT sum(price) AS total FROM orders JOIN prices USING (item)"


def test_a_query_reads_collections_as_of_their_common_time(shop: Cli) -> None:
    """The rows are on standard output, and the time and later collections on standard error."""
    done = shop.done("sql", JOIN, "--format", "csv")
    table = shop.done("sql", "FROM prices", "--format", "table")
    later = shop.done("sql", "SELECT count(*) AS n FROM orders", "--as-of", "1970-01-01T00:00:05Z")

    assert done.out.splitlines() == ["total", "15"]
    assert "orders is complete up to 1970-01-01T00:00:05Z" in done.err
    assert "as of 1970-01-01T00:00:01Z" in done.err
    assert table.err.splitlines() == ["1 row as of 1970-01-01T00:00:01Z"]
    assert json.loads(later.out) == {"n": 4}


def test_a_query_comes_from_standard_input_and_goes_to_a_file(shop: Cli, tmp_path: Path) -> None:
    """A script pipes a query, and gets a whole file."""
    out = tmp_path / "out.parquet"
    shop.done("sql", "-", "-o", str(out), given=b"SELECT id FROM orders ORDER BY id")
    limited = shop.done("sql", "FROM orders ORDER BY id", "--limit", "2", "--format", "csv")
    every = shop.done("sql", "FROM orders", "--limit", "9" * 20, "--format", "csv")

    assert len(every.out.splitlines()) == 5
    assert pq.read_table(out).to_pydict() == {"id": [0, 1, 2, 9]}
    assert len(limited.out.splitlines()) == 3


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("DELETE FROM orders", "only reads"),
        ("FROM 'x.csv'", "no collection named 'x.csv'; existing collections: orders, prices"),
        ("FROM price", "no collection named 'price'; did you mean 'prices'? existing collections"),
        ("SELECT * FROM read_csv('x.csv')", "opens no file"),
        ("SELECT (", "invalid"),
        (
            "SELECT at FROM orders",
            "write a name that is a word of SQL, such as at, in double quotes",
        ),
        (
            "SELECT itme FROM orders",
            '"itme" not found in FROM clause; columns of the query are "item"',
        ),
        ("SELECT lenght(item) FROM orders", 'lenght does not exist; did you mean "length"?'),
        ("SELECT 1 FROM order", 'in double quotes: "at"'),
        ("FROM orders AT (TIMESTAMP => '2026-01-01')", "pass the time as --as-of"),
        ("FROM orders TIMESTAMP AS OF '2026-01-01'", "pass the time as --as-of"),
        ("", "query is empty"),
        ("SELECT '\udcff'", "not UTF-8"),
        ("SELECT INTERVAL '1 month' AS x", "no format has a form for the column 'x'"),
        ("SELECT MAP {'a': 1} AS x", "no format has a form for the column 'x'"),
    ],
)
def test_a_bad_query_is_a_usage_error(shop: Cli, query: str, text: str) -> None:
    """The exit status is 2, and the message has the fault and the remedy."""
    failed = shop("sql", query)

    assert failed.status == 2
    assert text in failed.complaint


@pytest.mark.parametrize("query", ["SELEC 1", "query.sql", "SELECT 1 FORM orders"])
def test_a_word_that_is_no_keyword_needs_no_quotes(shop: Cli, query: str) -> None:
    """Quotes would not mend such a query, so the message does not advise them."""
    failed = shop("sql", query)

    assert "syntax error" in failed.complaint
    assert "quotes" not in failed.complaint


def test_a_terminal_gets_a_prompt_with_history(shop: Cli, tmp_path: Path) -> None:
    """Queries end with a semicolon; an error of one does not end the prompt."""
    ours, theirs = pty.openpty()
    typed = b"show tables;\nselect count(*) as n\nfrom orders;\nselec;\n.help\n.quit\n"
    os.write(ours, typed)
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "TERM": "dumb"}
    command = [sys.executable, "-m", "tidelog", "--location", shop.location, "sql"]
    done = subprocess.run(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        timeout=120,
        check=True,
    )
    shown = os.read(ours, 65_536).decode()
    os.close(ours)
    os.close(theirs)

    assert re.search(r"name\s+-+\s+orders\s+prices\s", shown)
    assert re.search(r"n\s+-\s+4\s", shown)
    assert "invalid" in done.stderr
    assert done.stderr.count("SHOW TABLES") == 2
    assert "from orders;" in (tmp_path / "state/tidelog/sql_history").read_text()
