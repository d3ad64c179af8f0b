"""What a survey's task decoded, on an executor's disk."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from kit.clocks import SwiftClock
from tidelog.collection.catalog.catalog import ERRORS_SCHEMA
from tidelog.collection.source.kept import DecodedPiece, PieceProof
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
    """Rows, bad records and the proof; and of that file alone."""
    kept = RowsOnDisk(folder=tmp_path / "s", clock=SwiftClock(), bytes_min=0)
    kept.keep(piece("a"))
    kept.keep(piece("b"))

    [found] = RowsOnDisk(folder=tmp_path / "s", clock=SwiftClock()).find("a")
    assert found.proof == piece().proof
    assert found.rows.equals(piece().rows)
    assert found.errors.equals(piece().errors)


def test_what_is_damaged_is_not_found(tmp_path: Path) -> None:
    """A writer that was killed left half a file, or somebody emptied one."""
    kept = RowsOnDisk(folder=tmp_path / "s", clock=SwiftClock(), bytes_min=0)
    kept.keep(piece())
    [file] = (tmp_path / "s").iterdir()
    file.write_bytes(file.read_bytes()[:100])

    assert kept.find("a") == []


def test_what_was_written_first_goes_first(tmp_path: Path) -> None:
    """Beyond its bound the disk is others'; sources of one executor share it."""
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

    assert one.find("a") == []
    assert len(other.find("b")) + len(other.find("c")) == 2


def test_small_pieces_are_not_written(tmp_path: Path) -> None:
    """A hundred thousand small files would be as many more."""
    kept = RowsOnDisk(folder=tmp_path / "s", clock=SwiftClock(), bytes_min=10**6)
    kept.keep(piece())

    assert not (tmp_path / "s").exists()
