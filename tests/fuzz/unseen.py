"""Changes that no reader can detect, because the changed bytes are valid; the docs list them too.

Each rule takes a complaint and the changes. The first line of its docstring is the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from fuzz.asking import BLIND, CHANGED, MISSING, Complaint
from fuzz.mutation import Mutation
from fuzz.specimens import Specimen
from tidelog.wal.format.gc_plan import GARBAGE, decode_garbage
from tidelog.wal.format.manifest import MANIFEST, decode_manifest
from tidelog.wal.format.paths import place_of
from tidelog.wal.logs import log_folder

Rule = Callable[[Complaint, Sequence[Mutation], Specimen], bool]

BOUNDS: Final = ("bounds", "describe", "append", "seal", "cursors")
# Only a checksum of tidelog's own covers these fields, and it is not a signature.
UNSIGNED: Final = (".streams", "tidelog.", "last_us", "streams", "controls")


def a_cursor(complaint: Complaint, done: Sequence[Mutation], specimen: Specimen) -> bool:
    """No other object has a cursor's position, or shows that the cursor exists."""
    told = complaint.step == "cursors" or complaint.step.startswith("collect")
    return told and any("/cursor/" in each.key for each in done)


def the_end_of_a_log(complaint: Complaint, done: Sequence[Mutation], specimen: Specimen) -> bool:
    """If the newest slots, named by no manifest, are lost, the log seems to end before them."""
    lost = [each for each in done if each.kind == "lost" and _is_ahead(each.key, specimen)]
    return bool(lost)


def a_signature(complaint: Complaint, done: Sequence[Mutation], specimen: Specimen) -> bool:
    """Epochs, seals, streams, times and lists of keys have a sum that any program can compute."""
    if complaint.kind == CHANGED and complaint.step.endswith(("scan", "fetch", "follow")):
        return False
    return any(
        each.is_summed and any(f"{name}" in each.told.split(":")[0] for name in UNSIGNED)
        for each in done
    )


def another_logs_manifest(
    complaint: Complaint, done: Sequence[Mutation], specimen: Specimen
) -> bool:
    """A manifest does not name its log; the first read of an object finds it missing."""
    moved = any(
        each.role == "manifest" and each.kind in ("swapped", "copied") and "MANIFEST" in each.told
        for each in done
    )
    return moved and complaint.step in BOUNDS


def an_empty_log(complaint: Complaint, done: Sequence[Mutation], specimen: Specimen) -> bool:
    """No other object has the beginning of a log in wal3's form without records."""
    truth = specimen.logs[complaint.log]
    return (
        truth.protocol == "manifest"
        and not truth.rows
        and any(each.role == "manifest" and "initial_" in each.told for each in done)
    )


def the_ends_of_fragments(
    complaint: Complaint, done: Sequence[Mutation], specimen: Specimen
) -> bool:
    """The newest fragment's limit, and the oldest's start if initial_offset is missing.

    A read of that fragment detects it; these calls read only the manifest.
    """
    return (
        complaint.kind == CHANGED
        and complaint.step in BOUNDS
        and complaint.step != "append"
        and specimen.logs[complaint.log].protocol == "manifest"
        and any(each.role == "manifest" and _is_of_an_end(each.told) for each in done)
    )


def an_orphan(complaint: Complaint, done: Sequence[Mutation], specimen: Specimen) -> bool:
    """No sum covers a fragment that a killed writer left; the next writer accepts it."""
    truth = specimen.logs[complaint.log]
    brought_in = len(truth.rows_when_grown) - len(truth.rows)
    orphans = [each for each in done if each.role == "fragment" and each.kind != "bytes"]
    return brought_in > 0 and complaint.step.startswith("append") and bool(orphans)


def a_pin_that_is_lost(complaint: Complaint, done: Sequence[Mutation], specimen: Specimen) -> bool:
    """No other object shows that a pin exists."""
    lost = any(each.role == "pin" and each.kind == "lost" for each in done)
    return lost and ("pin" in complaint.step or "no pin of that name" in complaint.told)


def what_a_plan_erases(complaint: Complaint, done: Sequence[Mutation], specimen: Specimen) -> bool:
    """Records that a plan erases may be deleted already, so a rebuild may leave them out."""
    folder = log_folder(complaint.log)
    if complaint.step != "rebuild" or f"{folder}/{GARBAGE}" not in specimen.objects:
        return False
    plan = decode_garbage(specimen.objects[f"{folder}/{GARBAGE}"])
    places = [place_of(each.key.removeprefix(f"{folder}/")) for each in done]
    numbers = range(plan.fragments_start, plan.fragments_limit)
    return any(place is not None and place.slot in numbers for place in places)


RULES: Final[tuple[Rule, ...]] = (
    a_cursor,
    an_orphan,
    a_pin_that_is_lost,
    the_end_of_a_log,
    a_signature,
    another_logs_manifest,
    an_empty_log,
    the_ends_of_fragments,
    what_a_plan_erases,
)


def reason_of(complaint: Complaint, done: Sequence[Mutation], specimen: Specimen) -> str:
    """Return the reason why a complaint does not count, or an empty text if it counts."""
    for rule in RULES:
        if complaint.kind in (CHANGED, MISSING, BLIND) and rule(complaint, done, specimen):
            return (rule.__doc__ or "").partition("\n")[0]
    return ""


def _is_ahead(key: str, specimen: Specimen) -> bool:
    """Return True if an object has a slot that its log's manifest has not reached."""
    _, name, within = (*key.split("/", 2), "", "")[:3]
    place = place_of(within)
    if place is None or name not in specimen.logs:
        return False
    manifest = decode_manifest(specimen.objects[f"{log_folder(name)}/{MANIFEST}"])
    return place.slot >= manifest.next_seq_no


def _is_of_an_end(told: str) -> bool:
    """Return True if a change was to the start or limit of a fragment or a pointer."""
    return "limit.offset" in told or "0.start.offset" in told
