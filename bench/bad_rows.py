"""The cost of bad rows in decoding: by format, kind of fault and share, on one core.

python bench/bad_rows.py [--rows N] [--rounds N] [--format json|csv|parquet] [--share PERCENT]
"""

from __future__ import annotations

import argparse
import asyncio
import io
import statistics
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from figures import print_table, ratio, seconds_of, side_by_side
from tidelog.aio import SourceSpec, connect
from tidelog.collection.formats.parquet import group_span, pack_range, read_footer
from tidelog.collection.formats.types import sql_type
from tidelog.collection.ingest.run import run_ingest
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.decode import decode_range

COLUMNS: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "user": pa.string(),
    "at": pa.timestamp("us", tz="UTC"),
    "amount": pa.decimal128(10, 2),
    "ok": pa.bool_(),
    "day": pa.date32(),
    "note": pa.string(),
}
WANTED = pa.schema(COLUMNS)
HEADER = (",".join(COLUMNS) + "\n").encode()
JSON = (
    '{{"id": {n}, "user": "user-{n}", "at": "2024-01-02T03:04:05Z", "amount": "{m}.25", '
    '"ok": true, "day": "2024-01-02", "note": "some words"}}'
)
CSV = '{n},user-{n},2024-01-02T03:04:05Z,{m}.25,true,2024-01-02,"some, words"'
BAD_JSON = {
    "no json": "{{not json}}",
    "a type": '{{"id": "{n}"}}',
    "a fraction": '{{"id": {n}.5}}',
    "a day": '{{"id": {n}, "day": "no day"}}',
    "an amount": '{{"id": {n}, "amount": "1.255"}}',
    "a field twice": '{{"id": {n}, "id": {n}}}',
    "not UTF-8": '{{"id": {n}, "user": "\udcff"}}',
    "a scalar": "{n}",
}
BAD_CSV = {
    "too few fields": "{n},x",
    "an open quote": '{n},"x,2024-01-02T03:04:05Z,1.25,true,2024-01-02,x',
    "a type": "x{n},user-{n},2024-01-02T03:04:05Z,1.25,true,2024-01-02,x",
    "an amount": "{n},user-{n},2024-01-02T03:04:05Z,1.255,true,2024-01-02,x",
    "not UTF-8": "{n},\udcff,2024-01-02T03:04:05Z,1.25,true,2024-01-02,x",
}
BAD_PARQUET = ("a fraction", "an amount", "no text")


def text(good: str, bad: str | None, rows: int, share: int) -> bytes:
    """Return records; ``share`` of each hundred are bad."""
    pattern = [bad if bad is not None and _is_bad(n, share) else good for n in range(100)]
    return "".join(pattern[n % 100].format(n=n, m=n % 1_000) + "\n" for n in range(rows)).encode(
        errors="surrogateescape"
    )


def _is_bad(number: int, share: int) -> bool:
    """Return True for ``share`` of each hundred numbers, spread evenly; the last one is good."""
    place = number % 100
    return place * share // 100 > (place - 1) * share // 100


def parquet_file(fault: str, rows: int, share: int) -> bytes:
    """Return a file in which ``share`` of each hundred rows have an extra digit or other bytes."""
    bad = [fault != "none" and _is_bad(n, share) for n in range(rows)]
    amounts = [1.255 if one and fault == "an amount" else 1.25 for one in bad]
    ids = [n + 0.5 if one and fault == "a fraction" else n for n, one in enumerate(bad)]
    names = [b"\xff" if one and fault == "no text" else b"user" for one in bad]
    table = pa.table(
        {
            "id": pa.array(ids, pa.float64()),
            "user": pa.array(names, pa.binary()),
            "amount": pa.array(amounts, pa.float64()).cast(pa.decimal128(12, 4)),
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def packed(file: bytes) -> bytes:
    """Return the packed range of all row groups of a file."""
    footer = file[-int.from_bytes(file[-8:-4], "little") - 8 :]
    first, last = group_span(read_footer(footer), 0, read_footer(footer).num_row_groups)
    return pack_range(footer, file[first:last])


def decode(data: bytes, kind: str, bad: int) -> None:
    found = FileRange(path="p", start=0, limit=len(data))
    if kind == "csv":
        found = msgspec.structs.replace(found, start=1_000, header=HEADER)
    assert decode_range(data, found, WANTED, format=kind).errors.num_rows == bad


async def ingest_file(folder: Path, kind: str, bad: int) -> float:
    """Ingest a file into a new location, as ``tidelog ingest --once --engine local`` does."""
    schema = ", ".join(f'"{f.name}" {sql_type(f.type)}' for f in WANTED)
    location = await connect((folder / "lake").as_uri(), create=True)
    await location.sources.create(
        SourceSpec(name="rows", files=str(folder / "in"), format=kind, schema=schema)
    )
    ingester = await location.sources.ingester("rows")
    summary = await run_ingest(
        ingester, follow=False, interval_us=0, on_tick=lambda _: None, stop=lambda: False
    )
    assert summary.bad == bad, (summary.bad, bad, summary.waiting)
    return summary.duration_us / 1e6


def ingest(data: bytes, kind: str, bad: int) -> float:
    """Return the seconds of a run, without the creation of the source."""
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as name:
        folder = Path(name)
        (folder / "in").mkdir()
        (folder / "in" / f"1.{kind}").write_bytes((HEADER if kind == "csv" else b"") + data)
        return asyncio.run(ingest_file(folder, kind, bad))


def works_of(kind: str, rows: int, share: int, *, whole: bool) -> dict[str, Callable[[], float]]:
    """Return the work to time for each fault; the one without a fault comes first."""
    if kind == "parquet":
        made = {fault: parquet_file(fault, rows, share) for fault in ("none", *BAD_PARQUET)}
        if not whole:
            made = {fault: packed(file) for fault, file in made.items()}
    else:
        good, faults = (JSON, BAD_JSON) if kind == "json" else (CSV, BAD_CSV)
        made = {"none": text(good, None, rows, share)}
        made |= {fault: text(good, bad, rows, share) for fault, bad in faults.items()}
    return {
        fault: _timed(data, kind, 0 if fault == "none" else rows * share // 100, whole=whole)
        for fault, data in made.items()
    }


def _timed(data: bytes, kind: str, bad: int, *, whole: bool) -> Callable[[], float]:
    if whole:
        return partial(ingest, data, kind, bad)
    return partial(seconds_of, partial(decode, data, kind, bad))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--format", choices=["json", "csv", "parquet"])
    parser.add_argument("--share", type=int, default=1, help="bad rows in a hundred rows")
    parser.add_argument("--ingest", action="store_true")
    given = parser.parse_args()
    pa.set_cpu_count(1)
    table: list[Sequence[str]] = []
    for kind in ("json", "csv", "parquet"):
        if given.format not in (None, kind):
            continue
        works = works_of(kind, given.rows, given.share, whole=given.ingest)
        found = side_by_side(works, given.rounds)
        for fault, seconds in found.items():
            took = statistics.median(seconds)
            times = ratio(found["none"], seconds)
            table.append([kind, fault, f"{took:.2f}", f"{given.rows / took:,.0f}", f"{times:.2f}"])
    print(f"{given.rows:,} rows, {given.share} in a hundred bad; {given.rounds} rounds\n")
    print_table(["format", "fault", "seconds", "rows/s", "times none's"], table)


if __name__ == "__main__":
    main()
