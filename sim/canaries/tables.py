"""Canaries of tables: builds whose writes overlook the writes of others.

Each is a context manager: inside the block, the code has the fault of its docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final
from unittest.mock import patch

from sim.canaries.transactions import commit_that_read_never_conflicts
from tidelog.collection.table.lookups import Lookup
from tidelog.collection.table.reader import TableReader, TableView


@contextmanager
def loser_compares_no_rows() -> Iterator[None]:
    """A write that loses a race is committed again, whatever rows the winner changed."""

    async def never(_: TableReader, __: Lookup, ___: TableView, ____: TableView) -> bool:
        return False

    with patch.object(TableReader, "are_changed", never):
        yield


FOR_TABLES: Final[tuple[Callable[[], AbstractContextManager[None]], ...]] = (
    loser_compares_no_rows,
    commit_that_read_never_conflicts,
)
