"""Decoders of stored bytes, except those of logs: changed bytes give a value or a named error."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fuzz.decoders import Decoder, _decoders, run_case
from fuzz.runner import SPARING, TESTS
from tidelog.errors import InvariantError, UsageError

CASES = 300


def test_changed_bytes_are_a_value_or_a_named_error() -> None:
    """A separate process with little memory prints each case before it runs."""
    done = subprocess.run(
        [sys.executable, "-m", "fuzz.decoders", "--cases", str(CASES)],
        cwd=TESTS,
        env={**os.environ, **SPARING, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    begun = done.stderr.splitlines()[-3:]
    assert done.returncode == 0, f"{done.stdout[:2_000]}; the last: {begun}"
    assert f"{len(_decoders())} decoders, {CASES} cases each, 0 failed" in done.stdout


def test_each_decoder_reads_what_was_written() -> None:
    """Each decoder reads the unchanged bytes. Otherwise its cases would prove nothing."""
    for decoder in _decoders().values():
        decoder.decode(decoder.whole)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KeyError("x"), "KeyError"),
        (MemoryError(), "too much memory"),
        (InvariantError("mine"), "blamed itself"),
        (UsageError("yours"), ""),
    ],
)
def test_what_is_no_named_error_is_complained_of(error: Exception, told: str) -> None:
    """The canary: each kind of failure is detected."""

    def decode(_: bytes) -> object:
        raise error

    found = run_case("canary", Decoder(b"whole", decode), 1, 1)
    assert told in found
    assert bool(found) == bool(told)
