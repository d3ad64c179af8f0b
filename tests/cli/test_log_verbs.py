"""``tidelog log fork``, ``copy``, ``adopt``, ``export``, ``rebuild``, ``destroy``, ``describe``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from cli.conftest import Cli, refused
from cli.test_log_maintenance import fill
from kit.goldens import objects
from kit.protocols import CLOCK
from kit.stores import CrowdedStore
from tidelog.cli.log.describe import logs_of
from tidelog.core.lookahead import AT_ONCE_MAX
from tidelog.location import open_location
from tidelog.store.memory import MemoryStore
from tidelog.wal.format.gc_plan import GARBAGE
from tidelog.wal.format.manifest import MANIFEST


def bodies(cli: Cli, name: str) -> list[str]:
    return cli.done("log", "scan", name, "--format", "raw").out.splitlines()


def names(cli: Cli) -> list[str]:
    return [one["name"] for one in cli.done("log", "list").objects]


def append(cli: Cli, name: str, line: str) -> None:
    path = cli.folder / "more"
    path.write_text(line + "\n")
    cli.done("log", "append", name, path)


def golden(cli: Cli, place: str, *, of: str = "") -> Path:
    """Return a folder with a log that Chroma wrote."""
    folder = cli.folder / place
    found = objects(of or place)
    assert found
    for key, data in found.items():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(data)
    return folder


def test_a_fork_goes_its_own_way(cli: Cli) -> None:
    """A fork has its own appends, and blocks the destruction of its source."""
    fill(cli, "a", 2, 2)
    made = cli.done("log", "fork", "a", "b", "--from", "3").object
    assert (made["name"], made["oldest"], made["next"]) == ("b", 3, 5)
    append(cli, "b", "mine")
    assert bodies(cli, "b") == ["a 1.0", "a 1.1", "mine"]
    assert bodies(cli, "a") == ["a 0.0", "a 0.1", "a 1.0", "a 1.1"]

    refused(cli("log", "drop", "a", "--yes", "--grace", "0"), "drop these first: b")
    refused(cli("log", "pin", "drop", "a", "b"), "the fork 'b' reads")
    told = cli.done("log", "describe", "b").object
    assert told["origin"] == {"log": "a", "pin": "b"}
    assert cli.done("log", "drop", "b", "--yes", "--grace", "0").object["log"] == "b"
    assert names(cli) == ["a"]
    cli.done("log", "drop", "a", "--yes", "--grace", "0")
    assert names(cli) == []


def test_a_pin_that_a_killed_fork_left_is_released(cli: Cli) -> None:
    """A pin of a killed fork is released by name, since there is no log to destroy."""
    fill(cli, "a", 2)
    cli.done("log", "fork", "a", "b")
    (cli.folder / "lake" / "log" / "b" / MANIFEST).unlink()

    assert cli.done("log", "pin", "drop", "a", "b").object["dropped"] == "b"
    cli.done("log", "collect", "a", "--grace", "0")
    assert names(cli) == ["a"]


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
@pytest.mark.parametrize("target", [None, "slot", "manifest"])
def test_a_copy_has_what_the_source_has(cli: Cli, protocol: str, target: str | None) -> None:
    """A copy has the source's records, in the requested protocol or in its own."""
    fill(cli, "a", 2, 3, protocol=protocol)
    wanted = [] if target is None else ["--protocol", target]

    made = cli.done("log", "copy", "a", "b", *wanted).object

    assert (made["protocol"], made["records"]) == (target or protocol, 5)
    assert bodies(cli, "b") == bodies(cli, "a")
    part = cli.done("log", "copy", "a", "c", *wanted, "--from", "3").object
    assert (part["oldest"], part["next"]) == (3, 6)
    append(cli, "c", "more")
    assert bodies(cli, "c")[-2:] == ["a 1.2", "more"]


def test_a_log_of_chromas_is_adopted_and_given_back(cli: Cli, tmp_path: Path) -> None:
    """A log of Chroma is adopted by a path or file URL, and exported with the same bytes."""
    refused(cli("log", "adopt", str(tmp_path / "nowhere")), "no log at")
    assert not (cli.folder / "lake").exists()
    source = golden(cli, "c0_before_gc")
    made = cli.done("log", "adopt", source).object
    assert (made["name"], made["protocol"]) == ("c0_before_gc", "manifest")
    again = cli.done("log", "adopt", source.as_uri(), "mine").object
    assert again["records"] == made["records"] > 0
    assert cli.done("log", "scrub", "mine").object["problems"] == []

    back = tmp_path / "back"
    given = cli.done("log", "export", "mine", back).object
    assert (given["records"], given["to"]) == (made["records"], str(back))
    fragments = list(back.rglob("*.parquet"))
    assert fragments
    for path in fragments:
        assert path.read_bytes() == (source / path.relative_to(back)).read_bytes()
    fill(cli, "s", 4, 4)
    part = cli.done("log", "export", "s", (tmp_path / "s").as_uri(), "--from", "5").object
    assert (part["protocol"], part["oldest"], part["next"]) == ("manifest", 5, 9)


@pytest.mark.parametrize("kind", ["slot", "manifest", "adopt"])
def test_a_copy_that_was_killed_does_not_fail_the_list(cli: Cli, kind: str) -> None:
    """The list names an unfinished copy with the remedy; a lost manifest exits with 1."""
    fill(cli, "a", 3)
    if kind == "adopt":
        cli.done("log", "adopt", golden(cli, "b_snapshots"), "b")
    else:
        cli.done("log", "copy", "a", "b", "--protocol", kind)
    (cli.folder / "lake" / "log" / "b" / MANIFEST).unlink()
    if kind != "slot":
        shutil.rmtree(cli.folder / "lake" / "log" / "b" / "gc", ignore_errors=True)

    told = cli.done("log", "list")
    assert [one["name"] for one in told.objects] == ["a", "b"]
    assert "unfinished copy" in told.err
    assert "drop" in told.err
    assert "unfinished copy" in cli("log", "scan", "b").complaint

    (cli.folder / "lake" / "log" / "a" / MANIFEST).unlink()
    told = cli("log", "list")
    assert told.status == 1
    assert "1 log cannot be read" in told.err


def test_a_lost_manifest_is_made_again(cli: Cli) -> None:
    """A rebuild restores the records from the slots; before it, the log does not exist."""
    fill(cli, "a", 2, 2)
    before = bodies(cli, "a")
    cli.done("log", "cursor", "create", "a", "x", "--at", "2")
    (cli.folder / "lake" / "log" / "a" / MANIFEST).unlink()
    refused(cli("log", "scan", "a"), "no log")

    made = cli.done("log", "rebuild", "a")

    assert made.object["records"] == 4
    assert "scrub a" in made.err
    assert bodies(cli, "a") == before
    assert cli.done("log", "cursor", "list", "a").object["position"] == 2
    refused(cli("log", "rebuild", "a"), "has a manifest")


def test_a_log_that_lost_its_plan_too_is_rebuilt_from_where_it_is_whole(cli: Cli) -> None:
    """Without its plan, a log needs --from: a missing object may be collected or lost."""
    fill(cli, "a", 2, 2, 2)
    cli.done("log", "cursor", "create", "a", "x", "--at", "3")
    cli.done("log", "collect", "a", "--grace", "0")
    left = bodies(cli, "a")
    for lost in (MANIFEST, GARBAGE):
        (cli.folder / "lake" / "log" / "a" / lost).unlink()

    refused(cli("log", "rebuild", "a"), "missing", status=1)
    refused(cli("log", "rebuild", "a", "--from", "4"), "no object of the log begins")
    assert cli.done("log", "rebuild", "a", "--from", "3").object["oldest"] == 3
    assert bodies(cli, "a") == left


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
def test_a_destroyed_log_is_no_more(cli: Cli, protocol: str) -> None:
    """A destroyed log cannot be read, its name stays taken, and it may be destroyed again."""
    fill(cli, "a", 3, protocol=protocol)
    fill(cli, "b", 1)

    found = cli.done("log", "drop", "a", "--yes", "--grace", "0").object

    assert found["deleted"] > 0
    assert found["foreign"] == []
    assert names(cli) == ["b"]
    for verb in (["describe"], ["scan"], ["collect"], ["cursor", "list"], ["scrub"]):
        refused(cli("log", *verb, "a"), "was dropped")
    assert cli.done("log", "drop", "a", "--yes", "--grace", "0").object["deleted"] == 0
    refused(cli("log", "create", "a"), "names are not reused")


def test_whoever_destroys_is_asked(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal asks for confirmation; elsewhere --yes is needed before any I/O."""
    fill(cli, "a", 3)
    refused(cli.run("--location", "s3://no-such/x", "log", "drop", "a"), "--yes")
    before = cli.contents()
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    asked: list[str] = []
    answers = [False, True]

    def confirm(question: str, *, err: bool) -> bool:
        asked.append(question)
        return answers.pop(0)

    monkeypatch.setattr("typer.confirm", confirm)
    no = cli("log", "drop", "a", "--grace", "0")
    assert (no.status, no.err.strip()) == (1, "Nothing was dropped.")
    assert cli.contents() == before
    refused(cli("log", "drop", "nosuch", "--grace", "0"), "no log")
    cli.done("log", "drop", "a", "--grace", "0")
    assert asked == ["Drop the log 'a' (3 records, positions 1 to 3) for good?"] * 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["fork", "nosuch", "b"], "no log named 'nosuch'"),
        (["fork", "a", "a"], "already"),
        (["fork", "a", "b-c"], "cannot be the name of a fork"),
        (["fork", "a", "../b"], "cannot be the name of a log"),
        (["fork", "a", "b", "--from", "-1"], "positions begin at 1"),
        (["fork", "a", "b", "--from", "99"], "no such position"),
        (["fork", "w", "b"], "copy it"),
        (["copy", "nosuch", "b"], "no log"),
        (["copy", "a", "w"], "the target already has a log"),
        (["copy", "w", "a"], "the target already has a log"),
        (["copy", "a", ".b"], "cannot be the name of a log"),
        (["copy", "a", "b", "--protocol", "raft"], "slot or manifest"),
        (["copy", "a", "b", "--from", "99"], "no such position"),
        (["copy", "w", "b", "--from", "99"], "no such position"),
        (["rebuild", "a"], "has a manifest"),
        (["rebuild", "nosuch"], "no objects of a log of the slot protocol"),
        (["rebuild", "a", "--from", "0"], "positions begin at 1"),
        (["rebuild", ".x"], "cannot be the name of a log"),
        (["drop", "a"], "--yes"),
        (["drop", "nosuch", "--yes", "--grace", "0"], "'tidelog log list' lists"),
        (["copy", "a", "a"], "the target already has a log"),
        (["drop", "a", "--yes", "--grace", "-1"], "is not a duration"),
        (["adopt", "memory://x", "b"], "ends with the command"),
        (["adopt", "ftp://host/x", "b"], "not a known scheme"),
        (["adopt", "/", "b/c"], "cannot be the name of a log"),
        (["adopt", "/"], "write NAME after PLACE"),
        (["adopt", "somewhere", ""], "cannot be the name of a log"),
        (["adopt", "a", "--to", "somewhere"], "no such option: --to"),
        (["export", "nosuch", "somewhere"], "no log"),
        (["export", "../a", "somewhere"], "cannot be the name of a log"),
        (["export", "a"], "PLACE"),
        (["export", "a", "memory://x"], "ends with the command"),
        (["export", "a", "somewhere", "--from", "-1"], "positions begin at 1"),
        (["export", "a", "somewhere", "--from", "99"], "no such position"),
        (["describe", "nosuch"], "no log"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_with_whole_logs_are_told(
    cli: Cli, arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake exits with 2, and makes, loses or changes nothing."""
    fill(cli, "a", 3)
    fill(cli, "w", 2, protocol="manifest")
    before = cli.contents()
    monkeypatch.chdir(cli.folder)

    refused(cli("log", *arguments), told)
    assert cli.contents() == before
    assert not (cli.folder / "somewhere").exists()


def test_a_log_is_drawn(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A description shows the tree, epochs, cursors and pins, as text and as JSON."""
    cli.done("log", "adopt", golden(cli, "c0_before_gc"), "c")
    fill(cli, "a", 2, 2)
    cli.done("log", "cursor", "create", "a", "x", "--at", "3")
    cli.done("log", "pin", "create", "a", "p", "--to", "3")
    cli.done("log", "fork", "a", "b")
    cli.done("log", "seal", "b", "--successor", "a")

    told = cli.done("log", "describe", "a").object
    assert [(c["cursor"], c["position"], c["records"]) for c in told["cursors"]] == [("x", 3, 2)]
    assert [(p["pin"], p["start"], p["limit"], p["holder"]) for p in told["pins"]] == [
        ("b", 1, 5, "b"),
        ("p", 1, 3, None),
    ]
    assert [epoch["number"] for epoch in told["epochs"]] == [0, 1, 2]
    assert told["tree"][0]["kind"] == "fragments"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = cli.done("log", "describe", "a").out
    assert "records   4, positions 1 to 4; the next is 5\n" in shown
    assert "cursors   x at 3, holds 2 records\n" in shown
    assert "pins      b: 1 to 4, for the fork b\n          p: 1 to 2\n" in shown
    fork = cli.done("log", "describe", "b").out
    assert "fork of   a, whose pin b keeps the shared records\n" in fork
    assert "of the log a, opened by" in fork
    assert "sealed    yes; successor: a\n" in fork
    classic = cli.done("log", "describe", "c").out
    assert "epochs" not in classic
    assert "pins" not in classic


def test_the_whole_tree_is_drawn_if_asked_for(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """--deep lists a snapshot's children below it."""
    cli.done("log", "create", "first")
    golden(cli, "lake/log/w", of="b_snapshots")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    flat = cli.done("log", "describe", "w").out
    deep = cli.done("log", "describe", "w", "--deep").out

    assert "├─ snapshot of depth" in flat
    assert len(deep.splitlines()) > len(flat.splitlines())
    assert "│  └─ " in deep


async def test_logs_are_described_side_by_side() -> None:
    """Logs are described in parallel, since each takes several requests in sequence."""
    store = MemoryStore()
    crowd = CrowdedStore(store, clock=CLOCK, prefix="log/", op="refresh")
    location = await open_location("memory://", create=True, store=crowd.store)
    names = [f"log_{number:02}" for number in range(20)]
    for name in names:
        await location.logs.create(name)

    assert [one.name for one in await logs_of(location)] == names
    assert crowd.most == AT_ONCE_MAX


def test_a_local_path_is_told_whole(cli: Cli) -> None:
    """A ? in a local path is part of the path, not the start of secret parameters."""
    fill(cli, "a", 1)
    place = f"{cli.folder}/b?x=1"

    assert cli.done("log", "export", "a", place).object["to"] == place
    assert "cannot be the name of a log" in cli("log", "adopt", place).complaint
