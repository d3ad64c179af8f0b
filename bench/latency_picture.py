"""The picture of append latencies: one row per load, as wide as the share of each latency.

It needs matplotlib, which is in the extra ``bench``. The benchmark itself does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from figures import percentile

BIN_MS: Final = 10
SEED: Final = (("p50", 270), ("p99", 330), ("max", 360))  # As the draft of wal3 claims.
INK, PALE, SEED_INK = "#1f4e79", "#9dc3e6", "#b45f06"


def draw_latencies(loads: Sequence[tuple[str, Sequence[float]]], path: Path) -> None:
    """Draw the frequency of each latency, one load below the other, over one axis.

    Units: seconds in, milliseconds drawn.
    """
    from matplotlib.figure import Figure

    most = max(max(waits) for _, waits in loads) * 1_000
    limit = max(most, SEED[-1][1]) + 4 * BIN_MS
    edges = np.arange(0, limit + BIN_MS, BIN_MS)
    figure = Figure(figsize=(9, 1.5 * len(loads) + 0.9), layout="constrained")
    axes = figure.subplots(len(loads), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (name, waits) in zip(axes, loads, strict=True):
        ms = np.array(waits) * 1_000
        shares, _ = np.histogram(ms, edges)
        axis.bar(edges[:-1], shares / len(ms), width=BIN_MS, align="edge", color=PALE)
        for share, label in ((0.5, "p50"), (0.99, "p99"), (1.0, "max")):
            at = percentile(waits, share) * 1_000
            axis.axvline(at, color=INK, linewidth=1)
            axis.annotate(
                f"{label} {at:.0f}",
                (at, 1),
                xycoords=("data", "axes fraction"),
                xytext=(3, -9 - 11 * ("p50", "p99", "max").index(label)),
                textcoords="offset points",
                fontsize=8,
                color=INK,
            )
        for label, at in SEED:
            axis.axvline(at, color=SEED_INK, linewidth=1, linestyle=":")
            if axis is axes[0]:
                axis.annotate(
                    f"draft's {label} {at}",
                    (at, 1),
                    xycoords=("data", "axes fraction"),
                    xytext=(0, 3),
                    textcoords="offset points",
                    rotation=30,
                    fontsize=8,
                    color=SEED_INK,
                )
        axis.set_title(name, fontsize=9, loc="left")
        axis.set_yticks([])
        axis.spines[["top", "right", "left"]].set_visible(False)
    axes[-1].set_xlabel("milliseconds from when an append was due until it was acknowledged")
    figure.savefig(path, dpi=110)
