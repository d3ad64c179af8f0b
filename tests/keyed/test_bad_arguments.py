"""Wrong arguments raise UsageError."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kit.keyed_engine import keyed_logs
from tidelog.errors import UsageError

BAD: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "rows": lambda log: log.scan(b"k", rows=2**70).to_arrow(),
    "segments": lambda log: anext(log.keys(segments=5)),
    "segments alone": lambda log: anext(log.keys(segments=(0,))),
    "retention": lambda log: log.retire(5),
    "retention to set": lambda log: log.retain(5),
    "sealing": lambda log: log.configure(5),
    "after_us": lambda log: log.collect(after_us="x"),
    "timeout_us": lambda log: log.append([(b"k", b"")], timeout_us="x"),
}


@pytest.mark.parametrize("case", BAD)
async def test_what_will_not_do_is_a_usage_error(case: str) -> None:
    """The error names the argument, and no internal term."""
    log = await keyed_logs().create("log")
    with pytest.raises(UsageError, match=case.split(maxsplit=1)[0]) as told:
        await BAD[case](log)
    assert "shard" not in str(told.value)
    await log.close()


async def test_a_reader_is_refreshed_after_a_whole_number_of_microseconds() -> None:
    """A wrong `refresh_us` raises when the reader is opened, not at its first refresh."""
    logs = keyed_logs()
    await (await logs.create("log")).close()
    late: Any = "soon"
    with pytest.raises(UsageError, match="refresh_us"):
        await logs.reader("log", refresh_us=late)
