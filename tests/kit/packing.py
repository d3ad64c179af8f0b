"""Compressed files for tests: of one member or of several."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa


def packed(data: bytes, suffix: str, cuts: Sequence[int] = ()) -> bytes:
    """Return ``data`` compressed for a file with this suffix, in members cut at the offsets."""
    inner = sorted({cut for cut in cuts if 0 < cut < len(data)})
    shares = [data[low:high] for low, high in pairwise([0, *inner, len(data)])]
    return b"".join(_member(share, suffix) for share in shares)


def _member(data: bytes, suffix: str) -> bytes:
    if suffix == ".gz":
        return gzip.compress(data, 1, mtime=0)
    sink = pa.BufferOutputStream()
    # A frame without its content size, as tools write it from a pipe.
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()
