"""Handles of a table that was altered since: writes with its new columns say so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidelog
from tidelog.errors import NoSuchCollection, SchemaEvolved, UsageError

Write = Callable[[Any], object]
ROWS = [{"k": 1, "extra": 7}]
WRITES: dict[str, Write] = {
    "insert": lambda table: table.insert(ROWS),
    "upsert": lambda table: table.upsert(ROWS),
    "merge": lambda table: table.merge(ROWS),
    "update": lambda table: table.update(set={"extra": "7"}, where="k = 1"),
    "delete": lambda table: table.delete(where="extra = 7"),
}


@pytest.mark.parametrize("mode", ["wal", "direct"])
@pytest.mark.parametrize("name", WRITES)
def test_a_new_column_that_a_handle_does_not_know_is_not_called_unknown(
    tmp_path: Path, name: str, mode: str
) -> None:
    """The error says that the table was altered; on a new handle the write succeeds."""
    with tidelog.connect(tmp_path.as_uri(), create=True) as lake:
        handle = lake.tables.create("t", "k bigint, v bigint", key=["k"], mode=mode)
        handle.insert([{"k": 0, "v": 0}])
        if mode == "wal":
            lake.tables.alter("t", add="extra bigint")
            with pytest.raises(SchemaEvolved, match="open"):
                WRITES[name](handle)
            WRITES[name](lake.table("t"))
        else:  # No command alters such a table: the column is unknown.
            with pytest.raises(UsageError, match="extra"):
                WRITES[name](handle)
        lake.tables.drop("t")
        with pytest.raises(NoSuchCollection):
            WRITES[name](handle)
