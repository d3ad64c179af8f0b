"""What one bad row in a hundred costs: decoding, by format and kind of fault, on one core.

python bench/bad_rows.py [--rows N] [--rounds N] [--format json|csv|parquet]
"""

from __future__ import annotations

import argparse
import io
import statistics
from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from figures import print_table, ratio, seconds_of, side_by_side
from tidelog.collection.binding import SourceRange
from tidelog.collection.decode import decode_range
from tidelog.collection.decode_parquet import group_span, pack_range, read_footer

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
}
BAD_CSV = {
    "too few fields": "{n},x",
    "an open quote": '{n},"x,2024-01-02T03:04:05Z,1.25,true,2024-01-02,x',
    "a type": "x{n},user-{n},2024-01-02T03:04:05Z,1.25,true,2024-01-02,x",
    "an amount": "{n},user-{n},2024-01-02T03:04:05Z,1.255,true,2024-01-02,x",
}


def text(good: str, bad: str | None, rows: int) -> bytes:
    """Return records of which one in a hundred is bad, if any is."""
    pattern = [good] * 100 if bad is None else [*[good] * 50, bad, *[good] * 49]
    return "".join(pattern[n % 100].format(n=n, m=n % 1_000) + "\n" for n in range(rows)).encode()


def parquet(bad: bool, rows: int) -> bytes:
    """Return a range of amounts, of which one in a hundred has a digit too many."""
    amounts = [1.255 if bad and n % 100 == 50 else 1.25 for n in range(rows)]
    table = pa.table(
        {
            "id": pa.array([n + (n % 100 == 50) / 2 * bad for n in range(rows)], pa.float64()),
            "user": [f"user-{n}" for n in range(rows)],
            "amount": pa.array(amounts, pa.float64()).cast(pa.decimal128(12, 4)),
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink)
    file = sink.getvalue()
    footer = file[-int.from_bytes(file[-8:-4], "little") - 8 :]
    first, last = group_span(read_footer(footer), 0, read_footer(footer).num_row_groups)
    return pack_range(footer, file[first:last])


def decode(data: bytes, format: str, bad: int) -> None:
    groups = read_footer(data[8 : 8 + int.from_bytes(data[:8], "little")]).num_row_groups
    limit = groups if format == "parquet" else len(data)
    found = SourceRange(path="p", start=0, limit=limit, sum=b"", head=b"", head_bytes=0)
    assert decode_range(data, found, WANTED, format=format).errors.num_rows == bad


def decode_text(data: bytes, format: str, bad: int) -> None:
    start = 1_000
    found = SourceRange(
        path="p", start=start, limit=start, sum=b"", head=b"", head_bytes=0, header=HEADER
    )
    assert decode_range(data, found, WANTED, format=format).errors.num_rows == bad


def works_of(rows: int) -> dict[str, dict[str, Callable[[], float]]]:
    """Return by format and fault what is timed; the fault of none comes first."""

    def timed(data: bytes, format: str, bad: int) -> Callable[[], float]:
        work = decode if format == "parquet" else decode_text
        return partial(seconds_of, partial(work, data, format, bad))

    found: dict[str, dict[str, Callable[[], float]]] = {}
    for kind, good, faults in (("json", JSON, BAD_JSON), ("csv", CSV, BAD_CSV)):
        found[kind] = {"none": timed(text(good, None, rows), kind, 0)} | {
            name: timed(text(good, bad, rows), kind, rows // 100) for name, bad in faults.items()
        }
    found["parquet"] = {
        "none": timed(parquet(False, rows), "parquet", 0),
        "numbers": timed(parquet(True, rows), "parquet", rows // 100),
    }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--format", choices=["json", "csv", "parquet"])
    given = parser.parse_args()
    pa.set_cpu_count(1)
    table: list[Sequence[str]] = []
    for kind, works in works_of(given.rows).items():
        if given.format not in (None, kind):
            continue
        found = side_by_side(works, given.rounds)
        for fault, seconds in found.items():
            took = statistics.median(seconds)
            times = ratio(found["none"], seconds)
            table.append([kind, fault, f"{took:.2f}", f"{given.rows / took:,.0f}", f"{times:.2f}"])
    print(f"{given.rows:,} rows, one in a hundred bad; {given.rounds} rounds\n")
    print_table(["format", "fault", "seconds", "rows/s", "times none's"], table)


if __name__ == "__main__":
    main()
