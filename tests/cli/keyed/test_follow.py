"""``tidelog keyed follow`` in a process of its own: it prints records as they are appended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog import connect


@pytest.mark.parametrize("options", [["--key", "a"], ["--prefix", "a", "--new"], []])
def test_what_comes_is_written_until_ctrl_c(tmp_path: Path, options: list[str]) -> None:
    """A follower prints only the requested records, old or new, and exits with 130 at Ctrl-C."""
    # A test run in the background ignores Ctrl-C, and its children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with connect(tmp_path, create=True) as lake, lake.keyed.create("k") as log:
        log.append([(b"a", b"old")])
        words = ["--location", str(tmp_path), "keyed", "follow", "k", *options, "--json"]
        process = subprocess.Popen(
            [sys.executable, "-m", "tidelog", *words], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            told: list[dict[str, object]] = []
            if "--new" not in options:
                told.append(json.loads(process.stdout.readline()))
                assert told[0]["value"] == "old"
            while process.poll() is None and len(told) < 2:
                log.append([(b"b", b"other"), (b"a", b"new")])
                if "--new" not in options or _has_begun(process):
                    told.append(json.loads(process.stdout.readline()))
            wanted = {"a"} if options else {"a", "b"}
            assert {one["key"] for one in told} <= wanted
            assert told[-1]["value"] in ("new", "other")
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _has_begun(process: subprocess.Popen[str]) -> bool:
    """Return True if there is output within a moment: a follow with --new begins late."""
    import select

    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], 0.2)[0])
