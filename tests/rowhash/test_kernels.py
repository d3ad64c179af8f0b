"""When compiled functions are loaded, and what becomes of those who have none."""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from tidelog.rowhash import kernels, xxh3
from tidelog.rowhash.kernels import hash_words, is_compiled
from tidelog.rowhash.xxh3 import seeds_of

WORDS = np.arange(100, dtype=np.uint64)


def _fresh(left: int) -> Any:
    chosen = kernels._Chosen
    return patch.multiple(chosen, kernels=kernels._NUMPY, left=left)


def test_compiled_functions_are_loaded_once_there_is_much_to_hash() -> None:
    """Few values are hashed before numba would be there; the hashes are the same after."""
    with _fresh(250):
        before = hash_words(WORDS, seeds_of("test"))
        hash_words(WORDS, seeds_of("test"))
        assert not is_compiled()
        hash_words(WORDS, seeds_of("test"))
        assert is_compiled()
        assert np.array_equal(hash_words(WORDS, seeds_of("test")), before)
        assert np.array_equal(xxh3.hash_words(WORDS, seeds_of("test")), before)


@pytest.mark.parametrize("problem", [ImportError("none here"), RuntimeError("nowhere to cache")])
def test_where_numba_does_not_work_numpy_hashes_on(problem: Exception) -> None:
    """It is asked for once, and nothing fails."""
    asked: list[str] = []

    class Finder:
        def find_spec(self, name: str, *given: object) -> None:
            if name == "tidelog.rowhash.compiled":
                asked.append(name)
                raise problem

    from tidelog import rowhash

    with (
        _fresh(50),
        patch.dict(sys.modules),
        patch.object(sys, "meta_path", [Finder(), *sys.meta_path]),
    ):
        sys.modules.pop("tidelog.rowhash.compiled", None)
        vars(rowhash).pop("compiled", None)
        for _ in range(3):
            hash_words(WORDS, seeds_of("test"))
        assert not is_compiled()
        assert asked == ["tidelog.rowhash.compiled"]
