"""Rows in another order from columns with more text than one Arrow array can hold."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from tidelog.persist.format.corrected import consolidated
from tidelog.persist.format.newest import newest_of
from tidelog.persist.format.part import int64_array, taken

CHUNKS, ROWS, WIDTH = 80, 32, 1 << 20
COUNT = CHUNKS * ROWS
LAST = [place + 318 for place in range(0, COUNT, 320)]


@pytest.fixture(scope="module")
def large() -> pa.Table:
    """Rows with 2.5 GiB of text; the chunks share 32 MiB of memory."""
    chunk = pa.array([str(n).rjust(WIDTH) for n in range(ROWS)])
    keys = pa.array(range(COUNT), pa.int64())
    return pa.table({"k": keys, "v": pa.chunked_array([chunk] * CHUNKS)})


def check(rows: pa.Table, places: list[int]) -> None:
    assert rows.column("k").to_pylist() == places
    texts = [str(text).strip() for text in rows.column("v").to_pylist()]
    assert texts == [str(place % ROWS) for place in places]


@pytest.mark.parametrize("places", [[], [7], [0, 0, 9], [COUNT - 1, 0], [5, 5, 4, COUNT - 3, 4]])
def test_few_rows_of_much_text_come_in_the_order_of_their_places(
    large: pa.Table, places: list[int]
) -> None:
    """Arrow's own call fails, although the result is small."""
    numbers = int64_array(np.array(places, np.int64))
    with pytest.raises(pa.ArrowInvalid):
        large.take(numbers)
    check(taken(large, numbers), places)


def test_any_places_of_much_text_give_their_rows(large: pa.Table) -> None:
    """Each half of the places is put in order alone, and again, until Arrow can do it."""
    places = random.Random(1).choices(range(COUNT), k=50)
    check(taken(large, np.array(places, np.int64)), places)


def test_updates_with_much_text_have_a_newest(large: pa.Table) -> None:
    """An upsert of many rows of a table writes each old row and each new one."""
    keys = pa.array([n // 320 for n in range(COUNT)], pa.int64())
    diffs = pa.array([1, -1] * (COUNT // 2), pa.int64())
    updates = large.set_column(0, "k", keys).append_column("_diff", diffs)
    newest = newest_of([updates], [1], ["k", "v"])
    assert newest is not None
    assert newest.keys.tolist() == list(range(COUNT // 320))
    check(newest.rows.set_column(0, "k", int64_array(newest.keys * 320 + 318)), LAST)


def test_updates_with_much_text_are_consolidated(large: pa.Table) -> None:
    """A delete of most rows of a table adds them up first."""
    signs = [1] * (COUNT // 2) + [-1] * (COUNT // 2)
    repeated = pa.array([n % (COUNT // 2) for n in range(COUNT)], pa.int64())
    updates = large.set_column(0, "k", repeated)
    updates = updates.append_column("_diff", pa.array([*signs[:-1], 1], pa.int64()))
    found = consolidated(updates)
    assert found.column("k").to_pylist() == [COUNT // 2 - 1]
    assert found.column("_diff").to_pylist() == [2]
