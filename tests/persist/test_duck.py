"""The embedded engine: shared by a process, and replaced when it has broken."""

from __future__ import annotations

import duckdb
import pytest

from tidelog.persist.format.duck import duck


def test_times_are_utc_and_nothing_is_left_behind() -> None:
    """Two callers see none of each other's names, whatever the machine's time zone is."""
    with duck() as first:
        first.execute("CREATE TEMP TABLE t AS SELECT 1")
        zone = first.sql("SELECT current_setting('TimeZone')").fetchall()

    with duck() as second, pytest.raises(duckdb.CatalogException):
        second.sql("FROM t").fetchall()
    assert zone == [("UTC",)]


def test_an_engine_that_broke_is_replaced() -> None:
    """DuckDB refuses all work after a fatal error, which must not be the end of an ingester."""
    with pytest.raises(duckdb.FatalException):
        work_that_breaks_it()

    with duck() as next_one:
        assert next_one.sql("SELECT 1").fetchall() == [(1,)]


def work_that_breaks_it() -> None:
    """Run once, and then fail as an engine does that found its memory broken."""
    with duck() as connection:
        connection.sql("SELECT 1").fetchall()
        raise duckdb.FatalException("as if")
