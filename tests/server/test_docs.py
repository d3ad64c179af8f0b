"""docs/reference/http.md: its curl lines, its Python, its statuses and limits."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from kit.doc_blocks import ROOT, block_with
from kit.served import served
from tidelog.cli.main import main
from tidelog.http.api.failures import BY_CLASS, BY_KIND, HttpFailure
from tidelog.server.limits import ServerLimits

PAGE = "docs/reference/http.md"
SHOWN = "localhost:8080"
TIMES = re.compile(r'"timestampUs":\d+')


@dataclass
class Process:
    """A process of ``tidelog serve``."""

    process: subprocess.Popen[str]
    url: str

    @property
    def address(self) -> str:
        return self.url.partition("://")[2]

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(60)


def started(location: str, *options: str) -> Process:
    words = ["--location", location, "serve", "--port", "0", "--json", *options]
    # A test run in the background ignores Ctrl-C, and its children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-m", "tidelog", *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as told:
        line = told.readline()
    assert line, f"it ended: {process.wait(10)}"
    return Process(process, json.loads(line)["url"])


@pytest.fixture
def location(tmp_path: Path) -> str:
    """A location with a keyed log ``orders``."""
    place = str(tmp_path / "lake")
    assert main(["--location", place, "keyed", "create", "orders"]) == 0
    return place


@pytest.fixture
def server(location: str) -> Iterator[Process]:
    found = started(location, "--log", "orders")
    yield found
    found.process.kill()
    found.process.wait()


def curl_lines() -> list[tuple[str, str]]:
    """Return the page's curl lines, each with the answer shown below it."""
    text = (ROOT / PAGE).read_text()
    return re.findall(r"^(curl -s .*localhost:8080.*)\n(\{.*\})$", text, re.MULTILINE)


def run(command: str, address: str) -> str:
    words = shlex.split(command.replace(SHOWN, address))
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout


def test_curl_answers_as_the_page_shows(server: Process) -> None:
    """Each curl line gives the shown answer, except times; the page's Python runs too."""
    lines = curl_lines()
    assert len(lines) == 8
    for command, shown in lines:
        told = run(command, server.address)
        assert TIMES.sub("", told) == TIMES.sub("", shown), command

    names: dict[str, Any] = {}
    shown = block_with(PAGE, "HttpKeyedLog").replace(SHOWN, server.address)
    exec(compile(shown, PAGE, "exec"), names)
    assert (names["first"], names["count"], names["going_on"]) == (3, 2, 5)
    assert names["table"]["value"].to_pylist() == [b"two", b"one"]
    assert names["news"]["value"].to_pylist() == [b"two"]
    assert server.end() == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_process_ends_with_what_was_appended(
    location: str,
    number: int,
    status: int,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """A server that ends writes all accepted records, even those without durability."""
    server = started(location)
    request.addfinalizer(server.process.wait)
    request.addfinalizer(server.process.kill)
    body = '{"records": [{"key": "a", "value": "x"}], "awaitDurable": false}'
    run(f"curl -sf {SHOWN}/api/v1/keyed/orders/append -d '{body}'", server.address)
    assert server.end(number) == status
    capsys.readouterr()
    assert main(["--location", location, "keyed", "count", "orders", "--key", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["count"] == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--log", "nobody"], "no keyed log named 'nobody'"),
        (["--log", "a/b"], "name"),
        (["--visibility", "none"], "durable or memory"),
        (["--tls-cert", "x.pem"], "TLS needs both"),
        (["--tls-cert", "no.pem", "--tls-key", "no.key"], "the files for TLS"),
        (["--token-file", "no-file"], "cannot be read"),
        (["--max-body", "much"], "not a number of bytes"),
        (["--port", "70000"], "port"),
    ],
)
def test_what_cannot_be_served_is_told_before(
    location: str, options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad option gives exit status 2 and a sentence, before the server starts."""
    assert main(["--location", location, "serve", *options]) == 2
    assert told in capsys.readouterr().err


def test_what_has_to_be_installed_is_told(
    location: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing server extra gives exit status 2 and the install command."""
    with patch("tidelog.cli.serve.import_module", side_effect=ImportError("No module 'uvicorn'")):
        assert main(["--location", location, "serve"]) == 2
    assert "pip install 'tidelog[server]'" in capsys.readouterr().err


def test_a_port_that_is_taken_is_told(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A taken port is a usage error: exit status 2, without a traceback."""
    with served() as other:
        port = str(other.port)
        assert main(["--location", location, "serve", "--host", "localhost", "--port", port]) == 2
    assert "cannot listen on" in capsys.readouterr().err


def test_the_page_has_each_status_and_limit() -> None:
    """The page lists every status and limit of the code's tables."""
    text = (ROOT / PAGE).read_text()
    errors, limits = text.partition("## Errors")[2].partition("## Limits")[::2]
    statuses = {*BY_KIND.values(), *(status for _, status in BY_CLASS), 500}
    statuses |= {kind.status for kind in HttpFailure.__subclasses__()}
    assert statuses <= {int(found) for found in re.findall(r"\b[45]\d\d\b", errors)}
    table = limits.partition("## ")[0]
    mib = 1024 * 1024
    for field in fields(ServerLimits):
        value = getattr(ServerLimits(), field.name)
        shown = (
            f"{value // 1_000_000} s"
            if field.name.endswith(("us_max", "timeout_us"))
            else (f"{value // mib} MiB" if "bytes" in field.name else f"{value:,}")
        )
        if field.name != "ready_us":
            assert shown in table, field.name
