"""Every decoder of what is stored, but for logs': changed bytes are a value, or a named error."""

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
    """In a process of its own, with little memory: one that dies has told by which it did."""
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
    """Else whatever is made of changed bytes would say nothing."""
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
    """The canary: each kind of failure that is looked for is seen."""

    def decode(_: bytes) -> object:
        raise error

    found = run_case("canary", Decoder(b"whole", decode), 1, 1)
    assert told in found
    assert bool(found) == bool(told)
