"""``tidelog keyed create``, ``configure``, ``retain`` and ``retire``: sealing and retention."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog.cli.command import AsJson, Yes, ask_first, on_location
from tidelog.cli.keyed.arguments import KeyedName, check_keyed, closing, on_writer
from tidelog.cli.output import bytes_text, count_text, show
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.keyed.log import KeyedLog
    from tidelog.keyed.values import KeyedInfo, Retention, Sealing
    from tidelog.location import Location

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


def create(
    context: typer.Context,
    name: KeyedName,
    *,
    seal_bytes: SealBytes = None,
    seal_age: SealAge = None,
    retain_age: RetainAge = None,
    retain_bytes: RetainBytes = None,
    retain_segments: RetainSegments = None,
    as_json: AsJson = False,
) -> None:
    """Create a keyed log, and the location if it does not exist.

    A segment is sealed at --seal-bytes or --seal-age, whichever comes first. Retention drops a
    sealed segment if it exceeds any --retain limit. It never drops an unsealed one, so --retain-age
    needs a --seal-age of at most that age.
    """
    from tidelog.keyed.values import Retention, Sealing

    check_keyed(name)
    sealing = sealing_of(Sealing(), seal_bytes, seal_age)
    retention = retention_of(Retention(), retain_age, retain_bytes, retain_segments)

    async def work(location: Location) -> KeyedInfo:
        made = await location.keyed.create(name, sealing=sealing, retention=retention)
        async with closing(made) as log:
            return await log.describe()

    found = on_location(context, work, create=True)
    show(
        asdict(found),
        f"Created the keyed log {name!r}. Append to it: tidelog keyed append {name} < JSON",
        as_json=as_json,
    )


def configure(
    context: typer.Context,
    name: KeyedName,
    *,
    seal_bytes: SealBytes = None,
    seal_age: SealAge = None,
    as_json: AsJson = False,
) -> None:
    """Set when segments are sealed.

    The setting applies to all writers. An option that is left out keeps its value; 'none' removes a
    limit. 'tidelog keyed retain' sets the retention.
    """
    from tidelog.keyed.values import Sealing

    if seal_bytes is None and seal_age is None:
        raise UsageError("no setting given: pass at least one --seal-... option")
    sealing_of(Sealing(), seal_bytes, seal_age)  # Invalid values fail here, before any I/O.

    async def work(log: KeyedLog) -> Sealing:
        sealing = sealing_of((await log.describe()).sealing, seal_bytes, seal_age)
        await log.configure(sealing)
        return sealing

    found = on_writer(context, name, work)
    show(
        {"log": name, "sealing": asdict(found)},
        f"{name!r}: segments are sealed {sealing_text(found)}",
        as_json=as_json,
    )


def retain(
    context: typer.Context,
    name: KeyedName,
    *,
    retain_age: RetainAge = None,
    retain_bytes: RetainBytes = None,
    retain_segments: RetainSegments = None,
    as_json: AsJson = False,
) -> None:
    """Set how much history a keyed log keeps; the active segment always stays.

    The log drops a sealed segment if it exceeds any of the limits. It never drops an unsealed one,
    so --retain-age needs a --seal-age of at most that age: see 'tidelog keyed configure'. 'tidelog
    keyed retire' and each writer apply the setting. An omitted option keeps its
    value; 'none' removes a limit.
    """
    from tidelog.keyed.values import Retention

    given = (retain_age, retain_bytes, retain_segments)
    if not any(one is not None for one in given):
        raise UsageError("no setting given: pass at least one --retain-... option")
    retention_of(Retention(), *given)  # Invalid values fail here, before any I/O.

    async def work(log: KeyedLog) -> Retention:
        retention = retention_of((await log.describe()).retention, *given)
        await log.retain(retention)
        return retention

    found = on_writer(context, name, work)
    show(
        {"log": name, "retention": asdict(found)},
        f"{name!r} keeps {retention_text(found)}",
        as_json=as_json,
    )


def retire(
    context: typer.Context,
    name: KeyedName,
    *,
    retain_age: RetainAge = None,
    retain_bytes: RetainBytes = None,
    retain_segments: RetainSegments = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Drop the segments that the retention does not keep, for good.

    The active segment stays. 'tidelog keyed retain' sets the retention; options given here apply
    to this run only.
    """
    from tidelog.keyed.values import Retention

    retention = retention_of(Retention(), retain_age, retain_bytes, retain_segments)
    if retention.is_set and not yes:
        ask_first(
            lambda: f"Keep {retention_text(retention)} of {name!r}, and drop the rest, for good?",
            deed="drop segments",
        )

    async def work(log: KeyedLog) -> tuple[int, int]:
        if not retention.is_set and not (await log.describe()).retention.is_set:
            raise UsageError(
                f"the keyed log {name!r} has no retention: set one here, or with "
                "'tidelog keyed retain'"
            )
        gone = await log.retire(retention if retention.is_set else None)
        return gone, (await log.describe()).oldest

    gone, oldest = on_writer(context, name, work)
    told = (
        f"{count_text(gone, 'segment')} dropped; the oldest sequence is {oldest:,}. To delete "
        f"their records: tidelog keyed collect {name}"
    )
    show({"log": name, "retired": gone, "oldest": oldest}, told, as_json=as_json)


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
