"""Options for the settings of keyed logs: the sealing and the retention of segments."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog.cli.output import bytes_text
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.keyed.values import Retention, Sealing

NONE: Final = "none"
SEAL_BYTES_MIN: Final = 65_536  # Less is a typing error, such as 256 for 256MiB. Python may set it.

SealBytes = Annotated[
    str | None,
    typer.Option(metavar="BYTES|none", help="Seal a segment at this size, such as 256MiB."),
]
SealAge = Annotated[
    str | None,
    typer.Option(metavar="DURATION|none", help="Seal a segment at this age, such as 1h."),
]
RetainAge = Annotated[
    str | None,
    typer.Option(metavar="DURATION|none", help="Keep the segments younger than this, such as 30d."),
]
RetainBytes = Annotated[
    str | None,
    typer.Option(metavar="BYTES|none", help="Keep the newest segments, up to this size in all."),
]
RetainSegments = Annotated[
    str | None, typer.Option(metavar="N|none", help="Keep the newest N segments.")
]


def sealing_of(known: Sealing, seal_bytes: str | None, seal_age: str | None) -> Sealing:
    """Return the sealing with the changes that the options make.

    Raises:
        UsageError: a value is not a size or a duration.
    """
    if seal_bytes is not None:
        known = replace(known, bytes=_seal_bytes(seal_bytes))
    if seal_age is not None:
        known = replace(known, age_us=_age_us(seal_age, "--seal-age"))
    return known


def retention_of(
    known: Retention, age: str | None, size: str | None, segments: str | None
) -> Retention:
    """Return the retention with the changes that the options make.

    Raises:
        UsageError: a value is not a duration, a size or a number.
    """
    if age is not None:
        known = replace(known, age_us=_age_us(age, "--retain-age"))
    if size is not None:
        known = replace(known, bytes=_size(size, "--retain-bytes"))
    if segments is not None:
        known = replace(known, segments=_whole(segments, "--retain-segments"))
    return known


def _seal_bytes(text: str) -> int | None:
    found = _size(text, "--seal-bytes")
    if found is not None and found < SEAL_BYTES_MIN:
        raise UsageError(
            f"--seal-bytes must be 64KiB or more, such as 256MiB, not {text[:200]!r}: each segment "
            "would have only a few records"
        )
    return found


def _size(text: str, what: str) -> int | None:
    from tidelog.cli.ingest import parse_size

    return None if text == NONE else parse_size(text, what)


def _age_us(text: str, what: str) -> int | None:
    from tidelog.collection.formats.times import parse_duration_ms

    if text == NONE:
        return None
    found = parse_duration_ms(text, what=what) * 1_000
    if found < 1:
        raise UsageError(f"{what} {text!r} is not a duration: write 1h, or none")
    return found


def _whole(text: str, what: str) -> int | None:
    if text == NONE:
        return None
    if not text.isascii() or not text.isdigit() or not 0 < len(text) < 10 or not int(text):
        raise UsageError(f"{what} {text[:200]!r} must be 1 or more: write 5, or none")
    return int(text)


def sealing_text(sealing: Sealing) -> str:
    """Return the sealing as text, such as ``at 268 MB or at an age of 1h``."""
    told = []
    if sealing.bytes is not None:
        told.append(f"at {bytes_text(sealing.bytes)}")
    if sealing.age_us is not None:
        told.append(f"at an age of {_age_text(sealing.age_us)}")
    return " or ".join(told) or "only by 'tidelog keyed seal'"


def retention_text(retention: Retention) -> str:
    """Return the retention as text, such as ``the last 30d; the newest 1 GB``."""
    told = []
    if retention.age_us is not None:
        told.append(f"the last {_age_text(retention.age_us)}")
    if retention.bytes is not None:
        told.append(f"the newest {bytes_text(retention.bytes)}")
    if retention.segments is not None:
        told.append(f"the newest {retention.segments} segments")
    return "; ".join(told) or "everything"


def _age_text(age_us: int) -> str:
    from tidelog.collection.formats.times import duration_text

    return duration_text(age_us // 1_000) if age_us % 1_000 == 0 else f"{age_us} us"
