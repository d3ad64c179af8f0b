"""The scope of a read of a keyed log, by options and conditions: it never omits a match."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import UsageError
from tidelog.keyed.format.part import RunPart
from tidelog.keyed.values import KEYED_RECORDS, KeyedQuery, Keys
from tidelog.spark.keyed.options import (
    check_keyed_for_batch,
    check_keyed_for_stream,
    read_keyed_settings,
    read_keyed_write_settings,
)
from tidelog.spark.keyed.wanted import KeyedScope, scope_of

KEYS = st.binary(max_size=2) | st.sampled_from([b"", b"\xff", b"\xff\xff", b"a\x00"])
SEQUENCES = st.integers(1, 30)
ROWS = st.lists(st.tuples(KEYS, SEQUENCES), max_size=20, unique_by=lambda row: row[1])
QUERIES = st.builds(
    lambda keys, start, rows: KeyedQuery(keys=keys, start=start, limit=rows and start + rows),
    st.just(Keys.all()) | KEYS.map(Keys.one) | KEYS.map(Keys.prefix),
    SEQUENCES,
    st.none() | SEQUENCES,
)


@given(rows=ROWS, query=QUERIES)
def test_a_scope_leaves_out_no_row_of_its_query(
    rows: list[tuple[bytes, int]], query: KeyedQuery
) -> None:
    """A scope returns exactly the rows of a query, and keeps each part that holds one."""
    scope = scope_of(query)
    rows = sorted(rows, key=lambda row: row[1])
    limit = 2**63 if query.limit is None else query.limit
    wanted = [
        (key, sequence)
        for key, sequence in rows
        if query.start <= sequence < limit and query.keys.contains(key)
    ]
    given = [
        {"key": key, "sequence": sequence, "timestamp_us": 0, "value": b""}
        for key, sequence in rows
    ]
    table = pa.Table.from_pylist(given, schema=KEYED_RECORDS)

    found = [(row["key"], row["sequence"]) for row in scope.rows_of(table).to_pylist()]
    assert found == wanted
    if wanted:
        assert not scope.is_nothing
        assert scope.may_be_in(part_of(rows))


def test_a_part_without_a_match_is_left_out() -> None:
    """The bounds of a part exclude it by key or by sequence."""
    scope = scope_of(KeyedQuery(keys=Keys.one(b"k"), start=7, limit=10))

    assert scope.may_be_in(part_of([(b"a", 7), (b"z", 8)]))
    assert not scope.may_be_in(part_of([(b"a", 7), (b"j", 8)]))
    assert not scope.may_be_in(part_of([(b"a", 1), (b"z", 6)]))
    assert KeyedScope(keys=()).is_nothing


def part_of(rows: list[tuple[bytes, int]]) -> RunPart:
    keys, sequences = [row[0] for row in rows], [row[1] for row in rows]
    return RunPart(
        path="p",
        directory="d",
        rows=len(rows),
        keys=len(set(keys)),
        num_bytes=1,
        directory_bytes=1,
        first_key=min(keys),
        last_key=max(keys),
        min_sequence=min(sequences),
        max_sequence=max(sequences),
        first_us=0,
        last_us=0,
        tail_bytes=1,
        directory_xxh3=b"",
        tail_xxh3=b"",
    )


def settings_of(**options: str) -> Any:
    return read_keyed_settings({"path": "log", "location": "/lake", "kind": "keyed", **options}, {})


def test_options_say_which_keys() -> None:
    """An option gives a key in text, hex or base64, or a prefix."""
    assert settings_of().wanted == KeyedScope()
    for options in ({"key": "ä"}, {"keyHex": "c3a4"}, {"keyBase64": "w6Q="}):
        assert settings_of(**options).wanted == scope_of(KeyedQuery(keys=Keys.one("ä".encode())))
    assert settings_of(prefixHex="ff").wanted == scope_of(KeyedQuery(keys=Keys.prefix(b"\xff")))
    assert settings_of(key="").wanted.keys == (b"",)
    told = settings_of(start="5", limit="9", prefix="a").wanted
    assert (told.first, told.last, told.start, told.limit) == (b"a", b"b", 5, 9)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"keyHex": "f"}, "is not valid hex"),
        ({"keyBase64": "w6Q"}, "is not valid base64"),
        ({"key": "a", "prefix": "b"}, "only one option for a key or a prefix"),
        ({"key": "\ud800"}, "is not valid text"),
        ({"key": "a" * 16_385}, "a key must have at most 16384 bytes"),
        ({"start": "soon"}, "must be a sequence"),
        ({"start": "9", "limit": "5"}, "is reversed"),
        ({"limit": "-1"}, "whole number"),
        ({"txnAppId": "a"}, "applies only to writes"),
        ({"asOf": "1"}, "unknown option 'asOf'"),
        ({"path": ""}, "name of the keyed log is missing"),
        ({"maxRecordsPerBatch": "0"}, "whole number of at least 1"),
    ],
)
def test_bad_options_of_reads_are_told(options: dict[str, str], told: str) -> None:
    """Each bad option gives a sentence, before any I/O."""
    with pytest.raises(UsageError, match=told):
        settings_of(**options)


def test_options_of_the_other_kind_of_read_are_told() -> None:
    """A batch refuses options of streams, and a stream those of batches."""
    for options, check, told in (
        ({"start": "latest"}, check_keyed_for_batch, "needs readStream"),
        ({"maxRecordsPerBatch": "5"}, check_keyed_for_batch, "needs readStream"),
        ({"limit": "5"}, check_keyed_for_stream, "a stream has no end"),
        ({"checkpoint": "c"}, check_keyed_for_stream, "a checkpoint never changes"),
    ):
        with pytest.raises(UsageError, match=told):
            check(settings_of(**options))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"txnAppId": "a"}, "set both, or neither"),
        ({"txnVersion": "1"}, "set both, or neither"),
        ({"txnAppId": "a", "txnVersion": "x"}, "whole number of at least 0"),
        ({"txnAppId": "a" * 1_025, "txnVersion": "1"}, "1 to 1024 bytes"),
        ({"start": "1"}, "applies only to reads"),
        ({"keyHex": "00"}, "applies only to reads"),
        ({"mode": "x"}, "unknown option 'mode'"),
    ],
)
def test_bad_options_of_writes_are_told(options: dict[str, str], told: str) -> None:
    """A batch name needs both options."""
    given = {"path": "log", "location": "/lake", "kind": "keyed", **options}
    with pytest.raises(UsageError, match=told):
        read_keyed_write_settings(given, {})
