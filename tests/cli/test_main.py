"""The command as a whole: help, exit status, error messages, and real processes."""

from __future__ import annotations

import importlib
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from cli.conftest import Cli
from kit.doc_blocks import commands_in
from tidelog import __version__, errors
from tidelog.cli import main as module
from tidelog.cli.command import wait_us, with_options
from tidelog.cli.engine import LateSpark
from tidelog.cli.main import main, status_of
from tidelog.collection.ingest.compute import Job
from tidelog.collection.ingest.engine import LocalEngine, TickParts
from tidelog.collection.source.files import FilesSource
from tidelog.collection.source.files_head import FilesHead
from tidelog.collection.source.port import RawSource

COMMAND = (sys.executable, "-m", "tidelog.cli.main")


def spawn(*arguments: str | Path) -> subprocess.Popen[str]:
    # A test run in the background ignores Ctrl-C, and its children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def many(cli: Cli) -> Cli:
    """A source with so many rows that a tick of 2000 bytes leaves most of them."""
    rows = [{"at": 1_000 + n, "n": n, "text": "x" * 60} for n in range(3_000)]
    files = cli.write_lines("rows/1.jsonl", *rows)
    cli.done("source", "create", "rows", "--files", files, "--time-column", "at")
    return cli


def test_help_and_version(cli: Cli) -> None:
    """Help and version work; without a verb, the usage goes to standard error."""
    helped = cli.run("--help")
    assert helped.status == 0
    for verb in ("source", "ingest", "read", "changes", "collection", "demo"):
        assert re.search(rf"^  {verb} ", helped.out, re.MULTILINE)
    assert cli.run("--version").out == f"tidelog {__version__}\n"
    alone = cli.run()
    assert (alone.status, alone.out) == (2, "")
    assert "Usage: tidelog" in alone.err


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_lists_of_verbs_are_not_cut(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """A long description wraps instead of being cut."""
    monkeypatch.setenv("COLUMNS", columns)

    groups = ((), *((name,) for name in module._GROUPS), ("log", "cursor"), ("log", "pin"))
    for group in groups:
        listed = cli.run(*group, "--help").out.partition("Commands:")[2]
        assert listed.rstrip().endswith(".")
        assert "..." not in listed, group


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        ("reed", "'read'"),
        ("sorce list", "'source'"),
        ("collection read", "'tidelog read' or 'tidelog shard read'"),
        ("collection lst", "'list'"),
        ("seal", "'tidelog log seal' or 'tidelog keyed seal'"),
        ("read x --colums a", "'--columns'"),
        ("log read x", "'tidelog read' or 'tidelog shard read'"),
        ("source retane", None),
        ("read x --last 5", None),
        ("source reed", None),
    ],
)
def test_suggestions_fit_the_word_typed(cli: Cli, typed: str, suggested: str | None) -> None:
    """A suggestion must fit; otherwise the message names the help."""
    complaint = cli(*typed.split()).complaint

    hint = f"did you mean {suggested}?" if suggested else "--help"
    assert complaint.endswith(hint), complaint
    assert complaint.count("id you mean") == (suggested is not None)
    assert "Possible" not in complaint


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        ("vacuum", "tidelog collect"),
        ("collection optimize x", "tidelog compact"),
        ("commits x", "tidelog history NAME"),
        ("upsert x", "tidelog table upsert NAME"),
        ("delete x", "tidelog table delete NAME"),
        ("table truncate x", "tidelog table delete NAME --where true"),
        ("table delete x keys.csv", "--keys FILE"),
        ("topic create x", "tidelog log create NAME"),
        ("log produce x", "tidelog log append NAME"),
        ("consume x", "tidelog log follow NAME"),
        ("restore x", "tidelog read NAME --as-of TIME"),
        ("merge x", "tidelog source create NAME --envelope upsert"),
        ("expire_snapshots x", "tidelog collection retain NAME DURATION"),
        ("read x --version 3", "did you mean '--as-of'?"),
        ("log scan x --from-beginning", "did you mean '--from'?"),
        ("log scan x --since now", "did you mean '--from-time'?"),
        ("log scan x --until now", "did you mean '--to-time'?"),
        ("log collect x --keep-since now", "did you mean '--keep-from-time'?"),
        ("log scan x --version 3", "tidelog log scan --help"),
    ],
)
def test_verbs_of_other_systems_lead_to_ours(cli: Cli, typed: str, command: str) -> None:
    """A verb of Delta, Iceberg or Kafka leads to tidelog's own command."""
    complaint = cli(*typed.split()).complaint

    assert command in complaint.partition("; ")[2], complaint


def test_commands_that_hints_name_exist() -> None:
    """Every command in a hint exists, with its options."""
    for hint in module._FOREIGN_VERBS.values():
        words = [word for word in hint.partition("tidelog ")[2].split() if word != ":"]
        command = module._made(None)
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        options = {name for option in command.params for name in option.opts}
        assert not hasattr(command, "commands"), hint
        assert {word for word in words if word.startswith("--")} <= options, hint


def test_an_argument_too_many_is_named(cli: Cli) -> None:
    """The message names the extra argument and the expected arguments."""
    complaint = cli("read", "a", "b", "c").complaint

    assert "unexpected argument 'b'" in complaint
    assert "tidelog read [OPTIONS] NAME" in complaint
    assert "(s)" not in complaint


@pytest.mark.parametrize(
    ("typed", "remedy"),
    [
        ("read x --as-of", "see tidelog read --help"),
        ("table create x --json=1", "see tidelog table create --help"),
        ("log create x --protocol y", "--protocol must be one of slot, manifest, not 'y'"),
    ],
)
def test_a_wrong_value_names_its_command_or_its_option(cli: Cli, typed: str, remedy: str) -> None:
    """The user looks up the option in the help of the same command."""
    assert cli(*typed.split()).complaint.endswith(remedy)


@pytest.mark.parametrize(
    "command",
    ["ingest", "read", "changes", "demo", "collection list", "collection describe"]
    + [f"source {verb}" for verb in ("create", "list", "describe", "status", "drop")],
)
def test_every_command_has_help(cli: Cli, command: str) -> None:
    """The first line of each help is one short sentence."""
    said = cli.run(*command.split(), "--help")

    assert said.status == 0
    first = said.out.splitlines()[2].strip()
    assert first.endswith(".")
    assert len(first) <= 63


def test_help_needs_no_engine() -> None:
    """Help must not import Arrow and DuckDB, which take half a second."""
    code = (
        "import sys; from tidelog.cli.main import main; main(['--help']); "
        "print(sorted({'pyarrow', 'duckdb', 'numpy', 'obstore', 'pyspark'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.UsageError("x"), 2),
        (errors.AsOfBeforeSince("x"), 2),
        (errors.NameTaken("x"), 2),
        (errors.NoSuchCollection("x"), 2),
        (errors.NoSuchLocation("x"), 2),
        (errors.LocationError("x"), 3),
        (errors.StoreRefused("x"), 3),
        (errors.DeadlineExceeded("x"), 3),
        (errors.GoneError("x"), 1),
        (errors.SourceDropped("x"), 1),
        (errors.ContentionError("x"), 1),
        (errors.CorruptionError("x"), 1),
        (errors.SourceRowsRefused("x"), 1),
        (errors.InvariantError("x"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_each_error_has_its_exit_status(error: errors.TidelogError, status: int) -> None:
    """The exit status shows a script whether the user, the store or tidelog is at fault."""
    assert status_of(error) == status


def failing(error: BaseException) -> Callable[[list[str]], None]:
    def run(arguments: list[str]) -> None:
        raise error

    return run


def test_what_was_not_foreseen_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unforeseen error is one line; TIDELOG_DEBUG shows the traceback."""
    monkeypatch.setattr(module, "_run", failing(RuntimeError("no\nsuch luck")))
    said = cli("read", "x")
    assert said.status == 1
    assert re.search(r"report .*TIDELOG_DEBUG=1.*RuntimeError: no such luck", said.complaint)

    monkeypatch.setenv("TIDELOG_DEBUG", "1")
    assert "Traceback" in cli("read", "x").err


def test_our_own_mistakes_ask_to_be_reported(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken invariant asks for a report, since a user cannot mend it."""
    monkeypatch.setattr(module, "_run", failing(errors.InvariantError("one is two", one=2)))

    assert re.search(r"report it: one is two \(one=2\)$", cli("read", "x").complaint)


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (["--key", "id"], "--key needs --envelope upsert: add it, or remove --key"),
        (["--delete-when", "gone"], "--delete-when needs --envelope upsert"),
        (["--time-unit", "d"], "--time-unit must be one of s, ms, us, ns"),
        (["--quote", "xx"], "--delimiter, --quote, --null"),
        (["--lateness", "3"], "--lateness '3' is not a duration"),
    ],
)
def test_errors_of_the_library_name_the_options_of_the_command(
    cli: Cli, tmp_path: Path, typed: list[str], shown: str
) -> None:
    """The library names its parameters, and the command shows the options that set them."""
    said = cli("source", "create", "events", "--files", tmp_path, *typed)

    assert (said.status, shown in said.complaint) == (2, True), said.err


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pass schema='a int, b int', or x=3", "pass --schema 'a int, b int', or x=3"),
        ("raise share_max=, or pass force=True", "raise --share-max, or pass --force"),
        (
            "settings['keys'] needs settings['shape']='key-value'",
            "--set keys needs --generator key-value",
        ),
        ("pass consensus= or wait=True", "pass consensus= or wait=True"),
    ],
)
def test_only_parameters_with_an_option_are_renamed(text: str, shown: str) -> None:
    """A value, a fact, or a parameter without an option stays as the library wrote it."""
    options = ["--schema", "--share-max", "--force", "--set", "--generator"]

    assert with_options(text, options) == shown


@pytest.mark.parametrize(
    ("text", "us"), [("90s", 90_000_000), ("10m", 600_000_000), ("0.1", 100_000), ("3", 3_000_000)]
)
def test_a_wait_is_a_duration_or_a_number_of_seconds(text: str, us: int) -> None:
    """All waits are durations; a plain number of seconds, the earlier form, still works."""
    assert wait_us(text, "--grace", most="7d") == us


@pytest.mark.parametrize("text", ["nan", "-1", "inf", "1e3", "8d", "", "5 weeks"])
def test_a_wrong_wait_is_refused(text: str) -> None:
    """The error names the option, and shows the text."""
    with pytest.raises(errors.UsageError, match=f"--grace .*'{text}'"):
        wait_us(text, "--grace", most="7d")


def test_an_error_of_many_lines_is_one(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message with line ends in its facts is printed as one line."""
    monkeypatch.setattr(module, "_run", failing(errors.UsageError("no", expression="a\nb")))

    assert cli("read", "x").complaint == "no (expression=a b)"


def test_ctrl_c_is_no_error_of_ours(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C exits with 130, as shells expect."""
    monkeypatch.setattr(module, "_run", failing(KeyboardInterrupt()))
    said = cli("read", "x")

    assert (said.status, said.complaint) == (130, "interrupted")


def test_spark_that_is_not_installed(events: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Spark, the error names both the extra and --engine local."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said = events("ingest", "events", "--engine", "spark")

    assert said.status == 2
    assert "pip install 'tidelog[spark]'" in said.complaint
    assert "--engine local" in said.complaint
    assert events.done("ingest", "events", "--json").object["engine"] == "local"


def test_who_names_a_master_asks_for_spark_with_its_settings(
    events: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--master starts Spark even for a small source, with the given settings."""
    told: list[tuple[object, ...]] = []

    def session(*, master: str | None, extra: Mapping[str, str]) -> None:
        told.append((master, dict(extra)))
        raise errors.LocationError("no cluster")

    # The package has a function of that name, so the module is imported by its full name.
    monkeypatch.setattr(importlib.import_module("tidelog.spark.session"), "session", session)
    monkeypatch.setattr("tidelog.collection.ingest.run.TRIES_ONCE", 1)
    cluster = ("--master", "spark://host:7077", "--conf", "spark.cores.max=4")
    said = events("ingest", "events", *cluster, "--conf", "spark.x=a=b")

    assert (said.status, said.complaint) == (3, "no cluster")
    assert told == [("spark://host:7077", {"spark.cores.max": "4", "spark.x": "a=b"})]


@pytest.mark.parametrize("line", commands_in("docs/guides/cluster.md"))
def test_the_documented_commands_are_understood(cli: Cli, line: str) -> None:
    """The documented commands parse: only the location is missing."""
    words = shlex.split(line)[1:]
    if words[0] == "--location":
        del words[:2]
    said = cli(*words)

    assert (said.status, said.complaint.partition(" at ")[0]) == (2, "no location exists")


def test_under_spark_submit_its_session_is_taken(
    events: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under spark-submit, the command uses Spark and the session of spark-submit."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    events.ingest("events")

    assert events.done("ingest", "events", "--json").object["engine"] == "spark"
    said = events("ingest", "events", "--master", "yarn")
    assert said.status == 2
    assert "pass --master to spark-submit" in said.complaint


def test_a_source_without_news_starts_no_spark(
    events: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without new data starts no JVM, which would take seconds."""
    events.ingest("events")
    monkeypatch.setattr("tidelog.cli.engine.LateSpark.compute", None)

    assert events.done("ingest", "events", "--engine", "spark", "--json").object["ticks"] == 0


@pytest.mark.parametrize(
    ("least", "java", "engine"), [(1 << 30, True, "local"), (1, True, "spark"), (1, False, "local")]
)
def test_spark_is_taken_where_it_pays(
    events: Cli, monkeypatch: pytest.MonkeyPatch, *, least: int, java: bool, engine: str
) -> None:
    """Small input runs locally, large input on Spark with a Java. Files are listed once."""
    ran: list[str] = []
    heads: list[FilesHead] = []
    look = FilesSource.head

    async def head(source: FilesSource) -> FilesHead:
        heads.append(await look(source))
        return heads[-1]

    async def compute(late: LateSpark, job: Job, source: RawSource) -> TickParts:
        ran.append(late.name)
        local = LocalEngine(store=late.location.store, clock=late.location.clock)
        return await local.compute(job, source)

    monkeypatch.setattr("tidelog.cli.engine.LateSpark.compute", compute)
    monkeypatch.setattr(FilesSource, "head", head)
    monkeypatch.setattr("tidelog.cli.engine.SPARK_BYTES_MIN", least)
    monkeypatch.setattr("tidelog.cli.engine._has_java", lambda: java)

    said = events.done("ingest", "events", "--json").object

    assert (said["engine"], bool(ran)) == (engine, engine == "spark")
    assert (len(heads), said["store"]["list_count"]) == (1, 1)
    assert said["rows"] > 0


def test_a_reader_that_has_enough_is_no_error(many: Cli) -> None:
    """``tidelog read ... | head -1`` ends quietly."""
    many.ingest("rows")
    process = spawn("--location", many.location, "read", "rows", "--format", "json")
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["n"] == 0
    process.stdout.close()

    assert process.wait(10) == 0
    assert process.stderr.read() == ""
    process.stderr.close()


def test_output_that_cannot_be_written_is_an_error(many: Cli) -> None:
    """A full disk is an error, since half a file must not pass for a complete one."""
    many.ingest("rows")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "--location", many.location, "read", "rows"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert done.returncode == 1
    assert re.fullmatch(r"tidelog: standard output cannot be written: .*\n", done.stderr)


def test_sigterm_stops_after_the_tick(many: Cli) -> None:
    """SIGTERM ends an ingester after its tick, with a summary."""
    arguments = ("ingest", "rows", "--follow", "--engine", "local", "--json")
    process = spawn("--location", many.location, *arguments, "--max-bytes-per-tick", "500")
    assert process.stderr is not None
    assert json.loads(process.stderr.readline())["tick"] == 1
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)

    assert process.returncode == 0
    ticks = [json.loads(line) for line in err.splitlines()]
    summary = json.loads(out)
    assert summary["ticks"] == len(ticks) + 1
    assert summary["left_bytes"] > 0
    assert many.ingest("rows", "--json").object["rows"] == 3_000 - summary["rows"]


def test_ctrl_c_ends_an_ingester_cleanly(many: Cli) -> None:
    """Ctrl-C prints one line and no traceback, and loses no committed row."""
    arguments = ("ingest", "rows", "--follow", "--engine", "local", "--json")
    process = spawn("--location", many.location, *arguments, "--max-bytes-per-tick", "500")
    assert process.stderr is not None
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)

    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == "tidelog: interrupted"
    assert "Traceback" not in err
    many.ingest("rows")
    assert len(many.done("read", "rows").objects) == 3_000


def test_a_terminal_shows_a_bar_and_one_last_line(many: Cli) -> None:
    """A terminal shows rows, bytes, rate and the rest, and a last line with the totals."""
    shown = on_terminal("--location", many.location, "ingest", "rows", "--engine", "local")

    assert re.search(r"rows .*3,000 rows, .* rows/s, 0 bytes left", shown)
    last = shown.splitlines()[-1]
    assert re.search(
        r"rows: 3,000 rows in 1 tick in this process, 0 late, 0 bad; complete to ", last
    )
    assert re.search(r"\d+ get, \d+ put, .* written, \$0\.\d{4,}; .* stored: ", last)


def test_a_terminal_shows_tables_no_wider_than_it_is(many: Cli) -> None:
    """On a terminal, the default output is a table that fits its width."""
    many.ingest("rows")
    shown = on_terminal("--location", many.location, "read", "rows", "--limit", "2")

    assert shown.splitlines() == [
        "  at  n  text",
        "----  -  " + "-" * 41,
        "1000  0  " + "x" * 41,
        "         " + "x" * 19,
        "1001  1  " + "x" * 41,
        "         " + "x" * 19,
        "2 rows as of 1970-01-01T00:00:03.999Z",
    ]


def test_a_terminal_shows_the_first_rows_and_counts_the_others(many: Cli) -> None:
    """A terminal shows 100 rows and counts the rest; a limit or a pipe changes that."""
    many.ingest("rows")
    shown = on_terminal("--location", many.location, "read", "rows", "--columns", "n").splitlines()

    assert shown[-3:] == [
        "99",
        "... 2,900 more rows: pass --limit N, or write to a file for all rows",
        "100 rows as of 1970-01-01T00:00:03.999Z",
    ]
    assert len(shown) == 2 + 100 + 2
    given = on_terminal(
        "--location", many.location, "read", "rows", "--columns", "n", "--limit", "150"
    )
    assert len(given.splitlines()) == 2 + 150 + 1
    piped = many.done("read", "rows", "--format", "table")
    assert len(piped.out.splitlines()) == 2 + 3_000
    assert "more" not in piped.err


def test_the_end_of_input_at_a_question_is_no_interruption(many: Cli) -> None:
    """Ctrl-D answers no, so nothing is dropped; only Ctrl-C interrupts."""
    arguments = ("--location", many.location, "source", "drop", "rows")
    shown = on_terminal(*arguments, typed=b"\x04", status=1)

    assert "interrupted" not in shown
    assert shown.splitlines()[-1] == "No answer. Nothing was dropped."
    assert many.done("source", "list").object["name"] == "rows"


def on_terminal(*arguments: str, typed: bytes = b"", status: int = 0) -> str:
    """Run a command on a terminal of 50 columns; return its output without escape sequences."""
    terminal, ours = pty.openpty()
    os.write(terminal, typed)
    environment = {**os.environ, "COLUMNS": "120" if "ingest" in arguments else "50"}
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdin=ours, stdout=ours, stderr=ours, env=environment
    )
    os.close(ours)
    shown = bytearray()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            shown += os.read(terminal, 65_536)
        except OSError:  # The process has closed its side and ended.
            break
    os.close(terminal)
    assert process.wait(120) == status, shown.decode()
    text = shown.decode().replace("\r\n", "\n").replace("\r", "\n")
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_main_reads_the_process_arguments(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The console script calls main without arguments."""
    monkeypatch.setattr(sys, "argv", ["tidelog", "--version"])

    assert main() == 0
    assert capsys.readouterr().out == f"tidelog {__version__}\n"


def test_the_package_is_a_command() -> None:
    """``python -m tidelog`` works without the script, as in a cluster's image."""
    command = [sys.executable, "-m", "tidelog", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout == f"tidelog {__version__}\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tidelog rea", "read"),
        ("tidelog collection d", "describe"),
        ("tidelog read x --wh", "--where"),
    ],
)
def test_a_shell_completes_verbs_and_options(
    words: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Completion is answered by tidelog's own entry point, not by the library's."""
    monkeypatch.setenv("_TIDELOG_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit) as ended:
        main([])

    assert not ended.value.code
    assert capsys.readouterr().out.split() == [expected]
