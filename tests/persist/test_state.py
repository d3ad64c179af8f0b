"""States: immutable values that small diffs change, in bytes that other versions can read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.shards import plain_part
from tidelog.core.frontier import Frontier
from tidelog.errors import CorruptionError, TidelogError, UsageError
from tidelog.persist.format.part import Part
from tidelog.persist.states.batch import Batch, make_batch
from tidelog.persist.states.holding import decide_advance_hold, decide_drop_hold, decide_hold
from tidelog.persist.states.state import (
    COMMITS_KEPT,
    FORMAT,
    BatchMerge,
    Commit,
    Diff,
    Hold,
    ShardLanguage,
    Sighting,
    State,
    apply_diff,
)
from tidelog.persist.states.transition import (
    CompareAndAppend,
    decide_append,
)
from tidelog.rowhash import RowSum

LANGUAGE = ShardLanguage()
SCHEMA = b"a schema"


def part(
    time: int, *, rows: int = 1, inline: bool = True, extra: dict[str, Any] | None = None
) -> Part:
    """Return a descriptor whose sums are small numbers."""
    place: dict[str, Any] = {"inline": b"data"}
    if not inline:
        place = {"path": f"shard/s/part/00000000/{time}.parquet"}
    sums = {"sum_v": RowSum(rows, 0).to_bytes(), "sum_t": RowSum(rows, time).to_bytes()}
    counts = {"size_bytes": 4, "rows": rows, "diffs": rows}
    return plain_part(**place, **sums, **counts, time_min=time, extra=extra or {})


def batch_of(*parts: Part) -> Batch:
    return make_batch(parts, lower=0, upper=1)


def append(
    state: State, upper: int | None, *, number: int = 0, rows: int = 1, named: bool = False
) -> Diff:
    """Return the diff of a commit at the state's upper."""
    lower = state.upper_frontier
    parts = [part(lower.time, rows=rows)] if rows else []
    command = CompareAndAppend(
        schema=SCHEMA, parts=parts, expected_upper=lower, upper=Frontier.of(upper),
        token=("w", number), named=named,
    )  # fmt: skip
    diff = decide_append(state, command).diff
    assert diff is not None
    return diff


@st.composite
def histories(draw: st.DrawFn) -> list[Diff]:
    """Return diffs, each decided on the state before it."""
    state = LANGUAGE.initial()
    found: list[Diff] = []
    for number in range(draw(st.integers(0, 90 if draw(st.booleans()) else 12))):
        diff: Diff | None = None
        match draw(st.integers(0, 5)):
            case 0 | 1 | 2 if state.upper is not None:
                step = draw(st.integers(1, 3))
                upper = state.upper + step if draw(st.integers(0, 40)) else None
                rows, named = draw(st.integers(0, 2)), draw(st.booleans())
                diff = append(state, upper, number=number, rows=rows, named=named)
            case 3:
                name = draw(st.sampled_from("ab"))
                diff = decide_hold(state, name, None, schema=SCHEMA).diff
            case 4 if state.holds:
                name = draw(st.sampled_from(sorted(state.holds)))
                most = 30 if state.upper is None else state.upper
                since = Frontier.of(draw(st.none() | st.integers(0, most)))
                diff = decide_advance_hold(state, name, since).diff
            case 5 if state.holds:
                diff = decide_drop_hold(state, draw(st.sampled_from(sorted(state.holds)))).diff
            case _:
                diff = None
        if diff is not None:
            found.append(diff)
            state = apply_diff(state, diff)
    return found


@given(history=histories(), data=st.data())
def test_a_state_from_any_rollup_and_the_diffs_after_it_is_the_state(
    history: list[Diff], data: st.DataObject
) -> None:
    """A state equals a rollup plus the later diffs at every seqno, through encoded bytes."""
    states = [LANGUAGE.initial()]
    for diff in history:
        states.append(LANGUAGE.apply(states[-1], diff))
    start = data.draw(st.integers(0, len(history)), label="rollup")

    state = LANGUAGE.decode_state(LANGUAGE.encode_state(states[start]))
    for diff in history[start:]:
        state = LANGUAGE.apply(state, LANGUAGE.decode_diff(LANGUAGE.encode_diff(diff)))

    assert state == states[-1]


@given(history=histories())
def test_frontiers_never_go_back(history: list[Diff]) -> None:
    """Neither `since` nor the upper ever moves back, and `since` never passes a hold."""
    state = LANGUAGE.initial()
    for diff in history:
        after = LANGUAGE.apply(state, diff)
        assert state.since_frontier <= after.since_frontier
        assert state.upper_frontier <= after.upper_frontier
        assert all(after.since_frontier <= hold.frontier for hold in after.holds.values())
        state = after


@given(history=histories())
def test_sums_and_counts_are_those_of_all_parts(history: list[Diff]) -> None:
    """The totals of a state equal the sums over its parts. Replicas compare them."""
    state = LANGUAGE.initial()
    for diff in history:
        state = LANGUAGE.apply(state, diff)
    parts = [p for b in state.batches for p in b.parts]
    total = RowSum.zero()
    for each in parts:
        total = total + each.t

    assert state.totals.sum_t == total.to_bytes()
    assert state.sum_at(state.upper_frontier) in (total, None)
    assert state.totals.rows == sum(p.rows for p in parts)
    assert state.totals.inline_bytes == sum(p.size_bytes for p in parts if p.inline is not None)
    assert len(state.commits) <= COMMITS_KEPT


def test_sums_are_remembered_at_the_last_uppers_and_no_others() -> None:
    """Writers with other boundaries compare at a shared one."""
    state = State()
    for number in range(COMMITS_KEPT + 10):
        state = apply_diff(state, append(state, 2 * number + 2, number=number))

    assert state.sum_at(Frontier.at(0)) is None
    assert state.sum_at(Frontier.at(3)) is None
    assert state.sum_at(Frontier.at(2 * COMMITS_KEPT)) is not None
    assert state.commits_forgotten
    assert State().sum_at(Frontier.at(0)) == RowSum.zero()


def _found(value: Any, place: tuple[str | int, ...]) -> dict[str, Any]:
    """Return the map at ``place``, or the extra-fields map at the end of an array."""
    for step in place:
        value = value[step]
    found = value[-1] if isinstance(value, list) else value
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    "place",
    [(), ("batches", 0), ("batches", 1), ("commits", 0)],
    ids=str,
)
def test_fields_that_this_version_does_not_know_survive(place: tuple[str | int, ...]) -> None:
    """An older version keeps the unknown fields that a newer version wrote."""
    state = State()
    for number in range(2):
        state = apply_diff(state, append(state, number + 1, number=number))
    written: Any = msgspec.msgpack.decode(LANGUAGE.encode_state(state))
    _found(written, place)["later"] = {"deep": [1, None]}

    read = LANGUAGE.decode_state(msgspec.msgpack.encode(written))
    read = apply_diff(read, append(read, 9, number=9))
    again: Any = msgspec.msgpack.decode(LANGUAGE.encode_state(read))

    assert _found(again, place)["later"] == {"deep": [1, None]}


def test_the_sightings_of_leases_survive_a_rollup_and_a_state_without_them_has_no_field() -> None:
    """Sightings keep unknown fields, and a state of an earlier version has no such field."""
    held = {"r": Hold(0, lease_us=9, beat=4)}
    written: Any = msgspec.msgpack.decode(LANGUAGE.encode_state(State(holds=held)))
    assert "sightings" not in written
    diff = Diff(sightings={"r": Sighting(4, 7), "gone": Sighting(1, 1)})
    state = apply_diff(State(holds=held), LANGUAGE.decode_diff(LANGUAGE.encode_diff(diff)))
    written = msgspec.msgpack.decode(LANGUAGE.encode_state(state))
    assert written["sightings"].keys() == {"r"}
    written["sightings"]["r"][-1]["later"] = 1

    read = LANGUAGE.decode_state(msgspec.msgpack.encode(written))

    assert read.sightings["r"] == Sighting(4, 7, {"later": 1})
    assert LANGUAGE.encode_state(read) == msgspec.msgpack.encode(written)


def test_fields_of_a_part_that_are_not_known_survive() -> None:
    """A state keeps a part's unknown fields through encoding and decoding."""
    later = part(0, extra={"later": 1})
    state = apply_diff(State(), Diff(upper=(1,), token=("w", 0), batch=batch_of(later)))
    read = LANGUAGE.decode_state(LANGUAGE.encode_state(state))

    assert [p.extra for b in read.batches for p in b.parts] == [{"later": 1}]


@pytest.mark.parametrize("place", [(), ("batch",)], ids=str)
def test_fields_of_a_diff_that_are_not_known_reach_the_state(place: tuple[str | int, ...]) -> None:
    """Unknown fields of a batch survive, whether it comes from a diff or a rollup."""
    diff = append(State(), 1)
    written: Any = msgspec.msgpack.decode(LANGUAGE.encode_diff(diff))
    _found(written, place)["later"] = 1

    read = LANGUAGE.decode_diff(msgspec.msgpack.encode(written))

    assert _found(msgspec.msgpack.decode(LANGUAGE.encode_diff(read)), place)["later"] == 1
    if place:
        state = apply_diff(State(), read)
        again: Any = msgspec.msgpack.decode(LANGUAGE.encode_state(state))
        assert _found(again["batches"][0], ())["later"] == 1


def test_a_state_of_a_newer_format_is_refused() -> None:
    """A state of a newer format raises UsageError, because an older version must not change it."""
    written: Any = msgspec.msgpack.decode(LANGUAGE.encode_state(State()))
    written["format"] = FORMAT + 1

    with pytest.raises(UsageError, match="newer tidelog"):
        LANGUAGE.decode_state(msgspec.msgpack.encode(written))


@given(data=st.binary(max_size=80))
def test_garbage_is_neither_a_state_nor_a_diff(data: bytes) -> None:
    """Random bytes give a value or a named error."""
    for decode in (LANGUAGE.decode_state, LANGUAGE.decode_diff):
        try:
            decode(data)
        except (CorruptionError, UsageError):
            continue


@given(history=histories(), data=st.data())
def test_bytes_that_were_changed_are_a_value_or_a_named_error(
    history: list[Diff], data: st.DataObject
) -> None:
    """Changed bytes give a value or a TidelogError, never another exception."""
    state = LANGUAGE.initial()
    for diff in history:
        state = LANGUAGE.apply(state, diff)
    octets = bytearray(LANGUAGE.encode_state(state))
    place = data.draw(st.integers(0, len(octets) - 1), label="place")
    octets[place] = data.draw(st.integers(0, 255), label="octet")

    try:
        LANGUAGE.decode_state(bytes(octets))
    except TidelogError:
        return


def test_a_diff_is_as_large_as_the_change() -> None:
    """The size of a diff does not depend on the number of batches."""
    state = State()
    sizes: list[int] = []
    for number in range(1_000):
        diff = append(state, number + 1, number=number % 100)
        sizes.append(len(LANGUAGE.encode_diff(diff)))
        state = apply_diff(state, diff)

    # The first diff carries the schema. The others differ only in the width of their numbers.
    assert max(sizes[1:]) - min(sizes[1:]) < 24
    assert len(state.batches) == 1_000


def test_a_thousand_empty_commits_leave_a_small_state() -> None:
    """A thousand empty commits leave a small state, because most shards advance without data."""
    state = apply_diff(State(), append(State(), 1))
    for number in range(1, 1_001):
        state = apply_diff(state, append(state, number + 1, number=number, rows=0))

    assert len(state.batches) == 1
    assert state.upper == 1_001
    assert len(LANGUAGE.encode_state(state)) < 10_000


def test_values_of_the_state_are_what_they_say() -> None:
    """The empty frontier stays distinct from every number, in fields and in bytes."""
    diff = append(State(), None)
    state = LANGUAGE.decode_state(LANGUAGE.encode_state(apply_diff(State(), diff)))

    assert state.upper is None
    assert state.upper_frontier == Frontier.empty()
    assert list(state.batches) == [make_batch([part(0)], lower=0, upper=None)]
    assert state.commits == (
        Commit(writer="w", number=0, lower=0, upper=None, sum_t=part(0).sum_t),
    )


def test_a_merge_keeps_upper_commits_and_sums() -> None:
    """A merge replaces batches, and keeps the upper, the commits, V and T."""
    state = State()
    for number in range(3):
        state = apply_diff(state, append(state, number + 1, number=number, rows=2))
    old = list(state.batches)[:2]
    made = make_batch([part(1, rows=4, inline=False)], lower=0, upper=2, since=1, runs=[1])
    digests = tuple(batch.digest for batch in old)
    diff = Diff(merged=BatchMerge(0, 2, digests, made, ("gone/a", "gone/b")))

    after = apply_diff(state, LANGUAGE.decode_diff(LANGUAGE.encode_diff(diff)))

    assert list(after.batches) == [made, list(state.batches)[2]]
    assert LANGUAGE.vanished(diff) == ("gone/a", "gone/b")
    assert (after.upper, after.commits) == (state.upper, state.commits)
    assert (after.totals.rows, after.totals.diffs) == (6, 6)
    assert (after.totals.sum_v, after.totals.sum_t) == (state.totals.sum_v, state.totals.sum_t)
    assert after.totals.inline_bytes == state.totals.inline_bytes - 8
    nothing = apply_diff(state, Diff(merged=BatchMerge(0, 2, digests, None, ())))
    assert list(nothing.batches) == list(state.batches)[2:]
    assert LANGUAGE.decode_state(LANGUAGE.encode_state(after)) == after
