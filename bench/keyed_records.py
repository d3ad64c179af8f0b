"""The records of the keyed benchmarks: evenly spread over the keys, or mostly of a few keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

VALUE_BYTES = 200


@dataclass(frozen=True)
class MadeRecords:
    """Keys of 12 bytes and values that look like JSON, in the order of arrival."""

    keys: list[bytes]
    values: list[bytes]

    @property
    def table(self) -> pa.Table:
        columns = [pa.array(self.keys, pa.binary()), pa.array(self.values, pa.binary())]
        return pa.table(columns, ["key", "value"])

    @property
    def pairs(self) -> list[tuple[bytes, bytes]]:
        return list(zip(self.keys, self.values, strict=True))


def made_records(count: int, keys: int, *, is_skewed: bool, seed: int = 7) -> MadeRecords:
    """Return records with keys in a random order; if skewed, lower keys are more frequent."""
    dice = np.random.default_rng(seed)
    if is_skewed:
        drawn = np.minimum((keys * dice.random(count) ** 3).astype(np.int64), keys - 1)
    else:
        drawn = dice.permutation(np.arange(count) % keys)
    names = [f"key-{number:08d}".encode() for number in range(keys)]
    noise = dice.integers(0, 2**63, size=count).tolist()
    pad = "x" * (VALUE_BYTES - 80)
    values = [
        f'{{"n":{n:08d},"noise":"{noise[n]:019d}","at":{1_700_000_000 + n},"pad":"{pad}"}}'.encode()
        for n in range(count)
    ]
    return MadeRecords([names[n] for n in drawn.tolist()], values)
