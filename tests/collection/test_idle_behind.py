"""An ingester without new input, while another ingester is some ticks ahead."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.sources import before_the_commit, collect, compact, lake_of, reopened, run_once
from tidelog.collection.ingest.status import taken_now
from tidelog.persist.format import part


async def test_an_idle_ingester_that_was_overtaken_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The idle ingester finds the ticks of the others at its empty commit."""
    location = await lake_of(tmp_path, "*.jsonl", schema="n bigint")
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    await run_once(await location.sources.ingester("c"))
    idle = await location.sources.ingester("c")
    other = await (await reopened(tmp_path)).sources.ingester("c")

    async def other_ticks() -> None:
        for name in ("b.jsonl", "d.jsonl"):
            (tmp_path / name).write_text('{"n": 2}\n')
            await run_once(other)

    before_the_commit(monkeypatch, other_ticks)
    summary = await run_once(idle)
    assert (summary.rows, summary.won) == (0, 0)


async def test_rows_are_reported_by_the_ingester_that_completes_the_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reports of several ingesters add up to the source's rows, bad rows and bytes."""
    location = await lake_of(tmp_path, "*.jsonl", schema="n bigint")
    text = '{"n": 1}\n{"n": "x"}\n{"n": 3}\n'
    (tmp_path / "a.jsonl").write_text(text)
    loser = await location.sources.ingester("c")
    winner = await (await reopened(tmp_path)).sources.ingester("c")
    reports = []

    async def winner_ticks() -> None:
        reports.append(await run_once(winner))

    before_the_commit(monkeypatch, winner_ticks)
    reports.append(await run_once(loser))

    assert [(one.rows, one.bad, one.size_bytes) for one in reports] == [
        (2, 1, len(text)),
        (0, 0, 0),
    ]
    assert [one.left_bytes for one in reports] == [0, 0]
    assert reports[1].won == 0


async def test_an_ingester_begins_while_the_parts_of_its_bindings_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge and a collection delete them between its reads of the states and of the parts."""
    monkeypatch.setattr(part, "INLINE_BYTES", 0)
    location = await lake_of(tmp_path, "*.jsonl", schema="n bigint", keep_bindings=True)
    for name in ("a.jsonl", "b.jsonl", "d.jsonl"):
        (tmp_path / name).write_text('{"n": 1}\n')
        await run_once(await location.sources.ingester("c"))
    beginning = await (await reopened(tmp_path)).sources.ingester("c")
    (tmp_path / "e.jsonl").write_text('{"n": 2}\n')

    other = await reopened(tmp_path)
    await compact(other)
    await collect(other)
    taken = await taken_now(beginning)

    assert taken == await taken_now(await other.sources.ingester("c"))
    assert (await run_once(beginning)).rows == 1
