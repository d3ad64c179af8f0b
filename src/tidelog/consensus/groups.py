"""Consensus of groups on the object store: one object has the records of all keys of a group.

One put appends to any number of the keys. Calls that arrive while a put is under way are sent
together by the next one. Reads that begin together share one request.

A lost answer is resolved as in `tidelog.consensus.store`: each put is conditional on the version of
the object that this process saw, so a put can no longer land once the object has another version.
The object then shows whether the write is in it.
Source: persist, "Consensus"; decision 37.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial

from tidelog.consensus import group_object as objects
from tidelog.consensus.group_object import EMPTY, GroupObject, Member, MemberRecord
from tidelog.consensus.port import KeyRecord, VersionedRecord, check_truncation
from tidelog.consensus.reading_back import read_back
from tidelog.core.clock import Clock, backoff_us
from tidelog.core.ids import SeqNo, check_seqno, group_of
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    LocationError,
    ObjectNotFound,
    Outcome,
    OutcomeUnknown,
    TidelogError,
    require,
)
from tidelog.store.port import Object, Store

RACES_PER_ATTEMPT = 50  # A lost race is no failure: another process has written.
_PAUSE_MOST_US = 1_000_000
# A process that begins a group may die before it writes the witness. The next one sees few writes.
_YOUNG_COUNT = 4


@dataclass(frozen=True, slots=True)
class _Version:
    """A group object as last read or written, and its e_tag (None: the object does not exist)."""

    contents: GroupObject
    e_tag: str | None


@dataclass(slots=True, eq=False)
class _Write:
    """A call that waits for its records to land; ``sent`` is the count of writes at its newest put.

    ``answer`` is None until the call is answered; an error ends it as well.
    """

    records: Sequence[KeyRecord]
    id: str
    sent: int | None = None
    is_unsure: bool = False
    answer: bool | None = None
    error: TidelogError | None = None

    @property
    def is_done(self) -> bool:
        return self.answer is not None or self.error is not None

    def settle(self, contents: GroupObject) -> None:
        """Answer a write that can no longer land: it is in the object, or never will be."""
        if self.sent is None:
            self.answer = False
            return
        self.answer = contents.has_landed(self.id, self.sent)
        if self.answer is None:
            self.error = OutcomeUnknown(
                "so many writes followed that it is unknown whether this one landed: read the data "
                "back before a retry",
                key=self.records[0].key,
                seqno=self.records[0].seqno,
            )


@dataclass(slots=True, kw_only=True)
class GroupConsensus:
    """The groups of one place; the methods are those of `tidelog.consensus.port.Consensus`."""

    store: Store
    clock: Clock
    root: str
    attempts: int
    _held: dict[str, _Version] = field(default_factory=dict)
    _locks: dict[str, asyncio.Lock] = field(default_factory=dict)
    _waiting: dict[str, list[_Write]] = field(default_factory=dict)
    _reads: dict[str, asyncio.Future[_Version | None]] = field(default_factory=dict)
    _unwitnessed: set[str] = field(default_factory=set)  # Groups that may lack their witness.

    async def compare_and_set_all(self, records: Sequence[KeyRecord]) -> bool:
        """Append records to keys of one group; see `Consensus.compare_and_set_all`."""
        group = _group(records[0].key)
        require(
            all(group_of(one.key) == group for one in records),
            "records that are written together must be of one group",
            keys=[one.key for one in records],
        )
        for one in records:
            check_seqno(one.seqno)
        write = _Write(records, self.clock.unique())
        self._waiting.setdefault(group, []).append(write)
        try:
            async with self._lock(group):
                # The call that had the lock before may have sent this write with its own.
                while not write.is_done:
                    await self._send(group, list(self._waiting[group]))
        except TidelogError as error:
            if write.sent is not None and write.answer is None:
                error.outcome = Outcome.UNKNOWN
            elif write.answer is not None:
                return write.answer
            raise
        finally:
            self._waiting[group].remove(write)
        if write.error is not None:
            raise write.error
        return write.answer is True

    async def head(self, key: str) -> VersionedRecord | None:
        member = (await self._refresh(_group(key))).contents.member(key)
        return None if not member.records else _versioned(member.records[-1:])[0]

    async def scan(self, key: str, start: SeqNo, limit: int | None = None) -> list[VersionedRecord]:
        group = _group(key)
        for _ in range(self.attempts):
            held = await self._refresh(group)
            member = held.contents.member(key)
            try:
                older = await self._load_spills(key, member, start)
            except ObjectNotFound as error:
                # A truncation deleted the spill after this read, or the spill is lost.
                if await self._refresh(group) is held:
                    raise CorruptionError(
                        "spilled consensus records are missing: restore them", key=key
                    ) from error
                continue
            found = [one for one in (*older, *member.records) if one.seqno >= start]
            return _versioned(found[:limit])
        raise self._given_up(group)

    async def truncate(self, key: str, before: SeqNo) -> int:
        group, first = _group(key), 0
        known = self._held.get(group)
        if known is not None and known.contents.member(key).first_seqno >= before > 1:
            return 0  # The append that stated it has deleted the records.
        async with self._lock(group):
            for attempt in range(self.attempts):
                held = await self._refresh_now(group)
                member = held.contents.member(key)
                newest = _versioned(member.records[-1:])
                check_truncation(before, newest[0] if newest else None)
                first = first or member.first_seqno
                kept = member.kept_from(before)
                if kept == member:
                    return max(0, member.first_seqno - first)
                stamp = self.clock.unique()
                changed = objects.with_member(held.contents, key, kept, stamp=stamp)
                if await self._try_replace(group, held, changed, attempt):
                    return kept.first_seqno - first
        raise self._given_up(group)

    async def adopt(self, key: str, records: Sequence[VersionedRecord]) -> None:
        """Create a key with records of another place, unless its last one exists; see `Copies`."""
        group = _group(key)
        copied = tuple(MemberRecord(one.seqno, one.data) for one in records)
        async with self._lock(group):
            for attempt in range(self.attempts):
                held = await self._refresh_now(group)
                if held.contents.member(key).head_seqno >= records[-1].seqno:
                    return
                stamp = self.clock.unique()
                changed = objects.with_member(held.contents, key, Member((), copied), stamp=stamp)
                changed = await self._without_older(group, changed)
                if await self._try_replace(group, held, changed, attempt):
                    return
        raise self._given_up(group)

    async def sweep(self, key: str) -> int:
        """Delete the spills that no object names or can name; see `Consensus.sweep`.

        A missing witness is written: the process that began the group was killed before that. An
        append under way can land only on the newest object, so its spill has a greater count.
        """
        group = _group(key)
        folder = f"{self._folder(group)}/"
        witness = self._witness(group)
        found = [one.key async for one in self.store.list(folder)]
        if witness not in found and (await self._refresh(group)).e_tag is not None:
            await self.store.put(witness, b"")
        listed = [one for one in found if one != witness]
        if not listed:
            return 0
        contents = (await self._refresh(group)).contents
        counts = {path: path.removeprefix(folder).partition("-")[0] for path in listed}
        newest, named = f"{contents.count:016x}", contents.spills
        dead = [path for path, at in counts.items() if at <= newest and path not in named]
        if dead:
            await self.store.delete(dead)
        return len(dead)

    async def keys(self, group: str) -> AsyncIterator[str]:
        """Yield the keys of a group that have records, in order."""
        for key, member in sorted((await self._refresh(group)).contents.members.items()):
            if member.records:
                yield key

    async def _send(self, group: str, writes: Sequence[_Write]) -> None:
        """Send all writes that can land with one put, until it is answered."""
        held = self._held.get(group)
        if held is None or any(_is_ahead(one, held.contents) for one in writes):
            held = await self._refresh_now(group)
        failures = 0
        for attempt in range(RACES_PER_ATTEMPT * self.attempts):
            batch, contents = self._batch(held.contents, writes)
            if not batch:
                return
            begun_us = self.clock.monotonic_us()
            try:
                await self._replace(group, held, await self._without_older(group, contents))
                for one in batch:
                    one.answer = True
                return
            except ContentionError:
                pass
            except LocationError as error:
                failures += 1
                self._fail(batch, error, is_last=failures >= self.attempts)
                if failures >= self.attempts:
                    return
            key = batch[0].records[0].key
            refresh = partial(self._refresh_now, group)
            held = await read_back(refresh, clock=self.clock, attempts=self.attempts, key=key)
            if held.e_tag is not None:
                await self._leave_witness(group)
            pause_us = max(1, self.clock.monotonic_us() - begun_us)
            await self.clock.sleep(
                backoff_us(min(attempt, 3), self.clock, first_us=pause_us, most_us=_PAUSE_MOST_US)
            )
        for one in batch:
            one.error = self._given_up(group)

    def _batch(
        self, contents: GroupObject, writes: Sequence[_Write]
    ) -> tuple[list[_Write], GroupObject]:
        """Return the writes that one put can append, and the object with them; settle the others.

        A write that conflicts with another one of the batch waits for the next put.
        """
        batch, grown = [], contents
        for one in writes:
            if one.is_done:
                continue
            if not contents.takes(one.records):
                one.settle(contents)
            elif grown.takes(one.records):
                one.sent = contents.count  # No earlier put of it has landed, or still can.
                grown = objects.append_records(grown, one.records, write=one.id)
                batch.append(one)
        return batch, grown

    def _fail(self, batch: Sequence[_Write], error: LocationError, *, is_last: bool) -> None:
        for one in batch:
            one.is_unsure = one.is_unsure or error.outcome is not Outcome.NOT_APPLIED
            if is_last:
                own = copy(error)  # Each call has its own outcome.
                own.outcome = Outcome.UNKNOWN if one.is_unsure else Outcome.NOT_APPLIED
                own.__cause__ = error
                one.error = own

    async def _replace(self, group: str, held: _Version, contents: GroupObject) -> None:
        body, path = objects.encode_group(contents), f"{self.root}/{group}"
        if held.e_tag is None:
            self._unwitnessed.add(group)  # The answer may be lost.
            e_tag = await self.store.put(path, body, if_absent=True)
        else:
            e_tag = await self.store.put(path, body, if_match=held.e_tag)
        self._held[group] = _Version(contents, e_tag)
        await self._leave_witness(group)
        gone = held.contents.spills - contents.spills
        if gone:
            # No object names these spills, and no later object can. A sweep finds those that stay.
            with suppress(LocationError):
                await self.store.delete(sorted(gone))

    async def _try_replace(
        self, group: str, held: _Version, contents: GroupObject, attempt: int
    ) -> bool:
        """Replace an object; return False if the caller must read it again first."""
        try:
            await self._replace(group, held, contents)
        except ContentionError:
            pass
        except LocationError:
            if attempt + 1 == self.attempts:
                raise
        else:
            return True
        await self.clock.sleep(backoff_us(attempt, self.clock))
        return False

    async def _without_older(self, group: str, contents: GroupObject) -> GroupObject:
        """Return the object; if it is too large, first move its older records to a spill."""
        moved = objects.plan_spill(contents)
        if not moved:
            return contents
        path = objects.spill_path(self._folder(group), contents)
        await self.store.put(path, objects.encode_spill(moved))
        return objects.with_spill(contents, moved, path)

    async def _refresh(self, group: str) -> _Version:
        """Read the newest object. Calls that begin before the request is sent share it."""
        while (under_way := self._reads.get(group)) is not None:
            found = await asyncio.shield(under_way)
            if found is not None:
                return found  # Otherwise the call that sent the request was cancelled.
        shared: asyncio.Future[_Version | None] = asyncio.get_running_loop().create_future()
        self._reads[group], found = shared, None
        try:
            await self.clock.sleep(0)  # Calls of this turn of the loop share the request.
            self._reads.pop(group)
            found = await self._refresh_now(group)
        except Exception as error:
            shared.set_exception(error)
            shared.exception()  # So that asyncio does not log it if no call shared the read.
            raise
        else:
            return found
        finally:
            if self._reads.get(group) is shared:
                self._reads.pop(group)
            if not shared.done():
                shared.set_result(found)

    async def _refresh_now(self, group: str) -> _Version:
        held, path = self._held.get(group), f"{self.root}/{group}"
        try:
            if held is None or held.e_tag is None:
                stored = await self._first(group, path)
                if stored is None:
                    return _Version(EMPTY, None)
            else:
                newer = await self.store.refresh(path, held.e_tag)
                if newer is None:
                    return held
                stored = newer
        except ObjectNotFound as error:
            raise CorruptionError(
                "a consensus object was deleted during its use: restore it", group=group
            ) from error
        contents = objects.decode_group(stored.data, group=group)
        if held is not None and not objects.follows(contents, held.contents):
            raise CorruptionError(
                "a consensus object was set back to an older state during its use: restore the "
                f"newest version of {path} before any write",
                count=contents.count,
                known=held.contents.count,
            )
        if held is None and contents.count <= _YOUNG_COUNT:
            self._unwitnessed.add(group)
        now = self._held.get(group)
        if now is not None and now.contents.count > contents.count:
            return now  # A put of this process was answered during the read.
        self._held[group] = found = _Version(contents, stored.e_tag)
        return found

    async def _first(self, group: str, path: str) -> Object | None:
        """Read an object for the first time; None if it was never written.

        Raises:
            CorruptionError: the object is lost, because its witness exists.
        """
        for is_last in (False, True):
            with suppress(ObjectNotFound):
                return await self.store.get(path)
            try:
                await self.store.get(self._witness(group))
            except ObjectNotFound:
                return None
            if is_last:
                break
            # Another process may have written both between the two reads.
        raise CorruptionError(
            f"the state of {group!r} is missing, though it was written: restore the object {path}"
        )

    async def _load_spills(self, key: str, member: Member, start: SeqNo) -> list[MemberRecord]:
        loaded: list[MemberRecord] = []
        for spill in member.spills:
            if spill.last >= start:
                data = (await self.store.get(spill.path)).data
                found = objects.decode_spill(data, path=spill.path).get(key, ())
                if [one.seqno for one in found] != list(range(spill.first, spill.last + 1)):
                    raise CorruptionError(
                        "spilled consensus records are missing: restore them", key=key
                    )
                loaded.extend(found)
        return loaded

    async def _leave_witness(self, group: str) -> None:
        """Write the witness of an object unless it is known to exist; see `_first`."""
        if group in self._unwitnessed:
            with suppress(LocationError):
                await self.store.put(self._witness(group), b"")
                self._unwitnessed.discard(group)

    def _lock(self, group: str) -> asyncio.Lock:
        return self._locks.setdefault(group, asyncio.Lock())

    def _folder(self, group: str) -> str:
        return f"{self.root}-spill/{group}"

    def _witness(self, group: str) -> str:
        """Return the path of an object that is written after the first version of a group's."""
        return f"{self._folder(group)}/written"

    def _given_up(self, group: str) -> LocationError:
        return LocationError(
            f"gave up after {self.attempts} tries: the store failed, or other processes kept "
            "replacing the consensus object; read back before a retry",
            outcome=Outcome.UNKNOWN,
            group=group,
        )


def _group(key: str) -> str:
    group = group_of(key)
    require(group is not None, "the key must be one of a group", key=key)
    return str(group)


def _versioned(records: Sequence[MemberRecord]) -> list[VersionedRecord]:
    return [VersionedRecord(SeqNo(one.seqno), one.data) for one in records]


def _is_ahead(write: _Write, contents: GroupObject) -> bool:
    """Return True if a write follows records that the known object lacks."""
    return any(contents.member(one.key).head_seqno < one.seqno - 1 for one in write.records)
