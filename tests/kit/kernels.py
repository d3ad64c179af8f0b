"""Tests of row hashes run twice: with numpy's kernel, and with the compiled one."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from tidelog.rowhash import compiled, xxh3
from tidelog.rowhash.columns import _KernelChoice

MODULES = {"numpy": xxh3, "compiled": compiled}


@pytest.fixture(scope="module", params=MODULES, autouse=True)
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Select one of the two, also in a process that has hashed much or little before."""
    chosen = _KernelChoice
    with (
        patch.object(chosen, "kernel", MODULES[request.param]),
        patch.object(chosen, "left", 0),
    ):
        yield
