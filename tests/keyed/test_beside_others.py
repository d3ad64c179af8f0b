"""Two who do the same to a keyed log at once, or one after the other."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tidelog import aio
from tidelog.errors import NameTaken


async def test_who_comes_second_to_a_fork_leaves_what_holds_it(tmp_path: Path) -> None:
    """Whoever meets NameTaken does not let go of the runs that the winner's fork reads."""
    url = f"file://{tmp_path}/lake"
    one, two = await aio.connect(url, create=True), await aio.connect(url)
    source = await one.create_keyed("source")
    for _ in range(2):
        await source.append([(b"k", b"v")] * 5)
        await source.compact(everything=True)
    found = await asyncio.gather(
        one.fork_keyed("source", "fork"), two.fork_keyed("source", "fork"), return_exceptions=True
    )
    assert [type(each) for each in found].count(NameTaken) == 1
    await source.append([(b"k", b"v")])
    await source.compact(everything=True)
    await source.collect(after_us=0)
    fork = await (await aio.connect(url)).keyed("fork")
    assert (await fork.scan(b"k").to_arrow()).num_rows == 10


async def test_what_is_ordered_is_read_after_another_has_appended(tmp_path: Path) -> None:
    """A handle that takes over shows what it has ordered, and what came before it."""
    url = f"file://{tmp_path}/lake"
    one, two = await aio.connect(url, create=True), await aio.connect(url)
    first = await one.create_keyed("orders")
    second = await two.keyed("orders")
    assert not (await second.scan(b"k").to_arrow()).num_rows
    await first.append([(b"k", b"theirs")])
    await second.append([(b"k", b"mine")], durable=False)
    found = await second.scan(b"k").to_arrow()
    assert found.column("value").to_pylist() == [b"theirs", b"mine"]
