"""Cuts: a binding ends between two distinct times, or the cut is None."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.decoding import info_of
from kit.unit_cuts import Unit, cut_of, greatest_in, rough_cut_of
from tidelog.collection.source.binding import sum_blocks
from tidelog.collection.source.survey_facts import (
    NO_TIME,
    Block,
    Cut,
    CutPlace,
    FileCandidate,
    FileSurvey,
    SurveyFacts,
    SurveyPiece,
    choose_cut,
    choose_rough_cut,
    join_pieces,
    ranges_until,
    split_candidate,
    take_all,
    upper_after,
)
from tidelog.collection.source.survey_result import SurveyJob, look_at_text
from tidelog.persist.format.schema import shard_schema

# The time of a record. None is a record without a time; "" is a blank line.
LINES = st.lists(st.none() | st.integers(0, 9) | st.just(""), max_size=8)
FILES = st.lists(LINES, min_size=1, max_size=2)
LOWER, TIME_MAX = 3, 8
Chooser = Callable[[Sequence[FileSurvey]], Cut | None]


def bytes_of(lines: Sequence[int | str | None]) -> bytes:
    """Return lines of json that differ in length."""
    return b"".join(
        b"  \n" if at == "" else json.dumps({"at": at, "n": "x" * (n % 4)}).encode() + b"\n"
        for n, at in enumerate(lines)
    )


def units_of(data: bytes) -> list[Unit]:
    """Return the records of json lines, each decoded on its own."""
    found, offset = [], 0
    for line in data.splitlines(keepends=True):
        if line.strip():
            at = json.loads(line)["at"]
            at = None if at is None or at > TIME_MAX else at
            found.append(Unit(offset, at, at, late=int(at is not None and at < LOWER)))
        offset += len(line)
    return found


def job_of() -> SurveyJob:
    schema = shard_schema(pa.schema([("at", pa.int64())]), key=[])
    return SurveyJob(
        source=info_of(time_column="at"),
        schema=schema.encoded,
        lower=LOWER,
        time_max=TIME_MAX,
        final=False,
        is_versioned=False,
        pieces=(),
    )


def look(data: bytes, piece: SurveyPiece) -> SurveyFacts:
    """Survey a piece as a task does: read to the end of the piece's last record."""
    line = data.find(b"\n", piece.high - piece.is_last)
    limit = piece.high if piece.high >= len(data) else line + 1 or len(data)
    return look_at_text(data[piece.low : limit], piece, job_of(), header=b"")


def survey(path: str, data: bytes, block_bytes: int, piece_bytes: int) -> FileSurvey:
    asked = FileCandidate(
        path=path,
        start=0,
        limit=len(data),
        size_bytes=len(data),
        e_tag="v1",
        block_bytes=block_bytes,
    )
    pieces = split_candidate(asked, piece_bytes)
    return join_pieces(asked, [look(data, piece) for piece in pieces])


@pytest.mark.parametrize(
    ("choose", "model"),
    [
        pytest.param(lambda files: choose_cut(files, complete=False), cut_of, id="exact"),
        pytest.param(choose_rough_cut, rough_cut_of, id="rough"),
        pytest.param(take_all, len, id="all"),
    ],
)
@settings(max_examples=40)
@given(
    files=FILES.filter(lambda files: any(bytes_of(lines).strip() for lines in files)),
    block_bytes=st.integers(1, 60),
    piece_bytes=st.integers(30, 200),
)
def test_what_blocks_tell_is_enough_to_cut_as_a_look_at_every_record_does(
    choose: Chooser,
    model: Callable[[Sequence[Unit]], int | None],
    files: list[list[int | str | None]],
    block_bytes: int,
    piece_bytes: int,
) -> None:
    """Ingesters with other block and piece sizes must choose the cut of a full survey."""
    datas = [bytes_of(lines) for lines in files]
    of_files = [units_of(data) for data in datas]
    surveys = [survey(str(n), d, block_bytes, piece_bytes) for n, d in enumerate(datas)]
    there = [one for one in surveys if not one.is_empty]

    cut, count = choose(there), model([unit for units in of_files for unit in units])
    assert (cut is None) == (count is None)
    if cut is None or count is None:
        return
    ranges = {r.path: r for r in ranges_until(cut, there, time_max=TIME_MAX)}
    for number, units in enumerate(of_files):
        taken, count = units[:count], max(0, count - len(units))
        found = ranges.get(str(number))
        inside = [u for u in units if found is not None and u.offset < found.limit]
        assert inside == taken
        if found is not None:
            assert found.late == sum(unit.late for unit in taken)
            data = datas[number]
            assert found.sums == sum_blocks(data[: found.limit], 0, block_bytes)
            assert found.head == sum_blocks(data[: found.head_bytes], 0, len(data) + 1)
            assert found.head_bytes <= found.limit
    all_taken = [
        u
        for number, units in enumerate(of_files)
        for u in units
        if str(number) in ranges and u.offset < ranges[str(number)].limit
    ]
    assert cut.time_max == greatest_in(all_taken)


GROUPS = st.lists(
    st.none() | st.tuples(st.integers(0, 9), st.integers(0, 3)).map(lambda s: (s[0], sum(s))),
    min_size=1,
    max_size=10,
)


def groups_survey(spans: Sequence[tuple[int, int] | None]) -> FileSurvey:
    """Return a survey of row groups with these least and greatest times, one byte each."""
    blocks = []
    for offset, span in enumerate(spans):
        if span is None:
            blocks.append(Block())
            continue
        place = CutPlace(offset=offset, rest=b"", least=span[0], late=0, greatest=NO_TIME)
        blocks.append(Block(greatest=span[1], first=place, rise=place, last=span[1]))
    asked = FileCandidate(path="p", start=0, limit=len(spans), size_bytes=len(spans), e_tag="v")
    found = SurveyFacts(limit=len(spans), ink=0, blocks=tuple(blocks))
    return FileSurvey(candidate=asked, found=found, limit=len(spans))


@given(spans=GROUPS)
def test_row_groups_are_cut_between_but_never_within(spans: list[tuple[int, int] | None]) -> None:
    """A cut never falls within a row group, nor where its times overlap those of earlier groups."""
    survey = groups_survey(spans)
    units = [Unit(n, *(span or (None, None))) for n, span in enumerate(spans)]

    for cut, count in (
        (choose_cut([survey], complete=False), cut_of(units)),
        (choose_rough_cut([survey]), rough_cut_of(units)),
    ):
        assert (None if cut is None or cut.place is None else cut.place.offset) == count
        assert cut is None or cut.time_max == greatest_in(units[:count])


@given(spans=GROUPS)
def test_all_is_taken_where_there_is_no_more(spans: list[tuple[int, int] | None]) -> None:
    """If the survey is complete, the binding takes everything up to the end."""
    survey = groups_survey(spans)
    cut = choose_cut([survey], complete=True)

    assert cut == take_all([survey])
    (found,) = ranges_until(cut, [survey], time_max=9)
    assert (found.start, found.limit, found.time_max) == (0, len(spans), 9)


@pytest.mark.parametrize(
    ("time_max", "lower", "upper"),
    [(5, 0, 6), (5, 5, 6), (3, 5, 6), (None, 5, 6), (None, 0, 1), (-7, 0, 1)],
)
def test_upper_is_the_greatest_time_and_one_and_never_goes_back(
    time_max: int | None, lower: int, upper: int
) -> None:
    """Late rows move up to `lower`. A binding without times advances the upper by one."""
    assert upper_after(Cut(0, 0, None, time_max), lower) == upper
