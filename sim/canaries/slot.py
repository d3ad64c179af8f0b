"""Broken logs of slot commits, which the simulator must catch; see `sim.canaries.builds`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from tidelog.store.conditional import KeyOwner
from tidelog.store.port import Store
from tidelog.wal.append.work import Work
from tidelog.wal.format.fragment_sets import KeySet, key_set_of
from tidelog.wal.format.link import FenceLink, Tail
from tidelog.wal.format.streams import Streams
from tidelog.wal.slot_protocol import chain as walk
from tidelog.wal.slot_protocol import fencing as opener
from tidelog.wal.slot_protocol.chain_reader import End
from tidelog.wal.slot_protocol.pipeline import Pipeline, SendWindow, SentBatch, admit


@contextmanager
def slot_acknowledges_out_of_order() -> Iterator[None]:
    """A batch is acknowledged after its own put, without regard to earlier slots."""

    def eager(self: Pipeline, *, below: int | None = None) -> Iterator[SentBatch]:
        for slot in sorted(self._sent):
            if slot in self._window.done or slot < (below or self._window.committed):
                yield self._sent.pop(slot)

    with patch.object(Pipeline, "settled", eager):
        yield


@contextmanager
def slot_opener_sends_one_fence() -> Iterator[None]:
    """An opener relies on one fence past data under way, without a look at the slots below."""
    real = opener.Fencer._end

    async def believes(self: opener.Fencer, known: Any, fence: FenceLink) -> Any:
        tail: Tail = known.tail
        slot = tail.slot + tail.epoch.alpha - 1
        if fence.next is None:
            return await real(self, known, fence)
        if await self._put(tail.epoch, slot, fence) is not KeyOwner.CREATED:
            return await real(self, known, fence)
        after = replace(fence.next, first_slot=slot)
        newer = replace(tail, slot=slot, epoch=after)
        return replace(known, steps=(*known.steps, after), tail=newer)

    with patch.object(opener.Fencer, "_end", believes):
        yield


@contextmanager
def slot_takes_all_before_a_fence_for_its_own() -> Iterator[None]:
    """A writer that meets a fence acknowledges all earlier slots, answered or not."""
    real = SendWindow.meet_fence

    def trusting(window: SendWindow, slot: int) -> None:
        for earlier in range(window.base, slot):
            window.answer(earlier)
        real(window, slot)

    with patch.object(SendWindow, "meet_fence", trusting):
        yield


@contextmanager
def slot_sends_again_what_is_in() -> Iterator[None]:
    """After an abandoned put, all batches under way are sent again in the next epoch."""
    real = Pipeline.settle

    def forgetful(self: Pipeline, *, below: int | None = None) -> None:
        if below is None:
            real(self)

    with patch.object(Pipeline, "settle", forgetful):
        yield


@contextmanager
def slot_takes_doubt_for_a_loss() -> Iterator[None]:
    """A writer guesses the end of its epoch from the answers instead of reading it."""

    async def guessed(_: Store, epoch: Any, **__: Any) -> End:
        return End(0, epoch)

    with patch("tidelog.wal.slot_protocol.writer.end_of_epoch", guessed):
        yield


@contextmanager
def slot_acknowledges_past_a_fence() -> Iterator[None]:
    """Records past the first fence of an epoch count as written."""
    with patch.object(SendWindow, "committed", property(_all_done)):
        yield


def _all_done(window: SendWindow) -> int:
    slot = window.base
    while slot in window.done or slot == window.fence:
        slot += 1
    return slot


@contextmanager
def slot_appends_to_closed_streams() -> Iterator[None]:
    """Appends do not check that their stream is open."""

    def lenient(streams: Streams, batch: Sequence[Work]) -> Any:
        admitted, refused = admit(streams, batch)
        late = [work for work, _ in refused if work.control is None]
        return [*admitted, *late], [one for one in refused if one[0].control is not None]

    with patch("tidelog.wal.slot_protocol.pipeline.admit", lenient):
        yield


@contextmanager
def slot_forgets_streams_in_roll_ups() -> Iterator[None]:
    """A roll-up does not update the table of open streams, so the next writer sees old ones."""
    real = walk._with_fragment

    def kept(manifest: Any, chain: Any, one: Any, *, writer: str) -> Any:
        after: Any = real(manifest, chain, one, writer=writer)
        return replace(after, chain=replace(after.chain, streams=chain.streams))

    with patch.object(walk, "_with_fragment", kept):
        yield


@contextmanager
def slot_link_leaves_a_key_out() -> Iterator[None]:
    """A slot's key set lacks one of several keys, so readers of that key skip the object."""

    def short(keys: Any) -> KeySet:
        held = key_set_of(keys)
        return held[1:] if isinstance(held, tuple) and len(held) > 1 else held

    with patch("tidelog.wal.format.slot_object.key_set_of", short):
        yield


@contextmanager
def slot_says_durable_what_is_ordered() -> Iterator[None]:
    """The durable position includes batches that have a slot but are not stored."""
    real = Pipeline.launch

    def told(self: Pipeline, *placed: Any) -> SentBatch | None:
        sent = real(self, *placed)
        self.queue.durable.advance(self.tail.position)
        return sent

    with patch.object(Pipeline, "launch", told):
        yield


FOR_SLOTS: Final[tuple[Callable[[], AbstractContextManager[None]], ...]] = (
    slot_acknowledges_out_of_order,
    slot_opener_sends_one_fence,
    slot_takes_all_before_a_fence_for_its_own,
    slot_sends_again_what_is_in,
    slot_takes_doubt_for_a_loss,
    slot_acknowledges_past_a_fence,
    slot_appends_to_closed_streams,
    slot_forgets_streams_in_roll_ups,
    slot_link_leaves_a_key_out,
    slot_says_durable_what_is_ordered,
)
