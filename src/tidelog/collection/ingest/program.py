"""The program of a rendition: the code that decides its rows.

The settings of a source are in the catalog, so all its ingesters have the same ones. Their code may
differ: another version of tidelog, of Arrow, or of the package that has the source's kind. So the
catalog also has digests of what the code of the creating process makes of fixed samples. An
ingester with other digests would commit other rows, and is refused before it computes any.
Invariants: a sample never changes, because that would refuse all existing sources. A new check is a
    sample of another name: names that one side lacks are not compared.
Source: storage, "Definite"; design page 6, "The recipe, as it runs"; decision 34.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from tidelog.collection.catalog.catalog import COLLECTION, FILES, SourceInfo
from tidelog.collection.formats.avro.container import (
    AVRO_FORMAT,
    AvroHeader,
    blocks_in,
    pack_blocks,
    read_header,
)
from tidelog.collection.formats.avro.messages import fingerprint_of
from tidelog.collection.formats.avro.schema import require_fastavro
from tidelog.collection.formats.json.arrays import ARRAY_FORMAT
from tidelog.collection.formats.parquet import footer_bytes, pack_range
from tidelog.collection.formats.records import OFFSET
from tidelog.collection.formats.text import BYTES_FORMAT, ONE_COLUMN, TEXT_FORMAT
from tidelog.collection.ingest.compute import (
    Feedback,
    Job,
    Target,
    error_updates,
    shape_messages,
    updates_of,
)
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.kind import BODY, ROWS
from tidelog.collection.source.kinds import find_kind
from tidelog.collection.table.placement import buckets_of
from tidelog.core.arguments import check_whole
from tidelog.errors import CorruptionError, InvariantError, ProgramDiffers
from tidelog.persist.format.schema import ShardSchema, shard_schema
from tidelog.rowhash import sums_of_rows

_TYPES: Final[Mapping[str, pa.DataType]] = {
    "id": pa.int64(),
    "name": pa.string(),
    "price": pa.float64(),
    "amount": pa.decimal128(12, 2),
    "flag": pa.bool_(),
    "day": pa.date32(),
    "at": pa.timestamp("us"),
}
_LOWER: Final = 1_700_000_000_000
_UPPER: Final = 1_700_000_100_000
_SHARDS: Final = 3
# The rows of all samples: some are changes of one key, some are late, some do not fit a column.
_CSV: Final = '''\
id,name,price,amount,flag,day,at
1,plain,1.5,10.25,true,2023-11-14,2023-11-14T22:13:20.5
2,"quoted, with ""marks""",-0.1,-3.10,false,2024-02-29,2023-11-14 22:13:21
3,,1e300,0.00,,,2023-11-14T22:13:22Z
3,Zürich \u03c9 \U0001f30a,NaN,99.99,true,1969-12-31,2023-11-14T23:13:23+01:00
 4 , spaces ,+7,  1.00,TRUE,2023-11-14,2023-11-14T22:14:30.123456
x,no number,1,1,true,2023-11-14,2023-11-14T22:13:20
5,exact,0.1,1.005,true,2023-11-14,2023-11-14T22:13:20
6,no such day,1,1,true,2023-02-30,2023-11-14T22:13:20
7,late,1,1,false,2023-11-14,2001-01-01T00:00:00
8,no time,1,1,false,2023-11-14,
9007199254740993,large,-inf,9999999999.99,false,9999-12-31,2023-11-14T22:13:59.999999
9,too few
10,"line
break",1,1,0,2023-11-14,2023-11-14T22:13:20
1,changed,2.5,10.25,true,2023-11-14,2023-11-14T22:13:20.5
'''.encode()
_JSON: Final = r"""
{"id": 1, "name": "plain", "price": 1.5, "amount": 10.25, "flag": true, "day": "2023-11-14", "at": "2023-11-14T22:13:20.5"}
{"id": 2, "name": "\"marks\" \u00e9 \ud83c\udf0a", "price": -0.1, "amount": "-3.10", "flag": false, "day": "2024-02-29", "at": "2023-11-14 22:13:21"}
{"at": "2023-11-14T22:13:22Z", "id": 3, "price": 1e300, "name": null}
{"id": 3, "name": {"nested": [1, 2.0, "x"]}, "price": 7, "amount": 99.99, "at": "2023-11-14T23:13:23+01:00"}
{"id": 4.0, "name": 12, "price": "1.25", "flag": "true", "at": "2023-11-14T22:14:30.123456"}
{"id": "x", "at": "2023-11-14T22:13:20"}
{"id": 5, "amount": 1.005, "at": "2023-11-14T22:13:20"}
{"id": 6, "day": "2023-02-30", "at": "2023-11-14T22:13:20"}
{"id": 7, "name": "late", "at": "2001-01-01T00:00:00"}
{"id": 8, "name": "no time"}
{"id": 9007199254740993, "price": -1e-320, "amount": 9999999999.99, "other": 1, "at": "2023-11-14T22:13:59.999999"}
{"id": 9, "name": "cut
[1, 2]
{"id": 1, "name": "changed", "id": 1, "price": 2.5, "at": "2023-11-14T22:13:20.5"}
""".lstrip().encode()  # noqa: E501 - a record is one line
_TEXT: Final = (
    b"\xef\xbb\xbffirst\n two words \r\n\n\t\nZ\xc3\xbcrich\nno \xff text\nlast\x00, without end"
)
# A file of three blocks of rows, and one that is damaged: a writer could make other bytes.
_AVRO: Final = base64.b64decode(
    """
T2JqAQQUYXZyby5jb2RlYwhudWxsFmF2cm8uc2NoZW1hrgl7InR5cGUiOiAicmVjb3JkIiwgIm5hbWUiOiAic2FtcGxlIiwg
ImZpZWxkcyI6IFt7Im5hbWUiOiAiaWQiLCAidHlwZSI6ICJpbnQifSwgeyJuYW1lIjogIm5hbWUiLCAidHlwZSI6IFsibnVs
bCIsICJzdHJpbmciXX0sIHsibmFtZSI6ICJwcmljZSIsICJ0eXBlIjogWyJudWxsIiwgImZsb2F0Il19LCB7Im5hbWUiOiAi
YW1vdW50IiwgInR5cGUiOiBbIm51bGwiLCAiZG91YmxlIiwgInN0cmluZyJdfSwgeyJuYW1lIjogImZsYWciLCAidHlwZSI6
IFsibnVsbCIsICJib29sZWFuIl19LCB7Im5hbWUiOiAiZGF5IiwgInR5cGUiOiBbIm51bGwiLCB7ImxvZ2ljYWxUeXBlIjog
ImRhdGUiLCAidHlwZSI6ICJpbnQifV19LCB7Im5hbWUiOiAiYXQiLCAidHlwZSI6IFsibnVsbCIsIHsibG9naWNhbFR5cGUi
OiAibG9jYWwtdGltZXN0YW1wLW1pY3JvcyIsICJ0eXBlIjogImxvbmcifV19LCB7Im5hbWUiOiAidGFncyIsICJ0eXBlIjog
eyJ0eXBlIjogIm1hcCIsICJ2YWx1ZXMiOiBbIm51bGwiLCAibG9uZyJdfX0sIHsibmFtZSI6ICJraW5kIiwgInR5cGUiOiB7
InR5cGUiOiAiZW51bSIsICJuYW1lIjogImtpbmRzIiwgInN5bWJvbHMiOiBbImEiLCAiYiJdfX1dfQBzaXh0ZWVuIGJ5dGVz
LCBtCKICAgIKcGxhaW4CAADAPwIAAAAAAIAkQAIBArazAgLAhK+Cg4mFBgAABAIAAgAAAL4ECi0zLjEwAgACjLUCAoCJ7IKD
iYUGAgJ4AgIAAgYAAsrySXEAAAACgJLmg4OJhQYAAAYCGFrDvHJpY2gg8J+MigIAAMB/Ao/C9Shc/1hAAgECAQKAm+CEg4mF
BgICeQAAAHNpeHRlZW4gYnl0ZXMsIG0K3gIIAhRubyBkZWNpbWFsAAQCeAIBAgACgKTahYOJhQYAAAoCDmluZXhhY3QCzczM
PQIUrkfhehTwPwIBAgACgK3UhoOJhQYAAAwCCGxhdGUCAACAPwQCMQIAAgACgIC+ta6pvgIAAA4CDm5vIHRpbWUCAACAPwQC
MQIAAgAAAAASAhBpbmZpbml0ZQIAAIB/BBo5OTk5OTk5OTk5Ljk5AgACwILmAgL+m467g4mFBgAAc2l4dGVlbiBieXRlcywg
bQQE//9zaXh0ZWVuIGJ5dGVzLCBtAlICAg5jaGFuZ2VkAgAAIEACAAAAAACAJEACAQK2swICwISvgoOJhQYAAHNpeHRlZW4g
Ynl0ZXMsIG0=
"""
)
_NAME: Final = "sample"
_MARK: Final = b"PAR1"
AVRO_MESSAGES: Final = "avro messages"


def check_program(info: SourceInfo) -> None:
    """Check that this process decides the rows of a source as the one that created its rendition.

    Raises:
        ProgramDiffers: it would decide other rows. NOT_APPLIED.
        UsageError: the source's kind is not installed here.
    """
    recorded = {} if info.program is msgspec.UNSET else info.program
    here = program_of(info)
    for name, theirs in sorted(recorded.items()):
        ours = here.get(name, theirs)
        if ours != theirs:
            raise ProgramDiffers(
                f"this process would decide other rows of {info.name!r} than the one that created "
                f"its rendition ({name}: {ours} here, {theirs} there). Ingest it with the same "
                "versions as before. Or create a rendition with 'tidelog rendition create', ingest "
                "that one, and hand over to it with 'tidelog collection handover'"
            )


def program_of(info: SourceInfo) -> dict[str, str]:
    """Return the program of this process for a source: digests of samples, by their names.

    The version of the source's kind is part of it, unless the source has files.

    Raises:
        UsageError: the source's kind is not installed here, or its version is no whole number.
    """
    # The key and the time of a line of text are in columns next to it.
    is_text = info.format in ONE_COLUMN
    upsert = info.envelope == "upsert" and not is_text
    timed = info.time_column is not None and not is_text
    kept = "-".join(["upsert"] * upsert + ["time"] * timed) or "append"
    has_messages = info.format == AVRO_FORMAT and info.kind != FILES
    form = AVRO_MESSAGES if has_messages else info.format
    found = {f"{form} {kept} 1": _digest(form, upsert=upsert, timed=timed)}
    if info.kind not in (FILES, COLLECTION):
        version = find_kind(info.kind).version
        check_whole(version, f"version of the kind {info.kind!r}")
        found[f"kind {info.kind}"] = str(version)
    return found


@lru_cache(maxsize=32)
def _digest(format: str, *, upsert: bool, timed: bool) -> str:
    """Return a digest of the updates of a sample, and of the places of its bad records."""
    columns = ONE_COLUMN.get(format, pa.schema(_TYPES))
    schema = shard_schema(columns, key=["id"] if upsert else [])
    job = _job(format, schema, upsert=upsert, timed=timed)
    shaped = shape_messages(_sample(format), job.ranges[0], 0, job)
    updates = updates_of(shaped.messages, job.shards[0], Feedback(), job).rows
    buckets = buckets_of(updates, schema, _SHARDS)
    bad = error_updates(shaped.errors, job).column("offset").to_pylist()
    values = [updates.column(name) for name in schema.names]
    times, diffs = (updates.column(name).to_numpy() for name in updates.column_names[-2:])
    found = xxhash.xxh3_64()
    for shard in range(_SHARDS):
        _, timed_sum = sums_of_rows(values, times, diffs * (buckets == shard))
        found.update(timed_sum.to_bytes())
    found.update(str(bad).encode())
    return found.hexdigest()


def _job(format: str, schema: ShardSchema, *, upsert: bool, timed: bool) -> Job:
    target = Target(shard=_NAME, write_epoch=0, may_inline=False)
    header = _CSV[: _CSV.index(b"\n") + 1] if format == "csv" else b""
    info = SourceInfo(
        id=_NAME,
        name=_NAME,
        rendition=_NAME,
        url="",
        patterns=(),
        # An array is cut into such lines.
        format={ARRAY_FORMAT: "json", AVRO_MESSAGES: AVRO_FORMAT}.get(format, format),
        avro_schema=_avro_header().schema_text.decode()
        if format == AVRO_MESSAGES
        else msgspec.UNSET,
        envelope="upsert" if upsert else "none",
        key=("id",) if upsert else (),
        time_column="at" if timed else None,
    )
    return Job(
        source=info,
        schema=schema.encoded,
        lower=_LOWER,
        upper=_UPPER,
        ranges=(FileRange(path=_NAME, start=0, limit=2**40, time_max=_UPPER, header=header),),
        shards=(target,),
        errors=target,
    )


def _sample(format: str) -> bytes | pa.Table:
    """Return the sample as a source of a format reads it."""
    if format == "csv":
        return _CSV
    if format == BYTES_FORMAT:
        addresses = pa.array([3, 5, 9], pa.int64())
        return pa.table({BODY: pa.array([_TEXT, None, b""], pa.binary()), OFFSET: addresses})
    if format == TEXT_FORMAT:
        return _TEXT
    if format == "parquet":
        sink = pa.BufferOutputStream()
        pq.write_table(_table(), sink)
        file: bytes = sink.getvalue().to_pybytes()
        start = len(file) - footer_bytes(file[-8:])
        return pack_range(file[start:], file[len(_MARK) : start])
    if format == AVRO_FORMAT:
        size = _avro_header().size
        return pack_blocks(_AVRO[:size], _AVRO[size:])
    if format == AVRO_MESSAGES:
        bodies = _avro_messages()
        return pa.table({BODY: bodies, OFFSET: pa.array(range(len(bodies)), pa.int64())})
    if format == ROWS:
        rows = _table()
        return rows.append_column(OFFSET, pa.array(range(rows.num_rows), pa.int64()))
    return _JSON


def _avro_header() -> AvroHeader:
    header = read_header(_AVRO)
    if header is None:
        raise InvariantError("the sample of avro has no header")
    return header


def _avro_messages() -> list[bytes | None]:
    """Return each row of the file as a message, some with a header, and messages that are bad."""
    header = _avro_header()
    read = require_fastavro().schemaless_reader
    found: list[bytes | None] = [None, b""]
    for block in blocks_in(_AVRO[header.size :], header.size, header.marker):
        with suppress(CorruptionError):
            count, rows = block.rows(header)
            stream = io.BytesIO(rows)
            for _ in range(count):
                start = stream.tell()
                read(stream, header.schema.plain)
                found.append(rows[start : stream.tell()])
    first = found[2] or b""
    fingerprint = fingerprint_of(header.schema_text.decode())
    found += [b"\xc3\x01" + one + first for one in (fingerprint, bytes(8))]
    return [*found, first[:-1], first + b"more"]


def _table() -> pa.Table:
    """Return a sample of columns whose types differ from the wanted ones."""
    seconds = pa.array([20, 21, 22, 23, None, 0, 59], pa.int64())
    moments = pc.add(pc.multiply(seconds, 1_000_000_000), _LOWER // 1000 * 10**9)
    return pa.table(
        {
            "id": pa.array([1, 2, 3, 3, 4, 5, 1], pa.int32()),
            "name": pa.array(["plain", "", None, "Z\u00fcrich \U0001f30a", "x", "y", "changed"]),
            "price": pa.array([1.5, -0.1, None, math.nan, math.inf, 1e30, 0.1], pa.float32()),
            "amount": pa.array([10.25, -3.1, None, 99.99, 1.005, 1e12, 0.0]),
            "flag": pa.array([1, 0, None, 2, 1, 1, 0], pa.int8()),
            "day": pa.array([0, 86_400_000, None, 1, -86_400_000, 0, 0], pa.timestamp("ms")),
            "at": moments.cast(pa.timestamp("ns")),
        }
    )
