"""The sequences and the checker: the checker finds each fault of a log."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import CorruptionError
from tidelog.verify.checker import (
    Checker,
    LogDiffers,
    Mismatch,
    decode_cut,
    encode_cut,
    first_cut,
)
from tidelog.verify.figures import Lags
from tidelog.verify.sequence import author_of, make_bodies, read_keys, split_keys

SEED, STREAMS = 11, 7


def bodies_of(counts: list[int], *, seed: int = SEED, authors: int = 2) -> list[bytes]:
    """Return the records of authors that append in turn, with the given number each time."""
    begin = first_cut(seed, STREAMS).next
    writers = [author_of(seed, n, authors=authors, next_numbers=begin) for n in range(authors)]
    found: list[bytes] = []
    for turn, count in enumerate(counts):
        made = make_bodies(seed, writers[turn % authors].draw(count))
        found += [body for body in made.to_pylist() if body is not None]
    return found


def table_of(bodies: list[bytes], *, start: int = 1) -> pa.Table:
    positions = pa.array(range(start, start + len(bodies)), pa.int64())
    return pa.table({"position": positions, "body": pa.array(bodies, pa.binary())})


def mismatch_of(bodies: list[bytes]) -> Mismatch:
    with pytest.raises(LogDiffers) as caught:
        first_cut(SEED, STREAMS).checker("r").take(table_of(bodies))
    return caught.value.mismatch


@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=8), data=st.data())
def test_what_was_appended_passes_however_it_is_cut(counts: list[int], data: st.DataObject) -> None:
    """Readers get tables of any size. A reader that resumes from a cut sees the same records."""
    bodies = bodies_of(counts)
    edges = sorted({0, len(bodies), *data.draw(st.lists(st.integers(0, len(bodies)), max_size=5))})
    whole = table_of(bodies)
    checker = first_cut(SEED, STREAMS).checker("r")
    for start, limit in pairwise(edges):
        checker.take(whole.slice(start, limit - start))
        checker = decode_cut(encode_cut(checker.cut())).checker("r")

    assert checker.position == len(bodies) + 1
    assert int(checker.next.sum()) == len(bodies) + STREAMS


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_each_stream_counts_from_one_without_a_gap(counts: list[int]) -> None:
    """The numbers of a stream have no gap, for any authors and any sizes of appends."""
    keys, has_key = read_keys(pa.array(bodies_of(counts), pa.binary()))
    streams, numbers = split_keys(keys)

    assert has_key.all()
    for stream in set(streams.tolist()):
        found = numbers[streams == stream].tolist()
        assert found == list(range(1, len(found) + 1))


def test_the_first_streams_are_the_most_popular() -> None:
    """The distribution of streams is skewed, like real keys."""
    keys, _ = read_keys(pa.array(bodies_of([4_000], authors=1), pa.binary()))
    counts = np.bincount(split_keys(keys)[0].astype(np.int64))

    assert counts[0] > 1.5 * counts[1] > 0
    assert counts[1] > 2 * counts[6] > 0


def of_one_stream(bodies: list[bytes]) -> tuple[int, int]:
    """Return the indexes of two successive records of one stream."""
    streams = split_keys(read_keys(pa.array(bodies, pa.binary()))[0])[0].tolist()
    first = next(n for n in range(5, len(bodies)) if streams[n] in streams[n + 1 :])
    return first, first + 1 + streams[first + 1 :].index(streams[first])


def lose(bodies: list[bytes], one: int, other: int) -> tuple[list[bytes], int]:
    return bodies[:one] + bodies[one + 1 :], other - 1


def double(bodies: list[bytes], one: int, _: int) -> tuple[list[bytes], int]:
    return bodies[: one + 1] + bodies[one:], one + 1


def reorder(bodies: list[bytes], one: int, other: int) -> tuple[list[bytes], int]:
    found = list(bodies)
    found[one], found[other] = found[other], found[one]
    return found, one


def change(bodies: list[bytes], one: int, _: int) -> tuple[list[bytes], int]:
    return [*bodies[:one], bodies[one][:-1] + b"?", *bodies[one + 1 :]], one


def cut_short(bodies: list[bytes], one: int, _: int) -> tuple[list[bytes], int]:
    return [*bodies[:one], bodies[one][:-8], *bodies[one + 1 :]], one


def replace(bodies: list[bytes], one: int, _: int) -> tuple[list[bytes], int]:
    return [*bodies[:one], b"mine", *bodies[one + 1 :]], one


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lose, "is missing"),
        (double, "is repeated"),
        (reorder, "is missing"),
        (change, "was changed"),
        (cut_short, "was changed"),
        (replace, "was changed"),
    ],
)
def test_harm_is_found_at_its_place(
    harm: Callable[[list[bytes], int, int], tuple[list[bytes], int]], why: str
) -> None:
    """The mismatch contains all that is needed to make both records again."""
    bodies = bodies_of([40, 40, 40])
    harmed, place = harm(bodies, *of_one_stream(bodies))

    found = mismatch_of(harmed)

    assert why in found.why
    assert (found.position, found.seed, found.reader) == (place + 1, SEED, "r")
    assert found.found == harmed[place][:64].hex()
    if found.stream is not None and found.sequence is not None:
        key = np.array([found.stream << 40 | found.sequence], dtype=np.uint64)
        assert found.expected == make_bodies(SEED, key)[0].as_py()[:64].hex()


def test_other_seeds_and_other_positions_are_found() -> None:
    """A log of another run, or one that skips a position, is reported."""
    assert "was changed" in mismatch_of(bodies_of([9], seed=12)).why
    checker = first_cut(SEED, STREAMS).checker("r")
    with pytest.raises(LogDiffers, match="position 1 is missing: 2 comes"):
        checker.take(table_of(bodies_of([9]), start=2))


def test_what_was_acknowledged_must_have_been_read() -> None:
    """A lost end leaves no gap, so only the acknowledgement reveals it."""
    checker = first_cut(SEED, STREAMS).checker("r")
    checker.take(table_of(bodies_of([50])))
    reached = {n: int(number) - 1 for n, number in enumerate(checker.next) if number > 1}
    checker.check_reached(reached, 51)
    stream = max(reached)
    with pytest.raises(LogDiffers, match="acknowledged, but the log ends") as caught:
        checker.check_reached({**reached, stream: reached[stream] + 2}, 51)
    assert (caught.value.mismatch.stream, caught.value.mismatch.sequence) == (
        stream,
        reached[stream] + 1,
    )
    with pytest.raises(LogDiffers, match="position 51 was acknowledged"):
        checker.check_reached(reached, 52)


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"seed":1,"position":2,"next":[-1]}'])
def test_what_is_no_cut_is_refused(data: bytes) -> None:
    """A damaged cut is refused, so that no later run starts at it."""
    with pytest.raises(
        CorruptionError, match="stored progress of an earlier run cannot be decoded"
    ):
        decode_cut(data)


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=200), st.floats(0.01, 1))
def test_quantiles_are_right_to_a_tenth(durations: list[int], share: float) -> None:
    """The quantiles are accurate to about a tenth, in constant memory."""
    lags = Lags()
    lags.note(np.array(durations, dtype=np.int64))
    found = lags.quantile_us(share)
    place = max(0, int(np.ceil(share * len(durations) - 1e-9)) - 1)

    assert found is not None
    assert sorted(durations)[place] * 0.9 - 1 <= found <= sorted(durations)[place] * 1.11 + 1
    assert Lags().quantile_us(share) is None


def test_a_checker_may_begin_anywhere_it_has_the_numbers_of() -> None:
    """A checker may start at any cut, which stores the numbers that it needs."""
    bodies = bodies_of([30, 30])
    first = first_cut(SEED, STREAMS).checker("a")
    first.take(table_of(bodies[:25]))
    late = first.cut().checker("late")
    late.take(table_of(bodies[25:], start=26))

    assert isinstance(late, Checker)
    assert late.position == 61
    assert first.position == 26
