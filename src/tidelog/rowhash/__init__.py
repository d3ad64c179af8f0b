"""Hashes of rows, and sums of them: see `tidelog.rowhash.hashing`."""

from tidelog.rowhash.columns import supported
from tidelog.rowhash.hashing import (
    Hashes,
    RowSum,
    bucket_of,
    check_supported,
    hash_rows,
    hash_rows_with_time,
    sums_of_rows,
    weighted_sum,
)

__all__ = [
    "Hashes",
    "RowSum",
    "bucket_of",
    "check_supported",
    "hash_rows",
    "hash_rows_with_time",
    "sums_of_rows",
    "supported",
    "weighted_sum",
]
