"""Slot objects and the chain of their links: objects that continue a log, and others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.golden_slots import EMPTY, TAIL
from tidelog.core.setsum import Setsum
from tidelog.errors import CorruptionError, UsageError
from tidelog.wal.format.epoch_chain import Seal
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.link import DataLink, FenceLink, Tail
from tidelog.wal.format.manifest import (
    CHAIN,
    Manifest,
    decode_manifest,
    encode_manifest,
    problems_of_manifest,
    tail_of,
)
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.format.slot_object import (
    checked_data,
    decode_data,
    decode_link,
    encode_data,
    encode_fence,
    place_slot_records,
)
from tidelog.wal.format.streams import OPEN, Control, encode_control
from tidelog.wal.slot_protocol.chain import Step, extend, has_passed, step
from tidelog.wal.slot_protocol.checkpoint import check_continues, roll_all


def data_at(
    tail: Tail, bodies: list[bytes], streams: list[bytes | None] | None = None
) -> tuple[DataLink, bytes]:
    records = place_slot_records(
        pa.array(bodies, pa.binary()),
        start=tail.position,
        times=np.full(len(bodies), 1_000 + tail.slot, dtype=np.int64),
        streams=None if streams is None else pa.array(streams, pa.binary()),
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
    tail, steps = TAIL, list[Step]()
    for count in plan:
        bodies = [b"%d" % n for n in range(count)]
        data = data_at(tail, bodies)[1] if count else encode_fence(fence_at(tail))
        tail, met = step(tail, decode_link(data, path=tail.path), len(data))
        steps.append(met)
    return steps, tail


@given(plan=st.lists(st.integers(0, 3), max_size=12), cuts=st.lists(st.integers(0, 12), max_size=4))
def test_a_manifest_is_the_same_however_it_is_rolled_up(plan: list[int], cuts: list[int]) -> None:
    """A manifest is the same for any way of rolling up, also in overlapping pieces."""
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
    tail = TAIL
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
    """An object with a wrong slot, epoch, positions or sums raises CorruptionError."""
    tail = TAIL
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
    tail = TAIL
    fence = fence_at(tail)
    assert fence.next is not None
    circle = replace(fence, next=replace(fence.next, number=0))

    with pytest.raises(CorruptionError, match="has the wrong number"):
        step(tail, circle, 1)


def test_every_byte_of_an_object_counts_or_changes_nothing() -> None:
    """A changed bit is refused or has no effect; a changed footer does not crash Arrow."""
    tail = TAIL
    opening = encode_control(Control(op=OPEN, stream=b"s"))
    link, data = data_at(tail, [opening, b"one", b"two"], [b"", None, b"s"])
    after, fragment = step(tail, link, len(data))
    assert isinstance(fragment, Fragment)
    wanted = checked_data(data, fragment)
    refused = 0
    for place, mask in product(range(len(data)), (1, 64)):
        broken = bytearray(data)
        broken[place] ^= mask
        try:
            assert checked_data(bytes(broken), fragment).equals(wanted)
            found = decode_link(bytes(broken), path=tail.path)
            assert step(tail, found, len(data))[0] == after
        except CorruptionError:
            refused += 1
    assert refused > len(data)


def test_the_time_of_a_fence_has_passed_only_if_the_manifest_says_so() -> None:
    """A fence is void only if the manifest proves that the log passed its slot without it."""
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


def test_logs_of_the_other_protocol_and_of_the_future_are_told() -> None:
    """A log of the other protocol or of a newer version raises UsageError."""
    with pytest.raises(UsageError, match="manifest protocol"):
        tail_of(Manifest(writer="w"))
    fields = json.loads(encode_manifest(EMPTY))
    fields[CHAIN]["version"] = 2
    with pytest.raises(UsageError, match="upgrade tidelog"):
        decode_manifest(json.dumps(fields).encode())


def test_any_parquet_reader_reads_slots() -> None:
    """Any Parquet reader can read slot objects: plain columns, and a fence without rows."""
    tail = TAIL
    _, data = data_at(tail, [b"a", b"b"])

    assert pq.read_table(pa.BufferReader(data)).num_rows == 2
    assert pq.read_table(pa.BufferReader(encode_fence(fence_at(tail)))).num_rows == 0
