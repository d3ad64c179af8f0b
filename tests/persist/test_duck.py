"""The embedded DuckDB engine: shared by a process, and replaced after a fatal error."""

from __future__ import annotations

import duckdb
import pytest

from tidelog.persist.format.duck import duck


def test_times_are_utc_and_nothing_is_left_behind() -> None:
    """A caller sees no names of an earlier caller. The time zone is UTC, not the machine's."""
    with duck() as first:
        first.execute("CREATE TEMP TABLE t AS SELECT 1")
        zone = first.sql("SELECT current_setting('TimeZone')").fetchall()

    with duck() as second, pytest.raises(duckdb.CatalogException):
        second.sql("FROM t").fetchall()
    assert zone == [("UTC",)]


def test_an_engine_that_broke_is_replaced() -> None:
    """DuckDB refuses all work on an engine after a fatal error."""
    with pytest.raises(duckdb.FatalException):
        work_that_breaks_it()

    with duck() as next_one:
        assert next_one.sql("SELECT 1").fetchall() == [(1,)]


def work_that_breaks_it() -> None:
    """Run a query, then fail as an engine with a fatal error does."""
    with duck() as connection:
        connection.sql("SELECT 1").fetchall()
        raise duckdb.FatalException("as if")
