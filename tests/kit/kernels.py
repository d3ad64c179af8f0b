"""Tests of row hashes run twice: as numpy computes them, and as compiled functions do."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from tidelog import rowhash_compiled, rowhash_kernels, rowhash_xxh3

MODULES = {"numpy": rowhash_xxh3, "compiled": rowhash_compiled}


@pytest.fixture(scope="module", params=MODULES, autouse=True)
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have hashes computed by one of the two, whatever was hashed before."""
    chosen = rowhash_kernels._Chosen
    with (
        patch.object(chosen, "kernels", MODULES[request.param]),
        patch.object(chosen, "left", 0),
    ):
        yield
