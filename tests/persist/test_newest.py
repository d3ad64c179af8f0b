"""The newest updates of keys over stretches of a base, compared with a dict of rows."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.persist.format import newest as newest_module
from tidelog.persist.format.newest import Newest, newest_of

NULL = "null"

Rows = list[tuple[int, str, int]]  # Key, value, diff.
COMMIT = st.dictionaries(
    st.integers(-6, 12), st.none() | st.sampled_from(["a", "b", NULL]), min_size=1, max_size=8
)
NAMES = ["k", "v", "small", "flag", "at"]


def table_of(rows: Rows, dtype: pa.DataType | None = None, *, packed: bool = False) -> pa.Table:
    """Return rows whose other columns follow from the value; text may have a dictionary."""
    keys, values, diffs = ([row[place] for row in rows] for place in range(3))
    text = pa.array([None if value == NULL else value for value in values], pa.string())
    columns = [
        pa.array(keys, dtype or pa.int64()),
        text.dictionary_encode() if packed else text,
        pa.array([len(str(value)) for value in values], pa.int8()),
        pa.array([value == "a" for value in values], pa.bool_()),
        pa.array([None if value == "b" else 7 for value in values], pa.timestamp("us", "UTC")),
    ]
    return pa.table([*columns, pa.array(diffs, pa.int64())], [*NAMES, "_diff"])


def committed(rows: dict[int, str], commit: dict[int, str | None]) -> Rows:
    """Apply a commit to rows; return its updates."""
    updates: Rows = []
    for key, value in commit.items():
        if key in rows:
            updates.append((key, rows.pop(key), -1))
        if value is not None:
            rows[key] = value
            updates.append((key, value, 1))
    return updates


def over(
    newest: Newest | None, stretches: list[Rows], *, packed: bool = False
) -> list[tuple[int, str]] | None:
    """Return the rows of stretches of the base with the newest updates; check all columns."""
    assert newest is not None
    found = newest.all_of([newest.over(table_of(rows, packed=packed)) for rows in stretches])
    if found is None:
        return None
    rows = [(row["k"], row["v"] or NULL) for row in found.to_pylist()]
    assert found.equals(table_of([(*row, 1) for row in rows]).select(found.column_names))
    return rows


@given(data=st.data(), commits=st.lists(COMMIT, min_size=1, max_size=5))
def test_the_newest_updates_over_any_stretches_are_the_rows(
    data: st.DataObject, commits: list[dict[int, str | None]]
) -> None:
    """It holds for any cuts of the base, any parts of a commit, and any order of their updates."""
    keys = data.draw(st.lists(st.integers(-3, 9), unique=True, min_size=1).map(sorted))
    base: Rows = [(key, "base", 1) for key in keys]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(keys)), max_size=3)))
    bounds = zip([0, *cuts], [*cuts, len(keys)], strict=True)
    stretches = [base[start:end] for start, end in bounds if end > start]
    rows = {key: value for key, value, _ in base}
    parts: list[tuple[int, Rows]] = []
    for time, commit in enumerate(commits):
        updates = data.draw(st.permutations(committed(rows, commit)))
        middle = data.draw(st.integers(0, len(updates)))
        parts += [(time, some) for some in (updates[:middle], updates[middle:]) if some]
    if not parts:
        return

    newest = newest_of([table_of(some) for _, some in parts], [time for time, _ in parts], NAMES)

    assert over(newest, stretches) == sorted(rows.items())


BASE: list[Rows] = [[(1, "a", 1), (3, "b", 1)], [(7, "c", 1)]]


@pytest.mark.parametrize(
    "updates",
    [
        [(3, "b", -1), (3, "b", -1)],
        [(3, "x", 1)],
        [(2, "x", -1)],
        [(5, "x", -1)],
        [(9, "x", -1)],
        [(0, "x", -1)],
        [(9, "x", 1), (9, "y", 1)],
    ],
)
def test_updates_that_contradict_the_rows_have_no_result(updates: Rows) -> None:
    """Each key counts: one row too many must not make up for one too few."""
    fair: Rows = [(1, "a", -1), (4, "n", 1)]
    newest = newest_of([table_of(fair), table_of(updates)], [1, 2], NAMES)
    assert over(newest, BASE) is None
    assert over(newest_of([table_of(fair)], [1], NAMES), BASE) == [
        (3, "b"),
        (4, "n"),
        (7, "c"),
    ]


def test_stretches_of_the_same_keys_have_no_result() -> None:
    """Such parts need a sum of their rows."""
    newest = newest_of([table_of([(4, "n", 1)])], [1], NAMES)
    assert over(newest, [BASE[0], BASE[0]]) is None
    assert over(newest, [[(3, "b", 1), (1, "a", 1)]]) is None


@pytest.mark.parametrize(
    ("dtype", "top"),
    [(pa.uint64(), 2**64 - 1), (pa.int8(), 2**7 - 1), (pa.int64(), 2**63 - 1)],
)
def test_extreme_keys_are_compared_exactly(dtype: pa.DataType, top: int) -> None:
    """A float between two integer types would round the greatest keys."""
    newest = newest_of([table_of([(top - 1, "n", 1)], dtype)], [1], NAMES)
    assert newest is not None
    base = [table_of([(top - 2, "a", 1)], dtype), table_of([(top, "b", 1)], dtype)]
    found = newest.all_of([newest.over(rows) for rows in base])
    assert found is not None
    assert found.column("k").to_pylist() == [top - 2, top - 1, top]


def test_texts_and_diffs_of_other_sizes_have_no_newest() -> None:
    """Only keys of numbers are searched, and a sum of all rows reports a diff of 2."""
    assert newest_of([table_of([(1, "a", 1)]).select(["v", "_diff"])], [1], ["v"]) is None
    assert newest_of([table_of([(1, "a", 2)])], [1], NAMES) is None


@pytest.mark.parametrize("packed", [False, True])
def test_values_too_large_for_one_array_have_no_result(
    monkeypatch: pytest.MonkeyPatch, *, packed: bool
) -> None:
    """Arrow's arrays of text hold 2 GiB, and a dictionary unpacks to more than it holds."""
    newest = newest_of([table_of([(1, "n", 1)])], [1], ["k", "v"])
    monkeypatch.setattr(newest_module, "ARRAY_BYTES_MAX", 100)
    for word, is_found in (("w", True), ("w" * 40, False)):
        base: Rows = [(key, word, 1) for key in (0, 2, 4)]
        assert (over(newest, [base], packed=packed) is not None) is is_found, word
