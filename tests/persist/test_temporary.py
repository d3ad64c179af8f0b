"""Temporary files that cannot be written: the error names their folder, and no stored data."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from kit.clocks import SwiftClock
from kit.tables import SCHEMA, new_lake, numbers_in, some_rows
from tidelog.core.temporary import temporary_file
from tidelog.errors import LocationError
from tidelog.persist.read.opened import PartOpener


@pytest.fixture
def _no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))


@pytest.mark.usefixtures("_no_folder")
async def test_a_part_that_cannot_be_copied_is_not_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A compaction and a large query copy parts; a full disk must not look like damage."""
    monkeypatch.setattr("tidelog.persist.format.part.INLINE_BYTES", -1)
    table, clock = await (await new_lake()).tables.create("t", SCHEMA, mode="direct"), SwiftClock()
    await table.insert(some_rows(*range(8)))
    await table.refresh()
    (state,) = table.states
    parts = [part for batch in state.batches for part in batch.parts]
    opener = PartOpener(store=table.store, clock=clock, schema=table.schema)

    (opened,) = await opener.open(parts)
    assert opened.read([0], ["a"], as_of=table.upper.time).num_rows == 8
    with pytest.raises(LocationError, match="temporary files") as found:
        await opener.open(parts, in_files=True)
    assert "none" in str(found.value.facts["folder"])


@pytest.mark.usefixtures("_no_folder")
async def test_a_merge_that_cannot_keep_its_rows_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A merge of many rows keeps them in a file, because it chooses among them later."""
    monkeypatch.setattr("tidelog.persist.format.inputs.PIECE_ROWS", 5)
    monkeypatch.setattr("tidelog.collection.table.incoming.STREAM_BYTES", 100)
    table = await (await new_lake()).tables.create("t", SCHEMA, key=["a"])
    await table.insert(some_rows(1))
    with pytest.raises(LocationError, match="name another folder in TMPDIR"):
        await table.merge(some_rows(*range(50)), when_matched="ignore")

    assert sum((await numbers_in(table)).values()) == 1


def test_a_file_that_cannot_be_closed_hides_no_error() -> None:
    """After a failed write, the close fails for the same reason, but the first error counts."""

    def use() -> None:
        with temporary_file() as file:
            os.close(file.fileno())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
