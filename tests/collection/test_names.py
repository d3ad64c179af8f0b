"""Field names that a source lacks or has in another case: reported once, with a remedy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.sources import contents, lake_of
from tidelog.collection.formats.json.texts import fold_names
from tidelog.collection.formats.names import match_names
from tidelog.collection.ingest.run import run_ingest
from tidelog.collection.ingest.summary import RunProgress, Summary
from tidelog.errors import UsageError
from tidelog.location import Location

FORMATS = ["json", "json-array", "csv", "parquet"]


def write(path: Path, format: str, table: pa.Table) -> None:
    if format == "csv":
        pcsv.write_csv(table, path)
    elif format == "parquet":
        pq.write_table(table, path)
    else:
        rows = [json.dumps(row) for row in table.to_pylist()]
        lines = "\n".join(rows) + "\n"
        path.write_text("[" + ",\n".join(rows) + "]" if format == "json-array" else lines)


async def run(location: Location) -> tuple[Summary, list[str]]:
    told: list[str] = []

    def hear(progress: RunProgress) -> None:
        told.extend(progress.warnings)

    ingester = await location.sources.ingester("c", bytes_max=1)
    done = await run_ingest(ingester, follow=False, interval_us=0, on_tick=hear, stop=lambda: False)
    return done, told


@pytest.mark.parametrize("format", FORMATS)
async def test_a_new_column_is_told_once(tmp_path: Path, format: str) -> None:
    """The warning comes once although every file has the column, and it states the remedy."""
    (tmp_path / "in").mkdir()
    for number in range(3):
        table = pa.table({"id": [number], "x": ["a"], "y": ["b"], "X": ["c"]})
        write(tmp_path / "in" / f"{number}.txt", format, table)

    done, told = await run(await lake_of(tmp_path, format=format, schema="id bigint, x text"))

    assert (done.rows, dict(done.dropped)) == (3, {"y": 3, "X": 3})
    told.sort(key=lambda warning: "'X'" in warning)
    assert len(told) == 2
    assert "'y' that the source lacks" in told[0]
    assert "add the column with 'tidelog source alter'" in told[0]
    assert "'X', but the source has 'x'" in told[1]
    assert "ignore_case" in told[1]


@pytest.mark.parametrize("schema", ["id bigint, x text", None])
@pytest.mark.parametrize("format", FORMATS)
async def test_names_of_any_case_are_one_column(
    tmp_path: Path, format: str, schema: str | None
) -> None:
    """With `ignore_case`, the name spelled as the column wins if a row has two."""
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "1", format, pa.table({"id": [1], "x": ["a"]}))
    write(tmp_path / "in" / "2", format, pa.table({"ID": [2], "X": ["b"]}))
    write(tmp_path / "in" / "3", format, pa.table({"Id": [0], "x": ["c"], "id": [3]}))

    location = await lake_of(tmp_path, format=format, schema=schema, ignore_case=True)
    done, _ = await run(location)

    assert (done.rows, done.bad, dict(done.waiting)) == (3, 0, {})
    assert dict(done.dropped) == {"Id": 1}
    found = ["{'id': 1, 'x': 'a'}", "{'id': 2, 'x': 'b'}", "{'id': 3, 'x': 'c'}"]
    assert await contents(location) == found


@pytest.mark.parametrize("format", FORMATS)
async def test_two_names_of_one_column_are_refused_with_the_option(
    tmp_path: Path, format: str
) -> None:
    """The error states both remedies. `ignore_case` drops the second name."""
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "1", format, pa.table({"id": [1], "ID": [2]}))

    with pytest.raises(UsageError, match=r"differ only in case.*schema=.*ignore_case=True"):
        await lake_of(tmp_path, format=format, schema=None)
    location = await lake_of(tmp_path, format=format, schema=None, ignore_case=True)
    done, _ = await run(location)
    assert dict(done.dropped) == {"ID": 1}
    assert await contents(location) == ["{'id': 1}"]


@pytest.mark.parametrize("format", ["csv", "parquet"])
async def test_a_file_all_of_whose_names_have_another_case_names_the_option(
    tmp_path: Path, format: str
) -> None:
    """The file waits. The message names the option that would accept it."""
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "1", format, pa.table({"ID": [1], "X": ["a"]}))

    done, _ = await run(await lake_of(tmp_path, format=format, schema="id bigint, x text"))

    assert (done.rows, "ignore_case" in done.waiting["1"]) == (0, True)


@pytest.mark.parametrize(
    ("line", "respelled"),
    [
        (b'{"ID": 1.50, "x" : {"ID": [1]}}\n', b'{"id": 1.50, "x" : {"ID": [1]}}\n'),
        (b'{"ID": NaN}\n', b'{"id": NaN}\n'),
        (b'{"\\u0049D":1, "t": "{\\"ID\\": "}', b'{"id":1, "t": "{\\"ID\\": "}'),
        (b'{"Id": 1, "ID": 2}', b'{"id": 1, "ID": 2}'),
        (b'{"ID": 1, "id": 2}', b'{"ID": 1, "id": 2}'),
        (b'{"ID": 1,', b'{"id": 1,'),
        (b'{"\xc3\x89": 1}', b'{"\xc3\xa9": 1}'),
        (b'["ID"]', b'["ID"]'),
        (b"{}", b"{}"),
    ],
)
def test_names_of_a_line_are_respelled_and_nothing_else(line: bytes, respelled: bytes) -> None:
    """Values keep their digits, and names within values keep their case."""
    assert fold_names([line, b'{"id": 1}'], ["id", "x", "é"]) == [respelled, b'{"id": 1}']


@given(st.lists(st.sampled_from(["a", "A", "b", "B", "c", "C", "d"]), max_size=5))
def test_each_column_is_matched_at_the_most_once_by_a_new_spelling(names: Sequence[str]) -> None:
    """Two matches would lose one of their values silently."""
    own = match_names(names, ["a", "B"])

    assert [one.casefold() for one in own] == [one.casefold() for one in names]
    for name in ("a", "B"):
        assert own.count(name) <= max(1, names.count(name))
        assert (name in own) == (name.casefold() in {one.casefold() for one in names})
