"""Random schedules: each row is in once, and complete times never change.

For more of them: ``make schedules SCHEDULES_ARGS="--first 1000 --seeds 500"``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

import pyarrow as pa
import pytest

from schedules.play import play
from schedules.rotation import play_rotation
from tidelog.collection.ingest import source_shards
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.source import files
from tidelog.collection.source.binding import AddressRange, Binding, next_binding

SEEDS = range(10)  # A second each. Other seeds have many small ticks and take half a minute.
CAUGHT_IN = 12  # Each fault below is found within as many seeds.


@pytest.mark.parametrize("seed", SEEDS)
def test_each_row_is_in_once(seed: int) -> None:
    """Files grow, are truncated, compressed, renamed and copied, while ingesters die."""
    play(seed)


@pytest.mark.parametrize("seed", range(12))
def test_each_line_of_a_rotated_log_is_in_once_or_reported(seed: int) -> None:
    """Logs are renamed, copied, truncated, compressed and moved, while ingesters die.

    For 200 seeds: ``make schedules SCHEDULES_ARGS=--rotation``, or ``--spark`` on Spark.
    """
    play_rotation(seed)


@pytest.mark.parametrize("seed", [17, 19, 30, 194])
def test_each_line_of_a_log_rotated_during_a_run_is_in_once_or_reported(seed: int) -> None:
    """Tools work between the requests of a run, and the process may be killed there.

    For 200 seeds: ``make schedules SCHEDULES_ARGS=--busy``, or ``--busy --spark`` on Spark.
    """
    play_rotation(seed, is_busy=True)


def forgetful(
    tables: Sequence[pa.Table], lower: int, upper: int, kind: type[AddressRange]
) -> Binding:
    """Return the next binding without its last range, if it has several."""
    found = next_binding(tables, lower, upper, kind)
    kept = found.ranges[:-1] if len(found.ranges) > 1 else found.ranges
    return Binding(found.lower, found.upper, kept)


def blind(*_: object) -> Mapping[object, object]:
    """Recognise no renamed file."""
    return {}


@pytest.mark.parametrize("fault", ["a range is forgotten", "a renamed file is not known"])
def test_a_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedules must find both canaries: a fault that loses rows, and one that repeats rows."""
    if fault == "a range is forgotten":
        monkeypatch.setattr(source_shards, "next_binding", forgetful)
        # A binding that is committed with its rows is not read back.
        monkeypatch.setattr(Ingester, "_binds_with_rows", lambda *_: False)
    else:
        monkeypatch.setattr(files, "gone_by_beginning", blind)

    for seed in count():
        assert seed < CAUGHT_IN, "nothing was found"
        try:
            play(seed)
        except AssertionError:
            return
