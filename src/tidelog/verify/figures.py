"""The counts and times of a verification, in constant memory. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

# Steps of 10 %, from 1 us up to some hours.
_STEP: Final = 1.1
_STEPS: Final = 256


@dataclass(slots=True)
class Lags:
    """A histogram of durations with logarithmic steps; a quantile is accurate to about 10 %."""

    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(_STEPS, dtype=np.int64))

    def note(self, durations_us: npt.NDArray[np.int64]) -> None:
        steps = np.log(np.maximum(durations_us, 1)) / np.log(_STEP)
        places = np.clip(np.ceil(steps).astype(np.int64), 0, _STEPS - 1)
        self.counts += np.bincount(places, minlength=_STEPS)

    def quantile_us(self, share: float) -> int | None:
        """Return the duration that ``share`` of all durations do not exceed; None if empty."""
        total = int(self.counts.sum())
        if not total:
            return None
        place = int(np.searchsorted(np.cumsum(self.counts), share * total))
        return round(_STEP ** min(place, _STEPS - 1))


@dataclass(slots=True)
class Figures:
    """The work done so far.

    ``refused`` counts appends that ended as NOT_APPLIED, ``unknown`` those with an unknown outcome.
    ``resumed_at`` is the position from which an earlier run was replayed.
    """

    seconds: float = 0.0
    appends: int = 0
    records: int = 0
    bytes: int = 0
    reads: int = 0
    records_read: int = 0
    replays: int = 0
    takeovers: int = 0
    refused: int = 0
    unknown: int = 0
    collections: int = 0
    collected: int = 0
    resumed_at: int | None = None
    lags: Lags = field(default_factory=Lags)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; a lag is the time from a record's timestamp to its read."""
        names = [name for name in self.__dataclass_fields__ if name not in ("lags", "seconds")]
        rate = self.records / self.seconds if self.seconds else 0.0
        return {
            "seconds": round(self.seconds, 1),
            **{name: getattr(self, name) for name in names},
            "records_per_second": round(rate),
            "lag_p50_us": self.lags.quantile_us(0.5),
            "lag_p99_us": self.lags.quantile_us(0.99),
        }
