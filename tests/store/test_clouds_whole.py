"""Collections and logs over ``az://`` and ``gs://``, from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tidelog
from tidelog import SourceSpec
from tidelog.core.clock import SystemClock
from tidelog.store.urls import open_store

CLOCK = SystemClock()
DIES = """
import os, pathlib, signal, sys
from kit.azurite import Azurite, installed_azurite
with Azurite(pathlib.Path(sys.argv[1]), installed_azurite()) as server:
    print(server.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(params=["google", "azurite"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return a function that returns URLs in a folder of this test."""
    server = request.getfixturevalue(request.param)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    unique = CLOCK.unique()
    return lambda name: str(server.url(f"{unique}/{name}"))


async def put(url: str, key: str, rows: list[dict[str, object]]) -> None:
    """Store a file of a source."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    await open_store(url, clock=CLOCK).put(key, lines.encode())


async def test_a_collection_is_fed_and_read(place: Callable[[str], str]) -> None:
    """Files in the cloud are ingested once into a collection in the cloud."""
    files, lake_url = place("files"), place("lake")
    await put(files, "1.jsonl", [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}])
    spec = SourceSpec(
        name="c", files=f"{files}/*.jsonl", format="json", envelope="upsert", key=("k",)
    )
    lake = await CLOCK.offload(lambda: tidelog.connect(lake_url, create=True))

    def work() -> list[object]:
        lake.sources.create(spec)
        lake.sources.ingest("c")
        return [lake.sources.ingest("c").rows]

    assert await CLOCK.offload(work) == [0], "nothing is taken twice"
    await put(files, "2.jsonl", [{"k": 2, "v": "c"}])

    def rest() -> list[dict[str, object]]:
        lake.sources.ingest("c")
        return lake.collection("c").snapshot().to_arrow().sort_by("k").to_pylist()

    assert await CLOCK.offload(rest) == [{"k": 1, "v": "a"}, {"k": 2, "v": "c"}]
    await CLOCK.offload(lake.close)


def test_a_log_is_appended_and_read(place: Callable[[str], str]) -> None:
    """Two locations append to a log in the cloud one after the other. The records are in order."""
    url = place("logs")
    with tidelog.connect(url, create=True) as lake, lake.logs.create("l") as log:
        log.append([b"one", b"two"])
        with tidelog.connect(url) as other, other.log("l") as second:
            second.append([b"three"])
            found = [r for table in second.scan() for r in table.column("body").to_pylist()]
        assert found == [b"one", b"two", b"three"]


def test_azurite_ends_with_the_tests_even_if_they_are_killed(
    azurite: object, tmp_path: Path
) -> None:
    """Azurite ends with killed tests, too, and keeps no port and memory."""
    assert azurite is not None
    done = subprocess.run(
        [sys.executable, "-c", DIES, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert done.stdout, done.stderr
    pid = int(done.stdout)
    deadline = CLOCK.monotonic_us() + 5_000_000
    while _runs(pid) and CLOCK.monotonic_us() < deadline:
        pass

    assert done.returncode == -9
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    """Return True if a process runs and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
