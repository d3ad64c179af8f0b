"""Writers that lose the store: they end only their own epochs, and report the right outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kit.protocols import SLOTS, contents, outcome_of, slot_store, slot_writer
from kit.stores import InterposedStore
from tidelog.errors import Fenced, LocationError, Outcome
from tidelog.store.conditional import Resend

ONCE = Resend(attempts=1)
LONG_S = 20.0  # Far longer than any wait here, even on a busy machine.


class CutConnection:
    """A connection that fails while it is cut; after ``requests_max`` it awaits ``healed``."""

    def __init__(self, prefix: str = "", *, requests_max: int = 10**9) -> None:
        self.is_cut = False
        self.prefix = prefix
        self.left = requests_max
        self.healed: Callable[[], Awaitable[object]] | None = None
        self._healing = asyncio.Lock()

    async def __call__(self, op: str, key: str) -> None:
        if not self.is_cut or not key.startswith(self.prefix):
            return
        self.left -= 1
        async with self._healing:  # Other requests wait here.
            if not self.left and self.healed is not None:
                await self.healed()
                self.is_cut = False
        outcome = Outcome.UNKNOWN if op == "put" else Outcome.NOT_APPLIED
        raise LocationError("cut", outcome=outcome)


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
@pytest.mark.parametrize("requests", [1, 4, 10**9])
async def test_who_was_fenced_never_fences_their_successor(closed: bool, requests: int) -> None:
    """A fenced writer fences no successor, neither with a put in doubt nor by later appends."""
    way = CutConnection(requests_max=requests)
    inner = await slot_store()
    one = slot_writer(InterposedStore(inner, before=way), name="one")
    one.resend = ONCE
    assert await one.append([b"one"]) == 1
    other = slot_writer(inner, name="other")

    async def take_over() -> None:
        assert await other.append([b"three"]) == 2
        if closed:
            await other.close()

    one._maintenance.interval_us = 10**12
    way.is_cut, way.healed = True, take_over
    outcome = await outcome_of(one.append([b"two"]))
    if requests == 10**9:
        assert outcome is Outcome.UNKNOWN
        await take_over()
        way.is_cut = False
    else:
        assert outcome is Outcome.NOT_APPLIED
    for _ in range(2):
        with pytest.raises(Fenced, match="by='other'"):
            await one.append([b"four"])
    await one.close()

    if not closed:
        assert await other.append([b"five"]) == 3
        await other.close()
    wanted = {1: b"one", 2: b"three"} | ({} if closed else {3: b"five"})
    assert await contents(SLOTS, inner) == wanted


async def test_a_writer_goes_on_over_its_own_fences() -> None:
    """A writer records its fences before it sends them, and continues over its own."""
    way = CutConnection("epoch/")
    inner = await slot_store()

    async def lose_answers(op: str, key: str) -> None:
        if way.is_cut and op == "put" and key.startswith("epoch/"):
            raise LocationError("lost", outcome=Outcome.UNKNOWN)

    writer = slot_writer(InterposedStore(inner, before=_cut_reads(way), after=lose_answers))
    writer.resend = ONCE
    assert await writer.append([b"one"]) == 1

    for number in range(2):
        way.is_cut = True
        assert await outcome_of(writer.append([b"lost %d" % number])) is not Outcome.APPLIED
        way.is_cut = False
    async with asyncio.timeout(LONG_S):
        last = await writer.append([b"two"])
        await writer.close()

    found = await contents(SLOTS, inner)
    assert found[last] == b"two"
    assert max(found) == last


def _cut_reads(way: CutConnection) -> Callable[[str, str], Awaitable[None]]:
    async def before(op: str, key: str) -> None:
        if op == "get":
            await way(op, key)

    return before


async def test_what_cannot_be_opened_was_not_sent() -> None:
    """An append whose epoch cannot be opened was never sent, so it reports NOT_APPLIED."""
    way = CutConnection("epoch/")
    way.is_cut = True
    inner = await slot_store()
    writer = slot_writer(InterposedStore(inner, before=way))

    assert await outcome_of(writer.append([b"one"])) is Outcome.NOT_APPLIED
    await writer.close()
