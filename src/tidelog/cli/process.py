"""The command as a process of its own, which ends at once when it is done.

Python takes a tenth of a second to take apart what it has loaded, once Arrow, DuckDB and the parser
of options are among it: as long as some commands take for their work, and for nothing, since the
system takes all of it back.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn

INTERRUPTED = 130


def run() -> NoReturn:
    """Run the command that the process was started with, and end with its exit status."""
    status: list[int] = []
    # Arranged before all others do so, and so called after them; Python has waited for threads.
    atexit.register(_leave, status)
    try:
        from tidelog.cli.main import main

        done = main()
    except KeyboardInterrupt:
        # Libraries were still being loaded, which takes a third of a second.
        with suppress(OSError):  # Not by what tells the rest, which may be half loaded.
            os.write(2, b"tidelog: interrupted\n")
        done = INTERRUPTED
    status.append(done)
    sys.exit(done)


def _leave(status: list[int]) -> None:
    """End the process; if the command did not come to an end, Python does so in its own way."""
    for done in status:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):
                stream.flush()
        os._exit(done)
