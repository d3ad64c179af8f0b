"""What one append brings: checked before it is queued, so that it cannot harm what it waits with.

Pure. The bodies of one call end up in one object, and those of several are joined: an array whose
type or size is not what is expected would fail there, for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import UsageError
from tidelog.wal.format.key_set import KEY_BYTES_MAX, check_key
from tidelog.wal.format.parquet import BYTES_MIN, RECORDS_MAX

RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
# Of all bodies of one object: offsets have 31 bits.
APPEND_BYTES_MAX: Final = 1024 * 1024 * 1024
_TYPES: Final = frozenset({bytes, bytearray, memoryview})
_KEPT_BYTES_MAX: Final = 64 * 1024


def array_of(records: Sequence[bytes]) -> pa.BinaryArray:
    """Return records as an array.

    Raises:
        UsageError: they are no list of bytes, or too many for one append.
    """
    given: object = records
    if isinstance(given, str | bytes | bytearray | memoryview):
        raise UsageError(
            f"an append takes a list of records, and this is one {type(given).__name__}: put it "
            "into a list, and encode text first"
        )
    if isinstance(given, pa.Array | pa.ChunkedArray):
        raise UsageError("an append takes a list of bytes: pass an array to append_arrow")
    if isinstance(given, set | frozenset):
        raise UsageError("an append takes a list of records: a set has no order to keep")
    if not isinstance(given, Iterable):
        raise UsageError(f"an append takes a list of bytes, not {type(given).__name__}")
    listed = list(given)
    foreign = [kind for kind in set(map(type, listed)) - _TYPES if not issubclass(kind, bytes)]
    if foreign:
        names = " or ".join(sorted(kind.__name__ for kind in foreign))
        raise UsageError(f"a record is bytes, never {names}: encode it first")
    if (size_bytes := sum(map(len, listed))) > APPEND_BYTES_MAX:
        raise _too_large(size_bytes)
    made: pa.BinaryArray | pa.ChunkedArray[pa.BinaryScalar] = pa.array(listed, pa.binary())
    if isinstance(made, pa.ChunkedArray):  # More than one array can hold.
        raise _too_large(made.nbytes)
    return made


def checked(bodies: pa.BinaryArray, *, stream: bytes | None = None) -> pa.BinaryArray:
    """Return the bodies of an append, in an array that keeps no more than them in memory.

    Raises:
        UsageError: it is no array of type binary; there are no records, one is null, or one or all
        of them are too large, or there are more than readers take from one object.
    """
    given: object = bodies
    if isinstance(given, pa.ChunkedArray):
        raise UsageError(
            "append_arrow takes one array: join the chunks with combine_chunks(), or append each"
        )
    if not isinstance(given, pa.Array):
        raise UsageError(f"append_arrow takes an array, not {type(given).__name__}: call append")
    if bodies.type != pa.binary():
        raise UsageError(
            f"append_arrow takes an array of type binary, not {bodies.type}: cast it first, with "
            "array.cast(pyarrow.binary())"
        )
    if not len(bodies):
        raise UsageError("an append has at least one record")
    if bodies.null_count:
        raise UsageError("a record is bytes, never null")
    _check_size(bodies)
    _check_count(len(bodies), stream)
    return _alone(bodies)


def keys_of(keys: bytes | pa.BinaryArray | None, count: int) -> pa.BinaryArray | None:
    """Return the keys of an append's records, null where one has none; None if none has any.

    Raises:
        UsageError: it is neither a key nor an array of type binary with one for each record, or one
        is too large, or all of them are, beside what readers take from one object.
    """
    given: object = keys
    if given is None:
        return None
    if not isinstance(given, pa.Array | pa.ChunkedArray):
        check_key(given)
        assert isinstance(keys, bytes)
        _check_key_bytes(count * len(keys), count)
        repeated: pa.BinaryArray = pa.repeat(pa.scalar(keys, pa.binary()), count)
        return repeated
    assert not isinstance(keys, bytes | None), "it is an array"
    if isinstance(given, pa.ChunkedArray) or keys.type != pa.binary():
        kind = "a chunked array" if isinstance(given, pa.ChunkedArray) else str(keys.type)
        raise UsageError(
            f"keys are one array of type binary, not {kind}: cast it first, with "
            "array.cast(pyarrow.binary()), and join chunks with combine_chunks()"
        )
    if len(keys) != count:
        raise UsageError(
            "an array of keys has one for each record, or null", keys=len(keys), records=count
        )
    if keys.null_count == count:
        return None
    lengths = pc.binary_length(keys)
    if (largest := pc.max(lengths).as_py()) > KEY_BYTES_MAX:
        raise UsageError(f"a key has at most {KEY_BYTES_MAX} bytes", size_bytes=largest)
    _check_key_bytes(pc.sum(lengths.cast(pa.int64())).as_py(), count)
    return _alone(keys)


def joined(arrays: Sequence[pa.BinaryArray]) -> pa.BinaryArray:
    """Return bodies one after the other; there are at most `APPEND_BYTES_MAX` of them in all."""
    if len(arrays) == 1:
        return arrays[0]
    together: pa.BinaryArray = pa.concat_arrays(arrays)
    return together


def _check_size(bodies: pa.BinaryArray) -> None:
    if bodies.nbytes > RECORD_BYTES_MAX:
        largest = pc.max(pc.binary_length(bodies)).as_py()
        if largest > RECORD_BYTES_MAX:
            raise UsageError(
                f"a record is over {RECORD_BYTES_MAX} bytes: keep large values elsewhere and "
                "name them",
                size_bytes=largest,
            )
    if bodies.nbytes > APPEND_BYTES_MAX:  # That has the offsets, too.
        size_bytes = pc.sum(pc.binary_length(bodies)).as_py()
        if size_bytes > APPEND_BYTES_MAX:
            raise _too_large(size_bytes)


def size_of(
    bodies: pa.BinaryArray, stream: bytes | None, keys: pa.BinaryArray | None = None
) -> int:
    """Return what an append counts for: its stream's id, and a key, stand beside each record."""
    beside = len(bodies) * len(stream or b"")
    return bodies.nbytes + beside + (0 if keys is None else keys.nbytes)


def _alone(values: pa.BinaryArray) -> pa.BinaryArray:
    """Return values in an array that keeps no more than them: what waits is bounded by its size."""
    # A slice keeps the whole of what it was cut from.
    if values.get_total_buffer_size() > 2 * values.nbytes + _KEPT_BYTES_MAX:
        copied: pa.BinaryArray = pa.concat_arrays([values])
        return copied
    return values


def _check_count(count: int, stream: bytes | None) -> None:
    """Refuse what would be acknowledged, and then refused by every reader."""
    if count > RECORDS_MAX:
        raise UsageError(
            f"one append has over {RECORDS_MAX} records: make several of it", records=count
        )
    if count * len(stream or b"") > BYTES_MIN:
        raise UsageError(
            f"the id of the stream, once for each record, comes to over {BYTES_MIN} bytes: make "
            "several appends of it, or take a shorter id",
            records=count,
        )


def _check_key_bytes(size_bytes: int, count: int) -> None:
    if size_bytes > BYTES_MIN:
        raise UsageError(
            f"the keys of one append, once for each record, come to over {BYTES_MIN} bytes: make "
            "several appends of it",
            records=count,
            size_bytes=size_bytes,
        )


def _too_large(size_bytes: int) -> UsageError:
    return UsageError(
        f"one append has over {APPEND_BYTES_MAX} bytes in all: make several of it",
        size_bytes=size_bytes,
    )
