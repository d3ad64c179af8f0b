"""Checks of one append's records before they are queued, and the columns of a batch. Pure.

Records of several appends are joined in one object. An array of a wrong type or size would fail
there, and fail the other appends with it. So it is refused first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import UsageError
from tidelog.wal.append.work import Work
from tidelog.wal.format.arrays import binary_array, binary_scalar
from tidelog.wal.format.fragment_sets import KEY_BYTES_MAX, check_key
from tidelog.wal.format.parquet import BYTES_MIN, RECORDS_MAX

RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
# The limit for all bodies of one object, because offsets have 31 bits.
APPEND_BYTES_MAX: Final = 1024 * 1024 * 1024
_TYPES: Final = frozenset({bytes, bytearray, memoryview})
_KEPT_BYTES_MAX: Final = 64 * 1024


def array_of(records: Sequence[bytes]) -> pa.BinaryArray:
    """Return records as an array.

    Raises:
        UsageError: they are not a list of bytes, or too large for one append.
    """
    given: object = records
    if isinstance(given, str | bytes | bytearray | memoryview):
        raise UsageError(
            f"an append takes a list of records, not one {type(given).__name__}: put it into a "
            "list, and encode text first"
        )
    if isinstance(given, pa.Array | pa.ChunkedArray):
        raise UsageError("an append takes a list of bytes: pass an array to append_arrow")
    if isinstance(given, set | frozenset):
        raise UsageError(
            "an append takes a list of records, not a set: the order of a set is undefined"
        )
    if not isinstance(given, Iterable):
        raise UsageError(f"an append takes a list of bytes, not {type(given).__name__}")
    listed = list(given)
    kinds = set(map(type, listed))
    foreign = [kind for kind in kinds - _TYPES if not issubclass(kind, bytes)]
    if foreign:
        names = " or ".join(sorted(kind.__name__ for kind in foreign))
        raise UsageError(f"a record must be bytes, not {names}: encode it first")
    if memoryview in kinds:  # Its length counts elements, not bytes.
        listed = [bytes(record) for record in listed]
    if (size_bytes := sum(map(len, listed))) > APPEND_BYTES_MAX:
        raise _too_large(size_bytes)
    return binary_array(listed)


def checked(bodies: pa.BinaryArray, *, stream: bytes | None = None) -> pa.BinaryArray:
    """Return the bodies of an append in an array that retains no other memory.

    Raises:
        UsageError: it is not an array of type binary; it is empty or has a null; one body or all
        are too large; or there are more records than readers accept in one object.
    """
    given: object = bodies
    if isinstance(given, pa.ChunkedArray):
        raise UsageError(
            "append_arrow takes an array, not a chunked array: join the chunks with "
            "combine_chunks(), or append each"
        )
    if not isinstance(given, pa.Array):
        raise UsageError(
            f"append_arrow takes an array, not {type(given).__name__}: call append for a list"
        )
    if bodies.type != pa.binary():
        raise UsageError(
            f"append_arrow takes an array of type binary, not {bodies.type}: cast it first, with "
            "array.cast(pyarrow.binary())"
        )
    if not len(bodies):
        raise UsageError("an append must have at least one record")
    if bodies.null_count:
        raise UsageError("a record must be bytes, not null")
    _check_size(bodies)
    _check_count(len(bodies), stream)
    return _alone(bodies)


def keys_of(keys: bytes | pa.BinaryArray | None, count: int) -> pa.BinaryArray | None:
    """Return the keys of an append's records, with null for no key; None if no record has one.

    Raises:
        UsageError: the value is neither a key nor an array of type binary with one key per record;
        one key is too large; or all are larger than readers accept in one object.
    """
    given: object = keys
    if given is None:
        return None
    if not isinstance(given, pa.Array | pa.ChunkedArray):
        check_key(given)
        assert isinstance(keys, bytes)
        _check_key_bytes(count * len(keys), count)
        repeated: pa.BinaryArray = pa.repeat(binary_scalar(keys), count)
        return repeated
    assert not isinstance(keys, bytes | None), "it is an array"
    if isinstance(given, pa.ChunkedArray) or keys.type != pa.binary():
        kind = "a chunked array" if isinstance(given, pa.ChunkedArray) else str(keys.type)
        raise UsageError(
            f"keys must be one array of type binary, not {kind}: cast it first, with "
            "array.cast(pyarrow.binary()), and join chunks with combine_chunks()"
        )
    if len(keys) != count:
        raise UsageError(
            "an array of keys must have one key, or null, for each record",
            keys=len(keys),
            records=count,
        )
    if keys.null_count == count:
        return None
    lengths = pc.binary_length(keys)
    if (largest := pc.max(lengths).as_py()) > KEY_BYTES_MAX:
        raise UsageError(f"a key must have at most {KEY_BYTES_MAX} bytes", size_bytes=largest)
    _check_key_bytes(pc.sum(lengths.cast(pa.int64())).as_py(), count)
    return _alone(keys)


def bodies_of(batch: Sequence[Work]) -> pa.BinaryArray:
    """Return the bodies of a batch in one array."""
    return joined([work.bodies for work in batch])


def keys_in(batch: Sequence[Work]) -> pa.BinaryArray | None:
    """Return the keys of a batch, null for records without one; None if no record has one."""
    if all(work.keys is None for work in batch):
        return None
    columns: list[Any] = [
        pa.nulls(len(work.bodies), pa.binary()) if work.keys is None else work.keys
        for work in batch
    ]
    return joined(columns)


def joined(arrays: Sequence[pa.BinaryArray]) -> pa.BinaryArray:
    """Return bodies joined in one array; together they have at most `APPEND_BYTES_MAX` bytes."""
    if len(arrays) == 1:
        return arrays[0]
    together: pa.BinaryArray = pa.concat_arrays(arrays)
    return together


def _check_size(bodies: pa.BinaryArray) -> None:
    if bodies.nbytes > RECORD_BYTES_MAX:
        largest = pc.max(pc.binary_length(bodies)).as_py()
        if largest > RECORD_BYTES_MAX:
            raise UsageError(
                f"a record has over {RECORD_BYTES_MAX} bytes: store large values elsewhere, and "
                "append references to them",
                size_bytes=largest,
            )
    if bodies.nbytes > APPEND_BYTES_MAX:  # ``nbytes`` also counts the offsets.
        size_bytes = pc.sum(pc.binary_length(bodies)).as_py()
        if size_bytes > APPEND_BYTES_MAX:
            raise _too_large(size_bytes)


def size_of(
    bodies: pa.BinaryArray, stream: bytes | None, keys: pa.BinaryArray | None = None
) -> int:
    """Return the bytes of an append, with the stream's id and the key of each record."""
    beside = len(bodies) * len(stream or b"")
    return bodies.nbytes + beside + (0 if keys is None else keys.nbytes)


def _alone(values: pa.BinaryArray) -> pa.BinaryArray:
    """Return values in an array without other buffers, so that the size bounds the memory."""
    # A slice retains the buffers of the array that it was cut from.
    if values.get_total_buffer_size() > 2 * values.nbytes + _KEPT_BYTES_MAX:
        copied: pa.BinaryArray = pa.concat_arrays([values])
        return copied
    return values


def _check_count(count: int, stream: bytes | None) -> None:
    """Refuse an append that would be acknowledged but that readers would refuse."""
    if count > RECORDS_MAX:
        raise UsageError(f"one append has over {RECORDS_MAX} records: split it", records=count)
    if count * len(stream or b"") > BYTES_MIN:
        raise UsageError(
            f"the id of the stream, repeated for each record, has over {BYTES_MIN} bytes: split "
            "the append, or use a shorter id",
            records=count,
        )


def _check_key_bytes(size_bytes: int, count: int) -> None:
    if size_bytes > BYTES_MIN:
        raise UsageError(
            f"the keys of one append, one per record, have over {BYTES_MIN} bytes: split the "
            "append",
            records=count,
            size_bytes=size_bytes,
        )


def _too_large(size_bytes: int) -> UsageError:
    return UsageError(
        f"one append has over {APPEND_BYTES_MAX} bytes in total: split it",
        size_bytes=size_bytes,
    )
