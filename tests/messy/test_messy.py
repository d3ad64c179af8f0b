"""Messy files: each row is in the collection or in its errors, none is lost or doubled.

More of them: ``make messy MESSY_ARGS="--seed 1000 --cases 5000"``.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from messy.case import run_case
from tidelog.collection.formats import casts
from tidelog.collection.ingest import compute, envelope
from tidelog.collection.source import decode
from tidelog.collection.source.decode import DecodedRows, decode_file
from tidelog.collection.source.files import FilesSource
from tidelog.collection.source.moves import Moves

SEEDS, SHARES = 400, 4


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder for cases. It is deleted afterwards, because a seed makes its files again."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("share", range(SHARES))
def test_each_row_is_in_once(folder: Path, share: int) -> None:
    """Each row of any files in a folder is ingested once; this takes 15 s of a core.

    A failed seed prints how to run it again.
    """
    failed, formats, drawn = [], Counter[str](), Counter[str]()
    for seed in range(1 + share, 1 + SEEDS, SHARES):
        outcome = run_case(seed, folder / str(seed))
        formats[outcome.settings.format] += outcome.rows > 0
        drawn.update(outcome.drawn)
        drawn["bad"] += outcome.bad
        if outcome.differences:
            failed.append(str(outcome))

    assert not failed, "\n\n".join(failed)
    # Without these counts, the test above would prove little.
    assert all(formats[name] >= 5 for name in ("json", "json-array", "csv", "parquet")), formats
    wanted = {"grown", "renamed", "deleted", "copied", "linked", "damaged", "garbage", "many"}
    assert all(drawn[name] >= 2 for name in wanted), drawn
    assert drawn["bad"] >= 100


def test_a_seed_is_the_same_each_time(folder: Path) -> None:
    """A seed gives the same case each time, so that a failure can be repeated."""
    for seed in range(1, 6):
        one, other = (run_case(seed, folder / f"{seed}{again}") for again in "ab")
        assert (one.told, one.drawn, one.rows) == (other.told, other.drawn, other.rows)


def caught(folder: Path, *, within: int) -> bool:
    return any(run_case(n, folder / str(n)).differences for n in range(1, within + 1))


def test_a_bad_row_that_is_dropped_is_missed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: a decoder that drops the last bad row of a range is detected."""
    told = decode.errors_table

    def dropping(path: str, misfits: Any) -> pa.Table:
        return told(path, list(misfits)[:-1])

    monkeypatch.setattr(decode, "errors_table", dropping)

    assert caught(folder, within=5)


def test_a_row_that_is_taken_twice_at_a_cut_is_seen(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary: a decoder that doubles the first row of a later range is detected."""
    decoded = decode_file

    def doubling(data: Any, found: Any, *given: Any, **named: Any) -> DecodedRows:
        done = decoded(data, found, *given, **named)
        again = [done.rows.slice(0, 1)] if found.start > 0 else []
        return DecodedRows(pa.concat_tables([done.rows, *again]), done.errors, done.dropped)

    monkeypatch.setattr(compute, "decode_file", doubling)

    assert caught(folder, within=25)


@pytest.mark.parametrize(
    ("within", "break_"),
    [
        # Numbers with a fraction are rounded to whole numbers.
        (60, lambda patch: patch.setattr(casts, "_INTEGER", ".*")),
        # The last row is the newest, whatever its own time.
        (25, lambda patch: patch.setattr(envelope, "_is_newest_so_far", lambda r, k, c: c >= 0)),
        # Waiting files are not reported.
        (15, lambda patch: patch.setattr(FilesSource, "waiting", lambda self: {})),
        # A file under another name is another file.
        (60, lambda patch: patch.setattr(Moves, "learn", lambda self, asked, alike: False)),
    ],
    ids=["rounded", "older", "untold", "moved"],
)
def test_what_is_broken_is_caught(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    within: int,
    break_: Callable[[pytest.MonkeyPatch], None],
) -> None:
    """The canaries: each broken rule is detected within a number of seeds."""
    break_(monkeypatch)

    assert caught(folder, within=within)
