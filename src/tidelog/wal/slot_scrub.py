"""Scrubbing a slot log: its manifest's tree, then the chain of links to the end.

Besides what `scrub` checks: past the manifest, every link against the log's setsum, positions and
bytes before it; and that the fences which the manifest has passed are there, as it says. What lies
past a fence is void, and no fault.
Source: wal3, "Scrub"; design page 3, "Slot commit".
"""

from __future__ import annotations

from functools import partial

from tidelog.clock import run_all
from tidelog.errors import CorruptionError, ObjectNotFound
from tidelog.wal.epoch import Epoch
from tidelog.wal.link import FenceLink
from tidelog.wal.manifest import Fragment, Manifest
from tidelog.wal.scrub import Scrubbed, TreeScrub
from tidelog.wal.slot import decode_link
from tidelog.wal.slot_reader import SlotReader, examined_data
from tidelog.wal.walk import chain_of, tail_of
from tidelog.wal.walker import Walker


async def scrub_slots(reader: SlotReader) -> Scrubbed:
    """Read a whole slot log and check all of it.

    Raises:
        NoSuchLog: there is none. CorruptionError: its manifest cannot be read, so that nothing
            says what there should be. LocationError: the store failed.
    """
    manifest = await reader.manifest()
    found = Scrubbed()
    run = TreeScrub(reader.tree, found, _examined)
    await run.tree(manifest)
    await _fences(run, manifest)
    await _tail(run, manifest)
    await run.others()
    return found


async def _fences(run: TreeScrub, manifest: Manifest) -> None:
    """Check the fences between the epochs of a manifest, and its seal."""
    chain = chain_of(manifest)
    ends: list[tuple[Epoch, int, str | None]] = []
    for ending, slot in chain.ends():
        following = chain.after(ending)
        ends.append((ending, slot, None if following is None else following.name))

    async def check(ending: Epoch, slot: int, following: str | None) -> None:
        path = ending.path(slot)
        run.named.add(path)
        try:
            link = decode_link((await run.reader.store.get(path)).data, path=path)
        except ObjectNotFound:
            run.tell(path, "the fence that ended the epoch is not there")
        except CorruptionError as error:
            run.tell(path, str(error))
        else:
            if not isinstance(link, FenceLink) or (link.epoch, link.slot) != (ending.name, slot):
                run.tell(path, "it is not the fence that ended the epoch")
            elif following != (None if link.next is None else link.next.name):
                run.tell(path, "it names another epoch than the manifest")

    await run_all([partial(check, *end) for end in ends], at_once=run.reader.reads)


async def _tail(run: TreeScrub, manifest: Manifest) -> None:
    """Check what the manifest does not name yet."""
    tail = tail_of(manifest)
    if chain_of(manifest).seal is not None:
        return
    walker = Walker(store=run.reader.store, clock=run.reader.clock, reads=run.reader.reads)
    try:
        async for passed in walker.walk(tail):
            run.named.add(tail.path)
            if isinstance(passed.step, Fragment):
                await run.bytes_of(passed.step, passed.data)
            tail = passed.tail
    except CorruptionError as error:
        run.named.add(tail.path)
        run.tell(tail.path, str(error))


def _examined(data: bytes, fragment: Fragment) -> tuple[list[str], int]:
    records, problems = examined_data(data, fragment)
    return problems, records.num_rows
