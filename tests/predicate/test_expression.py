"""Conditions of users: the rows that they choose, and the reasons to refuse them."""

from __future__ import annotations

import os
import pickle
import threading
from datetime import UTC, datetime
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.core import grouping
from tidelog.errors import ExpressionTooSlow, UsageError
from tidelog.predicate import predicate
from tidelog.predicate.expression import (
    Predicate,
    check_expression,
    check_predicate,
    filter_table,
)
from tidelog.predicate.predicate import open_sandbox

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
FLIGHTS = pa.table(
    {
        "carrier": pa.array(["UA", "DL", None, "AA"]),
        "delay": pa.array([5, -3, 20, None], pa.int32()),
        "seen": pa.array([NOON, NOON, None, NOON], pa.timestamp("us", "UTC")),
        "wall": pa.array([NOON.replace(tzinfo=None)] * 4, pa.timestamp("us")),
        "tags": pa.array([["a", "b"], [], None, ["c"]]),
        "plane": pa.array([{"seats": 100}, None, {"seats": 7}, {"seats": 200}]),
        "details": pa.array(['{"x": 1}', None, "{}", '{"x": 2}']),
        "Odd Name": pa.array([1, 2, 3, 4]),
        "at": pa.array(["gate", "air", "gate", "air"]),
        "huge": pa.array([None] * 4, pa.decimal256(50, 2)),
    }
)
SCHEMA = FLIGHTS.schema


def _check(sql: str, *, definite: bool = True) -> Predicate:
    return check_predicate(sql, SCHEMA, definite=definite, what="--where")


def _chosen(sql: str, *, definite: bool = True) -> list[int]:
    return np.flatnonzero(_check(sql, definite=definite).mask(FLIGHTS)).tolist()


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("carrier = 'UA'", [0]),
        ("  delay > 0  ", [0, 2]),
        ("not (delay > 0)", [1]),
        ("delay is null", [3]),
        ("null::boolean", []),
        ("true", [0, 1, 2, 3]),
        ("delay > 1000", []),
        ("DELAY between 0 and 10 and Carrier in ('UA', 'DL')", [0]),
        ("(delay > 0) or (carrier = 'DL')", [0, 1, 2]),
        ("case when delay > 0 then true else carrier = 'AA' end", [0, 2, 3]),
        ("carrier like 'U%' or carrier ~ 'D.'", [0, 1]),
        ("carrier.lower() = 'ua'", [0]),
        ("carrier collate nocase = 'ua'", [0]),
        ("carrier = ') or (true' or carrier = '; --'", []),
        ("carrier = $$UA$$", [0]),
        ("delay > 0 /* late */", [0, 2]),
        ("delay > 0 -- late\n and carrier = 'UA'", [0]),
        ("list_contains(tags, 'b')", [0]),
        ("len(list_filter(tags, lambda t: t >= 'b')) > 0", [0, 3]),
        ("len([t for t in tags if t >= 'b']) > 0", [0, 3]),
        ("list_aggr([delay, 1], 'sum') > 5", [0, 2]),
        ("list_sum([delay, 1]) > 5", [0, 2]),
        ("plane.seats > 50", [0, 3]),
        ("details->>'$.x' = '2'", [3]),
        ('"Odd Name" = 2', [1]),
        ('"odd name" = 2', [1]),
        ("\"at\" = 'gate'", [0, 2]),
        ("try_cast(carrier as int) is null", [0, 1, 2, 3]),
        ("if(delay > 0, true, false) and nullif(delay, 20) is null", [2]),
        ("md5(carrier) is not null and abs(delay) < 4 and coalesce(delay, 0) % 3 = 0", [1]),
        ("seen >= '2013-01-01' and extract(hour from seen) = 12", [0, 1, 3]),
        ("strftime(seen, '%H') = '12' and date_trunc('day', wall) < wall", [0, 1, 3]),
        ("wall at time zone 'Europe/Berlin' < seen", [0, 1, 3]),
        ("date_trunc('day', seen) < seen and seen + interval 1 day > seen", [0, 1, 3]),
        ("time_bucket(interval 1 hour, seen) = make_timestamptz(2013, 1, 1, 12, 0, 0)", [0, 1, 3]),
        ("len(range(5)) = delay", [0]),
    ],
)
def test_conditions_choose_rows(sql: str, rows: list[int]) -> None:
    """Every condition on one row that SQL permits in a WHERE clause works."""
    assert _chosen(sql) == rows
    chosen = filter_table(FLIGHTS, _check(sql))
    assert chosen.equals(FLIGHTS.take(pa.array(rows, pa.int64())))


@pytest.mark.parametrize(
    "sql",
    [
        "",
        " \n",
        "'",
        "(true",
        "true)",
        "delay >",
        "delay > 1;",
        "; delay > 1",
        "delay > 1; drop table x",
        "true; attach 'x.db'",
        "true) as p from tidelog_rows; select (true",
        "true) as p from tidelog_rows; drop table tidelog_rows; select (true",
        "true) as p, (true",
        "true) as p from tidelog_rows where (true",
        "true) from (select 1) union all select (true",
        "true) as p from tidelog_rows limit (1",
        "delay > 1) or (carrier = 'UA'",
        "delay > 1) and not (carrier = 'UA'",
        "true, true",
        "true, ",
        "()",
        "delay > 1 as chosen",
        "distinct delay > 1",
        "true order by 1",
        "true limit 1",
        "delay > 1 -- late",
        "delay > 1 /* late",
        "--",
        "/*",
        "carrier = e'\\x00'",
        "delay > 1 \0",
        "true \ud800",
        "select true",
        "from tidelog_rows",
        "values (true)",
        "with x as (select 1) select true",
        "pragma version",
        "copy tidelog_rows to 'x.csv'",
        "set threads = 2",
        "install httpfs",
        "not " * 2000 + "true",
        "[" * 2000 + "]" * 2000 + " is null",
    ],
)
@pytest.mark.parametrize("definite", [True, False])
def test_what_is_not_one_expression_is_refused(sql: str, definite: bool) -> None:
    """A text must be one expression, or it would escape from its parentheses."""
    with pytest.raises(UsageError, match=r"^--where "):
        _check(sql, definite=definite)


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("", r'is empty: write a condition such as "country'),
        ("delay > 1 -- late", "ends with a comment: remove it"),
        ("delay > 1) or (true", "check its parentheses and commas"),
        ("true) as p, (true", "more text follows it"),
        ("delay > 1; select 1", "syntax error"),
        ("delay > 1 \0", "zero byte"),
        ("at = 'gate'", 'write the column "at" in double quotes'),
        ("carier = 'UA'", "reads 'carier', which is not a column: did you mean 'carrier'?"),
        ("odd_name = 1", "did you mean 'Odd Name'?"),
        ("zzz = 1", "not a column: the columns are 'carrier', 'delay'"),
        ("carrier = zzz", "write a text in single quotes: 'zzz'"),
        ("rowid = 1", "not a column"),
        ("zzz.lower() = 'x'", "reads 'zzz', which is not a column"),
        ("tidelog_rows.delay > 1", "reads 'tidelog_rows', which is not a column"),
        ("plane.wings > 1", "cannot be computed.*wings"),
        ("delay", "must be a condition, but its type is INTEGER: compare it"),
        ("'true'", "must be a condition, but its type is VARCHAR"),
        ("null", "must be a condition"),
        ("delay in (select 1)", "contains a subquery"),
        ("exists(select 1 from read_csv('x.csv'))", "contains a subquery"),
        ("delay > any(select 1)", "contains a subquery"),
        ("len(list_filter(tags, lambda t: t in (select 'a'))) > 0", "contains a subquery"),
        ("(select true)", "contains a subquery"),
        ("sum(delay) > 1", r"calls sum\(\), which aggregates many rows"),
        ("count(*) > 1", "aggregates many rows"),
        ("max(delay) filter (delay > 1) > 1", "aggregates many rows"),
        ("row_number() over () = 1", "contains a window function"),
        ("lag(delay) over (order by seen) > 1", "contains a window function"),
        ("sum(delay) over () > 1", "contains a window function"),
        ("? = delay", "contains a parameter"),
        ("$1 = delay", "contains a parameter"),
        ("$x = delay", "contains a parameter"),
        ("*", "contains a star"),
        ("columns('delay') > 1", "contains a star"),
        ("#1 = 'UA'", "contains a column's number"),
        ("default", "contains DEFAULT"),
        ("unnest([true])", "does not return one value per row"),
        ("read_text('x') = 'y'", "does not return one value per row"),
        ("query('select 1')", "does not return one value per row"),
        ("grouping(delay) = 1", "cannot be computed"),
        ("nosuch(delay)", "cannot be computed.*nosuch"),
        ("getenv('HOME') = 'x'", "cannot be computed.*getenv"),
        ("delay + carrier", "."),
        ("delay = 'late'", "fails on a row.*late"),
        ("huge > 1", "cannot be computed"),
    ],
)
@pytest.mark.parametrize("definite", [True, False])
def test_refusals_say_what_is_wrong(sql: str, told: str, definite: bool) -> None:
    """The message of each refusal states the fault. A user at a shell sees only the message."""
    with pytest.raises(UsageError, match=rf"(?s)^--where .*{told}"):
        _check(sql, definite=definite)


@pytest.mark.parametrize(
    "sql",
    [
        "random() < 2",
        "RANDOM() < 2",
        '"random"() < 2',
        "system.main.random() < 2",
        "carrier = uuid()::varchar",
        "now() > seen",
        "seen < now() - interval 1 day",
        "current_timestamp > seen",
        "CURRENT_DATE > seen",
        "localtimestamp > wall",
        "today() > wall",
        "current_localtimestamp() > wall",
        "transaction_timestamp() > seen",
        "age(wall) > interval 1 day",
        "session_user = carrier",
        "current_user = carrier",
        "current_schema() = carrier",
        "current_setting('TimeZone') = carrier",
        "getvariable('x') = carrier",
        "version() = carrier",
        "pg_typeof(now()) = carrier",
        "hash(carrier) > 5",
        "carrier collate de = 'ua'",
        "len(list_filter(tags, lambda t: random() < 2)) > 0",
        "len(list_filter(tags, lambda t: now() > seen)) > 0",
        "len([t for t in tags if random() < 2]) > 0",
        "case when delay > 1 then random() < 2 else true end",
        "coalesce(delay > random(), false)",
        "list_aggr([delay], 'reservoir_quantile', 0.5) > 1",
        "[delay].list_aggr('Reservoir_Quantile', 0.5) > 1",
        "list_aggr([delay], 'reservoir' || '_quantile', 0.5) > 1",
    ],
)
def test_what_differs_from_run_to_run_is_not_definite(sql: str) -> None:
    """A retry must choose the same rows, so clock and random numbers are not definite."""
    with pytest.raises(UsageError, match=r"^--where "):
        _check(sql)

    assert _check(sql, definite=False).mask(FLIGHTS).shape == (4,)


def test_what_takes_too_long_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB stops a condition between two vectors of rows; a timeout blames no row."""
    slow = _check("regexp_matches(repeat(carrier, 1000), '(u+a+)+y')")
    rows = FLIGHTS.take([0] * 100_000)
    # Only after the check, which may also be slow on a busy machine.
    monkeypatch.setattr(predicate, "SECONDS_MAX", 0.05)

    with pytest.raises(ExpressionTooSlow, match=r"^--where takes longer than 0.05 s"):
        slow.mask(rows)
    with pytest.raises(ExpressionTooSlow):
        slow.failing(rows)


def test_what_nothing_interrupts_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller gets its error in time, although DuckDB finishes its vector of rows."""
    slow = _check('levenshtein(repeat(carrier, 1500), repeat("at", 900)) > 0')
    monkeypatch.setattr(predicate, "SECONDS_MAX", 0.05)
    monkeypatch.setattr(predicate, "GRACE_SECONDS", 0.05)

    with pytest.raises(ExpressionTooSlow, match=r"^--where takes longer than 0.05 s"):
        slow.mask(FLIGHTS.take([0] * 150))
    for thread in threading.enumerate():
        if thread.name == predicate.AT_WORK:
            thread.join()


@pytest.mark.parametrize(
    "sql",
    [
        "length(repeat(carrier, 100000)) > 0",
        "length(carrier.repeat(delay)) > 0",
        "length(lpad(carrier, 2000000000, 'x')) > 1",
        "length(rpad(carrier, 1e9::int, 'x')) > 1",
        "list_sum(range(300000000)) > 0",
        "len(list_resize(tags, delay * 1000000)) > 0",
        "printf('%1000000000d', delay) > ''",
        "format(carrier, delay) > ''",
        "length(to_base(delay, 2, 99999)) > 1",
    ],
)
def test_what_may_grow_to_any_size_is_refused(sql: str) -> None:
    """A single row could take 20 GB, and no interrupt stops DuckDB within a function."""
    for definite in (True, False):
        with pytest.raises(UsageError, match="any length: pass it a number of up to four"):
            _check(sql, definite=definite)


def test_a_small_number_bounds_a_size() -> None:
    """Padding of codes with zeros is common, so small constant sizes are accepted."""
    assert _chosen("lpad(carrier, 4, '0') = '00UA'") == [0]
    assert _chosen("carrier.rpad(3, '-') = 'DL-'") == [1]
    assert _chosen("list_contains(range(5, 30, 5), delay)") == [0, 2]
    assert _chosen("format('{:>4}', carrier) = '  AA'") == [3]


def test_side_effects_are_never_definite() -> None:
    """A function with side effects is never definite, whether or not DuckDB runs it."""
    for sql in ("nextval('s') = 1", "setseed(0.5) is null", "error('x') is null"):
        with pytest.raises(UsageError, match="does not depend on the row alone"):
            _check(sql)


def test_a_macro_is_judged_by_its_expansion() -> None:
    """A macro is judged by its expansion, because DuckDB does not mark macros as stable."""
    assert _chosen("fdiv(delay, 2) = 2") == [0]
    with pytest.raises(UsageError):
        _check("pg_postmaster_start_time() > seen")
    with pytest.raises(UsageError):
        _check("ago(interval 1 day) > seen")


def test_a_column_may_be_called_like_a_clock() -> None:
    """A column takes precedence over a function of its name without parentheses."""
    table = pa.table({"current_date": [1, 2], "user": ["a", "b"]})
    predicate = check_predicate("current_date = 2 and user = 'b'", table.schema, definite=True)

    assert predicate.mask(table).tolist() == [False, True]
    with pytest.raises(UsageError, match="calls current_timestamp"):
        check_predicate("current_timestamp -> '$' is null", table.schema, definite=True)


def test_columns_that_differ_in_case_only_cannot_be_told_apart() -> None:
    """DuckDB would silently choose one of two columns that differ in case only."""
    schema = pa.schema([("a", pa.int64()), ("A", pa.int64()), ("b", pa.int64())])

    assert check_predicate("b = 1", schema, definite=True).schema.names == ["b"]
    with pytest.raises(UsageError, match="'a' and 'A' differ in case only"):
        check_predicate("a = 1", schema, definite=True)


def test_a_predicate_knows_what_it_reads() -> None:
    """Readers fetch only a predicate's columns, so an unreadable other one does no harm."""
    assert _check("carrier.lower() = 'ua' and PLANE.seats > 1").schema.names == ["carrier", "plane"]
    assert _check("len(list_filter(tags, lambda t: t > carrier)) > 0").schema.names == [
        "carrier",
        "tags",
    ]
    assert _check("true").schema.names == []


def test_the_same_rows_are_chosen_whatever_their_encoding() -> None:
    """An encoding narrower than the checked schema's types cannot cause an overflow."""
    predicate = _check("carrier > 'B' and delay * 1000000000 > 1")
    encoded = pa.table(
        {
            "unread": pa.array([{"a": 1}] * 4),
            "delay": FLIGHTS["delay"].cast(pa.int8()),
            "carrier": FLIGHTS["carrier"].dictionary_encode(),
        }
    )

    first, second = (_outcome(predicate, table) for table in (FLIGHTS, encoded))
    assert first == second


def _outcome(predicate: Predicate, table: pa.Table) -> object:
    try:
        return predicate.mask(table).tolist()
    except UsageError as error:
        return error.sentence


def test_failures_on_a_row_are_usage_errors() -> None:
    """A failure on a row raises UsageError, because the author of the expression can correct it."""
    predicate = _check("carrier::int = 1")

    with pytest.raises(UsageError, match=r"^--where fails on a row: .*UA"):
        predicate.mask(FLIGHTS)
    with pytest.raises(UsageError, match="does not fit the columns"):
        predicate.mask(pa.table({"delay": [1]}))
    with pytest.raises(UsageError, match="does not fit the columns"):
        _check("delay > 1").mask(pa.table({"delay": ["x"]}))


def test_empty_tables_and_tables_of_many_chunks() -> None:
    """A mask has one value per row, in the order of the rows."""
    numbers = np.arange(300_000) % 1000
    chunks: list[Any] = [pa.array(part, pa.int32()) for part in np.array_split(numbers, 7)]
    many = pa.table({"delay": pa.chunked_array(chunks)})
    predicate = _check("delay % 7 = 3")

    assert predicate.mask(FLIGHTS.slice(0, 0)).tolist() == []
    assert _check("true").mask(FLIGHTS.slice(0, 0)).tolist() == []
    assert np.array_equal(predicate.mask(many), numbers % 7 == 3)
    assert predicate.mask(many).dtype == np.bool_


def test_long_texts_are_returned_in_several_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new values of an update may have more text than one array holds."""
    monkeypatch.setattr(grouping, "ARRAY_BYTES", 0)
    table = pa.table({"t": [f"row {number}" for number in range(10_000)]})
    expression = check_expression("t || '!'", table.schema, what="set=")

    with open_sandbox() as sandbox:
        found = expression.values_in(sandbox, table)

    assert max(len(chunk) for chunk in found.chunks) <= grouping.ROWS_MIN
    assert found.to_pylist() == [f"row {number}!" for number in range(10_000)]


def test_predicates_travel_to_executors() -> None:
    """The driver checks a predicate, and each executor computes it."""
    predicate = _check("delay > 0")
    copy = pickle.loads(pickle.dumps(predicate))

    assert copy == predicate
    assert copy.mask(FLIGHTS).tolist() == [True, False, True, False]


def test_the_machines_time_zone_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """An instant has another hour in another time zone, so a condition uses UTC."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")

    assert _chosen("hour(seen) = 12") == [0, 1, 3]
    assert _chosen("seen::varchar = '2013-01-01 12:00:00+00'") == [0, 1, 3]
    assert _chosen("wall = seen") == [0, 1, 3]


TOKENS = [
    "(",
    ")",
    "'",
    '"',
    ";",
    "--",
    "/*",
    "*/",
    ",",
    "true",
    "or",
    "not",
    "delay",
    "1",
    "select",
    "from",
    "tidelog_rows",
    "as",
    "p",
    "=",
    "$1",
    "$$",
    "x",
]


@settings(deadline=None, max_examples=60)
@given(
    sql=st.lists(
        st.sampled_from(TOKENS),
        max_size=8,
    ).map(" ".join)
)
def test_what_is_accepted_is_safe_within_parentheses(sql: str) -> None:
    """The canary for unknown tricks: the negation of a condition must negate every row."""
    try:
        predicate = _check(sql)
    except UsageError:
        return

    negated = _check(f"({predicate.sql}) is not true")
    assert np.array_equal(negated.mask(FLIGHTS), ~predicate.mask(FLIGHTS))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the sandboxes that are opened from now on; none is idle."""
    found: list[Any] = []
    connect = duckdb.connect

    def counted(*given: Any, **named: Any) -> Any:
        found.append(connect(*given, **named))
        return found[-1]

    monkeypatch.setattr(predicate, "_IDLE", {})
    monkeypatch.setattr(duckdb, "connect", counted)
    return found


def test_a_process_opens_one_sandbox_for_many_conditions(opened: list[Any]) -> None:
    """The rows of one use are unknown in the next."""
    assert _chosen("delay > 0") == [0, 2]
    assert _check("carrier::int = 1").failing(FLIGHTS).tolist() == [True, True, False, True]
    assert _chosen("carrier = 'DL'") == [1]

    assert len(opened) == 1
    with predicate.open_sandbox() as sandbox, pytest.raises(duckdb.CatalogException):
        sandbox.execute(f"SELECT * FROM {predicate.ROWS}")


def test_sandboxes_in_use_at_one_time_differ(opened: list[Any]) -> None:
    """At most two of them wait for another use."""
    with (
        predicate.open_sandbox() as first,
        predicate.open_sandbox() as second,
        predicate.open_sandbox() as third,
    ):
        assert len({id(one) for one in (first, second, third)}) == 3

    assert sum(map(len, predicate._IDLE.values())) == predicate.IDLE_MAX


def test_a_sandbox_is_not_used_again_after_an_error(opened: list[Any]) -> None:
    """A computation that takes too long may still use it."""
    with pytest.raises(UsageError):
        _check("carrier::int = 1").mask(FLIGHTS)
    assert _chosen("delay > 0") == [0, 2]

    assert len(opened) == 2
    with pytest.raises(duckdb.ConnectionException):
        opened[0].execute("SELECT 1")


def test_a_child_process_opens_its_own_sandbox(
    opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child of a fork has the memory of its parent's database, but not its threads."""
    _chosen("delay > 0")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    _chosen("delay > 0")

    assert len(opened) == 2
    opened[0].execute("SELECT 1")
