"""Parts: immutable objects of sorted records, and their descriptors in a state. Pure.

Shape: a part is Parquet, sorted by (key, sequence). Its key directory is a second Parquet object
    (see `directory`).
Invariants: both objects are written once, and the descriptor describes their bytes.
Source: rfc-0001, "Physical organization"; design page 5.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPart:
    """The descriptor of a part of a run in a state; any process can read the part with it.

    Shape: ``path`` and ``directory`` are the paths of its objects. The directory ends with a footer
        of ``tail_bytes``, with which a large directory is read in pieces. The checksums are xxh3 of
        128 bits: of the directory, and of its footer.
    Units: ``rows`` records of ``keys`` keys, from ``first_key`` to ``last_key``; sequences from
        ``min_sequence`` to ``max_sequence``, and times from ``first_us`` to ``last_us``, all
        inclusive. ``num_bytes`` and ``directory_bytes`` as stored.
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
        require(
            0 < self.keys <= self.rows, "a part must have keys, and at least one record for each"
        )
        require(
            self.first_key <= self.last_key, "a part's first key must not be after its last key"
        )
        require(
            self.min_sequence <= self.max_sequence,
            "a part's least sequence must not be above its greatest",
        )

    def may_hold(self, start: int, limit: int) -> bool:
        """Return True if the part may have records of the sequences ``[start, limit)``."""
        return start <= self.max_sequence and self.min_sequence < limit


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPart:
    """A part and the bytes of its two objects; store the directory last."""

    part: RunPart
    data: bytes
    directory: bytes


@dataclass(frozen=True, slots=True)
class KeyRows:
    """The place of a key's records in a part: rows ``[first_row, first_row + rows)``."""

    first_row: int
    rows: int
    min_sequence: int
    max_sequence: int


def directory_path(path: str) -> str:
    """Return the path of a part's directory."""
    return path.removesuffix(".parquet") + ".keys.parquet"
