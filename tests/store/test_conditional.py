"""Conditional writes over a store that loses requests and answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.clocks import SwiftClock
from kit.stores import InterposedStore
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    LocationError,
    ObjectChanged,
    ObjectExists,
    Outcome,
    OutcomeUnknown,
    StoreRefused,
    TidelogError,
)
from tidelog.store import conditional
from tidelog.store.conditional import KeyOwner
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Object, Store
from tidelog.testing import Fault, FaultyStore, RecordedStore, Request

LOST_ANSWER = Fault(happened=True, told=False)
LOST_REQUEST = Fault(happened=False, told=False)
REFUSED_REQUEST = Fault(happened=False, told=True)
FAULTS = [Fault(), LOST_ANSWER, LOST_REQUEST, REFUSED_REQUEST]


def at_first_put(fault: Fault) -> Callable[[Request], Fault]:
    """Return a toss that fails the first put only."""
    puts = 0

    def toss(request: Request) -> Fault:
        nonlocal puts
        if request.op != "put":
            return Fault()
        puts += 1
        return fault if puts == 1 else Fault()

    return toss


async def create(store: Store, data: bytes, *, replaceable: bool = False) -> str:
    return await conditional.create(store, "k", data, clock=SwiftClock(), replaceable=replaceable)


async def replace(store: Store, data: bytes, e_tag: str) -> str:
    return await conditional.replace(store, "k", data, e_tag=e_tag, clock=SwiftClock())


@pytest.mark.parametrize("fault", FAULTS)
async def test_create_survives_each_toss(fault: Fault) -> None:
    """After any fault of the first attempt, a create stores its object once."""
    inner = MemoryStore()

    e_tag = await create(FaultyStore(inner, toss=at_first_put(fault)), b"ours")
    found = await inner.get("k")
    assert (found.data, found.e_tag) == (b"ours", e_tag)


@pytest.mark.parametrize("fault", FAULTS)
async def test_create_loses_to_another(fault: Fault) -> None:
    """After any fault of the first attempt, a create that loses reports NOT_APPLIED."""
    inner = MemoryStore()

    await inner.put("k", b"theirs")
    with pytest.raises(ObjectExists) as lost:
        await create(FaultyStore(inner, toss=at_first_put(fault)), b"ours")
    assert lost.value.outcome is Outcome.NOT_APPLIED
    assert (await inner.get("k")).data == b"theirs"


@pytest.mark.parametrize("fault", FAULTS)
async def test_replace_survives_each_toss(fault: Fault) -> None:
    """A replacement that is resent lands once: its first attempt changes the e-tag."""
    inner = MemoryStore()

    old = await inner.put("k", b"old")
    puts_before = inner.puts_count
    e_tag = await replace(FaultyStore(inner, toss=at_first_put(fault)), b"ours", old)
    found = await inner.get("k")
    assert (found.data, found.e_tag) == (b"ours", e_tag)
    assert inner.puts_count == puts_before + 1


@pytest.mark.parametrize("fault", FAULTS)
async def test_replace_loses_to_another(fault: Fault) -> None:
    """A lost replacement is NOT_APPLIED only if no attempt is in doubt."""
    inner = MemoryStore()
    in_doubt = fault in (LOST_ANSWER, LOST_REQUEST)

    old = await inner.put("k", b"old")
    await inner.put("k", b"theirs")
    with pytest.raises(TidelogError) as lost:
        await replace(FaultyStore(inner, toss=at_first_put(fault)), b"ours", old)
    assert type(lost.value) is (OutcomeUnknown if in_doubt else ObjectChanged)
    expected = Outcome.UNKNOWN if in_doubt else Outcome.NOT_APPLIED
    assert lost.value.outcome is expected
    assert (await inner.get("k")).data == b"theirs"


def lost() -> LocationError:
    return LocationError("no answer", outcome=Outcome.UNKNOWN)


def busy() -> ContentionError:
    return ContentionError("the store is busy with other writes of the object")


@pytest.mark.parametrize("error", [lost(), busy()], ids=["lost", "busy"])
async def test_theirs_on_ours_is_undecidable(error: TidelogError) -> None:
    """A write that landed and was replaced is UNKNOWN, also if the store reports a conflict."""
    inner = MemoryStore()

    async def after(op: str, key: str) -> None:
        if op == "put":
            await inner.put(key, b"theirs, on ours")
            raise error

    store = InterposedStore(inner, after=after)
    old = await inner.put("k", b"old")
    with pytest.raises(OutcomeUnknown):
        await replace(store, b"ours", old)
    await inner.delete(["k"])
    with pytest.raises(OutcomeUnknown):
        await create(store, b"ours", replaceable=True)


async def test_a_refusal_by_ones_own_write_is_success() -> None:
    """A write that is refused because the client library sent it twice succeeds."""

    class SendsTwice(MemoryStore):
        async def put(
            self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
        ) -> str:
            await MemoryStore.put(self, key, data, if_absent=if_absent, if_match=if_match)
            return await MemoryStore.put(self, key, data, if_absent=if_absent, if_match=if_match)

    store = SendsTwice()
    first = await create(store, b"ours 1")
    assert (await store.get("k")).e_tag == first
    second = await replace(store, b"ours 2", first)
    assert (await store.get("k")).e_tag == second


async def test_a_deleted_object_is_not_replaced() -> None:
    """A replacement of a deleted object is a lost race, or UNKNOWN if in doubt."""
    store = MemoryStore()
    with pytest.raises(ObjectChanged):
        await replace(store, b"ours", "m0")
    with pytest.raises(OutcomeUnknown):
        await replace(FaultyStore(store, toss=at_first_put(LOST_ANSWER)), b"ours", "m0")


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (LOST_REQUEST, Outcome.UNKNOWN),
        (REFUSED_REQUEST, Outcome.NOT_APPLIED),
    ],
)
async def test_attempts_run_out(fault: Fault, outcome: Outcome) -> None:
    """A write to a store that stays away fails after a bounded time, with the right outcome."""
    clock = SwiftClock()
    recorded = RecordedStore(FaultyStore(MemoryStore(), toss=lambda request: fault))

    with pytest.raises(LocationError) as failed:
        await conditional.create(recorded, "k", b"ours", clock=clock)
    assert failed.value.outcome is outcome
    puts = [record for record in recorded.records if record.op == "put"]
    assert 8 <= len(puts) <= conditional.DEFAULT_RESEND.attempts
    assert 4_000_000 <= clock.slept_us <= 9_000_000


async def test_a_store_that_refuses_is_not_asked_again() -> None:
    """A store that refuses is not asked again, because wrong credentials stay wrong."""
    recorded = RecordedStore(ScriptedStore(StoreRefused("no")))
    with pytest.raises(StoreRefused):
        await create(recorded, b"ours")
    assert len(recorded.records) == 1


async def test_what_was_there_and_is_gone_after_a_long_stop_was_there() -> None:
    """A create that lost stays lost, even if a stopped process reads after the deletion."""

    class PassingStore(MemoryStore):
        async def put(
            self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
        ) -> str:
            raise ObjectExists("it was there", key=key)

        async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
            clock.slept_us += 60_000_000
            return await super().get(key, start=start, limit=limit)

    clock = SwiftClock()

    with pytest.raises(ObjectExists) as lost:
        await conditional.create(PassingStore(), "k", b"ours", clock=clock)
    assert lost.value.outcome is Outcome.NOT_APPLIED


@given(coins=st.lists(st.sampled_from(FAULTS), max_size=60), writers=st.integers(1, 3))
async def test_what_is_said_is_true(coins: list[Fault], writers: int) -> None:
    """A success landed once, and NOT_APPLIED never landed, for any faults."""
    inner = MemoryStore()
    landed: list[bytes] = []
    told: list[tuple[TidelogError, bool]] = []

    class RememberingStore(MemoryStore):
        async def put(
            self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
        ) -> str:
            e_tag = await inner.put(key, data, if_absent=if_absent, if_match=if_match)
            landed.append(data)
            return e_tag

        async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
            return await inner.get(key)

    rest = list(coins)
    store = FaultyStore(RememberingStore(), toss=lambda request: rest.pop() if rest else Fault())

    async def write(name: str) -> None:
        body = f"{name} 0".encode()
        e_tag = None
        for turn in range(4):
            body = f"{name} {turn}".encode()
            try:
                if e_tag is None:
                    e_tag = await create(store, body, replaceable=True)
                else:
                    e_tag = await replace(store, body, e_tag)
                assert landed.count(body) == 1
            except TidelogError as error:
                told.append((error, body in landed))
                e_tag = (await inner.get("k")).e_tag if inner.objects else None

    await asyncio.gather(*(write(f"w{number}") for number in range(writers)))
    for error, has_landed in told:
        assert isinstance(error, ContentionError | LocationError)
        assert not (has_landed and error.outcome is Outcome.NOT_APPLIED)


class ScriptedStore(MemoryStore):
    """A store whose puts and reads meet the given errors in order, and then succeed.

    Shape: an error for a put that does not happen, or a pair of True and an error for a put that
    does.
    """

    def __init__(
        self,
        *puts: TidelogError | tuple[bool, TidelogError],
        gets: tuple[TidelogError | int, ...] = (),
    ) -> None:
        super().__init__()
        self.puts, self.gets = list(puts), list(gets)

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        met = self.puts.pop(0) if self.puts else None
        if isinstance(met, TidelogError):
            raise met
        e_tag = await MemoryStore.put(self, key, data, if_absent=if_absent, if_match=if_match)
        if met is not None:
            raise met[1]
        return e_tag

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        met = self.gets.pop(0) if self.gets else None
        if isinstance(met, TidelogError):
            raise met
        return await MemoryStore.get(self, key, limit=limit if met is None else met)


def short() -> CorruptionError:
    return CorruptionError("the store sent a different number of bytes than it announced")


@pytest.mark.parametrize(
    "store",
    [
        ScriptedStore((True, lost()), gets=(short(),)),
        ScriptedStore((True, lost()), gets=(3,)),
        ScriptedStore((True, lost()), busy(), gets=(short(), short())),
        ScriptedStore((True, lost()), StoreRefused("denied"), gets=(lost(), lost())),
        ScriptedStore((True, lost()), *[StoreRefused("denied")] * 3, gets=(lost(), short())),
        ScriptedStore((False, busy()), busy(), busy()),
        ScriptedStore((True, busy())),
    ],
    ids=["short", "cut", "busy", "refused", "refused often", "busy often", "busy and done"],
)
async def test_what_is_no_answer_is_read_back(store: ScriptedStore) -> None:
    """A conflict, a short body or a refusal proves nothing, so the put is read back."""
    clock = SwiftClock()

    there = await conditional.create_or_read(store, "k", b"ours", clock=clock)

    assert there == b"ours"
    assert (await store.get("k")).data == b"ours"


@pytest.mark.parametrize(
    "store",
    [
        ScriptedStore(*[(True, lost())], *[busy()] * 99, gets=(short(),) * 99),
        ScriptedStore((True, lost()), *[StoreRefused("denied")] * 99, gets=(lost(),) * 99),
        ScriptedStore((True, lost()), gets=(short(),) * 99),
        ScriptedStore((True, lost()), gets=(2,) * 99),
        ScriptedStore((True, busy()), *[StoreRefused("denied")] * 99, gets=(lost(),) * 99),
    ],
    ids=["busy", "refused", "short", "cut", "busy and done"],
)
async def test_what_was_sent_and_cannot_be_read_back_is_unknown(store: ScriptedStore) -> None:
    """A sent write that cannot be read back reports UNKNOWN with the reason."""
    with pytest.raises(LocationError, match="reason=") as failed:
        await conditional.create(store, "k", b"ours", clock=SwiftClock())

    assert failed.value.outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (busy(), ContentionError),
        (LocationError("never left"), LocationError),
        (StoreRefused("denied"), StoreRefused),
    ],
)
async def test_what_was_refused_each_time_is_not_there(
    error: TidelogError, kind: type[TidelogError]
) -> None:
    """A write that was refused at every attempt reports NOT_APPLIED. No attempt is in doubt."""
    old = await (store := ScriptedStore()).put("k", b"old")
    store.puts = [error] * 99

    with pytest.raises(kind) as failed:
        await conditional.replace(store, "k", b"ours", e_tag=old, clock=SwiftClock())

    assert failed.value.outcome is Outcome.NOT_APPLIED
    assert type(failed.value) is kind
    assert (await store.get("k")).data == b"old"


async def test_a_replacement_whose_look_failed_is_read_back_after_a_conflict() -> None:
    """A replacement is read back after a conflict, because an attempt may have landed."""
    old = await (store := ScriptedStore()).put("k", b"old")
    store.puts, store.gets = [(True, lost()), busy()], [lost()]

    await conditional.replace(store, "k", b"ours", e_tag=old, clock=SwiftClock())

    assert (await store.get("k")).data == b"ours"


async def test_what_another_created_is_read() -> None:
    """A create-or-read returns the existing bytes, despite conflicts and refusals on the way."""
    store = ScriptedStore(gets=(short(), lost()))
    await store.put("k", b"theirs")
    store.puts = [busy(), StoreRefused("denied")]
    clock = SwiftClock()

    assert await conditional.create_or_read(store, "k", b"ours", clock=clock) == b"theirs"
    for key, who in (("k", KeyOwner.OTHERS), ("other", KeyOwner.CREATED)):
        assert await conditional.occupy(store, key, b"ours", clock=clock) is who


async def test_a_put_whose_answer_was_lost_is_known_again() -> None:
    """Stored bytes identify a put without an answer; an opener would fence again and again."""
    store = ScriptedStore((True, lost()))
    clock = SwiftClock()

    assert await conditional.occupy(store, "k", b"ours", clock=clock) is KeyOwner.OURS
