"""Appends and rollovers produce the manifests that Chroma's own writer left."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.goldens import expected, objects
from tidelog.core.setsum import Setsum
from tidelog.errors import CorruptionError, UsageError
from tidelog.wal.format.fragment import Fragment, fragment_path
from tidelog.wal.format.manifest import (
    MANIFEST,
    Manifest,
    decode_manifest,
    encode_manifest,
    problems_of_manifest,
)
from tidelog.wal.format.manifest_update import Rollover, add_fragment, check_manifest, roll_over
from tidelog.wal.format.snapshot import encode_snapshot


@pytest.mark.parametrize("name", ["a_tiny", "b_snapshots", "c0_before_gc", "g1_orphan_recovered"])
def test_the_same_appends_leave_the_same_bytes(name: str) -> None:
    """The same appends leave the same bytes as Chroma's writer, with its thresholds."""
    log, told = objects(name), expected(name)
    options = told["writer_options"]["snapshot_manifest"]
    rollover = Rollover(
        fragments=options["fragment_rollover_threshold"],
        snapshots=options["snapshot_rollover_threshold"],
    )
    writer = told["manifest_writer"]
    manifest = Manifest(writer="init")
    stored: dict[str, bytes] = {}
    for entry in told["fragment_list"]:
        fragment = Fragment(
            path=entry["path"],
            seq_no=entry["seq_no"],
            start=entry["start"],
            limit=entry["limit"],
            num_bytes=entry["num_bytes"],
            setsum=Setsum.from_hex(entry["setsum"]),
        )
        manifest, snapshot = roll_over(
            add_fragment(manifest, fragment, writer=writer), rollover, writer=writer
        )
        if snapshot is not None:
            stored.setdefault(snapshot.path, encode_snapshot(snapshot))

    assert encode_manifest(manifest) == log[MANIFEST]
    assert stored == {key: data for key, data in log.items() if key.startswith("snapshot/")}


def fragment_after(manifest: Manifest, records: int) -> Fragment:
    number, start = manifest.next_seq_no, manifest.next
    return Fragment(
        path=fragment_path(number),
        seq_no=number,
        start=start,
        limit=start + records,
        num_bytes=100 + records,
        setsum=Setsum.of(b"%d" % number),
    )


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=60),
    fragments=st.integers(2, 5),
    snapshots=st.integers(2, 4),
    change=st.integers(0, 60),
)
def test_no_manifest_grows_beyond_its_thresholds_or_loses_anything(
    sizes: list[int], fragments: int, snapshots: int, change: int
) -> None:
    """A manifest stays within its thresholds and loses nothing, also if they change midway."""
    manifest, total, size = Manifest(writer="w"), Setsum.zero(), 0
    for number, records in enumerate(sizes):
        wide = Rollover(fragments=fragments + 2, snapshots=snapshots + 2)
        narrow = Rollover(fragments=fragments, snapshots=snapshots)
        added = fragment_after(manifest, records)
        total, size = total + added.setsum, size + added.num_bytes
        grown = add_fragment(manifest, added, writer="w")
        manifest, snapshot = roll_over(grown, wide if number < change else narrow, writer="w")

        check_manifest(manifest)
        assert (manifest.setsum, manifest.acc_bytes) == (total, size)
        assert manifest.next == 1 + sum(sizes[: number + 1])
        assert manifest.next_seq_no == number + 2
        assert (snapshot is None) == (manifest is grown)
        assert manifest.fragments, "the next number is told by the newest fragment"
        assert len(manifest.fragments) <= fragments + 3


@pytest.mark.parametrize(("before", "after"), [(4, 2), (5, 3), (6, 2), (6, 4), (3, 2)])
@pytest.mark.parametrize("change", range(4, 60, 5))
def test_fewer_snapshots_may_make_a_deeper_one_at_any_time(
    before: int, after: int, change: int
) -> None:
    """A rollover with smaller thresholds joins only snapshots that follow each other."""
    manifest = Manifest(writer="w")
    for number in range(120):
        rollover = Rollover(fragments=2, snapshots=before if number < change else after)
        grown = add_fragment(manifest, fragment_after(manifest, 1), writer="w")
        manifest, _ = roll_over(grown, rollover, writer="w")

        check_manifest(manifest)
    assert manifest.next == 121


@pytest.mark.parametrize("short", [{"fragments": 1}, {"snapshots": 1}, {"fragments": 0}])
def test_thresholds_that_could_not_keep_up_are_refused(short: dict[str, int]) -> None:
    """Thresholds with which one rollover per append does not suffice raise UsageError."""
    with pytest.raises(UsageError, match="must be at least 2"):
        Rollover(**short)


def test_only_the_next_fragment_joins() -> None:
    """A fragment with another number, or after a gap, raises CorruptionError."""
    manifest = add_fragment(
        Manifest(writer="w"), fragment_after(Manifest(writer="w"), 3), writer="w"
    )
    coming = fragment_after(manifest, 2)

    for wrong in (
        replace(coming, seq_no=coming.seq_no + 1),
        replace(coming, start=coming.start + 1),
        replace(coming, start=coming.start - 1),
    ):
        with pytest.raises(CorruptionError):
            add_fragment(manifest, wrong, writer="w")


def test_a_manifest_that_contradicts_itself_is_not_written() -> None:
    """A manifest that contradicts itself is refused, for each rule."""
    manifest = decode_manifest(objects("b_snapshots")[MANIFEST])
    newest = manifest.fragments[-1]
    broken = [
        replace(manifest, setsum=Setsum.of(b"other")),
        replace(manifest, acc_bytes=manifest.acc_bytes + 1),
        replace(manifest, initial_offset=7),
        replace(manifest, snapshots=manifest.snapshots[1:]),
        replace(manifest, fragments=(replace(newest, path="elsewhere"),)),
        replace(manifest, fragments=(replace(newest, limit=newest.start),)),
    ]
    assert problems_of_manifest(manifest) == []
    for manifest in broken:
        with pytest.raises(CorruptionError):
            check_manifest(manifest)
