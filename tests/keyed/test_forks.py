"""Forks: unfinished and late attempts, and the holds of finished forks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from kit.keyed_engine import keyed_logs
from tidelog.core.clock import wall_us
from tidelog.errors import (
    ContentionError,
    LocationError,
    NameTaken,
    NoSuchLog,
    TidelogError,
    UsageError,
)
from tidelog.keyed import logs as logs_module
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.logs import KeyedLogs
from tidelog.keyed.maintenance import forks as forks_module
from tidelog.keyed.maintenance.forks import GIVE_UP_US, Forks
from tidelog.keyed.states.forking import decide_fork
from tidelog.keyed.values import Retention
from tidelog.store.memory import MemoryStore
from tidelog.wal.admin.fork import Fork

KEY = b"k"


class ProcessDied(Exception):
    """The end of a process in the middle of its work."""


@contextmanager
def dying(place: Any, name: str) -> Iterator[None]:
    """Let a process die when it calls ``name``."""
    with patch.object(place, name, side_effect=ProcessDied), pytest.raises(ProcessDied):
        yield


# Before the wal is forked, after the fork holds the source's wal, and before the fork's state is
# written.
STEPS = [(Forks, "_fork_wal"), (Fork, "_prepared"), (forks_module, "decide_fork")]


async def filled(logs: KeyedLogs, name: str, count: int = 4) -> KeyedLog:
    """Return a log with some records in a run, and two loose ones."""
    log = await logs.create(name)
    for n in range(count):
        await log.append([(KEY, f"{name}{n}".encode())])
    await log.compact(full=True)
    for n in range(2):
        await log.append([(KEY, f"{name}-{n}".encode())])
    return log


async def values(log: KeyedLog) -> list[bytes]:
    found = await log.scan(KEY).to_arrow()
    return [one or b"" for one in found.column("value").to_pylist()]


def left_of_forks(store: MemoryStore) -> set[str]:
    """Return the wals of forks that still exist or hold a pin."""
    wals = {key.split("/")[1] for key in store.objects if key.startswith("keylog/fork_")}
    pinned = {key.split("/")[3].split(".")[0] for key in store.objects if "/pin/fork_" in key}
    return pinned | {
        wal
        for wal in wals
        if (found := store.objects.get(f"keylog/{wal}/manifest/MANIFEST")) is None
        or b'"is_destroyed":true' not in found.data
    }


async def test_a_user_cannot_drop_the_checkpoint_of_a_fork() -> None:
    """A user cannot drop the checkpoint that a fork begins with."""
    logs = keyed_logs(MemoryStore())
    log = await filled(logs, "x")
    fork = await logs.fork("x", "f")
    (held,) = await log.checkpoints()
    with pytest.raises(UsageError, match="the fork 'f' reads the records"):
        await log.drop_checkpoint(held.name)
    await log.seal()
    await log.compact(full=True)
    await log.retire(Retention(segments=1))
    await log.collect(after_us=0)
    assert len(await values(fork)) == 6
    assert (await fork.scrub()).is_clean


@pytest.mark.parametrize(("place", "step"), STEPS)
async def test_an_unfinished_fork_does_not_take_the_name(place: Any, step: str) -> None:
    """After an unfinished attempt, a fork of any log or a new log can take the name."""
    for then in ("again", "other", "made", "dropped"):
        store = MemoryStore()
        logs = keyed_logs(store)
        x, y = await filled(logs, "x"), await filled(logs, "y", 2)
        with dying(place, step):
            await logs.fork("x", "f")
        await x.append([(KEY, b"since")])
        if then == "again":
            made = await logs.fork("x", "f")
            assert await values(made) == await values(x)
        elif then == "other":
            made = await logs.fork("y", "f")
            assert await values(made) == await values(y)
        elif then == "made":
            made = await logs.create("f")
            assert await values(made) == []
            assert await made.append([(KEY, b"first")]) == 1
        if then != "dropped":
            await x.collect(after_us=0)
            assert (await made.scrub()).is_clean
            held = [one.fork for one in await x.checkpoints()]
            assert held == (["f"] if then == "again" else [])
            await made.close()
            await logs.drop("f")
        await x.close()
        await y.close()
        await logs.drop("x")
        await logs.drop("y")
        assert not left_of_forks(store)


async def test_whoever_is_late_finds_the_fork_given_up() -> None:
    """A forker that is too late gets ContentionError; the source does not wait for it."""
    store = MemoryStore()
    logs = keyed_logs(store)
    log = await filled(logs, "x")
    here, on = asyncio.Event(), asyncio.Event()
    forking = Forks._fork_wal

    async def slow(self: Forks, *told: Any) -> None:
        await forking(self, *told)
        here.set()
        await on.wait()

    with patch.object(Forks, "_fork_wal", slow):
        late = asyncio.create_task(logs.fork("x", "f"))
        await here.wait()
    await log.collect(after_us=0)
    assert len(await log.checkpoints()) == 1  # The forker may still be alive.
    with patch.object(forks_module, "wall_us", lambda clock: wall_us(clock) + GIVE_UP_US):
        await log.collect(after_us=0)
    assert not await log.checkpoints()
    on.set()
    with pytest.raises(ContentionError, match="fork again"):
        await late
    await log.collect(after_us=0)
    assert not left_of_forks(store)
    assert await logs.list() == ["x"]
    fork = await logs.fork("x", "f")
    assert await values(fork) == await values(log)


async def test_collections_release_the_pin_of_a_dead_forker() -> None:
    """The next collections delete a dead forker's pin without a checkpoint."""
    store = MemoryStore()
    logs = keyed_logs(store)
    log = await filled(logs, "x")
    here, on = asyncio.Event(), asyncio.Event()
    forking = Forks._fork_wal

    async def slow(self: Forks, *told: Any) -> None:
        here.set()
        await on.wait()
        await forking(self, *told)
        raise ProcessDied

    with patch.object(Forks, "_fork_wal", slow):
        late = asyncio.create_task(logs.fork("x", "f"))
        await here.wait()
        await Forks(source=log.state_handle, writer="w").settle(gives_up=True)
        on.set()
        with pytest.raises(ProcessDied):
            await late
    assert left_of_forks(store)
    for _ in range(2):  # The first collection releases the pin, and the second deletes its object.
        await log.collect(after_us=0)
    assert not left_of_forks(store)
    await log.close()
    await logs.drop("x")


async def test_a_fork_that_comes_while_its_source_is_dropped_wins_or_is_none() -> None:
    """If the fork's checkpoint exists, the drop is refused; otherwise the fork fails."""
    logs = keyed_logs(MemoryStore())
    log = await filled(logs, "x")
    await log.close()
    settle = Forks.settle

    async def then_fork(self: Forks, *, gives_up: bool = False) -> None:
        await settle(self, gives_up=gives_up)
        with dying(Forks, "_fork_wal"):
            await logs.fork("x", "f")

    with (
        patch.object(Forks, "settle", then_fork),
        pytest.raises(UsageError, match="forks read the log's objects"),
    ):
        await logs.drop("x")
    log = await logs.open("x")
    assert len(await values(log)) == 6
    assert await log.append([(KEY, b"on")]) == 7
    await log.close()
    await logs.drop("x")
    with pytest.raises(NoSuchLog):
        await logs.fork("x", "f")


async def test_a_log_whose_dropper_died_is_gone_and_is_dropped_by_the_next() -> None:
    """A log disappears in one commit; the next drop deletes the remaining objects."""
    store = MemoryStore()
    logs = keyed_logs(store)
    log = await filled(logs, "x")
    with dying(logs_module, "destroy_log"):
        await logs.drop("x")
    assert await logs.list() == []
    with pytest.raises(NoSuchLog):
        await logs.open("x")
    with pytest.raises(NoSuchLog):
        await log.refresh()
    await logs.drop("x")
    assert b'"is_destroyed":true' in store.objects["keylog/x/manifest/MANIFEST"].data
    assert not [key for key in store.objects if key.startswith("keyed/x/run")]


async def test_an_answer_that_was_lost_makes_no_second_fork() -> None:
    """After a lost answer, the forker reads the state back and returns the fork that it made."""
    logs = keyed_logs(MemoryStore())
    await filled(logs, "x")
    commits = 0

    def lost(*told: Any, **more: Any) -> Any:
        nonlocal commits
        commits += 1
        if commits == 2:
            raise LocationError("the answer was lost")
        return decide_fork(*told, **more)

    with patch.object(forks_module, "decide_fork", lost):
        fork = await logs.fork("x", "f")
    assert len(await values(fork)) == 6
    with pytest.raises(NameTaken):
        await logs.fork("x", "f")


async def test_forks_of_forks_hold_what_they_share_with_the_first() -> None:
    """A fork releases the runs of its source once it no longer names them."""
    store = MemoryStore()
    logs = keyed_logs(store)
    x = await filled(logs, "x")
    f = await logs.fork("x", "f")
    await f.append([(KEY, b"f")])
    g = await logs.fork("f", "g")
    for log in (x, f):
        with pytest.raises(UsageError, match="forks"):
            await logs.drop(log.name)
    for log in (x, f, g):
        await log.append([(KEY, b"end")])
        await log.seal()
        await log.compact(full=True)
        await log.collect(after_us=0)
    wanted = [await values(log) for log in (x, f, g)]
    for _ in range(3):
        for log in (g, f, x):
            await log.collect(after_us=0)
    assert [await values(log) for log in (x, f, g)] == wanted
    for log in (x, f, g):
        assert (await log.scrub()).is_clean
        await log.close()
    for name in ("x", "f", "g"):
        await logs.drop(name)


@pytest.mark.parametrize("name", ["a.b", "a-b"])
async def test_forks_are_called_as_logs_are(name: str) -> None:
    """A fork can have any valid name, except those reserved for the wals of forks."""
    logs = keyed_logs(MemoryStore())
    await filled(logs, "x")
    assert (await logs.fork("x", name)).name == name
    for refused in (logs.fork("x", "fork_0123456789abcdef"), logs.create("fork_0123456789abcdef")):
        with pytest.raises(UsageError, match="cannot be the name"):
            await refused
    with pytest.raises(TidelogError):
        await logs.open("fork_0123456789abcdef")
