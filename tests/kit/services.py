"""The servers of the tests, for people: they run until they are stopped.

``make services`` starts them, ``make services-stop`` stops them, and ``make services-status`` tries
them. Their data and their logs are in the folder ``services-data``.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from kit.azurite import ACCOUNT, Azurite, installed_azurite
from kit.azurite import CONTAINER as AZURE_CONTAINER
from kit.installs import CannotInstall
from kit.kafka_server import KafkaServer
from kit.postgres_server import PostgresServer
from kit.registry_server import RegistryServer
from kit.s3_servers import BUCKET, SeaweedServer
from kit.server_process import ServerProcess, free_ports

ROOT: Final = Path(__file__).resolve().parents[2]
DATA: Final = ROOT / "services-data"
_STOP_S: Final = 30.0
_STATUS_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Service:
    """A service: its port unless another is asked for, its server, and its address."""

    name: str
    port: int
    make: Callable[[Path, int], ServerProcess]
    address: Callable[[int], str]
    stop_signal: signal.Signals = signal.SIGTERM


SERVICES: Final = (
    Service(
        "kafka",
        19_092,
        lambda at, port: KafkaServer(at, port=port, outlives=True),
        lambda port: f"127.0.0.1:{port}",
    ),
    Service(
        "registry",
        18_081,
        lambda at, port: RegistryServer(at, port=port, outlives=True),
        lambda port: f"http://127.0.0.1:{port}/apis/ccompat/v7",
    ),
    Service(
        "postgres",
        15_432,
        lambda at, port: PostgresServer(at, port=port, outlives=True),
        lambda port: f"postgresql://tidelog@127.0.0.1:{port}/postgres",
        PostgresServer.stop_signal,
    ),
    Service(
        "seaweedfs",
        18_333,
        lambda at, port: SeaweedServer(at, port=port, outlives=True),
        lambda port: f"http://127.0.0.1:{port} (bucket {BUCKET})",
    ),
    Service(
        "azurite",
        10_000,
        lambda at, port: Azurite(
            at, installed_azurite(), port=port, outlives=True, in_memory=False
        ),
        lambda port: f"http://127.0.0.1:{port}/{ACCOUNT} (container {AZURE_CONTAINER})",
    ),
)


@dataclass(frozen=True, slots=True)
class Held:
    """A process that this command started.

    ``started`` distinguishes it from a later process with the same pid.
    """

    pid: int
    started: str
    port: int


@dataclass(frozen=True, slots=True)
class Report:
    """The line of a service: its state, and its address or the reason of the state."""

    service: str
    state: str
    told: str


def start(
    data: Path, services: Sequence[Service] = SERVICES, *, own_ports: bool = False
) -> Iterator[Report]:
    """Start each service that does not run, and yield its report once it answers.

    Args:
        data: the folder of the services' data.
        services: to start.
        own_ports: takes free ports in place of the services' own, and the same ones next time.
    """
    waiting: dict[Future[float], tuple[Service, int]] = {}
    with _held(data) as held, ThreadPoolExecutor() as waiters:
        for service in services:
            found = held.get(service.name)
            if found is not None and _lives(found):
                yield Report(service.name, "runs already", service.address(found.port))
                continue
            port = service.port
            if own_ports:
                port = free_ports(1)[0] if found is None else found.port
            began = time.monotonic()
            try:
                _require_free(port)
                server = service.make((data / service.name).resolve(), port)
                server.spawn()
            except CannotInstall as error:
                yield Report(service.name, "absent", str(error))
            except (OSError, RuntimeError) as error:
                yield Report(service.name, "failed", str(error))
            else:
                held[service.name] = Held(server.pid, _started(server.pid), port)
                _save(data, held)
                waiting[waiters.submit(_await_ready, server, began)] = service, port
        for each in as_completed(waiting):
            service, port = waiting[each]
            try:
                told = f"{service.address(port)} ({each.result():.1f} s)"
            except RuntimeError as error:
                yield Report(service.name, "failed", str(error))
            else:
                yield Report(service.name, "answers", told)


def _await_ready(server: ServerProcess, began: float) -> float:
    """Return the seconds since ``began`` once the server answers."""
    server.await_ready()
    return time.monotonic() - began


def status(data: Path, services: Sequence[Service] = SERVICES) -> Iterator[Report]:
    """Try each service that this command started, and yield its report."""
    with _held(data) as held:
        for service in services:
            found = held.get(service.name)
            log = f"log: {data / service.name / 'server.log'}"
            if found is None or not _lives(found):
                yield Report(service.name, "is stopped" if found is None else "has ended", log)
                continue
            server = service.make((data / service.name).resolve(), found.port)
            try:
                server.await_ready(_STATUS_S)
            except RuntimeError as error:
                yield Report(service.name, "does not answer", f"{error.__cause__}; {log}")
            else:
                yield Report(service.name, "answers", service.address(found.port))


def stop(data: Path, services: Sequence[Service] = SERVICES) -> Iterator[Report]:
    """Stop each service that runs, and yield its report once its process has ended."""
    with _held(data) as held:
        stopping: list[Service] = []
        for service in services:
            if service.name not in held:
                continue
            if _lives(held[service.name]):
                _signal(held[service.name], service.stop_signal)
                stopping.append(service)
            else:
                del held[service.name]
        _save(data, held)
        for service in stopping:
            state = "stopped" if _ended(held[service.name], _STOP_S) else "killed"
            if state == "killed":
                _signal(held[service.name], signal.SIGKILL)
                _ended(held[service.name], _STOP_S)
            del held[service.name]
            _save(data, held)
            yield Report(service.name, state, f"its data stays in {data / service.name}")


@contextlib.contextmanager
def _held(data: Path) -> Iterator[dict[str, Held]]:
    """Yield the processes that were started, while no other command changes them."""
    data.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (data / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = data / "state.json"
        try:
            told = json.loads(path.read_text()) if path.exists() else {}
        except ValueError as error:
            raise SystemExit(
                f"{path} is damaged ({error}): end the services by hand, then remove it"
            ) from None
        yield {name: Held(**fields) for name, fields in told.items()}


def _save(data: Path, held: dict[str, Held]) -> None:
    written = data / "state.json.new"
    written.write_text(json.dumps({name: asdict(each) for name, each in held.items()}, indent=2))
    written.replace(data / "state.json")


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise OSError(f"another process has the port {port}") from error


def _started(pid: int) -> str:
    """Return the time at which a process started, or nothing if it has ended."""
    if Path("/proc/self").exists():
        try:
            told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return ""
        return "" if told[0] in "ZX" else told[19]
    options = ["-o", "lstart=", "-p", str(pid)]
    done = subprocess.run(["ps", *options], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _lives(held: Held) -> bool:
    return held.started != "" and _started(held.pid) == held.started


def _ended(held: Held, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while _lives(held):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _signal(held: Held, sign: signal.Signals) -> None:
    """Send a signal to the group that the server leads."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(held.pid, sign)


def main() -> None:
    """Run the command; exit status 1 if a service failed, or does not answer."""
    parser = argparse.ArgumentParser(prog="kit.services", description=__doc__)
    parser.add_argument("verb", choices=("start", "status", "stop"))
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of the services' data")
    parser.add_argument("--own-ports", action="store_true", help="start on free ports")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    given = parser.parse_args()
    if given.verb == "start":
        if not given.json:
            print("The first start downloads Kafka, the registry and Azurite.", flush=True)
        reports = start(given.data, own_ports=given.own_ports)
    else:
        reports = {"status": status, "stop": stop}[given.verb](given.data)
    states = []
    for each in reports:
        line = f"{each.service:<10} {each.state:<13} {each.told}"
        print(json.dumps(asdict(each)) if given.json else line, flush=True)
        states.append(each.state)
    if not states and not given.json:
        print("no service runs")
    bad = {"failed", "does not answer", "has ended", "is stopped"}
    sys.exit(1 if bad.intersection(states) else 0)


if __name__ == "__main__":
    main()
