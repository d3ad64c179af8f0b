"""Arguments of wrong types: the caller gets a UsageError, and the shard stays unchanged."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidelog
from tidelog.errors import HandleError, HoldExpired, NotRegistered, UsageError

COLUMNS: list[tuple[str, pa.DataType]] = [("k", pa.string()), ("n", pa.int64())]
SCHEMA = pa.schema(COLUMNS)
ROW = pa.table({"k": ["a"], "n": [1], "_time": [0], "_diff": [1]})
ODD: tuple[Any, ...] = (
    *(None, "x", b"x", 3, 1.5, True, -1, [1], {}, datetime(2020, 1, 1, tzinfo=UTC), np.int64(3)),
)
NO_TEXT = tuple(odd for odd in ODD if not isinstance(odd, str))
NO_NUMBER = tuple(odd for odd in ODD if type(odd) is not int or odd < 0)
NO_LIMIT = tuple(odd for odd in NO_NUMBER if odd is not None)  # None means no limit.
NO_FLAG = tuple(odd for odd in ODD if not isinstance(odd, bool))

# Calls of a shard, each with the values that it must refuse.
ASKED: dict[str, tuple[Callable[[Any, Any], object], tuple[Any, ...]]] = {
    "within": (lambda s, odd: s.within(odd), NO_LIMIT),
    "snapshot in time": (lambda s, odd: s.snapshot(0, timeout_us=odd), NO_LIMIT),
    "columns": (lambda s, odd: s.snapshot(0, columns=odd), (*ODD[1:], ["k", 3])),
    "collect": (lambda s, odd: s.collect(after_us=odd), NO_LIMIT),
    "compact": (lambda s, odd: s.compact(full=odd), NO_FLAG),
    "lease": (lambda s, odd: s.lease(lease_us=odd), (*NO_NUMBER, np.int64(10**6), 10**30)),
    "purpose": (lambda s, odd: s.lease(purpose=odd), NO_TEXT),
    "hold at": (lambda s, odd: s.hold("h", odd), ("x", b"x", 0.0, [1], {}, "0")),
    "upper": (lambda s, odd: s.compare_and_append(None, 1, odd), ("x", b"x", 2.0, True, [1], {})),
    "fixed": (lambda s, odd: s.lease(fixed=odd), NO_FLAG),
    "named": (lambda s, odd: s.compare_and_append(None, 1, 2, named=odd), NO_FLAG),
    "token": (
        lambda s, odd: s.compare_and_append(None, 1, 2, token=odd),
        (*ODD[1:], "ab", ("w", -1), ("w", 2.0), (3, 1), ("w", np.int64(1))),
    ),
    "holds": (
        lambda s, odd: s.compare_and_append(None, 1, 2, holds=odd),
        (*(odd for odd in ODD if odd is not None and odd != {}), {3: 0}, {"h": "0"}, {"h": 1.0}),
    ),
    "append": (lambda s, odd: s.append(odd, 1, 2), ODD),
    "hold": (lambda s, odd: s.hold(odd), (*NO_TEXT, "", "a\nb", "h" * 129, "\ud800")),
    "hold by": (lambda s, odd: s.hold("h", token=odd), NO_LIMIT),
    "move": (lambda s, odd: s.move_hold(odd, 1), NO_TEXT),
    "move by": (lambda s, odd: s.move_hold("history", 1, token=odd), NO_LIMIT),
    "release": (lambda s, odd: s.drop_hold(odd), NO_TEXT),
    "appender": (lambda s, odd: s.appender(odd), (*NO_TEXT, "")),
    "heartbeat": (lambda s, odd: s.appender("w", heartbeat_us=odd), NO_NUMBER),
    "drop": (lambda s, odd: s.drop_writer(odd), NO_TEXT),
    "evolve": (lambda s, odd: s.evolve_schema(odd), ODD),
    "evolve from": (lambda s, odd: s.evolve_schema(SCHEMA, expected=odd), NO_LIMIT),
}


@pytest.mark.parametrize("what", ASKED)
def test_a_shard_refuses_what_it_cannot_be_asked(what: str) -> None:
    """The shard could otherwise store a wrong value."""
    call, odds = ASKED[what]
    with tidelog.connect("memory://asked", create=True) as lake:
        shard = lake.shard("s", schema=SCHEMA, key=["k"])
        shard.compare_and_append(ROW, 0, 1)
        before = shard._inner.machine.seqno
        for odd in odds:
            with pytest.raises(UsageError):
                call(shard, odd)
        shard.upper()
        assert shard._inner.machine.seqno == before
        with pytest.raises(UsageError, match="number"):
            shard.within("9")  # type: ignore[arg-type] # a caller without a checker


def test_what_opens_shards_and_transactions_refuses_what_is_none() -> None:
    """Each wrong argument raises UsageError, which names the expected type."""
    with tidelog.connect("memory://asked", create=True) as lake:
        opens: Any = lake
        for odd in ODD[1:]:
            with pytest.raises(UsageError, match="schema of a shard"):
                opens.shard("s", schema=odd)
        for odd in (*ODD[1:7], np.int64(3)):
            with pytest.raises(UsageError, match="key must be a list of names"):
                opens.shard("s", schema=SCHEMA, key=odd)
        bank: Any = lake.shards.transactions("bank")
        for odd in ODD:
            with pytest.raises(UsageError, match=r"must be a tidelog\.Shard"):
                bank.register(odd)
            if odd != {}:
                with pytest.raises(UsageError, match="mapping of names to tables"):
                    bank.compare_and_append(odd, 0, 1)
            with pytest.raises(UsageError, match="updates of 'q' must be a pyarrow table"):
                bank.compare_and_append({"q": odd}, 0, 1)
        with pytest.raises(NotRegistered, match="the shard 'q' is not registered"):
            bank.compare_and_append({"q": ROW}, 0, 1)


def test_a_reader_and_a_writer_that_were_closed_say_so() -> None:
    """A closed lease no longer protects its data, so each call raises."""
    with tidelog.connect("memory://asked", create=True) as lake:
        shard = lake.shard("s", schema=SCHEMA, key=["k"])
        shard.compare_and_append(ROW, 0, 1)
        reader, till = shard.lease(), shard.appender("till")
        reader.close()
        till.close()

        reads: list[Callable[[], object]] = [
            lambda: reader.snapshot(0),
            lambda: next(reader.listen(0)),
            reader.renew,
        ]
        for read in reads:
            with pytest.raises(HoldExpired, match="closed"):
                read()
        reader.close()
        writes: list[Callable[[], object]] = [
            lambda: till.append(None, 2),
            lambda: till.advance(2),
            lambda: till.move_hold("history", 1),
        ]
        for write in writes:
            with pytest.raises(HandleError, match="closed"):
                write()
        till.close()
        assert shard.upper().time == 1


def test_who_begins_again_is_told_where_it_left_off() -> None:
    """An appender that repeats complete times gets UsageError with the upper, and can continue."""
    rows = ROW.drop(["_time"]).append_column("_time", pa.array([3]))
    with tidelog.connect("memory://asked", create=True) as lake:
        shard = lake.shard("s", schema=SCHEMA, key=["k"])
        with shard.appender("till") as till:
            till.append(rows, 5)
            till.advance(9)
        with shard.appender("till") as again:
            with pytest.raises(UsageError, match=r"is already past that upper.* \(upper=9"):
                again.append(rows, 5)
            assert again.upper.time == 9
            again.append(None, 10)
        with pytest.raises(UsageError, match="times before 10 are complete, so pass a later"):
            shard.compare_and_append(rows, 10, 11)
        with pytest.raises(UsageError, match="pass a greater upper"):
            shard.compare_and_append(None, 10, 4)
