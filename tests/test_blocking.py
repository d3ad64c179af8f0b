"""The blocking API: the names of the awaited API, in an event loop of its own."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Coroutine
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

import tidelog
from kit import blocking_source
from tidelog import aio
from tidelog.blocking.portal import Portal
from tidelog.collection.formats.times import parse_time
from tidelog.errors import (
    AsOfNotComplete,
    HandleError,
    LogSealed,
    NameTaken,
    NoSuchLocation,
    NoSuchLog,
    UpperMismatch,
    UsageError,
)
from tidelog.persist.states.transition import Verdict
from tidelog.wal.log import LOG_RECORDS
from tidelog.wal.read.limits import Limits

COLUMNS: dict[str, pa.DataType] = {"k": pa.string(), "v": pa.int64()}
SCHEMA = pa.schema(COLUMNS)


def updates(*rows: tuple[str, int, int, int]) -> pa.Table:
    names = ("k", "v", "_time", "_diff")
    return pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)))


@pytest.mark.parametrize("module", blocking_source.MODULES)
def test_the_blocking_classes_are_those_that_the_awaited_ones_give(module: str) -> None:
    """The generated modules match the awaited classes; `kit.blocking_source` writes them."""
    path = blocking_source.FOLDER / f"{module}.py"

    assert path.read_text() == blocking_source.source(module)


def test_help_says_something_of_every_method_of_a_log() -> None:
    """Each public method has a docstring, because notebooks show it as help."""
    methods = inspect.getmembers(tidelog.Log, inspect.isfunction)

    assert [name for name, method in methods if name[0] != "_" and not method.__doc__] == []


@pytest.mark.parametrize("name", ["Location", "Log", "KeyedLog", "KeyedReader"])
def test_help_says_of_a_blocking_call_what_it_says_of_the_awaited_one(name: str) -> None:
    """The blocking docstrings are the awaited ones, with their errors and units."""
    awaited, blocking = getattr(aio, name), getattr(tidelog, name)

    for method, function in inspect.getmembers(awaited, inspect.isfunction):
        if not method.startswith("_") and method not in blocking_source.TWINS[name].internal:
            assert inspect.getdoc(getattr(blocking, method)) == inspect.getdoc(function), method


@pytest.mark.parametrize("face", [tidelog.Log, tidelog.Location])
def test_help_names_nothing_that_users_cannot_look_up(face: type) -> None:
    """A docstring refers only to public names, not to one such as `Cursors.save`."""
    public = {*dir(face), *tidelog.__all__}

    for name, method in inspect.getmembers(face, inspect.isfunction):
        named = re.findall(r"`([\w.]+)`(?!`)", (method.__doc__ or "").replace("``", ""))
        assert [one for one in named if one.split(".")[0] not in public] == [], name


@pytest.mark.parametrize("face", [tidelog, aio], ids=["sync", "awaited"])
def test_both_public_modules_export_the_settings_of_logs(face: Any) -> None:
    """Both public modules export the settings and limits of logs."""
    for name in face.__all__:
        assert getattr(face, name).__name__ in (name, "open_location")
    assert {"Batching", "Keep", "Limits", "Pace", "Shape", "Witness"} <= set(face.__all__)


def test_a_place_may_be_a_path(tmp_path: Path) -> None:
    """A path or a text names a location; any other type raises UsageError."""
    with tidelog.connect(tmp_path / "lake", create=True) as lake:
        lake.logs.create("a", protocol="manifest").append([b"1"])
        lake.logs.export("a", tmp_path / "out")
        lake.logs.adopt(tmp_path / "out", "b")
        assert lake.logs.list() == ["a", "b"]
        assert str(lake.url) == str(tmp_path / "lake")
    for wrong in (5, b"lake", None):
        with pytest.raises(UsageError, match=f"URL or a path.*not {type(wrong).__name__}"):
            tidelog.connect(wrong)  # type: ignore[arg-type]


def test_a_shard_is_written_read_and_listened_to(tmp_path: Path) -> None:
    """A script writes, reads, drops and follows a shard."""
    with tidelog.connect(str(tmp_path / "lake"), create=True) as lake:
        shard = lake.shard("s1", schema=SCHEMA, key=["k"])
        done = shard.compare_and_append(updates(("a", 1, 0, 1), ("b", 2, 3, 1)), 0, 5)
        lost = shard.try_compare_and_append(updates(("c", 3, 0, 1)), 0, 5)
        shard.append(updates(("a", 1, 6, -1)), 5, 7)

        with pytest.raises(UpperMismatch, match=r"nothing was appended.*upper=7 expected=0"):
            shard.compare_and_append(updates(("c", 3, 0, 1)), 0, 5)
        ended = lake.shard("s2", schema=SCHEMA, key=["k"])
        ended.compare_and_append(updates(("a", 1, 0, 1)), 0, 5)
        assert ended.drop() == 0, "one small batch is inline, so the state names no object"
        assert ended.since().is_empty

        listening = shard.listen(4)
        heard = next(listening)

    assert done.verdict is Verdict.COMMITTED
    assert lost.verdict is Verdict.MISMATCH
    assert lost.upper.time == 5
    assert heard.updates.to_pylist() == [{"k": "a", "v": 1, "_time": 6, "_diff": -1}]
    assert heard.upper.time == 7
    with tidelog.connect(str(tmp_path / "lake")) as lake:
        found = lake.shard("s1").snapshot(4)
        assert {row["k"] for row in found.to_arrow().to_pylist()} == {"a", "b"}
        shares = [tidelog.read_split(split, lake) for split in found.splits(3)]
        assert sorted(row["k"] for share in shares for row in share.to_pylist()) == ["a", "b"]


def test_holds_keep_times_readable(tmp_path: Path) -> None:
    """Since is the least of all holds, and advances only when a hold moves."""
    with tidelog.connect(str(tmp_path / "lake"), create=True) as lake:
        shard = lake.shard("s1", schema=SCHEMA)
        shard.hold("mine")
        shard.compare_and_append(updates(("a", 1, 0, 1)), 0, 10)
        shard.hold("yours", 4)
        # The first write placed the hold ``history``, which keeps all times until it moves.
        with shard.lease() as reader:
            assert reader.move_hold(9).time == 0
        assert shard.move_hold("mine", 8).time == 0
        assert shard.move_hold("history", 8).time == 4
        assert shard.drop_hold("yours")
        assert shard.since().time == 4
        assert shard.move_hold("history", 9).time == 8
        assert shard.move_hold("mine", 9).time == 9

        with pytest.raises(UsageError, match="earliest readable time is 9"):
            shard.snapshot(8)


def test_a_collection_is_ingested_and_read(tmp_path: Path) -> None:
    """A script creates a source, ingests it and reads the rows, each as often as it occurs."""
    rows = [{"id": 1, "at": 10}, {"id": 1, "at": 10}, {"id": 2, "at": 20}]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    with tidelog.connect(str(tmp_path / "lake"), create=True) as lake:
        spec = tidelog.SourceSpec(name="c", files=str(tmp_path / "in"), time_column="at")
        lake.sources.create(spec)
        with pytest.raises(AsOfNotComplete):
            lake.collection("c").snapshot()
        summary = lake.sources.ingest("c")
        found = lake.collection("c")

        assert lake.collections.list() == ["c"]
        assert summary.rows == 3
        assert found.snapshot(as_of=10).to_arrow().to_pylist() == rows[:2]
        assert found.snapshot("1970-01-01T00:00:00.020Z").to_pandas().shape == (3, 2)
        assert found.changes(since=10).column("_time").to_pylist() == [20]


async def test_it_works_inside_of_a_running_loop_and_from_threads(tmp_path: Path) -> None:
    """The blocking API works inside a running event loop, as in notebooks, and from threads."""

    async def inside() -> int:
        with tidelog.connect(str(tmp_path / "lake"), create=True) as lake:
            return lake.shard("s1", schema=SCHEMA).upper().time

    assert await inside() == 0
    with tidelog.connect(str(tmp_path / "lake")) as lake:
        found: list[int] = []
        threads = [
            threading.Thread(target=lambda: found.append(lake.shard("s1").upper().time))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [0] * 4


def loops() -> int:
    """Return the number of threads with the loop of a connection."""
    return [thread.name for thread in threading.enumerate()].count("tidelog")


def test_a_closed_connection_says_so_and_leaves_no_thread(tmp_path: Path) -> None:
    """A closed connection raises HandleError, and its thread has ended.

    The threads that work for all connections stay.
    """
    before = loops()
    with pytest.raises(NoSuchLocation):
        tidelog.connect(str(tmp_path / "nothing"))
    lake = tidelog.connect(str(tmp_path / "lake"), create=True)
    lake.close()
    lake.close()

    with pytest.raises(HandleError):
        lake.collections.list()
    assert loops() == before
    assert not (tmp_path / "nothing").exists()


def test_a_thread_that_waits_is_told_that_another_closed_the_connection(tmp_path: Path) -> None:
    """The waiting call raises HandleError, as a later call does, and not CancelledError."""
    lake = tidelog.connect(tmp_path.as_uri(), create=True)
    log = lake.logs.create("events")
    log.append([b"one"])
    told = list[HandleError]()
    is_following = threading.Event()

    def follow() -> None:
        try:
            for _ in log.follow():
                is_following.set()
        except HandleError as error:
            told.append(error)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    assert is_following.wait(10)
    lake.close()
    thread.join(10)

    assert [error.kind for error in told] == ["handle"]


def test_a_call_that_comes_while_a_connection_is_closed_ends() -> None:
    """A call made while the connection closes raises; otherwise its caller would wait forever."""
    portal, told = Portal(), list[str]()
    is_held, is_late = threading.Event(), threading.Event()

    async def hold() -> None:
        is_held.set()
        try:
            await asyncio.Event().wait()
        finally:  # The connection is being closed, and is not yet.
            late.start()
            await asyncio.to_thread(is_late.wait, 10)

    async def come() -> None:
        is_late.set()
        await asyncio.Event().wait()

    def call(work: Coroutine[Any, Any, None]) -> None:
        try:
            portal.run(work)
        except HandleError as error:
            told.append(error.kind)
        finally:
            is_late.set()

    late = threading.Thread(target=lambda: call(come()), daemon=True)
    held = threading.Thread(target=lambda: call(hold()), daemon=True)
    held.start()
    assert is_held.wait(10)
    portal.close()
    late.join(5)
    held.join(5)

    assert told == ["handle", "handle"]


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
def test_logs_are_written_and_read_from_threads(tmp_path: Path, protocol: str) -> None:
    """Appends of several threads have one order, and followers end when the log is sealed."""
    with tidelog.connect(str(tmp_path / "lake"), create=True) as lake:
        log = lake.logs.create("orders", protocol=protocol)
        said: dict[int, bytes] = {}

        def write(name: int) -> None:
            for number in range(10):
                body = b"%d-%d" % (name, number)
                said[log.append([body])] = body

        threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log.append_arrow(pa.array([b"last"], pa.binary()))
        log.close()

        again = lake.log("orders")
        assert (again.name, again.protocol, lake.logs.list()) == ("orders", protocol, ["orders"])
        rows = [row for table in again.scan() for row in table.to_pylist()]
        assert {row["position"]: row["body"] for row in rows} == said | {41: b"last"}
        assert {table.schema for table in again.scan(3, limit=5)} == {LOG_RECORDS}
        assert again.bounds().next == again.describe().next == 42
        assert again.scrub().is_clean
        with pytest.raises(NameTaken):
            lake.logs.create("orders")
        with pytest.raises(NoSuchLog):
            lake.log("other")
        if protocol == "slot":
            again.seal(successor="more")
            assert sum(table.num_rows for table in again.follow(2)) == 40
            with pytest.raises(LogSealed):
                again.append([b"x"])
        else:
            assert next(iter(again.follow(41))).num_rows == 1
            with pytest.raises(UsageError):
                again.append([b"x"], timestamp_us=1)


def test_streams_and_limits_from_threads(tmp_path: Path) -> None:
    """Threads open a stream, append to it, read it, stop early and find a time."""
    with tidelog.connect(str(tmp_path / "lake"), create=True) as lake:
        log = lake.logs.create("events")
        assert log.open_stream(b"a", b"mine") == 1
        assert log.append([b"1", b"2"], stream=b"a", timestamp_us=10) == 2
        assert log.append_arrow(pa.array([b"3"], pa.binary()), timestamp_us=20) == 4
        assert log.meta_stream(b"a", b"yours") == 5
        assert [(info.id, info.meta) for info in log.streams()] == [(b"a", b"yours")]
        assert log.close_stream(b"a") == 6
        log.seal()

        assert [table.num_rows for table in log.scan(stream=b"a")] == [2]
        assert [table.num_rows for table in log.follow(stream=b"a")] == [2]
        assert sum(table.num_rows for table in log.scan(control=True)) == 6
        assert sum(table.num_rows for table in log.scan(2, limits=Limits(records=2))) == 2
        assert log.position_at(15) == log.position_at(2**62) - 6 == 1
        found = [log.fetch(fragment) for fragment in log.fragments(2, limit=3)]
        assert found[0].column("body").to_pylist()[-2:] == [b"1", b"2"]
        log.close()


def test_a_connection_is_not_taken_over_a_fork(tmp_path: Path) -> None:
    """A forked child has no thread of the connection, so its calls raise HandleError.

    A connection of the child works in threads of its own.
    """
    script = (
        "import os, sys, tidelog\n"
        "from tidelog.errors import HandleError\n"
        "lake = tidelog.connect(sys.argv[1], create=True)\n"
        "log = lake.logs.create('a')\n"
        "log.append([b'parent'])\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        log.append([b'child'])\n"
        "    except HandleError:\n"
        "        lake.close()\n"
        "        with tidelog.connect(sys.argv[1]) as own:\n"
        "            os._exit(7 if own.logs.list() == ['a'] else 1)\n"
        "    os._exit(1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "print(log.append([b'parent again']))\n"
        "lake.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, tmp_path.as_uri()],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


async def test_an_awaited_connection_is_a_block_too(tmp_path: Path) -> None:
    """`aio.connect` works in ``async with``, and awaited it returns the location."""
    async with aio.connect(tmp_path / "lake", create=True) as lake:
        assert isinstance(lake, aio.Location)
        assert await lake.logs.list() == []
    assert await (await aio.connect(tmp_path / "lake")).logs.list() == []
    with pytest.raises(NoSuchLocation):
        async with aio.connect(tmp_path / "none"):
            pass


def test_dir_shows_what_there_is() -> None:
    """`dir` shows all public names before their modules are loaded."""
    modules = {"aio", "errors", "metrics"}
    assert {*tidelog.__all__, *modules, "__version__"} == set(dir(tidelog))
    assert all(getattr(tidelog, name) is not None for name in dir(tidelog))


@pytest.mark.parametrize("module", ["aio", "errors", "metrics", "spark"])
def test_import_tidelog_suffices_for_the_modules_in_the_docs(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user calls tidelog.spark.register(spark) after `import tidelog` alone."""
    monkeypatch.delitem(vars(tidelog), module, raising=False)
    assert getattr(tidelog, module).__name__.endswith(f".{module}")


def test_handles_are_short_at_a_prompt(tmp_path: Path) -> None:
    """A handle's repr is short, and shows no secret of a URL."""
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    with tidelog.connect(tmp_path / "lake", create=True) as lake:
        lake.sources.create(tidelog.SourceSpec(name="c", files=str(tmp_path / "a.jsonl")))
        lake.sources.ingest("c")
        found = lake.collection("c")
        log = lake.logs.create("l")
        told = [repr(each) for each in (lake, found, log, lake.shard("s", schema=SCHEMA))]
        contents = repr(found.snapshot(as_of=0))
        log.close()

    assert told[0].startswith("<tidelog location file://")
    assert told[1:] == [
        "<tidelog collection 'c': 1 columns>",
        "<tidelog log 'l': slot>",
        "<tidelog shard s>",
    ]
    assert contents == "<tidelog contents: 1 columns as of 1970-01-01T00:00:00Z>"


@pytest.mark.parametrize(
    "when",
    [
        20,
        "20",
        "1970-01-01T00:00:00.020Z",
        datetime(1970, 1, 1, 0, 0, 0, 20_999, tzinfo=UTC),
        datetime(1970, 1, 1, 1, 0, 0, 20_000, tzinfo=timezone(timedelta(hours=1))),
        datetime(1970, 1, 1, 0, 0, 0, 20_000),  # noqa: DTZ001 - naive times are UTC's
        pd.Timestamp("1970-01-01T00:00:00.020Z"),
        np.datetime64(20, "ms"),
        np.int64(20),
        pa.scalar(20),
        pa.scalar("1970-01-01T00:00:00.020Z"),
        pa.scalar(20_000, pa.timestamp("us", "UTC")),
        pa.scalar(20_000_000, pa.timestamp("ns")),
    ],
    ids=repr,
)
def test_a_time_is_what_programs_have_for_one(when: Any) -> None:
    """A read accepts datetimes and milliseconds as well as text."""
    assert parse_time(when) == 20


def test_days_are_their_midnight_and_other_things_no_times() -> None:
    """A date is midnight in UTC; a value of another type raises UsageError."""
    assert parse_time(date(1970, 1, 2)) == parse_time(pa.scalar(date(1970, 1, 2))) == 86_400_000
    nothing: list[Any] = [None, pd.NaT, np.datetime64("NaT"), pa.nulls(1)[0]]
    for wrong in (*nothing, True, 1.5, pa.scalar(1.5), []):
        with pytest.raises(UsageError, match="as_of"):
            parse_time(wrong, what="as_of")


@pytest.mark.parametrize(
    "when", ["1900-01-01", date(1900, 1, 1), datetime(1969, 12, 31, tzinfo=UTC), -1, 2**63]
)
def test_a_time_that_no_collection_has_is_told_as_it_was_asked_for(when: Any) -> None:
    """The error shows the time as the caller wrote it, and milliseconds only for a number."""
    with pytest.raises(
        UsageError, match=r"is out of range: .* from 1970-01-01T00:00:00Z to"
    ) as caught:
        parse_time(when)
    shown = repr(when) if isinstance(when, str) else str(when)
    assert f"as_of= {shown} is" in str(caught.value)


def test_a_collection_is_read_in_part(tmp_path: Path) -> None:
    """Columns, a filter and a limit apply to snapshots, scans and changes."""
    rows = [{"id": n, "name": f"n{n % 2}"} for n in range(6)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    with tidelog.connect(tmp_path / "lake", create=True) as lake:
        lake.sources.create(tidelog.SourceSpec(name="c", files=str(tmp_path / "a.jsonl")))
        lake.sources.ingest("c")
        found = lake.collection("c")
        chosen = found.snapshot(columns=["name"], where="id > 1", limit=3)

        assert chosen.to_arrow().to_pylist() == [{"name": "n0"}, {"name": "n1"}, {"name": "n0"}]
        assert sum(table.num_rows for table in found.scan(where="name = 'n1'")) == 3
        assert found.snapshot(where="id > 9").to_arrow().column_names == ["id", "name"]
        # Other libraries read the contents through Arrow's C stream interface.
        assert len(chosen) == 3
        assert pa.table(chosen) == chosen.to_arrow()
        assert duckdb.execute("SELECT count(*) FROM chosen WHERE name = 'n0'").fetchall() == [(2,)]
        changed = found.changes(0, columns=["name"])
        assert sorted(changed.select(["name", "_diff"]).to_pylist(), key=str) == [
            {"name": "n0", "_diff": 3},
            {"name": "n1", "_diff": 3},
        ]
        assert found.snapshot(limit=np.int64(2)).to_arrow().num_rows == 2  # type: ignore[arg-type]
        wrongs: list[dict[str, Any]] = [{"columns": ["nope"]}, {"where": "nope > 1"}, {"where": 1}]
        for wrong in (*wrongs, {"limit": -1}, {"limit": "3"}, {"limit": 2.0}):
            with pytest.raises(UsageError):
                found.snapshot(**wrong)
        with pytest.raises(UsageError, match="must be a str, not int"):
            lake.collection(3)  # type: ignore[arg-type]


WRONG: dict[str, Any] = {
    "key": "id",  # Its letters were taken for columns.
    "files": 3,
    "schema": {"id": "int"},
    "lateness": timedelta(minutes=10),
    "shards": "2",
    "settings": {"rate": 100},
    "csv": {"delimiter": ";"},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_source_of_wrong_types_is_refused_with_an_example(tmp_path: Path, name: str) -> None:
    """The error names the setting and an example, and no source is created."""
    given: dict[str, Any] = {"name": "c", "files": "x", "envelope": "upsert", "key": ("id",)}
    with tidelog.connect(tmp_path / "lake", create=True) as lake:
        with pytest.raises(UsageError, match=f"^{name} (is|must be) "):
            lake.sources.create(tidelog.SourceSpec(**{**given, name: WRONG[name]}))
        with pytest.raises(UsageError, match="SourceSpec"):
            lake.sources.create("c")  # type: ignore[arg-type]


def test_a_source_takes_paths_and_lists(tmp_path: Path) -> None:
    """Files may be paths or a list; an engine given as text raises UsageError."""
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"id": 2}\n')
    with tidelog.connect(tmp_path / "lake", create=True) as lake:
        both: list[str | Path] = [tmp_path / "a.jsonl", str(tmp_path / "b.jsonl")]
        lake.sources.create(tidelog.SourceSpec(name="c", files=both, envelope="upsert", key=["id"]))
        lake.sources.create(tidelog.SourceSpec(name="one", files=tmp_path / "a.jsonl"))

        assert (lake.sources.ingest("c").rows, lake.sources.ingest("one").rows) == (2, 1)
        wrongs: list[dict[str, Any]] = [{"engine": "local"}, {"bytes_max": "64MiB"}]
        for wrong in wrongs:
            with pytest.raises(UsageError, match=next(iter(wrong))):
                lake.sources.ingest("c", **wrong)


def test_a_connection_says_why_it_is_not_pickled(tmp_path: Path) -> None:
    """Pickling a connection raises TypeError, which tells the caller to pass the URL."""
    with tidelog.connect(tmp_path / "lake", create=True) as lake, lake.logs.create("a") as log:
        for held in (lake, log):
            for copied in (pickle.dumps, copy.deepcopy):
                with pytest.raises(TypeError, match="pass the URL, and connect"):
                    copied(held)
