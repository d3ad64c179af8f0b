"""Temporary files: an error of one names its folder, and not the data that it was made from."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from tidelog.errors import LocationError


@contextmanager
def temporary_files() -> Iterator[None]:
    """Raise errors of temporary files as errors that name the remedy.

    Raises:
        LocationError: a temporary file cannot be made, written or read. NOT_APPLIED.
    """
    try:
        yield
    except OSError as error:
        raise LocationError(
            "temporary files cannot be written: free some space in their folder, or name another "
            "folder in TMPDIR",
            reason=error.strerror or str(error),
            folder=tempfile.tempdir,
        ) from error


@contextmanager
def temporary_file() -> Iterator[IO[bytes]]:
    """Yield a file without a name; it is deleted at the end."""
    with temporary_files():
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the block below closes it
    try:
        yield file
    finally:
        with suppress(OSError):  # No reader needs the bytes that were not written yet.
            file.close()
