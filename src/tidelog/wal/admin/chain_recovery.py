"""The recovery of a slot log's manifest from the links of its objects. Pure.

A data link gives the positions of its records, and the sums of the log up to it. A fence names the
next epoch. The collection plan (see `gc_plan`) states where the log begins: no data is deleted
before the plan is written, and a copy writes its plan before its manifest. From there the recovery
walks the log as a reader does. A log without a plan begins as new logs do: at position 1, with no
streams.

Everything below the beginning was collected, even if some objects remain. Pins and forks hold some,
an aborted deletion left some, and a late put may have restored some. A suspended opener may also
have put a stray fence there; above the beginning, no fence can be stray. So below it, fences show
only the order of epochs, and each epoch has exactly one predecessor.

Invariants: a writer writes data only into an epoch that it has verified, so all epochs with data
belong to the log. If there is data that the walk neither met nor proved void, the recovery fails.
Either a record is missing, or a writer died over one and no other has taken the log over.
Source: design page 3, "Rebuild"; docs/internals/log-forks.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tidelog.core.setsum import Setsum
from tidelog.errors import CorruptionError, NoSuchLog, UsageError
from tidelog.wal.admin.found_slots import FoundEpochs, FoundSlot, epochs_of, fences_after
from tidelog.wal.format.epoch_chain import Chain, Seal
from tidelog.wal.format.fragment_sets import is_listed
from tidelog.wal.format.gc_plan import GARBAGE, Garbage
from tidelog.wal.format.link import FIRST_SLOT, DataLink, Epoch, FenceLink, Link, Tail
from tidelog.wal.format.manifest import FIRST_POSITION, Manifest
from tidelog.wal.format.streams import CLOSE, OPEN, StreamInfo, Streams
from tidelog.wal.slot_protocol.chain import Step, extend, step


@dataclass(frozen=True, slots=True)
class _LogBeginning:
    """The beginning of a log: the epochs up to it, and the tail there."""

    epochs: tuple[Epoch, ...]
    tail: Tail


def relink(
    found: Sequence[FoundSlot], *, plan: Garbage | None, writer: str, start: int | None = None
) -> Manifest:
    """Return the manifest of the log that the objects belong to.

    ``plan`` is the log's collection plan. None means that it does not exist: then nothing was ever
    collected, and the log is not a copy. ``start`` is a position from which the log is known to be
    complete; it replaces a lost plan.

    Raises:
        NoSuchLog: the log was dropped.
        UsageError: no object begins at ``start``.
        CorruptionError: the objects do not form a log: its first epoch is unknown, an object is
        missing, or there are records past its end; or the log is a copy without its plan.
    """
    if plan is not None and plan.is_destroyed:
        raise NoSuchLog(
            "the log was dropped, so it cannot be rebuilt: create a log of another name"
        )
    epochs = epochs_of(found)
    slot = _first_slot(epochs, plan, start)
    begin = _begin(epochs, slot, None if start is not None else plan, start)
    steps, tail = _walk(epochs, begin.tail)
    way = [*begin.epochs, *(one for one in steps if isinstance(one, Epoch))]
    is_sealed = bool(steps) and isinstance(steps[-1], Seal)
    _refuse_rest(epochs, way, slot, tail, is_sealed=is_sealed)
    return extend(_manifest_at(begin, writer), steps, writer=writer)


def _first_slot(epochs: FoundEpochs, plan: Garbage | None, start: int | None) -> int:
    """Return the slot where the log begins.

    The plan may be carried out fully, partly or not at all. If all objects that it deletes still
    exist, and their links lead to the kept ones, the log begins before them: this loses nothing.
    """
    if start is not None:
        there = [one for one in epochs.newest.values() if one.link.start == start]
        if not there:
            raise UsageError(
                "no object of the log begins at that start: choose the first position of a stored "
                "object after which no object is missing",
                start=start,
            )
        return max(there, key=lambda one: (one.number, -one.link.slot)).link.slot
    if plan is None:
        return FIRST_SLOT
    first, limit = (max(at, FIRST_SLOT) for at in (plan.fragments_start, plan.fragments_limit))
    return first if limit - len(epochs.run_to(limit)) <= first else limit


def _begin(
    epochs: FoundEpochs, slot: int, plan: Garbage | None, start: int | None
) -> _LogBeginning:
    if slot == FIRST_SLOT:
        return _begin_of_all(epochs, plan, start)
    data = epochs.newest.get(slot)
    if data is None:
        raise CorruptionError(
            f"the object of slot {slot} is missing, but the log begins there according to its "
            "collection plan: restore the object; nothing was written"
        )
    link = data.link
    way = epochs.way_to(link.epoch, slot)
    tail = Tail(
        epoch=way[-1],
        slot=slot,
        position=link.start,
        setsum=link.log_setsum - link.setsum,
        log_bytes=link.log_bytes,
        streams=_streams_at(epochs, slot, plan),
    )
    return _LogBeginning(way, tail)


def _begin_of_all(epochs: FoundEpochs, plan: Garbage | None, start: int | None) -> _LogBeginning:
    """Return the beginning of a log from which nothing was collected: a new log or a copy.

    Raises:
        CorruptionError: the log is a copy whose plan is missing or belongs to another copy.
    """
    genesis, data = epochs.genesis, epochs.newest.get(FIRST_SLOT)
    # The plan may be left over from an aborted copy, or a concurrent copy may have replaced this
    # one's.
    is_anothers = plan is not None and plan.first_epoch not in (None, genesis.name)
    own = None if is_anothers else plan
    position = FIRST_POSITION if own is None else own.first_to_keep
    if data is not None and (start is not None or (own is not None and not own.is_empty)):
        position = data.link.start  # The caller knows the start, or the plan was not carried out.
    is_known = not is_anothers if data is None else data.link.start == position
    if not is_known:
        raise CorruptionError(
            "the log seems to be a copy, and its collection plan does not name its first "
            "position: pass a start after which no object is missing, or copy the log again; if "
            "it is not a copy, move the plan away; nothing was written",
            plan=GARBAGE,
            expected=genesis.name,
        )
    is_new = own is None and start is None
    tail = Tail(
        epoch=genesis,
        slot=FIRST_SLOT,
        position=position,
        setsum=Setsum.zero(),
        log_bytes=0,
        streams=Streams() if is_new else _streams_at(epochs, FIRST_SLOT, own),
    )
    return _LogBeginning((genesis,), tail)


def _walk(epochs: FoundEpochs, tail: Tail) -> tuple[list[Step], Tail]:
    """Return the steps that a reader would meet, and the tail after them."""
    steps: list[Step] = []
    while (there := epochs.objects.get((tail.epoch.name, tail.slot))) is not None:
        if there.path != tail.path:
            raise CorruptionError(
                "an object is at the wrong path: move it back to the path of its epoch and slot",
                path=there.path,
                expected=tail.path,
            )
        tail, met = step(tail, there.link, there.size_bytes)
        steps.append(met)
        if isinstance(met, Seal):
            break
    return steps, tail


def _refuse_rest(
    epochs: FoundEpochs, way: Sequence[Epoch], begin: int, tail: Tail, *, is_sealed: bool
) -> None:
    """Refuse objects that contradict the beginning and the end of the walk.

    Raises:
        CorruptionError: there are such objects.
    """
    firsts = {epoch.name: epoch.first_slot for epoch in way}
    past = [] if is_sealed else [*fences_after(epochs, tail.epoch, tail.slot)]
    # All objects past a fence are void, even if a lower fence decides.
    void = tail.slot if is_sealed else min((one.link.slot for one in past), default=None)
    for data in epochs.data:
        name, slot = data.link.epoch, data.link.slot
        if name not in firsts or slot < firsts[name]:
            raise _unreached(data.path, tail)
        is_past = name == tail.epoch.name and slot >= tail.slot
        if is_past and (void is None or slot < void):
            raise _unreached(data.path, tail)
    written = {name for name, _ in epochs.objects}
    for fence in past:
        if _proves_more(epochs, fence.link, written, begin, tail):
            raise _unreached(fence.path, tail)


def _proves_more(
    epochs: FoundEpochs, fence: Link, written: Collection[str], begin: int, tail: Tail
) -> bool:
    """Return True if a fence past the end proves that the log did not end there."""
    if not isinstance(fence, FenceLink):
        return False
    if fence.seen > tail.slot:
        return True  # Its opener saw the tail's slot taken.
    if fence.next is None or fence.next.name not in written:
        return False
    # Other writers continued from the epoch that it names, so they had met this fence on their
    # walk. The exception is a stray fence of the same opener, in a slot below the beginning.
    return min(epochs.openings[fence.next.name].fences) >= begin


def _unreached(path: str, tail: Tail) -> CorruptionError:
    return CorruptionError(
        f"the object of slot {tail.slot} is missing, but later objects of the log exist: restore "
        "it; if its writer died there and no other writer has appended since, move the later "
        "objects away; nothing was written",
        missing=tail.path,
        path=path,
    )


def _manifest_at(begin: _LogBeginning, writer: str) -> Manifest:
    """Return the manifest of an empty log that continues at its beginning."""
    tail = begin.tail
    is_first = tail.slot == FIRST_SLOT
    return Manifest(
        setsum=tail.setsum,
        collected=tail.setsum,
        acc_bytes=tail.log_bytes,
        writer=writer,
        initial_offset=None if tail.position == FIRST_POSITION else tail.position,
        initial_seq_no=None if is_first else tail.slot,
        chain=Chain(epochs=begin.epochs, streams_at_start=tail.streams, streams=tail.streams),
    )


def _streams_at(epochs: FoundEpochs, slot: int, plan: Garbage | None) -> Streams:
    """Return the streams open at the log's beginning, from its plan or else from its links."""
    if plan is not None:
        is_before = slot < plan.fragments_limit
        said = plan.streams_before if is_before else plan.streams_at_start
        if said is not None:
            return said
    run, data = list[DataLink](), epochs.newest.get(slot)
    while data is not None:
        run.append(data.link)
        following = epochs.newest.get(data.link.slot + 1)
        data = following if following is not None and following.follows(data) else None
    return open_at_start(run)


def open_at_start(links: Sequence[DataLink]) -> Streams:
    """Return the streams that must have been open before the first link.

    Streams that no link mentions are missing, and so is each meta that was set before.
    """
    start: dict[bytes, StreamInfo] = {}
    open_now: set[bytes] = set()
    for link in links:
        opened = {said.stream for _, said in link.controls if said.op == OPEN}
        named = [stream for stream in link.streams if stream] if is_listed(link.streams) else []
        for stream in named:
            if stream not in open_now and stream not in opened:
                start[stream] = StreamInfo(id=stream, position=0)
                open_now.add(stream)
        for _, said in link.controls:
            if said.op != OPEN and said.stream not in open_now:
                start[said.stream] = StreamInfo(id=said.stream, position=0)
            (open_now.discard if said.op == CLOSE else open_now.add)(said.stream)
    return Streams(start)
