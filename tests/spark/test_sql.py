"""SQL on Spark: the answers, the time and the refusals of DuckDB's engine."""

from __future__ import annotations

import io
import logging
import re
import shlex
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from unittest.mock import MagicMock, patch

import pyarrow.parquet as pq
import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import tidelog
from cli.conftest import Cli, cli
from cli.test_sql import JOIN, shop
from kit.doc_blocks import blocks_of
from tidelog.errors import CorruptionError, LocationError, NoSuchCollection, UsageError
from tidelog.spark import sql as spark_sql
from tidelog.spark.query_plan import names_of
from tidelog.spark.sql import LOGGERS

__all__ = ["cli", "shop"]  # The fixtures of the command line.


@pytest.fixture(autouse=True)
def _shared(spark: SparkSession) -> Iterator[None]:
    """Commands use the session of all tests, and leave it open."""
    with (
        patch("tidelog.spark.session.session", return_value=spark),
        patch("tidelog.spark.sql.session", return_value=spark),
        patch("tidelog.spark.session.stop"),
    ):
        yield


@pytest.mark.parametrize(
    "words",
    [
        [JOIN, "--format", "csv"],
        ["FROM prices", "--format", "table"],
        ["SELECT count(*) AS n FROM orders", "--as-of", "1970-01-01T00:00:05Z"],
        ["SELECT count(*) AS n FROM orders, Prices", "--json"],
        ["SELECT id, item FROM orders ORDER BY id", "--limit", "2"],
        ["SELECT id, item FROM orders", "--limit", "0"],
        ["WITH o AS (SELECT * FROM orders WHERE id > 0) SELECT max(id) AS top FROM o"],
        ["SELECT item FROM prices WHERE item IN (SELECT item FROM orders)"],
        ["SELECT 1 AS one"],
        ["SHOW TABLES"],
        ["DESCRIBE prices", "--json"],
        ["FROM orders_errors"],
        ["FROM nope"],
        ["FROM orders, nope", "--json"],
        ["FROM orders", "--as-of", "1970-01-02"],
        ["FROM orders", "--as-of", "noon"],
        ["DELETE FROM orders"],
        ["CREATE TABLE x AS SELECT 1"],
        [""],
    ],
    ids=str,
)
def test_both_engines_give_one_answer(shop: Cli, words: list[str]) -> None:
    """The rows, the time, the later collections and the errors do not depend on the engine."""
    here, there = shop("sql", *words), shop("sql", *words, "--engine", "spark")

    assert there == here


def test_an_answer_goes_to_a_file(shop: Cli, tmp_path: Path) -> None:
    """`-o` writes a whole file, without notes of Spark about its columns."""
    out = tmp_path / "out.parquet"
    query = "SELECT id, upper(item) FROM orders ORDER BY id"
    shop.done("sql", query, "--engine", "spark", "-o", out)

    assert pq.read_table(out).to_pydict() == {
        "id": [0, 1, 2, 9],
        "upper(item)": 3 * ["TEA"] + ["JAM"],
    }
    assert pq.read_schema(out).field(1).metadata is None


def test_a_limit_is_part_of_the_plan(shop: Cli) -> None:
    """Spark does not send all rows to the driver to keep two of them."""
    with patch.object(spark_sql, "_plain", wraps=spark_sql._plain) as sent:
        said = shop.done("sql", "SELECT id FROM orders", "--engine", "spark", "--limit", "2")

    assert len(said.objects) == 2
    assert [call.args[0].num_rows for call in sent.call_args_list] == [2]


def test_the_command_of_the_guide_runs(shop: Cli) -> None:
    """A user can copy the command with ``--engine spark``."""
    (block,) = [b for b in blocks_of("docs/guides/sql.md", "Spark") if b.mark == "run by"]
    shop.write_lines("sold/1.jsonl", {"id": 1, "item": "tea", "qty": 3})
    command = shlex.split(block.text.replace("FROM orders", "FROM sold"))
    shop.done("source", "create", "sold", "--files", shop.folder / "sold/*.jsonl")
    shop.ingest("sold")

    assert shop.done(*command[1:]).objects == [{"item": "tea", "sold": 3}]


WRITES = [
    "INSERT INTO orders VALUES (1)",
    "FROM orders INSERT INTO prices SELECT *",
    "INSERT OVERWRITE DIRECTORY '/tmp/x' USING csv SELECT 1",
    "CREATE TEMPORARY VIEW v AS SELECT 1",
    "CREATE TABLE x (a INT)",
    "DROP TABLE orders",
    "ALTER TABLE orders ADD COLUMN a INT",
    "TRUNCATE TABLE orders",
    "UPDATE orders SET id = 1",
    "MERGE INTO orders USING prices ON true WHEN MATCHED THEN DELETE",
    "LOAD DATA INPATH '/tmp/x' INTO TABLE orders",
    "ADD JAR '/tmp/x.jar'",
    "ADD FILE '/tmp/x'",
    "SET spark.sql.ansi.enabled=false",
    "SET VAR a = 1",
    "RESET",
    "USE x",
    "CACHE TABLE orders",
    "REFRESH '/tmp/x'",
    "ANALYZE TABLE orders COMPUTE STATISTICS",
    "DECLARE VARIABLE a INT",
    "EXECUTE IMMEDIATE 'SELECT 1'",
    "BEGIN SELECT 1; END",
    "EXPLAIN SELECT 1",
    "SHOW FUNCTIONS",
    "CALL x.y()",
]
FILES = [
    "FROM csv.`/etc/passwd`",
    "WITH a AS (FROM parquet.`/tmp/x`) FROM a",
    "SELECT (SELECT max(value) FROM text.`/etc/passwd`)",
    "SELECT * FROM orders WHERE EXISTS (FROM json.`/x`)",
    "FROM orders, LATERAL (FROM orc.`/x`)",
    "FROM spark_catalog.default.orders",
    "FROM global_temp.x",
    "FROM read_files('/etc/passwd')",
    "FROM python_worker_logs()",
    "SELECT * FROM orders ORDER BY (SELECT 1 FROM csv.`/x`)",
    "DESCRIBE QUERY FROM csv.`/x`",
]
CODE = [
    "SELECT java_method('java.lang.System', 'getenv', 'HOME')",
    "SELECT system.builtin.Reflect('java.lang.System', 'lineSeparator')",
    "SELECT rank() OVER w FROM orders WINDOW w AS (ORDER BY try_reflect('a', 'b'))",
    "FROM VALUES (reflect('java.lang.System', 'lineSeparator'))",
    "SELECT transform(array(1), x -> reflect('a', 'b'))",
    "SELECT from_protobuf(a, 'M', '/etc/passwd') FROM orders",
    "SELECT from_xml('<a/>', 'a INT', map('rowValidationXSDPath', '/x'))",
]
HIDDEN = [
    "FROM IDENTIFIER('csv.' || '`/x`')",
    "SELECT IDENTIFIER('ref' || 'lect')('java.lang.System', 'lineSeparator')",
    "SELECT TRANSFORM(id) USING 'cat' FROM orders",
    "FROM orders VERSION AS OF 1",
    "FROM STREAM orders",
]


@pytest.mark.parametrize(
    ("query", "text"),
    [(query, "SQL only reads collections") for query in WRITES]
    + [(query, "opens no file") for query in FILES]
    + [(query, "can read files or run code") for query in CODE]
    + [(query, "leave out") for query in HIDDEN],
)
def test_a_query_only_reads_collections(spark: SparkSession, query: str, text: str) -> None:
    """The plan of the parser decides, before anything runs."""
    with pytest.raises(UsageError, match=text):
        names_of(spark, query)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("SELECT a.x FROM a JOIN b USING (x) WHERE a.y > 1 GROUP BY ALL HAVING sum(x) > 1", "a b"),
        ("SELECT * FROM a WHERE x IN (SELECT y FROM b) ORDER BY 1 LIMIT 3 OFFSET 1", "a b"),
        ("WITH a AS (FROM a), c AS (FROM a) FROM c UNION ALL FROM d EXCEPT FROM e", "a d e"),
        ("SELECT * FROM a WHERE EXISTS (WITH a AS (SELECT 1) FROM a)", "a"),
        ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 3) FROM t", ""),
        ("SELECT rank() OVER w FROM a WINDOW w AS (ORDER BY (SELECT max(x) FROM b))", "a b"),
        (
            "FROM a |> WHERE x > 1 |> AGGREGATE sum(x) GROUP BY y |> JOIN `b-1.x` USING (y)",
            "a b-1.x",
        ),
        ("SELECT /*+ BROADCAST(a) */ DISTINCT x FROM a TABLESAMPLE (5 ROWS), range(3)", "a"),
        ("SELECT * FROM a PIVOT (sum(x) FOR y IN (1, 2)) DISTRIBUTE BY x", "a"),
        ("FROM a LATERAL VIEW explode(x) AS y", "a"),
        ("DESCRIBE QUERY FROM a", "a"),
        ("VALUES (1), (2)", ""),
    ],
)
def test_the_names_of_a_query_follow_the_scopes_of_its_ctes(
    spark: SparkSession, query: str, names: str
) -> None:
    """A name is that of a CTE only where the CTE is visible."""
    assert names_of(spark, query).names == set(names.split())


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("SELECT (", "the query is invalid: Syntax error at or near end of input"),
        ("SELECT '\udcff'", "not UTF-8"),
        ("SELECT 1; SELECT 2", "pass one query"),
        ("SELECT nope FROM orders", "the query is invalid: .*`nope` cannot be resolved"),
        ("SELECT nofun(id) FROM orders", "the query is invalid: Cannot resolve routine `nofun`"),
        ("SELECT 1 / (id - id) FROM orders", "the query fails: Division by zero"),
        ("SELECT CAST(item AS INT) FROM orders", "the query fails: .*'tea'"),
        ("SELECT raise_error('stop') FROM orders", "the query fails: stop"),
        ("SELECT INTERVAL '1' MONTH AS x", "cast the column"),
        ("SELECT map('a', 1) AS x", "no format has a form for the column 'x'"),
    ],
)
def test_a_failed_query_is_one_sentence(shop: Cli, query: str, text: str) -> None:
    """The exit status is 2, and PySpark does not log the failure as JSON on standard error."""
    written = io.StringIO()
    handlers = [logging.StreamHandler(written) for _ in LOGGERS]
    for name, handler in zip(LOGGERS, handlers, strict=True):
        PySparkLogger.getLogger(name).addHandler(handler)
    failed = shop("sql", query, "--engine", "spark")
    for name, handler in zip(LOGGERS, handlers, strict=True):
        PySparkLogger.getLogger(name).removeHandler(handler)

    assert failed.status == 2
    assert re.search(text, failed.complaint)
    assert "SQLSTATE" not in failed.complaint
    assert (written.getvalue(), failed.err.count("\n")) == ("", 1)


def test_the_prompt_survives_a_faulty_query(
    shop: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All queries of a prompt use one session."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    typed = [
        "show tables;",
        "selec;",
        "delete from orders;",
        "select max(id) as top",
        "from orders;",
    ]
    terminal = MagicMock(**{"isatty.return_value": True})
    with (
        patch("builtins.input", side_effect=[*typed, ".quit"]),
        patch("tidelog.cli.sql.is_terminal", return_value=True),
        patch.object(sys, "stdin", terminal),
    ):
        done = shop("sql", "--engine", "spark", "--format", "csv")

    assert (done.status, done.out.split()) == (0, ["name", "orders", "prices", "top", "9"])
    assert "tidelog: the query is invalid" in done.err
    assert "tidelog: SQL only reads collections" in done.err


def test_the_library_answers_in_a_session_of_its_own(shop: Cli, spark: SparkSession) -> None:
    """A query neither sees nor changes the views and settings of the caller's session."""
    spark.range(1).createOrReplaceTempView("mine_sql")
    with tidelog.connect(shop.location) as lake:
        both = lake.sql("SELECT count(*) AS n FROM orders, prices", engine="spark")
        name = lake.sql("SELECT '${env:HOME}' AS x", engine="spark")
        with pytest.raises(NoSuchCollection, match=r"mine_sql.*orders, prices"):
            lake.sql("FROM mine_sql", engine="spark")

    assert (both.table["n"].to_pylist(), both.as_of, sorted(both.later)) == ([3], 1_000, ["orders"])
    assert name.table["x"].to_pylist() == ["${env:HOME}"]
    assert not spark.catalog.tableExists("orders")


def test_a_damaged_part_is_no_fault_of_the_query(shop: Cli, tmp_path: Path) -> None:
    """The exit status is that of a read, so a script can tell the two apart."""
    with tidelog.connect(shop.location) as lake:
        table = lake.tables.create("big", "a varchar")
        table.insert([{"a": sha256(b"%d" % n).hexdigest()} for n in range(5_000)])
    (part,) = (p for p in (tmp_path / "lake/shard").rglob("*.parquet") if p.stat().st_size > 10_000)
    part.write_bytes(part.read_bytes()[:-100])
    with (
        tidelog.connect(shop.location) as lake,
        pytest.raises((CorruptionError, LocationError), match="Spark did not finish"),
    ):
        lake.sql("SELECT max(a) FROM big", engine="spark")


def test_an_engine_that_is_unknown_or_not_installed_is_a_usage_error(shop: Cli) -> None:
    """The message names the engines, or the extra to install."""
    unknown = shop("sql", "SELECT 1", "--engine", "hive")
    with patch("importlib.util.find_spec", return_value=None):
        missing = shop("sql", "SELECT 1", "--engine", "spark")
    with tidelog.connect(shop.location) as lake:
        with pytest.raises(UsageError, match="engine must be duckdb or spark, not 'hive'"):
            lake.sql("SELECT 1", engine="hive")
        with (
            patch("tidelog.collection.sql.find_spec", return_value=None),
            pytest.raises(UsageError, match=r"pip install 'tidelog\[spark\]'"),
        ):
            lake.sql("SELECT 1", engine="spark")

    assert (unknown.status, missing.status) == (2, 2)
    assert "--engine must be duckdb or spark, not 'hive'" in unknown.complaint
    assert "pip install 'tidelog[spark]'" in missing.complaint
