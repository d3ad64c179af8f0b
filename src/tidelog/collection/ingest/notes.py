"""Notes: reports about files that stay until the user acknowledges them.

Shape: ``status/<source id>.notes.json``: for each path, the newest report about its file.
    Damaged bytes read as one report, under the key of the object, which later reports keep.
Invariants: a note is stored before the rows that it is about are bound, so a kill loses none. Two
    ingesters may store notes at once: each replaces only the version that it read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from tidelog.collection.ingest.health import STATUS
from tidelog.errors import ContentionError, ObjectChanged, ObjectExists, ObjectNotFound, UsageError
from tidelog.store.port import Store

NOTES_MAX: Final = 1_000
_TRIES: Final = 20
_Notes = dict[str, str]


def notes_path(source_id: str) -> str:
    """Return the key of the object with a source's notes."""
    return f"{STATUS}{source_id}.notes.json"


async def load_notes(store: Store, source_id: str) -> Mapping[str, str]:
    """Return the notes of a source, by the path of the file.

    Raises:
        LocationError: the store failed.
    """
    return (await _load(store, source_id))[0]


async def add_notes(store: Store, source_id: str, new: Mapping[str, str]) -> None:
    """Store notes; a path keeps its newest one, and a source its newest `NOTES_MAX`.

    Raises:
        ContentionError: other ingesters replaced the notes at every try. LocationError: the store
            failed.
    """

    def added(before: _Notes) -> _Notes:
        others = {path: note for path, note in before.items() if path not in new}
        return dict([*others.items(), *new.items()][-NOTES_MAX:])

    await _change(store, source_id, added)


async def acknowledge(store: Store, source_id: str, paths: Collection[str]) -> Collection[str]:
    """Remove the notes of some paths, and without a path all notes; return the paths removed.

    Raises:
        UsageError: a path has no note. ContentionError, LocationError: see `add_notes`.
    """
    known = await load_notes(store, source_id)
    missing = [path for path in paths if path not in known]
    if missing:
        raise UsageError(
            f"no report about the file {missing[0]!r}: 'tidelog source status' lists the reports"
        )
    gone = set(paths or known)

    def left(before: _Notes) -> _Notes:
        return {path: note for path, note in before.items() if path not in gone}

    await _change(store, source_id, left)
    return gone


async def _change(store: Store, source_id: str, decide: Callable[[_Notes], _Notes]) -> None:
    """Replace the notes by the result of ``decide``.

    If the answer to a put is lost, the next try reads the notes as wanted and writes nothing. So a
    conditional put that meets its own write does no harm.
    """
    for _ in range(_TRIES):
        before, e_tag = await _load(store, source_id)
        after = decide(before)
        if after == before:
            return
        try:
            await store.put(
                notes_path(source_id),
                msgspec.json.encode(after),
                if_absent=e_tag is None,
                if_match=e_tag,
            )
        except (ObjectChanged, ObjectExists):
            continue
        return
    raise ContentionError(
        f"gave up after {_TRIES} tries: other ingesters kept replacing the reports; try again",
        source=source_id,
    )


async def _load(store: Store, source_id: str) -> tuple[_Notes, str | None]:
    try:
        found = await store.get(notes_path(source_id))
    except ObjectNotFound:
        return {}, None
    try:
        return msgspec.json.decode(found.data, type=_Notes), found.e_tag
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return {notes_path(source_id): _damage(error)}, found.e_tag


def _damage(error: Exception) -> str:
    return (
        f"the stored reports about files are damaged ({error}), and may have named lost rows: "
        "compare the source with the collection, then remove this report with 'tidelog source "
        "acknowledge'"
    )
