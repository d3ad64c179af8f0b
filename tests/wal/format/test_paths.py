"""Paths in stored objects: a path either names an object of a log or is damage."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.errors import CorruptionError
from tidelog.wal.format.epoch_chain import decode_epochs_of_chain, decode_past
from tidelog.wal.format.fragment import decode_fragment
from tidelog.wal.format.gc_plan import ERASED_MAX, Garbage, decode_garbage, encode_garbage
from tidelog.wal.format.json import Fields

OUT_OF_IT = [
    "",
    "..",
    "/etc/passwd",
    "a/../b",
    "a//b",
    "a\0b",
    ".",
    ".tidelog/x",
    "../..",
    "../a/../b",
]


def epoch(log: str) -> Fields:
    found = {
        "number": 0,
        "id": "0" * 16,
        "lanes": 1,
        "alpha": 1,
        "opener": "test",
        "first_slot": 1,
        "reach": 0,
        "log": log,
    }
    return Fields("MANIFEST", {"epochs": [found]})


def past(path: str) -> Fields:
    numbers = {"depth": 0, "first": 0, "limit": 1, "first_slot": 1, "limit_slot": 2}
    return Fields("MANIFEST", {"path": path, **numbers})


def fragment(path: str) -> Fields:
    place: dict[str, Any] = {"start": {"offset": 1}, "limit": {"offset": 2}}
    return Fields(
        "MANIFEST", {"path": path, "seq_no": 1, "num_bytes": 1, "setsum": "0" * 64, **place}
    )


@pytest.mark.parametrize("path", OUT_OF_IT)
def test_no_path_leads_out_of_a_log(path: str) -> None:
    """Fragments and lists of epochs reject a path that leaves the log."""
    for decode, found in ((decode_fragment, fragment(path)), (decode_past, past(path))):
        with pytest.raises(CorruptionError, match="is not a path in the log"):
            decode(found)


def test_a_list_of_epochs_is_the_logs_own() -> None:
    """A fork shares the fragments of its source. Its lists of epochs must be its own."""
    assert decode_fragment(fragment("../source/epoch/x")).path == "../source/epoch/x"
    with pytest.raises(CorruptionError):
        decode_past(past("../source/epochs/x"))


@pytest.mark.parametrize("log", ["..", "a/b", "/a", ".hidden", "a" * 129, "\ud800", "a\0"])
def test_an_epoch_is_shared_with_a_log_that_can_be(log: str) -> None:
    """The log name of a shared epoch must be a valid name, because it becomes part of a path."""
    with pytest.raises(CorruptionError, match="is not a log's name"):
        decode_epochs_of_chain(epoch(log))


@pytest.mark.parametrize(
    ("start", "limit"), [(0, ERASED_MAX + 1), (0, 2**40), (2**40, 0), (3, 2), (0, 2**64 - 1)]
)
def test_a_plan_is_refused_before_its_paths_are_listed(start: int, limit: int) -> None:
    """A plan with too many fragments is refused before its paths could exhaust the memory."""
    plan = Garbage(fragments_start=start, fragments_limit=limit)

    with pytest.raises(CorruptionError, match="fragments_to_drop_limit"):
        decode_garbage(encode_garbage(plan))
