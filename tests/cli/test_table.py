"""``tidelog table`` and ``tidelog history``: every verb, and the errors of mistakes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli.conftest import Cli, CommandOutput, refused
from tidelog.cli.table_options import Written

Rows = list[dict[str, Any]]
TEA, JAM = {"id": 1, "item": "tea", "price": 3.0}, {"id": 2, "item": "jam", "price": 8.0}
COLUMNS = "id bigint, item varchar, price double"


@pytest.fixture
def keyed(cli: Cli) -> Cli:
    """A location with the table ``prices``: a key, two shards, no rows."""
    cli.done("table", "create", "prices", "--schema", COLUMNS, "--key", "id", "--shards", "2")
    return cli


@pytest.fixture
def loose(cli: Cli) -> Cli:
    """A location with the table ``notes``: no key, no rows."""
    cli.done("table", "create", "notes", "--schema", COLUMNS)
    return cli


def lines(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def put(cli: Cli, verb: str, name: str, *rows: dict[str, Any], more: tuple[str, ...] = ()) -> Any:
    """Write rows through standard input; return the result."""
    return cli.done("table", verb, name, "-", "--json", *more, given=lines(*rows)).object


def rows_of(cli: Cli, name: str, *arguments: str) -> Rows:
    found = cli.done("read", name, "--json", *arguments).objects
    return sorted(found, key=json.dumps)


def history_of(cli: Cli, name: str, *arguments: str) -> list[tuple[int, int, int]]:
    found = cli.done("history", name, "--json", *arguments).objects
    return [(one["time"], one["added"], one["removed"]) for one in found]


def nothing_written(cli: Cli, name: str, said: CommandOutput, *words: str) -> str:
    complaint = refused(said, *words)
    assert rows_of(cli, name) == []
    return complaint


def test_advance_makes_all_tables_complete_up_to_now(keyed: Cli, cli: Cli) -> None:
    """The tables get a newer complete time without a commit of rows."""
    before = cli.done("table", "describe", "prices", "--json").object["upper"]
    time = cli.done("table", "advance", "--json").object["time"]

    assert time >= before
    assert cli.done("table", "describe", "prices", "--json").object["upper"] == time + 1
    assert history_of(cli, "prices") == []
    assert "All tables are complete up to" in cli.done("table", "advance").err


def test_a_table_from_its_creation_to_its_end(keyed: Cli) -> None:
    """Each verb has the effect that its help describes, and prints its time and its counts."""
    first = put(keyed, "insert", "prices", TEA, JAM)
    assert (first["table"], first["added"], first["removed"]) == ("prices", 2, 0)
    second = put(keyed, "upsert", "prices", {**TEA, "price": 5.0}, {"id": 3, "item": "fig"})
    assert (second["added"], second["removed"]) == (2, 1)
    changed = keyed.done(
        "table", "update", "prices", "--set", "price = price * 2", "--where", "id < 3", "--json"
    ).object
    assert (changed["added"], changed["removed"]) == (2, 2)
    gone = keyed.done("table", "delete", "prices", "--where", "price > 10", "--json").object
    assert (gone["added"], gone["removed"]) == (0, 1)

    times = [first["time"], second["time"], changed["time"], gone["time"]]
    assert times == sorted(set(times))
    assert rows_of(keyed, "prices") == [
        {**TEA, "price": 10.0},
        {"id": 3, "item": "fig", "price": None},
    ]
    assert rows_of(keyed, "prices", "--as-of", str(first["time"])) == [TEA, JAM]
    assert history_of(keyed, "prices") == list(zip(times, (2, 2, 2, 0), (0, 1, 2, 1), strict=True))
    described = keyed.done("table", "describe", "prices", "--json").object
    assert (described["rows"], described["key"], described["retain_ms"]) == (2, ["id"], None)
    assert keyed.done("table", "list", "--json").object["name"] == "prices"
    keyed.done("table", "drop", "prices", "--yes")
    refused(keyed("table", "describe", "prices"), "'prices'")
    assert keyed.done("table", "list", "--json").objects == []


def test_a_direct_table_has_all_verbs(cli: Cli) -> None:
    """The mode is shown; sizes, histories and queries are those of other tables."""
    words = ("table", "create", "prices", "--schema", COLUMNS, "--key", "id", "--mode", "direct")
    made = cli.done(*words, "--json").object
    assert (made["mode"], made["shards"]) == ("direct", 1)
    refused(cli(*words[:2], "more", *words[3:], "--shards", "2"), "--mode direct has one shard")
    put(cli, "insert", "prices", TEA, JAM)
    put(cli, "upsert", "prices", {**TEA, "price": 5.0})
    cli.done("table", "update", "prices", "--set", "price = 1", "--where", "id = 2")

    assert rows_of(cli, "prices") == [{**TEA, "price": 5.0}, {**JAM, "price": 1.0}]
    assert [one[1:] for one in history_of(cli, "prices")] == [(2, 0), (1, 1), (1, 1)]
    assert cli.done("table", "describe", "prices", "--json").object["mode"] == "direct"
    assert "direct" in cli.done("table", "describe", "prices").out
    assert cli.done("sql", "SELECT sum(price) AS p FROM prices", "--json").object == {"p": 6.0}
    cli.done("compact", "prices")
    cli.done("collect", "--sweep")
    cli.done("table", "advance")
    assert len(rows_of(cli, "prices")) == 2
    cli.done("table", "drop", "prices", "--yes")
    refused(cli("table", "describe", "prices"), "'prices'")


def test_the_history_names_the_writer_of_each_commit(keyed: Cli) -> None:
    """The name in the token, or user@host:pid; after a merge, the writer is unknown."""
    put(keyed, "insert", "prices", TEA)
    put(keyed, "upsert", "prices", JAM, more=("--token", "night:7"))
    first, second = keyed.done("history", "prices", "--json").objects
    assert first["by"].endswith(f":{os.getpid()}")
    assert "@" in first["by"]
    assert second["by"] == "night"
    assert "night" in keyed.done("history", "prices").out
    keyed.done("compact", "prices")
    shown = keyed.done("history", "prices", "--json").objects
    assert [(one["added"], one["by"]) for one in shown] in (
        [(1, None), (1, None)],
        [(1, first["by"]), (1, "night")],  # The two rows are in two shards.
    )


def test_commands_of_collections_read_a_table(keyed: Cli) -> None:
    """A table is a collection for read, changes, sql, collection list and collection describe."""
    time = put(keyed, "insert", "prices", TEA, JAM)["time"]

    changes = keyed.done("changes", "prices", "--since", str(time - 1), "--json").objects
    assert sorted((c["_time"], c["_diff"], c["id"]) for c in changes) == [
        (time, 1, 1),
        (time, 1, 2),
    ]
    assert keyed.done("sql", "SELECT sum(price) AS p FROM prices", "--json").object == {"p": 11.0}
    assert keyed.done("collection", "list", "--json").object["rows"] == 2
    assert keyed.done("collection", "describe", "prices", "--json").object["key"] == ["id"]


def test_people_read_the_time_and_the_counts(keyed: Cli) -> None:
    """Each sentence has the number of rows and the time as of which they are visible."""
    said = keyed.done("table", "insert", "prices", given=lines(TEA, JAM)).err
    assert said.startswith("2 rows inserted, visible as of 20")
    said = keyed.done("table", "upsert", "prices", given=lines({**TEA, "price": 1})).err
    assert said.startswith("1 row upserted (1 added, 1 removed), visible as of 20")
    said = keyed.done("table", "update", "prices", "--set", "price=0", "--where", "true").err
    assert said.startswith("2 rows changed, visible as of 20")
    assert keyed.done("table", "delete", "prices", "--where", "id = 9").err.startswith("0 rows")
    assert Written("t", 0, 1234, 1234, 5).counts == " (1,234 added, 5 removed)"


@pytest.mark.parametrize("format", ["json", "csv", "parquet", "arrow", "feather", "stream"])
def test_rows_of_every_format_are_inserted(loose: Cli, format: str) -> None:
    """The format follows from the ending of the file."""
    table = pa.table({"id": [1, 2], "item": ['a "b", c\nd', "é ø 茶"], "price": [1.5, None]})
    path = loose.folder / f"rows.{'arrow' if format == 'stream' else format}"
    if format == "json":
        path.write_bytes(lines(*table.to_pylist()))
    elif format == "csv":
        path.write_text('item;id;price\n"a ""b"", c\nd";1;1.5\né ø 茶;2;\n')
    elif format == "parquet":
        pq.write_table(table, path)
    else:
        opened = pa.ipc.new_stream if format == "stream" else pa.ipc.new_file
        with opened(str(path), table.schema) as file:
            file.write_table(table)

    assert loose.done("table", "insert", "notes", path, "--json").object["added"] == 2
    assert rows_of(loose, "notes") == table.to_pylist()


def test_several_files_and_standard_input_are_one_commit(loose: Cli) -> None:
    """All rows are visible as of one time."""
    path = loose.write_lines("1.jsonl", TEA)

    loose.done("table", "insert", "notes", path, "-", path, given=lines(JAM))
    ((_, added, removed),) = history_of(loose, "notes")
    assert (added, removed) == (3, 0)


@pytest.mark.parametrize("verb", ["insert", "upsert", "merge"])
def test_many_rows_are_one_commit_and_one_bad_row_stops_all(
    keyed: Cli, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are written as they are read; the error names the file, the line and the text."""
    monkeypatch.setattr("tidelog.cli.row_files.READ_BYTES", 1_000)
    monkeypatch.setattr("tidelog.collection.table.incoming.STREAM_BYTES", 1_000)
    rows = [{**TEA, "id": number} for number in range(200)]
    good = keyed.write_lines("good.jsonl", *rows[:100])
    bad = keyed.write_lines("bad.jsonl", *rows[100:150], '{"id": "x"}', *rows[150:])
    more = ("--when-matched", "ignore") if verb == "merge" else ()

    said = keyed("table", verb, "prices", good, bad, *more)
    nothing_written(keyed, "prices", said, "bad.jsonl", "(line 51)", "nothing was written")
    twice = keyed.write_lines("twice.jsonl", rows[7])
    said = keyed("table", verb, "prices", good, twice, *more)
    nothing_written(keyed, "prices", said, "have id=7")
    done = keyed.done("table", verb, "prices", good, "-", *more, "--json", given=lines(*rows[100:]))
    assert (done.object["added"], done.object["removed"]) == (200, 0)
    assert rows_of(keyed, "prices") == sorted(rows, key=json.dumps)
    assert len(history_of(keyed, "prices")) == 1


def test_the_form_of_csv_is_guessed_or_given(loose: Cli) -> None:
    """A file without a header has the columns in the order of the table."""
    path = loose.folder / "a.csv"
    path.write_text("1|tea|3\n2|jam|NA\n")
    assert loose.done("table", "insert", "notes", path, "--json").object["added"] == 2
    path.write_text("id;item\n3;'fig; dry'\n")
    loose.done("table", "insert", "notes", path, "--delimiter", ";", "--quote", "'", "--null", "-")

    found = {row["id"]: (row["item"], row["price"]) for row in rows_of(loose, "notes")}
    assert found == {1: ("tea", 3.0), 2: ("jam", None), 3: ("fig; dry", None)}
    refused(loose("table", "insert", "notes", "x.jsonl", "--null", "-"), "csv", "json")
    refused(loose("table", "insert", "notes", path, "--delimiter", ",,"), "--delimiter")


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_an_empty_file_and_no_rows_are_a_commit_without_rows(loose: Cli, name: str) -> None:
    """The time moves, and no row is written."""
    path = loose.folder / name
    for text in ("", "\n", "id,item,price\n" if name == "a.csv" else ""):
        path.write_text(text)
        assert loose.done("table", "insert", "notes", path, "--json").object["added"] == 0
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), loose.folder / "none.parquet")
    loose.done("table", "insert", "notes", loose.folder / "none.parquet")

    assert rows_of(loose, "notes") == []
    assert history_of(loose, "notes") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"id": 1, "colour": "red"}', ("'colour'", "id, item, price", "nothing was written")),
        ('{"id": "one"}', ("(line 2) does not fit", "nothing was written")),
        ('{"id": 1', ("does not fit", "nothing was written")),
        ('[{"id": 1}]', ("does not fit",)),
        ('{"id": 1, "_time": 3}', ("'_time'",)),
        ("\ufeffnonsense", ("does not fit",)),
    ],
)
def test_a_row_that_does_not_fit_is_named(loose: Cli, text: str, words: tuple[str, ...]) -> None:
    """The first bad row stops the command, and the good rows are not written either."""
    path = loose.write_lines("bad.jsonl", TEA, text)

    nothing_written(loose, "notes", loose("table", "insert", "notes", path), "bad.jsonl", *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,colour\n1,red\n", ("the table has no column 'colour'", "rename or remove it")),
        ("id,id\n1,2\n", ("'id' twice", "rename or remove one")),
        ("id,item\n1,a,b\n", ("3 fields",)),
        ("id,item\nx,a\n", ("does not fit",)),
        ('id,item\n1,"a\n', ("nothing was written",)),
    ],
)
def test_a_csv_that_does_not_fit_is_named(loose: Cli, text: str, words: tuple[str, ...]) -> None:
    """So it is for columns and fields."""
    path = loose.folder / "bad.csv"
    path.write_text(text)

    nothing_written(loose, "notes", loose("table", "insert", "notes", path), "bad.csv", *words)


@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv.gz", "csv"])
def test_a_file_of_another_format_is_refused(loose: Cli, ending: str) -> None:
    """Bytes that are not of the format give a sentence, not a traceback."""
    path = loose.folder / f"a.{ending}"
    path.write_bytes(b"\x00\xff\x13PAR1 nothing" * 9)

    nothing_written(loose, "notes", loose("table", "insert", "notes", path), f"a.{ending}")


def test_files_that_cannot_be_read_are_named(loose: Cli) -> None:
    """A missing file, a folder, an unknown format, and several formats at once."""
    refused(loose("table", "insert", "notes", "none.jsonl"), "no such file: 'none.jsonl'")
    for url in ("s3://bucket/a.json", "file:///a.json"):
        refused(loose("table", "insert", "notes", url), "no such file", "from a URL first")
    refused(loose("table", "insert", "notes", loose.folder), "is a directory")
    a, b = loose.write_lines("a.jsonl", TEA), loose.write_lines("b.csv", "id", "1")
    refused(loose("table", "insert", "notes", a, b), "several formats, csv and json")
    refused(loose("table", "insert", "notes", a, "--format", "xml"), "--format", "'xml'")
    put(loose, "insert", "notes", TEA)
    wide = loose.folder / "wide.jsonl"
    wide.write_text('{"id": 1}\n', encoding="utf-16")
    refused(loose("table", "insert", "notes", wide), "UTF-8", "iconv")


def test_keys_are_unique_and_whole(keyed: Cli) -> None:
    """A second insert of a key, a key twice, a null key and a missing key are refused."""
    put(keyed, "insert", "prices", TEA)
    insert = ("table", "insert", "prices")

    def refuse(*rows: dict[str, Any]) -> CommandOutput:
        return keyed(*insert, keyed.write_lines("rows.jsonl", *rows))

    refused(refuse(JAM, {**TEA, "item": "rye"}), "id=1", "upsert")
    refused(refuse(JAM, JAM), "id=2")
    refused(refuse({"id": None, "item": "x"}), "'id'", "null")
    refused(refuse({"item": "x"}), "'id'")
    path = keyed.folder / "a.csv"
    path.write_text("item\nx\n")
    refused(keyed(*insert, path), "missing column 'id'", "columns are item;")
    pq.write_table(pa.table({}), keyed.folder / "empty.parquet")
    refused(keyed(*insert, keyed.folder / "empty.parquet"), "'id': the file has none")
    path.write_text("9,rye\n")
    refused(keyed(*insert, path), "the first line has the name of no column (id, item")
    refused(keyed("table", "upsert", "prices", keyed.write_lines("2.jsonl", JAM, JAM)), "id=2")
    assert rows_of(keyed, "prices") == [TEA]


def test_verbs_of_keys_need_a_key(loose: Cli) -> None:
    """An upsert, or a delete by keys, of a table without a key is refused."""
    path = loose.write_lines("a.jsonl", TEA)

    refused(loose("table", "upsert", "notes", path), "has no key")
    refused(loose("table", "delete", "notes", "--keys", path), "has no key", "--where")


def test_rows_are_deleted_by_their_keys(keyed: Cli) -> None:
    """A key without a row is no error. The file has only the key columns."""
    put(keyed, "insert", "prices", TEA, JAM)
    path = keyed.folder / "keys.csv"
    path.write_text("id\n1\n7\n1\n")

    done = keyed.done("table", "delete", "prices", "--keys", path, "--json").object
    assert (done["added"], done["removed"]) == (0, 1)
    assert rows_of(keyed, "prices") == [JAM]
    whole = keyed.write_lines("b.jsonl", JAM)
    refused(
        keyed("table", "delete", "prices", "--keys", whole),
        "the key of the table has no column 'item' or 'price'; its columns are id",
    )


@pytest.mark.parametrize("way", ["where", "keys"])
def test_a_delete_of_all_rows_needs_a_yes(keyed: Cli, way: str) -> None:
    """The question has the number of rows. A delete of some rows needs no answer."""
    put(keyed, "insert", "prices", TEA, JAM)
    path = keyed.write_lines("keys.jsonl", {"id": 1}, {"id": 2}, {"id": 3})
    some = ("--where", "price > 0") if way == "where" else ("--keys", str(path))
    delete = ("table", "delete", "prices", *some)

    refused(keyed(*delete), "not a terminal", "--yes", "delete all rows")
    assert len(rows_of(keyed, "prices")) == 2
    with patch("typer.confirm", return_value=False) as asked, terminal():
        assert keyed(*delete).status == 1
    assert asked.call_args.args[0] == "Delete all 2 rows of the table 'prices'?"
    assert len(rows_of(keyed, "prices")) == 2
    assert keyed.done(*delete, "--yes", "--json").object["removed"] == 2
    assert keyed.done(*delete, "--json").object["removed"] == 0


def terminal() -> Any:
    class Typed:
        def isatty(self) -> bool:
            return True

    return patch("sys.stdin", Typed())


def test_a_delete_asks_again_if_more_rows_came(keyed: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the user answers, another process inserts a row that the condition matches, too."""
    put(keyed, "insert", "prices", TEA)
    asked: list[str] = []

    def answer(question: Callable[[], str], **_: str) -> None:
        asked.append(question())
        if len(asked) == 1:
            put(keyed, "insert", "prices", JAM)

    monkeypatch.setattr("tidelog.cli.table.ask_first", answer)
    done = keyed.done("table", "delete", "prices", "--where", "true", "--json").object
    assert done["removed"] == 2
    assert asked == [
        "Delete all 1 row of the table 'prices'?",
        "Delete all 2 rows of the table 'prices'?",
    ]


def test_a_null_key_and_a_long_float_name_their_file(cli: Cli) -> None:
    """The row is counted in its own file; nothing of the other files is written."""
    cli.done("table", "create", "short", "--schema", "id bigint, f real", "--key", "id")
    good = cli.write_lines("good.jsonl", {"id": 1, "f": 0.1}, {"id": 2})
    bad = cli.write_lines("bad.jsonl", {"id": 3}, {"f": 1})
    said = cli("table", "insert", "short", good, bad)
    nothing_written(cli, "short", said, "bad.jsonl", "'id' is null or missing in row 1")
    table = pa.table({"id": [7, 8], "f": [0.1, 0.123456789]})
    pq.write_table(table, cli.folder / "bad.parquet")
    said = cli("table", "insert", "short", cli.folder / "bad.parquet")
    nothing_written(cli, "short", said, "bad.parquet", "'f'", "of row 1", "0.123456789")
    pq.write_table(table.slice(0, 1), cli.folder / "good.parquet")
    cli.done("table", "insert", "short", cli.folder / "good.parquet")
    cli.done("table", "update", "short", "--set", "f = f / 3.0", "--where", "true")


def test_a_drop_asks_first(keyed: Cli) -> None:
    """A name that does not exist is an error before the question."""
    refused(keyed("table", "drop", "prices"), "not a terminal", "--yes")
    refused(keyed("table", "drop", "price"), "'price'")
    refused(keyed("table", "drop", "price", "--yes"), "'price'")
    with patch("typer.confirm", return_value=True) as asked, terminal():
        assert keyed("table", "drop", "prices").status == 0
    assert asked.call_args.args[0] == "Drop the table 'prices' with all its history?"
    refused(keyed("table", "insert", "prices", keyed.write_lines("a.jsonl", TEA)), "'prices'")
    refused(keyed("history", "prices"), "'prices'")
    refused(keyed("read", "prices"), "'prices'")


def test_a_retry_with_the_same_token_writes_once(keyed: Cli) -> None:
    """The second call returns the time of the first one, also after other writes."""
    token = ("--token", "import: monday:7")
    first = put(keyed, "insert", "prices", TEA, JAM, more=token)
    put(keyed, "upsert", "prices", {**TEA, "price": 4.0})
    again = put(keyed, "insert", "prices", TEA, JAM, more=token)

    assert again == {**first, "repeated": True}
    assert not first["repeated"]
    assert len(rows_of(keyed, "prices")) == 2
    path = str(keyed.write_lines("a.jsonl", TEA))
    for wrong in ("import", "import:", ":7", "import:-1", "import:x", "a\nb:1"):
        refused(keyed("table", "upsert", "prices", path, "--token", wrong))
    assert len(history_of(keyed, "prices")) == 2


def test_a_retry_of_an_insert_without_keys_writes_once(loose: Cli) -> None:
    """Other rows under the same token are refused."""
    first = put(loose, "insert", "notes", TEA, more=("--token", "w:1"))
    again = put(loose, "insert", "notes", TEA, more=("--token", "w:1"))
    assert (again["time"], again["repeated"]) == (first["time"], True)
    path = loose.write_lines("a.jsonl", JAM)
    refused(
        loose("table", "insert", "notes", path, "--token", "w:1"),
        "with other rows used the token",
        "token=('w', 1)",
        status=1,
    )
    put(loose, "insert", "notes", JAM, more=("--token", "w:2"))
    older = loose("table", "insert", "notes", path, "--token", "w:1")
    refused(older, "committed a greater number", "writer=w ", status=3)

    assert rows_of(loose, "notes") == [TEA, JAM]


def test_a_write_can_name_its_earliest_time(loose: Cli) -> None:
    """A time of the past becomes the next free time."""
    later = put(loose, "insert", "notes", TEA, more=("--at", "2100-01-01T00:00:00Z"))["time"]
    assert later == 4_102_444_800_000
    assert put(loose, "insert", "notes", JAM, more=("--at", "1000"))["time"] == later + 1
    refused(loose("table", "insert", "notes", "--at", "soon"), "--at", "'soon'")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--set", "price", "--where", "true"), ("--set", "'price'")),
        (("--set", "price =", "--where", "true"), ("--set",)),
        (("--set", "price=1", "--set", '"price"=2', "--where", "true"), ("twice",)),
        (("--set", "cost=1", "--where", "true"), ("'cost'", "id, item, price")),
        (("--set", "price='x'", "--where", "true"), ("price",)),
        (("--set", "price=DATE '2026-01-02'", "--where", "true"), ("gives 2026-01-02 for",)),
        (("--set", "price=1", "--where", "cost > 1"), ("--where reads 'cost'",)),
        (
            ("--set", "price=1", "--where", "id = "),
            (
                "--where is not",
                "syntax error at its end",
            ),
        ),
        (("--set", "price=1"), ("--where",)),
        (("--where", "true"), ("--set",)),
        (("--set", "id=7", "--where", "true"), ("id=7", "unique")),
    ],
)
def test_an_update_that_cannot_be_done_changes_nothing(
    keyed: Cli, given: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """The message names the option, the column or the key."""
    put(keyed, "insert", "prices", TEA, JAM)

    refused(keyed("table", "update", "prices", *given), *words)
    assert rows_of(keyed, "prices") == [TEA, JAM]


def test_a_delete_needs_one_condition(keyed: Cli) -> None:
    """Without --where and --keys, or with both, nothing is deleted."""
    path = str(keyed.write_lines("keys.jsonl", {"id": 1}))
    refused(keyed("table", "delete", "prices"), "--where", "--keys")
    refused(keyed("table", "delete", "prices", "--keys", path, "--where", "true"), "either")
    refused(keyed("table", "delete", "prices", "--where", "no such"), "--where")
    refused(keyed("table", "delete", "prices", "--where", "true", "--format", "csv"), "--format")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("t", "--schema", "id"), ("'id'",)),
        (("t", "--schema", "id quark"), ("--schema", "'quark' is not a type", "varchar")),
        (("t", "--schema", "id decimal(99)"), ("--schema cannot be read: DECIMAL",)),
        (("t", "--schema", "id int,"), ("--schema has a column without a name",)),
        (("t", "--schema", "ids list<int>"), ("write a list as int[]",)),
        (("t", "--schema", "id int primary key"), ("only names and types", "--key")),
        (("t", "--schema", "id int", "--mode", "x"), ("'--mode': 'x' is not one of 'wal'",)),
        (("t", "--schema", "id int", "--key", "no"), ("no",)),
        (("t", "--schema", "Id int, id int"), ("--schema has the column 'id' twice",)),
        (("t", "--schema", "id int", "--shards", "0"), ("--shards", "0")),
        (("t", "--schema", "id int", "--retain", "soon"), ("--retain", "'soon'")),
        (("a/b", "--schema", "id int"), ("a/b",)),
        (("", "--schema", "id int"), ("name",)),
        (("t",), ("--schema",)),
    ],
)
def test_a_wrong_creation_creates_nothing(
    cli: Cli, given: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """The location is not created either."""
    refused(cli("table", "create", *given), *words)

    assert not (cli.folder / "lake").exists()


def test_names_of_tables_are_those_of_collections(events: Cli) -> None:
    """A source's name is taken; a source's collection is no table, and a table no source."""
    refused(events("table", "create", "events", "--schema", "id int"), "'events'")
    events.done("table", "create", "t", "--schema", "id int", "--retain", "7d")
    refused(events("table", "create", "t", "--schema", "id int", "--key", "id"), "table drop t")
    refused(events("table", "describe", "events"), "is not a table", "source")
    refused(events("source", "drop", "t", "--yes"), "'t'")
    assert events.done("table", "describe", "t", "--json").object["retain_ms"] == 604_800_000


def test_odd_names_and_texts_are_kept(cli: Cli) -> None:
    """Columns with spaces, commas, quotes and letters of any script; a name with a dot."""
    columns = '"größe (cm)" int, "a, b" varchar, "say ""x""" varchar'
    cli.done("table", "create", "lager-1.b", "--schema", columns, "--key", '"größe (cm)"')
    row = {"größe (cm)": 1, "a, b": "NULL", 'say "x"': "\t\u202e\u0000?"}
    put(cli, "insert", "lager-1.b", row)
    cli.done(
        "table", "update", "lager-1.b", "--set", '"say ""x""" = "a, b" || \'=ü\'', "--where", "true"
    )

    assert rows_of(cli, "lager-1.b") == [{**row, 'say "x"': "NULL=ü"}]


def test_history_is_exact_after_merges(loose: Cli) -> None:
    """The counts stay; the bytes of merged commits are unknown. Each range is one of times."""
    rows = [{"id": n, "item": f"{n}", "price": n} for n in range(20)]
    times = [put(loose, "insert", "notes", row)["time"] for row in rows]
    loose.done("table", "delete", "notes", "--where", "id < 5")
    before = history_of(loose, "notes")
    loose.done("compact", "notes", "--full")

    assert history_of(loose, "notes") == before
    assert before[:20] == [(time, 1, 0) for time in times]
    assert before[20][1:] == (0, 5)
    found = loose.done("history", "notes", "--json").objects
    assert {one["bytes"] for one in found} == {None}
    some = history_of(loose, "notes", "--since", str(times[2]), "--until", str(times[4]))
    assert some == before[3:5]
    refused(loose("history", "notes", "--since", str(times[4]), "--until", str(times[2])), "until")
    refused(loose("history", "notes", "--since", "soon"), "'soon'")
    refused(loose("history", "nothing"), "'nothing'")


def test_mistakes_are_sentences_without_a_location(tmp_path: Path, cli: Cli) -> None:
    """A missing location is named by each verb."""
    for words in (("table", "list"), ("table", "insert", "t"), ("history", "t")):
        refused(cli.run(*words), "no location")
        refused(cli.run("--location", str(tmp_path / "no"), *words), "no location")
