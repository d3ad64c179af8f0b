"""Whatever is drawn, each row is in once, and what is complete never changes.

More of them: ``make schedules SCHEDULES_ARGS="--first 1000 --seeds 500"``.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import pyarrow as pa
import pytest

from schedules.play import play
from schedules.rotation import play_rotation
from tidelog.collection.ingest import source_shards
from tidelog.collection.source import files
from tidelog.collection.source.binding import AddressRange, Binding, next_binding

SEEDS = range(10)  # A second each; others, of many small ticks, take half a minute.
CAUGHT_IN = 12  # Seeds, in which each fault below is found.


@pytest.mark.parametrize("seed", SEEDS)
def test_each_row_is_in_once(seed: int) -> None:
    """While files grow, are torn, packed, renamed and copied, and ingesters die."""
    play(seed)


@pytest.mark.parametrize("seed", range(12))
def test_each_line_of_a_rotated_log_is_in_once_or_reported(seed: int) -> None:
    """While logs are renamed, copied, truncated, compressed and moved, and ingesters die.

    200 of them: ``make schedules SCHEDULES_ARGS=--rotation``, on Spark ``--spark``.
    """
    play_rotation(seed)


@pytest.mark.parametrize("seed", [17, 19, 30, 194])
def test_each_line_of_a_log_rotated_during_a_run_is_in_once_or_reported(seed: int) -> None:
    """While tools work, and kills happen, between the requests of a run.

    200 of them: ``make schedules SCHEDULES_ARGS=--busy``, on Spark ``--busy --spark``.
    """
    play_rotation(seed, is_busy=True)


def forgetful(updates: pa.Table, lower: int, upper: int, kind: type[AddressRange]) -> Binding:
    """Forget a range of a binding of several."""
    found = next_binding(updates, lower, upper, kind)
    kept = found.ranges[:-1] if len(found.ranges) > 1 else found.ranges
    return Binding(found.lower, found.upper, kept)


def blind(*_: object) -> Mapping[object, object]:
    """Know no file again that has another name."""
    return {}


@pytest.mark.parametrize("fault", ["a range is forgotten", "a renamed file is not known"])
def test_a_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: rows that are lost, and rows that come twice."""
    if fault == "a range is forgotten":
        monkeypatch.setattr(source_shards, "next_binding", forgetful)
    else:
        monkeypatch.setattr(files, "gone_by_beginning", blind)

    for seed in count():
        assert seed < CAUGHT_IN, "nothing was found"
        try:
            play(seed)
        except AssertionError:
            return
