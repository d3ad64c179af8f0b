"""Changed manifests and snapshots in wal3's format: readers detect the change.

wal3's bytes have no checksum. Their bounds, counts and sums depend on each other, and every reader
compares them. docs/internals/wal3.md lists the changes that no reader can detect.
"""

from __future__ import annotations

import copy
import json
import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from kit.clocks import OneThread
from kit.damage import Bytes
from kit.goldens import NAMES, objects
from tidelog.errors import CorruptionError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Object
from tidelog.testing.recorded import RecordedStore
from tidelog.wal.format.manifest import MANIFEST
from tidelog.wal.log import Log
from tidelog.wal.logs import Logs
from tidelog.wal.opening import open_log

SMALL = ["a_tiny", "e_empty", "f_bootstrap", "h_all_collected"]
CASES = 60  # Changes tested in a larger log.


def store_of(log: Bytes) -> MemoryStore:
    found = {key: Object(data, f"m{n}", n) for n, (key, data) in enumerate(log.items())}
    return MemoryStore(objects=found, puts_count=len(found))


async def opened(log: Bytes) -> Log:
    return await open_log(store_of(log), name="log", clock=OneThread(), writer="looker")


async def read_all(log: Log) -> str:
    """Read a log to its end and return an empty string."""
    async for _ in log.scan():
        pass
    return ""


async def rows_of(log: Bytes) -> list[dict[str, Any]]:
    return [row async for table in (await opened(log)).scan() for row in table.to_pylist()]


async def rows_or_told(log: Bytes) -> list[dict[str, Any]] | str:
    """Return all records, or the message of the CorruptionError."""
    try:
        return await rows_of(log)
    except CorruptionError as error:
        return str(error)


def places(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield every value and list of a JSON document, each with its path of keys."""
    if isinstance(node, list):
        yield at, node
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from places(value, (*at, key))
    else:
        yield at, node


def changes_of(value: Any) -> list[Any]:
    """Return wrong values that could replace a value."""
    if isinstance(value, list):
        some = range(len(value))
        return [
            *(value[:n] + value[n + 1 :] for n in some),
            *(value[: n + 1] + value[n:] for n in some),
            *([*value[: n - 1], value[n], value[n - 1], *value[n + 1 :]] for n in some if n),
        ]
    if isinstance(value, int):
        numbers = {0, 1, value - 1, value + 1, 2 * value, 2**40, 2**63, 2**64 - 1}
        return sorted(numbers - {value, -1})
    if len(value) == 64:
        return [value[1:] + value[0], "0" * 64]
    return ["../other/manifest/MANIFEST", "/etc/passwd", "log/..", "a\0b", "\ud800", value + "x"]


def with_value(document: Any, at: tuple[Any, ...], value: Any) -> bytes:
    changed = node = copy.deepcopy(document)
    for key in at[:-1]:
        node = node[key]
    node[at[-1]] = value
    return json.dumps(changed).encode()


def changed(log: Bytes) -> Iterator[tuple[str, Any, dict[str, bytes]]]:
    """Yield a log for each change of its manifest and snapshots: object key, place and log."""
    for key in [key for key in log if key == MANIFEST or key.startswith("snapshot/")]:
        document = json.loads(log[key])
        for at, value in places(document):
            for other in changes_of(value):
                yield key, at, {**log, key: with_value(document, at, other)}


@pytest.mark.parametrize("name", NAMES)
async def test_no_change_of_a_tree_is_served(name: str) -> None:
    """A read of a log with a changed value returns all written records or raises."""
    log = objects(name)
    whole = await rows_of(log)
    cases = list(changed(log))
    if name not in SMALL:
        cases = random.Random(f"cases {name}").sample(cases, min(CASES, len(cases)))

    for key, at, damaged in cases:
        found = await rows_or_told(damaged)
        if isinstance(found, str):
            assert found.encode(), "it can be printed"
        else:
            assert found == whole, f"{key} {at}"


@pytest.mark.parametrize("name", ["a_tiny", "f_bootstrap", "h_all_collected", "b_snapshots"])
async def test_bounds_are_wrong_in_what_the_docs_list_alone(name: str) -> None:
    """Only the changes that docs/internals/wal3.md lists alter the bounds without an error."""
    log = objects(name)
    document = json.loads(log[MANIFEST])
    bounds = await (await opened(log)).bounds()

    unseen = set[Any]()
    for _, at, damaged in changed({MANIFEST: log[MANIFEST]}):
        try:
            found = await (await opened(damaged)).bounds()
        except CorruptionError:
            continue
        if found != bounds:
            unseen.add(at)

    newest = len(document["fragments"]) - 1
    assert unseen <= {
        ("fragments", newest, "limit", "offset"),
        ("snapshots" if document["snapshots"] else "fragments", 0, "start", "offset"),
        ("initial_offset", "offset"),
    }
    assert bool(document["fragments"]) != (("initial_offset", "offset") in unseen)


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
@pytest.mark.parametrize("field", ["start", "limit"])
async def test_a_copy_does_not_launder_a_loss(protocol: str, field: str) -> None:
    """A copy of a damaged log raises: its fresh checksums would hide the loss."""
    log = objects("d_copy")
    document = json.loads(log[MANIFEST])
    for number in (0, 12, len(document["fragments"]) - 1):
        for change in (-1, 1, -(10**3), 10**3):
            at = ("fragments", number, field, "offset")
            value = max(0, document["fragments"][number][field]["offset"] + change)
            store = store_of({"log/a/" + key: data for key, data in log.items()})
            await store.put("log/a/" + MANIFEST, with_value(document, at, value))
            logs = Logs(store=store, clock=OneThread(), writer="copier")

            with pytest.raises(CorruptionError):
                await logs.copy("a", "b", protocol=protocol)
            assert "b" not in await logs.list()


@pytest.mark.parametrize("field", ["setsum", "acc_bytes", "initial_offset"])
async def test_nobody_appends_to_a_manifest_that_contradicts_itself(field: str) -> None:
    """An append to a contradictory manifest raises, so no new record can be lost with it."""
    log = objects("d_copy")
    document = json.loads(log[MANIFEST])
    values = {"setsum": "0" * 64, "acc_bytes": 7, "initial_offset": {"offset": 2}}
    found = await opened({**log, MANIFEST: with_value(document, (field,), values[field])})

    with pytest.raises(CorruptionError, match=field):
        await found.append([b"more"])
    await found.close()


@pytest.mark.parametrize("change", [-1, 1, 256, 2**40])
@pytest.mark.parametrize("name", ["a_tiny", "d_copy", "b_snapshots"])
async def test_nobody_appends_where_a_changed_limit_says(name: str, change: int) -> None:
    """An append checks the newest fragment, because no other field states the next position."""
    log = objects(name)
    document = json.loads(log[MANIFEST])
    at = ("fragments", len(document["fragments"]) - 1, "limit", "offset")
    value = document["fragments"][-1]["limit"]["offset"] + change
    found = await opened({**log, MANIFEST: with_value(document, at, value)})

    with pytest.raises(CorruptionError):
        await found.append([b"more"])
    await found.close()


@pytest.mark.parametrize("where", ["fragments", "snapshots"])
@pytest.mark.parametrize("path", ["../x/y", "..", "/x", "log/../x", "a\0b", "\ud800", "", "log/"])
async def test_no_path_leads_out_of_a_log(where: str, path: str) -> None:
    """A reader makes no request for a path outside the log."""
    log = objects("b_snapshots")
    field = "path" if where == "fragments" else "path_to_snapshot"
    data = with_value(json.loads(log[MANIFEST]), (where, 0, field), path)
    store = RecordedStore(store_of({**log, MANIFEST: data}))

    try:
        reader = await open_log(store, name="log", clock=OneThread(), writer="looker")
        told = await read_all(reader)
    except CorruptionError as error:
        told = str(error)
    assert told.encode(), "it was told, in words that can be printed"
    assert {record.key for record in store.records} == {MANIFEST}


async def test_a_changed_limit_costs_no_memory() -> None:
    """A reader compares a limit with the number of records before it allocates positions."""
    log = objects("a_tiny")
    at = ("fragments", 0, "limit", "offset")
    for limit in (3 * 10**8, 2**40, 2**63):
        found = await opened({**log, MANIFEST: with_value(json.loads(log[MANIFEST]), at, limit)})
        tracemalloc.start()
        try:
            with pytest.raises(CorruptionError):
                await read_all(found)
            assert tracemalloc.get_traced_memory()[1] < 2**22
        finally:
            tracemalloc.stop()


async def test_a_snapshot_that_names_itself_is_not_followed() -> None:
    """A snapshot that names itself, or one of its own depth, raises CorruptionError."""
    log = objects("b_snapshots")
    requests = 0
    for key in [key for key in log if key.startswith("snapshot/")]:
        document = json.loads(log[key])
        if not document["snapshots"]:
            continue
        for child in range(len(document["snapshots"])):
            own = {
                "setsum": document["setsum"],
                "path_to_snapshot": document["path"],
                "depth": document["depth"],
            }
            pointer = {**document["snapshots"][child], **own}
            data = with_value(document, ("snapshots", child), pointer)
            store = RecordedStore(store_of({**log, key: data}))
            found = await open_log(store, name="log", clock=OneThread(), writer="looker")
            with pytest.raises(CorruptionError):
                await read_all(found)
            requests = max(requests, len(store.records))
    assert 0 < requests < 100
