"""The keyed logs of one location, by name: to be made, opened, forked, dropped.

A log's state decides whether it is there: its wal is made when it is opened first.
Source: design page 5, "Calls".
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from tidelog.arguments import check_whole
from tidelog.clock import Clock, backoff_us, wall_us
from tidelog.consensus.port import Consensus
from tidelog.errors import (
    ContentionError,
    NameTaken,
    NoSuchLog,
    NoSuchPin,
    PositionCollected,
)
from tidelog.ids import Named, name_of, named_id
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.read.standing import KeyedStanding
from tidelog.keyed.reader import REFRESH_US, KeyedReader
from tidelog.keyed.states.language import prefix_of
from tidelog.keyed.states.state import ForkOrigin, KeyedCheckpoint
from tidelog.keyed.states.transition import (
    check_living,
    decide_checkpoint,
    decide_dropped,
    decide_forked,
    decide_made,
    decide_origin_left,
)
from tidelog.keyed.upkeep.collecting import let_go_of_surplus
from tidelog.keyed.values import MEMORY, Retention, Sealing, check_settings
from tidelog.store.listing import first_entry
from tidelog.store.port import Store
from tidelog.wal.admin.destroy import destroy_log
from tidelog.wal.admin.fork import Fork
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.pin import check_pin_name
from tidelog.wal.logs import log_folder
from tidelog.wal.opening import create_log, open_log
from tidelog.wal.read.head import has_manifest
from tidelog.wal.slot_log import SlotLog

TRIES = 5
WAITS = 16  # Some ten seconds.


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedLogs:
    """All keyed logs of a store.

    ``writer`` is a name for people; by ``location_url`` other processes open the store.
    """

    store: Store
    consensus: Consensus
    clock: Clock
    writer: str
    location_url: str = ""

    async def create(
        self, name: str, *, sealing: Sealing | None = None, retention: Retention | None = None
    ) -> KeyedLog:
        """Make a keyed log, and open it.

        Raises:
            UsageError: the name or the settings will not do. NameTaken: there is one already, or
            was.
        """
        standing = self._standing(name)
        check_settings(sealing, retention)
        if not await standing.machine.commit(
            lambda state: decide_made(state, sealing=sealing, retention=retention)
        ):
            told = (
                "was dropped, and its name stays taken"
                if standing.state.is_dropped
                else ("is there already")
            )
            raise NameTaken(f"a keyed log {name!r} {told}: choose another name")
        return await self.open(name)

    async def open(
        self,
        name: str,
        *,
        visibility: str = MEMORY,
        batching: Batching | None = None,
        upkeep: bool = True,
    ) -> KeyedLog:
        """Open a keyed log; ``batching`` is how it is written, if it is.

        Raises:
            UsageError: the name or the settings will not do. NoSuchLog: there is none.
        """
        standing = await self._living(name)
        return KeyedLog(
            name=name,
            standing=standing,
            wal=await self._wal(standing, batching),
            visibility=visibility,
            upkeep=upkeep,
        )

    async def reader(
        self, name: str, *, refresh_us: int = REFRESH_US, checkpoint: str | None = None
    ) -> KeyedReader:
        """Open a keyed log to be read, as it goes on, or as it was at a checkpoint.

        Raises:
            NoSuchLog: there is none. NoSuchCheckpoint: it has no such checkpoint.
        """
        check_whole(refresh_us, "refresh_us")
        standing = await self._living(name)
        await self._wal(standing, None)
        if checkpoint is not None:
            standing.view_at(checkpoint)
        return KeyedReader(
            name=name, standing=standing, refresh_us=refresh_us, at_checkpoint=checkpoint
        )

    async def standing(self, name: str) -> KeyedStanding:
        """Return what is known of a keyed log; refresh it before it is used.

        Raises:
            UsageError: the name will not do. NoSuchLog: there is none.
        """
        standing = await self._living(name)
        await self._wal(standing, None)
        return standing

    async def names(self) -> list[str]:
        """Return the names of all keyed logs, in order."""
        keys = self.consensus.list_keys(Named.KEYED.prefix)
        found = [name_of(Named.KEYED, key) async for key in keys]
        names = sorted(one for one in found if one is not None)
        return [name for name in names if await self.has(name)]

    async def has(self, name: str) -> bool:
        """Say whether there is a keyed log of a name.

        Raises:
            UsageError: the name will not do.
        """
        state = await self._standing(name).machine.refresh()
        return state.is_made and not state.is_dropped

    async def fork(self, source: str, name: str) -> KeyedLog:
        """Make a keyed log that begins as another is now, and shares what it has stored.

        Raises:
            UsageError: the name is not of letters, digits and _. NameTaken: there is such a log.
            NoSuchLog: there is no source. ContentionError: others changed the source meanwhile.
        """
        check_pin_name(name, of="fork")
        target = self._standing(name)
        if (await target.machine.refresh()).is_made:
            raise NameTaken(f"there is, or was, a keyed log {name!r}: choose another name")
        origin = await self._living(source)
        await self._wal(origin, None)
        for _ in range(TRIES):
            with suppress(PositionCollected):
                return await self._forked(origin, target)
        raise ContentionError("the source was collected faster than it could be forked: try again")

    async def drop(self, name: str) -> None:
        """Drop a keyed log, for good; its name stays taken.

        Whoever died over it is helped: of a log that was dropped, what is left goes.

        Raises:
            NoSuchLog: there is none. UsageError: forks read what it has stored.
        """
        standing = self._standing(name)
        was_dropped = (await standing.machine.refresh()).is_dropped
        if not was_dropped:
            standing = await self._living(name)
            decide_dropped(standing.state)
        with suppress(NoSuchLog):
            await destroy_log(standing.wal, clock=self.clock, writer=self.writer, grace_us=0)
        if not was_dropped:
            await standing.machine.commit(decide_dropped)
        await self._clear(standing)
        if was_dropped:
            await self._living(name)

    async def _clear(self, standing: KeyedStanding) -> None:
        """Delete what is left of a log that was dropped, and let go of what it was forked from."""
        await standing.machine.collect(after_us=0)
        runs = f"{prefix_of(standing.name)}/run/"
        left = [entry.key async for entry in self.store.list(runs)]
        if left:
            await self.store.delete(left)
        origin = standing.state.origin
        if origin is not None:
            source = self._standing(origin.log)
            await source.machine.refresh()
            await let_go_of_surplus(source, standing, keep=False)
            await standing.machine.commit(decide_origin_left)

    async def _forked(self, source: KeyedStanding, target: KeyedStanding) -> KeyedLog:
        """Hold the source's runs, fork its wal, and have the fork begin with both.

        Whoever dies or fails between leaves a checkpoint of the source, which says of which fork it
        is; the same call again takes up a wal that was forked already. As long as there is no fork,
        none is let go of: another who makes it may just have taken it for the fork's.
        """
        fork = target.name
        await source.refresh()
        held = f"fork.{fork}.{self.clock.unique()[:8]}"
        limit = source.tail.next
        made = await source.machine.commit(
            lambda state: decide_checkpoint(
                state, held, next_sequence=limit, at_us=wall_us(self.clock), fork=fork
            )
        )
        assert made is not None, "a fork's wal has what is not compacted"
        await self._fork_wal(source, target, made.compacted)
        await target.tail.refresh(1)
        await source.machine.refresh()
        found = _point(source.state.checkpoints, fork, target.tail.oldest, target.tail.next)
        if found is None:
            raise PositionCollected("the source went on before it was forked", log=source.name)
        name, point = found
        begun = await target.machine.commit(
            lambda state: decide_forked(
                state, source.state, point, ForkOrigin(log=source.name, checkpoint=name)
            )
        )
        await let_go_of_surplus(source, target)
        if not begun:
            raise NameTaken(f"another made a keyed log {fork!r} just now")
        return await self.open(fork)

    async def _fork_wal(self, source: KeyedStanding, target: KeyedStanding, compacted: int) -> None:
        wal = SlotLog(name=source.name, store=source.wal, clock=self.clock, writer=self.writer)
        bounds = await wal.bounds()
        # The newest record is always there, and a fork of a log that has records shares some.
        start = min(compacted, bounds.next - 1) if bounds.next > bounds.oldest else 0
        making = Fork(
            store=source.wal,
            source=source.name,
            name=target.name,
            clock=self.clock,
            writer=self.writer,
        )
        try:
            await making.make(start=start)
        except NameTaken:
            if (await target.machine.refresh()).is_made:
                raise
            await self._take_up(wal, target)

    async def _take_up(self, wal: SlotLog, target: KeyedStanding) -> None:
        """Wait for the wal of a fork that another is making, as long as one who lives may take.

        Raises:
            PositionCollected: they died over it, and what they held is let go of: begin again.
        """
        for attempt in range(WAITS):
            if await has_manifest(target.wal):
                return
            await self.clock.sleep(backoff_us(attempt, self.clock, most_us=1_000_000))
        with suppress(NoSuchPin):
            await wal.release_pin(target.name, force=True)
        raise PositionCollected("a fork was begun, and not finished", log=target.name)

    def _standing(self, name: str) -> KeyedStanding:
        named_id(Named.KEYED, name)
        return KeyedStanding(
            name=name,
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            location_url=self.location_url,
        )

    async def _living(self, name: str) -> KeyedStanding:
        standing = self._standing(name)
        state = await standing.machine.refresh()
        try:
            check_living(state)
        except NoSuchLog as error:
            told = "was dropped" if state.is_dropped else "is not there"
            plain = await first_entry(self.store, f"{log_folder(name)}/")
            told += (
                "" if plain is None else f", but a log without keys is ('tidelog log scan {name}')"
            )
            raise NoSuchLog(
                f"the keyed log {name!r} {told}: 'tidelog keyed list' shows those that there are, "
                "'tidelog keyed create' makes one"
            ) from error
        return standing

    async def _wal(self, standing: KeyedStanding, batching: Batching | None) -> SlotLog:
        """Open the wal of a log that was made; make it, if whoever made the log did not."""
        opened = partial(
            open_log,
            standing.wal,
            name=standing.name,
            clock=self.clock,
            writer=self.writer,
            batching=batching,
        )
        try:
            found = await opened()
        except NoSuchLog:
            if standing.state.origin is not None or standing.state.compacted > 1:
                raise
            with suppress(NameTaken):
                await create_log(
                    standing.wal, name=standing.name, clock=self.clock, writer=self.writer
                )
            found = await opened()
        assert isinstance(found, SlotLog)
        return found


def _point(
    checkpoints: dict[str, KeyedCheckpoint], fork: str, oldest: int, following: int
) -> tuple[str, KeyedCheckpoint] | None:
    """Return the checkpoint with which a forked wal makes a whole log."""
    for name, one in checkpoints.items():
        if one.fork == fork and oldest <= one.compacted <= following:
            return name, one
    return None
