"""Scrubbing: every changed byte is found by a read or a scrub, and an intact shard is clean."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa
import pytest

from kit.damage import flip
from kit.shards import SCHEMA, on_store, rows
from tidelog.consensus.store import StoreConsensus
from tidelog.errors import TidelogError
from tidelog.persist.format import part as parts
from tidelog.persist.handle.shard import Shard
from tidelog.persist.maintenance.scrub import check_batch, check_part, check_state, check_t
from tidelog.persist.maintenance.scrubber import scrub
from tidelog.persist.states.batch import make_batch
from tidelog.persist.states.state import State
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Object

UPPER = 140


async def written() -> MemoryStore:
    """Write a shard with inline and stored parts, merges, rollups, spills and holds."""
    store = MemoryStore()
    shard = on_store(store).shard()
    shard.machine.rollup_every = 30
    await shard.hold("mine", 0)
    for time in range(UPPER):
        wide = [(f"{n:03}", n, time, 1) for n in range(400)] if time in (3, 90) else []
        await shard.compare_and_append(
            rows(("k", time, time, 1), ("k", time - 1, time, -1), *wide), time, time + 1
        )
        if time == 20:
            await shard.lease(0, lease_us=10**15, fixed=True)
        if time == 70:
            await shard.move_hold("mine", 50)
            await shard.compact()
    return store


def copy_of(store: MemoryStore) -> MemoryStore:
    return MemoryStore(objects=dict(store.objects), puts_count=store.puts_count)


async def read(store: MemoryStore) -> list[object]:
    """Return the rows that a new handle reads, at two times."""
    shard = on_store(store).shard(schema=None)
    found: list[object] = []
    for as_of in (60, UPPER - 1):
        table = await (await shard.snapshot(as_of)).to_arrow(consolidated=True)
        found.append(table.sort_by([(n, "ascending") for n in SCHEMA.names]).to_pydict())
    return found


async def test_a_whole_shard_is_clean() -> None:
    """The scrubber reads each part, rollup and record, and compares T for all times."""
    store = await written()
    shard = on_store(store).shard(schema=None)
    found = await scrub(shard)

    assert found.damages == []
    assert found.states >= 2
    assert found.rows == shard.state.totals.rows
    assert found.records > 60
    assert not found.unseen_t


def places(size: int) -> Iterator[int]:
    """Yield offsets spread over an object, and those at its ends, which hold most metadata."""
    ends = {0, 1, 2, 3, size - 4, size - 3, size - 2, size - 1}
    yield from sorted(ends | set(range(7, size, max(1, size // 12))))


async def test_any_byte_that_is_flipped_is_found() -> None:
    """A read returns the original rows or raises, and the scrub reports the damage."""
    store = await written()
    whole = await read(store)
    kinds = {key.split("/")[2 if key.startswith("shard/") else 0] for key in store.objects}
    assert kinds == {"part", "rollup", "consensus", "consensus-spill"}
    flips = 0
    for key, one in store.objects.items():
        for place in places(len(one.data)):
            damaged = copy_of(store)
            damaged.objects[key] = Object(flip(one.data, place), one.e_tag, one.modified_us)
            try:
                assert await read(damaged) == whole, (key, place)
                refused = False
            except TidelogError:
                refused = True
            found = await scrub(on_store(damaged).shard(schema=None))
            assert found.damages, (key, place, refused)
            assert any(key in str(damage) or "consensus/s" in str(damage)
                       for damage in found.damages)  # fmt: skip
            flips += 1
    assert flips > 150


async def test_an_object_that_is_gone_is_told_by_its_name() -> None:
    """The scrubber names each missing object of the shard, and advises how to restore it."""
    store = await written()
    for key in [key for key in store.objects if key.startswith("shard/")]:
        damaged = copy_of(store)
        await damaged.delete([key])
        shard = on_store(damaged).shard(schema=None)
        found = await scrub(shard)
        assert any(key in str(damage) for damage in found.damages), key
        assert all("restore" in damage.advice for damage in found.damages)


async def test_a_rollup_that_is_another_state_is_found() -> None:
    """A rollup whose bytes match its record, but not the changes before it, is reported."""
    store = await written()
    shard = on_store(store).shard(schema=None)
    await shard.refresh()
    rollup = shard.machine.history.rollups[0]
    liar = on_store(store).shard(schema=None)
    await liar.refresh()
    language = liar.machine.language
    load = language.decode_state

    class WrongLanguage(type(language)):  # type: ignore[misc]
        """A language that reads a rollup as a state without holds."""

        def decode_state(self, data: bytes) -> State:
            found = load(data)
            return State(schema=found.schema, batches=found.batches, upper=found.upper)

    liar.machine.language = WrongLanguage("s")
    found = await scrub(liar)
    assert [damage.path for damage in found.damages].count(rollup.path) == 1


async def checked(store: MemoryStore) -> tuple[Shard, parts.Part, pa.Table]:
    """Return a shard, its largest part and the rows of that part."""
    shard = on_store(store).shard(schema=None)
    state = await shard.refresh()
    part = max((p for b in state.batches for p in b.parts), key=lambda p: p.rows)
    (table,) = await shard.reader.read([part], SCHEMA)
    return shard, part, table


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"rows": 1}, "updates, but its state declares 1"),
        ({"diffs": 1}, "the sum of its diffs"),
        ({"time_min": 1}, "its times are"),
        ({"time_max": 10**9}, "its times are"),
        ({"sum_v": bytes(16)}, "rows differs from the sum in the state (field v)"),
        ({"sum_t": bytes(16)}, "updates differs from the sum in the state (field t)"),
    ],
)
async def test_what_a_descriptor_says_is_compared(changed: dict[str, object], told: str) -> None:
    """The scrubber checks each figure of a descriptor. A wrong one would hide or miscount rows."""
    shard, part, table = await checked(await written())
    batch = next(b for b in shard.state.batches if part in b.parts)
    assert list(check_part(part, table, SCHEMA, batch)) == []
    wrong = msgspec.structs.replace(part, **changed)
    assert any(told in why for why in check_part(wrong, table, SCHEMA, batch))


async def test_rows_that_are_not_where_they_are_said_to_be_are_found() -> None:
    """The scrubber reports rows out of order, out of bounds or outside their batch."""
    shard, part, table = await checked(await written())
    batch = next(b for b in shard.state.batches if part in b.parts)
    backwards = table.take(list(range(table.num_rows))[::-1])
    assert any("order" in why for why in check_part(part, backwards, SCHEMA, batch))
    first = table.slice(0, 1)
    narrow, _ = parts.encode_part(
        first, SCHEMA, path=part.path or "", is_sorted=True, inline=False
    )  # fmt: skip
    bounds = msgspec.structs.replace(part, key_bounds=narrow.key_bounds)
    assert any("bounds" in why for why in check_part(bounds, table, SCHEMA, batch))
    late = make_batch([part], lower=part.time_max + 1, upper=None)
    assert any("outside its batch" in why for why in check_part(part, table, SCHEMA, late))


async def test_what_a_state_says_is_compared() -> None:
    """The scrubber compares batches with parts, totals with batches, and T with the appends."""
    shard, _, _ = await checked(await written())
    state = shard.state
    batches = list(state.batches)
    assert list(check_state(state)) == []
    for batch in batches:
        assert list(check_batch(batch)) == []
    wrong = [
        msgspec.structs.replace(batches[0], rows=7),
        msgspec.structs.replace(batches[0], sum_v=b"x" * 16),
        msgspec.structs.replace(batches[0], runs=(1, 1, 1, 1, 1, 1)),
    ]
    assert all(list(check_batch(batch)) for batch in wrong)
    for one in wrong[:2]:
        spine = type(state.batches).of([one, *batches[1:]])
        assert list(check_state(_with(state, batches=spine)))
    doubled = type(state.batches).of([batches[0], *batches])
    assert any("overlap" in why for why in check_state(_with(state, batches=doubled)))
    sums = []
    for batch in batches:
        total = batch.parts[0].t
        for part in batch.parts[1:]:
            total = total + part.t
        sums.append((batch, total))
    assert check_t(state, sums) == []
    assert check_t(state, sums[:-1]) == [
        "the stored updates differ from the appended ones: their sums (field t) differ"
    ]


def _with(state: State, **changed: object) -> State:
    fields = {name: getattr(state, name) for name in State.__dataclass_fields__}
    return State(**{**fields, **changed})


def test_consensus_on_the_store_is_what_is_damaged_here() -> None:
    """The damage tests above include consensus objects. A database would check its own."""
    assert on_store(MemoryStore()).shard().consensus.__class__ is StoreConsensus
