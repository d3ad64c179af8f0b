"""Both kernels compute the same hashes; the compiled one is loaded once there is much to hash."""

from __future__ import annotations

import sys
import threading
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.rowhash_model import typed_columns
from tidelog.rowhash import compiled, hash_rows, hash_rows_with_time, xxh3
from tidelog.rowhash.columns import Kernel, _KernelChoice, is_compiled, kernel
from tidelog.rowhash.xxh3 import seeds_of

KERNELS: tuple[Kernel, ...] = (xxh3, compiled)
WORDS = np.arange(100, dtype=np.uint64)
SEEDS = seeds_of("test")
WORD_LISTS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40)


def _use(chosen: Kernel, left: int = 0) -> AbstractContextManager[Any]:
    return patch.multiple(_KernelChoice, kernel=chosen, left=left)


def _frozen(values: Any, dtype: Any) -> Any:
    """Return an array that raises if a kernel changes it."""
    array = np.array(values, dtype)
    array.flags.writeable = False
    return array


@settings(deadline=None)
@given(columns=typed_columns(), times=st.integers(-(2**63), 2**63 - 1))
def test_both_kernels_hash_rows_of_all_types_alike(columns: list[Any], times: int) -> None:
    """A process may write rows with one kernel and check them with the other."""
    rows = len(columns[0])
    hashes = []
    for chosen in KERNELS:
        with _use(chosen):
            plain = hash_rows(columns, rows=rows)
            timed = hash_rows_with_time(plain, np.full(rows, times))
            hashes.append([lane.tolist() for lane in (plain.lo, plain.hi, timed.lo, timed.hi)])

    assert hashes[0] == hashes[1]


@settings(deadline=None)
@given(
    values=st.lists(st.binary(max_size=20) | st.binary(max_size=300), max_size=30),
    order=st.randoms(use_true_random=False),
)
def test_both_kernels_hash_bytes_alike(values: list[bytes], order: Any) -> None:
    """Both take strings in any order, from read-only memory, and leave their arguments alone."""
    data = _frozen(list(b"".join(values)), np.uint8)
    lengths = np.array([len(value) for value in values], np.int64)
    places = list(zip((np.cumsum(lengths) - lengths).tolist(), lengths.tolist(), strict=True))
    order.shuffle(places)
    starts, lengths = (_frozen([place[at] for place in places], np.int64) for at in (0, 1))

    first, second = (chosen.hash_bytes(data, starts, lengths, SEEDS) for chosen in KERNELS)

    assert np.array_equal(first, second)


@settings(deadline=None)
@given(words=WORD_LISTS, step=st.sampled_from([1, 2, -1]))
def test_both_kernels_hash_and_fold_words_alike(words: list[int], step: int) -> None:
    """Both fold in place, in a view of a state, and take words with any stride."""
    given_words = _frozen(words, np.uint64)[::step]
    states = []
    for chosen in KERNELS:
        state = xxh3.start_fold("row", len(given_words) + 2)
        part = state[:, 1:-1]
        lanes = chosen.hash_words(given_words, SEEDS)
        lanes.flags.writeable = False
        assert chosen.fold(part, lanes[:, ::-1]) is part
        assert chosen.fold_words(part, given_words, SEEDS) is part
        assert chosen.finish_fold(part) is part
        states.append((lanes.tolist(), state.tolist()))

    assert states[0] == states[1]


def test_seeds_cannot_be_changed() -> None:
    """All callers share the seeds of a class, and the steps change arrays in place."""
    with pytest.raises(ValueError, match="read-only"):
        xxh3.fold(seeds_of("test"), SEEDS)


def test_compiled_functions_are_loaded_once_there_is_much_to_hash() -> None:
    """Few values are hashed before numba would be there; the hashes are the same after."""
    with _use(xxh3, left=250):
        before = kernel(100).hash_words(WORDS, SEEDS)
        kernel(100).hash_words(WORDS, SEEDS)
        assert not is_compiled()
        kernel(100).hash_words(WORDS, SEEDS)
        assert is_compiled()
        assert np.array_equal(kernel(100).hash_words(WORDS, SEEDS), before)
        assert np.array_equal(xxh3.hash_words(WORDS, SEEDS), before)


def test_threads_hash_alike_while_one_of_them_loads_numba() -> None:
    """A write hashes on all cores, so several threads reach the limit at one time."""
    expected = xxh3.hash_words(WORDS, SEEDS)
    barrier = threading.Barrier(4)
    results: list[bool] = []

    def hash_often() -> None:
        barrier.wait(timeout=60)
        results.extend(
            np.array_equal(kernel(100).hash_words(WORDS, SEEDS), expected) for _ in range(50)
        )

    with _use(xxh3, left=2_000):
        threads = [threading.Thread(target=hash_often) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert is_compiled()
    assert results == [True] * 200


@pytest.mark.parametrize("problem", [ImportError("none here"), RuntimeError("nowhere to cache")])
def test_numpy_hashes_if_numba_does_not_work(problem: Exception) -> None:
    """It is asked for once, and nothing fails."""
    asked: list[str] = []

    class Finder:
        def find_spec(self, name: str, *given: object) -> None:
            if name == "tidelog.rowhash.compiled":
                asked.append(name)
                raise problem

    from tidelog import rowhash

    with (
        _use(xxh3, left=50),
        patch.dict(sys.modules),
        patch.object(rowhash, "compiled"),
        patch.object(sys, "meta_path", [Finder(), *sys.meta_path]),
    ):
        sys.modules.pop("tidelog.rowhash.compiled", None)
        vars(rowhash).pop("compiled", None)
        for _ in range(3):
            kernel(100).hash_words(WORDS, SEEDS)
        assert not is_compiled()
        assert asked == ["tidelog.rowhash.compiled"]
