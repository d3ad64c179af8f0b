"""The start of a process: slow libraries are loaded by the calls that need them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Each takes 50 ms to 1 s of CPU to load.
SLOW = (
    "_duckdb",
    "confluent_kafka",
    "duckdb",
    "numba",
    "pandas",
    "psycopg",
    "pyarrow.dataset",
    "pyspark",
    "starlette",
    "uvicorn",
)
ARROW = ("numpy", "pyarrow")
CONNECT = "import tidelog\nlake = tidelog.connect(url, create=True)\n"
AWAITED = """
import asyncio
from tidelog import aio
async def main():
    await aio.connect(url, create=True)
asyncio.run(main())
"""
APPEND = CONNECT + "lake.logs.create('events').close()\nwith lake.log('events') as log:\n"
APPEND += """
    assert log.append([b'a']) == 1
    log.open_stream(b's')
    log.append([b'b'], stream=b's')
    log.append([b'c'], key=b'k')
    assert [b for t in log.scan() for b in t['body'].to_pylist()] == [b'a', b'b', b'c']
"""
COMMAND = "from tidelog.cli.main import main\nassert main({words}) == 0\n"
PROGRAMS = {
    "connect": (CONNECT, (*SLOW, *ARROW)),
    "connect with asyncio": (AWAITED, (*SLOW, *ARROW)),
    "append": (APPEND, SLOW),
    "help": (COMMAND.format(words=["--help"]), (*SLOW, *ARROW)),
    "version": (COMMAND.format(words=["--version"]), (*SLOW, *ARROW)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_process_loads_no_slow_library_before_it_needs_it(name: str, tmp_path: Path) -> None:
    """A script, a notebook and a command start faster without DuckDB, pandas and servers."""
    program, absent = PROGRAMS[name]

    loaded = loaded_by(program, tmp_path)

    assert "tidelog" in loaded
    assert loaded.isdisjoint(absent), sorted(loaded.intersection(absent))


def loaded_by(program: str, folder: Path) -> set[str]:
    """Return the modules that a fresh process loads for ``program``, which may use ``url``."""
    url, listed = (folder / "lake").as_uri(), folder / "modules.json"
    end = f"import json, pathlib, sys\npathlib.Path({str(listed)!r}).write_text("
    end += "json.dumps(sorted(sys.modules)))\n"
    subprocess.run(
        [sys.executable, "-c", f"url = {url!r}\n{program}{end}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        timeout=120,
    )
    return set(json.loads(listed.read_text()))
