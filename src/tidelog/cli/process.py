"""The command as a process, which exits without Python's own cleanup.

With Arrow and DuckDB loaded, Python takes a tenth of a second to free its modules. Some commands
take no longer for their work, and the system frees the memory anyway.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn

from tidelog.cli import INTERRUPTED


def run() -> NoReturn:
    """Run the command in ``sys.argv``, and exit with its status."""
    status: list[int] = []
    # Exit functions run in reverse order, so this first one runs last, after threads have ended.
    atexit.register(_leave, status)
    try:
        from tidelog.cli.main import main

        done = main()
    except KeyboardInterrupt:
        # Ctrl-C arrived during the imports, which take a third of a second.
        with suppress(OSError):  # os.write, because the module with `say` may be half imported.
            os.write(2, b"tidelog: interrupted\n")
        done = INTERRUPTED
    status.append(done)
    sys.exit(done)


def _leave(status: list[int]) -> None:
    """Exit immediately with the status; without a status (a crash), let Python exit normally."""
    for done in status:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):
                stream.flush()
        os._exit(done)
