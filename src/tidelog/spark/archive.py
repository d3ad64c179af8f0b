"""The JVM's class archive: Spark's loaded classes, stored for the next start.

The JVM ignores an archive of another version or other jars, so a stale archive does no harm. This
module writes no archive: see `warm`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyspark

from tidelog.spark.java import Launcher

_AOT_SINCE = 25  # Since then one archive holds all classes; before, it extends the JDK's own.


def archive_path(launcher: Launcher) -> Path:
    """Return the path of the archive for this Java and this Spark, whether it exists or not."""
    jars = hashlib.sha256(pyspark.__file__.encode()).hexdigest()[:8]
    kind = "aot" if launcher.version >= _AOT_SINCE else "jsa"
    return launcher.home / f"spark-{pyspark.__version__}-{jars}.{kind}"


def reading_options(launcher: Launcher) -> list[str]:
    """Return the JVM's options to start from the archive; empty if no archive exists."""
    path = archive_path(launcher)
    if not path.exists():
        return []
    option = "AOTCache" if launcher.version >= _AOT_SINCE else "SharedArchiveFile"
    return [f'"-XX:{option}={path}"']


def recording_options(launcher: Launcher, path: Path) -> list[str]:
    """Return the JVM's options to write an archive to ``path`` at exit."""
    option = "AOTCacheOutput" if launcher.version >= _AOT_SINCE else "ArchiveClassesAtExit"
    return [f'"-XX:{option}={path}"']
