"""Damaged logs: a scrub reports changed, cut and lost objects. No read returns changed records."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kit.damage import Bytes, flip, look, swapped
from kit.goldens import objects
from tidelog.core.clock import SystemClock
from tidelog.errors import CorruptionError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Object
from tidelog.wal.format.manifest import MANIFEST, decode_manifest
from tidelog.wal.format.snapshot import decode_snapshot
from tidelog.wal.manifest_protocol.reader import Wal3Reader
from tidelog.wal.scrub.tree_scrub import scrub

# A log of a manifest and a fragment, and one with snapshots, cursors and a collection plan.
TINY, TREE = "a_tiny", "c1_gc_phase1"
STRIDE = 3  # Every third byte of a fragment is changed; tests/fuzz changes others.


def reader_over(log: Bytes) -> Wal3Reader:
    """Return a reader of a log in memory."""
    objects = {key: Object(data, f"m{n}", n) for n, (key, data) in enumerate(log.items())}
    return Wal3Reader(store=MemoryStore(objects=objects), clock=SystemClock())


def meaning(key: str, data: bytes) -> Any:
    """Return an object's content, without the last writer that a manifest alone names."""
    if key != MANIFEST:
        return data
    found = decode_manifest(data)
    return {name: getattr(found, name) for name in found.__dataclass_fields__ if name != "writer"}


def test_every_bit_of_a_small_log_counts() -> None:
    """A scrub reports a flipped bit or it has no meaning; no read returns a changed record."""
    log = objects(TINY)
    whole = look(log).rows
    silent: dict[str, set[int]] = {}
    for key, data in log.items():
        for place in range(0, len(data), 1 if key == MANIFEST else STRIDE):
            seen = look({**log, key: flip(data, place)})
            assert seen.rows in (None, whole), f"{key} at {place} is read as something else"
            if not seen.problems:
                silent.setdefault(key, set()).add(place)

    manifest = log[MANIFEST]
    for place in silent.pop(MANIFEST, set()):
        assert meaning(MANIFEST, flip(manifest, place)) == meaning(MANIFEST, manifest), place
    (fragment,) = (key for key in log if key != MANIFEST)
    # Parquet's own metadata that its reader ignores, such as names of writers and statistics.
    assert len(silent.pop(fragment, set())) < len(log[fragment]) / STRIDE / 2
    assert not silent


@pytest.mark.parametrize("kind", ["lost", "cut", "empty", "doubled"])
@pytest.mark.parametrize("name", [TINY, TREE])
def test_every_object_that_is_lost_or_cut_is_told(name: str, kind: str) -> None:
    """A scrub reports lost, cut, empty and doubled objects, except cursors, plans, unnamed."""
    log = objects(name)
    unnamed = set(look(log).unnamed)
    for key, data in log.items():
        changed = {**log}
        match kind:
            case "lost":
                del changed[key]
            case "cut":
                changed[key] = data[: len(data) // 2]
            case "empty":
                changed[key] = b""
            case _:
                changed[key] = data + data
        optional = kind == "lost" and key.split("/")[0] in ("cursor", "gc")
        assert bool(look(changed).problems) != (optional or key in unnamed), (key, kind)


def test_fragments_and_snapshots_that_changed_places_are_told() -> None:
    """A scrub reports exchanged fragments or snapshots, although each is valid by itself."""
    log = objects(TREE)
    for folder in ("log/", "snapshot/"):
        one, other = sorted(key for key in log if key.startswith(folder))[:2]
        seen = look(swapped(log, one, other))

        assert len(seen.problems) >= 2
        assert seen.rows is None


def test_everything_wrong_is_told_at_once() -> None:
    """A scrub reports all problems at once, because a repair needs the whole list."""
    log = objects("b_snapshots")
    fragments = sorted(key for key in log if key.startswith("log/"))
    changed = {**log}
    del changed[fragments[0]]
    changed[fragments[5]] = log[fragments[5]][:-1]
    changed[fragments[9]] = flip(log[fragments[9]], 4)

    found = asyncio.run(scrub(reader_over(changed)))

    paths = {problem.path for problem in found.problems}
    assert {fragments[0], fragments[5], fragments[9]} <= paths
    assert found.fragments == len(fragments) - 1


def test_a_snapshot_that_points_at_itself_ends_a_read() -> None:
    """A read ends at a snapshot that points at itself. wal3's own reader would loop."""
    log = objects("b_snapshots")
    manifest = decode_manifest(log[MANIFEST])
    pointer = manifest.snapshots[0]
    looped = log[pointer.path].replace(
        b'"snapshots":[', b'"snapshots":[' + _pointer_json(log[MANIFEST]) + b","
    )

    assert look({**log, pointer.path: looped}).problems
    with pytest.raises(CorruptionError):
        asyncio.run(reader_over({**log, pointer.path: looped}).fragments())


def test_a_snapshot_in_place_of_one_that_it_names_is_told() -> None:
    """A scrub that meets a snapshot in place of one below it reports it and ends."""
    log = objects("b_snapshots")
    above = decode_manifest(log[MANIFEST]).snapshots[0].path
    below = next(pointer.path for pointer in decode_snapshot(log[above], where=above).snapshots)
    seen = look({**log, below: log[above]})

    assert below in [problem.path for problem in seen.problems]
    assert seen.rows is None


def _pointer_json(manifest: bytes) -> bytes:
    start = manifest.index(b'"snapshots":[') + len(b'"snapshots":[')
    return manifest[start : manifest.index(b'"num_bytes"', start)] + b'"num_bytes":1}'
