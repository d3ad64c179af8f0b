"""The test wrappers of stores work as described."""

from __future__ import annotations

import pytest

from kit.clocks import SwiftClock
from tidelog.errors import LocationError, ObjectExists, ObjectNotFound, Outcome
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing import (
    DelayedStore,
    Fault,
    FaultyStore,
    RecordedRequest,
    RecordedStore,
    Request,
)


def stores() -> list[Store]:
    """Return one store of each wrapper. The type checker proves that they are stores."""
    clock = SwiftClock()
    return [
        DelayedStore(MemoryStore(), clock=clock, delay_us=lambda op, key: 1),
        FaultyStore(MemoryStore(), toss=lambda request: Fault()),
        RecordedStore(MemoryStore()),
    ]


@pytest.mark.parametrize("store", stores(), ids=lambda store: type(store).__name__)
async def test_without_faults_a_wrapper_changes_nothing(store: Store) -> None:
    """A wrapper that changes a result would invalidate the tests that use it."""
    e_tag = await store.put("a", b"123", if_absent=True)
    with pytest.raises(ObjectExists):
        await store.put("a", b"", if_absent=True)
    assert (await store.get("a", start=1, limit=2)).data == b"2"
    assert await store.refresh("a", e_tag) is None
    assert [entry.key async for entry in store.list("", after="A")] == ["a"]
    await store.delete(["a"])
    with pytest.raises(ObjectNotFound):
        await store.get("a")


@pytest.mark.parametrize(
    ("fault", "lands", "outcome"),
    [
        (Fault(happened=True, told=False), True, Outcome.UNKNOWN),
        (Fault(happened=False, told=False), False, Outcome.UNKNOWN),
        (Fault(happened=False, told=True), False, Outcome.NOT_APPLIED),
    ],
)
async def test_two_coins(fault: Fault, lands: bool, outcome: Outcome) -> None:
    """One draw decides if a request happens, the other if its caller gets the answer."""
    inner = MemoryStore()
    store = FaultyStore(inner, toss=lambda request: fault)

    with pytest.raises(LocationError) as failed:
        await store.put("a", b"1")
    assert failed.value.outcome is outcome
    assert ("a" in inner.objects) is lands
    await inner.put("b", b"2")
    with pytest.raises(LocationError) as failed:
        await store.delete(["b"])
    assert failed.value.outcome is outcome
    assert ("b" in inner.objects) is not lands
    for read in (store.get("a"), store.refresh("a", "e"), anext(aiter(store.list("")))):
        with pytest.raises(LocationError) as failed:
            await read
        assert failed.value.outcome is Outcome.NOT_APPLIED


async def test_a_lost_refusal_is_not_told() -> None:
    """If the answer is lost, a refusal is lost too."""
    inner = MemoryStore()
    await inner.put("a", b"1")
    store = FaultyStore(inner, toss=lambda request: Fault(told=False))
    with pytest.raises(LocationError) as failed:
        await store.put("a", b"2", if_absent=True)
    assert failed.value.outcome is Outcome.UNKNOWN


async def test_requests_are_described() -> None:
    """A fault gets the number, verb, key and condition of a request, and may depend on them."""
    seen: list[Request] = []

    def toss(request: Request) -> Fault:
        seen.append(request)
        return Fault()

    store = FaultyStore(MemoryStore(), toss=toss)

    e_tag = await store.put("a", b"")
    await store.put("a", b"", if_match=e_tag)
    await store.get("a")
    await store.refresh("a", e_tag)
    await store.delete(["a", "b"])
    assert [entry async for entry in store.list("p")] == []
    assert [(request.index, request.op, request.key) for request in seen] == [
        (0, "put", "a"),
        (1, "put", "a"),
        (2, "get", "a"),
        (3, "refresh", "a"),
        (4, "delete", "a"),
        (5, "list", "p"),
    ]
    assert [request.index for request in seen if request.conditional] == [1]
    assert [request.index for request in seen if request.changes] == [0, 1, 4]


async def test_delays_are_by_verb_and_key() -> None:
    """A delay may depend on the verb and key, so that a test can delay only one kind of request."""
    clock = SwiftClock()
    delays = {("put", "a"): 5, ("list", "p"): 70}
    store = DelayedStore(
        MemoryStore(), clock=clock, delay_us=lambda op, key: delays.get((op, key), 0)
    )

    await store.put("a", b"")
    await store.put("b", b"")
    assert [entry async for entry in store.list("p")] == []
    assert clock.slept_us == 75


async def test_records_say_what_was_asked_and_how_it_ended() -> None:
    """A test can count requests and check their order."""
    store = RecordedStore(MemoryStore())

    e_tag = await store.put("a", b"123", if_absent=True)
    with pytest.raises(ObjectExists):
        await store.put("a", b"12", if_absent=True)
    await store.put("a", b"1234", if_match=e_tag)
    await store.get("a", start=1)
    await store.refresh("a", "m2")
    await store.delete(["a", "b"])
    assert [entry async for entry in store.list("p", after="p1")] == []
    assert store.records == [
        RecordedRequest("put", "a", "absent", 3, "m1"),
        RecordedRequest("put", "a", "absent", 2, "ObjectExists"),
        RecordedRequest("put", "a", "match m1", 4, "m2"),
        RecordedRequest("get", "a", "bytes [1, end)", 3, "m2"),
        RecordedRequest("refresh", "a", "unless m2", 0, "same"),
        RecordedRequest("delete", "a b", "", 2, "done"),
        RecordedRequest("list", "p", "after p1", 0, "done"),
    ]
