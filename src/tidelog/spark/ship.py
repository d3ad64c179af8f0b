"""An archive of this tidelog's modules, for executors that have none or another one.

``python -m tidelog.spark.ship FOLDER`` writes the archive, and a program for ``spark-submit``.
The archive contains no other packages: pyarrow and the like are compiled. They must be installed
on the executors' machines, or sent by ``spark.archives`` (docs/guides/cluster.md).

Invariants: the archive contains the modules of this process; its fingerprint identifies them, on
any machine.
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
    """Return True if a master's executors are not threads of the driver's process."""
    return master is None or (master != "local" and not master.startswith("local["))


def is_connect(spark: SparkSession) -> bool:
    """Return True for a session of Spark Connect, which has a server and no RDDs."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def ship(spark: SparkSession) -> None:
    """Make the executors of a session import this process's tidelog; a second call does nothing.

    It replaces an installed tidelog, except in a worker that has already imported it. A local
    session runs its workers with this process's Python, unless ``PYSPARK_PYTHON`` names another.
    """
    name = f"tidelog-{__version__}-{fingerprint()[:12]}.zip"
    if is_connect(spark):
        spark.addArtifacts(_packed(name), pyfile=True)  # Spark ignores a repeated artifact.
        return
    context = spark.sparkContext
    is_default = context.pythonExec == "python3" and "PYSPARK_PYTHON" not in os.environ
    if is_default and not is_elsewhere(context.master):
        # PySpark's default is the first python3 on PATH, which may lack tidelog.
        context.pythonExec = sys.executable
    if is_elsewhere(context.master) and name not in (context._python_includes or ()):
        context.addPyFile(_packed(name))


def _packed(name: str) -> str:
    """Write the archive to a folder that remains until this process ends."""
    # Executors fetch it when they start, which may be much later.
    folder = tempfile.mkdtemp(prefix="tidelog-ship-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, name)
    pack(path)
    return str(path)


def pack(path: Path) -> None:
    """Write the archive: modules as text, and compiled by this Python.

    Without the compiled files, each worker would compile each module at its start.
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
    """Return a checksum of the files of tidelog's modules that this process imports."""
    digest = hashlib.sha256()
    for name, file in _files(resources.files("tidelog"), "tidelog"):
        if name.endswith(".py"):
            digest.update(f"{name}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def write_for_submit(folder: Path) -> tuple[Path, Path]:
    """Write the archive and the program for spark-submit; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    archive, program = folder / ARCHIVE, folder / PROGRAM
    pack(archive)
    program.write_text(_PROGRAM_TEXT)
    return archive, program


def _files(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda child: child.name):
        name = f"{prefix}/{entry.name}"
        if entry.name.endswith(_KINDS):
            yield name, entry
        elif entry.name != "__pycache__" and entry.is_dir():
            yield from _files(entry, name)


def _compiled(name: str, data: bytes, file: Traversable) -> bytes:
    """Return a module's compiled file, which Python loads without a check of the source."""
    if isinstance(file, Path):
        # From __pycache__ if possible: compiling all modules takes a second.
        code = SourceFileLoader(name, str(file)).get_code(name)
    else:
        code = compile(data, name, "exec", dont_inherit=True)
    head = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(data)
    return head + marshal.dumps(code)


if __name__ == "__main__":
    print(*write_for_submit(Path(sys.argv[1] if len(sys.argv) > 1 else ".")), sep="\n")
