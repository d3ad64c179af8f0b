"""Puts with ambiguous outcomes: stored in spite of an error, or lost without an answer.

wal3's own tests have no such cases. In trials of its code, such a put of a fragment stored the
record twice, and such a put of a manifest left an append without a position.

| scenario of wal3's | shown by |
| --- | --- |
| (not there) an ambiguous put of a fragment, or slot | test_no_append_is_lost_or_doubled |
| (not there) of a snapshot | test_no_append_is_lost_or_doubled |
| (not there) of a manifest | test_no_append_is_lost_or_doubled |
| (not there) of a new log's manifest | test_a_log_is_made_whatever_is_answered |
| (not there) of a plan, and of deletes | test_a_collection_is_finished_whatever_is_answered |
| (not there) of a cursor | test_a_cursor_is_where_its_witness_says |
| (not there) of a fork's pin and its manifest | test_a_fork_is_whole_whatever_is_answered |
| upload faults | wal/test_log.py: test_lost_answers_neither_lose_nor_double_a_record |
"""

from __future__ import annotations

from itertools import cycle

import pytest

from kit.protocols import ALL, CLOCK, SLOTS, Kind, contents, cursors_on
from tidelog.errors import LocationError
from tidelog.store.keys import Within
from tidelog.store.port import Store
from tidelog.testing import Fault, FaultyStore
from tidelog.testing.faulty import Request
from tidelog.wal.gc.collector import CollectReport
from tidelog.wal.logs import Logs
from tidelog.wal.opening import open_log

FATES = {
    "stored, not answered": [Fault(told=False)],
    "thrice stored, not answered": [Fault(told=False)] * 3,
    "lost, not answered": [Fault(happened=False, told=False)],
    "lost, then stored, neither answered": [
        Fault(happened=False, told=False),
        Fault(told=False),
    ],
    "refused": [Fault(happened=False)],
}
ALL_IN_TURN = [fate for fates in FATES.values() for fate in (*fates, Fault())]
# Each fault by itself in memory, and all faults in turn on slower stores.
TRIALS = [
    *(pytest.param("memory", fates, id=f"memory-{name}") for name, fates in FATES.items()),
    *(pytest.param(place, ALL_IN_TURN, id=f"{place}-all in turn") for place in ("local", "s3")),
]
EVERY_FATE = pytest.mark.parametrize(("new_store", "fates"), TRIALS, indirect=["new_store"])


def troubled(store: Store, prefixes: tuple[str, ...], fates: list[Fault]) -> FaultyStore:
    """Return a store whose changes below the prefixes meet these faults, and then one success."""
    turn = cycle([*fates, Fault()])

    def toss(request: Request) -> Fault:
        return next(turn) if request.changes and request.key.startswith(prefixes) else Fault()

    return FaultyStore(store, toss=toss)


@EVERY_FATE
@pytest.mark.parametrize(
    "prefixes", [("log/", "epoch/"), ("snapshot/",), ("manifest/",)], ids=lambda p: p[0]
)
async def test_no_append_is_lost_or_doubled(
    kind: Kind, store: Store, prefixes: tuple[str, ...], fates: list[Fault]
) -> None:
    """Each append returns a position and is stored once; no append raises OutcomeUnknown."""
    await kind.make(store)
    wanted: dict[int, bytes] = {}
    async with kind.writer(troubled(store, prefixes, fates)) as writer:
        for number in range(25):
            body = b"%d" % number
            wanted[await writer.append([body])] = body
    await kind.settle(store)
    assert await contents(kind, store) == wanted
    assert list(wanted) == list(range(1, 26))


@EVERY_FATE
async def test_a_log_is_made_whatever_is_answered(
    kind: Kind, store: Store, fates: list[Fault]
) -> None:
    """The creation succeeds, and makes one empty log."""
    await kind.make(troubled(store, ("manifest/",), fates))
    assert [entry.key async for entry in store.list("")] == ["manifest/MANIFEST"]
    assert await contents(kind, store) == {}


async def collect(store: Store) -> CollectReport:
    log = await open_log(store, name="x", clock=CLOCK, writer="gc")
    return await log.collect(keep=ALL, grace_us=1)


@EVERY_FATE
@pytest.mark.parametrize("prefix", ["gc/", "manifest/", "snapshot/", "data"])
async def test_a_collection_is_finished_whatever_is_answered(
    kind: Kind, store: Store, prefix: str, fates: list[Fault]
) -> None:
    """The collector that began a collection, or the next one, finishes it."""
    await kind.make(store)
    async with kind.writer(store) as writer:
        for number in range(13):
            await writer.append([b"%d" % number])
    await cursors_on(store).create("x", 8)
    prefixes = ("log/", "epoch/") if prefix == "data" else (prefix,)
    try:
        await collect(troubled(store, prefixes, fates))
    except LocationError:
        assert prefix in ("snapshot/", "data"), "only a delete may end it"
    await collect(store)
    assert list(await contents(kind, store)) == list(range(8, 14))
    assert (await kind.scrub(store)).unnamed == []


@EVERY_FATE
async def test_a_cursor_is_where_its_witness_says(
    kind: Kind, store: Store, fates: list[Fault]
) -> None:
    """After each creation and move, the cursor is at the position of its witness."""
    await kind.make(store)
    async with kind.writer(store) as writer:
        await writer.append([b"x"] * 9)
    slow = troubled(store, ("cursor/",), fates)
    one = cursors_on(slow, "one")
    other = cursors_on(store, "other")
    witness = await one.create("reader", 2)
    assert await other.load("reader") == witness
    for position in (5, 9, 3):
        witness = await one.save(witness, position, allow_back=True)
        assert witness.position == position
        assert await other.load("reader") == witness


@EVERY_FATE
@pytest.mark.parametrize("key", ["pin/", "log/b/manifest/", "log/b/snapshot/"])
async def test_a_fork_is_whole_whatever_is_answered(
    store: Store, key: str, fates: list[Fault]
) -> None:
    """One call makes the whole fork: its records, its manifest, and a sure pin in the source."""
    source = Within(store, "log/a")
    await SLOTS.make(source)
    async with SLOTS.writer(source) as writer:
        for number in range(13):
            await writer.append([b"%d" % number])
    prefix = "log/a/pin/" if key == "pin/" else key
    shelf = Logs(store=troubled(store, (prefix,), fates), clock=CLOCK, writer="me")
    fork = await shelf.fork("a", "b", start=3)
    assert list(await contents(SLOTS, Within(store, "log/b"))) == list(range(3, 14))
    (pin,) = (await (await shelf.open("a")).pins()).values()
    assert (pin.start, pin.limit, pin.is_sure, pin.holder) == (3, 14, True, "b")
    await fork.create_pin("p")
    assert list(await fork.pins()) == ["p"]


def test_fates_are_all_there_are() -> None:
    """The faults cover each combination of stored and answered, except success."""
    met = {(fate.happened, fate.told) for fates in FATES.values() for fate in fates}
    assert met == {(True, False), (False, False), (False, True)}
