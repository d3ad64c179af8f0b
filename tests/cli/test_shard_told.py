"""Messages of ``tidelog shard`` and related verbs: on a terminal, and for mistakes."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator

import pyarrow as pa
import pytest

import tidelog
from cli.conftest import Cli
from kit.shards import in_memory
from tidelog.cli.output import dollars_text
from tidelog.cli.shard.updates import RowTimes, feed
from tidelog.errors import UsageError


@pytest.fixture
def lake(cli: Cli) -> Cli:
    """A shard ``s`` with two rows, which the writer ``till`` advanced to 7."""
    cli.done("shard", "create", "s", "--schema", "k varchar")
    cli.done("shard", "append", "s", "--time", "3", given=b'{"k": "a"}\n{"k": "b"}\n')
    with tidelog.connect(cli.location) as location, location.shard("s").appender("till") as till:
        till.append(None, 7)
    return cli


def test_times_of_a_shard_are_numbers_wherever_they_are_shown(
    lake: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard's times are numbers of any meaning, so they must not be shown as dates."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for verb in (("inspect", "s"), ("shard", "describe", "s")):
        told = lake.done(*verb).out
        assert "since, upper  0, 7" in told
        assert "1970" not in told
    assert "history: 0" in lake.done("inspect", "s").out


def test_a_description_names_the_writers(lake: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers are remembered until they are dropped, so the description must list them."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "writers       till: written up to 7" in lake.done("shard", "describe", "s").out


def test_a_dropped_shard_differs_from_a_complete_one(
    lake: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A complete shard can still be read, but a dropped one cannot."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    lake.done("shard", "append", "s", "--upper", "end", given=b"")
    assert "pass the time to read" in lake("shard", "read", "s").complaint
    assert "dropped" not in lake.done("shard", "list").out
    assert lake.done("shard", "list", "--json").object["dropped"] is False

    lake.done("shard", "drop", "s", "--yes")
    assert "dropped" in lake.done("shard", "list").out
    assert "dropped: the shard is no longer readable" in lake.done("shard", "describe", "s").out
    assert lake.done("shard", "describe", "s", "--json").object["dropped"] is True
    for verb in (("read", "s"), ("read", "s", "--as-of", "3"), ("changes", "s")):
        assert "was dropped" in lake("shard", *verb).complaint
    before = lake.contents()
    for given in ((), ("--upper", "9"), ("--expected-upper", "1"), ("--time", "3")):
        assert "was dropped" in lake("shard", "append", "s", *given).complaint
    assert "was dropped" in lake("hold", "move", "s", "history", "--at", "9", "--yes").complaint
    assert lake.contents() == before


def test_what_is_followed_goes_to_no_file_that_is_never_whole(lake: Cli) -> None:
    """A followed file would never become complete, and Ctrl-C would leave nothing of it."""
    said = lake("shard", "changes", "s", "--follow", "-o", str(lake.folder / "x.json"))
    assert (said.status, "--follow never completes one" in said.complaint) == (2, True)
    assert list(lake.folder.glob("*x.json*")) == []


def test_what_is_not_there_is_told_with_what_there_is(lake: Cli) -> None:
    """A missing name lists existing shards; a name of transactions is explained."""
    assert "no shard named 't'; existing shards: s" in lake("inspect", "t").complaint
    with tidelog.connect(lake.location) as location:
        location.shards.transactions("bank").register(location.shard("s"))
    for verb in ("inspect", "scrub", "compact", "collect"):
        said = lake(verb, "bank")
        assert (said.status, "without names" in said.complaint) == (2, True)
        assert lake.done(verb).status == 0


def test_a_place_without_a_location_is_told_how_one_is_made(cli: Cli) -> None:
    """The error names ``shard create`` to a user of shards."""
    assert "tidelog shard create" in cli("shard", "list").complaint


def test_an_account_that_is_not_told_is_asked_for(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing Azure account gives tidelog's error, not that of the library."""
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_CONNECTION_STRING"):
        monkeypatch.delenv(name, raising=False)
    said = cli.run("--location", "az://c/lake", "shard", "list")
    assert said.status == 2
    assert "set AZURE_STORAGE_ACCOUNT_NAME" in said.complaint
    assert "Generic" not in said.err


@pytest.mark.parametrize(
    ("dollars", "told"),
    [
        (0.0, "$0"), (1.6e-6, "$0.0000016"), (4e-7, "$0.00000040"), (0.0123, "$0.01"),
        (0.00999, "$0.0100"), (12.5, "$12.50"), (1234.5, "$1,234.50"),
    ],
)  # fmt: skip
def test_dollars_are_told_one_way(dollars: float, told: str) -> None:
    """A small sum keeps its digits, and zero has none."""
    assert dollars_text(dollars) == told


async def test_an_append_that_a_drop_overtakes_reports_that_the_shard_was_dropped() -> None:
    """Another message would send the user to a retry that can never succeed."""
    place = in_memory()
    shard, other = place.shard(), place.shard()
    await shard.refresh()

    async def tables() -> AsyncGenerator[pa.Table, None]:
        yield pa.table({"c0": ["a"], "c1": pa.array([1], pa.int64())})
        await other.drop()

    with pytest.raises(UsageError, match="the shard was dropped"):
        await feed(shard, tables(), RowTimes(time=3, diff=1), expected=None, upper=None)
