"""The keyed logs of a location, by name: create, open, fork and drop.

The state of a log decides whether it exists. Its wal is created when the log is first opened.
Source: design page 5, "Calls".
"""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tidelog.consensus.port import Consensus
from tidelog.core.arguments import check_whole
from tidelog.core.clock import Clock
from tidelog.core.ids import NamedKind, name_of, named_id
from tidelog.errors import (
    ContentionError,
    LocationError,
    NameTaken,
    NoSuchLog,
    PositionCollected,
    UsageError,
)
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.maintenance.forks import Forks, is_kept_for_forks
from tidelog.keyed.read.state_handle import KeyedStateHandle
from tidelog.keyed.reader import REFRESH_US, KeyedReader
from tidelog.keyed.states.forking import decide_leave_origin
from tidelog.keyed.states.language import prefix_of
from tidelog.keyed.states.transition import check_living, decide_create, decide_drop
from tidelog.keyed.values import MEMORY, Retention, Sealing, check_settings
from tidelog.store.listing import first_entry
from tidelog.store.port import Store
from tidelog.store.wrappers.read_only import is_read_only, refuses_writes
from tidelog.wal.admin.destroy import destroy_log
from tidelog.wal.append.batching import Batching
from tidelog.wal.logs import log_folder
from tidelog.wal.opening import create_log, open_log, opened_head
from tidelog.wal.slot_log import SlotLog

T = TypeVar("T")
TRIES = 5


@refuses_writes()
@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedLogs:
    """All keyed logs of a store.

    ``writer`` is a name for people; other processes open the store by ``location_url``.
    """

    store: Store
    consensus: Consensus
    clock: Clock
    writer: str
    location_url: str = ""

    async def create(
        self, name: str, *, sealing: Sealing | None = None, retention: Retention | None = None
    ) -> KeyedLog:
        """Create a keyed log, and open it.

        Raises:
            UsageError: the name or the settings are invalid. NameTaken: the name is or was in use.
        """
        state_handle = self._state_handle(name)
        _check_free(name)
        check_settings(sealing, retention)
        if not await state_handle.machine.commit(
            lambda state: decide_create(state, sealing=sealing, retention=retention)
        ):
            reason = (
                "was dropped, and names are not reused"
                if state_handle.state.is_dropped
                else ("already exists")
            )
            raise NameTaken(f"a keyed log named {name!r} {reason}: choose another name")
        return await self.open(name)

    async def open(
        self,
        name: str,
        *,
        visibility: str = MEMORY,
        batching: Batching | None = None,
        maintenance: bool = True,
    ) -> KeyedLog:
        """Open a keyed log; ``batching`` sets how it is written.

        Raises:
            UsageError: the name or the settings are invalid. NoSuchLog: no such log.
        """
        state_handle = await self._living(name)
        return KeyedLog(
            name=name,
            state_handle=state_handle,
            wal=await self._wal(state_handle, batching),
            visibility=visibility,
            maintenance=maintenance,
        )

    async def reader(
        self, name: str, *, refresh_us: int = REFRESH_US, checkpoint: str | None = None
    ) -> KeyedReader:
        """Open a keyed log for reading: its newest records, or its contents at a checkpoint.

        Raises:
            NoSuchLog: no such log. NoSuchCheckpoint: it has no such checkpoint.
        """
        check_whole(refresh_us, "refresh_us")
        state_handle = await self.state_handle(name)
        if checkpoint is not None:
            state_handle.view_at(checkpoint)
        return KeyedReader(
            name=name, state_handle=state_handle, refresh_us=refresh_us, at_checkpoint=checkpoint
        )

    async def state_handle(self, name: str) -> KeyedStateHandle:
        """Return a handle of a keyed log's state; refresh it before use.

        Raises:
            UsageError: the name is invalid. NoSuchLog: no such log.
        """
        state_handle = await self._living(name)
        wal, wal_name = state_handle.wal, state_handle.wal_name
        head = await self._of_wal(state_handle, partial(opened_head, wal, name=wal_name))
        state_handle.tail.remember(head)
        return state_handle

    async def list(self) -> builtins.list[str]:
        """Return the names of all keyed logs, in order."""
        keys = self.consensus.list_keys(NamedKind.KEYED.prefix)
        listed = [name_of(NamedKind.KEYED, key) async for key in keys]
        names = sorted(name for name in listed if name is not None)
        return [name for name in names if await self.has(name)]

    async def has(self, name: str) -> bool:
        """Return True if a keyed log of this name exists.

        Raises:
            UsageError: the name is invalid.
        """
        state = await self._state_handle(name).machine.refresh()
        return state.is_made and not state.is_dropped

    async def fork(self, source: str, name: str) -> KeyedLog:
        """Create a keyed log with the present contents of another, sharing the stored objects.

        Raises:
            UsageError: the name is invalid. NameTaken: the name is or was in use. NoSuchLog: no
                such source. ContentionError: the source kept changing.
        """
        target = self._state_handle(name)
        _check_free(name)
        taken = NameTaken(f"a keyed log named {name!r} exists or existed: choose another name")
        if (await target.machine.refresh()).is_made:
            raise taken
        origin = await self._living(source)
        await self._wal(origin, None)
        forks = Forks(source=origin, writer=self.writer)
        for _ in range(TRIES):
            with suppress(PositionCollected):
                is_made = await forks.make(target)
                # If this fails, a collection does it later.
                with suppress(LocationError, NoSuchLog):
                    await forks.settle()
                if not is_made:
                    raise taken
                return await self.open(name)
        raise ContentionError(
            f"gave up after {TRIES} tries: collectors kept deleting records that the fork needs; "
            "try again"
        )

    async def drop(self, name: str) -> None:
        """Drop a keyed log permanently; its name is never reused.

        Dropping a dropped log deletes the remains of a drop that was killed.

        Raises:
            NoSuchLog: no such log. UsageError: forks read its stored objects.
        """
        state_handle = self._state_handle(name)
        if (await state_handle.machine.refresh()).is_dropped:
            await self._clear(state_handle)
            return
        state_handle = await self._living(name)
        await Forks(source=state_handle, writer=self.writer).settle(gives_up=True)
        await state_handle.machine.commit(decide_drop)
        await self._clear(state_handle)

    async def _clear(self, state_handle: KeyedStateHandle) -> None:
        """Delete the remains of a dropped log, and release its hold on its fork source."""
        await Forks(source=state_handle, writer=self.writer).settle(gives_up=True)
        with suppress(NoSuchLog):
            await destroy_log(state_handle.wal, clock=self.clock, writer=self.writer, grace_us=0)
        await state_handle.machine.settle(after_us=0)
        runs = f"{prefix_of(state_handle.name)}/run/"
        left = [entry.key async for entry in self.store.list(runs)]
        if left:
            await self.store.delete(left)
        if (origin := state_handle.state.origin) is not None:
            await Forks(source=state_handle.beside(origin.log), writer=self.writer).settle()
            await state_handle.machine.commit(decide_leave_origin)

    def _state_handle(self, name: str) -> KeyedStateHandle:
        named_id(NamedKind.KEYED, name)
        return KeyedStateHandle(
            name=name,
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            location_url=self.location_url,
        )

    async def _living(self, name: str) -> KeyedStateHandle:
        state_handle = self._state_handle(name)
        state = await state_handle.machine.refresh()
        try:
            check_living(state)
        except NoSuchLog as error:
            reason = "was dropped" if state.is_dropped else "does not exist"
            plain = await first_entry(self.store, f"{log_folder(name)}/")
            reason += (
                ""
                if plain is None
                else f", but a log without keys has that name ('tidelog log scan {name}')"
            )
            raise NoSuchLog(
                f"the keyed log {name!r} {reason}: 'tidelog keyed list' lists the logs, 'tidelog "
                "keyed create' creates one"
            ) from error
        return state_handle

    async def _wal(self, state_handle: KeyedStateHandle, batching: Batching | None) -> SlotLog:
        """Open the wal of a log for writing; see `_of_wal`."""
        opened = partial(
            open_log,
            state_handle.wal,
            name=state_handle.wal_name,
            clock=self.clock,
            writer=self.writer,
            batching=batching,
        )
        wal = await self._of_wal(state_handle, opened)
        assert isinstance(wal, SlotLog)
        return wal

    async def _of_wal(
        self, state_handle: KeyedStateHandle, opened: Callable[[], Awaitable[T]]
    ) -> T:
        """Return what ``opened`` reads; create the wal if the log's creator died before it did."""
        try:
            return await opened()
        except NoSuchLog:
            is_used = state_handle.state.origin is not None or state_handle.state.compacted > 1
            if is_used or is_read_only(self.store):
                raise
            with suppress(NameTaken):
                await create_log(
                    state_handle.wal,
                    name=state_handle.wal_name,
                    clock=self.clock,
                    writer=self.writer,
                )
            return await opened()


def _check_free(name: str) -> None:
    """Refuse names that are reserved for the wals of forks.

    Raises:
        UsageError: the name is reserved.
    """
    if is_kept_for_forks(name):
        raise UsageError(
            f"{name!r} cannot be the name of a keyed log: fork_ with 16 hex digits is reserved "
            "for forks"
        )
