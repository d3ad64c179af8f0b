"""Slot objects of an earlier version, for comparison with those of the present version.

This program made tests/golden/slots, which later versions of tidelog must read unchanged. From the
root of the repository:

    python -m kit.golden_slots tests/golden/slots
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidelog.wal.format.epoch_chain import Chain
from tidelog.wal.format.link import DataLink, Epoch
from tidelog.wal.format.manifest import Manifest, tail_of
from tidelog.wal.format.slot_object import encode_data, place_slot_records
from tidelog.wal.format.streams import OPEN, Control, encode_control

STREAMS: Final[list[bytes | None]] = [b"", b"stream", None, b"stream", *[None] * 96]
KEYS: Final[dict[str, list[bytes | None]]] = {
    "keyless": [None] * 100,
    "listed": [None, b"", b"a", b"\xff\x00", *[b"a"] * 96],
    "filtered": [None, b"", *[b"key-%d" % n for n in range(98)]],
    "repeated": [None, *[b"key-%d" % (n % 20) for n in range(99)]],
}


# An empty log.
GENESIS: Final = Epoch(number=0, id="0" * 16, first_slot=1, opener="maker")
EMPTY: Final = Manifest(writer="w", chain=Chain(epochs=(GENESIS,)))
TAIL: Final = tail_of(EMPTY)


def records_of(name: str) -> pa.Table:
    """Return the records of one of the objects."""
    opening = encode_control(Control(op=OPEN, stream=b"stream"))
    keys: list[bytes | None] = KEYS[name]
    given: dict[str, Any] = {}
    if any(key is not None for key in keys):
        given["keys"] = pa.array(keys, pa.binary())
    return place_slot_records(
        pa.array([opening, *[b"body %d" % (n * n) for n in range(99)]], pa.binary()),
        start=1,
        times=np.arange(100, dtype=np.int64) * 1_000 + 1_700_000_000_000_000,
        streams=pa.array(STREAMS, pa.binary()),
        **given,
    )


def encoded(name: str) -> tuple[DataLink, bytes]:
    """Return the link and the bytes of one of the objects."""
    return encode_data(records_of(name), TAIL, writer="w")


def main(folder: Path) -> None:
    """Write the objects that do not exist yet."""
    for name in KEYS:
        path = folder / f"{name}.parquet"
        if not path.exists():
            path.write_bytes(encoded(name)[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
