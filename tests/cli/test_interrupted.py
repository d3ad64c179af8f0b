"""Commands killed at each request, finished as docs/guides/interrupted-commands.md lists."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main

from kit.killed_commands import World
from tidelog.cli.command import READS as PERMITTED
from tidelog.cli.main import make_app

# A killed process closes nothing.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PAGE: Final = Path(__file__).parents[2] / "docs/guides/interrupted-commands.md"
OTHERS: Final = {"serve", "verify", "demo", "source check"}
WRITING_OTHERS: Final = {"verify": "", "source check": "s"}
STRIDE: Final = 97
ROWS: Final = b"".join(b'{"n": %d, "t": "%064d"}\n' % (n, n * 7_919) for n in range(900))
MORE: Final = b"".join(b'{"n": %d, "t": "%064d"}\n' % (n, n) for n in range(900, 1_800))

SETUP: Final = (
    ("log create l", b""),
    ("log append l", b"a\nb\nc\n"),
    ("log append l", b"d\ne\n"),
    ("log cursor create l c", b""),
    ("log cursor move l c --at 4", b""),
    ("log pin create l p --from 1 --to 3", b""),
    ("log stream open l t", b""),
    ("log create w --protocol manifest", b""),
    ("log append w", b"v\nw\n"),
    ("log append w", b"x\n"),
    ("log cursor create w c", b""),
    ("log create m", b""),
    ("log append m", b"m\nn\n"),
    ("log export w OUT", b""),
    ("source create s --log l", b""),
    ("ingest s", b""),
    ("log append l", b"f\n"),
    ("ingest s --max-bytes-per-tick 100", b""),
    ("log append l", b"g\n"),
    ("hold create s h", b""),
    ("rendition create s2 --of s", b""),
    ("ingest s2", b""),
    ("keyed create k", b""),
    ("keyed append k --key a", b"1\n2\n"),
    ("keyed seal k", b""),
    ("keyed append k --key b", b"3\n"),
    ("keyed compact k --full", b""),
    ("keyed append k --key b", b"4\n"),
    ("keyed checkpoint create k c", b""),
    ("keyed append k --key c", b"5\n"),
    ("shard create z --schema 'n int, t text' --key n", b""),
    ("shard append z --time 1", ROWS),
    ("shard append z --time 2", ROWS),
    ("shard append z --time 3", b'{"n": 1, "t": "y"}\n'),
    ("hold move z history --at 2 --yes", b""),
    ("table create t --schema 'n int, t text' --key n --shards 2", b""),
    ("table insert t", ROWS),
)


@dataclass(frozen=True)
class Case:
    """A command on that location, and the names in the commands that finish it."""

    line: str
    given: bytes = b""
    names: dict[str, str] = field(default_factory=dict)
    is_new: bool = False


# Options that the page leaves out: answers to questions, and shorter waits.
OPTIONS: Final = {
    "source drop": "--yes",
    "rendition drop": "--yes",
    "collect": "--grace 0s",
    "collection retain": "--yes",
    "source alter": "--yes",
    "hold move": "--yes",
    "log drop": "--yes --grace 0",
    "log collect": "--grace 0 --force",
    "keyed compact": "--full",
    "keyed drop": "--yes",
    "source create": "--log l",
    "table create": "--schema 'n int, t text' --shards 2",
    "table drop": "--yes",
}
CASES: Final = {
    "log create at a new location": Case("log create l", names={"NAME": "l"}, is_new=True),
    "source create": Case("source create r --log l", names={"NAME": "r"}),
    "ingest": Case("ingest s", names={"NAME": "s"}),
    "ingest --all": Case("ingest --all"),
    "source alter": Case(
        "source alter s --drop stream --yes", names={"NAME": "s", "COLUMNS": "stream"}
    ),
    "source drop": Case("source drop s --yes", names={"NAME": "s"}),
    "rendition create": Case("rendition create s3 --of s", names={"NAME": "s3", "COLLECTION": "s"}),
    "rendition drop": Case("rendition drop s2 --yes", names={"NAME": "s2"}),
    "collection handover": Case(
        "collection handover s --to s2", names={"COLLECTION": "s", "NAME": "s2"}
    ),
    "collection retain": Case(
        "collection retain s 1s --yes", names={"NAME": "s", "DURATION": "1s"}
    ),
    "hold create": Case("hold create t g", names={"NAME": "t", "HOLD": "g"}),
    "hold move": Case("hold move s h --at 5 --yes", names={"NAME": "s", "HOLD": "h", "TIME": "5"}),
    "hold drop": Case("hold drop s h", names={"NAME": "s", "HOLD": "h"}),
    "compact": Case("compact --full"),
    "collect": Case("collect --grace 0s"),
    "log collect": Case("log collect l --grace 0 --force", names={"NAME": "l"}),
    "log fork": Case("log fork l f", names={"SOURCE": "l", "FORK": "f"}),
    "log copy": Case("log copy l f", names={"SOURCE": "l", "NAME": "f"}),
    "log copy --protocol manifest from a slot log": Case(
        "log copy m f --protocol manifest", names={"SOURCE": "m", "NAME": "f", "OTHER": "g"}
    ),
    "log adopt": Case("log adopt OUT f", names={"PLACE": "OUT", "NAME": "f"}),
    "log export": Case("log export m OUT-a", names={"NAME": "m", "EMPTY_PLACE": "OUT-b"}),
    "log drop": Case("log drop w --yes --grace 0", names={"NAME": "w"}),
    "log pin create": Case("log pin create l q", names={"NAME": "l", "PIN": "q"}),
    "keyed create": Case("keyed create n", names={"NAME": "n"}),
    "keyed compact": Case("keyed compact k --full", names={"NAME": "k"}),
    "keyed checkpoint create": Case(
        "keyed checkpoint create k d", names={"NAME": "k", "CHECKPOINT": "d"}
    ),
    "keyed collect": Case("keyed collect k", names={"NAME": "k"}),
    "keyed fork": Case("keyed fork k f", names={"SOURCE": "k", "NAME": "f"}),
    "keyed drop": Case("keyed drop k --yes", names={"NAME": "k"}),
    "consensus move": Case(
        "consensus move --to sqlite:DATABASE", names={"KIND": "sqlite:DATABASE"}
    ),
    "log append": Case("log append l", b"h\ni\n"),
    "log stream open": Case("log stream open l u"),
    "log stream close": Case("log stream close l t"),
    "log stream meta": Case("log stream meta l t text"),
    "keyed append": Case("keyed append k --key a", b"5\n6\n"),
    "shard append": Case("shard append z --time 9", ROWS),
    "table create": Case("table create u --schema 'n int, t text' --shards 2", names={"NAME": "u"}),
    "table alter": Case(
        "table alter t --add 'w double'", names={"NAME": "t", "COLUMNS": "'w double'"}
    ),
    "table drop": Case("table drop t --yes", names={"NAME": "t"}),
    "table insert": Case("table insert t", MORE),
    "table upsert": Case("table upsert t", ROWS + MORE),
    "table update": Case("table update t --set \"t = t || 'x'\" --where 'n > 300'"),
    "table merge": Case("table merge t --when-matched delete", ROWS + MORE),
    "table delete": Case("table delete t --where 'n > 300'"),
}
ONE_STEP: Final = {
    "log create": "n",
    "log rebuild": "l",
    "log seal": "l",
    "log cursor create": "l d",
    "log cursor move": "l c --at 5",
    "log cursor drop": "l c",
    "log pin drop": "l p",
    "source skip": "s x",
    "source acknowledge": "s",
    "keyed seal": "k",
    "keyed configure": "k --seal-age 2h",
    "keyed retain": "k --retain-segments 2",
    "keyed retire": "k --retain-segments 1 --yes",
    "keyed checkpoint drop": "k c",
    "shard create": "y --schema 'n int'",
    "shard drop": "z --yes",
    "table advance": "",
}
READS: Final = {
    "read": "s",
    "changes": "s --since 0",
    "sql": "'SELECT 1'",
    "inspect": "",
    "scrub": "",
    "collection list": "",
    "collection describe": "s",
    "table list": "",
    "table describe": "t",
    "history": "t",
    "source list": "",
    "source describe": "s",
    "source status": "s",
    "rendition list": "s",
    "rendition describe": "s2",
    "rendition history": "s",
    "rendition diff": "s s2",
    "log scan": "l",
    "log list": "",
    "log describe": "l",
    "log scrub": "l",
    "log stream list": "l",
    "log cursor list": "l",
    "log pin list": "l",
    "keyed list": "",
    "keyed describe": "k",
    "keyed scan": "k",
    "keyed count": "k --key a",
    "keyed keys": "k",
    "keyed segments": "k",
    "keyed scrub": "k",
    "keyed checkpoint list": "k",
    "shard read": "z",
    "shard changes": "z --limit 1",
    "shard list": "",
    "shard describe": "z",
    "shard state": "z",
    "shard diffs": "z",
    "shard parts": "z",
    "shard usage": "z",
    "hold list": "s",
}


@cache
def rows_of_the_page() -> dict[str, str]:
    """Return the last column of the page's tables, by the first column."""
    rows = re.findall(r"^\| (`.*?) \| .*? \| (.*?) \|$", PAGE.read_text(), flags=re.MULTILINE)
    return {command.replace("`", ""): finish for command, finish in rows}


def section(title: str) -> set[str]:
    """Return the commands that a section of the page names."""
    text = PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return {span for span in re.findall(r"`([^`]*)`", text) if not span.startswith("-")}


def commands(command: Any, path: str = "") -> Iterator[str]:
    for name, each in command.commands.items():
        if hasattr(each, "commands"):
            yield from commands(each, f"{path}{name} ")
        else:
            yield f"{path}{name}"


def command_of(row: str, known: set[str]) -> str:
    return max((one for one in known if f"{row} ".startswith(f"{one} ")), key=len)


def test_the_page_lists_every_command() -> None:
    """A command that the page leaves out has no command that finishes it."""
    known = set(commands(typer.main.get_command(make_app())))
    several = {command_of(row, known) for row in rows_of_the_page()}
    one, reads = section("Commands of one step"), section("Commands that only read")

    assert several | one | reads | OTHERS == known
    assert not reads & several
    assert not reads & one
    followers = {"log follow", "keyed follow"}  # They do not end.
    assert set(CASES) == set(rows_of_the_page())
    assert (set(ONE_STEP), set(READS) | followers) == (one, reads)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, World]:
    """A location with everything, and some with only logs, keyed logs, a shard, or a table."""
    found: dict[str, World] = {}
    for kind in ("log", "keyed", "shard", "table", ""):
        made = found[kind] = World(tmp_path_factory.mktemp("killed"))
        for line, given in SETUP:
            if line.startswith(kind):
                done = made.run(line, given=given)
                assert done.status == 0, (line, done.err)
    return found


@pytest.fixture
def world(worlds: dict[str, World], command: str) -> World:
    """The smallest of these locations that a command can use."""
    return worlds[kind if (kind := command.partition(" ")[0]) in worlds else ""]


@pytest.mark.parametrize("command", sorted(ONE_STEP))
def test_a_command_of_one_step_writes_once(command: str, world: World) -> None:
    """A command with a second write belongs in the table, since a kill may interrupt it."""
    made = world.copy()
    if command == "log rebuild":
        del made.objects.objects["lake/log/l/manifest/MANIFEST"]
    done = made.run(f"{command} {ONE_STEP[command]}")
    refused = command == "source skip"  # Nothing stops this source.
    assert (done.status, done.writes <= 1) == (2 if refused else 0, True), done.err


@pytest.mark.parametrize("command", sorted(READS))
def test_a_command_that_only_reads_writes_nothing(command: str, world: World) -> None:
    """A kill of a reading command leaves nothing behind."""
    done = world.copy().run(f"{command} {READS[command]}")
    assert (done.status, done.writes) == (0, 0), done.err


@pytest.mark.parametrize("command", sorted(READS))
def test_a_reading_command_works_through_a_read_only_connection(command: str, world: World) -> None:
    """The connection refuses writes with an error, so the command has no need of one."""
    done = world.copy().run(f"--read-only {command} {READS[command]}")
    assert (done.status, done.writes) == (0, 0), done.err


@pytest.mark.parametrize(
    "command", sorted(CASES.keys() | ONE_STEP.keys() | {"verify", "source check"})
)
def test_a_read_only_connection_refuses_other_commands(command: str, world: World) -> None:
    """The command is refused before any request, whatever it would find."""
    line = f"{command} {(ONE_STEP | WRITING_OTHERS).get(command, '')}"
    line, given = (CASES[command].line, CASES[command].given) if command in CASES else (line, b"")
    done = world.copy().run(f"--read-only {line}", given=given)
    if line.startswith("log export"):
        assert done.status == 0, done.err
        return
    assert (done.status, done.requests) == (2, 0), done.err
    assert "without --read-only" in done.err


def test_a_read_only_connection_permits_the_commands_that_only_read() -> None:
    """The page lists them, and a server and an export may run, too."""
    assert section("Commands that only read") | {"serve", "log export"} == PERMITTED


def finishing(command: str, number: int) -> list[str]:
    """Return the lines that the page names; with several ways, ``number`` selects one."""
    ways = rows_of_the_page()[command].split(", or ")
    spans = re.findall(r"`([^`]*)`", ways[number % len(ways)])
    known = set(commands(typer.main.get_command(make_app())))
    lines = []
    for span in spans:
        line = " ".join(CASES[command].names.get(word, word) for word in span.split())
        verb = command_of(span, known)
        lines += [f"{line} {OPTIONS.get(verb, '')}"] * (3 if "--sweep" in span else 1)
    return lines


def run_all(world: World, lines: list[str], database: str) -> None:
    """Run commands a day apart; each succeeds, or refuses because its work is done."""
    for line in lines:
        world.days += 1
        done = world.run(line.replace("DATABASE", database))
        assert done.status in (0, 1, 2), (line, done.err)
        assert "not foreseen" not in done.err, done.err


def listed(world: World, line: str) -> list[dict[str, Any]]:
    done = world.run(line)
    assert done.status == 0, (line, done.err)
    return [json.loads(text) for text in done.out.splitlines()]


def plain(one: dict[str, Any], *names: str) -> tuple[str, ...]:
    return tuple(re.sub(r"o?[0-9a-f]{16,}", "#", str(one.get(name))) for name in names)


def seen(world: World) -> dict[str, Any]:
    """Return everything that users can read of a location, except clocks and ids."""
    found: dict[str, Any] = {"scrub": world.run("scrub").status}
    remedies = {one.get("remedy") for one in listed(world, "inspect --json")}
    found["unfinished"] = remedies - {None, "tidelog collect"}
    for one in listed(world, "log list"):
        name = one["name"]
        found[f"log {name}"] = plain(one, "oldest", "next", "sealed")
        found[f"records {name}"] = world.run(f"log scan {name} --format raw").out
        found[f"scrub {name}"] = world.run(f"log scrub {name}").status
        cursors = listed(world, f"log cursor list {name}")
        found[f"cursors {name}"] = {plain(one, "cursor", "position") for one in cursors}
        if one["protocol"] == "slot":
            pins = listed(world, f"log pin list {name}")
            found[f"pins {name}"] = {plain(one, "pin", "start", "limit") for one in pins}
            found[f"streams {name}"] = world.run(f"log stream list {name}").out.count("\n")
    tables = [one["name"] for one in listed(world, "table list")]
    for one in listed(world, "collection list"):
        if one["name"] in tables:
            continue
        rows = listed(world, f"read {one['name']}")
        found[f"source {one['name']}"] = [plain(row, "position", "body") for row in rows]
        versions = listed(world, f"rendition list {one['name']}")
        found[f"renditions {one['name']}"] = {plain(v, "name", "active") for v in versions}
        holds = listed(world, f"hold list {one['name']}")
        found[f"holds {one['name']}"] = {plain(h, "hold") for o in holds for h in o["holds"]}
    for one in listed(world, "keyed list"):
        name = one["name"]
        rows = listed(world, f"keyed scan {name}")
        found[f"keyed {name}"] = [plain(row, "key", "value") for row in rows]
        points = listed(world, f"keyed checkpoint list {name}")
        found[f"checkpoints {name}"] = {plain(one, "name") for one in points}
        found[f"keyed scrub {name}"] = world.run(f"keyed scrub {name}").status
    for one in listed(world, "table list"):
        found[f"table {one['name']}"] = world.run(f"read {one['name']}").out
        commits = listed(world, f"history {one['name']}")
        found[f"commits {one['name']}"] = [plain(c, "added", "removed") for c in commits]
    for one in listed(world, "shard list"):
        found[f"shard {one['name']}"] = plain(one, "since", "upper", "dropped")
        found[f"rows {one['name']}"] = world.run(f"shard read {one['name']}").out
    return found


def settled(world: World) -> Counter[str]:
    """Return the objects left after a sweep of everything unnamed."""
    for _ in range(4):
        world.days += 1
        assert world.run("collect --grace 0s --sweep").status == 0
    for one in listed(world, "log list"):
        world.run(f"log collect {one['name']} --grace 0 --sweep")
    return world.keys()


def begun(case: Case, world: World) -> World:
    if case.is_new:
        return World(world.root)
    made = world.copy()
    made.days += 1
    return made


def visit(command: str, world: World, *, stride: int) -> int:
    """Kill a command at its requests, one in ``stride``; return the number of kills."""
    case = CASES[command]
    ends: list[tuple[dict[str, Any], Counter[str]]] = []
    lines = finishing(command, 0)
    for is_run in (True, False) if not lines else (True,):
        whole, database = begun(case, world), str(world.root / f"{is_run}.db")
        if is_run:
            done = whole.run(case.line.replace("DATABASE", database), given=case.given)
            assert done.status == 0, done.err
            requests = done.requests
            assert done.writes > 1, "it is a command of one step"
        run_all(whole, lines, database)
        ends.append((seen(whole), settled(whole)))
    killed = 0
    points = [(number, landed) for number in range(requests) for landed in (False, True)]
    start = sum(map(ord, command)) % min(stride, len(points))
    for number, (dies_at, landed) in enumerate(points[start::stride]):
        database = str(world.root / f"{dies_at}-{landed}-{stride}.db")
        one = begun(case, world)
        line = case.line.replace("DATABASE", database)
        done = one.run(line, given=case.given, dies_at=dies_at, landed=landed)
        if done.status is not None:
            assert landed, "only a write can have landed"
            continue
        killed += 1
        where = f"{command}, killed at {dies_at}, {landed=}"
        if not case.is_new:
            assert one.run("log list").status == 0, where
        run_all(one, finishing(command, number), database)
        view = seen(one)
        assert view in [end for end, _ in ends], (where, _difference(view, ends[0][0]))
        left = settled(one)
        assert any(not _strays(left, end) for _, end in ends), (
            where,
            [_strays(left, end) for _, end in ends],
        )
    return killed


def _difference(view: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    names = sorted({*view, *whole})
    return {n: (view.get(n), whole.get(n)) for n in names if view.get(n) != whole.get(n)}


def _strays(left: Counter[str], whole: Counter[str]) -> Counter[str]:
    """Return the objects that an uninterrupted run does not leave.

    A log keeps the fence of each takeover, and a killed writer causes one more takeover. An
    abandoned fork of a keyed log keeps its name.
    """
    epochs = re.compile(r"/epoch/.*")
    logs = {epochs.sub("/epoch/", key) for key in whole}
    more = left - whole
    known = {key for key in more if "/epoch/" in key and epochs.sub("/epoch/", key) in logs}
    known |= {key for key in more if re.match(r"lake/keylog/fork_#/(epoch|manifest|gc)/", key)}
    return Counter({key: count for key, count in more.items() if key not in known})


@pytest.mark.parametrize("command", sorted(CASES))
def test_a_killed_command_is_finished_by_what_the_page_names(command: str, world: World) -> None:
    """After a kill at some of its requests, the page's command completes it without loss."""
    visit(command, world, stride=STRIDE)


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(CASES))
def test_a_command_that_is_killed_at_each_request_is_finished(command: str, world: World) -> None:
    """The same, with a kill before and after each request."""
    assert visit(command, world, stride=1) > 1
