"""Parts: immutable objects of sorted records, and what a state knows of each. Pure.

Shape: a part is Parquet, sorted by (key, sequence); beside it lies its key directory, which is
    Parquet as well (see `directory`).
Invariants: both objects are written once; what is told of them here is of their bytes.
Source: rfc-0001, "Physical organization"; design page 5.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPart:
    """What a state knows of one part of a run; any process can read it by that.

    Shape: ``path`` and ``directory`` are those of its objects. ``tail_bytes`` at the end of the
        directory are its footer, by which a large one is read piece by piece. The checksums are
        xxh3 of 128 bits: of the directory, of its footer.
    Units: ``rows`` records of ``keys`` keys, from ``first_key`` to ``last_key``; sequences from
        ``min_sequence`` to ``max_sequence``, times from ``first_us`` to ``last_us``, each among
        them. ``num_bytes`` and ``directory_bytes`` as stored.
    """

    path: str
    directory: str
    rows: int
    keys: int
    num_bytes: int
    directory_bytes: int
    first_key: bytes
    last_key: bytes
    min_sequence: int
    max_sequence: int
    first_us: int
    last_us: int
    tail_bytes: int
    directory_xxh3: bytes
    tail_xxh3: bytes

    def __post_init__(self) -> None:
        require(0 < self.keys <= self.rows, "a part has fewer records than keys, or none")
        require(self.first_key <= self.last_key, "a part's keys go the wrong way")
        require(self.min_sequence <= self.max_sequence, "a part's sequences go the wrong way")

    def may_hold(self, start: int, limit: int) -> bool:
        """Say whether records of the sequences ``[start, limit)`` may be in it."""
        return start <= self.max_sequence and self.min_sequence < limit


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPart:
    """A part, and the bytes of its two objects: the directory is to be stored last."""

    part: RunPart
    data: bytes
    directory: bytes


@dataclass(frozen=True, slots=True)
class KeyRows:
    """Where a key's records are in a part: rows ``[first_row, first_row + rows)``."""

    first_row: int
    rows: int
    min_sequence: int
    max_sequence: int


def directory_path(path: str) -> str:
    """Return where the directory of a part lies."""
    return path.removesuffix(".parquet") + ".keys.parquet"
