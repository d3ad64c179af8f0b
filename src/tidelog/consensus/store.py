"""Consensus on the object store: one object per key or group, replaced by a conditional put.

A compare-and-set takes one round trip and no clock. A lost answer can be resolved for this reason:
a put is conditional on the version of the object that this process saw. While the object still has
that version, sending the same body again is safe, because at most one copy can land. Once the
object has another version, no copy under way can still land. The write ids in the object then show
whether ours landed.

Source: persist, "Consensus"; style.md, "Errors".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from tidelog.consensus import object_consensus as objects
from tidelog.consensus.groups import GroupConsensus
from tidelog.consensus.object_consensus import EMPTY, ConsensusObject, Spill
from tidelog.consensus.port import KeyRecord, VersionedRecord, check_truncation
from tidelog.consensus.reading_back import read_back
from tidelog.core.clock import Clock, backoff_us
from tidelog.core.ids import GROUPS, SeqNo, check_seqno, group_of, is_group
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    LocationError,
    ObjectExists,
    ObjectNotFound,
    Outcome,
    OutcomeUnknown,
    require,
)
from tidelog.store.port import Store

ROOT = "consensus"


@dataclass(frozen=True, slots=True)
class _ObjectVersion:
    """An object as last read or written, and its e_tag (None: the object does not exist)."""

    contents: ConsensusObject
    e_tag: str | None


@dataclass(slots=True, kw_only=True)
class StoreConsensus:
    """Consensus in objects; ``attempts`` is the number of tries of a call before it fails.

    Objects are stored below ``root``, and spills below ``root`` + "-spill". The keys of a group
    have one object: see `tidelog.consensus.groups`.
    """

    store: Store
    clock: Clock
    root: str = ROOT
    attempts: int = 20
    _spilled: dict[str, tuple[objects.ConsensusEntry, ...]] = field(default_factory=dict)
    _held: dict[str, _ObjectVersion] = field(default_factory=dict)
    _groups: GroupConsensus = field(init=False)

    def __post_init__(self) -> None:
        self._groups = GroupConsensus(
            store=self.store, clock=self.clock, root=self.root, attempts=self.attempts
        )

    async def head(self, key: str) -> VersionedRecord | None:
        if key.startswith(GROUPS) and group_of(key):
            return await self._groups.head(key)
        held = await self._refresh(key)
        if not held.contents.records:
            return None
        newest = held.contents.records[-1]
        return VersionedRecord(SeqNo(newest.seqno), newest.data)

    async def compare_and_set_all(self, records: Sequence[KeyRecord]) -> bool:
        one = records[0]
        if one.key.startswith(GROUPS) and group_of(one.key):
            return await self._groups.compare_and_set_all(records)
        require(len(records) == 1, "keys without a group are written one at a time", key=one.key)
        return await self.compare_and_set(one.key, one.seqno, one.data)

    async def compare_and_set(self, key: str, seqno: SeqNo, data: bytes) -> bool:
        check_seqno(seqno)
        if key.startswith(GROUPS) and group_of(key):
            return await self._groups.compare_and_set_all([KeyRecord(key, seqno, data)])
        write_id = self.clock.unique()
        held = self._held.get(key)
        if held is None or held.contents.head_seqno < seqno - 1:
            held = await self._refresh(key)
        sent = unsure = False
        for attempt in range(self.attempts):
            if held.contents.head_seqno != seqno - 1:
                return sent and await self._is_ours(key, held.contents, seqno, write_id)
            try:
                # After the first request, only the object can show whether the record was written.
                sent = True
                await self._append(key, held, data, write_id=write_id)
                return True
            except ContentionError:
                pass
            except LocationError as error:
                unsure = unsure or error.outcome is not Outcome.NOT_APPLIED
                if attempt + 1 == self.attempts:
                    error.outcome = Outcome.UNKNOWN if unsure else Outcome.NOT_APPLIED
                    raise
            refresh = partial(self._refresh, key)
            held = await read_back(refresh, clock=self.clock, attempts=self.attempts, key=key)
            if held.contents.head_seqno == seqno - 1:
                await self.clock.sleep(backoff_us(attempt, self.clock))
        raise LocationError(
            f"gave up after {self.attempts} tries: the store failed, or other processes kept "
            "replacing the consensus object; read back before a retry",
            outcome=Outcome.UNKNOWN,
            key=key,
        )

    async def scan(self, key: str, start: SeqNo, limit: int | None = None) -> list[VersionedRecord]:
        if key.startswith(GROUPS) and group_of(key):
            return await self._groups.scan(key, start, limit)
        for _ in range(self.attempts):
            held = await self._refresh(key)
            try:
                older = await self._load_spills(held.contents, start)
            except ObjectNotFound as error:
                # A truncation deleted the spill after we read the object that names it, or the
                # spill is lost. If the object is unchanged, it is lost.
                if await self._refresh(key) is held:
                    raise CorruptionError(
                        "spilled consensus records are missing: restore them", key=key
                    ) from error
                continue
            entries = [*older, *held.contents.records]
            records = [VersionedRecord(SeqNo(e.seqno), e.data) for e in entries if e.seqno >= start]
            return records[:limit]
        raise LocationError(
            f"gave up after {self.attempts} tries: other processes kept replacing the consensus "
            "object; try again",
            key=key,
        )

    async def truncate(self, key: str, before: SeqNo) -> int:
        if key.startswith(GROUPS) and group_of(key):
            return await self._groups.truncate(key, before)
        stamp = self.clock.unique()
        first: int | None = None
        for attempt in range(self.attempts):
            held = await self._refresh(key)
            contents = held.contents
            check_truncation(
                before,
                VersionedRecord(SeqNo(contents.head_seqno), b"") if contents.records else None,
            )
            first = contents.first_seqno if first is None else first
            kept = objects.truncate_records(contents, before, stamp=stamp)
            dropped = [s.path for s in contents.spills if s not in kept.spills]
            if kept.spills == contents.spills and kept.records == contents.records:
                return max(0, contents.first_seqno - first)
            try:
                await self._replace(key, held, kept)
            except ContentionError:
                await self.clock.sleep(backoff_us(attempt, self.clock))
                continue
            except LocationError:
                if attempt + 1 == self.attempts:
                    raise
                await self.clock.sleep(backoff_us(attempt, self.clock))
                continue
            # The replacement landed: no object names these spills, and no later object can.
            await self.store.delete(dropped)
            return kept.first_seqno - first
        raise LocationError(
            f"gave up after {self.attempts} tries: other processes kept replacing the consensus "
            "object; try again",
            key=key,
        )

    async def sweep(self, key: str) -> int:
        """Delete the spills that no object names or can name; see `Consensus.sweep`.

        A killed truncation leaves such spills, and so does an append that lost its race. An append
        under way can land only if the object is unchanged. Its spill then begins with the object's
        first record, so a spill that begins earlier is dead. The folder is listed first: an object
        that is read later names each listed spill that landed.
        """
        if key.startswith(GROUPS) and group_of(key):
            return await self._groups.sweep(key)
        folder = f"{self.root}-spill/{key}/"
        listed = [entry.key async for entry in self.store.list(folder)]
        if not listed:
            return 0
        contents = (await self._refresh(key)).contents
        named = {spill.path for spill in contents.spills}
        begins = {path: objects.spill_seqno(path.removeprefix(folder)) for path in listed}
        oldest = contents.records[0].seqno if contents.records else 0
        dead = [
            path
            for path, first in begins.items()
            if path not in named and first is not None and first < oldest
        ]
        if dead:
            await self.store.delete(dead)
        return len(dead)

    async def list_keys(self, prefix: str = "") -> AsyncIterator[str]:
        # The prefix may be longer than the name of a group's object.
        shown = group_of(prefix) or prefix
        async for entry in self.store.list(self._path(shown)):
            name = entry.key.removeprefix(f"{self.root}/")
            if not is_group(name):
                yield name
                continue
            async for key in self._groups.keys(name):
                if key.startswith(prefix):
                    yield key

    async def found(self) -> None:
        """Do nothing: records in the store are lost only together with the location."""

    async def adopt(self, key: str, records: Sequence[VersionedRecord]) -> None:
        if key.startswith(GROUPS) and group_of(key):
            await self._groups.adopt(key, records)
            return
        contents = EMPTY
        for record in records:
            contents = objects.adopt_record(
                contents, record.seqno, record.data, write_id=self.clock.unique()
            )
            contents = await self._without_older(key, contents)
        with suppress(ObjectExists):
            await self.store.put(self._path(key), objects.encode_object(contents), if_absent=True)
        self._held.pop(key, None)

    async def _without_older(self, key: str, contents: ConsensusObject) -> ConsensusObject:
        """Return the object; if it is too large, first move its older records to a spill."""
        moved = objects.plan_spill(contents)
        if not moved:
            return contents
        # The name derives from the write id, so a second try writes the same object.
        path = objects.spill_path(f"{self.root}-spill/{key}", moved[0].seqno, contents.stamp)
        await self.store.put(path, objects.encode_spill(moved))
        return objects.spill_records(contents, Spill(path, moved[0].seqno, moved[-1].seqno))

    def _path(self, key: str) -> str:
        return f"{self.root}/{key}"

    async def _append(self, key: str, held: _ObjectVersion, data: bytes, *, write_id: str) -> None:
        contents = objects.append_record(held.contents, data, write_id=write_id)
        contents = await self._without_older(key, contents)
        await self._replace(key, held, contents)

    async def _replace(self, key: str, held: _ObjectVersion, contents: ConsensusObject) -> None:
        body = objects.encode_object(contents)
        if held.e_tag is None:
            e_tag = await self.store.put(self._path(key), body, if_absent=True)
        else:
            e_tag = await self.store.put(self._path(key), body, if_match=held.e_tag)
        self._held[key] = _ObjectVersion(contents, e_tag)

    async def _refresh(self, key: str) -> _ObjectVersion:
        held = self._held.get(key)
        try:
            if held is None or held.e_tag is None:
                stored = await self.store.get(self._path(key))
            else:
                newer = await self.store.refresh(self._path(key), held.e_tag)
                if newer is None:
                    return held
                stored = newer
        except ObjectNotFound:
            if held is not None and held.e_tag is not None:
                raise CorruptionError(
                    "a consensus object was deleted during its use: restore it", key=key
                ) from None
            return _ObjectVersion(EMPTY, None)
        contents = objects.decode_object(stored.data, key=key)
        # Compare with the object known before this request was sent: a concurrent call of this
        # process may have stored a newer object since.
        if held is not None and not objects.follows(contents, held.contents):
            raise CorruptionError(
                "a consensus object was set back to an older state during its use: restore the "
                f"newest version of {self._path(key)} before any write",
                seqno=contents.head_seqno,
                known=held.contents.head_seqno,
            )
        held = _ObjectVersion(contents, stored.e_tag)
        self._held[key] = held
        return held

    async def _is_ours(
        self, key: str, contents: ConsensusObject, seqno: SeqNo, write_id: str
    ) -> bool:
        """Return True if record ``seqno`` is the one of this call."""
        writer = contents.wrote(seqno)
        if writer is None:
            try:
                older = await self._load_spills(contents, seqno)
            except ObjectNotFound:
                older = []  # Truncated after the object was read.
            except LocationError as error:
                # The error's own outcome is that of the read alone.
                error.outcome = Outcome.UNKNOWN
                raise
            writer = next((e.write_id for e in older if e.seqno == seqno), None)
        if writer is None:
            raise OutcomeUnknown(
                "the record was truncated before its write could be checked, so the write may be "
                "applied: read the data back before a retry",
                key=key,
                seqno=seqno,
            )
        return writer == write_id

    async def _load_spills(
        self, contents: ConsensusObject, start: SeqNo
    ) -> list[objects.ConsensusEntry]:
        wanted = [spill.path for spill in contents.spills if spill.last >= start]
        loaded: list[objects.ConsensusEntry] = []
        for path in wanted:
            # Keep the spills that an earlier try has read. Otherwise a failing network could
            # prevent a long history from ever being read completely.
            entries = self._spilled.get(path)
            if entries is None:
                entries = objects.decode_spill((await self.store.get(path)).data, path=path)
                self._spilled[path] = entries
            loaded.extend(entries)
        # All are read. A concurrent call may keep other spills here, or may have removed these.
        for path in wanted:
            self._spilled.pop(path, None)
        return loaded
