"""``tidelog log cursor``, ``pin`` and ``collect``: holds of a log's records, and collection."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Cli, refused


def fill(cli: Cli, name: str, *counts: int, protocol: str = "slot") -> None:
    """Make a log with one object for each count of records."""
    cli.done("log", "create", name, "--protocol", protocol)
    for number, count in enumerate(counts):
        path = cli.folder / f"{name}-{number}"
        path.write_text("".join(f"{name} {number}.{line}\n" for line in range(count)))
        cli.done("log", "append", name, path)


def objects_of(cli: Cli, name: str) -> list[Path]:
    return list((cli.folder / "lake" / "log" / name).rglob("*.parquet"))


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
def test_a_cursor_is_made_moved_and_dropped(cli: Cli, protocol: str) -> None:
    """Each command prints the cursor's position and the number of records that it holds."""
    fill(cli, "a", 4, 3, protocol=protocol)

    assert cli.done("log", "cursor", "list", "a").objects == []
    made = cli.done("log", "cursor", "create", "a", "x").object
    assert (made["log"], made["cursor"], made["position"], made["records"]) == ("a", "x", 1, 7)
    moved = cli.done("log", "cursor", "move", "a", "x", "--at", "5").object
    assert (moved["from"], moved["position"], moved["records"]) == (1, 5, 3)
    back = cli.done("log", "cursor", "move", "a", "x", "--at", "2", "--back").object
    assert (back["from"], back["position"]) == (5, 2)
    assert cli.done("log", "cursor", "create", "a", "b", "--at", "next").object["position"] == 8
    assert cli.done("log", "cursor", "create", "a", "w", "--at", "-7d").object["position"] == 1
    cli.done("log", "cursor", "drop", "a", "w")
    listed = cli.done("log", "cursor", "list", "a").objects
    assert [(one["cursor"], one["position"]) for one in listed] == [("b", 8), ("x", 2)]
    gone = cli.done("log", "cursor", "drop", "a", "x").object
    assert gone == {"log": "a", "dropped": "x", "left": ["b"]}
    assert len(cli.done("log", "cursor", "list", "a").objects) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["create", "a", "x"], "has a cursor 'x' already"),
        (["create", "a", "x-y"], "letters, digits and _"),
        (["create", "a", "y", "--at", "9"], "to its next position"),
        (["create", "a", "y", "--at", "0"], "positions begin at 1"),
        (["create", "a", "y", "--at", "-3"], "positions begin at 1"),
        (["create", "a", "y", "--at", "soon"], "oldest, next"),
        (["create", "nosuch", "y"], "no log"),
        (["create", "../a", "y"], "cannot be the name of a log"),
        (["move", "a", "x", "--at", "2"], "--back"),
        (["move", "a", "x", "--at", "99"], "to its next position"),
        (["move", "a", "x"], "--at"),
        (["move", "a", "nosuch", "--at", "2"], "no cursor of that name"),
        (["drop", "a", "nosuch"], "no cursor 'nosuch'"),
        (["list", "nosuch"], "no log"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_with_cursors_are_told(cli: Cli, arguments: list[str], told: str) -> None:
    """A mistake leaves the existing cursor unchanged."""
    fill(cli, "a", 4)
    cli.done("log", "cursor", "create", "a", "x", "--at", "3")

    refused(cli("log", "cursor", *arguments), told)
    (only,) = cli.done("log", "cursor", "list", "a").objects
    assert (only["cursor"], only["position"]) == ("x", 3)


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
def test_records_before_a_time_are_collected(cli: Cli, protocol: str) -> None:
    """A nightly job can keep a week: by a cursor at a time, or by --keep-from-time."""
    fill(cli, "a", *[1] * 6, protocol=protocol)
    time.sleep(0.002)
    times = [one["timestamp_us"] for one in cli.done("log", "scan", "a").objects]
    assert len(set(times)) == 6
    cli.done("log", "cursor", "create", "a", "x", "--at", str(datetime.fromtimestamp(0, UTC)))

    fourth = (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=times[3])).isoformat()
    moved = cli.done("log", "cursor", "move", "a", "x", "--at", fourth).object
    assert (moved["from"], moved["position"]) == (1, 4)
    kept = cli.done("log", "collect", "a", "--grace", "0", "--keep-from-time", str(times[1])).object
    assert (kept["records"], kept["oldest"]) == (1, 2)
    both = ("--keep-from-time", fourth, "--keep-from", "3")
    assert cli.done("log", "collect", "a", "--grace", "0", *both).object["oldest"] == 3
    done = cli.done("log", "collect", "a", "--grace", "0", "--keep-from-time", "2200-01-01").object
    assert done["oldest"] == 4


def test_a_pin_holds_what_is_collected(cli: Cli) -> None:
    """A pinned range is readable by its name until its release, and is collected after it."""
    fill(cli, "a", 3, 3, 3)
    made = cli.done("log", "pin", "create", "a", "p", "--from", "2", "--to", "5").object
    assert (made["start"], made["limit"], made["records"], made["is_sure"]) == (2, 5, 3, True)
    cli.done("log", "cursor", "create", "a", "x", "--at", "next")
    found = cli.done("log", "collect", "a", "--grace", "0").object
    assert (found["fragments"], found["pinned"], found["oldest"]) == (2, 2, 7)
    assert [one["position"] for one in cli.done("log", "scan", "a").objects] == [7, 8, 9]

    pinned = cli.done("log", "scan", "a", "--pin", "p", "--format", "raw").out
    assert pinned.splitlines() == ["a 0.1", "a 0.2", "a 1.0"]
    (listed,) = cli.done("log", "pin", "list", "a").objects
    assert listed == made
    before = len(objects_of(cli, "a"))
    assert cli.done("log", "pin", "drop", "a", "p").object == {"log": "a", "dropped": "p"}
    assert cli.done("log", "pin", "list", "a").objects == []
    cli.done("log", "collect", "a", "--grace", "0")
    assert len(objects_of(cli, "a")) == before - 2
    refused(cli("log", "scan", "a", "--pin", "p"), "no pin of that name")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["pin", "create", "a", "p-q"], "letters, digits and _"),
        (["pin", "create", "a", "p"], "already has a pin of that name"),
        (["pin", "create", "a", "q", "--from", "-1"], "positions begin at 1"),
        (["pin", "create", "a", "q", "--from", "3", "--to", "3"], "no position"),
        (["pin", "create", "a", "q", "--to", "1"], "no position"),
        (
            ["pin", "create", "a", "q", "--to", "99"],
            "next position, 5, not 99",
        ),
        (["pin", "create", "nosuch", "q"], "no log"),
        (["pin", "create", "w", "q"], "manifest protocol"),
        (["pin", "list", "w"], "manifest protocol"),
        (["pin", "drop", "w", "q"], "manifest protocol"),
        (["pin", "drop", "a", "nosuch"], "no pin of that name"),
        (["scan", "w", "--pin", "p"], "manifest protocol"),
        (["scan", "a", "--pin", "nosuch"], "no pin of that name"),
        (["scan", "a", "--pin", "p-q"], "letters, digits and _"),
        (["scan", "a", "--pin", "p", "--from", "2"], "omit the other options"),
        (["collect", "nosuch"], "no log"),
        (["collect", "a", "--grace", "-1"], "is not a duration"),
        (["collect", "a", "--grace", "nan"], "is not a duration"),
        (["collect", "a", "--keep-from", "0"], "positions begin at 1"),
        (["collect", "a", "--keep-records", "-1"], "--keep-records must be 0 or more"),
        (["collect", "a", "--share-max", "0"], "must be above 0"),
        (["collect", "a", "--share-max", "1.5"], "must be above 0"),
        (["collect", "a", "--deletes-per-second", "0"], "is not a rate"),
        (["collect", "a", "--deletes-per-second", "nan"], "is not a rate"),
        (["collect", "a", "--deletes-per-second", "1e9"], "is not a rate"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_with_pins_and_collections_are_told(
    cli: Cli, arguments: list[str], told: str
) -> None:
    """A mistake exits with 2 and changes nothing."""
    fill(cli, "a", 4)
    fill(cli, "w", 2, protocol="manifest")
    cli.done("log", "pin", "create", "a", "p")
    before = cli.contents()

    refused(cli("log", *arguments), told)
    assert cli.contents() == before


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
def test_a_collection_says_what_it_did_and_what_holds_it(cli: Cli, protocol: str) -> None:
    """A collection prints its result and the hold that limits it, or the remedy."""
    fill(cli, "a", 2, 2, 2, 2, protocol=protocol)
    nothing = cli.done("log", "collect", "a", "--grace", "0").object
    assert (nothing["held_by"], nothing["fragments"], nothing["records"]) == (None, 0, 0)
    cli.done("log", "cursor", "create", "a", "x", "--at", "6")
    cli.done("log", "cursor", "create", "a", "y", "--at", "next")

    found = cli.done("log", "collect", "a", "--grace", "0", "--keep-from", "4", "--sweep").object

    assert (found["records"], found["fragments"], found["oldest"]) == (2, 1, 3)
    assert (found["held_by"], found["held_at"]) == ("x", 6)
    assert found["swept"]["foreign"] == []
    kept = cli.done("log", "collect", "a", "--grace", "0", "--keep-records", "6").object
    assert (kept["records"], kept["oldest"]) == (0, 3)
    share = cli("log", "collect", "a", "--grace", "0", "--share-max", "0.2")
    refused(share, "would delete", "pass --force")
    forced = cli.done("log", "collect", "a", "--grace", "0", "--share-max", "0.2", "--force")
    assert (forced.object["records"], forced.object["oldest"]) == (2, 5)
    refused(cli("log", "scan", "a", "--from", "2"), "were collected", status=1)
    refused(cli("log", "cursor", "move", "a", "x", "--at", "2", "--back"), "collected", status=1)


def test_people_are_told_in_sentences(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets sentences with the next step, and tables."""
    fill(cli, "a", 2, 2)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    assert "cursor create a" in cli.done("log", "cursor", "list", "a").err
    assert "pin create a" in cli.done("log", "pin", "list", "a").err
    assert "Create one: tidelog log cursor create a" in cli.done("log", "collect", "a").err
    assert "x' at 1; it holds 4 records" in cli.done("log", "cursor", "create", "a", "x").err
    assert "no whole object is before the kept records" in cli.done("log", "collect", "a").err
    assert "Moved the cursor" in cli.done("log", "cursor", "move", "a", "x", "--at", "3").err
    assert "scan a --pin p" in cli.done("log", "pin", "create", "a", "p").err
    listed = cli.done("log", "pin", "list", "a").out.splitlines()
    assert listed[2].split()[:5] == ["p", "1", "4", "4", "holds"]
    told = cli.done("log", "collect", "a", "--grace", "0", "--sweep").err
    assert "2 records in 1 object collected; the log now begins at 3." in told
    assert "The cursor 'x' holds the records since 3." in told
    assert "1 object kept by pins." in told
    assert "0 objects swept" in told
    shown = cli.done("log", "cursor", "list", "a").out.splitlines()
    assert shown[2].split()[:4] == ["x", "3", "2", "records"]
    assert "collect a" in cli.done("log", "pin", "drop", "a", "p").err
    assert "no cursor is left" in cli.done("log", "cursor", "drop", "a", "x").err


def test_a_foreign_object_among_cursors_is_reported(cli: Cli) -> None:
    """A foreign file in the cursor folder holds nothing, and is reported."""
    fill(cli, "a", 2)
    stray = cli.folder / "lake" / "log" / "a" / "cursor" / "my-cursor.json"
    stray.parent.mkdir(exist_ok=True)
    stray.write_text(json.dumps({}))

    assert "cursor/my-cursor.json" in cli.done("log", "cursor", "list", "a").err
    found: dict[str, Any] = cli.done("log", "collect", "a", "--grace", "0").object
    assert found["foreign"] == ["cursor/my-cursor.json"]


def test_a_collection_is_paced(cli: Cli) -> None:
    """The rate option delays deletions: four objects at four a second take most of a second."""
    fill(cli, "a", *[1] * 5)
    cli.done("log", "cursor", "create", "a", "x", "--at", "5")

    begun = time.monotonic()
    cli.done(
        *("log", "collect", "a", "--grace", "0", "--share-max", "1"),
        *("--deletes-per-second", "4", "--sweep"),
    )
    assert time.monotonic() - begun >= 0.7
    assert objects_of(cli, "a")
