"""Bring this very tidelog to executors that have none, or another: as an archive of its modules.

``python -m tidelog.spark.ship FOLDER`` writes the archive, and a file for ``spark-submit`` to run.
Other packages are not in it: pyarrow and the like are compiled, and are installed where executors
run, or sent there by ``spark.archives`` (docs/guides/cluster.md).

Invariants: what is shipped is what this process runs; its fingerprint says so, wherever it lies.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import marshal
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib import resources
from importlib.machinery import SourceFileLoader
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from tidelog import __version__

ARCHIVE: Final = "tidelog.zip"
PROGRAM: Final = "tidelog_main.py"
_PACKAGES: Final = ("tidelog", "pyspark_tidelog")
_KINDS: Final = (".py", ".properties", ".typed")
_UNCHECKED_HASH: Final = (1).to_bytes(4, "little")
_PROGRAM_TEXT: Final = '''\
"""The command ``tidelog``, for spark-submit."""

import sys

from tidelog.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
'''


def is_elsewhere(master: str | None) -> bool:
    """Say whether a master's executors are other processes than the driver."""
    return master is None or (master != "local" and not master.startswith("local["))


def is_connect(spark: SparkSession) -> bool:
    """Say whether a session is one of Spark Connect's: it has a server, and no RDDs."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def ship(spark: SparkSession) -> None:
    """Have the executors of a session import the tidelog that this process runs; once is enough.

    One that they have installed is passed over, unless a worker has imported it already. A local
    session, unless ``PYSPARK_PYTHON`` names another, runs its workers with this process's Python.
    """
    name = f"tidelog-{__version__}-{fingerprint()[:12]}.zip"
    if is_connect(spark):
        spark.addArtifacts(_packed(name), pyfile=True)  # The same once more is passed over.
        return
    context = spark.sparkContext
    is_default = context.pythonExec == "python3" and "PYSPARK_PYTHON" not in os.environ
    if is_default and not is_elsewhere(context.master):
        # PySpark's default is the python3 of PATH, in an environment that is not activated another.
        context.pythonExec = sys.executable
    if is_elsewhere(context.master) and name not in (context._python_includes or ()):
        context.addPyFile(_packed(name))


def _packed(name: str) -> str:
    """Write the archive where it stays as long as this process."""
    # Executors fetch it when they start, also such as start much later.
    folder = tempfile.mkdtemp(prefix="tidelog-ship-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, name)
    pack(path)
    return str(path)


def pack(path: Path) -> None:
    """Write the archive: modules as text, and as this Python compiles them.

    Without the latter each worker would compile each module when it starts.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for package in _PACKAGES:
            for name, file in _files(resources.files(package), package):
                data = file.read_bytes()
                packed.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
                if name.endswith(".py"):
                    compiled = _compiled(name, data, file)
                    packed.writestr(zipfile.ZipInfo(name + "c"), compiled, zipfile.ZIP_DEFLATED)


@cache
def fingerprint() -> str:
    """Return a checksum of tidelog's modules, as they lie where this process imports them from."""
    digest = hashlib.sha256()
    for name, file in _files(resources.files("tidelog"), "tidelog"):
        if name.endswith(".py"):
            digest.update(f"{name}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def write_for_submit(folder: Path) -> tuple[Path, Path]:
    """Write the archive, and the file that spark-submit runs; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    archive, program = folder / ARCHIVE, folder / PROGRAM
    pack(archive)
    program.write_text(_PROGRAM_TEXT)
    return archive, program


def _files(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        name = f"{prefix}/{entry.name}"
        if entry.name.endswith(_KINDS):
            yield name, entry
        elif entry.name != "__pycache__" and entry.is_dir():
            yield from _files(entry, name)


def _compiled(name: str, data: bytes, file: Traversable) -> bytes:
    """Return a module's file of compiled code, which is taken without a look at its text."""
    if isinstance(file, Path):
        # From the cache beside it, where there is one: all modules at once take a second.
        code = SourceFileLoader(name, str(file)).get_code(name)
    else:
        code = compile(data, name, "exec", dont_inherit=True)
    head = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(data)
    return head + marshal.dumps(code)


if __name__ == "__main__":
    print(*write_for_submit(Path(sys.argv[1] if len(sys.argv) > 1 else ".")), sep="\n")
