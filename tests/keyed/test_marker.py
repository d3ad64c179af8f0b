"""Marks of batches: their meaning, and their way into the state by compaction."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kit.keyed_engine import keyed_logs
from tidelog.keyed.format.records import (
    BEGINS,
    MAGIC,
    SINKS_MAX,
    SinkMark,
    encode_marker,
    marks_in,
    newest_of,
)
from tidelog.keyed.states.language import KeyedLanguage
from tidelog.keyed.states.run import Run
from tidelog.keyed.states.state import KeyedDiff, KeyedState, apply_diff
from tidelog.keyed.states.transition import decide_compact
from tidelog.keyed.values import Keys


def wal_records(rows: list[tuple[bytes | None, bytes, int]]) -> pa.Table:
    columns: list[Any] = [
        pa.array([row[0] for row in rows], pa.binary()),
        pa.array([row[1] for row in rows], pa.binary()),
        pa.array([row[2] for row in rows], pa.int64()),
    ]
    return pa.table(columns, ["key", "body", "timestamp_us"])


@given(st.text(max_size=30), st.integers(0, 2**62))
def test_a_mark_is_read_back(sink: str, number: int) -> None:
    """A mark with any sink name decodes to the same name and number."""
    found = marks_in(wal_records([(None, encode_marker(sink, number), 7)]))
    assert found == {sink: SinkMark(number=number, at_us=7)}


def test_only_marks_are_marks() -> None:
    """A record with a key, a similar prefix or a mark without a batch does not count."""
    rows = [
        (b"k", encode_marker("a", 1), 1),
        (None, b"tidelog", 2),
        (None, MAGIC + b"\xff\xff", 3),
        (None, encode_marker("a", BEGINS), 4),
        (None, encode_marker("b", 5), 5),
        (None, encode_marker("b", 3), 6),
    ]
    assert marks_in(wal_records(rows)) == {"b": SinkMark(number=5, at_us=5)}
    assert marks_in(wal_records(rows[:1])) == {}


def test_the_state_keeps_the_sinks_that_wrote_last() -> None:
    """The state keeps the sinks that wrote last, so it does not grow with finished queries."""
    many = {f"s{n}": SinkMark(number=1, at_us=n) for n in range(SINKS_MAX + 5)}
    kept = newest_of({}, many)

    assert len(kept) == SINKS_MAX
    assert "s4" not in kept
    assert "s5" in kept


def test_a_state_keeps_the_newest_of_each_sink_over_its_bytes() -> None:
    """Compaction commits marks with the run. An older mark changes nothing."""
    language = KeyedLanguage("log")
    state = KeyedState(is_made=True)
    for number, lower in ((4, 1), (9, 11), (6, 21)):
        run = Run(id=f"r{lower}", epoch=0, lower=lower, upper=lower + 10)
        sinks = {"q": SinkMark(number=number, at_us=lower)}
        decided = decide_compact(state, [run], sinks)
        assert decided.diff is not None
        diff = language.decode_diff(language.encode_diff(decided.diff))
        state = language.decode_state(language.encode_state(apply_diff(state, diff)))

    assert state.sinks == {"q": SinkMark(number=9, at_us=11)}
    assert apply_diff(state, KeyedDiff(retired=5)).sinks == state.sinks


async def test_marks_go_into_the_state_and_are_no_records() -> None:
    """A scan returns the records of a batch without its mark."""
    log = await keyed_logs().create("log")
    values: Any = pa.array([b"v", encode_marker("q", 3)], pa.binary())
    keys: Any = pa.array([b"k", None], pa.binary())
    await log.wal.append_arrow(values, key=keys)
    await log.wal.append_arrow(values.slice(1), timestamp_us=9)

    assert (await log.scan(Keys.all()).to_arrow()).column("value").to_pylist() == [b"v"]
    await log.compact(full=True)
    assert (await log.scan(Keys.all()).to_arrow()).num_rows == 1
    assert log.state_handle.state.sinks["q"].number == 3
    await log.close()


async def test_a_fork_knows_the_batches_that_it_begins_with() -> None:
    """A fork knows compacted and uncompacted marks, so a sink cannot write a batch twice."""
    logs = keyed_logs()
    source = await logs.create("log")
    keys: Any = pa.array([b"k", None], pa.binary())
    for number, is_compacted in ((3, True), (4, False)):
        for sink in ("compacted", "both") if is_compacted else ("both",):
            values: Any = pa.array([b"v", encode_marker(sink, number)], pa.binary())
            await source.wal.append_arrow(values, key=keys, timestamp_us=number)
        if is_compacted:
            await source.compact(full=True)
    fork = await logs.fork("log", "fork")
    await fork.compact(full=True)

    found = {sink: mark.number for sink, mark in fork.state_handle.state.sinks.items()}
    assert found == {"compacted": 3, "both": 4}
    await fork.close()
    await source.close()
