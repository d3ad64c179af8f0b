"""A log rebuilt after the loss of its manifest, checked against all that its slots ever held.

The rebuild runs on a copy of the store, so the run itself continues without a loss. Changes under
way to the store land on the copy too, before the rebuild or after it.
"""

from __future__ import annotations

import random

from sim.checkers.demands import demand
from sim.checkers.watch_slots import SlotWatch
from sim.kernel.world import Copy
from tidelog.core.clock import Clock
from tidelog.errors import CorruptionError, UsageError
from tidelog.store.keys import Within
from tidelog.store.port import Store
from tidelog.wal.admin.rebuild import rebuild_log
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.read.stream_selection import Selection
from tidelog.wal.scrub.slot_scrub import scrub_slots
from tidelog.wal.slot_protocol.reader import SlotReader
from tidelog.wal.slot_protocol.writer import SlotWriter

EVERYTHING = Selection(control=True)


async def check_rebuilt(
    copy: Copy, truth: SlotWatch, clock: Clock, *, oldest: int, dice: random.Random
) -> bool:
    """Rebuild a log on a copy, then read, scrub and append to it; return True if it was rebuilt.

    All records from ``oldest`` on, where the lost manifest began, must be unchanged, and appends
    continue after them. A refusal needs a reason: data lies past the end, and no fence voids it.

    Raises:
        Violated: a record was lost or changed, a position would be assigned twice, or an intact
            log
        was refused.
    """
    truth = truth.copy()
    store: Store = copy.store
    if truth.folder:
        store = Within(store, truth.folder.rstrip("/"))
    await store.delete([MANIFEST])
    manifest_key = f"{truth.folder}{MANIFEST}"
    if dice.random() < 0.5:
        await copy.land_all(truth, but=manifest_key)
    try:
        manifest = await rebuild_log(store, clock=clock, writer="rebuilder")
    except UsageError:
        demand(not truth.is_opened, "a log was taken for none")
        return False
    except CorruptionError as error:
        demand(truth.unvoided(), f"a whole log was not rebuilt: {error}")
        return False
    ends, begins = manifest.next, manifest.oldest
    demand(ends == truth.position, "a rebuilt log ends elsewhere", at=ends, of=truth.position)
    demand(begins <= oldest, "a rebuilt log begins too late", at=begins, of=oldest)
    await copy.land_all(truth, but=manifest_key)
    # Collected data whose deletion lands only now need not be complete.
    is_swept = any(change.op == "delete" for change in copy.late)
    whole_from = oldest if is_swept and begins < oldest else 0
    await _check_goes_on(store, clock, truth, max(oldest, begins), whole_from)
    return True


async def _check_goes_on(
    store: Store, clock: Clock, truth: SlotWatch, start: int, whole_from: int
) -> None:
    expected = truth.bodies(start)
    reader = SlotReader(store=store, clock=clock)
    demand(await _read(reader, start) == expected, "a rebuilt log holds other records")
    found = await scrub_slots(reader, whole_from)
    demand(found.is_clean, "a rebuilt log is not whole", problems=found.problems)
    if truth.is_sealed:
        return
    writer = SlotWriter(store=store, clock=clock, writer="after")
    position = await writer.append([b"after"])
    await writer.close()
    demand(position == truth.position, "a position was given out twice", position=position)
    demand(await _read(reader, start) == [*expected, b"after"], "what is appended is elsewhere")


async def _read(reader: SlotReader, start: int) -> list[bytes]:
    found = reader.scan(start, selection=EVERYTHING)
    return [row["body"] async for records in found for row in records.to_pylist()]
