"""Costs of a log with many segments: at most proportional to their number."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tidelog.errors import CorruptionError
from tidelog.keyed.format.part import RunPart
from tidelog.keyed.format.records import KEY_ROWS
from tidelog.keyed.maintenance.collecting import needed_from
from tidelog.keyed.maintenance.plan import retired_by
from tidelog.keyed.read import listing
from tidelog.keyed.read.listing import merged_keys
from tidelog.keyed.states.describing import segments_of
from tidelog.keyed.states.language import KeyedLanguage
from tidelog.keyed.states.run import Run
from tidelog.keyed.states.state import KeyedState, SegmentSeal
from tidelog.keyed.states.transition import decide_checkpoint, decide_retire
from tidelog.keyed.values import Retention

MANY = 400


class CountedRuns(tuple[Run, ...]):
    """Runs that count each access to one of them."""

    looks = 0

    def __iter__(self) -> Iterator[Run]:
        for run in super().__iter__():
            CountedRuns.looks += 1
            yield run

    def __getitem__(self, at: Any) -> Any:
        CountedRuns.looks += 1
        return super().__getitem__(at)


def _state(count: int) -> KeyedState:
    part = RunPart(
        path="p", directory="d", rows=2, keys=1, num_bytes=60, directory_bytes=40,
        first_key=b"", last_key=b"", min_sequence=1, max_sequence=1, first_us=1, last_us=2,
        tail_bytes=1, directory_xxh3=b"", tail_xxh3=b"",
    )  # fmt: skip
    runs = [
        Run(id=str(n), epoch=0, lower=1 + 2 * n, upper=3 + 2 * n, at_us=n, parts=(part,))
        for n in range(count)
    ]
    seals = tuple(SegmentSeal(limit=run.upper, at_us=run.at_us) for run in runs)
    return KeyedState(is_made=True, compacted=1 + 2 * count, runs=CountedRuns(runs), seals=seals)


@dataclass(frozen=True)
class Pages:
    """A source of keys in pages."""

    pages: Sequence[Sequence[bytes]]

    async def keys(self, *_: object) -> AsyncGenerator[pa.Table, None]:
        for page in self.pages:
            ones = [1] * len(page)
            yield pa.table([pa.array(page, pa.binary()), ones, ones, ones], schema=KEY_ROWS)


async def test_keys_of_many_small_runs_are_few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing merges the keys of all runs into few pages, and takes about one table per run."""
    taken = 0
    take = listing._Stream.take

    def counted(self: Any, bound: Any) -> pa.Table:
        nonlocal taken
        taken += 1
        return take(self, bound)

    monkeypatch.setattr(listing._Stream, "take", counted)
    sources: list[Any] = [Pages([[b"a", b"k%04d" % n]]) for n in range(MANY)]
    sources.append(Pages([[], [b"b", b"c"], [b"k0003", b"z"]]))
    found = pa.concat_tables([page async for page in merged_keys(sources, b"", None, 0, None)])
    rows = found.select(["key", "records"]).to_pylist()
    told = {row["key"]: row["records"] for row in rows}
    assert [row["key"] for row in rows] == sorted(told)
    assert told == {b"a": MANY, b"b": 1, b"c": 1, b"z": 1} | {
        b"k%04d" % n: 1 + (n == 3) for n in range(MANY)
    }
    assert taken <= 3 * (MANY + 1)


@pytest.mark.parametrize("kept", [1, 100, 101, 12_345, 100 * MANY, 100 * MANY + 1])
def test_retention_and_listings_look_at_each_run_once(kept: int) -> None:
    """Retention and listings look at each run a constant number of times."""
    state = _state(MANY)
    CountedRuns.looks = 0
    retired = retired_by(state, Retention(bytes=kept), now_us=0)
    surplus = MANY - -(-kept // 100)
    assert retired == (1 if surplus <= 0 else 1 + 2 * surplus)
    assert CountedRuns.looks <= 3 * MANY + 3
    CountedRuns.looks = 0
    found = segments_of(state)
    assert [(one.start, one.records, one.bytes, one.runs) for one in found[:-1]] == [
        (run.lower, 2, 100, 1) for run in tuple.__iter__(state.runs)
    ]
    assert (found[-1].start, found[-1].records) == (1 + 2 * MANY, 0)
    assert CountedRuns.looks <= 4 * MANY


def test_one_clock_that_is_years_ahead_does_not_keep_the_wal() -> None:
    """A run with a time years ahead does not keep the wal before and after it."""
    state = _state(5)
    ahead = replace(state, runs=(replace(state.runs[0], at_us=10**15), *state.runs[1:]))
    assert needed_from(state, 2) == needed_from(ahead, 2) == 7
    assert needed_from(ahead, -1) == 1


def test_a_state_has_each_run_once_however_many_checkpoints_keep_it() -> None:
    """The state stores each run once, for any number of checkpoints."""
    language = KeyedLanguage("log")
    plain = _state(MANY)
    state = replace(plain, runs=tuple(plain.runs))
    for number in range(20):
        name = f"night-{number}"
        made = decide_checkpoint(state, name, next_sequence=state.compacted, at_us=number)
        assert made.result is not None
        assert made.result.runs == state.runs
        assert made.diff is not None
        told = language.encode_diff(made.diff)
        assert len(told) < 200
        state = language.apply(state, language.decode_diff(told))
        assert state.checkpoints[name] == made.result
        gone = decide_retire(state, state.seals[0].limit).diff
        assert gone is not None
        state = language.apply(state, gone)
    stored = language.encode_state(state)

    assert language.decode_state(stored) == state
    assert [len(one.runs) for one in state.checkpoints.values()] == [*range(MANY, MANY - 20, -1)]
    assert stored.count(b"directory_xxh3") == MANY


def test_a_state_whose_checkpoint_lacks_a_run_is_refused() -> None:
    """A collector would delete the records of a checkpoint that lacks a run."""
    state = replace(_state(2), runs=tuple(_state(2).runs))
    made = decide_checkpoint(state, "c", next_sequence=state.compacted, at_us=1).result
    assert made is not None
    language = KeyedLanguage("log")
    fields = msgspec.msgpack.decode(
        language.encode_state(replace(state, runs=(), checkpoints={"c": made}))
    )
    del fields["kept"]["1"]
    with pytest.raises(CorruptionError, match="the state of a keyed log lacks a run"):
        language.decode_state(msgspec.msgpack.encode(fields))


def test_a_checkpoint_that_says_its_runs_itself_is_read() -> None:
    """A checkpoint that contains its runs is readable, as the first versions stored it."""
    state = replace(_state(2), runs=tuple(_state(2).runs))
    made = decide_checkpoint(state, "c", next_sequence=state.compacted, at_us=1).result
    assert made is not None
    told = msgspec.msgpack.encode({"is_made": True, "checkpoints": {"c": made}})
    language = KeyedLanguage("log")

    assert language.decode_state(told).checkpoints == {"c": made}
    change = language.decode_diff(msgspec.msgpack.encode({"checkpoints": {"c": made}}))
    assert language.apply(KeyedState(), change).checkpoints == {"c": made}
