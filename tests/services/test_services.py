"""`make services`: the servers of the tests, started for people, and stopped."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kit import services
from kit.s3_servers import ACCESS_KEY, BUCKET, SECRET_KEY, SeaweedServer
from kit.services import ROOT, SERVICES, Service

NAMES = [each.name for each in SERVICES]


@pytest.fixture
def data() -> Iterator[Path]:
    """A folder that PostgreSQL's own user may enter; at the end its services are stopped."""
    made = Path(tempfile.mkdtemp(prefix="tidelog-services-"))
    made.chmod(0o755)
    yield made
    list(services.stop(made))
    shutil.rmtree(made, ignore_errors=True)


def run(
    verb: str, data: Path, *options: str, **environment: str
) -> tuple[int, dict[str, tuple[str, str]]]:
    """Return the exit status of a command, and the state and the text of each service."""
    done = subprocess.run(
        [sys.executable, "-m", "kit.services", verb, "--json", "--data", str(data), *options],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
    )
    assert done.stderr == ""
    told = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, {each["service"]: (each["state"], each["told"]) for each in told}


def states(reports: dict[str, tuple[str, str]]) -> dict[str, str]:
    return {name: state for name, (state, _) in reports.items()}


def processes_of(data: Path) -> list[str]:
    """Return the processes whose command or working folder is inside ``data``."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            command = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            folder = str((each / "cwd").readlink())
        except OSError:
            continue  # It has ended.
        if command and (str(data) in command or folder.startswith(str(data))):
            found.append(command)
    return found


def test_services_run_until_they_are_stopped(data: Path) -> None:
    """Each service outlives the command, one that was killed is started again, and none is left."""
    code, first = run("start", data, "--own-ports")
    absent = {name for name, state in states(first).items() if state == "absent"}
    running = [name for name in NAMES if name not in absent]
    pids = json.loads((data / "state.json").read_text())

    assert code == 0
    assert sorted(first) == sorted(NAMES)
    assert {states(first)[name] for name in running} == {"answers"}
    assert {"postgres", "seaweedfs"} <= set(running), "the environment of the tests has them"
    assert states(run("start", data, "--own-ports")[1]) == states(first) | dict.fromkeys(
        running, "runs already"
    )
    os.kill(pids["postgres"]["pid"], signal.SIGKILL)
    code, seen = run("status", data)
    assert code == 1
    assert {name: seen[name][0] for name in running} == dict.fromkeys(running, "answers") | {
        "postgres": "has ended"
    }
    again = run("start", data, "--own-ports")[1]
    assert states(again) == states(first) | dict.fromkeys(running, "runs already") | {
        "postgres": "answers"
    }
    assert len(processes_of(data)) >= len(running), "the check below can fail"

    code, stopped = run("stop", data)

    assert (code, states(stopped)) == (0, dict.fromkeys(running, "stopped"))
    assert processes_of(data) == []
    assert run("stop", data) == (0, {})
    assert (data / "postgres" / "data" / "PG_VERSION").exists(), "the data stays"


def test_a_service_that_cannot_be_installed_is_named(data: Path, tmp_path: Path) -> None:
    """Without Java and node the command names three services as absent, and starts the others."""
    found = shutil.which("ps")
    assert found is not None
    (tmp_path / "ps").symlink_to(found)

    code, reports = run("start", data, "--own-ports", PATH=str(tmp_path))

    assert code == 0
    assert states(reports) == {
        "kafka": "absent",
        "registry": "absent",
        "azurite": "absent",
        "postgres": "answers",
        "seaweedfs": "answers",
    }
    assert reports["kafka"][1] == "Kafka is not installed: java is missing"
    assert reports["azurite"][1] == "Azurite is not installed: node or npm is missing"


def test_a_port_that_is_taken_is_reported(data: Path) -> None:
    """The command names the port, and touches neither the process that has it nor its state."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        only = Service("seaweedfs", port, lambda at, port: SeaweedServer(at, port=port), str)

        (report,) = services.start(data, [only])

    assert (report.state, report.told) == ("failed", f"another process has the port {port}")
    assert list(services.stop(data, [only])) == []


def test_a_number_of_a_later_process_is_not_stopped(data: Path) -> None:
    """A state file that outlived a restart of the machine may name processes of other programs."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as other:
        told = {"pid": other.pid, "started": "of another process", "port": 1}
        (data / "state.json").write_text(json.dumps({"kafka": told}))

        reports = list(services.stop(data))

        assert other.poll() is None
        other.kill()
    assert reports == []


def test_the_compose_file_has_the_same_services_and_ports() -> None:
    """People with Docker get the services at the addresses that guides and `make services` name."""
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    ports = {name: each["ports"] for name, each in compose["services"].items()}

    assert sorted(ports) == sorted(NAMES)
    for each in SERVICES:
        (told,) = ports[each.name]
        assert re.fullmatch(rf"127\.0\.0\.1:{each.port}:\d+", told)
        image = compose["services"][each.name]["image"]
        assert re.search(r":\d", image), f"{image} names no version"


def test_the_compose_file_has_the_same_settings() -> None:
    """Names, keys and settings that users type are those of `make services`."""
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    services_of = compose["services"]
    kafka = services_of["kafka"]["environment"]
    grants = json.loads(compose["configs"]["grants"]["content"])["identities"][0]

    assert kafka["KAFKA_ADVERTISED_LISTENERS"] == "PLAINTEXT://127.0.0.1:19092"
    assert "wal_level=logical" in services_of["postgres"]["command"]
    assert services_of["postgres"]["environment"]["POSTGRES_USER"] == "tidelog"
    assert f"-bucket={BUCKET}" in services_of["seaweedfs"]["command"]
    assert grants["credentials"] == [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
