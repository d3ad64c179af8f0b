"""The end of an epoch: its fence decides which slots of the epoch are in the log.

All slots below the first fence hold data; those at or after it are void. So once the log has been
opened again, an append that ended in `OutcomeUnknown` is decided.
Source: design page 3, "Append".
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.core.clock import Clock
from tidelog.store.port import Store
from tidelog.wal.format.epoch import Epoch
from tidelog.wal.format.epoch_chain import Chain, Seal
from tidelog.wal.read.epoch_history import with_epoch
from tidelog.wal.read.head import load_head
from tidelog.wal.slot_protocol.chain import chain_of, has_passed, tail_of
from tidelog.wal.slot_protocol.chain_reader import ChainReader


@dataclass(frozen=True, slots=True)
class End:
    """The slot of the fence that ended an epoch, and the epoch or seal that follows."""

    slot: int
    after: Epoch | Seal


async def end_of_epoch(store: Store, epoch: Epoch, *, clock: Clock) -> End | None:
    """Return the end of an epoch, or None if it has not ended.

    Raises:
        CorruptionError: the log is broken.
        LocationError: the store failed.
    """
    while True:
        manifest = (await load_head(store)).manifest
        known = await with_epoch(store, chain_of(manifest), epoch)
        if (end := _end_in(known, epoch)) is not None:
            return end
        tail, end = tail_of(manifest), None
        async for passed in ChainReader(store=store, clock=clock).walk(tail):
            if isinstance(passed.step, Epoch | Seal) and tail.epoch.name == epoch.name:
                end = End(tail.slot, passed.step)
                break
            tail = passed.tail
        # Believe the walk only if the manifest, read after it, agrees: a missing slot or a fence
        # may be where collected data was.
        newer = (await load_head(store)).manifest
        if end is not None:
            after = end.after.name if isinstance(end.after, Epoch) else None
            if not has_passed(newer, epoch, end.slot, after):
                return end
        elif newer.next_seq_no <= tail.slot and chain_of(newer) == chain_of(manifest):
            return None


def _end_in(chain: Chain, epoch: Epoch) -> End | None:
    if (following := chain.after(epoch)) is not None:
        return End(following.first_slot, following)
    if chain.seal is not None and chain.last.name == epoch.name:
        return End(chain.seal.slot, chain.seal)
    return None
