"""Damaged slot logs: a scrub reports every effective change, except for a short list.

The list is in docs/internals/log-claims.md, "Undetected changes". These tests prove that it is
complete for the changes tried here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from kit.damage import ReadResult, flip, look, look_at, swapped, without
from kit.protocols import CLOCK, make_slots, opener_on, slot_store
from kit.stores import keys_in
from tidelog.store.memory import MemoryStore
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.epoch_chain import Chain
from tidelog.wal.format.link import Epoch
from tidelog.wal.format.manifest import MANIFEST, decode_manifest, encode_manifest, tail_of
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.format.slot_object import decode_data, decode_link
from tidelog.wal.format.snapshot import decode_snapshot
from tidelog.wal.read.head import load_head
from tidelog.wal.slot_protocol.chain import Step
from tidelog.wal.slot_protocol.chain_reader import ChainReader
from tidelog.wal.slot_protocol.checkpoint import Checkpointer
from tidelog.wal.slot_protocol.shape import Shape
from tidelog.wal.slot_protocol.writer import SlotWriter

ROLES = (
    *("manifest", "snapshot", "in a snapshot", "in the manifest", "fence passed", "void"),
    *("fence ahead", "data ahead", "seal"),
)


def writer_on(store: MemoryStore, name: str, alpha: int) -> SlotWriter:
    """Return a writer that rolls up only when it closes."""
    shape = Shape(
        alpha=alpha,
        rollup_interval_us=60_000_000,
        rollover=Rollover(fragments=2, snapshots=2),
    )
    return SlotWriter(
        store=store, clock=CLOCK, writer=name, shape=shape, batching=Batching(interval_us=0)
    )


async def write(store: MemoryStore, name: str, alpha: int, bodies: list[bytes]) -> None:
    async with writer_on(store, name, alpha) as writer:
        for body in bodies:
            await writer.append([body, body * 2])


async def build(*, sealed_in_manifest: bool) -> dict[str, bytes]:
    """Return a log with an object of each role; see `role_of`."""
    store = await slot_store()
    dead = writer_on(store, "one", 2)  # So the next opener needs many fences.
    for body in (b"a", b"b"):
        await dead.append([body, body * 2])
    await write(store, "two", 1, [b"d"])
    rolled_up = dict(store.objects)
    await write(store, "three", 1, [b"e"])
    await opener_on(store).seal(successor="next")
    if sealed_in_manifest:
        head, steps = await load_head(store), list[Step]()
        async for passed in ChainReader(store=store, clock=CLOCK).walk(tail_of(head.manifest)):
            steps.append(passed.step)
        await Checkpointer(store=store, clock=CLOCK, writer="roller").roll_up(head, steps)
    else:
        # The same state as if the third writer had died before its roll-up.
        await store.delete(
            [key for key in await keys_in(store, "snapshot/") if key not in rolled_up]
        )
        await store.put(MANIFEST, rolled_up[MANIFEST].data)
    return {key: found.data for key, found in store.objects.items()}


LOG = asyncio.run(build(sealed_in_manifest=False))
WHOLE = look(LOG)


def chain_of_log() -> Chain:
    chain = decode_manifest(LOG[MANIFEST]).chain
    assert chain is not None
    return chain


def role_of(key: str) -> str:
    """Return the role of an object in `LOG`."""
    if key == MANIFEST:
        return "manifest"
    kind, *_, name = key.split("/")
    if kind == "snapshot":
        return "snapshot"
    number, slot = int(key.split("/")[1][:16], 16), int(name[:16], 16)
    return {
        (0, 1): "fence passed",
        (1, 1): "in a snapshot",
        (1, 2): "in a snapshot",
        (1, 3): "fence passed",
        **{(1, slot): "void" for slot in (4, 6, 8, 10)},
        (2, 3): "in the manifest",
        (2, 4): "fence ahead",
        (3, 4): "data ahead",
        (3, 5): "seal",
    }[number, slot]


def key_of(role: str) -> str:
    return next(key for key in LOG if role_of(key) == role)


def test_the_log_has_an_object_of_each_role() -> None:
    """The log of these tests has an object of each role and is intact."""
    assert {role_of(key) for key in LOG} == set(ROLES)
    assert WHOLE.problems == []
    assert WHOLE.rows is not None
    bodies = [row["body"] for row in WHOLE.rows]
    assert bodies == [b"a", b"aa", b"b", b"bb", b"d", b"dd", b"e", b"ee"]
    assert {role_of(key) for key in WHOLE.unnamed} == {"void"}
    assert [epoch.opener for epoch in chain_of_log().epochs] == ["maker", "one", "two"]


def meaning(key: str, data: bytes) -> Any:
    """Return the content of an object without labels for people, as far as its bytes show."""
    match role_of(key):
        case "manifest":
            return json.loads(data)
        case "snapshot":
            found = decode_snapshot(data, where=key)
            return found.path, found.depth, found.setsum, found.children
        case "void":
            return None
        case "fence passed" | "fence ahead" | "seal":
            return decode_link(data, path=key)
    link, records = decode_data(data, path=key)
    return link, records.to_pylist()


@pytest.mark.parametrize("role", [role for role in ROLES if role != "in a snapshot"])
def test_every_bit_counts_or_changes_nothing(role: str) -> None:
    """A scrub reports a flipped bit, or the bit has no meaning.

    Reads are right or fail.

    The test flips bits in some bytes of large objects; tests/fuzz changes others. Unreported
    changes are parts of a Parquet file that readers ignore, the writer of a snapshot, and void
    objects. The manifest has a checksum.
    """
    key = key_of(role)
    data, silent = LOG[key], list[int]()
    places = range(0, len(data), {"manifest": 1, "snapshot": 2, "void": 50}.get(role, 13))

    async def work() -> None:
        for place in places:
            changed = flip(data, place)
            seen = await look_at({**LOG, key: changed})
            assert seen.rows in (None, WHOLE.rows), f"{role} at {place} is read as something else"
            if not seen.problems:
                silent.append(place)
                assert seen.rows == WHOLE.rows
                assert meaning(key, changed) == meaning(key, data), f"{role} at {place}"

    asyncio.run(work())
    match role:
        case "manifest":
            assert silent == []
        case "snapshot":
            start = data.index(b'"writer":"') + len(b'"writer":"')
            names = range(start, data.index(b'"', start))
            # A setsum in capital letters is equal.
            other = [n for n in silent if n not in names and chr(data[n]) not in "abcdef"]
            assert other == []
        case "void":
            assert len(silent) == len(places)
        case _:
            assert len(silent) < len(places) / 2


def lengths_of(data: bytes) -> Iterator[int]:
    """Yield lengths near zero, near the whole length, and some between."""
    yield from sorted({0, 1, *range(4, len(data), 37), *range(len(data) - 12, len(data))})


@pytest.mark.parametrize("role", ROLES)
def test_every_object_that_is_cut_is_told(role: str) -> None:
    """A scrub reports every truncated object except a void one. No read returns a partial log."""
    key = key_of(role)
    for length in lengths_of(LOG[key]):
        seen = look({**LOG, key: LOG[key][:length]})
        if role == "void":
            assert (seen.problems, seen.rows) == (WHOLE.problems, WHOLE.rows)
        else:
            assert seen.problems, f"{role} with {length} bytes"
            assert seen.rows in (None, WHOLE.rows)


def is_prefix(seen: ReadResult) -> bool:
    whole = WHOLE.rows or []
    return seen.rows is None or seen.rows == whole[: len(seen.rows)]


@pytest.mark.parametrize("role", ROLES)
def test_every_object_that_is_lost_is_told(role: str) -> None:
    """A scrub reports every lost object except void ones and the log's last one."""
    for key in (key for key in LOG if role_of(key) == role):
        seen = look(without(LOG, key))
        assert is_prefix(seen)
        match role:
            case "void":
                assert (seen.problems, seen.rows) == ([], WHOLE.rows)
            case "seal":
                assert (seen.problems, seen.rows) == ([], WHOLE.rows)
            case "data ahead":
                # The seal in the next slot proves the loss: with alpha 1 it implies an object here.
                assert "missing" in seen.complaints[0]
            case "fence ahead":
                assert "missing" in seen.complaints[0]
            case _:
                assert seen.problems, key


def test_the_end_of_a_log_may_be_lost_unseen() -> None:
    """The newest objects that no manifest names can be lost: the rest is a valid log."""
    ahead = [key for key in LOG if role_of(key) in ("fence ahead", "data ahead", "seal")]
    in_order = sorted(ahead, key=lambda key: (key.split("/")[1], key))
    rest = LOG
    for key in reversed(in_order):
        rest = without(rest, key)
        seen = look(rest)
        assert seen.problems == []
        assert is_prefix(seen)
        assert seen.rows


def test_objects_that_changed_places_are_told() -> None:
    """Links and names state their places, so each exchange is reported, void ones aside."""
    for one, other in permutations(LOG, 2):
        if role_of(one) == role_of(other) == "void":
            continue
        seen = look(swapped(LOG, one, other))
        assert seen.rows in (None, WHOLE.rows)
        assert seen.problems, (role_of(one), role_of(other))


def test_copies_in_other_places_are_told() -> None:
    """A scrub reports an object that replaces another. It is wrong in one of the two places."""
    for one, other in permutations(LOG, 2):
        seen = look({**LOG, one: LOG[other]})
        assert seen.rows in (None, WHOLE.rows)
        assert bool(seen.problems) != (role_of(one) == "void")


def test_a_log_whose_manifest_has_the_seal_is_checked_to_it() -> None:
    """If the manifest holds the seal, a scrub checks every object up to it."""
    log = asyncio.run(build(sealed_in_manifest=True))
    whole = look(log)
    assert whole.problems == []
    assert whole.rows is not None
    for key in log:
        for changed in (without(log, key), {**log, key: log[key][:-1]}, {**log, key: b""}):
            seen = look(changed)
            assert seen.rows in (None, whole.rows)
            assert bool(seen.problems) != (key in whole.unnamed), key


def names_in(found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        yield from found
        found = list(found.values())
    if isinstance(found, list):
        for each in found:
            yield from names_in(each)


def test_no_field_of_the_manifest_is_beyond_its_check() -> None:
    """A scrub reports a renamed field of the manifest at every place."""
    fields = json.loads(LOG[MANIFEST])
    changed = 0
    for name in set(names_in(fields)):
        text = json.dumps(name).encode()
        for renamed in (text[:-1] + b'_"', b'"x' + text[1:]):
            seen = look({**LOG, MANIFEST: LOG[MANIFEST].replace(text + b":", renamed + b":")})
            assert seen.problems, name
            assert seen.rows in (None, WHOLE.rows)
            changed += 1
    assert changed > 30


def test_a_manifest_of_before_leads_to_the_same_records() -> None:
    """An older manifest leads to the same records, because readers walk past it."""
    log = asyncio.run(build(sealed_in_manifest=True))
    newest = json.loads(log[MANIFEST])
    store = MemoryStore()
    asyncio.run(make_slots(store))
    empty = json.loads(store.objects[MANIFEST].data)
    assert len(empty["tidelog"]["epochs"]) < len(newest["tidelog"]["epochs"])
    first = newest["tidelog"]["epochs"][0]
    before = replace(
        decode_manifest(store.objects[MANIFEST].data),
        chain=Chain(epochs=(Epoch(number=0, id=first["id"], first_slot=1, opener="maker"),)),
    )

    seen = look({**log, MANIFEST: encode_manifest(before)})

    assert seen.problems == []
    assert seen.rows == look(log).rows


def test_a_manifest_without_its_own_field_is_that_of_another_log() -> None:
    """A manifest without its own field looks like wal3's until the first roll-up."""
    store = MemoryStore()
    asyncio.run(make_slots(store))
    renamed = store.objects[MANIFEST].data.replace(b'"tidelog"', b'"tidalog"')
    assert look({MANIFEST: renamed}) == ReadResult([], [], [])

    seen = look({**LOG, MANIFEST: LOG[MANIFEST].replace(b'"tidelog"', b'"tidalog"')})

    assert seen.problems
    assert seen.rows is None
