"""Making a slot log's manifest again from the links alone. Pure.

Each data link says where its records stand, and the sums of the log up to it; each fence, which
epoch comes next. Of what was collected no link is left but the newest, which always stays: the
oldest that is there says where the log begins.

Not every fence counts. A sleeper may have put one into a slot that had been collected, and some
lie past the one that decided. So all ways through the fences are looked at. A way is the log's only
if all epochs that hold data are on it, since nobody writes data into an epoch that he does not
believe; and if it holds data, unless there is none at all. Of several, the one is taken that leads
furthest.
Source: design page 3, "Roll-up".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tidelog.errors import CorruptionError, UsageError
from tidelog.setsum import Setsum
from tidelog.wal.format.epoch import FIRST_SLOT, Chain, Epoch, Place, Seal, place_of
from tidelog.wal.format.link import DataLink, FenceLink, Link, fragment_of, plain
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.format.stream_set import is_listed
from tidelog.wal.format.streams import CLOSE, OPEN, Controls, StreamInfo, Streams, apply_controls


@dataclass(frozen=True, slots=True)
class Found:
    """A slot's object that is still there."""

    path: str
    link: Link
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Data:
    link: DataLink
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Epoch:
    """What is there of an epoch: data by slot, and the lowest fence for each end that is named."""

    data: Mapping[int, _Data]
    fences: Mapping[int, FenceLink]


@dataclass(frozen=True, slots=True)
class _Way:
    """A way through epochs, whose last step this is; ``slot`` comes next."""

    before: _Way | None
    epoch: Epoch
    slot: int
    data: tuple[_Data, ...] = ()
    seal: Seal | None = None
    newest: _Data | None = None
    epochs_with_data: frozenset[str] = frozenset()

    @property
    def length(self) -> tuple[int, int, int, bool]:
        """Say how far it leads: by records, by slots, by epochs, and to a seal."""
        limit = 0 if self.newest is None else self.newest.link.limit
        return limit, self.slot, self.epoch.number, self.seal is not None

    def steps(self) -> list[_Way]:
        """Return its steps, oldest first."""
        steps: list[_Way] = []
        step: _Way | None = self
        while step is not None:
            steps.append(step)
            step = step.before
        return steps[::-1]


def relink(found: Sequence[Found], *, writer: str) -> Manifest:
    """Return the manifest of the log to which these objects belong.

    Raises:
        CorruptionError: they do not make a log: its first epoch is not known, or an object in the
        middle is missing.
    """
    epochs = _epochs_of(found)
    begun = {_place(one) for one in found if _place(one).number == 0}
    if len({place.id for place in begun}) != 1:
        raise CorruptionError(
            "the log's first epoch is not to be found: it was a fork, or its first fence is "
            "missing; nothing was written"
        )
    genesis = Epoch(number=0, id=begun.pop().id, first_slot=FIRST_SLOT, opener="")
    holding = frozenset(name for name, epoch in epochs.items() if epoch.data)
    whole = [
        way
        for way in _ways(_Way(None, genesis, FIRST_SLOT), epochs)
        if (way.newest is not None) == bool(holding) and way.epochs_with_data >= holding
    ]
    if not whole:
        raise CorruptionError(
            "the log's objects do not follow each other: one in the middle is missing; nothing was "
            "written"
        )
    return _manifest(max(whole, key=lambda way: way.length), writer)


def _ways(begin: _Way, epochs: Mapping[str, _Epoch]) -> Iterator[_Way]:
    """Yield all ways on from a beginning, each as far as it leads."""
    open_ways = [begin]
    while open_ways:
        way = open_ways.pop()
        there = epochs.get(way.epoch.name, _Epoch({}, {}))
        yield _with_data(way, _run(way, there.data, None))
        for slot, fence in there.fences.items():
            run = _run(way, there.data, slot)
            at = way.slot if way.newest is not None and not run else slot
            if slot < way.slot or (run and run[-1].link.slot + 1 != slot) or at != slot:
                continue
            ended = replace(_with_data(way, run), slot=slot)
            if fence.next is None:
                yield replace(
                    ended, seal=Seal(slot=slot, successor=fence.successor, reach=fence.reach)
                )
            else:
                following = replace(fence.next, first_slot=slot)
                open_ways.append(replace(ended, before=ended, epoch=following, data=()))


def _run(way: _Way, data: Mapping[int, _Data], fence: int | None) -> tuple[_Data, ...]:
    """Return the data with which a way goes on in its epoch, up to the first that is missing."""
    slots = sorted(slot for slot in data if slot >= way.slot and (fence is None or slot < fence))
    run: list[_Data] = []
    for slot in slots:
        before = run[-1] if run else way.newest
        if before is not None and not _follows(before.link, data[slot].link):
            break
        run.append(data[slot])
    return tuple(run)


def _with_data(way: _Way, run: tuple[_Data, ...]) -> _Way:
    if not run:
        return way
    holding = way.epochs_with_data | {way.epoch.name}
    return replace(
        way, data=run, slot=run[-1].link.slot + 1, newest=run[-1], epochs_with_data=holding
    )


def _follows(before: DataLink, link: DataLink) -> bool:
    return (link.slot, link.start, link.log_setsum) == (
        before.slot + 1,
        before.limit,
        before.log_setsum + link.setsum,
    )


def _manifest(way: _Way, writer: str) -> Manifest:
    steps = way.steps()
    data = [one for step in steps for one in step.data]
    at_start = _open_at_start([one.link for one in data])
    controls = tuple(control for one in data for control in one.link.controls)
    chain = Chain(
        epochs=tuple(step.epoch for step in steps),
        seal=way.seal,
        streams_at_start=at_start,
        streams=_after(at_start, controls),
    )
    if not data:
        return Manifest(writer=writer, chain=chain)
    first, last = data[0].link, data[-1]
    collected = first.log_setsum - first.setsum
    is_whole = collected == Setsum.zero() and first.slot == FIRST_SLOT
    return Manifest(
        setsum=last.link.log_setsum,
        collected=collected,
        acc_bytes=last.link.log_bytes + last.size_bytes,
        writer=writer,
        fragments=tuple(plain(fragment_of(one.link, one.path, one.size_bytes)) for one in data),
        initial_offset=None if is_whole else first.start,
        initial_seq_no=None if is_whole else first.slot,
        chain=chain,
    )


def _open_at_start(links: Sequence[DataLink]) -> Streams:
    """Return the streams that must have been open where what is left begins, as links show.

    Those that were opened earlier and are named no more are not among them; nor is any meta of
    before.
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


def _after(streams: Streams, controls: Controls) -> Streams:
    try:
        return apply_controls(streams, controls)
    except UsageError as error:
        raise CorruptionError(
            f"the log's control records do not fit each other ({error.sentence}); nothing was "
            "written"
        ) from error


def _epochs_of(found: Sequence[Found]) -> dict[str, _Epoch]:
    data: dict[str, dict[int, _Data]] = {}
    fences: dict[str, dict[str, tuple[int, FenceLink]]] = {}
    for one in found:
        place = _place(one)
        epoch_data, ends = data.setdefault(place.epoch, {}), fences.setdefault(place.epoch, {})
        if isinstance(one.link, DataLink):
            epoch_data[place.slot] = _Data(one.link, one.path, one.size_bytes)
            continue
        # One opener's fences differ in their slot alone, and the lowest is the one that counts.
        lowest, _ = ends.get(one.link.id, (place.slot, one.link))
        if place.slot <= lowest:
            ends[one.link.id] = place.slot, one.link
    return {
        name: _Epoch(data[name], dict(sorted(fences[name].values(), key=lambda end: end[0])))
        for name in data
    }


def _place(one: Found) -> Place:
    place = place_of(one.path)
    if place is None or (place.epoch, place.slot) != (one.link.epoch, one.link.slot):
        raise CorruptionError("an object is not at its place", path=one.path)
    return place
