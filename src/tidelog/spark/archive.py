"""The JVM's class archive: Spark's classes as they look once loaded, kept for the next start.

The JVM ignores an archive that does not fit its version or its jars, so none is ever in the way.
Does not write any: see `warm`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyspark

from tidelog.spark.java import Launcher

_AOT_SINCE = 25  # From there on one archive holds all; before, one beside the JDK's own.


def archive_path(launcher: Launcher) -> Path:
    """Return where the archive for this Java and this Spark stands, or would stand."""
    jars = hashlib.sha256(pyspark.__file__.encode()).hexdigest()[:8]
    kind = "aot" if launcher.version >= _AOT_SINCE else "jsa"
    return launcher.home / f"spark-{pyspark.__version__}-{jars}.{kind}"


def reading_options(launcher: Launcher) -> list[str]:
    """Return the JVM's options to start from the archive; none where there is no archive."""
    path = archive_path(launcher)
    if not path.exists():
        return []
    option = "AOTCache" if launcher.version >= _AOT_SINCE else "SharedArchiveFile"
    return [f'"-XX:{option}={path}"']


def recording_options(launcher: Launcher, path: Path) -> list[str]:
    """Return the JVM's options to write an archive to ``path`` when it ends."""
    option = "AOTCacheOutput" if launcher.version >= _AOT_SINCE else "ArchiveClassesAtExit"
    return [f'"-XX:{option}={path}"']
