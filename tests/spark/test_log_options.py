"""Options of logs: valid ones, and the errors of others."""

from __future__ import annotations

import pytest

from tidelog.errors import UsageError
from tidelog.spark.log_options import (
    LogSettings,
    check_for_batch,
    check_for_stream,
    read_log_settings,
)
from tidelog.spark.options import OptionMissing, UnknownOption, read_kind, read_settings

HERE = {"location": "s3://bucket/lake", "path": "orders", "kind": "log"}
PLAIN = LogSettings(location_url="s3://bucket/lake", name="orders")


def test_options_are_read_whatever_their_case() -> None:
    """Option names ignore case, since Spark passes them in lower case and Python may not."""
    found = read_log_settings({**HERE, "START": "5", "limit": "9", "MaxRecordsPerBatch": "7"}, {})

    assert found == LogSettings(
        location_url="s3://bucket/lake", name="orders", start=5, limit=9, batch_records_max=7
    )


def test_a_start_is_a_position_or_one_of_two_words() -> None:
    """By default, a read starts at the oldest record."""
    assert read_log_settings(HERE, {}) == PLAIN
    assert read_log_settings({**HERE, "start": "Earliest"}, {}) == PLAIN
    assert read_log_settings({**HERE, "start": "oldest"}, {}) == PLAIN
    assert read_log_settings({**HERE, "start": "latest"}, {}).from_latest
    assert read_log_settings({**HERE, "start": "next"}, {}).from_latest
    assert read_log_settings({**HERE, "key": "hé"}, {}).key == "hé".encode()
    assert read_log_settings({**HERE, "key": ""}, {}).key == b""
    assert read_log_settings({"path": "x"}, {"TIDELOG_LOCATION": "/x"}).location_url == "/x"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({**HERE, "asof": "1"}, UnknownOption, r"'asOf': .*start, limit.* a collection has it"),
        (
            {**HERE, "starts": "1"},
            UnknownOption,
            r"start, limit.* name of a log; did you mean 'start'",
        ),
        ({"location": "x"}, OptionMissing, "name of the log"),
        (
            {"path": "c", "kind": "log"},
            OptionMissing,
            "of the log is missing.*TIDELOG_LOCATION",
        ),
        ({**HERE, "start": "-1"}, UsageError, "start must be a position.* not '-1'"),
        ({**HERE, "start": "soon"}, UsageError, "oldest or next"),
        ({**HERE, "limit": "ten"}, UsageError, "whole number of at least 0"),
        ({**HERE, "limit": "9" * 5_000}, UsageError, "whole number of at least 0"),
        ({**HERE, "start": "9" * 5_000}, UsageError, "must be a position"),
        ({**HERE, "limit": str(2**63)}, UsageError, "whole number of at least 0"),
        ({**HERE, "start": "9", "limit": "5"}, UsageError, "ends before it starts"),
        ({**HERE, "key": "k" * 16_385}, UsageError, "at most 16384 bytes"),
        ({**HERE, "key": "\udcff"}, UsageError, "lone surrogate"),
        ({**HERE, "maxRecordsPerBatch": "0"}, UsageError, "whole number of at least 1"),
    ],
)
def test_what_is_wrong_is_said_with_what_is_right(
    options: dict[str, str], error: type[Exception], message: str
) -> None:
    """An unknown or bad option is refused, with the valid ones in the message."""
    with pytest.raises(error, match=message):
        read_log_settings(options, {})


def test_the_kind_is_one_of_three_and_each_has_its_own_options() -> None:
    """An option of another kind gives an error that names the kind."""
    assert read_kind({}) == "collection"
    assert read_kind({"KIND": "Log"}) == "log"
    with pytest.raises(UsageError, match=r"one of collection, changes, log.* not 'table'"):
        read_kind({"kind": "table"})
    with pytest.raises(UnknownOption, match=r"'start'.* a log has it: option\('kind', 'log'\)"):
        read_settings({"location": "x", "path": "orders", "start": "5"}, {})


def test_batch_and_stream_refuse_what_only_the_other_can_do() -> None:
    """Batch and stream share the options, and each refuses those of the other."""
    for settings in (PLAIN, read_log_settings({**HERE, "start": "5"}, {})):
        check_for_batch(settings)
        check_for_stream(settings)
    with pytest.raises(UsageError, match="'next' needs readStream"):
        check_for_batch(read_log_settings({**HERE, "start": "latest"}, {}))
    with pytest.raises(UsageError, match="maxRecordsPerBatch needs readStream"):
        check_for_batch(read_log_settings({**HERE, "maxRecordsPerBatch": "5"}, {}))
    with pytest.raises(UsageError, match="no option 'limit'"):
        check_for_stream(read_log_settings({**HERE, "limit": "5"}, {}))
