"""Parts: immutable sets of updates, and the descriptors of parts in a state.

Shape: Parquet (zstd or snappy, row groups of 64k rows, page index and page checksums) with the
    columns of `ShardSchema.updates`, at ``shard/<id>/part/<write epoch:08x>/<unique>.parquet``. A
    small part is an Arrow IPC record batch inside the descriptor.
Invariants: a path is written once. Size and xxh3 are those of the bytes; rows, diffs, bounds and
    sums are those of the updates. V is the sum of the rows' hashes, weighted by diff: merging,
    cancelling and advancing times do not change it. T also includes the times, and replicas compare
    it.
Does no I/O: see `writer` and `reader`.
Source: persist, "Batches"; design page 4, "Parts".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from math import gcd
from typing import Any, Final, TypeAlias, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tidelog.core.ids import ShardId
from tidelog.core.threads import on_cores
from tidelog.errors import CorruptionError, PartMissing, UsageError, require
from tidelog.persist.format.parquet import decode_parquet, encode_parquet
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema, fitted
from tidelog.rowhash import Hashes, RowSum, hash_rows_with_time, sums_of_rows, weighted_sum

Places: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

FORMAT: Final = 1
INLINE_BYTES: Final = 4_096
ARRAY_BYTES_MAX: Final = 1 << 30  # Arrow's arrays of text hold twice as much.
# The kind of a bound that is stored as text, because msgpack has no decimals.
DECIMAL: Final = "decimal"
APART_ROWS: Final = 8_192  # Fewer rows do not justify another thread.
_Sums = tuple[RowSum, RowSum]
_Body = tuple[bytes, bool]
_Bound = tuple[str, int | str | bool, int | str | bool]
_BOUNDS: Final = msgspec.msgpack.Decoder(dict[str, _Bound])
_PATH: Final = re.compile(r"/part/([0-9a-f]{8})/[^/]+$")


class Part(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The descriptor of a part in a state; any process can read the part with it.

    Shape: exactly one of ``path`` and ``inline`` is set. ``key_bounds`` is a msgpack map of key
        columns to ``[kind, least, greatest]``, without the columns whose type has no order.
        ``bucket`` is ``(n, b)``: the hashes of all its keys are ``b`` modulo ``n``. ``plain``
        states that each diff is 1. ``stored_time`` in ``extra``: see `part_at`; ``by``: see
        `part_by`.
    """

    path: str | None = None
    inline: bytes | None = None
    size_bytes: int
    xxh3: bytes
    rows: int
    diffs: int
    time_min: int
    time_max: int
    key_bounds: bytes = b""
    schema_id: int = 0
    is_sorted: bool = False
    bucket: tuple[int, int] = (1, 0)
    sum_v: bytes
    sum_t: bytes
    format: int = FORMAT
    extra: dict[str, Any] = {}
    plain: bool = False

    @property
    def v(self) -> RowSum:
        return RowSum.from_bytes(self.sum_v)

    @property
    def t(self) -> RowSum:
        return RowSum.from_bytes(self.sum_t)

    @property
    def stored_time(self) -> int | None:
        """The time in the part's own bytes, if a commit moved its updates to another one."""
        found: int | None = self.extra.get("stored_time")
        return found

    @property
    def by(self) -> str | None:
        """The writer whose commit names the part; None if it is unknown."""
        found: str | None = self.extra.get("by")
        return found


def part_at(part: Part, time: int) -> Part:
    """Return the descriptor of a part whose updates a commit moves to ``time``.

    The bytes do not change, so T remains that of the updates as stored.

    Raises:
        UsageError: the part has updates of several times, or of a later time.
    """
    if part.time_min != part.time_max or part.time_min > time:
        raise UsageError(
            "a part for the next time must have one time, not past that of the commit: write each "
            "part at one time",
            least=part.time_min,
            greatest=part.time_max,
            time=time,
        )
    if part.time_min == time:
        return part
    own = part.time_min if part.stored_time is None else part.stored_time
    return msgspec.structs.replace(
        part, time_min=time, time_max=time, extra={**part.extra, "stored_time": own}
    )


def part_by(part: Part, writer: str) -> Part:
    """Return the descriptor of a part with the writer whose commit names it; "" is unknown."""
    if not writer:
        return part
    return msgspec.structs.replace(part, extra={**part.extra, "by": writer})


def with_time(updates: pa.Table, time: int) -> pa.Table:
    """Return updates with all times replaced by ``time``."""
    position = updates.schema.get_field_index(TIME)
    times = int64_array(np.full(updates.num_rows, time, np.int64))
    return updates.set_column(position, updates.schema.field(position), times)


def with_one_time(contents: pa.Table, time: int, updates: pa.Schema) -> pa.Table:
    """Return contents as updates at one time, in the schema ``updates``."""
    times = int64_array(np.full(contents.num_rows, time, np.int64))
    place = updates.get_field_index(TIME)
    return contents.add_column(place, updates.field(place), times).cast(updates)


def negated(updates: pa.Table) -> pa.Table:
    """Return rows with their diffs negated: the updates that take them back."""
    place = updates.schema.get_field_index(DIFF)
    diffs = int64_array(-int64_of(updates, DIFF))
    return updates.set_column(place, updates.schema.field(place), diffs)


def at_commit(part: Part, updates: pa.Table) -> pa.Table:
    """Return a part's decoded columns, with the time of its commit; see `part_at`."""
    if part.stored_time is None or TIME not in updates.column_names:
        return updates
    return with_time(updates, part.time_min)


def part_path(shard: ShardId, write_epoch: int, unique: str) -> str:
    return f"shard/{shard}/part/{write_epoch:08x}/{unique}.parquet"


def epoch_of(path: str) -> int | None:
    """Return the write epoch in which a part was begun; None if the path is not a part's."""
    found = _PATH.search(path)
    return None if found is None else int(found[1], 16)


def sums_of(
    updates: pa.Table, schema: ShardSchema, hashes: Hashes | None = None
) -> tuple[RowSum, RowSum]:
    """Return V and T of a table of updates; ``hashes`` are those of its rows, if known."""
    times, diffs = int64_of(updates, TIME), int64_of(updates, DIFF)
    if hashes is None:
        return sums_of_rows([updates.column(n) for n in schema.names], times, diffs)
    timed = hash_rows_with_time(hashes, times)
    return weighted_sum(hashes, diffs), weighted_sum(timed, diffs)


def int64_of(updates: pa.Table, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return an int64 column without nulls as a numpy array."""
    # Arrow's own conversion imports pandas if it is installed, which takes 0.3 s.
    chunks = [_plain(chunk) for chunk in updates.column(name).chunks if len(chunk)]
    if len(chunks) == 1:
        return chunks[0]
    return np.concatenate([*chunks, np.empty(0, np.int64)])


def int64_array(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array[Any]:
    """Return a numpy array as an Arrow array without nulls; see `int64_of`."""
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers.tobytes())])


def taken(table: pa.Table, places: Places | pa.Array[Any]) -> pa.Table:
    """Return the rows of a table at some places, in the order of the places.

    Arrow joins all chunks of a column before it takes rows, and one array holds at most 2 GiB of
    text. Each chunk of a larger column gives its own rows.
    """
    wanted = int64_array(places) if isinstance(places, np.ndarray) else places
    with suppress(pa.ArrowInvalid, pa.ArrowCapacityError):
        return table.take(wanted)
    numbers = wanted.to_numpy().astype(np.int64)
    if (numbers[1:] >= numbers[:-1]).all():
        return _by_chunks(table, numbers)
    return pa.concat_tables(_put_in_order(table, some) for some in np.array_split(numbers, 2))


def longest_word(packed: Any) -> int:
    """Return the bytes of the longest text of a dictionary array; 0 if it has none."""
    return pc.max(pc.binary_length(packed.dictionary)).as_py() or 0


def _put_in_order(table: pa.Table, places: Places) -> pa.Table:
    order = np.argsort(places, kind="stable")
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return taken(_by_chunks(table, places[order]), back)


def _by_chunks(table: pa.Table, places: Places) -> pa.Table:
    """Return the rows at rising places; each chunk gives its own."""
    found: list[pa.RecordBatch] = []
    start = 0
    for batch in table.to_batches():
        low, high = np.searchsorted(places, [start, start + batch.num_rows])
        found.append(batch.take(int64_array(places[low:high] - start)))
        start += batch.num_rows
    return pa.Table.from_batches(found, table.schema)


def _plain(chunk: pa.Array[Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    require(
        pa.types.is_int64(chunk.type) and not chunk.null_count,
        "the column must be int64 without nulls",
    )
    data = memoryview(chunk.buffers()[1] or b"")
    return np.frombuffer(data, np.int64, len(chunk), 8 * chunk.offset)


def encode_part(
    updates: pa.Table,
    schema: ShardSchema,
    *,
    path: str,
    is_sorted: bool,
    inline: bool,
    hashes: Hashes | None = None,
) -> tuple[Part, bytes | None]:
    """Return the descriptor of a part, and the bytes to store at ``path`` (None: it is inline).

    ``updates`` is not empty and has the columns of ``schema.updates`` in order. ``inline`` allows a
    small part to be stored in the descriptor. ``hashes``: see `sums_of`.
    """
    # Hashes and Parquet need about as much time, so two threads compute them.
    is_large = updates.num_rows >= APART_ROWS
    sums: Callable[[], _Sums | _Body] = partial(sums_of, updates, schema, hashes)
    body: Callable[[], _Sums | _Body] = partial(_encode_body, updates, inline)
    made = on_cores([sums, body]) if is_large else [sums(), body()]
    (sum_v, sum_t), (data, small) = cast("tuple[_Sums, _Body]", tuple(made))
    times = pc.min_max(updates.column(TIME))
    diffs = int64_of(updates, DIFF)
    part = Part(
        path=None if small else path,
        inline=data if small else None,
        size_bytes=len(data),
        xxh3=xxhash.xxh3_128_digest(data),
        rows=updates.num_rows,
        diffs=int(diffs.sum()),
        time_min=times["min"].as_py(),
        time_max=times["max"].as_py(),
        key_bounds=_encode_bounds(updates, schema),
        is_sorted=is_sorted,
        sum_v=sum_v.to_bytes(),
        sum_t=sum_t.to_bytes(),
        plain=bool((diffs == 1).all()),
    )
    return part, None if small else data


def _encode_body(updates: pa.Table, inline: bool) -> _Body:
    """Return the bytes of a part, and whether they are stored in its descriptor."""
    body = encode_inline(updates) if inline and updates.nbytes <= 4 * INLINE_BYTES else None
    if body is not None and len(body) <= INLINE_BYTES:
        return body, True
    return encode_parquet(updates), False


def large_rows(table: pa.Table, bytes_max: int) -> list[int]:
    """Return the indexes of the rows that are larger than ``bytes_max``."""
    found: list[int] = []
    waiting = [(0, table.num_rows)]
    while waiting:
        start, limit = waiting.pop()
        # Skip a half that is small as a whole, so few slices are made, however many rows there are.
        if start == limit or table.slice(start, limit - start).nbytes <= bytes_max:
            continue
        if limit - start == 1:
            found.append(start)
        else:
            middle = (start + limit) // 2
            waiting += [(middle, limit), (start, middle)]
    return found


def decode_part(part: Part, data: bytes, schema: ShardSchema) -> pa.Table:
    """Return the updates of a part, from its whole bytes, in the columns of ``schema``.

    Raises:
        CorruptionError: the bytes differ from those written.
    """
    table = decode_own(part, data, schema.of_part(part.schema_id))
    return fitted(table, schema.updates.names, schema.updates)


def decode_own(part: Part, data: bytes, own: ShardSchema) -> pa.Table:
    """Return the updates of a part in the columns that it was written with; see `decode_part`."""
    check_bytes(part, data)
    try:
        if part.inline is not None:
            batch = pa.ipc.read_record_batch(pa.py_buffer(data), own.updates)
            stored = pa.Table.from_batches([batch], schema=own.updates)
        else:
            wanted = own.updates
            stored = decode_parquet(data).select(wanted.names)
            stored = stored if stored.schema.equals(wanted) else stored.cast(wanted)
    except MemoryError:
        raise
    except (pa.ArrowException, KeyError, ValueError, EOFError, OSError) as error:
        raise CorruptionError(
            "a part cannot be decoded: restore the object", path=part.path or "inline"
        ) from error
    return at_commit(part, stored)


def check_bytes(part: Part, data: bytes) -> None:
    """Check the size and the hash of a part's bytes.

    Raises:
        CorruptionError: the bytes differ from those written.
    """
    if len(data) != part.size_bytes or xxhash.xxh3_128_digest(data) != part.xxh3:
        raise CorruptionError(
            "a part's bytes do not match its checksum: restore the object, or drop the data",
            path=part.path or "inline",
            size_bytes=len(data),
            expected=part.size_bytes,
        )


def missing_part(path: str) -> PartMissing:
    """Return the error for a part whose object is missing."""
    return PartMissing(
        "a part that the shard names is missing: read again, because a merge may have replaced "
        "it; if the error remains, restore the object",
        path=path,
    )


def decode_bounds(part: Part) -> dict[str, tuple[Any, Any]]:
    """Return the least and the greatest value of key columns, as far as known; see `key_box`."""
    if not part.key_bounds:
        return {}
    try:
        told = _BOUNDS.decode(part.key_bounds)
        if any(type(low) is not type(high) for _, low, high in told.values()):
            raise msgspec.ValidationError("the bounds have two types")
        return {
            name: (low, high) if kind != DECIMAL else (Decimal(str(low)), Decimal(str(high)))
            for name, (kind, low, high) in told.items()
        }
    except (msgspec.MsgspecError, UnicodeDecodeError, ArithmeticError) as error:
        raise CorruptionError(
            "the bounds of a part's keys cannot be decoded: restore the shard's state from a "
            "backup, or from an older version of its object",
            path=part.path or "inline",
        ) from error


def may_overlap(part: Part, wanted: dict[str, tuple[Any, Any]]) -> bool:
    """Return True if a part can hold keys in the box ``wanted`` (least and greatest by column)."""
    for name, (least, greatest) in decode_bounds(part).items():
        if name not in wanted or least is None or greatest is None:
            continue
        low, high = wanted[name]
        if low is not None and high is not None and (high < least or greatest < low):
            return False
    return True


def may_share_bucket(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return True if a key can be in both of two buckets; see `Part`."""
    # Chinese remainder theorem: a number with both remainders exists if they are equal modulo the
    # greatest common divisor.
    common = gcd(one[0], other[0])
    return one[1] % common == other[1] % common


def key_box(table: pa.Table, key: list[str]) -> dict[str, tuple[Any, Any]]:
    """Return the least and the greatest value of each key column that has an order.

    Times are returned as numbers, because Python cannot represent all of them.
    """
    found: dict[str, tuple[Any, Any]] = {}
    for name in key:
        column = table.column(name)
        if _has_order(column.type):
            # A null is outside of every bound, so a column with nulls has no bounds.
            bounds = pc.min_max(column) if not column.null_count else {"min": None, "max": None}
            found[name] = (_value(bounds["min"]), _value(bounds["max"]))
    return found


def _value(scalar: Any) -> Any:
    if scalar is None or not pa.types.is_temporal(scalar.type):
        return None if scalar is None else scalar.as_py()
    return scalar.cast(pa.int32() if scalar.type.bit_width == 32 else pa.int64()).as_py()


def _has_order(dtype: pa.DataType) -> bool:
    # Floats have NaN, which no bound contains.
    return (
        pa.types.is_integer(dtype)
        or pa.types.is_string(dtype)
        or pa.types.is_temporal(dtype)
        or pa.types.is_boolean(dtype)
        or pa.types.is_decimal(dtype)
    )


def _encode_bounds(updates: pa.Table, schema: ShardSchema) -> bytes:
    box = key_box(updates, schema.key)
    # Not as an Arrow batch: Arrow's reader crashes the process on some invalid bytes, and is
    # slower.
    told = {
        name: (DECIMAL, str(low), str(high)) if isinstance(low, Decimal) else ("", low, high)
        for name, (low, high) in box.items()
        if _fits_in_state(low) and _fits_in_state(high)
    }
    return msgspec.msgpack.encode(told) if told else b""


def _fits_in_state(value: Any) -> bool:
    return value is not None and (not isinstance(value, str) or len(value) <= 64)


def copied_columns(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return columns of a table, copied: a slice would keep the memory of the whole table."""
    return table.select(list(names)).take(np.arange(table.num_rows))


def encode_inline(updates: pa.Table) -> bytes:
    """Return a non-empty table as one Arrow batch; equal rows give equal bytes."""
    batch = updates.combine_chunks().to_batches()[0]
    # Behind nulls and past the end of a slice, Arrow buffers contain arbitrary memory. `take`
    # copies only the rows themselves.
    return batch.take(np.arange(batch.num_rows)).serialize().to_pybytes()
