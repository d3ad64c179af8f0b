"""``tidelog shard``: a shard from its creation to its end, and the errors of mistakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli.conftest import Cli, refused
from tidelog.cli import binary_rows
from tidelog.cli import feed as log_input
from tidelog.cli import row_files as shard_input
from tidelog.cli.shard.describe import draw_levels

SCHEMA = ("--schema", "k varchar, n bigint, at timestamp", "--key", "k")
ROWS = (
    {"k": "a", "n": 1, "at": "2025-01-01T00:00:00"},
    {"k": "b", "n": 2, "at": None},
)


def made(cli: Cli, name: str = "s") -> Cli:
    cli.done("shard", "create", name, *SCHEMA)
    return cli


def contents(cli: Cli, *arguments: str) -> list[dict[str, object]]:
    return cli.done("shard", "read", "s", "--json", *arguments).objects


def test_a_shard_from_its_making_to_its_end(cli: Cli) -> None:
    """Each verb has the effect that its help describes, visible to the next verb."""
    made(cli)
    assert cli.done("shard", "list", "--json").object["upper"] == 0
    path = cli.write_lines("1.jsonl", *ROWS)
    told = cli.done("shard", "append", "s", path, "--time", "5", "--json").object
    assert told == {"shard": "s", "updates": 2, "parts": 1, "lower": 0, "upper": 6}
    change = json.dumps({**ROWS[0], "_time": 7, "_diff": -1}) + "\n"
    cli.done("shard", "append", "s", "--upper", "9", "--expected-upper", "6", given=change.encode())
    assert contents(cli, "--as-of", "6") == [{**row, "_diff": 1} for row in ROWS]
    assert contents(cli) == [{**ROWS[1], "_diff": 1}]
    assert contents(cli, "--as-of", "5", "--where", "n = 1", "--columns", "n") == [
        {"n": 1, "_diff": 1}
    ]
    assert cli.done("shard", "changes", "s", "--since", "5", "--json").object == {
        "_time": 7, "_diff": -1, **ROWS[0],
    }  # fmt: skip
    assert len(cli.done("shard", "changes", "s", "--until", "5", "--json").objects) == 2
    cli.done("shard", "append", "s", "--upper", "end", given=b"")
    assert len(cli.done("shard", "changes", "s", "--follow", "--json").objects) == 3
    for limit in ("1", "2"):
        listened = cli.done("shard", "changes", "s", "--until", "5", "--limit", limit, "--json")
        assert len(listened.objects) == int(limit)
    told = cli.done("hold", "move", "s", "history", "--at", "7", "--yes", "--json").object
    assert told == {"name": "s", "hold": "history", "since": 7}
    assert cli("shard", "read", "s", "--as-of", "6").complaint.startswith(
        "the time is no longer readable: the earliest readable time is 7"
    )
    described = cli.done("shard", "describe", "s", "--json").object
    assert (described["updates"], described["upper"], described["since"]) == (3, None, 7)
    assert [one["updates"] for one in described["batches"]] == [2, 1]
    cli.done("shard", "drop", "s", "--yes")
    assert cli("shard", "read", "s", "--as-of", "8").status == 2
    assert cli.done("shard", "list", "--json").object["since"] is None
    assert "was dropped" in cli("shard", "create", "s", *SCHEMA).complaint


def test_a_read_waits_for_its_time_at_most_as_long_as_the_user_says(cli: Cli) -> None:
    """A time that is complete needs no wait. The error of the limit names upper."""
    made(cli)
    path = cli.write_lines("1.jsonl", *ROWS)
    cli.done("shard", "append", "s", path, "--time", "5")

    assert len(contents(cli, "--as-of", "5", "--wait")) == 2
    late = cli("shard", "read", "s", "--as-of", "9", "--timeout", "0")
    refused(late, "not complete yet", "wait longer", "upper=6", status=3)
    plain = cli("shard", "read", "s", "--as-of", "9")
    refused(plain, "the shard is complete up to 5")
    refused(cli("shard", "read", "s", "--timeout", "soon"), "--timeout 'soon' is not a duration")


def test_a_time_before_all_data_is_reported(cli: Cli, caplog: pytest.LogCaptureFixture) -> None:
    """A time in seconds, with rows in milliseconds, must not look like a loss of data."""
    path = cli.write_lines("1.jsonl", *ROWS)
    made(cli).done("shard", "append", "s", path, "--time", "1709290800000")

    assert contents(cli, "--as-of", "1709290800") == []
    assert "before all data of the shard 's', which begins at 1709290800000" in caplog.text


@pytest.mark.parametrize("format", ["json", "csv", "parquet", "arrow", "stream", "spooled"])
def test_what_every_format_holds_is_appended(
    cli: Cli, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Input of any format is read in limited pieces, each a part, and committed once."""
    monkeypatch.setattr(shard_input, "READ_BYTES", 10_000)
    monkeypatch.setattr(log_input, "READ_BYTES", 4_000)
    monkeypatch.setattr(binary_rows, "ROWS", 300)
    made(cli)
    table = pa.table(
        {
            "k": [f"{n:04}, {'é' * 5}" for n in range(1_000)],
            "n": [None if n % 7 == 0 else n for n in range(1_000)],
            "at": pa.array([n * 1_000_000 for n in range(1_000)], pa.timestamp("us")),
            "_time": [n // 10 for n in range(1_000)],
            "_diff": [1 + n % 2 for n in range(1_000)],
        }
    )
    path = cli.folder / f"rows.{ {'stream': 'arrow', 'spooled': 'parquet'}.get(format, format) }"
    lines = [dict(row, at=row["at"].isoformat()) for row in table.to_pylist()]
    if format == "json":
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    elif format == "csv":
        head, *rest = (",".join(f'"{v}"' if v is not None else "" for v in line.values())
                       for line in [dict.fromkeys(lines[0]), *lines])  # fmt: skip
        del head
        path.write_text("\n".join([",".join(lines[0]), *rest]))
    elif format in ("parquet", "spooled"):
        pq.write_table(table, path)
    else:
        new = pa.ipc.new_file if format == "arrow" else pa.ipc.new_stream
        with new(str(path), table.schema) as sink:
            sink.write_table(table)
    if format == "spooled":
        told = cli.done(
            "shard", "append", "s", "--format", "parquet", "--json", given=path.read_bytes()
        )
    else:
        told = cli.done("shard", "append", "s", path, "--json")
    assert told.object["updates"] == 1_000
    assert told.object["upper"] == 100
    assert told.object["parts"] > 2
    out = cli.folder / "out.parquet"
    cli.done("shard", "read", "s", "--consolidated", "-o", str(out))
    assert pq.read_table(out).to_pylist() == table.drop_columns(["_time"]).to_pylist()


def test_what_lies_there_is_told(cli: Cli) -> None:
    """Parts, objects, states and changes are listed; levels and costs are described."""
    made(cli)
    rows = [{"k": f"k{n}", "n": n, "at": None} for n in range(2_000)]
    cli.done("shard", "append", "s", cli.write_lines("a.jsonl", *rows), "--time", "0")
    for time in range(1, 4):
        cli.done("shard", "append", "s", "--time", str(time), given=json.dumps(ROWS[0]).encode())
    parts = cli.done("shard", "parts", "s", "--json").objects
    assert [(one["updates"], one["path"] is None) for one in parts] == [
        (2_000, False), (1, True), (1, True), (1, True),
    ]  # fmt: skip
    assert parts[0]["bounds"] == {"k": ["k0", "k999"]}
    usage = cli.done("shard", "usage", "s", "--json").object
    assert usage["objects"] == {"live": 1, "gone": 0, "young": 0, "dead": 0, "other": 0}
    assert usage["bytes"]["live"] == (cli.folder / "lake" / parts[0]["path"]).stat().st_size
    changes = cli.done("shard", "diffs", "s", "--json").objects
    assert [one["seqno"] for one in changes] == [1, 2, 3, 4, 5]
    assert changes[0]["changes"][0]["schema"][0] == {"name": "k", "type": "VARCHAR", "key": True}
    assert [one["changes"][0]["upper"] for one in changes[1:]] == [[1], [2], [3], [4]]
    past = cli.done("shard", "diffs", "s", "--from", "6")
    assert (past.out, past.err) == ("", "The shard 's' has no commit 6 yet, and no later one.\n")
    old = cli.done("shard", "state", "s", "--seqno", "3", "--json").object
    assert (old["seqno"], old["upper"], len(old["batches"])) == (3, 2, 2)
    assert cli.done("shard", "state", "s", "--json").object["upper"] == 4
    described = cli.done("shard", "describe", "s", "--json").object
    first, *others = [one["level"] for one in described["batches"]]
    assert first > 0
    assert others == [0, 0, 0]
    assert described["gets_a_snapshot"] == 2
    assert described["dollars_a_month"] > 0


def test_a_state_is_shown_as_it_was_across_rollups(cli: Cli) -> None:
    """Each stored state is shown as it was; the error for others names the stored range."""
    made(cli)
    for time in range(140):
        cli.done("shard", "append", "s", "--upper", str(time + 1), given=b"")
    changes = cli.done("shard", "diffs", "s", "--json").objects
    moved = {one["seqno"]: one["changes"][0]["upper"][0] for one in changes if one["changes"]}
    first, last = changes[0]["seqno"], changes[-1]["seqno"]
    assert 1 < first < last
    assert moved[last] == 140
    for seqno in (*list(moved)[:2], *list(moved)[-30::10], last):
        told = cli.done("shard", "state", "s", "--seqno", str(seqno), "--json").object
        assert told["upper"] == moved[seqno]
    for seqno in (first - 1, last + 1):
        said = cli("shard", "state", "s", "--seqno", str(seqno))
        assert said.status == 2
        assert f"{first} to {last} exist" in said.complaint


def test_a_spine_is_drawn_in_the_order_of_times() -> None:
    """Each batch has a mark if there is room; otherwise several batches share one."""
    drawn = draw_levels([2, 2, 1, 0, 0])
    assert [(one.level, one.batches, one.marks) for one in drawn] == [
        (2, 2, "##   "), (1, 1, "  #  "), (0, 2, "   ##"),
    ]  # fmt: skip
    wide = draw_levels([1] * 500 + [0] * 500)
    assert [one.marks for one in wide] == ["#" * 24 + " " * 24, " " * 24 + "#" * 24]
    assert draw_levels([]) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("append", "s", "--time", "-1"), "--time '-1' is not a time of a shard"),
        (("append", "s", "--time", "99999999999999999999"), "--time must be at most"),
        (("append", "s", "--upper", "soon"), "--upper 'soon' is not a time"),
        (("append", "s", "--diff", "0"), "to add (1) or remove (-1), not 0"),
        (("append", "s", "nothing.csv"), "no such file: 'nothing.csv'"),
        (("append", "s", "a.csv", "b.json"), "several formats, csv and json"),
        (("append", "s", "--format", "xml"), "parquet, arrow, not 'xml'"),
        (("append", "a/b", "--time", "1"), "cannot be the name of a shard"),
        (("append", "t", "--time", "1"), "no shard named 't': existing shards: s"),
        (("read", "s", "--as-of", "noon"), "--as-of 'noon' is not a time"),
        (("read", "s", "--as-of", "9"), "the shard has no complete time yet"),
        (("read", "s"), "the shard has no complete time yet"),
        (("read", "s", "--columns", "x"), "no column named 'x'"),
        (("read", "t"), "no shard named 't'"),
        (("changes", "s", "--follow", "--until", "3"), "exclude each other"),
        (("changes", "s", "--since", "x"), "--since 'x' is not a time"),
        (("state", "s", "--seqno", "9"), "no state has the seqno 9"),
        (("state", "s", "--seqno", "0"), "less than"),
        (("parts", "t"), "no shard named"),
        (("usage", "t"), "no shard named"),
        (("describe", "t"), "no shard named"),
        (("diffs", "t"), "no shard named"),
        (("drop", "s"), "--yes to drop the shard"),
        (("drop", "t", "--yes"), "no shard named"),
        (("create", ".x", *SCHEMA), "cannot be the name"),
        (("create", "u", "--schema", "k"), "--schema cannot be read"),
        (("create", "u", "--schema", "k int", "--key", "x"), "no column named 'x' for the key"),
    ],
)
def test_mistakes_are_told_and_nothing_is_done(
    cli: Cli, arguments: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake gives one sentence and exit status 2, and changes no file."""
    made(cli)
    monkeypatch.chdir(cli.folder)
    for name in ("a.csv", "b.json"):
        (cli.folder / name).write_text("")
    before = cli.contents()
    said = cli.run("--location", cli.location, "shard", *arguments, given=b"")
    assert said.status == 2, said.err
    assert told in said.complaint
    assert cli.contents() == before


def bent(how: str) -> bytes:
    """Return an arrow file with a fault that Arrow does not detect when it reads it."""
    table = pa.table({"k": ["hello", "world"], "n": [1, 2], "at": pa.nulls(2, pa.date32())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table)
    whole = sink.getvalue().to_pybytes()
    if how == "schema":
        return whole.replace(b"k\0\0\0", b"\xff\0\0\0")
    if how == "text":
        return whole.replace(b"helloworld", b"\xff\xfe\xfdloworld")
    right, wrong = np.array([[0, 5, 10], [0, 700_000_000, 10]], np.int32)
    return whole.replace(right.tobytes(), wrong.tobytes())


@pytest.mark.parametrize(
    ("format", "rows", "told"),
    [
        ("json", '{"k": "a", "n": "many", "at": null}', "column 'n' does not fit"),
        ("json", '{"k": "a", "n": 1, "at": null, "x": 2}', "the shard has no column 'x'"),
        ("json", "no json", "the record at byte"),
        ("csv", "k,n,at\na,many,", "column 'n' does not fit"),
        ("csv", "k,n\na,1", "missing column 'at'"),
        ("csv", "k,n,at,_dif\na,1,,3", "the shard has no column '_dif'"),
        ("parquet", "PAR1", "cannot be read"),
        ("arrow", "ARROW1 and no more", "cannot be read"),
        ("arrow", "", "cannot be read"),
        ("csv", "k,n,at\ra,1,\r", "a carriage return is outside quotes"),
        ("csv", "k,n,at\na,1,\n".encode("utf-16"), "not UTF-16"),
        ("json", json.dumps({"k": "a", "n": 1, "at": None}).encode("utf-16"), "not UTF-16"),
        ("csv", b"k,n,\xff\n", "some bytes are not UTF-8"),
        ("arrow", bent("offsets"), "the column 'k' is not valid Arrow data"),
        ("arrow", bent("text"), "the column 'k' is not valid Arrow data"),
        ("arrow", bent("schema"), "cannot be read"),
    ],
)
def test_rows_that_do_not_fit_are_told_and_none_is_appended(
    cli: Cli, format: str, rows: str | bytes, told: str
) -> None:
    """The error names the bad row's column or place, and nothing is appended."""
    made(cli)
    good = json.dumps(ROWS[0]) + "\n" if format == "json" else ""
    before = cli.contents()
    said = cli.run(
        "--location", cli.location, "shard", "append", "s", "--time", "0", "--format", format,
        given=(good + rows).encode() if isinstance(rows, str) else rows,
    )  # fmt: skip
    assert said.status == 2, said.err
    assert told in said.complaint
    assert cli.contents() == before


def test_times_outside_of_what_is_said_are_refused(cli: Cli) -> None:
    """A time outside of the interval is refused, and so is a row without a time."""
    made(cli)
    cli.done("shard", "append", "s", "--upper", "5", given=b"")
    early, late = ({**ROWS[0], "_time": time} for time in (3, 30))
    for row, arguments, told in (
        (early, (), "outside the interval"),
        (late, ("--upper", "9"), "outside the interval"),
        (ROWS[0], (), "a row has no _time"),
        (late, ("--upper", "4"), "--upper 4 is before the shard's upper"),
        (None, (), "there are no updates: pass --upper"),
    ):
        given = b"" if row is None else json.dumps(row).encode()
        said = cli.run("--location", cli.location, "shard", "append", "s", *arguments, given=given)
        assert (said.status, told in said.complaint) == (2, True), said.err
    said = cli.run("--location", cli.location, "shard", "append", "s", "--expected-upper", "4",
                   given=json.dumps(late).encode())  # fmt: skip
    assert (said.status, "another writer" in said.complaint) == (1, True)
    assert cli.done("shard", "list", "--json").object["upper"] == 5


def test_whoever_follows_is_told_what_comes(cli: Cli, tmp_path: Path) -> None:
    """A follower in another process prints each commit, until Ctrl-C."""
    made(cli)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    command = [sys.executable, "-m", "tidelog", "--location", cli.location]
    with subprocess.Popen(
        [*command, "shard", "changes", "s", "--follow", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        for time in range(1, 4):
            row = json.dumps({**ROWS[0], "_time": time}).encode()
            cli.done("shard", "append", "s", given=row)
            assert json.loads(process.stdout.readline())["_time"] == time
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"tidelog: interrupted\n")


def test_a_row_comes_as_often_as_it_was_appended_or_once_if_asked(cli: Cli) -> None:
    """Equal rows are repeated, unless --consolidated asks for their count."""
    made(cli)
    for time in range(3):
        cli.done("shard", "append", "s", "--time", str(time), given=json.dumps(ROWS[0]).encode())
    cli.done("shard", "append", "s", "--time", "3", given=json.dumps(ROWS[1]).encode())

    for limit in ("1", "2", "9"):
        each = cli.done("shard", "read", "s", "--limit", limit).objects
        once = cli.done("shard", "read", "s", "--consolidated", "--limit", limit).objects
        assert [row["_diff"] for row in each] == [1, 1, 1, 1][: int(limit)]
        assert [row["_diff"] for row in once] == [3, 1][: int(limit)]
