"""Keyed logs in a location on disk, for tests with other processes that read and write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

import tidelog
from tidelog.keyed.values import Keys

Row = tuple[bytes, int, int, bytes]


def records_of(first: int, count: int) -> list[tuple[bytes, bytes]]:
    """Return records with 13 keys, some with special bytes, and with distinct values."""
    keys = [b"", b"\x00", b"\xff", b"\xff\xff", *(f"k{n}".encode() for n in range(9))]
    return [
        (keys[(7 * n + n // 29) % 13], f"value {n}".encode()) for n in range(first, first + count)
    ]


def make_keyed(lake: Path, name: str, *, compacted: int = 3, loose: int = 2) -> None:
    """Make a keyed log with compacted and loose batches of 200 records each."""
    with tidelog.connect(str(lake), create=True) as location:
        log = location.keyed.create(name)
        for n in range(compacted):
            log.append(records_of(200 * n, 200))
            log.compact(full=False)
            log.seal()
            log.compact()
        log.close()
    append_keyed(lake, name, first=200 * compacted, batches=loose)


def append_keyed(lake: Path, name: str, *, first: int, batches: int = 1) -> None:
    """Append batches of 200 records, without compaction."""
    with tidelog.connect(str(lake)) as location:
        log = location.keyed.open(name, maintenance=False)
        for n in range(batches):
            log.append(records_of(first + 200 * n, 200))
        log.close()


def on_keyed(lake: Path, name: str, work: Any) -> Any:
    """Open a log, and return the result of a function of its handle."""
    with tidelog.connect(str(lake)) as location:
        log = location.keyed.open(name, maintenance=False)
        try:
            return work(log)
        finally:
            log.close()


def compact_and_collect(lake: Path, name: str) -> None:
    """Compact all records into runs, and delete all unneeded objects at once."""

    def work(log: Any) -> None:
        log.compact(full=True)
        log.collect(after_us=0)

    on_keyed(lake, name, work)


def rows_in(table: pa.Table) -> list[Row]:
    """Return records in the order of sequences."""
    return sorted(
        ((r["key"], r["sequence"], r["timestamp_us"], r["value"]) for r in table.to_pylist()),
        key=lambda row: row[1],
    )


def keyed_rows(lake: Path, name: str, prefix: bytes = b"", start: int = 0) -> list[Row]:
    """Return the rows of a reader in this process."""
    with tidelog.connect(str(lake)) as location, location.keyed.reader(name) as reader:
        return rows_in(reader.scan(Keys.prefix(prefix), start).to_arrow())
