"""Scrub of a slot log: its manifest's tree, then the chain of links to the end.

In addition to the checks of `scrub`, it compares every link with the log's setsum, positions and
bytes before it. It also checks that the fences that the manifest has passed exist, and name the
same next epochs. Objects past a fence are void, so they are not faults. For a range, it checks the
fences between the range's slots.

Past the manifest, a lost slot looks like the end of the log. But its later objects prove the loss.
A writer does not write into an epoch without a fence that leads to it, and does not put records
alpha or more slots past the first missing one. A fence also states which slots its opener saw
taken.
Source: wal3, "Scrub"; design page 3, "Slot commit".
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tidelog.core.clock import run_all
from tidelog.errors import CorruptionError, ObjectNotFound
from tidelog.wal.format.epoch_chain import Seal
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.link import DataLink, Epoch, FenceLink, Tail
from tidelog.wal.format.manifest import MANIFEST, Manifest, chain_of, tail_of
from tidelog.wal.format.paths import place_of
from tidelog.wal.format.pin import PINS, Pin, pin_name, problems_of_pin
from tidelog.wal.format.slot_object import decode_data, problems_of_data
from tidelog.wal.gc.pin_objects import read_pin
from tidelog.wal.gc.pin_reach import reached_by
from tidelog.wal.read.epoch_history import with_all_epochs, with_epochs_of
from tidelog.wal.read.head import read_again
from tidelog.wal.scrub.report import Before, Problem, ScrubRange, ScrubReport
from tidelog.wal.scrub.tree_scrub import StartScrub, TreeScrub, scrub_again
from tidelog.wal.slot_protocol.chain_reader import ChainReader
from tidelog.wal.slot_protocol.link_reader import read_link
from tidelog.wal.slot_protocol.reader import SlotReader


async def scrub_slots(
    reader: SlotReader,
    start: int = 0,
    limit: int | None = None,
    *,
    run_by: StartScrub | None = None,
) -> ScrubReport:
    """Read a slot log, or its positions ``[start, limit)``, and check everything; see `scrub`.

    Raises:
        UsageError: the range is empty.
        NoSuchLog: the log does not exist.
        PositionCollected: ``start`` was collected, before or during the scrub.
        CorruptionError: the manifest cannot be read, so the expected objects are unknown.
        LocationError: the store failed.
    """
    within = ScrubRange(start, limit)

    async def once(manifest: Manifest) -> ScrubReport:
        run = (run_by or TreeScrub)(reader.tree, ScrubReport(), _examined, within)
        await run.tree(manifest)
        await _fences(run, manifest)
        tail = await _tail(run, manifest)
        await run.settle()
        await run.forgive(manifest)
        await _pins(run)
        await run.others()
        if tail is not None and await _beyond(run, tail):
            tail = (await reader.end()).tail  # The object may only be newer than the walk.
            for path in await _beyond(run, tail):
                run.tell(
                    path, f"the log ends before it, at {tail.path}: the object there is missing"
                )
        return run.found

    return await scrub_again(partial(reader.manifest, checked=False), once)


async def _fences(run: TreeScrub, manifest: Manifest) -> None:
    """Check the fences between a manifest's epochs, its seal, and the paths of its slots."""
    store, chain = run.reader.store, chain_of(manifest)
    try:
        if run.within.is_all:
            known = await with_all_epochs(store, chain)
            chain = known.chain
            run.named |= known.paths
        elif run.slots:
            chain = await with_epochs_of(store, chain, min(run.slots.values()))
    except CorruptionError as error:
        run.tell(MANIFEST, str(error))
    for path, slot in run.slots.items():
        if chain.knows(slot) and path != chain.of(slot).path(slot):
            # The object may exist now, but nothing protects it for this log.
            run.tell(
                path,
                "its path does not match the log's epochs, or belongs to another log",
            )
    ends: list[tuple[Epoch, int, Epoch | Seal]] = []
    for ending, slot in chain.ends():
        following = chain.after(ending) or chain.seal
        # Otherwise the epochs are out of order, which is reported for the manifest.
        if following is not None:
            ends.append((ending, slot, following))
    if not run.within.is_all:
        first, last = min(run.slots.values(), default=1), max(run.slots.values(), default=0)
        ends = [end for end in ends if first <= end[1] <= last + 1]
    work = [partial(_fence, run, *end) for end in ends]
    await run_all(work, at_once=run.reader.reads)


async def _pins(run: TreeScrub) -> None:
    """Check the objects that pins hold and the log no longer names."""
    if not run.within.is_all:
        return
    async for entry in run.reader.store.list(PINS):
        if pin_name(entry.key) is None:
            continue
        run.named.add(entry.key)
        e_tag, problems, paths = "", list[Problem](), set[str]()
        while True:
            try:
                found = await read_pin(run.reader.store, entry.key)
            except CorruptionError as error:
                run.tell(entry.key, str(error))
                break
            if found is None:
                break  # The pin was deleted concurrently.
            if found.e_tag == e_tag:
                run.found.problems += problems
                break
            # Check again after a fault: the pin may have been released and swept concurrently.
            e_tag = found.e_tag
            problems, paths = await _problems_of_pin(run, found.pin)
            if not problems:
                break
        run.named |= paths


async def _problems_of_pin(run: TreeScrub, pin: Pin) -> tuple[list[Problem], set[str]]:
    """Return the faults of a pin, and the paths that it holds."""
    reader = run.reader
    if not pin.is_held:
        return [], set()
    try:
        held = [child async for child in reached_by(reader.store, reader.clock, pin)]
    except CorruptionError as error:
        return [Problem(pin.path, str(error))], set()
    children = [child for child in held if child.limit > pin.start and child.path not in run.named]
    # `reached_by` has read and checked the snapshots.
    problems = [Problem(pin.path, why) for why in problems_of_pin(pin)]
    for child in children:
        if isinstance(child, Fragment):
            problems += await _problems_of_pinned(run, child, is_sure=pin.is_sure)
    return problems, {child.path for child in children}


async def _problems_of_pinned(
    run: TreeScrub, fragment: Fragment, *, is_sure: bool
) -> list[Problem]:
    path = fragment.path

    async def once() -> list[str]:
        data = (await run.reader.store.get(path)).data
        link, records = decode_data(data, path=path)
        return problems_of_data(records, link, len(data), fragment, with_setsum=True)

    try:
        return [Problem(path, why) for why in await read_again(once)]
    except ObjectNotFound:
        # A pin that is not sure may have come too late, and its creator got no answer that it
        # holds.
        return [Problem(path, "it is missing, though a pin holds it")] if is_sure else []
    except CorruptionError as error:
        return [Problem(path, str(error))]


async def _fence(run: TreeScrub, ending: Epoch, slot: int, following: Epoch | Seal) -> None:
    """Check that the fence that ended an epoch names the same next epoch as the manifest."""
    path = ending.path(slot)
    run.named.add(path)
    try:
        link, _ = await read_link(run.reader.store, path)
    except ObjectNotFound:
        run.tell(path, "the fence that ended the epoch is missing")
    except CorruptionError as error:
        run.tell(path, str(error))
    else:
        if not isinstance(link, FenceLink) or (link.epoch, link.slot) != (ending.name, slot):
            run.tell(path, "it is not the fence that ended the epoch")
        elif _own(following) != _following(link):
            run.tell(path, "the manifest names another next epoch, or another seal")


def _following(link: FenceLink) -> Epoch | Seal:
    return link.next or Seal(slot=link.slot, successor=link.successor, reach=link.reach)


def _own(following: Epoch | Seal) -> Epoch | Seal:
    """Return the epoch or seal as a fence states it, without the name of a shared log."""
    return replace(following, log="") if isinstance(following, Epoch) else following


async def _tail(run: TreeScrub, manifest: Manifest) -> Tail | None:
    """Check the slots past the manifest; return the end of the log if the walk succeeded."""
    tail, limit = tail_of(manifest), run.within.limit
    if chain_of(manifest).seal is not None or (limit is not None and limit <= tail.position):
        return tail
    walker = ChainReader(store=run.reader.store, clock=run.reader.clock, reads=run.reader.reads)
    try:
        async for passed in walker.walk(tail):
            run.named.add(tail.path)
            step = passed.step
            if isinstance(step, Fragment) and run.within.holds(step.start, step.limit):
                await run.bytes_of(step, passed.data, Before(tail.setsum, tail.log_bytes))
            tail = passed.tail
            if limit is not None and limit <= tail.position:
                return tail
    except CorruptionError as error:
        run.named.add(tail.path)
        run.tell(tail.path, str(error))
        return None
    return tail


async def _beyond(run: TreeScrub, tail: Tail) -> list[str]:
    """Return the objects that cannot exist if the log ends at ``tail``."""
    found = []
    is_taken = await _is_there(run, tail.path)  # A seal is there, and all objects past it are void.
    for path in run.found.unnamed:
        if (place := place_of(path)) is None:
            continue
        if place.number > tail.epoch.number:
            found.append(path)
        elif place.epoch == tail.epoch.name and place.slot > tail.slot and not is_taken:
            found += [path] if await _is_proof(run, path, place.slot, tail) else []
    return found


async def _is_there(run: TreeScrub, path: str) -> bool:
    try:
        await run.reader.store.get(path, limit=1)
    except ObjectNotFound:
        return False
    return True


async def _is_proof(run: TreeScrub, path: str, slot: int, tail: Tail) -> bool:
    """Return True if an object of the last epoch proves that the log once went past ``tail``."""
    try:
        link, _ = await read_link(run.reader.store, path)
    except ObjectNotFound:
        return False
    except CorruptionError:
        # It may be data, which only a writer past the tail would put there.
        return slot >= tail.slot + tail.epoch.alpha
    if isinstance(link, FenceLink):
        return link.seen > tail.slot
    return slot >= tail.slot + tail.epoch.alpha


def _examined(data: bytes, fragment: Fragment, before: Before) -> tuple[list[str], int]:
    link, records = decode_data(data, path=fragment.path)
    problems = problems_of_data(records, link, len(data), fragment, with_setsum=True)
    if isinstance(link, DataLink) and not problems:
        if link.log_setsum != before.setsum + link.setsum:
            problems.append("its link's log_setsum differs from the setsum of the log up to it")
        if link.log_bytes != before.bytes:
            problems.append(
                f"its link declares {link.log_bytes} bytes before it, not {before.bytes}"
            )
    return problems, records.num_rows
