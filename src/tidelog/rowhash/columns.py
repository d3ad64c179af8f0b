"""Arrow columns as hashes: the parts of an array that determine its hash.

A value is hashed as its class (`_class_of`) and canonical bytes:

- integers, decimals: two's complement, little endian, in 8, 16 or 32 bytes, whichever is the least
  that holds it. So widening a column changes no hash. A decimal's class names its scale.
- floats: as 64 bits; all NaN are equal, and -0.0 is 0.0. Boolean: 0 or 1 in 8 bytes.
- dates: days, in 8 bytes. Times, timestamps, durations: the stored number, in 8 bytes; the class
  names the unit. A time zone is ignored, since it only formats an instant.
- strings, binaries: their bytes; the classes differ, and fixed size counts as binary.
- lists: the length, and the sum over elements of a hash of position and element.
- structs: their fields' hashes in order; names are ignored.
- null: one hash for every type.

So the hash ignores chunks, offsets of slices, dictionaries, widths of offsets and bytes under
nulls.

The kernel that computes hashes is numpy's, or the compiled one if numba is installed. Loading numba
takes a third of a second, so a process loads it only after hashing many values. Both kernels run
the same steps, those of `rowhash.xxh3`.
Invariants: hashes never change, see `rowhash.xxh3`; temporaries hold at most one block of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.errors import require
from tidelog.rowhash import xxh3
from tidelog.rowhash.xxh3 import BLOCK_ROWS, Integers, Lanes, Octets, Words, seeds_of, start_fold

ArrowArray: TypeAlias = "pa.Array[pa.Scalar[pa.DataType]]"
Column: TypeAlias = "ArrowArray | pa.ChunkedArray[pa.Scalar[pa.DataType]]"
ListArray: TypeAlias = "pa.ListArray[Any] | pa.LargeListArray[Any] | pa.FixedSizeListArray[Any]"

_SAMPLE_ROWS = 512
_SHORT = 64  # Bytes
_DAY_MS = 86_400_000


def supported(dtype: pa.DataType) -> bool:
    """Return True if values of ``dtype`` can be hashed."""
    if isinstance(dtype, pa.DictionaryType | pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        return supported(dtype.value_type)
    if pa.types.is_struct(dtype):
        return all(supported(dtype.field(i).type) for i in range(dtype.num_fields))
    return _class_of(dtype) is not None


def fold_column(state: Lanes, column: Column) -> None:
    """Mix the hashes of a column into ``state``, in place; both have the same number of rows."""
    _fold_next(state, _blocks(column))


def folded_blocks(columns: Sequence[Column], rows: int) -> Iterator[tuple[int, Lanes]]:
    """Yield the hashes of rows by blocks: the first row, and lanes that the next block overwrites.

    A block's lanes stay in the processor's cache until all columns are mixed in. A pass over all
    rows for each column would take three times as long.
    """
    streams = [_blocks(column) for column in columns]
    buffer: Lanes = np.empty((2, min(rows, BLOCK_ROWS)), np.uint64)
    for start in range(0, rows, BLOCK_ROWS):
        state = buffer[:, : min(rows - start, BLOCK_ROWS)]
        state[:] = seeds_of("row")
        for blocks in streams:
            _fold_next(state, blocks)
        yield start, kernel().finish_fold(state)


def _fold_next(state: Lanes, blocks: Iterator[Lanes | ArrowArray]) -> None:
    """Mix the next blocks of a column into ``state``, in place, until all its rows are mixed."""
    start, rows = 0, state.shape[1]
    while start < rows:
        block = next(blocks)
        limit = start + (block.shape[1] if isinstance(block, np.ndarray) else len(block))
        part = state[:, start:limit]
        start = limit
        if isinstance(block, np.ndarray):
            kernel().fold(part, block)
            continue
        words = None if block.null_count else _words_of(block)
        if words is None:
            kernel().fold(part, _block_lanes(block))
        else:
            kernel(len(words)).fold_words(part, words, seeds_of(str(_class_of(block.type))))


def _column_lanes(column: Column) -> Iterator[Lanes]:
    """Yield the hashes of a column in pieces, which cover its rows in order."""
    for block in _blocks(column):
        yield block if isinstance(block, np.ndarray) else _block_lanes(block)


def _blocks(column: Column) -> Iterator[Lanes | ArrowArray]:
    """Yield a column's rows in blocks, in order; rows of a dictionary come as hashes.

    No block crosses a multiple of `BLOCK_ROWS`, whatever the chunks.
    """
    place = 0
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        array = chunk.dictionary_encode() if _repeats(chunk) else chunk
        if isinstance(array, pa.DictionaryArray):
            yield from _dictionary_lanes(array, place)
        else:
            yield from (array.slice(at, rows) for at, rows in _cuts(place, len(array)))
        place += len(array)


def _cuts(place: int, rows: int) -> Iterator[tuple[int, int]]:
    """Yield start and length of the blocks of a chunk whose first row is ``place``."""
    start = 0
    while start < rows:
        length = min(rows - start, BLOCK_ROWS - (place + start) % BLOCK_ROWS)
        yield start, length
        start += length


def _dictionary_lanes(array: pa.DictionaryArray[Any, Any], place: int) -> Iterator[Lanes]:
    cuts = _cuts(place, len(array))
    if len(array.dictionary) > len(array):
        # A slice of a large dictionary: hash only the values in use.
        plain = array.dictionary_decode()
        yield from (_block_lanes(plain.slice(at, rows)) for at, rows in cuts)
        return
    # The hash of null goes last, for the rows whose index is null.
    values = np.concatenate([*_column_lanes(array.dictionary), _null_lanes(1)], axis=1)
    indices = array.indices.cast(pa.int64()).fill_null(len(array.dictionary)).to_numpy()
    yield from (values.take(indices[at : at + rows], axis=1) for at, rows in cuts)


def _repeats(array: ArrowArray) -> bool:
    """Guess whether hashing each distinct value once is faster. The hashes are the same."""
    dtype = array.type
    if len(array) < 8 * _SAMPLE_ROWS or not (_is_text(dtype) or _is_binary(dtype)):
        return False
    if is_compiled() and array.nbytes < _SHORT * len(array):
        return False  # Finding the distinct values takes longer than hashing all.
    sample = array.take(np.linspace(0, len(array) - 1, _SAMPLE_ROWS).astype(np.int64))
    return 4 * len(sample.unique()) <= _SAMPLE_ROWS


def _block_lanes(array: ArrowArray) -> Lanes:
    lanes = _value_lanes(array)
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        np.copyto(lanes, _null_lanes(1), where=~valid)
    return lanes


def _value_lanes(array: ArrowArray) -> Lanes:
    """Hash the values of an array; the hashes of its nulls are arbitrary."""
    dtype = array.type
    if isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        return _list_lanes(array)
    if isinstance(array, pa.StructArray):
        return _struct_lanes(array)
    name = _class_of(dtype)
    require(name is not None, "a column has a type that cannot be hashed", type=dtype)
    seeds = seeds_of(str(name))
    if not len(array) or pa.types.is_null(dtype):
        return _null_lanes(len(array))
    if _is_text(dtype) or _is_binary(dtype):
        return _octets_lanes(array, seeds)
    words = _words_of(array)
    return _wide_lanes(_wide_words(array), seeds) if words is None else _word_lanes(words, seeds)


def _words_of(array: ArrowArray) -> Words | None:
    """Return the values as 64-bit words; None if the type or a value needs another form."""
    dtype = array.type
    if pa.types.is_boolean(dtype):
        return _stored(array.cast(pa.uint8()), "u1").astype(np.uint64)
    if pa.types.is_floating(dtype):
        return _float_words(array)
    if not _is_stored_as_integer(dtype) or dtype.bit_width > 64:
        return None
    kind = "u" if pa.types.is_unsigned_integer(dtype) else "i"
    values = _stored(array, f"<{kind}{dtype.bit_width // 8}")
    if pa.types.is_date64(dtype):
        values = values // _DAY_MS
    words = values.astype(f"<{kind}8", copy=False).view(np.uint64)
    # A value from 2^63 on needs a second word in two's complement: else 2^64 - 1 would equal -1.
    return None if kind == "u" and (words >> np.uint64(63)).any() else words


def _octets_lanes(array: ArrowArray, seeds: Lanes) -> Lanes:
    dtype = array.type
    if pa.types.is_string_view(dtype) or pa.types.is_binary_view(dtype):
        array = array.cast(
            pa.large_string() if pa.types.is_string_view(dtype) else pa.large_binary()
        )
    if pa.types.is_fixed_size_binary(dtype):
        width = dtype.byte_width
        bounds = np.arange(array.offset, array.offset + len(array) + 1) * width
        data = array.buffers()[1]
    else:
        wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
        offsets, data = array.buffers()[1:3]
        stored = np.frombuffer(_octets(offsets), "<i8" if wide else "<i4")
        bounds = stored[array.offset : array.offset + len(array) + 1].astype(np.int64)
    starts, lengths = bounds[:-1], np.diff(bounds)
    return kernel(len(starts)).hash_bytes(_octets(data), starts, lengths, seeds)


def _float_words(array: ArrowArray) -> Words:
    with np.errstate(invalid="ignore"):  # A signalling NaN counts as any other NaN.
        values = _stored(array, f"<f{array.type.bit_width // 8}").astype(np.float64)
        values += 0.0  # -0.0 + 0.0 is 0.0
        values[np.isnan(values)] = np.nan
    return values.view(np.uint64)


def _is_stored_as_integer(dtype: pa.DataType) -> bool:
    types = pa.types
    return types.is_integer(dtype) or types.is_temporal(dtype) or types.is_decimal(dtype)


def _wide_words(array: ArrowArray) -> Words:
    """Return integers wider than 64 bits as rows of little-endian words."""
    width = array.type.bit_width
    if width > 64:
        return _stored(array, "<u8", words=width // 64).reshape(len(array), -1)
    words = _stored(array, "<u8")
    return np.stack([words, np.zeros_like(words)], axis=1)


def _wide_lanes(words: Words, seeds: Lanes) -> Lanes:
    """Hash integers, given as rows of little-endian words, each in the least size that holds it."""
    rows, width = words.shape
    signs = (words.view(np.int64) >> np.int64(63)).view(np.uint64)
    lengths = np.full(rows, 8 * width, np.int64)
    for size in (2, 1):
        if size < width:
            fits = (words[:, size:] == signs[:, size - 1 : size]).all(axis=1)
            lengths[fits] = 8 * size
    if (lengths == 8).all():
        return _word_lanes(words[:, 0], seeds)
    starts = np.arange(rows, dtype=np.int64) * (8 * width)
    octets = words.reshape(-1).view(np.uint8)
    return kernel(rows).hash_bytes(octets, starts, lengths, seeds)


def _list_lanes(array: ListArray) -> Lanes:
    if isinstance(array, pa.FixedSizeListArray):
        size = array.type.list_size
        bounds = np.arange(array.offset, array.offset + len(array) + 1) * size
    else:
        bounds = array.offsets.to_numpy().astype(np.int64)
    first, lengths = int(bounds[0]), np.diff(bounds)
    bounds = bounds - first
    positions = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)
    elements = _word_lanes(positions.view(np.uint64), seeds_of("element"))
    fold_column(elements, array.values.slice(first, int(bounds[-1])))
    kernel().finish_fold(elements)
    # A list's sum is a difference of running sums, all mod 2^64: no loop over lists.
    running = np.zeros((2, len(positions) + 1), np.uint64)
    np.cumsum(elements, axis=1, out=running[:, 1:])
    lanes = _word_lanes(lengths.view(np.uint64), seeds_of("list"))
    kernel().fold(lanes, running[:, bounds[1:]] - running[:, bounds[:-1]])
    return kernel().finish_fold(lanes)


def _struct_lanes(array: pa.StructArray) -> Lanes:
    lanes = start_fold("struct", len(array))
    for i in range(array.type.num_fields):
        fold_column(lanes, array.field(i))
    return kernel().finish_fold(lanes)


def _null_lanes(rows: int) -> Lanes:
    return np.repeat(_word_lanes(np.zeros(1, np.uint64), seeds_of("null")), rows, axis=1)


def _word_lanes(words: Words, seeds: Lanes) -> Lanes:
    return kernel(len(words)).hash_words(words, seeds)


def _stored(array: ArrowArray, dtype: str, *, words: int = 1) -> npt.NDArray[Any]:
    """Return a view of an array's values, each as ``words`` numbers of ``dtype``."""
    stored = np.frombuffer(_octets(array.buffers()[1]), dtype)
    return stored[array.offset * words : (array.offset + len(array)) * words]


def _octets(buffer: pa.Buffer | None) -> Octets:
    # Arrow may omit an empty buffer.
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(memoryview(buffer), np.uint8)


def _is_text(dtype: pa.DataType) -> bool:
    types = pa.types
    return types.is_string(dtype) or types.is_large_string(dtype) or types.is_string_view(dtype)


def _is_binary(dtype: pa.DataType) -> bool:
    types = pa.types
    return (
        types.is_binary(dtype)
        or types.is_large_binary(dtype)
        or types.is_binary_view(dtype)
        or types.is_fixed_size_binary(dtype)
    )


def _class_of(dtype: pa.DataType) -> str | None:
    """Return the name of a type's class, for the seeds; None if the type is not supported."""
    types = pa.types
    if types.is_decimal(dtype):
        return f"decimal({dtype.scale})"
    if types.is_time(dtype):
        return f"time[{dtype.unit}]"
    if types.is_timestamp(dtype):
        return f"timestamp[{dtype.unit}]"
    if types.is_duration(dtype):
        return f"duration[{dtype.unit}]"
    for name, holds in (
        ("null", types.is_null),
        ("boolean", types.is_boolean),
        ("integer", types.is_integer),
        ("float", types.is_floating),
        ("date", types.is_date),
        ("string", _is_text),
        ("binary", _is_binary),
    ):
        if holds(dtype):
            return name
    return None


WORTH_LOADING: Final = 1 << 22  # Values. Numpy hashes this many in a tenth of a second.


class Kernel(Protocol):
    """The functions of both kernels, which `rowhash.xxh3` describes."""

    def hash_words(self, words: Words, seeds: Lanes) -> Lanes: ...

    def hash_bytes(
        self, data: Octets, starts: Integers, lengths: Integers, seeds: Lanes
    ) -> Lanes: ...

    def fold(self, state: Lanes, lanes: Lanes) -> Lanes: ...

    def fold_words(self, state: Lanes, words: Words, seeds: Lanes) -> Lanes: ...

    def finish_fold(self, state: Lanes) -> Lanes: ...


class _KernelChoice:
    """The kernel in use: numpy's, then the compiled one after `WORTH_LOADING` values."""

    kernel: Kernel = xxh3
    left: int = WORTH_LOADING


def is_compiled() -> bool:
    """Return True if the compiled kernel is in use."""
    return _KernelChoice.kernel is not xxh3


def kernel(values: int = 0) -> Kernel:
    """Return the kernel to use, and count the values that the caller hashes with it."""
    if _KernelChoice.left > 0:
        # Threads may lose each other's counts: then numba loads a little later, or twice.
        _KernelChoice.left -= values
        if _KernelChoice.left <= 0:
            _KernelChoice.kernel = _loaded()
    return _KernelChoice.kernel


def _loaded() -> Kernel:
    try:
        from tidelog.rowhash import compiled
    except (ImportError, RuntimeError):
        # Not installed, not compatible with this numpy, or no folder for compiled code exists.
        return xxh3
    return compiled
