"""Files of rows: json arrays and compressed text; and ``table merge``, which reads them."""

from __future__ import annotations

import bz2
import datetime
import gzip
import io
import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidelog
from cli.conftest import Cli, refused
from kit.packing import packed
from tidelog.cli import row_files
from tidelog.cli.row_files import _large, _pieces
from tidelog.errors import UsageError

ROWS = [{"id": n, "item": f"i{n} ], [", "price": n / 2} for n in range(400)]
COLUMNS = "id bigint, item varchar, price double"


@pytest.fixture
def prices(cli: Cli) -> Cli:
    """A location with the table ``prices``, whose key is ``id``."""
    cli.done("table", "create", "prices", "--schema", COLUMNS, "--key", "id")
    return cli


def rows_of(cli: Cli, name: str = "prices") -> list[dict[str, Any]]:
    return cli.done("read", name, "--json").objects


def array_of(rows: list[dict[str, Any]], indent: int | None = None) -> bytes:
    return json.dumps(rows, indent=indent).encode()


@pytest.mark.parametrize("indent", [None, 2], ids=["one line", "many lines"])
@pytest.mark.parametrize("piece", [50, 1 << 20], ids=["pieces", "whole"])
def test_the_elements_of_an_array_are_rows(
    prices: Cli, monkeypatch: pytest.MonkeyPatch, indent: int | None, piece: int
) -> None:
    """An array may have any layout, and ends of reads may be anywhere in it."""
    monkeypatch.setattr(row_files, "READ_BYTES", piece)
    monkeypatch.setattr("tidelog.cli.feed.READ_BYTES", piece)
    prices.done(
        "table", "insert", "prices", given=b"\xef\xbb\xbf \n" + array_of(ROWS, indent) + b"\n\n"
    )

    assert rows_of(prices) == ROWS


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("format", ["json", "jsonl", "csv"])
def test_compressed_text_is_read(prices: Cli, suffix: str, format: str) -> None:
    """The ending before that of the compression names the format."""
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    if format == "json":
        text = array_of(ROWS).decode()
    if format == "csv":
        text = "id,item,price\n" + "".join(f'{r["id"]},"{r["item"]}",{r["price"]}\n' for r in ROWS)
    path = prices.folder / f"rows.{format}{suffix}"
    half = len(text) // 2
    path.write_bytes(packed(text.encode(), suffix, [half]))
    prices.done("table", "upsert", "prices", path)

    assert rows_of(prices) == ROWS


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.json", array_of(ROWS)[:-1], "its last ] is missing"),
        ("a.json", array_of(ROWS)[:-9], "its last ] is missing"),
        ("a.json", b'[{"id": 1}, 7]', "does not fit"),
        ("a.json", b'[{"id": 1}, {"id": [1]', "does not fit"),
        ("a.json", b'[{"id": 1, "x": 2}]', "the table has no column 'x'"),
        ("a.json.gz", packed(array_of(ROWS), ".gz")[:-20], "compressed data is incomplete"),
        ("a.csv.gz", b"id,item\n1,a\n", "cannot be read"),
        ("a.parquet.gz", packed(b"PAR1", ".gz"), "decompress it first"),
    ],
    ids=range(8),
)
def test_a_damaged_file_writes_nothing(
    prices: Cli, tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    """A file that was cut is not taken for a shorter one."""
    path = tmp_path / name
    path.write_bytes(data)

    refused(prices("table", "insert", "prices", path), words, "nothing was written")
    assert rows_of(prices) == []


async def test_a_read_that_ends_after_the_bracket_is_a_whole_array(tmp_path: Path) -> None:
    """White space may be all that a last read returns."""
    path = tmp_path / "a.json"
    path.write_bytes(b'[{"id": 1}]  \n')
    with (
        path.open("rb") as file,
        patch.object(row_files, "READ_BYTES", 11),
        patch("tidelog.cli.feed.READ_BYTES", 11),
    ):
        found = [one async for one in _large(_pieces(file.fileno(), None, io.BytesIO()))]

    assert found == [(b'[{"id": 1}]', False), (b"  \n", True)]


MERGES = [
    ((), [(1, "b"), (2, "a"), (3, "b")]),
    (("--when-matched", "ignore"), [(1, "a"), (2, "a"), (3, "b")]),
    (("--when-matched", "delete"), [(2, "a"), (3, "b")]),
    (("--when-matched", "delete", "--when-not-matched", "ignore"), [(2, "a")]),
]


@pytest.mark.parametrize(("options", "left"), MERGES, ids=str)
def test_a_merge_updates_deletes_inserts_or_ignores(
    prices: Cli, options: tuple[str, ...], left: list[tuple[int, str]]
) -> None:
    """The two options decide about the rows that match, and about the others."""
    prices.done(
        "table",
        "insert",
        "prices",
        given=array_of([{"id": 1, "item": "a"}, {"id": 2, "item": "a"}]),
    )
    given = array_of([{"id": 1, "item": "b"}, {"id": 3, "item": "b"}])
    done = prices.done("table", "merge", "prices", "-", *options, given=given)

    assert done.err.startswith("2 rows merged (")
    assert [(row["id"], row["item"]) for row in rows_of(prices)] == left


def test_a_merge_compares_the_columns_of_on(cli: Cli) -> None:
    """A table without a key needs them, and each row of the files has them."""
    cli.done("table", "create", "notes", "--schema", COLUMNS)
    cli.done(
        "table", "insert", "notes", given=array_of([{"id": 1, "item": "a"}, {"id": 2, "item": "b"}])
    )
    words = ("table", "merge", "notes", "-")
    cli.done(*words, "--on", "item", "--when-matched", "delete", given=array_of([{"item": "a"}]))
    missing = cli.run("--location", cli.location, *words, given=array_of([{"item": "b"}]))
    absent = cli.run(
        "--location", cli.location, *words, "--on", "id", "--format", "csv", given=b"item\nb\n"
    )
    unknown = cli("table", "merge", "notes", "--when-matched", "drop")

    refused(missing, "--on")
    refused(absent, "missing column 'id'")
    refused(unknown, "--when-matched", "'drop'")
    assert [(row["id"], row["item"]) for row in rows_of(cli, "notes")] == [(2, "b")]


@pytest.mark.parametrize("pieces", [1, 3], ids=["whole", "spooled"])
def test_a_merge_that_adds_no_rows_needs_only_the_compared_columns(
    cli: Cli, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows to delete need no key, in the command, in Python and in a transaction."""
    monkeypatch.setattr("tidelog.collection.table.incoming.STREAM_BYTES", 1)
    cli.done("table", "create", "prices", "--schema", COLUMNS, "--key", "id")
    rows = [{"id": n, "item": item} for n, item in enumerate("abcdefg")]
    cli.done("table", "insert", "prices", given=array_of(rows))
    files = [cli.write_lines(f"{n}.jsonl", {"item": "abc"[n]}) for n in range(pieces)]
    rule: Any = {"on": ["item"], "when_matched": "delete", "when_not_matched": "ignore"}
    words = ("--on", "item", "--when-matched", "delete", "--when-not-matched", "ignore")
    done = cli.done("table", "merge", "prices", *files, *words, "--json").object
    given = [pa.table({"item": [name]}) for name in "def"[:pieces]]
    with tidelog.connect(cli.location) as lake:
        lake.table("prices").merge(iter(given), **rule)
        with lake.transaction() as tx:
            tx.merge("prices", [{"item": "g"}], **rule)
        with pytest.raises(UsageError, match="'id' is null or missing"):
            lake.table("prices").merge([{"item": "x"}], on=["item"])

    assert (done["added"], done["removed"]) == (0, pieces)
    left = {*"abcdefg"} - {*"abc"[:pieces], *"def"[:pieces], "g"}
    assert {row["item"] for row in rows_of(cli, "prices")} == left


KINDS = "id bigint, item varchar, price double, at timestamp, cost decimal(9,2), sold boolean"
NOON = datetime.datetime(2026, 1, 2, 12, 0, 0, 1, datetime.UTC).replace(tzinfo=None)


def saved(folder: Path, rows: pa.Table, format: str) -> Path:
    path = folder / f"rows.{format}"
    if format == "parquet":
        pq.write_table(rows, path)
    else:
        with pa.ipc.new_file(str(path), rows.schema) as file:
            file.write_table(rows)
    return path


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("name", "values", "shown"),
    [
        ("item", pa.array([7]), "7"),
        ("item", pa.array([True]), "True"),
        ("item", pa.array([NOON], pa.timestamp("us")), "value 2026-01-02 12:00:00.000001: "),
        ("at", pa.array([1_767_355_200]), "1767355200"),
        ("sold", pa.array([1]), "1"),
        ("id", pa.array([True]), "True"),
        ("cost", pa.array([1.239]), "1.239"),
        ("price", pa.array([NOON], pa.timestamp("us")), "value 2026-01-02 12:00:00.000001: "),
    ],
    ids=range(8),
)
def test_values_of_another_kind_are_refused_as_in_python(
    cli: Cli, tmp_path: Path, name: str, values: pa.Array[Any], shown: str, format: str
) -> None:
    """Arrow would cast them: 7 to "7", a number to microseconds, and 1.239 to 1.24."""
    cli.done("table", "create", "kinds", "--schema", KINDS)
    rows = pa.table({name: values})
    said = cli("table", "insert", "kinds", saved(tmp_path, rows, format))

    complaint = refused(said, f"'{name}' of row 0", shown, "nothing was written")
    assert complaint.count(f"column '{name}'") == 1
    with tidelog.connect(cli.location) as lake, pytest.raises(UsageError, match=shown):
        lake.table("kinds").insert(rows)
    assert rows_of(cli, "kinds") == []


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_values_that_fit_are_cast_as_in_python(cli: Cli, tmp_path: Path, format: str) -> None:
    """Whole numbers fit decimals, and the columns of extension types are plain values."""
    cli.done("table", "create", "kinds", "--schema", KINDS)
    rows = pa.table(
        {"cost": pa.array([3]), "item": pa.array(['{"a": 1}'], pa.json_()), "id": pa.array([2.0])}
    )
    cli.done("table", "insert", "kinds", saved(tmp_path, rows, format))

    (found,) = rows_of(cli, "kinds")
    assert (found["cost"], found["item"], found["id"]) == (3.0, '{"a": 1}', 2)


def test_a_retry_says_that_its_rows_were_written_before(prices: Cli) -> None:
    """The counts are those of the first write, so alone they would look like a second one."""
    token, given = ("--token", "import:7", "--json"), array_of([{"id": 1}, {"id": 2}])
    first = prices.done("table", "insert", "prices", "-", *token, given=given).object
    assert first["repeated"] is False
    update = ("update", "--set", "price = 0", "--where", "true")
    delete = ("delete", "--where", "true")
    for verb, *options in (("insert", "-"), ("upsert", "-"), ("merge", "-"), update, delete):
        words = ("table", verb, "prices", *options, *token[:2])
        done = prices.done(*words, given=given)
        assert done.err.startswith("nothing was written, because an earlier write has this --token")
        assert prices.done(*words, "--json", given=given).object == {**first, "repeated": True}
    assert len(rows_of(prices)) == 2


VIEWS = [pa.list_view(pa.int64()), pa.list_(pa.large_list_view(pa.int64()))]


@pytest.mark.parametrize("dtype", VIEWS, ids=str)
def test_list_views_are_refused_by_their_type(cli: Cli, tmp_path: Path, dtype: pa.DataType) -> None:
    """Arrow casts some of them to lists that are not valid."""
    cli.done("table", "create", "lists", "--schema", "l bigint[]")
    rows = pa.table({"l": pa.array([[]], dtype)})
    said = cli("table", "insert", "lists", saved(tmp_path, rows, "arrow"))

    refused(said, "the column 'l' has the type", "list views are not read", "nothing was written")
    assert rows_of(cli, "lists") == []


@pytest.mark.parametrize(
    ("name", "given", "hint"),
    [
        ("a.txt", b"id\n1\n", True),
        ("-", b"id\n1\n", True),
        ("a.txt.gz", b"id\n1\n", True),
        ("a.jsonl", b"id\n1\n", False),
        ("-", b'{"id": "x"}\n', False),
        ("a.csv", b"id\nx\n", False),
    ],
)
def test_an_error_in_a_file_of_unknown_format_names_the_option(
    prices: Cli, tmp_path: Path, name: str, given: bytes, hint: bool
) -> None:
    """Without a known ending, the rows are read as json."""
    path = tmp_path / name
    if name != "-":
        path.write_bytes(gzip.compress(given) if name.endswith(".gz") else given)
    said = prices.run(
        *("--location", prices.location, "table", "insert", "prices"),
        "-" if name == "-" else str(path),
        given=given,
    )
    refused(said, "does not fit")
    assert ("read as json: pass another --format" in said.err) == hint


@pytest.mark.parametrize(
    ("name", "given", "remedy"),
    [
        ("a.csv", b"id,day\n1,2026-31-01\n2,x\n", "as 2026-01-31, or pass --date-format"),
        ("a.csv", b"id,at\n1,soon\n", "as 2026-01-31T12:00:00, or pass --timestamp-format"),
        ("a.csv", b"id,hour\n1,noon\n", "as 12:00:00"),
        ("a.jsonl", b'{"id": 1, "at": 1767268800000}\n', "as 2026-01-31T12:00:00"),
        ("a.csv", b"id,item\n1,M\xfcller\n", "iconv -f LATIN1 -t UTF-8"),
        ("a.csv", b"id,item\nNULL,b\n", "if NULL means null, pass --null 'NULL'"),
        ("a.json", b'{\n"id": 1\n}\n', "each row on one line, or all rows as one array"),
        ("a.csv", b"id,it\xfcm\n1,a\n", "iconv -f LATIN1 -t UTF-8"),
        ("a.jsonl", b'{"item": "M\xfcller"}\n', "iconv -f LATIN1 -t UTF-8"),
    ],
)
def test_a_record_that_does_not_fit_has_a_remedy(
    cli: Cli, tmp_path: Path, name: str, given: bytes, remedy: str
) -> None:
    """The message shows the form of a time, or the command that converts a file to UTF-8."""
    schema = "id bigint, item varchar, day date, at timestamp, hour time"
    cli.done("table", "create", "times", "--schema", schema)
    (tmp_path / name).write_bytes(given)

    complaint = refused(cli("table", "insert", "times", tmp_path / name), remedy)
    assert complaint.endswith((remedy, f"{remedy}; nothing was written"))


def test_a_misfit_of_csv_names_the_type(prices: Cli, tmp_path: Path) -> None:
    """The message of json does so, too."""
    (tmp_path / "a.csv").write_text("id,price\nx,1\n")
    said = prices("table", "insert", "prices", tmp_path / "a.csv")
    refused(said, "column 'id' does not fit its type BIGINT")


def test_timestamps_of_96_bits_may_have_any_year(cli: Cli, tmp_path: Path) -> None:
    """Spark writes them by default; as nanoseconds, Arrow reads 9999 as 1816."""
    cli.done("table", "create", "times", "--schema", "id bigint, at timestamp")
    texts = [f"{year}-12-31 23:59:59.999999" for year in ("0001", "1899", "2026", "9999")]
    times = pa.array(texts).cast(pa.timestamp("us"))
    rows = pa.table({"id": range(4), "at": times})
    pq.write_table(rows, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    cli.done("table", "insert", "times", tmp_path / "a.parquet")
    assert [row["at"][:4] for row in rows_of(cli, "times")] == ["0001", "1899", "2026", "9999"]

    odd = pa.table({"at": pa.array([0, 1], pa.timestamp("ns"))})
    pq.write_table(odd, tmp_path / "b.parquet", use_deprecated_int96_timestamps=True)
    refused(cli("table", "insert", "times", tmp_path / "b.parquet"), "'at' of row 1", "nanoseconds")
    assert len(rows_of(cli, "times")) == 4


def test_a_named_index_of_pandas_is_refused(prices: Cli, tmp_path: Path) -> None:
    """A file of pandas has no column for a range, so the values would be null."""
    frame = pd.DataFrame({"item": ["a"]}, index=pd.RangeIndex(1, 2, name="price"))
    for path in (tmp_path / "a.parquet", tmp_path / "a.arrow"):
        rows = pa.Table.from_pandas(frame).append_column("id", pa.array([1]))
        refused(
            prices("table", "insert", "prices", saved(tmp_path, rows, path.suffix[1:])),
            "index 'price'",
            "reset_index",
            "nothing was written",
        )
    assert rows_of(prices) == []


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.csv", packed(b"id\n1\n", ".gz"), "ends in .gz"),
        ("a.json", packed(b'{"id": 1}\n', ".zst"), "ends in .zst"),
        ("a.csv", bz2.compress(b"id\n1\n"), "bzip2"),
        ("a.json", b"PK\x03\x04" + bytes(60), "zip"),
        ("a.json", b"PAR1\x15\x04" + bytes(60), "its format is parquet"),
        ("a.csv", b"ARROW1\x00\x00" + b"x" * 60, "its format is arrow"),
        ("a.arrow", b"FEA1" + bytes(60), "Feather file of version 1"),
        ("a.arrow", b"id,item\n1,a\n", "no Arrow file, and no Arrow stream"),
        ("a.parquet", b"id,item\n1,a\n", "not parquet"),
        ("a.parquet", b"", "not parquet"),
    ],
    ids=range(10),
)
def test_a_file_of_another_format_names_it(
    prices: Cli, tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    """Users rename files, and other tools write other formats with the same ending."""
    (tmp_path / name).write_bytes(data)

    refused(prices("table", "insert", "prices", tmp_path / name), words, "nothing was written")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
@pytest.mark.parametrize(
    ("ending", "data", "words"),
    [
        ("json", b'{"id": 1}\n', ""),
        ("csv", b"id\n1\n", ""),
        ("json", b'{"id": "x"}\n', "does not fit"),
        ("csv", b"id\nx\n", "does not fit"),
    ],
)
def test_a_file_name_may_have_bytes_that_are_not_utf8(
    prices: Cli, tmp_path: Path, ending: str, data: bytes, words: str
) -> None:
    """Linux allows such names, and Python shows their bytes as lone surrogates."""
    path = tmp_path / os.fsdecode(b"pr\xe9s." + ending.encode())
    path.write_bytes(data)
    said = prices("table", "insert", "prices", path)

    if words:
        refused(said, f"pr?s.{ending}", words, "nothing was written")
    assert len(rows_of(prices)) == (0 if words else 1)


def test_rows_of_many_columns_fit_by_their_names(tmp_path: Path, cli: Cli) -> None:
    """The file has half of the columns, in another order; the others are null."""
    names = [f"c{number}" for number in range(400)]
    cli.done("table", "create", "wide", "--schema", ", ".join(f"{name} bigint" for name in names))
    rows = pa.table({name: [number] for number, name in [*enumerate(names)][::-2]})
    cli.done("table", "insert", "wide", saved(tmp_path, rows, "parquet"))

    (found,) = rows_of(cli, "wide")
    assert found == {name: number if number % 2 else None for number, name in enumerate(names)}
