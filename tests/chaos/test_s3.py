"""The same commands against S3, on a real server that is killed and restarted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from chaos import checks
from chaos.ingesters import NAME, create, start_ingest
from chaos.scenario import write_scenario
from kit.s3_servers import SeaweedServer


def command(url: str, *arguments: str) -> list[dict[str, object]]:
    """Run the command line. Return the objects that it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "tidelog.cli.main", "--location", url, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_server_that_is_killed_in_between_loses_nothing(
    tmp_path: Path, seaweed: SeaweedServer
) -> None:
    """After the kill of a server, the next ingester reads back lost answers."""
    made = write_scenario(tmp_path / "events", events_count=2_500, seed=6)
    url, clean_url = seaweed.url("chaos-killed"), (tmp_path / "clean").as_uri()
    for place in (url, clean_url):
        create(place, tmp_path / "events")
    start_ingest(clean_url, engine="local", tick_bytes=2 * checks.TICK_BYTES).finish()

    running = start_ingest(url, engine="local", tick_bytes=2 * checks.TICK_BYTES)
    running.wait_for_tick()
    seaweed.kill()
    seaweed.restart()
    running.wait(300)  # It continued, or ended with the store's error.
    rest = start_ingest(url, engine="local", tick_bytes=2 * checks.TICK_BYTES)
    rest.finish()

    assert checks.check_equal(url, clean_url, made) > 10
    listed = command(url, "collection", "list", "--json")
    assert [c["name"] for c in listed] == [NAME]
    rows = command(url, "read", NAME, "--format", "json")
    assert len(rows) == command(url, "collection", "describe", NAME, "--json")[0]["rows"]
