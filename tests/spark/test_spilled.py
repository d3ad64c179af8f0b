"""Rows that a survey task decoded, stored on an executor's disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from kit.clocks import SwiftClock
from tidelog.collection.catalog.catalog import ERRORS_SCHEMA
from tidelog.collection.source.decoded_cache import DecodedPiece, PieceProof
from tidelog.spark.spilled import RowsOnDisk


def piece(path: str = "a", rows: int = 1_000) -> DecodedPiece:
    proof = PieceProof(
        path=path,
        first=0,
        limit=rows,
        low=0,
        high=rows,
        block_bytes=16,
        sums=b"x" * 16,
        rests={3: b"y"},
        tail=b"z",
        dropped={"n": 2},
    )
    data = pa.table({"v": list(range(rows)), "_tidelog_offset": list(range(rows))})
    errors = pa.table(
        {"file": [path], "offset": [1], "reason": ["r"], "text": ["t"]}, schema=ERRORS_SCHEMA.data
    )
    return DecodedPiece(proof, data, errors)


def test_another_process_finds_what_was_kept(tmp_path: Path) -> None:
    """Another process finds the rows, bad records and proof of exactly the requested file."""
    kept = RowsOnDisk(folder=tmp_path / "s", clock=SwiftClock(), bytes_min=0)
    kept.keep(piece("a"))
    kept.keep(piece("b"))

    [found] = RowsOnDisk(folder=tmp_path / "s", clock=SwiftClock()).find("a", 0, 10**9)
    assert found.proof == piece().proof
    assert found.rows.equals(piece().rows)
    assert found.errors.equals(piece().errors)


def test_what_is_damaged_is_not_found(tmp_path: Path) -> None:
    """A file that was cut short or emptied is not found."""
    kept = RowsOnDisk(folder=tmp_path / "s", clock=SwiftClock(), bytes_min=0)
    kept.keep(piece())
    [file] = (tmp_path / "s").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    assert kept.find("a", 0, 10**9) == []

    file.write_bytes(b"")
    assert kept.find("a", 0, 10**9) == []
    file.write_bytes(whole)
    assert len(kept.find("a", 0, 10**9)) == 1


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_rows_that_a_disk_gives_back_otherwise_are_not_found(tmp_path: Path, share: float) -> None:
    """A changed row is not found, although the source's checksums cannot detect it."""
    kept = RowsOnDisk(folder=tmp_path / "s", clock=SwiftClock(), bytes_min=0)
    kept.keep(piece())
    [file] = (tmp_path / "s").iterdir()
    data = bytearray(file.read_bytes())
    data[int(len(data) * share)] ^= 1
    file.write_bytes(data)

    assert kept.find("a", 0, 10**9) == []


def test_only_pieces_that_are_asked_for_are_read(tmp_path: Path) -> None:
    """Each of many tasks reads only its own share of a large file."""
    kept = RowsOnDisk(folder=tmp_path / "s", clock=SwiftClock(), bytes_min=0)
    kept.keep(piece(rows=1_000))

    assert [len(kept.find("a", *asked)) for asked in ((0, 1), (999, 2_000), (1_000, 2_000))] == [
        1,
        1,
        0,
    ]


def test_a_disk_is_never_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store leaves free space for Spark, and deletes its oldest rows first."""
    usage, free = shutil.disk_usage(tmp_path), [10**6]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free[0]))
    kept = RowsOnDisk(
        folder=tmp_path / "s", clock=SwiftClock(), bytes_min=0, left_free_bytes=10**6 - 40_000
    )
    kept.keep(piece("a"))
    free[0] -= sum(file.stat().st_size for file in (tmp_path / "s").iterdir())
    assert len(kept.find("a", 0, 10**9)) == 1

    kept.keep(piece("b"))
    free[0] = 10**6 - 39_000
    kept.keep(piece("c"))
    assert [len(kept.find(name, 0, 10**9)) for name in "abc"] == [0, 1, 1]
    free[0] = 0
    kept.keep(piece("d"))
    assert [*(tmp_path / "s").iterdir()] == []


def test_what_was_written_first_goes_first(tmp_path: Path) -> None:
    """The stores of one executor share a limit; the oldest rows go first."""
    size = 40_000
    one, other = (
        RowsOnDisk(folder=tmp_path / name, clock=SwiftClock(), bytes_max=size, bytes_min=0)
        for name in ("s", "t")
    )
    one.keep(piece("a"))
    for file in (tmp_path / "s").iterdir():
        os.utime(file, ns=(1, 1))
    other.keep(piece("b"))
    other.keep(piece("c"))

    assert one.find("a", 0, 10**9) == []
    assert len(other.find("b", 0, 10**9)) + len(other.find("c", 0, 10**9)) == 2


def test_small_pieces_are_not_written(tmp_path: Path) -> None:
    """Small pieces are not written, to avoid many small files."""
    kept = RowsOnDisk(folder=tmp_path / "s", clock=SwiftClock(), bytes_min=10**6)
    kept.keep(piece())

    assert not (tmp_path / "s").exists()
