"""Azurite, Azure's emulator, for tests: installed by npm once, in memory, on loopback.

It tests only the meaning of requests: it loses acknowledged puts when it is killed. Later runs use
its code again, from the system's folder for temporary files.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from email.utils import formatdate
from pathlib import Path
from typing import Final, Self

from kit.installs import CannotInstall, installed, run
from kit.processes import end_with_parent
from kit.s3_servers import free_ports

VERSION: Final = "3.35.0"
CONTAINER: Final = "tide"
ACCOUNT: Final = "devstoreaccount1"
# The emulator's public key, from its manual. It gives access to no other account.
KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_PROGRAM: Final = "node_modules/azurite/dist/src/blob/main.js"
_READY_S: Final = 20.0


def installed_azurite() -> Path:
    """Return Azurite's program; npm installs it the first time.

    Raises:
        CannotInstall: node or npm is missing, or npm fails.
    """
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise CannotInstall("az:// is not tested: node and npm are not there to run Azurite")
    return installed(f"azurite-{VERSION}", _install) / _PROGRAM


def _install(folder: Path) -> None:
    options = ["--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts"]
    run(["npm", "install", *options, f"azurite@{VERSION}"], folder, server="az://")


class Azurite:
    """Azurite in a process of its own inside ``with``; clients find it by ``environment``."""

    def __init__(self, directory: Path, program: Path) -> None:
        self.port = free_ports(1)[0]
        self._directory = directory
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        options = ["--blobPort", str(self.port), "--blobHost", "127.0.0.1", "--silent"]
        options += ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
        with (self._directory / "azurite.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["node", str(self._program), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                # One system call without a lock, so it is safe with other threads.
                preexec_fn=end_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
            )
        try:
            self._make_container()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{self.port}/{ACCOUNT}",
        }

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def url(self, prefix: str = "") -> str:
        return f"az://{CONTAINER}/{prefix}"

    def _make_container(self) -> None:
        """Create the container once the server answers."""
        deadline = time.monotonic() + _READY_S
        while True:
            try:
                urllib.request.urlopen(self._request(), timeout=5).close()
                return
            except urllib.error.HTTPError as error:
                raise RuntimeError(f"no container: {error.read().decode()}") from error
            except OSError as error:
                told = (self._directory / "azurite.log").read_text(errors="replace")
                if self._process is None or self._process.poll() is not None:
                    raise RuntimeError(f"Azurite ended at once:\n{told}") from error
                if time.monotonic() > deadline:
                    raise RuntimeError(f"Azurite is not ready in time:\n{told}") from error
            time.sleep(0.05)

    def _request(self) -> urllib.request.Request:
        """Return the request that creates the container, signed as Azure requires."""
        version = "2021-08-06"
        told = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": version}
        heads = "".join(f"{name}:{value}\n" for name, value in sorted(told.items()))
        place = f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
        signed = "PUT" + "\n" * 12 + heads + place
        digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
        told["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        url = f"http://127.0.0.1:{self.port}/{ACCOUNT}/{CONTAINER}?restype=container"
        return urllib.request.Request(url, method="PUT", headers=told)
