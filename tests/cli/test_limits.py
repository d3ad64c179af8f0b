"""A process at a resource limit names the resource and the setting."""

from __future__ import annotations

import pytest

from cli.conftest import Cli
from tidelog.cli import main


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ImportError("libarrow.so.2600: failed to map segment from shared object"),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_a_process_that_may_have_no_more_memory_is_told_so(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Under ``ulimit -v 400000`` even libraries fail to load; the error names the limit."""

    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(main, "_run", fail)
    said = cli("collection", "list")

    assert said.status == 1
    assert "limit of memory or threads" in said.complaint
    assert "ulimit -v" in said.complaint
    assert "report" not in said.complaint
