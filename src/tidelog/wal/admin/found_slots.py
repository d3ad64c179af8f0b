"""The slot objects of a log whose manifest is lost, by epoch and by slot. Pure.

Several epochs may hold data in the same slot. Data past the fence that ended an epoch is void, and
the next epoch begins at that fence. So only the data of the newest epoch in a slot can count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tidelog.core.setsum import Setsum
from tidelog.errors import CorruptionError
from tidelog.wal.format.link import DataLink, Epoch, FenceLink, Link, Tail, first_epoch
from tidelog.wal.format.paths import Place, place_of
from tidelog.wal.slot_protocol.chain import step


@dataclass(frozen=True, slots=True)
class FoundSlot:
    """An existing object of a slot."""

    path: str
    link: Link
    size_bytes: int

    @property
    def place(self) -> Place:
        """Return the object's place, by its path and its link.

        Raises:
            CorruptionError: the path and the link disagree.
        """
        place = place_of(self.path)
        if place is None or (place.epoch, place.slot) != (self.link.epoch, self.link.slot):
            raise CorruptionError(
                "an object is at the wrong path: move it back to the path of its epoch and slot",
                path=self.path,
                epoch=self.link.epoch,
                slot=self.link.slot,
            )
        return place


@dataclass(frozen=True, slots=True)
class FoundData:
    """An existing object of a slot with records."""

    number: int  # The epoch's number.
    link: DataLink
    path: str
    size_bytes: int

    def follows(self, before: FoundData | None) -> bool:
        """Return True if the sums of the link prove that it continues the log after ``before``."""
        if before is None:
            return False
        one, other = before.link, self.link
        return (other.slot, other.start, other.log_setsum, other.log_bytes) == (
            one.slot + 1,
            one.limit,
            one.log_setsum + other.setsum,
            one.log_bytes + before.size_bytes,
        )


@dataclass(slots=True)
class Opening:
    """The fences that name one epoch. All are in one epoch, because an opener ends only one."""

    ending: str
    fences: dict[int, FoundSlot] = field(default_factory=dict)

    def at(self, slot: int, ending: Epoch) -> Epoch:
        """Return the epoch that begins at one of these fences, after the epoch ``ending``."""
        fence = self.fences[slot]
        tail = Tail(epoch=ending, slot=slot, position=0, setsum=Setsum.zero(), log_bytes=0)
        _, met = step(tail, fence.link, fence.size_bytes)
        assert isinstance(met, Epoch), "a fence that begins an epoch names it"
        return met


@dataclass(frozen=True, slots=True)
class FoundEpochs:
    """All objects found. ``newest`` is the data of each slot that can count.

    ``objects`` is by epoch and slot, ``openings`` by the name of the opened epoch.
    """

    genesis: Epoch
    objects: Mapping[tuple[str, int], FoundSlot]
    openings: Mapping[str, Opening]
    data: Sequence[FoundData]
    newest: Mapping[int, FoundData]

    def run_to(self, slot: int) -> list[FoundData]:
        """Return the contiguous data before a slot's, newest first."""
        run: list[FoundData] = []
        after = self.newest.get(slot)
        while after is not None:
            before = self.newest.get(after.link.slot - 1)
            if before is None or not after.follows(before):
                break
            run.append(before)
            after = before
        return run

    def way_to(self, name: str, slot: int) -> tuple[Epoch, ...]:
        """Return the epochs from the first one to the one that holds the log's data in ``slot``.

        If an epoch ended below the slot, one opener may have left several fences there, some of
        them stray. The data next to them narrows the choice. Otherwise the lowest fence is taken,
        because readers do not depend on it.

        Raises:
            CorruptionError: no fence leads to the epoch.
        """
        names = [name]
        while names[-1] != self.genesis.name:
            if (opening := self.openings.get(names[-1])) is None:
                raise _no_fence(names[-1])
            names.append(opening.ending)
        way = [self.genesis]
        run = self.run_to(slot)
        for following in reversed(names[:-1]):
            opening, number = self.openings[following], way[-1].number
            least = max((one.link.slot + 1 for one in run if one.number <= number), default=0)
            most = min((one.link.slot for one in run if one.number > number), default=slot)
            least = max(least, way[-1].first_slot)
            if not (there := [at for at in opening.fences if least <= at <= most]):
                raise _no_fence(following)
            way.append(opening.at(min(there), way[-1]))
        return tuple(way)


def epochs_of(found: Sequence[FoundSlot]) -> FoundEpochs:
    """Return the found objects by epoch and slot.

    Raises:
        CorruptionError: an object is at a wrong path or occurs twice, or the first epoch is
        unknown.
    """
    genesis = _genesis_of(found)
    objects: dict[tuple[str, int], FoundSlot] = {}
    openings: dict[str, Opening] = {}
    newest: dict[int, FoundData] = {}
    data: list[FoundData] = []
    for one in found:
        place, link = one.place, one.link
        if place.number == genesis.number and place.id != genesis.id:
            continue  # It belongs to an aborted copy.
        if (place.epoch, place.slot) in objects:
            raise CorruptionError(
                "a slot has two objects, so one is a copy: compare them, and move the copy away; "
                "nothing was written",
                path=one.path,
                other=objects[place.epoch, place.slot].path,
            )
        objects[place.epoch, place.slot] = one
        if isinstance(link, DataLink):
            data.append(FoundData(place.number, link, one.path, one.size_bytes))
        elif link.next is not None:
            opening = openings.setdefault(link.next.name, Opening(place.epoch))
            if opening.ending != place.epoch:
                raise CorruptionError(
                    "fences in two epochs open one epoch, so one is a copy: move the copy away; "
                    "nothing was written",
                    path=one.path,
                    other=next(iter(opening.fences.values())).path,
                )
            opening.fences[place.slot] = one
    for each in sorted(data, key=lambda each: each.number):
        newest[each.link.slot] = each
    return FoundEpochs(genesis, objects, openings, data, newest)


def _genesis_of(found: Sequence[FoundSlot]) -> Epoch:
    """Return the first epoch.

    An aborted copy leaves another one, with data and without a fence.
    """
    firsts = [one for one in found if one.place.number == 0]
    ids = {one.place.id for one in firsts if isinstance(one.link, FenceLink)}
    ids = ids or {one.place.id for one in firsts}
    if len(ids) != 1:
        raise CorruptionError(
            "the objects of the log's first epoch are missing, or belong to several logs; nothing "
            "was written: restore them from a backup; if the log is a fork or an unfinished copy, "
            "fork or copy its source again"
        )
    return first_epoch(id=ids.pop(), opener="")


def _no_fence(name: str) -> CorruptionError:
    return CorruptionError(
        "the log has records of an epoch, but the object that begins this epoch (a fence) is "
        "missing; nothing was written: restore it from a backup",
        epoch=name,
    )


def fences_after(epochs: FoundEpochs, epoch: Epoch, slot: int) -> Iterator[FoundSlot]:
    """Yield the fences in an epoch past a slot."""
    for (name, at), one in epochs.objects.items():
        if name == epoch.name and at > slot and isinstance(one.link, FenceLink):
            yield one
