"""The speed of `hash_rows` on one core, and of its alternatives.

The program prints a line for the schema of flights, and one for each of its columns. It then prints
the ways to hash distinct strings: tidelog's, one call of xxhash per value, and dictionaries first.
Each runs in numpy and in compiled functions, so numba must be installed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import xxhash

from figures import print_table
from tidelog.rowhash import compiled, hash_rows, hash_rows_with_time, weighted_sum, xxh3
from tidelog.rowhash.columns import Kernel, _KernelChoice

KERNELS: tuple[Kernel, ...] = (xxh3, compiled)


def distinct_strings(rng: np.random.Generator, rows: int, shortest: int, longest: int) -> Any:
    """Return strings of random letters, with evenly spread lengths."""
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(rng.integers(shortest, longest + 1, rows), out=offsets[1:])
    letters = rng.integers(97, 123, int(offsets[-1]), dtype=np.uint8)
    return pa.StringArray.from_buffers(
        rows, pa.py_buffer(offsets.tobytes()), pa.py_buffer(letters.tobytes())
    )


def flights_like(rng: np.random.Generator, rows: int) -> dict[str, Any]:
    """Return columns of the kinds for which the aim is 3 million rows a second."""
    numbers = pa.array(rng.integers(0, 2**40, rows))
    carriers = pa.array(["AA", "B6", "DL", "EV", "UA", None])
    return {
        "few strings": carriers.take(rng.integers(0, 6, rows)),
        "int64": numbers,
        "date32": pa.array(rng.integers(0, 20_000, rows).astype(np.int32)).view(pa.date32()),
        "strings of 8-20": distinct_strings(rng, rows, 8, 20),
        "double": pa.array(rng.random(rows)),
        "timestamp": numbers.view(pa.timestamp("us")),
    }


def others(rng: np.random.Generator, rows: int) -> dict[str, Any]:
    """Return columns of kinds without an aim."""
    unscaled: Any = pa.array(rng.integers(-(10**12), 10**12, rows))
    texts = distinct_strings(rng, rows, 0, 12)
    return {
        "strings of 0-12": texts,
        "strings of 30-60": distinct_strings(rng, rows, 30, 60),
        "strings of 100-200": distinct_strings(rng, rows // 4, 100, 200),
        "strings of 500": distinct_strings(rng, rows // 16, 500, 500),
        "decimal(21, 2)": unscaled.cast(pa.decimal128(21, 2)),
        "list of 4 int64": pa.FixedSizeListArray.from_arrays(unscaled, 4).cast(
            pa.list_(pa.int64())
        ),
        "struct of 2": pa.StructArray.from_arrays([unscaled, texts], ["a", "b"]),
    }


def library_calls(strings: Any) -> None:
    """Hash without numpy: XXH3 of 128 bits, one call per value."""
    values = strings.cast(pa.binary()).to_pylist()
    np.frombuffer(b"".join(map(xxhash.xxh3_128_digest, values)), "<u8")


def report(what: str, rows: int, work: Callable[[], object]) -> list[str]:
    """Return a line: million rows a second by numpy, by compiled functions, and their ratio."""
    slow, quick = (rows / best_of_five(kernel, work) / 1e6 for kernel in KERNELS)
    return [what, f"{slow:.2f}", f"{quick:.2f}", f"{quick / slow:.2f}"]


def best_of_five(kernel: Kernel, work: Callable[[], object]) -> float:
    """Return the least seconds of five runs of the work with this kernel."""
    best = float("inf")
    with patch.multiple(_KernelChoice, kernel=kernel, left=0):
        for _ in range(5):
            begun = time.perf_counter()
            work()
            best = min(best, time.perf_counter() - begun)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1 << 20)
    rows: int = parser.parse_args().rows
    rng = np.random.default_rng(1)
    columns = flights_like(rng, rows)
    lines = [report("flights-like row", rows, lambda: hash_rows(list(columns.values()), rows=rows))]
    for name, column in (columns | others(rng, rows)).items():
        lines.append(
            report(name, len(column), partial(hash_rows, [column], rows=len(column))),
        )
    strings = columns["strings of 8-20"]
    lines.append(report("8-20, library calls", rows, lambda: library_calls(strings)))
    lines.append(report("8-20, dictionary alone", rows, strings.dictionary_encode))
    hashes, times = hash_rows([strings], rows=rows), np.arange(rows)
    lines.append(report("mix in the time", rows, lambda: hash_rows_with_time(hashes, times)))
    lines.append(report("weighted sum", rows, lambda: weighted_sum(hashes, times)))
    print_table(["million rows/s", "numpy", "compiled", "ratio"], lines)


if __name__ == "__main__":
    main()
