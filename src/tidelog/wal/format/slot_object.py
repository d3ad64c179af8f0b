"""Slot objects: the data or the fence of a slot, as a value and as bytes. Pure.

Both are Parquet files with the same columns; a fence has no rows. The link is in the file's
metadata with a checksum of its own. The link names the slot, so a reader detects an object that was
moved to another slot.

Shape: records are a table of ``position`` and ``timestamp_us`` (int64), ``stream`` (binary, null
for no stream, empty in control records), ``key`` (binary, null for no key) and ``body`` (binary),
sorted by position. A file without keys has no column ``key``.
Invariants: two writes never have the same bytes, because the link names an epoch or an id that
belongs to one writer only.
Source: wal3-draft, "Fragments"; design page 3, "Slot commit".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.core.setsum import SHA_256, Setsum, setsum_of
from tidelog.errors import CorruptionError
from tidelog.wal.format.arrays import (
    array_of_numbers,
    binary_scalar,
    column_sum,
    has_positions,
    items_of,
    lengths_of,
    log_full,
    no_rows,
    numbers_of,
    positions_from,
)
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.fragment_sets import KeyBloom, StreamSet, key_set_of, stream_set_of
from tidelog.wal.format.json import U64_MAX, parse, render
from tidelog.wal.format.link import DataLink, FenceLink, Link, Tail, link_fields, link_of
from tidelog.wal.format.parquet import GROUP_ROWS, PAGE_BYTES, RecordFile, open_records
from tidelog.wal.format.streams import CONTROL, Controls, decode_control

Times: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

# Marks outside the lengths that a stream's id can have.
CONTROL_MARK: Final = 0xFFFF
KEY_MARK: Final = 0xFFFE
_WHAT: Final = "a slot's object"
LINK: Final = b"tidelog.link"
CHECK: Final = b"tidelog.check"
_FIELDS: list[pa.Field[Any]] = [
    pa.field("position", pa.int64(), nullable=False),
    pa.field("timestamp_us", pa.int64(), nullable=False),
    pa.field("stream", pa.binary()),
    pa.field("key", pa.binary()),
    pa.field("body", pa.binary(), nullable=False),
]
SLOT_RECORDS: Final = pa.schema(_FIELDS)
_NO_RECORDS: Final = no_rows(SLOT_RECORDS)
_KEYLESS: Final = pa.schema([field for field in _FIELDS if field.name != "key"])
# Positions and times are tiny after delta encoding.
_COMPRESSION: Final[dict[str, Any]] = {
    "position": "none",
    "timestamp_us": "none",
    "stream": "snappy",
    "key": "snappy",
    "body": "snappy",
}
_ENCODINGS: Final = dict.fromkeys(("position", "timestamp_us"), "DELTA_BINARY_PACKED")
_HEAD: Final = np.dtype([("position", ">u8"), ("time", ">u8"), ("stream", ">u2")])
_KEYED_HEAD: Final = np.dtype([*_HEAD.descr, ("in_stream", ">u2"), ("key_bytes", ">u4")])


def place_slot_records(
    bodies: pa.BinaryArray,
    *,
    start: int,
    times: Times,
    streams: pa.BinaryArray | None = None,
    keys: pa.BinaryArray | None = None,
) -> pa.Table:
    """Return bodies as a table of consecutive records with their times, streams and keys.

    Raises:
        UsageError: see `positions_from`.
    """
    positions = array_of_numbers(positions_from(start, len(bodies)))
    none: Any = pa.nulls(len(bodies), pa.binary())
    columns = [
        positions,
        array_of_numbers(times),
        none if streams is None else streams,
        none if keys is None else keys,
        bodies,
    ]
    return pa.table(columns, schema=SLOT_RECORDS)


def encode_data(records: pa.Table, tail: Tail, *, writer: str) -> tuple[DataLink, bytes]:
    """Return the link and the bytes of the log's next object, which holds the records."""
    streams, keys = records.column("stream"), records.column("key")
    has_streams, has_keys = (one.null_count < len(one) for one in (streams, keys))
    first_us, last_us = _least_and_greatest(records)
    setsum = setsum_of_slot_records(records)
    log_setsum, columns = tail.setsum + setsum, column_sum(records)
    held, controls = _streams_of(records, where=tail.path) if has_streams else ((), ())
    link = DataLink(
        epoch=tail.epoch.name,
        slot=tail.slot,
        writer=writer,
        start=tail.position,
        limit=tail.position + records.num_rows,
        first_us=first_us,
        last_us=last_us,
        setsum=setsum,
        column_sum=columns,
        log_setsum=log_setsum,
        log_bytes=tail.log_bytes,
        streams=held,
        keys=key_set_of(keys) if has_keys else (),
        controls=controls,
    )
    return link, _file_of(records, link, render(link_fields(link)))


def encode_fence(link: FenceLink) -> bytes:
    """Encode a fence.

    Raises:
        UsageError: its slot is so near to 2^64 that readers would refuse it.
    """
    if link.reach > U64_MAX:
        raise log_full("slot", link.reach)
    return _encode(_NO_RECORDS, link)


def decode_link(data: bytes, *, path: str) -> Link:
    """Decode the link of the object at a path from its last bytes, at least `footer_bytes`.

    Raises:
        CorruptionError: the link is missing or changed, or has another number of records.
    """
    return _link_in(open_records(data, path=path, what=_WHAT))


def decode_data(data: bytes, *, path: str) -> tuple[Link, pa.Table]:
    """Decode the link and the records of the object at a path.

    Raises:
        CorruptionError: see `decode_link`; or the object lacks a column, or would decode to more
        than an object of its size may.
    """
    file = open_records(data, path=path, what=_WHAT)
    link = _link_in(file)
    if any(leaf.name == "key" for leaf in file.footer.leaves):
        return link, file.read(SLOT_RECORDS.names, SLOT_RECORDS)
    found = file.read(_KEYLESS.names, _KEYLESS)
    none: Any = pa.nulls(found.num_rows, pa.binary())
    return link, found.add_column(SLOT_RECORDS.get_field_index("key"), "key", none)


def checked_data(data: bytes, fragment: Fragment) -> pa.Table:
    """Return the records of a slot's object.

    Raises:
        CorruptionError: the object cannot be read, or differs from the log's description.
    """
    link, records = decode_data(data, path=fragment.path)
    if problems := problems_of_data(records, link, len(data), fragment):
        raise CorruptionError(
            f"a slot's object differs from the log's description of it ({'; '.join(problems)}): "
            "restore it",
            path=fragment.path,
        )
    return records


def problems_of_data(
    records: pa.Table, link: Link, size_bytes: int, fragment: Fragment, *, with_setsum: bool = False
) -> list[str]:
    """Return the differences between a slot's object and the log's description of it.

    Reads compare records with the column sum of the link, which takes a hundredth of the time of
    the setsum. Copies and scrubs answer for the log, so they pass ``with_setsum``.
    """
    if not isinstance(link, DataLink):
        return ["it is a fence"]
    if problems := [*_problems_of_place(link, size_bytes, fragment)]:
        return problems
    if not has_positions(records, link.start, link.limit):
        return [f"its positions are not {link.start} to {link.limit - 1}"]
    if _least_and_greatest(records) != (link.first_us, link.last_us):
        problems.append("its times differ from its link")
    problems += _problems_of_streams(records, link, fragment)
    problems += _problems_of_keys(records, link, fragment)
    if column_sum(records) != link.column_sum:
        problems.append("its column sum does not match its records")
    if with_setsum and setsum_of_slot_records(records) != link.setsum:
        problems.append("its setsum does not match its records")
    return problems


def controls_of(data: bytes, fragment: Fragment) -> Controls:
    """Return the control records of a slot's object, as its link repeats them.

    Raises:
        CorruptionError: the object is not the one that the log names.
    """
    link = decode_link(data, path=fragment.path)
    if not isinstance(link, DataLink) or [*_problems_of_place(link, len(data), fragment)]:
        raise CorruptionError(
            "a slot's object differs from the log's description of it: restore it",
            path=fragment.path,
        )
    return link.controls


def setsum_of_slot_records(records: pa.Table) -> Setsum:
    """Return the setsum of records: their positions, times, streams, keys and bodies.

    Shape: an item is the position and the time (8 bytes each), a mark (2 bytes), then the stream's
    id and the body; all numbers are big endian. The mark is the length of the id, 0 for no stream,
    and 0xFFFF for the control stream. For a record with a key, the mark is 0xFFFE, followed by the
    mark of the stream and the length of the key (4 bytes), then the id, the key and the body.
    """
    return setsum_of(chain.from_iterable(_items(records)), item_hash=SHA_256)


def _items(records: pa.Table) -> Iterator[list[bytes]]:
    for batch in records.to_batches():
        keys: Any = batch.column("key")
        if keys.null_count in (0, len(keys)):
            yield from _items_of(batch)
        else:  # A setsum does not depend on the order of its items.
            yield from _items_of(batch.filter(pc.is_valid(keys)))
            yield from _items_of(batch.filter(pc.is_null(keys)))


def _items_of(batch: pa.RecordBatch) -> Iterator[list[bytes]]:
    """Yield the items of records that all have a key, or all have none."""
    positions, times, streams, bodies = (batch.column(name) for name in _KEYLESS.names)
    keys: Any = batch.column("key")
    has_keys = keys.null_count < len(keys)
    heads = np.empty(batch.num_rows, dtype=_KEYED_HEAD if has_keys else _HEAD)
    heads["position"], heads["time"] = np.from_dlpack(positions), np.from_dlpack(times)
    heads["in_stream" if has_keys else "stream"] = 0
    parts: list[Any] = []
    if streams.null_count < len(streams):
        heads["in_stream" if has_keys else "stream"] = _marks(streams)
        ids: Any = streams
        parts.append(pc.fill_null(ids, binary_scalar(CONTROL)))
    if has_keys:
        heads["stream"] = KEY_MARK
        heads["key_bytes"] = lengths_of(keys)
        parts.append(keys)
    yield from items_of(heads, *parts, bodies)


def _marks(streams: Any) -> Any:
    """Return the marks of streams, which tell no stream from the control stream's empty id."""
    marks = lengths_of(streams).copy()
    marks[marks == 0] = CONTROL_MARK
    marks[marks < 0] = 0
    return marks


def _streams_of(records: pa.Table, *, where: str) -> tuple[StreamSet, Controls]:
    """Return the set of the records' streams, and the control records."""
    column: Any = records.column("stream")
    if column.null_count == len(column):
        return (), ()
    ids: list[bytes] = pc.unique(column).drop_null().to_pylist()
    if CONTROL not in ids:
        return stream_set_of(ids), ()
    found = records.filter(pc.equal(column, binary_scalar(CONTROL)))
    bodies: list[Any] = found.column("body").to_pylist()
    positions: list[int] = numbers_of(found.column("position")).tolist()
    said = [decode_control(body, where=where) for body in bodies]
    return stream_set_of(ids), tuple(zip(positions, said, strict=True))


def _problems_of_streams(records: pa.Table, link: DataLink, fragment: Fragment) -> Iterator[str]:
    if fragment.last_us not in (None, link.last_us):
        yield "its last time differs from the log's description"
    if fragment.streams is not None and fragment.streams != link.streams:
        yield "its streams differ from the log's description"
    try:
        if _streams_of(records, where=fragment.path) != (link.streams, link.controls):
            yield "its streams differ from its link"
    except CorruptionError as error:
        yield f"a control record cannot be read: {error}"


def _problems_of_keys(records: pa.Table, link: DataLink, fragment: Fragment) -> Iterator[str]:
    if fragment.last_us is not None and fragment.keys != link.keys:
        yield "its keys differ from the log's description"
    if key_set_of(records.column("key")) != link.keys:
        yield "its keys differ from its link"


def _link_in(file: RecordFile) -> Link:
    return _link_of(file.footer.key_values, file.footer.rows, file.path)


def _link_of(said: Mapping[bytes, bytes], records: int, path: str) -> Link:
    text = said.get(LINK, b"")
    if not text or said.get(CHECK) != _check_of(text):
        raise CorruptionError(
            "a slot's object has no link, or a changed one: restore the object, or move it away",
            path=path,
        )
    link = link_of(parse(text, where=path))
    wanted = link.limit - link.start if isinstance(link, DataLink) else 0
    if records != wanted:
        raise CorruptionError(
            f"a slot's object has {records} records, but its link declares {wanted}: restore it, "
            "or move it away",
            path=path,
        )
    return link


def _least_and_greatest(records: pa.Table) -> tuple[int, int]:
    chunks: list[Any] = records.column("timestamp_us").chunks
    times = [np.from_dlpack(chunk) for chunk in chunks if len(chunk)]
    return int(min(map(np.min, times))), int(max(map(np.max, times)))


def _problems_of_place(link: DataLink, size_bytes: int, fragment: Fragment) -> Iterator[str]:
    if size_bytes != fragment.num_bytes:
        yield f"it has {size_bytes} bytes, not {fragment.num_bytes}"
    if link.slot != fragment.seq_no or f"/{link.epoch}/" not in f"/{fragment.path}":
        yield "it is the object of another slot"
    if (link.start, link.limit) != (fragment.start, fragment.limit):
        yield f"its positions are not {fragment.start} to {fragment.limit - 1}"
    if link.setsum != fragment.setsum:
        yield "its setsum differs from the log's description"


def _encode(records: pa.Table, link: Link) -> bytes:
    return _file_of(records, link, render(link_fields(link)))


def _file_of(records: pa.Table, link: Link, text: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    keys = records.column("key")
    if keys.null_count == len(keys):
        records = records.drop_columns(["key"])
    # If the keys need a filter, hardly any of them repeats.
    keys_repeat = isinstance(link, DataLink) and not isinstance(link.keys, KeyBloom)
    shared = [
        *(["stream"] if records.column("stream").null_count < records.num_rows else []),
        *(["key"] if keys_repeat and keys.null_count < len(keys) else []),
    ]
    with pq.ParquetWriter(
        sink,
        records.schema,
        compression={name: _COMPRESSION[name] for name in records.column_names},
        column_encoding=_ENCODINGS,
        use_dictionary=shared or False,  # type: ignore[arg-type]
        # Statistics would repeat bodies, and every reader knows the schema. Pages have no
        # checksums: verifying them takes as long as decoding, and the column sum finds the same
        # damage.
        write_statistics=False,
        store_schema=False,
        data_page_size=PAGE_BYTES,
    ) as writer:
        writer.write_table(records, row_group_size=GROUP_ROWS)
        writer.add_key_value_metadata(
            {LINK.decode(): text.decode(), CHECK.decode(): _check_of(text).decode()}
        )
    return sink.getvalue().to_pybytes()


def _check_of(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).hexdigest().encode()
