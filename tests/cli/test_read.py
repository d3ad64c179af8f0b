"""``read`` and ``changes``: the requested rows, in every format, to standard output and files."""

from __future__ import annotations

import csv
import errno
import io
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.conftest import Cli, refused
from kit.shard_tables import KINDS
from tidelog.cli.encoded_rows import BLOCK_BYTES, LineRows, ParquetRows, _blocks
from tidelog.cli.output import OutputClosed, OutputFailed
from tidelog.cli.values import json_values, text_values
from tidelog.cli.writers import _told
from tidelog.persist.format.schema import MEANING
from tidelog.persist.read import opened

ROWS = [{"id": n, "name": f"name {n % 3}", "at": 1_000 * (n + 1)} for n in range(9)]


@pytest.fixture
def rows(cli: Cli) -> Cli:
    """A collection of nine rows from nine ticks, each a part."""
    path = cli.write_lines("rows.jsonl", *ROWS)
    cli.done("source", "create", "rows", "--files", path, "--time-column", "at")
    with patch("tidelog.persist.format.part.INLINE_BYTES", 0):
        cli.ingest("rows", "--max-bytes-per-tick", "40")
    return cli


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4))
    count = draw(st.integers(0, 5))
    columns = [
        pa.array(
            draw(st.lists(st.none() | KINDS[k][1], min_size=count, max_size=count)), KINDS[k][0]
        )
        for k in kinds
    ]
    whole = pa.table(columns, [f"{'abcd'[n]}'\"{n}" for n in range(len(columns))])
    return whole.slice(draw(st.integers(0, count)))


def lines_of(table: pa.Table, *, is_csv: bool) -> str:
    found = bytearray()
    rows = LineRows(table.schema, found.extend, is_csv=is_csv)
    rows.prepare(table)()
    rows.close()
    return found.decode()


@settings(max_examples=30, deadline=None)
@given(table=tables())
def test_lines_are_the_values_as_they_are_documented(table: pa.Table) -> None:
    """Lines made without Python values equal those made with them: see `tidelog.cli.values`."""
    columns = [[v for c in column.chunks for v in json_values(c)] for column in table.columns]
    names = table.column_names
    expected = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    found = [json.loads(line) for line in lines_of(table, is_csv=False).splitlines()]
    assert found == json.loads(msgspec.json.encode(expected))
    assert [list(row) for row in found] == [names] * len(found)


def test_no_bytes_are_not_null_in_csv() -> None:
    """Empty bytes, empty text and null differ in csv, though Python's reader hides it."""
    table = pa.table({"b": pa.array([b"", None, b"a"]), "s": pa.array([None, "", "a"])})

    assert lines_of(table, is_csv=True) == 'b,s\n"",\n,""\nYQ==,a\n'


@settings(max_examples=30, deadline=None)
@given(table=tables())
def test_csv_is_read_back_by_others(table: pa.Table) -> None:
    """Text is quoted if needed, and a null is an empty field, in all types."""
    texts = [[v for c in column.chunks for v in text_values(c)] for column in table.columns]
    text = lines_of(table, is_csv=True)

    head, *found = csv.reader(io.StringIO(text, newline=""))
    assert head == table.column_names
    assert len(found) == table.num_rows
    for number, column in enumerate(table.columns):
        for row, expected in zip(found, texts[number], strict=True):
            told = row[number]
            if pa.types.is_floating(column.type) and told not in (
                "",
                "NaN",
                "Infinity",
                "-Infinity",
            ):
                assert float(told) == float(expected or "")
            elif pa.types.is_nested(column.type) and expected is not None:
                assert json.loads(told) == json.loads(expected)
            else:
                assert told == (expected or "")


def test_null_and_no_text_differ_in_csv(capsys: pytest.CaptureFixture[str]) -> None:
    """Null and the empty string differ, even in a single column without any text."""
    table = pa.table({"a": ["", None, "x", " y", "1,5"]})

    assert lines_of(table, is_csv=True).split("\n") == ["a", '""', '""', "x", '" y"', '"1,5"', ""]
    two = pa.table({"a": ["", None], "b": [1, None]})
    assert lines_of(two, is_csv=True).split("\n") == ["a,b", '"",1', ",", ""]


def test_every_sign_of_text_is_read_back() -> None:
    """Every character that JSON and csv escape or quote survives, in any position."""
    signs = [chr(code) for code in range(0x180)] + ["\u2028", "\U0001f600"]
    texts = [text for sign in signs for text in (sign, f"{sign}a", f"a{sign}", f"a{sign}b")]
    for table in (pa.table({"a": texts, "b": texts[::-1]}), pa.table({"a": [*texts, None]})):
        rows = table.to_pylist()
        found = lines_of(table, is_csv=False).split("\n")
        assert [json.loads(line) for line in found[:-1]] == rows

        text = lines_of(table, is_csv=True)
        told = list(csv.reader(io.StringIO(text, newline="")))[1:]
        assert told == [[value or "" for value in row.values()] for row in rows]


def test_a_whole_number_of_a_float_column_is_told_from_an_integer() -> None:
    """A whole number of a float column keeps its point, so that readers guess the same type."""
    numbers = [1.0, None, -0.0, 0.5, 1e9, float("nan"), 2.0**60, float("-inf"), 1e300]
    expected = ["1.0", "", "-0.0", "0.5", "1000000000.0", "NaN", "", "-Infinity", "1e+300"]
    for dtype in (pa.float64(), pa.float32()):
        told = lines_of(pa.table({"a": pa.array(numbers[:6], dtype), "b": range(6)}), is_csv=True)
        assert [line.split(",")[0] for line in told.splitlines()[1:]] == expected[:6]
    told = lines_of(pa.table({"a": numbers, "b": range(9)}), is_csv=True)
    cells = [line.split(",")[0] for line in told.splitlines()[1:]]

    assert [cell for cell, known in zip(cells, expected, strict=True) if known] == [
        known for known in expected if known
    ]
    assert float(cells[6]) == 2.0**60


def test_lines_of_many_columns_are_made_a_few_at_once() -> None:
    """Lines are made in blocks whose text has a limited size, although a bit becomes a word."""
    table = pa.table({f"a column of a long name {n}": [True] * 20_000 for n in range(60)})
    blocks = list(_blocks(table))

    assert sum(block.num_rows for block in blocks) == table.num_rows
    assert max(len(lines_of(block, is_csv=False)) for block in blocks) < 2 * BLOCK_BYTES


@pytest.mark.parametrize("first", [0, 1])
def test_parquet_says_nothing_of_how_text_came(first: int) -> None:
    """The parquet schema is the same whether or not a part had a dictionary."""
    fields: list[pa.Field[Any]] = [
        pa.field("n", pa.list_(pa.int64())),
        pa.field("t", pa.string(), metadata={MEANING: b"json"}),
    ]
    schema = pa.schema(fields)
    plain = pa.table({"n": [[1], [2]], "t": ["x", None]}, schema)
    packed = plain.set_column(1, "t", plain.column("t").dictionary_encode())
    found = io.BytesIO()
    rows = ParquetRows(schema, found)  # type: ignore[arg-type]  # More than it asks for.
    for table in (plain, packed)[first:] + (plain, packed)[:first]:
        rows.prepare(table)()
    with patch.object(found, "close"):
        rows.close()

    made = pq.ParquetFile(io.BytesIO(found.getvalue()))
    assert made.schema_arrow == schema
    assert (made.schema_arrow.field("t").metadata or {})[MEANING] == b"json"
    assert made.read().equals(pa.concat_tables([plain, plain]))


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.csv", None),
        ("a.jsonl", None),
        ("a.parquet", None),
        ("a.arrow", None),
        ("a.x", "parquet"),
    ],
)
def test_a_file_holds_what_its_name_says(rows: Cli, name: str, format: str | None) -> None:
    """The file's name decides the format; nothing goes to standard output."""
    path = rows.folder / name
    told = [] if format is None else ["--format", format]
    said = rows.done("read", "rows", "-o", path, *told)

    assert (said.out, said.err) == ("", "")
    if format == "parquet" or name.endswith(".parquet"):
        assert pq.read_table(path).to_pylist() == ROWS
    elif name.endswith(".arrow"):
        with pa.memory_map(str(path)) as file:
            assert pa.ipc.open_file(file).read_all().to_pylist() == ROWS
    elif name.endswith(".csv"):
        assert list(csv.DictReader(io.StringIO(path.read_text()))) == [
            {name: str(value) for name, value in row.items()} for row in ROWS
        ]
    else:
        assert [json.loads(line) for line in path.read_text().splitlines()] == ROWS
    assert sorted(p.name for p in rows.folder.iterdir() if p.name.startswith(".")) == []


def test_arrow_on_standard_output_is_a_stream(rows: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow output to a pipe is a stream, since a pipe cannot seek."""
    found = bytearray()
    monkeypatch.setattr("tidelog.cli.writers.write_bytes", found.extend)
    rows.done("read", "rows", "--format", "arrow", "--where", "id < 3")

    assert pa.ipc.open_stream(bytes(found)).read_all().to_pylist() == ROWS[:3]


def test_a_file_is_there_when_it_is_whole_and_not_before(rows: Cli) -> None:
    """A failed read leaves the old file unchanged and no temporary file."""
    path = rows.folder / "kept.csv"
    path.write_text("before")
    said = rows("read", "rows", "-o", path, "--where", "1 / (id - 5) > 7 OR error(name) IS NULL")

    assert said.status == 2, said.err
    assert path.read_text() == "before"
    assert [p.name for p in rows.folder.glob("*kept*")] == ["kept.csv"]
    assert [p.name for p in rows.folder.glob(".*kept*")] == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--format", "xml"), "must be one of table, json, csv, parquet, arrow, not 'xml'"),
        (("--json", "--format", "parquet"), "exclude each other"),
        (("-o", "no/such/a.csv"), "no folder no/such: create it first"),
        (("-o", "."), "is a folder: name a file"),
        (("-o", "new/"), "-o new/ is a folder: name a file"),
        (("-o", "new/."), "-o new/. is a folder: name a file"),
        (("-o", ""), "-o '' has no name: name a file"),
        (("--where", "id = 1", "--where", "id = 2"), "join the conditions with AND"),
        (("--columns", "id,nope"), "no column named 'nope': the columns are id, name, at"),
        (("--columns", "id,"), "--columns must be names separated by commas"),
        (("--columns", "id,id"), "--columns is empty, or names a column twice"),
    ],
)
def test_what_cannot_be_written_is_refused(
    rows: Cli, arguments: tuple[str, ...], told: str
) -> None:
    """A bad request gives one sentence, and prints no rows."""
    for verb in (("read", "rows"), ("changes", "rows", "--since", "0")):
        said = rows(*verb, *arguments)

        assert said.status == 2
        assert told in said.err.splitlines()[0]
        assert said.out == ""


def test_columns_and_rows_are_chosen(rows: Cli) -> None:
    """Columns keep the requested order; the condition may use other columns."""
    chosen = ("--columns", "name,id", "--where", '"at" > 3000 AND id <> 4', "--limit", "2")
    found = rows.done("read", "rows", *chosen).objects

    assert [list(row.items()) for row in found] == [
        [("name", "name 0"), ("id", 3)],
        [("name", "name 2"), ("id", 5)],
    ]
    changed = rows.done("changes", "rows", "--since", "0", *chosen).objects
    assert [(row["_time"], row["_diff"], row["name"]) for row in changed] == [
        (4_000, 1, "name 0"),
        (6_000, 1, "name 2"),
    ]


def count_parts(cli: Cli, *arguments: str) -> int:
    """Run a command that must succeed; return the number of parts it opened."""
    count = 0
    real = opened.PartOpener._checked

    def counting(self: Any, part: Any, data: bytes, *, in_files: bool) -> Any:
        nonlocal count
        count += 1
        return real(self, part, data, in_files=in_files)

    with patch.object(opened.PartOpener, "_checked", counting):
        cli.done(*arguments)
    return count


def test_a_limit_ends_the_reading(rows: Cli) -> None:
    """A limit must stop the read early."""
    assert count_parts(rows, "read", "rows") > 7
    assert count_parts(rows, "read", "rows", "--limit", "2") <= 3
    assert count_parts(rows, "read", "rows", "--limit", "0") == 0
    assert count_parts(rows, "changes", "rows", "--since", "0", "--limit", "1") == 1


def test_what_a_limit_shows_is_there(events: Cli) -> None:
    """A limited read must still apply the retractions of later parts."""
    with patch("tidelog.persist.format.part.INLINE_BYTES", 0):
        events.ingest("events", "--max-bytes-per-tick", "60")

    first = events.done("read", "events", "--limit", "1", "--columns", "name").objects
    assert first == [{"name": "uno"}]
    assert events.done("read", "events", "--limit", "5", "--where", "id = 2").objects == []


def test_a_bare_number_is_told_what_it_was_taken_for(rows: Cli) -> None:
    """A bare number is explained, since seconds instead of milliseconds mean January 1970."""
    said = rows.done("read", "rows", "--as-of", "1500")
    assert said.err == "--as-of 1500 is milliseconds since 1970: 1970-01-01T00:00:01.500Z\n"
    assert "asked=1970-01-20T16:13:20Z" in rows("read", "rows", "--as-of", "1700000000").complaint
    said = rows.done("read", "rows", "--as-of", "1970-01-01T00:00:02Z")
    assert (said.err, len(said.objects)) == ("", 2)
    said = rows.done("changes", "rows", "--since", "8000")
    assert said.err == "--since 8000 is milliseconds since 1970: 1970-01-01T00:00:08Z\n"


def test_a_terminal_is_shown_no_binary(rows: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets no binary output."""
    monkeypatch.setattr("tidelog.cli.writers.is_terminal", lambda: True)
    said = rows("read", "rows", "--format", "parquet")

    assert said.status == 2
    assert "write it to a file with -o FILE" in said.complaint


def test_rows_go_to_devices_as_they_are(rows: Cli) -> None:
    """A device or named pipe is written to, not replaced."""
    rows.done("read", "rows", "-o", Path("/dev/null"))

    assert Path("/dev/null").is_char_device()


def test_reading_loads_neither_pandas_nor_spark_nor_logs(rows: Cli) -> None:
    """A read does not load pandas, Spark or logs, each of which takes a part of a second."""
    script = (
        "import sys\n"
        "from tidelog.cli.main import main\n"
        "for words in (['read', 'rows', '--where', 'id > 3 AND name <> $$x$$', '--limit', '2'],\n"
        "              ['changes', 'rows', '--since', '0', '--format', 'csv']):\n"
        "    assert main(['--location', sys.argv[1], *words]) == 0\n"
        "print([n for n in ('pandas', 'pyspark', 'tidelog.wal.log') if n in sys.modules])\n"
    )
    command = [sys.executable, "-c", script, rows.location]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_columns_may_be_named_one_by_one(rows: Cli) -> None:
    """--columns may be repeated, like files and keys."""
    said = rows.done("read", "rows", "--columns", "name", "--columns", "id, at", "--limit", "1")
    assert list(said.object) == ["name", "id", "at"]


def test_what_a_link_leads_to_is_replaced_and_the_link_stays(rows: Cli) -> None:
    """A link such as latest.csv stays a link, and its target is replaced."""
    (rows.folder / "far").mkdir()
    link, real = rows.folder / "latest.csv", rows.folder / "far" / "1.csv"
    link.symlink_to(real)
    for limit in ("1", "2"):
        rows.done("read", "rows", "--columns", "id", "--limit", limit, "-o", link)
    assert link.is_symlink()
    assert real.read_text() == "id\n0\n1\n"
    assert [path.name for path in real.parent.iterdir()] == ["1.csv"]


def test_what_keeps_a_file_from_being_written_is_told_as_it_is(rows: Cli) -> None:
    """A closed pipe is no error, and only a full disk gives the advice to make room."""
    with pytest.raises(OutputClosed), _told(Path("pipe")):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")
    with (
        pytest.raises(OutputFailed, match="full cannot be written: free some space"),
        _told(Path("full")),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    said = rows("read", "rows", "-o", "/proc/nothing.csv")
    assert said.status == 1
    assert "cannot be written: write elsewhere (reason=No such file" in said.complaint


def test_a_follower_writes_each_change_as_it_becomes_complete(rows: Cli) -> None:
    """With a limit, the command ends after so many changes; they are those of a plain read."""
    plain = rows.done("changes", "rows", "--since", "0", "--json")
    followed = rows.done("changes", "rows", "--since", "0", "--follow", "--limit", "5", "--json")
    columns = rows.done(
        "changes", "rows", "--since", "0", "--follow", "--limit", "1", "--columns", "id", "--json"
    )

    assert followed.objects == plain.objects[:5]
    assert columns.object == {"_time": 1_000, "_diff": 1, "id": 0}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--until", "now"), "--follow and --until exclude each other"),
        (("-o", "x.csv"), "--follow never completes one"),
    ],
)
def test_options_that_end_a_follower_are_refused(
    rows: Cli, options: tuple[str, ...], text: str
) -> None:
    """A follower has no end, so it completes no file."""
    failed = rows("changes", "rows", "--since", "0", "--follow", *options)

    assert failed.status == 2
    assert text in failed.complaint


@pytest.mark.parametrize(
    "command",
    [
        ("read", "rows", "--as-of"),
        ("changes", "rows", "--since", "0", "--until"),
        ("changes", "rows", "--follow", "--since"),
        ("sql", "FROM rows", "--as-of"),
    ],
    ids=["read", "changes", "follow", "sql"],
)
def test_a_read_waits_for_its_time_at_most_as_long_as_the_user_says(
    command: tuple[str, ...], rows: Cli
) -> None:
    """Without an option, an incomplete time is an error, and no longer wait is advised."""
    later = "1970-01-01T00:01:00Z"
    limited = rows.run("--location", rows.location, *command, later, "--timeout", "0")
    wrong = rows.run("--location", rows.location, *command, later, "--timeout", "soon")

    refused(limited, "is complete up to 1970-01-01T00:00:09Z", "or wait longer", status=3)
    refused(wrong, "--timeout 'soon' is not a duration")
    if "--follow" not in command:
        plain = rows.run("--location", rows.location, *command, later)
        refused(plain, "is complete up to 1970-01-01T00:00:09Z", "ingest more")
        assert rows.done(*command, "9000", "--wait", "--json").out.count("\n") == 9


@pytest.mark.skipif(sys.platform != "linux", reason="the device and the limit are of Linux")
@pytest.mark.parametrize("format", ["json", "csv", "parquet", "arrow"])
@pytest.mark.parametrize("is_device", [True, False], ids=["device", "file"])
def test_a_full_disk_is_reported_when_the_last_bytes_are_written(
    rows: Cli, tmp_path: Path, format: str, is_device: bool
) -> None:
    """Few rows wait in memory until the file is closed. An incomplete file is deleted."""
    path = Path("/dev/full") if is_device else tmp_path / "found"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        said = rows("read", "rows", "--format", format, "-o", path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert (said.status, "cannot be written" in said.complaint) == (1, True)
    assert [*tmp_path.glob("*found*")] == []
