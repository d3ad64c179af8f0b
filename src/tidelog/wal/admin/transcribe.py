"""The transcriber: it copies a log's records into a new log of either protocol.

Positions, times, streams, keys and bodies stay the same. The new log has no trace of records
collected before, and no cursors, and is independent of its source. A log in wal3's form has one
time per fragment, and neither streams nor keys. So the transcriber splits records by their times,
and refuses a log with streams or keys.

Invariants: the copy is not a log until its manifest is written. An aborted copy leaves objects that
nothing names. The next copy to a slot log has another first epoch, whose id is in the names of its
snapshots, and deletes those objects once it is a log. A copy to wal3's form needs an empty target.
Only a copy's manifest states where it begins, and its streams there. So a slot log's collection
plan states this first, in case the manifest must be rebuilt.
Source: wal3, "Copy"; design page 3.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.core.clock import Clock, run_all
from tidelog.errors import (
    LocationError,
    NameTaken,
    ObjectChanged,
    ObjectExists,
    UsageError,
)
from tidelog.store import conditional
from tidelog.store.conditional import create
from tidelog.store.port import Store
from tidelog.wal.admin.copy import demand_no_log, manifest_of_copy, taken
from tidelog.wal.format.epoch_chain import Chain
from tidelog.wal.format.fragment import Fragment, fragment_path
from tidelog.wal.format.gc_plan import (
    GARBAGE,
    encode_garbage,
    nothing_to_erase,
)
from tidelog.wal.format.link import EPOCHS, FIRST_EPOCHS, Epoch, Tail, first_epoch, fragment_of
from tidelog.wal.format.manifest import FIRST_SEQ_NO, MANIFEST, Manifest
from tidelog.wal.format.manifest_update import Rollover, add_fragment
from tidelog.wal.format.slot_object import encode_data
from tidelog.wal.format.snapshot import maker_of, object_of
from tidelog.wal.format.streams import Streams
from tidelog.wal.format.wal3_records import RECORDS, encode_fragment, setsum_of_records
from tidelog.wal.gc.plan_file import PlanFile
from tidelog.wal.read.manifest_store import ManifestStore
from tidelog.wal.read.named_objects import store_named
from tidelog.wal.slot_protocol.chain import extend
from tidelog.wal.slot_protocol.checkpoint import roll_all

PUTS_MAX: Final = 8
Encoded = tuple[Fragment, bytes]


@dataclass(slots=True, kw_only=True)
class Transcriber:
    """A maker of a new log at the root of ``target``. ``writer`` is a name for people."""

    target: Store
    clock: Clock
    writer: str
    rollover: Rollover = field(default_factory=Rollover)

    async def to_slots(
        self, records: AsyncIterator[pa.Table], *, start: int, streams: Streams | None = None
    ) -> Manifest:
        """Write a slot log of contiguous records from ``start`` on.

        ``streams`` are open at ``start``; the records include the control records from there on.

        Raises:
            NameTaken: the target has a log, or the slots or the collection plan of a log that lost
            its manifest.
            LocationError: a store failed; copy again.
        """
        await self._plan_there()
        await self._demand_no_slots()
        epoch = first_epoch(id=self.clock.unique()[:16], opener=self.writer)
        open_now = streams or Streams()
        chain = Chain(epochs=(epoch,), streams_at_start=open_now, streams=open_now)
        begun = Manifest(writer=self.writer, initial_offset=start, chain=chain)

        def encode(manifest: Manifest, table: pa.Table) -> Encoded:
            tail = Tail(
                epoch=epoch,
                slot=manifest.next_seq_no,
                position=manifest.next,
                setsum=manifest.setsum,
                log_bytes=manifest.acc_bytes,
            )
            link, data = encode_data(table, tail, writer=self.writer)
            return fragment_of(link, tail.path, len(data)), data

        manifest = await self._write(begun, records, encode)
        roll = partial(roll_all, writer=self.writer, maker=epoch.id)
        manifest, snapshots = roll(manifest, self.rollover)
        for one in snapshots:
            await store_named(self.target, object_of(one), clock=self.clock)
        try:
            await self._say_begin(begun, epoch)
            manifest = await self._finish(manifest)
        except NameTaken:
            await self._delete(lambda made: made == epoch.id)
            raise
        await self._delete(lambda made: made != epoch.id)
        return manifest

    async def _demand_no_slots(self) -> None:
        """Refuse a target with the slots of a log that lost its manifest: it can be rebuilt.

        Raises:
            NameTaken: the target has such slots.
        """
        # Only a copy puts records into a first epoch.
        async for entry in self.target.list(EPOCHS, after=f"{FIRST_EPOCHS}\U0010ffff"):
            raise taken(self.target, entry.key)

    async def _delete(self, is_doomed: Callable[[str], bool]) -> None:
        """Delete the objects of copies whose first epoch's id is doomed.

        Nothing will ever name them, because another copy's manifest exists. If that manifest were
        lost, a rebuild would find two logs. A sweep deletes the rest if this fails.
        """
        with suppress(LocationError):
            slots = [entry.key async for entry in self.target.list(FIRST_EPOCHS)]
            doomed = [key for key in slots if is_doomed(_id_of_epoch(key))]
            snapshots = [entry.key async for entry in self.target.list("snapshot/")]
            made = [(key, maker_of(key)) for key in snapshots]
            doomed += [key for key, maker in made if maker is not None and is_doomed(maker)]
            if doomed:
                await self.target.delete(doomed)

    async def to_wal3(self, records: AsyncIterator[pa.Table], *, start: int) -> Manifest:
        """Write a log in wal3's form; see `to_slots`.

        Raises:
            UsageError: a record is in a stream, or has a key.
        """
        await demand_no_log(self.target)
        async for entry in self.target.list("log/"):
            raise taken(self.target, entry.key)

        async def parted() -> AsyncGenerator[pa.Table, None]:
            async for table in records:
                for part in runs_of_one_time(table):
                    yield part

        def encode(manifest: Manifest, table: pa.Table) -> Encoded:
            rows = table.drop_columns(["stream", "key"]).cast(RECORDS)
            data = encode_fragment(rows, write_id=self.clock.unique())
            number = manifest.next_seq_no
            fragment = Fragment(
                path=fragment_path(number),
                seq_no=number,
                start=manifest.next,
                limit=manifest.next + rows.num_rows,
                num_bytes=len(data),
                setsum=setsum_of_records(rows),
            )
            return fragment, data

        begun = Manifest(writer=self.writer, initial_offset=start, initial_seq_no=FIRST_SEQ_NO)
        async with aclosing(parted()) as parts:
            manifest = await self._write(begun, parts, encode)
        return await self._finish(manifest_of_copy(manifest, manifest.fragments))

    async def _write(
        self,
        manifest: Manifest,
        records: AsyncIterator[pa.Table],
        encode: Callable[[Manifest, pa.Table], Encoded],
    ) -> Manifest:
        """Store fragment after fragment, several at once; return the manifest that names them."""
        waiting: list[Encoded] = []
        async for table in records:
            fragment, data = await self.clock.offload(partial(encode, manifest, table))
            if manifest.chain is None:
                manifest = add_fragment(manifest, fragment, writer=self.writer)
            else:
                manifest = extend(manifest, [fragment], writer=self.writer)
            waiting.append((fragment, data))
            if len(waiting) == PUTS_MAX:
                await self._store(waiting)
                waiting = []
        await self._store(waiting)
        return manifest

    async def _store(self, encoded: list[Encoded]) -> None:
        work = [
            partial(create, self.target, fragment.path, data, clock=self.clock)
            for fragment, data in encoded
        ]
        try:
            await run_all(work, at_once=PUTS_MAX)
        except ObjectExists as error:
            raise taken(self.target, encoded[0][0].path) from error

    async def _say_begin(self, begun: Manifest, epoch: Epoch) -> None:
        """Write the empty collection plan, which states where the copy begins."""
        plan = replace(nothing_to_erase(begun), first_epoch=epoch.name)
        data = encode_garbage(plan, write_id=self.clock.unique())
        e_tag = await self._plan_there()
        try:
            if e_tag is None:
                await create(self.target, GARBAGE, data, clock=self.clock, replaceable=True)
            else:
                await conditional.replace(self.target, GARBAGE, data, e_tag=e_tag, clock=self.clock)
        except (ObjectExists, ObjectChanged) as error:
            raise taken(self.target, GARBAGE) from error

    async def _plan_there(self) -> str | None:
        """Return the e_tag of an aborted copy's plan, or None if there is no plan.

        The plan is read before the check for a manifest. So a plan that another log's collector
        writes later is not replaced.

        Raises:
            NameTaken: the target has a log, or a log that lost its manifest.
        """
        found = await PlanFile(store=self.target, clock=self.clock).read()
        if found.e_tag and found.plan.first_epoch is None:
            raise taken(self.target, GARBAGE)
        await demand_no_log(self.target)
        return found.e_tag or None

    async def _finish(self, manifest: Manifest) -> Manifest:
        try:
            await ManifestStore(store=self.target, clock=self.clock).create(manifest)
        except ObjectExists as error:
            raise taken(self.target, MANIFEST) from error
        return manifest


def _id_of_epoch(key: str) -> str:
    return key.removeprefix(FIRST_EPOCHS).partition("/")[0]


def runs_of_one_time(records: pa.Table) -> Iterator[pa.Table]:
    """Split records at each change of their time.

    Raises:
        UsageError: a record is in a stream, or has a key.
    """
    for name, has in (("stream", "is in a stream"), ("key", "has a key")):
        column: Any = records.column(name)
        if column.null_count < len(column):
            first = pc.index(column.is_valid(), pa.scalar(True)).as_py()
            position = records.column("position")[first].as_py()
            raise UsageError(
                f"record {position} {has}, but a log of the manifest protocol has no {name}s: "
                f"only a log without {name}s can be exported or copied to that protocol"
            )
    times = records.column("timestamp_us").to_numpy()
    edges = [0, *(np.flatnonzero(np.diff(times)) + 1).tolist(), records.num_rows]
    for begin, end in pairwise(edges):
        yield records.slice(begin, end - begin)
