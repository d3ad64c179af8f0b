"""Past faults of logs, put back: the simulator, which once missed them, must now catch each.

See `sim.canaries.builds`. The faults: a log reported committed records as not applied. A fenced
writer took the log back. A rebuild began the log at collected objects, or refused an intact log. An
opener fenced only slots that a busy writer had passed. A late put replaced an existing object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from unittest.mock import patch

from sim.kernel.world import WayToStore
from tidelog.errors import ContentionError, CorruptionError, TidelogError
from tidelog.store.conditional import _Found, _Write
from tidelog.wal.admin import chain_recovery
from tidelog.wal.admin.found_slots import FoundEpochs
from tidelog.wal.format.link import FIRST_SLOT
from tidelog.wal.slot_protocol import burst
from tidelog.wal.slot_protocol.burst import Burst
from tidelog.wal.slot_protocol.fencing import Fencer


@contextmanager
def a_conflict_is_told_as_a_refusal() -> Iterator[None]:
    """A put with a 409 counts as not applied, though an earlier try of it may have landed."""
    real = _Write._is_refused

    def at_once(self: _Write, error: TidelogError) -> bool:
        return type(error) is ContentionError or real(self, error)

    with patch.object(_Write, "_is_refused", at_once):
        yield


@contextmanager
def a_look_that_was_cut_short_ends_the_write() -> Iterator[None]:
    """The writer takes a short answer of the read-back for the outcome of its put."""
    real = _Write._look

    async def once(self: _Write) -> _Found:
        try:
            await self._store.get(self._key)
        except CorruptionError:
            raise
        except TidelogError:
            pass
        return await real(self)

    with patch.object(_Write, "_look", once):
        yield


@contextmanager
def a_fenced_writer_takes_the_log_back() -> Iterator[None]:
    """A writer that resumes after a doubt ends any epoch it meets, not only its own."""
    real = Fencer.open

    async def over_all(self: Fencer, *, lanes: int, alpha: int, **_: object) -> Any:
        return await real(self, lanes=lanes, alpha=alpha)

    with patch.object(Fencer, "open", over_all):
        yield


@contextmanager
def rebuild_begins_where_anything_is_left() -> Iterator[None]:
    """A rebuilt log begins at the oldest object, even if it is collected or only pinned."""

    def oldest(epochs: FoundEpochs, *_: object) -> int:
        return min(epochs.newest, default=FIRST_SLOT)

    with patch.object(chain_recovery, "_first_slot", oldest):
        yield


@contextmanager
def rebuild_refuses_what_fences_void() -> Iterator[None]:
    """Records past the fence of their epoch count as a sign of missing data."""
    real = chain_recovery._refuse_rest

    def strict(epochs: FoundEpochs, *rest: Any, is_sealed: bool) -> None:
        real(epochs, *rest, is_sealed=is_sealed)
        if len(epochs.data) > len(epochs.newest):
            raise CorruptionError("a slot has records of two epochs")

    with patch.object(chain_recovery, "_refuse_rest", strict):
        yield


@contextmanager
def what_lands_late_replaces_what_is_there() -> Iterator[None]:
    """The store ignores the condition of a put whose client is dead when it arrives."""

    async def put(
        self: WayToStore,
        key: str,
        data: bytes,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
    ) -> str:
        async def act(_: float, here: Any, watchers: Sequence[Any]) -> str:
            if self._client.is_dead:
                return str(await here.put(key, data))  # No watcher sees it; only a reader does.
            e_tag = await here.put(key, data, if_absent=if_absent, if_match=if_match)
            for watcher in watchers:
                watcher.on_put(key, data)
            return str(e_tag)

        return await self._send("put", key, (if_absent, if_match, data), act)

    with patch.object(WayToStore, "put", put):
        yield


@contextmanager
def opener_starts_over_where_it_began() -> Iterator[None]:
    """After a busy writer passed a burst of fences, the next burst has the same width."""
    real = burst.note_answers

    def no_farther(one: Burst, *, ours: frozenset[int], taken: frozenset[int]) -> Burst:
        noted = real(one, ours=ours, taken=taken)
        return noted if noted.ours else burst.begin(max(noted.taken) + 1, alpha=one.alpha)

    with (
        patch.object(Burst, "signs", property(lambda one: range(one.base, one.base + 1))),
        patch("tidelog.wal.slot_protocol.fencing.note_answers", no_farther),
    ):
        yield


Canary = Callable[[], AbstractContextManager[None]]

IN_SLOTS: Final[tuple[Canary, ...]] = (
    a_conflict_is_told_as_a_refusal,
    a_fenced_writer_takes_the_log_back,
    rebuild_refuses_what_fences_void,
    what_lands_late_replaces_what_is_there,
)
IN_LOGS: Final[tuple[Canary, ...]] = (
    a_conflict_is_told_as_a_refusal,
    a_look_that_was_cut_short_ends_the_write,
)
IN_COLLECTIONS: Final[tuple[Canary, ...]] = (rebuild_begins_where_anything_is_left,)
