"""Times: milliseconds since 1970, in each form that a user or a column may have."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.sources import ingested, lake_of, reopened
from tidelog.collection.formats.times import (
    UNITS,
    check_time_type,
    format_time,
    parse_time,
    times_of,
)
from tidelog.errors import UsageError

TIME_MAX = 2**63 - 1


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01", 0),
        ("2013-01-15T14:00:00Z", 1_358_258_400_000),
        ("2013-01-15T14:00", 1_358_258_400_000),
        ("2013-01-15 14:00:00", 1_358_258_400_000),
        ("2013-01-15T16:00:00+02:00", 1_358_258_400_000),
        ("2013-01-15T14:00:00.001Z", 1_358_258_400_001),
        (" 2013-01-15T14:00:00.001999Z ", 1_358_258_400_001),
        ("17", 17),
        (17, 17),
        (str(TIME_MAX), TIME_MAX),
    ],
)
def test_a_time_is_read(text: str | int, time: int) -> None:
    """A time is in UTC unless it has an offset, and rounds down to milliseconds."""
    assert parse_time(text) == time


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("now", 1_358_258_400_001),
        (" NOW ", 1_358_258_400_001),
        ("today", 1_358_208_000_000),
        ("yesterday", 1_358_121_600_000),
        ("-1h", 1_358_254_800_001),
        ("-2d", 1_358_085_600_001),
        ("-0s", 1_358_258_400_001),
    ],
)
def test_a_time_may_be_relative_to_the_clock(text: str, time: int) -> None:
    """The word `today` means midnight in UTC, as a date does."""
    assert parse_time(text, now_us=1_358_258_400_001_999) == time


@pytest.mark.parametrize("text", ["-1", "tomorrow", "1h", "-1x", "--1h", "-99999999d", "-1 h ago"])
def test_the_refusal_of_a_relative_time_names_the_words(text: str) -> None:
    """The error lists the accepted words, and no word is guessed."""
    with pytest.raises(UsageError, match=r"yesterday or -1h|1970-01-01T00:00:00Z"):
        parse_time(text, now_us=1_358_258_400_001_999)


@pytest.mark.parametrize(
    "text", ["", "now", "2013-13-01", "1.5", "-1", "1969-12-31T23:59:59Z", str(TIME_MAX + 1), "1e3"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    """Any other text raises UsageError."""
    with pytest.raises(UsageError):
        parse_time(text)


@given(time=st.integers(0, TIME_MAX))
def test_a_time_that_was_written_is_read_back(time: int) -> None:
    """A time that tidelog prints is valid input."""
    assert parse_time(format_time(time)) == time


COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint32": (pa.uint32(), st.integers(0, 2**32 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
}


@pytest.mark.parametrize("kind", COLUMNS)
@given(data=st.data(), unit=st.sampled_from(sorted(UNITS)))
def test_integers_are_times_in_their_unit(kind: str, data: st.DataObject, unit: str) -> None:
    """Values round down, also before 1970. A value out of range is absent, never another time."""
    dtype, values = COLUMNS[kind]
    given_ = data.draw(st.lists(st.none() | values, max_size=5))

    times, there = times_of(pa.chunked_array([pa.array(given_, dtype)]), unit)

    factor = UNITS[unit]
    for value, time, known in zip(given_, times.tolist(), there.tolist(), strict=True):
        wanted = None
        if value is not None and value < 2**63:
            wanted = value * factor if factor > 0 else value // -factor
            if not -(2**63 - 2) <= wanted <= 2**63 - 2:
                wanted = None
        assert (time if known else None) == wanted


moment = dt.datetime.fromisoformat


@given(
    moments=st.lists(
        st.none() | st.datetimes(moment("1900-01-01"), moment("2200-01-01")),
        max_size=5,
    ),
    zone=st.sampled_from([None, "UTC"]),
)
def test_timestamps_have_a_unit_of_their_own(
    moments: list[dt.datetime | None], zone: str | None
) -> None:
    """The option `time_unit` applies to integers. A timestamp has its own unit."""
    column = pa.chunked_array(
        [pa.array(moments, pa.timestamp("us")).cast(pa.timestamp("us", zone))]
    )

    times, there = times_of(column, "s")

    epoch = moment("1970-01-01")
    wanted = [None if m is None else (m - epoch) // dt.timedelta(milliseconds=1) for m in moments]
    assert [t if k else None for t, k in zip(times.tolist(), there.tolist(), strict=True)] == wanted


def test_a_day_is_its_first_moment() -> None:
    """A date is midnight of its day."""
    days = pa.chunked_array([pa.array([dt.date(1970, 1, 2), None, dt.date(1969, 12, 31)])])

    times, there = times_of(days, "ms")

    assert times[there].tolist() == [86_400_000, -86_400_000]


@pytest.mark.parametrize("dtype", [pa.int32(), pa.uint64(), pa.timestamp("us"), pa.date32()])
def test_columns_that_can_be_times(dtype: pa.DataType) -> None:
    """A column's type alone determines if it can be a time, so the check comes before any read."""
    check_time_type("at", dtype)


@pytest.mark.parametrize("dtype", [pa.string(), pa.float64(), pa.bool_(), pa.time64("us")])
def test_columns_that_cannot_be_times_are_refused(dtype: pa.DataType) -> None:
    """A column that cannot be a time is refused. The error names the option `--schema`."""
    with pytest.raises(UsageError, match="schema="):
        check_time_type("at", dtype)


async def test_a_time_before_all_data_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A read before all data warns: a time in seconds looks like lost data. Others do not warn."""
    (tmp_path / "a.jsonl").write_text('{"n": 1, "t": 1709290800000}\n')
    await lake_of(tmp_path, "*.jsonl", schema="n bigint, t bigint", time_column="t")
    await ingested(tmp_path)
    location = await reopened(tmp_path)
    collection = await location.collection("c")

    assert (await collection.consolidated(1_709_290_800_000)).num_rows == 1
    assert (await (await location.collection("c_errors")).consolidated(5)).num_rows == 0
    assert not caplog.messages
    assert (await collection.consolidated(1_709_290_800)).num_rows == 0
    begins = "before all data of 'c', which begins at 2024-03-01T11:00:00Z"
    assert caplog.messages[-1].endswith(f"{begins}; a number counts milliseconds")
    await collection.consolidated("2024-03-01")
    assert caplog.messages[-1].endswith(begins), "no number was given"
