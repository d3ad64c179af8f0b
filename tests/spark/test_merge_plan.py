"""The division of merges: each row has one place, and rows that may cancel have the same one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.shard_tables import KINDS, schema_of, table_of, updates
from kit.shards import plain_part
from tidelog.persist.format.bounds import ordered
from tidelog.spark import merge_plan
from tidelog.spark.merge_plan import MergeJob, can_cut, pieces_of, places_count, shares_of
from tidelog.testing.models import rows_of

MIB = 1 << 20


def job_of(places: int, cuts: tuple[object, ...] = ()) -> MergeJob:
    return MergeJob(
        location_url="file:///nowhere",
        shard="s",
        schema=b"",
        write_epoch=0,
        part_bytes=1,
        advanced_to=0,
        memory_bytes=1,
        places=places,
        cuts=cuts,
    )


@given(data=st.data())
def test_rows_go_where_their_first_column_says(data: st.DataObject) -> None:
    """A row's place follows from its first column, in any input order; nulls come last."""
    kind = data.draw(st.sampled_from([k for k in sorted(KINDS) if can_cut(schema_of([k], keys=1))]))
    schema = schema_of([kind, "int64"], keys=1)
    table = data.draw(updates(schema, [kind, "int64"], max_size=20))
    values = ordered(table.column("c0")).to_pylist()
    known = sorted({value for value in values if value is not None})
    cuts = tuple(sorted(data.draw(st.sets(st.sampled_from(known), max_size=3)))) if known else ()

    found = dict(pieces_of(table, job_of(len(cuts) + 1, cuts), schema))

    rows = rows_of(table, table.column_names)
    for place in range(len(cuts) + 1):
        expected = Counter(
            row
            for row, value in zip(rows, values, strict=True)
            if (len(cuts) if value is None else sum(value >= cut for cut in cuts)) == place
        )
        piece = found.get(place, table.slice(0, 0))
        assert Counter(rows_of(piece, table.column_names)) == expected
        assert (place in found) == bool(expected)


@given(data=st.data())
def test_equal_rows_have_one_place_by_their_hash(data: st.DataObject) -> None:
    """Rows that differ only in time and diff have one place, for every type."""
    kinds = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3))
    schema = schema_of(kinds, keys=1)
    table = data.draw(updates(schema, kinds, max_size=20))

    found = dict(pieces_of(table, job_of(3), schema))

    assert sum(piece.num_rows for piece in found.values()) == table.num_rows
    seen = [set(rows_of(piece, schema.names)) for piece in found.values()]
    assert sum(len(rows) for rows in seen) == len(set().union(*seen))


@pytest.mark.parametrize(
    ("size_bytes", "cores", "places"),
    [(0, 8, 1), (7 * MIB, 8, 1), (16 * MIB, 8, 2), (64 * MIB, 2, 2), (6_400 * MIB, 2, 100)],
)
def test_there_are_as_many_places_as_pay(size_bytes: int, cores: int, places: int) -> None:
    """All cores get work if there is enough, and no task gets more than it can hold."""
    assert places_count(size_bytes, cores) == places


def test_parts_are_read_in_their_order_some_at_a_time() -> None:
    """Each part is read once and in order; a large part has a task of its own."""
    sizes = [6, 6, 6, 40, 1, 1]
    parts = [
        plain_part(inline=b"", size_bytes=size * MIB, xxh3=bytes([number]))
        for number, size in enumerate(sizes)
    ]
    shares = shares_of(parts)

    assert [part for share in shares for part in share] == parts
    assert [len(share) for share in shares] == [2, 1, 1, 2]
    assert merge_plan.READ_BYTES == 16 * MIB


def test_an_empty_table_has_no_pieces() -> None:
    """An empty table gives no pieces."""
    schema = schema_of(["int64"], keys=1)
    assert not list(pieces_of(table_of(schema, []), job_of(2, (1,)), schema))
