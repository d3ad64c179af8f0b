"""Options of the data source, and its schema."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from tidelog.errors import AsOfNotComplete, UsageError
from tidelog.spark.options import (
    HIDE,
    SYNONYMS,
    OptionMissing,
    ReadSettings,
    SourceError,
    UnknownOption,
    check_columns,
    check_for_batch,
    check_for_stream,
    read_settings,
    told_as_spark_tells,
)
from tidelog.spark.types import spark_schema

HERE = {"location": "s3://bucket/lake", "path": "c"}


def test_options_are_read_whatever_their_case() -> None:
    """Option names ignore case, since Spark passes them in lower case and Python may not."""
    found = read_settings({**HERE, "asof": "1970-01-01T00:00:01Z", "COLUMNS": " a, b"}, {})

    assert found == ReadSettings(
        location_url="s3://bucket/lake", name="c", as_of=1_000, columns=("a", "b")
    )


@pytest.mark.parametrize("name", ["timestampAsOf", "TIMESTAMPASOF", "as-of-timestamp"])
def test_the_names_of_delta_and_iceberg_choose_the_time_to_read(name: str) -> None:
    """A job that moves from Delta or Iceberg keeps its option, in any case."""
    assert read_settings({**HERE, name: "1970-01-01 00:00:01"}, {}).as_of == 1_000


def test_the_times_of_deltas_change_feed_are_both_inclusive() -> None:
    """Delta includes the changes at ``startingTimestamp``, so ``since`` is a millisecond before."""
    told = {**HERE, "kind": "changes", "startingTimestamp": "1000", "ENDINGTIMESTAMP": "2000"}

    found = read_settings(told, {})

    assert (found.since, found.as_of) == (999, 2_000)


def test_the_guide_names_the_options_of_delta_and_iceberg() -> None:
    """A user of another table format finds the names that a read accepts."""
    page = Path("docs/guides/spark.md").read_text()

    assert [name for names in SYNONYMS.values() for name in names if f"`{name}`" not in page] == []


def test_changes_have_times_of_their_own() -> None:
    """Changes run from ``since`` to ``until``, or to the newest complete time."""
    told = {**HERE, "kind": "Changes", "since": "1970-01-01", "until": "5"}

    found = read_settings(told, {})

    assert (found.since, found.as_of, found.name) == (0, 5, "c")


@pytest.mark.parametrize("word", ["now", "today", " Yesterday", "-1h", "-90 s"])
def test_relative_times_stay_words_until_the_read_is_planned(word: str) -> None:
    """Only the plan knows the location's clock, and the newest complete time for ``now``."""
    changes = {**HERE, "kind": "changes", "since": word, "until": word}

    assert read_settings({**HERE, "asof": word}, {}).as_of == word
    found = read_settings(changes, {})
    assert (found.since, found.as_of) == (word, word)


def test_the_location_may_come_from_the_environment_and_an_option_wins() -> None:
    """An option for the location wins over the environment."""
    environment = {"TIDELOG_LOCATION": "file:///other"}

    assert read_settings({"path": "c"}, environment).location_url == "file:///other"
    assert read_settings(HERE, environment).location_url == "s3://bucket/lake"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({**HERE, "asofs": "1"}, UnknownOption, "location, asOf, columns"),
        ({"location": "x"}, OptionMissing, "load"),
        ({"path": "c"}, OptionMissing, "TIDELOG_LOCATION"),
        ({**HERE, "columns": "a,,b"}, UsageError, "commas"),
        ({**HERE, "asof": ""}, UsageError, "asOf"),
        ({**HERE, "asof": "soon"}, UsageError, "asOf 'soon' is not a time.*now, yesterday or -1h"),
        ({**HERE, "since": "1"}, UnknownOption, r"changes have it: option\('kind', 'changes'\)"),
        (
            {**HERE, "kind": "changes", "maxtimespertrigger": "0"},
            UsageError,
            "'maxTimesPerTrigger'",
        ),
        ({**HERE, "kind": "changes", "asof": "1"}, UnknownOption, "a collection has it"),
        ({**HERE, "kind": "changes", "since": "x"}, UsageError, "since"),
        (
            {**HERE, "kind": "changes", "timestampasof": "1"},
            UnknownOption,
            r"'timestampAsOf'.*use option\('asOf', TIME",
        ),
        (
            {**HERE, "startingTimestamp": "1"},
            UnknownOption,
            r"'startingTimestamp'.*'changes'.*'since'",
        ),
        ({**HERE, "asof": "1", "TimestampAsOf": "1"}, UsageError, "asOf and timestampAsOf"),
        (
            {**HERE, "kind": "changes", "startingtimestamp": "-1h"},
            UsageError,
            "startingTimestamp '-1h' is not a time",
        ),
        (
            {**HERE, "kind": "changes", "startingtimestamp": "0"},
            UsageError,
            "startingTimestamp must be after 1970",
        ),
        ({**HERE, "versionAsOf": "1"}, UnknownOption, "'versionAsOf'.*has no versions"),
        ({**HERE, "startingversion": "1"}, UnknownOption, r"'startingVersion'.*'changes'.*'since'"),
        ({**HERE, "maxrecordsperbatch": "1"}, UnknownOption, "'maxRecordsPerBatch'.*a log has it"),
        ({**HERE, "colums": "a"}, UnknownOption, r"did you mean 'columns'\?"),
        ({**HERE, "Colour": "a"}, UnknownOption, "unknown option 'Colour'"),
    ],
)
def test_what_is_wrong_is_said_with_what_is_right(
    options: dict[str, str], error: type[Exception], message: str
) -> None:
    """An unknown or bad option is refused, with the valid ones in the message."""
    with pytest.raises(error, match=message):
        read_settings(options, {})


@pytest.mark.parametrize(
    ("told", "error", "message"),
    [
        ({"kind": "changes"}, OptionMissing, "since"),
        ({"kind": "changes", "since": "1", "maxBytesPerTrigger": "9"}, UsageError, "readStream"),
    ],
)
def test_a_batch_read_of_changes_needs_a_start_and_has_no_trigger(
    told: dict[str, str], error: type[Exception], message: str
) -> None:
    """A stream may begin with the contents, but a batch read may not."""
    settings = read_settings({**HERE, **told}, {})

    check_for_stream(settings)
    with pytest.raises(error, match=message):
        check_for_batch(settings)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"checkpointHold": "1ms"}, "at least 1m, or none, not '1ms'"),
        ({"checkpointHold": "59s"}, "at least 1m, or none, not '59s'"),
        ({"checkpointHold": "0s"}, "at least 1m, or none, not '0s'"),
        ({"hold": "999ms"}, "at least 1s, not '999ms'"),
    ],
)
def test_a_hold_that_is_too_short_is_refused(told: dict[str, str], message: str) -> None:
    """It would end before the query renews it."""
    lower = {name.lower(): value for name, value in told.items()}
    with pytest.raises(UsageError, match=message):
        read_settings({**HERE, **lower, "kind": "changes"}, {})


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({}, r"set option\('kind', 'changes'\)"),
        ({"kind": "changes", "until": "9"}, "has no option 'until'"),
        ({"kind": "changes", "hold": "1h"}, r"set option\('checkpointHold', '30d'\)"),
    ],
)
def test_a_stream_has_changes_and_no_end(told: dict[str, str], message: str) -> None:
    """An option that does not apply is refused, and not ignored."""
    settings = read_settings({**HERE, **told}, {})

    with pytest.raises(UsageError, match=message):
        check_for_stream(settings)


def test_columns_are_checked() -> None:
    """Unknown columns are refused at once, long before Spark would notice."""
    check_columns(("b", "a"), ["a", "b"])

    with pytest.raises(UsageError, match="the columns are a, b"):
        check_columns(("c",), ["a", "b"])
    with pytest.raises(UsageError, match="twice"):
        check_columns(("a", "a"), ["a", "b"])


def test_errors_are_told_as_spark_tells_its_own() -> None:
    """An error begins with its kind in brackets, like Spark's own errors."""
    with pytest.raises(SourceError) as raised, told_as_spark_tells():
        raise AsOfNotComplete("not yet", asked=5)

    assert str(raised.value) == "[TIDELOG_AS_OF_NOT_COMPLETE] not yet (asked=5)"


def test_an_error_hides_the_traceback_of_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark reads the variable and formats the error: later errors show their tracebacks."""
    monkeypatch.delenv(HIDE, raising=False)
    error = SourceError("told")
    hidden = os.environ.get(HIDE)

    assert (hidden, str(error), os.environ.get(HIDE)) == ("1", "told", None)
    monkeypatch.setenv(HIDE, "1")
    assert str(SourceError("told")) == "told"
    assert os.environ[HIDE] == "1"


def test_all_columns_may_be_null_also_inside_of_others() -> None:
    """Columns and nested fields are nullable, as the batches declare them."""
    schema = spark_schema(
        pa.schema([pa.field("l", pa.list_(pa.field("x", pa.uint16(), nullable=False)))])
    )

    assert schema == spark.StructType(
        [spark.StructField("l", spark.ArrayType(spark.IntegerType(), True), True)]
    )


def test_a_type_that_spark_lacks_is_refused_by_the_name_of_its_column() -> None:
    """The error names the column and the option that leaves it out."""
    with pytest.raises(UsageError, match=r"column 'x'.*'columns'"):
        spark_schema(pa.schema([("x", pa.list_(pa.decimal128(5, -2)))]))
