"""Slot objects and the chain of their links: objects that continue a log, and others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.core.setsum import Setsum
from tidelog.errors import CorruptionError, UsageError
from tidelog.wal.format.epoch import Epoch
from tidelog.wal.format.epoch_chain import Chain, Seal
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.link import DataLink, FenceLink, Tail
from tidelog.wal.format.manifest import (
    CHAIN,
    Manifest,
    decode_manifest,
    encode_manifest,
    problems_of_manifest,
)
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.format.slot_object import (
    SLOT_RECORDS,
    decode_data,
    decode_link,
    encode_data,
    encode_fence,
    place_slot_records,
    setsum_of_slot_records,
)
from tidelog.wal.read.codec import checked_data
from tidelog.wal.slot_protocol.chain import Step, extend, has_passed, step, tail_of
from tidelog.wal.slot_protocol.checkpoint import check_continues, roll_all

GENESIS = Epoch(number=0, id="0" * 16, first_slot=1, opener="maker")
EMPTY = Manifest(writer="w", chain=Chain(epochs=(GENESIS,)))


def data_at(tail: Tail, bodies: list[bytes]) -> tuple[DataLink, bytes]:
    records = place_slot_records(
        pa.array(bodies, pa.binary()),
        start=tail.position,
        times=np.full(len(bodies), 1_000 + tail.slot, dtype=np.int64),
    )
    return encode_data(records, tail, writer="w")


def fence_at(tail: Tail, *, is_seal: bool = False) -> FenceLink:
    number = tail.epoch.number + 1
    following = replace(
        tail.epoch, number=number, id=f"{number:016x}", first_slot=tail.slot, lanes=1 + number % 3
    )
    return FenceLink(
        epoch=tail.epoch.name,
        slot=tail.slot,
        writer="o",
        id="f" * 16,
        next=None if is_seal else following,
        successor="next" if is_seal else "",
    )


def walked(plan: list[int]) -> tuple[list[Step], Tail]:
    """Walk over objects: n records each, and a fence for 0."""
    tail, steps = tail_of(EMPTY), list[Step]()
    for count in plan:
        bodies = [b"%d" % n for n in range(count)]
        data = data_at(tail, bodies)[1] if count else encode_fence(fence_at(tail))
        tail, met = step(tail, decode_link(data, path=tail.path), len(data))
        steps.append(met)
    return steps, tail


@given(plan=st.lists(st.integers(0, 3), max_size=12), cuts=st.lists(st.integers(0, 12), max_size=4))
def test_a_manifest_is_the_same_however_it_is_rolled_up(plan: list[int], cuts: list[int]) -> None:
    """A manifest is the same for any way of rolling up, also in overlapping pieces.

    It ends at the end of the walk.
    """
    steps, tail = walked(plan)
    at_once = extend(EMPTY, steps, writer="w")
    in_pieces, reached = EMPTY, 0
    for cut in sorted(cuts):
        in_pieces = extend(in_pieces, steps[max(0, reached - 2) : cut], writer="w")
        reached = cut
    in_pieces = extend(in_pieces, steps, writer="w")

    assert in_pieces == at_once
    assert tail_of(at_once) == tail
    assert problems_of_manifest(at_once) == []
    assert decode_manifest(encode_manifest(at_once)) == at_once
    rolled, snapshots = roll_all(at_once, Rollover(fragments=2, snapshots=2), writer="w")
    check_continues(at_once, rolled)
    assert tail_of(rolled) == tail
    assert len({snapshot.path for snapshot in snapshots}) == len(snapshots)


def test_objects_say_where_they_belong() -> None:
    """An object survives storage with its link and records."""
    tail = tail_of(EMPTY)
    link, data = data_at(tail, [b"a", b"", b"\xff"])
    fence = fence_at(tail)

    assert decode_link(data, path="p") == link
    assert decode_data(data, path="p")[1].column("body").to_pylist() == [b"a", b"", b"\xff"]
    assert decode_link(encode_fence(fence), path="p") == fence
    assert decode_data(encode_fence(fence), path="p")[1].num_rows == 0
    seal = fence_at(tail, is_seal=True)
    assert decode_link(encode_fence(seal), path="p") == seal


CHANGES: list[Callable[[DataLink], DataLink]] = [
    lambda link: replace(link, slot=link.slot + 1),
    lambda link: replace(link, epoch="0000000000000000-1111111111111111"),
    lambda link: replace(link, start=link.start + 1),
    lambda link: replace(link, limit=link.start),
    lambda link: replace(link, log_bytes=1),
    lambda link: replace(link, log_setsum=Setsum.of(b"x")),
    lambda link: replace(link, setsum=Setsum.of(b"x")),
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_does_not_continue_the_log_breaks_it(change: Callable[[DataLink], DataLink]) -> None:
    """An object that does not continue the log raises CorruptionError.

    Its slot, epoch, positions or sums are wrong.
    """
    tail = tail_of(EMPTY)
    link, data = data_at(tail, [b"a"])

    step(tail, link, len(data))
    with pytest.raises(CorruptionError, match="breaks the chain"):
        step(tail, change(link), len(data))


def test_steps_after_a_gap_are_refused() -> None:
    """Steps after a gap are refused. A manifest must not skip slots that a walk would not skip."""
    for plan in ([1, 1], [0, 0]):
        steps, _ = walked(plan)
        with pytest.raises(CorruptionError, match=r"does not continue|not at the log's next slot"):
            extend(EMPTY, steps[1:], writer="w")


def test_an_epoch_does_not_follow_itself() -> None:
    """An epoch never follows itself or an earlier one, so that the chain has no circles."""
    tail = tail_of(EMPTY)
    fence = fence_at(tail)
    assert fence.next is not None
    circle = replace(fence, next=replace(fence.next, number=0))

    with pytest.raises(CorruptionError, match="has the wrong number"):
        step(tail, circle, 1)


def test_every_byte_of_an_object_counts_or_changes_nothing() -> None:
    """Each changed byte of an object is refused or has no effect."""
    tail = tail_of(EMPTY)
    link, data = data_at(tail, [b"one", b"two"])
    after, fragment = step(tail, link, len(data))
    assert isinstance(fragment, Fragment)
    wanted = checked_data(data, fragment)
    refused = 0
    for place in range(len(data)):
        broken = bytearray(data)
        broken[place] ^= 0x41
        try:
            assert checked_data(bytes(broken), fragment).equals(wanted)
            found = decode_link(bytes(broken), path=tail.path)
            assert step(tail, found, len(data))[0] == after
        except CorruptionError:
            refused += 1
    assert refused > len(data) // 2


def test_the_time_of_a_fence_has_passed_only_if_the_manifest_says_so() -> None:
    """A fence is void only if the manifest proves it.

    The proof is that the log passed its slot without it.
    """
    steps, _ = walked([2, 0, 1, 0, 1])
    manifest = extend(EMPTY, steps, writer="w")
    chain = manifest.chain
    assert chain is not None
    zero, one, two = chain.epochs
    behind = extend(EMPTY, steps[:1], writer="w")

    assert not has_passed(manifest, zero, 2, one.name)
    assert not has_passed(manifest, one, 3, two.name)
    assert not has_passed(manifest, two, 4, "a fence at the very end")
    assert has_passed(manifest, two, 3, "a fence where data was collected")
    assert has_passed(manifest, one, 3, "another fence than the one that stands there")
    assert has_passed(manifest, one, 2, two.name)
    assert has_passed(manifest, one, 3, None)
    assert not has_passed(behind, one, 3, two.name)
    sealed = replace(manifest, chain=replace(chain, seal=Seal(slot=4)))
    assert not has_passed(sealed, two, 4, None)
    assert has_passed(sealed, two, 4, "an epoch after the end")


def test_streams_and_bodies_do_not_run_together() -> None:
    """A setsum distinguishes the stream of a record from its body."""
    one = pa.table([[1], [1], [b"ab"], [None], [b"c"]], schema=SLOT_RECORDS)
    other = pa.table([[1], [1], [b"a"], [None], [b"bc"]], schema=SLOT_RECORDS)
    none = pa.table([[1], [1], [None], [None], [b"abc"]], schema=SLOT_RECORDS)
    columns: list[Any] = [[1, 2], [1, 1], [b"a", None], [None, b"k"], [b"x", b"y"]]
    mixed = pa.table(columns, schema=SLOT_RECORDS)

    sums = {setsum_of_slot_records(table) for table in (one, other, none)}
    assert len(sums) == 3
    parts = (setsum_of_slot_records(mixed.slice(0, 1)), setsum_of_slot_records(mixed.slice(1)))
    assert setsum_of_slot_records(mixed) == parts[0] + parts[1]


def test_logs_of_the_other_protocol_and_of_the_future_are_told() -> None:
    """A log of the other protocol or of a newer version raises UsageError."""
    with pytest.raises(UsageError, match="manifest protocol"):
        tail_of(Manifest(writer="w"))
    fields = json.loads(encode_manifest(EMPTY))
    fields[CHAIN]["version"] = 2
    with pytest.raises(UsageError, match="update tidelog"):
        decode_manifest(json.dumps(fields).encode())


def test_any_parquet_reader_reads_slots() -> None:
    """Any Parquet reader can read slot objects: plain columns, and a fence without rows."""
    tail = tail_of(EMPTY)
    _, data = data_at(tail, [b"a", b"b"])

    assert pq.read_table(pa.BufferReader(data)).num_rows == 2
    assert pq.read_table(pa.BufferReader(encode_fence(fence_at(tail)))).num_rows == 0
