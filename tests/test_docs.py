"""The code blocks of the docs run as they are printed.

Spark's tests run the block for Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

import tidelog
from kit.clocks import SwiftClock
from kit.doc_blocks import ROOT, run_block, run_page
from tidelog.blocking.logs import Log
from tidelog.blocking.portal import Portal
from tidelog.blocking.shards import Transaction, Transactions
from tidelog.store.memory import MemoryStore
from tidelog.testing.faulty import NO_FAULT, Fault, FaultyStore, Request
from tidelog.wal.slot_log import SlotLog
from tidelog.wal.slot_protocol.fencing import make_log

KAFKA = "docs/guides/from-kafka.md"


def bodies_of(log: Log) -> list[bytes]:
    found = (body for table in log.scan() for body in table.column("body").to_pylist())
    return [body for body in found if body is not None]


def bodies(location: Path) -> list[bytes]:
    with tidelog.connect(str(location)) as lake, lake.log("events") as log:
        return bodies_of(log)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A location with the log ``events``, of three records."""
    with tidelog.connect(str(tmp_path), create=True) as lake, lake.logs.create("events") as log:
        log.append([b"one", b"two", b"three"])
    return tmp_path


def test_transactions_move_what_is_there(tmp_path: Path) -> None:
    """The block retries after another process committed between its read and its write."""
    begun: list[Transaction] = []
    begin = Transactions.begin

    def begin_among_others(bank: Transactions) -> Transaction:
        begun.append(begin(bank))
        if len(begun) == 2:
            other = begin(bank)
            other.write("savings", pa.table({"account": ["bob"], "cents": [1]}))
            other.commit()
        return begun[-1]

    with patch.object(Transactions, "begin", begin_among_others):
        names = run_block("docs/concepts/transactions.md", "bank.begin", location=tmp_path)

    assert len(begun) == 3
    assert run_block("docs/concepts/transactions.md", "bank.insert", location=tmp_path)[
        "found"
    ] == [
        {"account": "ann", "cents": 300, "_diff": 1},
        {"account": "bob", "cents": 7, "_diff": 1},
    ]
    assert names["balance"]["giro"] == [{"account": "ann", "cents": 300, "_diff": 1}]
    assert sorted(row["cents"] for row in names["balance"]["savings"]) == [1, 200]


def test_a_shard_is_written_and_read_as_its_page_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a named writer, and under a lease."""
    names = run_block("docs/concepts/shards.md", "shard.appender", location=tmp_path)

    assert capsys.readouterr().out == "{'k': ['tea'], 'v': [3], '_diff': [1]}\n"
    assert names["table"].num_rows == 1


def test_recipes_of_shards_are_one_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each leaves the shard as the next one takes it."""
    names = run_page("docs/guides/shards.md", location=tmp_path)

    told = capsys.readouterr().out.splitlines()
    assert len(told) == 2
    assert told[0].startswith("the time is no longer readable: the earliest readable time is 9")
    assert told[1].startswith("the schema has evolved")
    assert (names["total"], names["rows"], names["frame"]["n"].sum()) == ([(10,)], 2, 10)
    assert sorted(names["summed"]["n"].to_pylist()) == sorted(names["table"]["n"].to_pylist())
    assert sorted(names["have"]["item"].to_pylist()) == ["date", "fig", "pear"]
    with tidelog.connect(tmp_path) as lake:
        assert lake.shard("stock").upper().is_empty
        other = lake.shard("stock-2")
        copied = other.snapshot(other.upper().time - 1).to_arrow()
        assert copied.column_names == ["item", "n", "shelf", "_diff"]
        assert {*copied["n"].to_pylist()} == {1, 2, 8}


def test_records_are_kept_as_the_page_of_shards_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the location that the page opens before."""
    with tidelog.connect(tmp_path, create=True) as lake:
        names = run_block(
            "docs/concepts/shards.md", "RecordCodec", location=tmp_path, lake=lake, tidelog=tidelog
        )

    assert capsys.readouterr().out == "[(Price(name='tea', cents=3, origin=None), 1)]\n"
    assert names["codec"].key == ["name"]


def test_a_keyed_log_is_written_and_read_as_its_page_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By key, newest first, by pages, and counted."""
    names = run_block("docs/concepts/keyed-logs.md", "lake.keyed.create", location=tmp_path)

    told = capsys.readouterr().out
    assert "'value': [b'tea', b'milk']" in told
    assert told.rstrip().endswith("5")
    assert names["page"].next_sequence == 4
    assert names["sooner"] == 4


def test_a_consumer_of_a_keyed_log_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs three times, the last one with a record that is new, and has each record once."""
    monkeypatch.chdir(tmp_path)
    with tidelog.connect(str(tmp_path), create=True) as lake, lake.keyed.create("orders") as log:
        log.append([(b"user-7", b"tea"), (b"other", b"jam"), (b"user-9", b"milk")])
        run_block(KAFKA, 'next_sequence")', location=tmp_path, tidelog=tidelog)
        run_block(KAFKA, 'next_sequence")', location=tmp_path, tidelog=tidelog)
        log.append([(b"user-7", b"rye")])
    run_block(KAFKA, 'next_sequence")', location=tmp_path, tidelog=tidelog)

    assert sum(map(int, capsys.readouterr().out.split())) == 3
    assert (tmp_path / "next_sequence").read_text() == "5"


def test_what_a_keyed_log_keeps_is_set_as_its_page_says(tmp_path: Path) -> None:
    """The checkpoint and the fork have what the log had."""
    with tidelog.connect(str(tmp_path), create=True) as lake:
        with lake.keyed.create("orders") as log:
            log.append([(b"user-7", b"tea")])
        run_block(KAFKA, "tidelog.Retention", location=tmp_path, tidelog=tidelog)
        with lake.keyed.reader("orders", checkpoint="friday") as friday:
            assert friday.count(b"user-7") == 1
        with lake.keyed.reader("trial") as trial, lake.keyed.reader("orders") as kept:
            assert (trial.count(b"user-7"), kept.count(b"user-7")) == (2, 1)
            assert kept.describe().retention.age_us == 30 * 86400 * 10**6


@pytest.mark.parametrize(
    "page",
    [
        "docs/internals/shard-claims.md",
        "docs/internals/keyed-claims.md",
        "docs/internals/storage-claims.md",
    ],
)
def test_each_test_that_a_page_names_is_there(page: str) -> None:
    """Each test that a claims page names exists under that name."""
    named = {*re.findall(r"`(test_\w+)`", (ROOT / page).read_text())}
    there = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert len(named) >= 20
    assert sorted(named - there) == []


def test_the_awaited_face_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The block of `aio.connect` runs in its own event loop."""
    run_block("docs/reference/log-methods.md", "aio.connect", location=tmp_path)

    assert capsys.readouterr().out == "[b'one', b'two']\n"


def test_a_log_in_wal3s_form_is_handled_without_a_location(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is collected, for the cursor stands in the only fragment; and nothing is wrong."""
    run_block("docs/internals/wal3.md", "Wal3Writer", location=tmp_path)

    first, collected, scrubbed = capsys.readouterr().out.splitlines()
    assert first == "1"
    assert "'fragments': 0" in collected
    assert "'problems': []" in scrubbed


def test_a_consumer_goes_on_where_it_was(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second time it has nothing to tell."""
    for told in (["b'one'", "b'two'", "b'three'"], []):
        run_block("docs/guides/consume-a-log.md", '"billing"', location=lake)

        assert capsys.readouterr().out.splitlines() == told
    with tidelog.connect(str(lake)) as place, place.log("events") as log:
        assert log.load_cursor("billing").position == 4


def test_retention_keeps_what_is_newer_than_a_week(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is that old here."""
    run_block("docs/guides/log-retention.md", '"retention"', location=lake)

    assert capsys.readouterr().out == "0 objects; the lowest cursor is retention\n"
    assert bodies(lake) == [b"one", b"two", b"three"]


class LossyLog(Log):
    """A log whose second append meets a store that is ``gone``, after ``between`` was done."""

    def __init__(
        self, portal: Portal, log: SlotLog, *, gone: list[str], between: Callable[[], object]
    ) -> None:
        super().__init__(portal, log)
        self._gone, self._between = gone, between
        self.appends_count = 0

    def append(self, *given: Any, **options: Any) -> int:
        self.appends_count += 1
        if self.appends_count == 2:
            self._between()
            self._gone.append("now")
        try:
            return super().append(*given, **options)
        finally:
            self._gone.clear()


@pytest.fixture
def portal() -> Iterator[Portal]:
    opened = Portal()
    yield opened
    opened.close()


@pytest.mark.parametrize("is_taken_over", [False, True], ids=["alone", "taken over"])
@pytest.mark.parametrize("landed", [False, True], ids=["lost", "landed"])
def test_after_unknown_the_recipe_finds_out(
    lake: Path, portal: Portal, landed: bool, is_taken_over: bool
) -> None:
    """Whether the record is there, and without ending the turn of a successor."""
    names = run_block("docs/guides/write-a-log.md", "append_surely", location=lake)
    append_surely = names["append_surely"]
    store, clock, gone = MemoryStore(), SwiftClock(), list[str]()

    def toss(request: Request) -> Fault:
        if not gone:
            return NO_FAULT
        return Fault(happened=landed and request.key.startswith("epoch/"), told=False)

    def opened(name: str, way: FaultyStore | MemoryStore) -> SlotLog:
        return SlotLog(name="x", store=way, clock=clock, writer=name)

    portal.run(make_log(store, clock=clock, writer="maker"))
    other = Log(portal, opened("other", store))
    between = partial(other.append, [b"other"]) if is_taken_over else list
    flaky = opened("one", FaultyStore(store, toss=toss))
    log = LossyLog(portal, flaky, gone=gone, between=between)
    log.append([b"before"])
    is_in = append_surely(log, b"after")
    found = bodies_of(other)

    assert log.appends_count == 3, "the append was not told as UNKNOWN"
    assert is_in == any(body.endswith(b"after") for body in found)
    assert is_in == (landed and not is_taken_over)
    if is_taken_over:
        assert other.append([b"still"]) > 0
        other.close()
    log.close()
