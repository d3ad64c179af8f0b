"""Open handles of a destroyed log: each operation raises an error that reports the destruction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import pyarrow as pa
import pytest

from kit.named_logs import ALL, SHAPE, shelf_on, store_with
from kit.stores import InterposedStore, Once, keys_in
from tidelog.errors import NameTaken, NoSuchLog, Outcome, OutcomeUnknown
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.fragment import Fragment, fragment_path
from tidelog.wal.gc.cursors import Witness
from tidelog.wal.log import Log

BATCHING: Final = Batching(interval_us=0)


async def drained(tables: AsyncIterator[pa.Table]) -> None:
    async for _ in tables:
        pass


# Each operation gets the log, and its cursor and fragment from before the destruction.
OPERATIONS: Final[dict[str, Callable[[Log, Witness, Fragment], Awaitable[Any]]]] = {
    "bounds": lambda log, *_: log.bounds(),
    "scan": lambda log, *_: drained(log.scan()),
    "scan from": lambda log, *_: drained(log.scan(3)),
    "follow": lambda log, *_: drained(log.follow(1)),
    "fragments": lambda log, *_: log.fragments(),
    "fetch": lambda log, _, fragment: log.fetch(fragment),
    "position_at": lambda log, *_: log.position_at(1),
    "scrub": lambda log, *_: log.scrub(),
    "describe": lambda log, *_: log.describe(),
    "load_cursor": lambda log, *_: log.load_cursor("c"),
    "create_cursor": lambda log, *_: log.create_cursor("d", 2),
    "move_cursor": lambda log, cursor, _: log.move_cursor(cursor, 4),
    "cursors": lambda log, *_: log.cursors(),
    "pins": lambda log, *_: log.pins(),
    "create_pin": lambda log, *_: log.create_pin("q"),
    "release_pin": lambda log, *_: log.drop_pin("p"),
    "scan_pin": lambda log, *_: drained(log.scan_pin("p")),
    "collect": lambda log, *_: log.collect(keep=ALL, grace_us=0),
    "sweep": lambda log, *_: log.sweep(grace_us=0),
    "streams": lambda log, *_: log.streams(),
    "open_stream": lambda log, *_: log.open_stream(b"s"),
    "seal": lambda log, *_: log.seal(),
    "append": lambda log, *_: log.append([b"more"]),
}
OF_SLOTS_ALONE: Final = {"streams", "open_stream", "seal"}


@pytest.mark.parametrize("has_written", [False, True])
@pytest.mark.parametrize("protocol", ["slot", "manifest"])
async def test_a_handle_says_that_its_log_was_destroyed(
    protocol: str, *, has_written: bool
) -> None:
    """An operation on a destroyed log never reports an empty, collected or merely sealed log."""
    store = await store_with(a=12, protocol=protocol)
    log = await shelf_on(store).open("a", shape=SHAPE, batching=BATCHING)
    if has_written:
        await log.append([b"before"])
    cursor, fragment = await log.create_cursor("c", 2), (await log.fragments())[0]
    await shelf_on(store).drop("a", grace_us=0)
    left = await keys_in(store)

    for name, operation in OPERATIONS.items():
        if protocol == "manifest" and name in OF_SLOTS_ALONE:
            continue
        with pytest.raises((NoSuchLog, OutcomeUnknown), match=r"dropped|no longer") as told:
            await operation(log, cursor, fragment)
        is_in_doubt = protocol == "manifest" and name == "append" and has_written
        assert isinstance(told.value, OutcomeUnknown) == is_in_doubt, name
        assert told.value.outcome is (Outcome.UNKNOWN if is_in_doubt else Outcome.NOT_APPLIED), name
    with pytest.raises(NoSuchLog):
        await log.append([b"more"])
    await log.close()
    if not (protocol == "manifest" and has_written):
        assert await keys_in(store) == left


async def test_what_was_acknowledged_before_is_told_as_it_was() -> None:
    """An append before the destruction succeeds, and one after it reports NOT_APPLIED."""
    store = await store_with(a=3)
    log = await shelf_on(store).open("a", shape=SHAPE, batching=BATCHING)
    assert await log.append([b"one"]) == 4
    await shelf_on(store).drop("a", grace_us=0)
    with pytest.raises(NoSuchLog, match="dropped") as told:
        await log.append([b"two"])
    assert told.value.outcome is Outcome.NOT_APPLIED
    await log.close()


async def test_what_a_sleeper_stored_comes_into_no_other_log() -> None:
    """A fragment that a suspended wal3 writer stored after the drop enters no other log."""
    store = await store_with(a=2, protocol="manifest")
    sleeper = await shelf_on(store).open("a", batching=BATCHING)
    await sleeper.append([b"third"])
    await shelf_on(store).drop("a", grace_us=0)
    with pytest.raises(OutcomeUnknown, match="dropped the log"):
        await sleeper.append([b"of a log that is gone"])
    assert f"log/a/{fragment_path(4)}" in store.objects

    with pytest.raises(NameTaken, match="names are not reused"):
        await shelf_on(store).create("a", protocol="manifest")
    await shelf_on(store).drop("a", grace_us=0)
    assert f"log/a/{fragment_path(4)}" not in store.objects


async def test_a_reader_that_loses_its_log_half_way_says_so() -> None:
    """A scan of a log that is dropped raises NoSuchLog, because no position remains."""
    store = await store_with(a=12)
    drop = Once("get", "/epoch/", lambda: shelf_on(store).drop("a", grace_us=0))
    log = await shelf_on(InterposedStore(store, before=drop)).open("a")
    with pytest.raises(NoSuchLog, match="was dropped"):
        await drained(log.scan())
