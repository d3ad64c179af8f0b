"""Scenarios T62 and T63: states of other versions. T61 is in README.md."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec
import pytest

from kit.shards import COMMITTED, Place, contents, rows
from kit.stores import keys_in
from tidelog.core.ids import SeqNo
from tidelog.errors import UsageError
from tidelog.machine import record as records
from tidelog.persist.handle.shard import Shard
from tidelog.persist.states.state import FORMAT, ShardLanguage, State


class Newer(ShardLanguage):
    """The language of a later version, with one more field in its states."""

    def decode_state(self, data: bytes) -> State:
        state = ShardLanguage.decode_state(self, data)
        assert state.extra == {"mood": "bright"}, "another version has dropped it"
        return state

    def encode_state(self, state: State) -> bytes:
        more = {**state.extra, "mood": "bright"}
        return ShardLanguage.encode_state(self, replace(state, extra=more))


async def test_t62_a_state_of_a_newer_format_is_refused_and_left_alone(place: Place) -> None:
    """Each call raises. A handle that cannot read a state must not overwrite it."""

    class FutureLanguage(ShardLanguage):
        """A version whose states this one cannot read."""

        def encode_state(self, state: State) -> bytes:
            fields = msgspec.msgpack.decode(ShardLanguage.encode_state(self, state))
            return msgspec.msgpack.encode({**fields, "format": FORMAT + 1})

    future = place.shard()
    future.machine.language = FutureLanguage(future.id)
    future.machine.rollup_every = 2
    for time in range(8):
        await future.compare_and_append(rows((f"k{time}", 1, time, 1)), time, time + 1)
    await future.collect(after_us=0)
    before = await place.consensus().scan("s", SeqNo(1)), await keys_in(place.store)
    for _ in range(2):
        old = place.shard()
        calls: tuple[Callable[[Shard], Awaitable[object]], ...] = (
            lambda shard: shard.compare_and_append(rows(("x", 1, 8, 1)), 8, 9),
            lambda shard: shard.snapshot(3),
            lambda shard: shard.hold("mine"),
            lambda shard: shard.compact(full=True),
            lambda shard: shard.collect(after_us=0),
            lambda shard: shard.sweep(),
            lambda shard: shard.drop(),
        )
        for call in calls:
            with pytest.raises(UsageError, match="newer tidelog"):
                await call(old)
    assert (await place.consensus().scan("s", SeqNo(1)), await keys_in(place.store)) == before


async def test_t62_a_record_of_a_newer_format_is_refused_and_left_alone(place: Place) -> None:
    """A record of a newer format is refused like a state."""
    await place.shard().compare_and_append(rows(("a", 1, 0, 1)), 0, 1)
    (first,) = await place.consensus().scan("s", SeqNo(1))
    fields = msgspec.msgpack.decode(first.data)
    assert fields["v"] == records.FORMAT
    made = msgspec.msgpack.encode({**fields, "v": records.FORMAT + 1})
    assert await place.consensus().compare_and_set("s", SeqNo(2), made)
    with pytest.raises(UsageError, match="newer tidelog"):
        await place.shard().compare_and_append(rows(("b", 1, 1, 1)), 1, 2)
    assert len(await place.consensus().scan("s", SeqNo(1))) == 2


async def test_t63_two_versions_in_turn_drop_nothing_of_each_other(place: Place) -> None:
    """The older version keeps unknown fields in its states and rollups."""
    time = 0
    for turn in range(8):
        shard = place.shard()
        if turn % 2 == 0:
            shard.machine.language = Newer(shard.id)
        shard.machine.rollup_every = 2
        for _ in range(5):
            done = await shard.compare_and_append(rows((f"k{time}", 1, time, 1)), time, time + 1)
            assert done.verdict is COMMITTED
            time += 1
        await shard.compact(full=True)
        await shard.collect(after_us=0)
    reader = place.shard()
    assert await contents(reader, time - 1) == {(f"k{n}", 1): 1 for n in range(time)}
    assert reader.state.extra == {"mood": "bright"}
    history = reader.machine.history
    assert history.floor > 2, "it is read from what the older version wrote"
