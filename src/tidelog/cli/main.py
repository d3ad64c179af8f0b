"""The ``tidelog`` command: its options, its verbs and its exit statuses.

Exit status: 0 success, 1 failure, 2 wrong usage, 3 the store failed, 130 the user interrupted the
command. Every foreseeable mistake is one sentence on standard error. With ``TIDELOG_DEBUG=1`` in
the environment, the traceback follows.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final

import typer
import typer.main

from tidelog import __version__
from tidelog.cli import INTERRUPTED
from tidelog.cli.command import with_options
from tidelog.cli.output import OutputClosed, say
from tidelog.consensus.port import ENVIRONMENT
from tidelog.core.arguments import quoted
from tidelog.errors import (
    ExpressionTooSlow,
    InvariantError,
    LocationError,
    NoSuchCheckpoint,
    NoSuchCollection,
    NoSuchCursor,
    NoSuchHold,
    NoSuchLocation,
    NoSuchLog,
    NoSuchPin,
    NoSuchShard,
    SourcesFailed,
    TidelogError,
    UsageError,
)
from tidelog.store.wrappers.read_only import READ_ONLY_VARIABLE

DONE, FAILED, MISUSED, STORE_FAILED = 0, 1, 2, 3

_DEBUG: Final = "TIDELOG_DEBUG"
_COMPLETE: Final = "_TIDELOG_COMPLETE"
# Typer has this class in a private module.
_Misuse: type[Exception] = next(
    c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException"
)
_MISUSES: Final = (
    UsageError,
    NoSuchCheckpoint,
    NoSuchCollection,
    NoSuchCursor,
    NoSuchHold,
    NoSuchLocation,
    NoSuchLog,
    NoSuchPin,
    NoSuchShard,
)
_DROP_COLLECTION: Final = (
    "to drop its source as well: tidelog source drop NAME; to drop a table: tidelog table drop NAME"
)
_HINTS: Final = (
    (
        "no such option: --location",
        "write it before the command: tidelog --location URL COMMAND ...",
    ),
    (
        "no such option: --read-only",
        "write it before the command: tidelog --read-only COMMAND ...",
    ),
    ("tidelog hold move: unexpected argument", "pass the new time as --at TIME"),
    ("tidelog table delete: unexpected argument", "pass a file of keys as --keys FILE"),
    ("tidelog ingest: unexpected argument", "name one source, or pass --all"),
    ("collection: no such command 'drop'", _DROP_COLLECTION),
)
# Verbs of Delta, Iceberg, Kafka and databases, with the command that does the same here.
_COLLECT: Final = "to delete replaced objects: tidelog collect"
_COMPACT: Final = "to merge small batches: tidelog compact"
_RETAIN: Final = "to give up old times: tidelog collection retain NAME DURATION"
_EARLIER: Final = "a collection keeps its earlier times: tidelog read NAME --as-of TIME"
_UPSERT: Final = (
    "to replace rows by their key: tidelog source create NAME --envelope upsert --key COLUMNS, or "
    "in a table: tidelog table upsert NAME"
)
_APPEND: Final = "to append records to a log: tidelog log append NAME"
_FOLLOW: Final = "to read new records as they arrive: tidelog log follow NAME"
_TABLE: Final = "to list the tables: tidelog table list"
_HISTORY: Final = "to list the commits of a table: tidelog history NAME"
_QUERY: Final = "to query collections: tidelog sql 'SELECT ... FROM NAME'"
_DROP: Final = (
    "to remove a named thing for good, the command is drop, such as tidelog log drop NAME; to "
    "delete rows: tidelog table delete NAME"
)
_LIST: Final = "to list the collections: tidelog collection list"
_FOREIGN_VERBS: Final = {
    **dict.fromkeys(("delete", "destroy", "remove", "rm", "release", "finalize"), _DROP),
    "downgrade": "to move a hold: tidelog hold move NAME HOLD --at TIME",
    "listen": "to read the updates after a time: tidelog shard changes NAME --since TIME",
    "truncate": "to delete all rows of a table: tidelog table delete NAME --where true",
    "vacuum": _COLLECT,
    "gc": _COLLECT,
    "purge": _COLLECT,
    "remove_orphan_files": "to delete objects without a reference: tidelog collect --sweep",
    "optimize": _COMPACT,
    "rewrite_data_files": _COMPACT,
    "rewrite_manifests": _COMPACT,
    "versions": "to show the readable times: tidelog collection describe NAME",
    "snapshots": "to show the readable times: tidelog collection describe NAME",
    "commits": _HISTORY,
    "expire": _RETAIN,
    "expire_snapshots": _RETAIN,
    "restore": _EARLIER,
    "rollback": _EARLIER,
    "merge": _UPSERT,
    "upsert": _UPSERT,
    "fsck": "to check all stored data: tidelog scrub",
    "query": _QUERY,
    "select": _QUERY,
    "tables": _TABLE,
    "ls": _LIST,
    "topic": "a topic of Kafka is a log here: tidelog log create NAME",
    "topics": "a topic of Kafka is a log here: tidelog log list",
    "produce": _APPEND,
    "producer": _APPEND,
    "consume": _FOLLOW,
    "consumer": _FOLLOW,
    "subscribe": _FOLLOW,
    "tail": _FOLLOW,
    "offsets": "to show the positions of consumers: tidelog log cursor list NAME",
    "groups": "to show the positions of consumers: tidelog log cursor list NAME",
}
_FOREIGN_OPTIONS: Final = {
    "--after": "--grace",
    "--version": "--as-of",
    "--version-as-of": "--as-of",
    "--timestamp": "--as-of",
    "--timestamp-as-of": "--as-of",
    "--snapshot-id": "--as-of",
    "--offset": "--from",
    "--from-beginning": "--from",
    "--max-messages": "--limit",
    "--select": "--columns",
    "--since": "--from-time",
    "--until": "--to-time",
    "--keep-since": "--keep-from-time",
}

# The module of each verb and of each group of verbs, in the order of the help.
_VERBS: Final = {
    "ingest": "ingest",
    **dict.fromkeys(("read", "changes"), "read"),
    "history": "table",
    "sql": "sql",
    **dict.fromkeys(("compact", "collect", "inspect", "scrub"), "maintenance"),
    "serve": "serve",
    **dict.fromkeys(("verify", "demo"), "verify"),
}
_PLACES: Final = ("--location", "--consensus")  # Options with a value, before the verb.
_FLAG: Final = "--read-only"  # The option without a value there.
_SET_HERE: Final = (ENVIRONMENT, READ_ONLY_VARIABLE)
_GROUPS: Final = {
    "collection": "collection",
    "table": "table",
    "source": "source",
    "rendition": "rendition",
    "log": "log",
    "keyed": "keyed",
    "shard": "shard",
    "hold": "hold",
    "consensus": "consensus",
}

# Messages of the option parser, with plain words for users who do not know pydantic.
_PLAIN: Final = (
    ("Input should be a valid integer, unable to parse string as an integer", "not a whole number"),
    (
        "Unable to parse input string as an integer, exceeded maximum size",
        "a number with too many digits",
    ),
    ("Input should be greater than or equal to", "less than"),
    ("Input should be less than or equal to", "more than"),
    ("Input should be a valid number, unable to parse string as a number", "not a number"),
)
_KIND_OF_MISUSE: Final = "Value error, "  # The library begins its messages of choices with it.
# The parser suggests words that resemble the typed word too little, so they are removed.
_SUGGESTED: Final = re.compile(r"\.? (?:Did you mean|\(Did you mean|\(Possible options).*")
_UNKNOWN: Final = re.compile(r"no such (command|option):? (\S+)")
_EXTRA: Final = re.compile(r"got unexpected extra arguments?(?:\(s\))? \((\S+).*\)")
_ALIKE: Final = 0.7  # 1 means equal; 'read' and 'retain' reach 0.6.
# The transactions of tables put the table before the name of a writer.
_TABLE_OF_WRITER: Final = re.compile(r"\br[0-9a-f]{32}/")
# Parts of the messages of several libraries in a process at its limit of memory or threads. The
# last one appears if the libraries themselves cannot be loaded.
_NO_MORE: Final = ("can't start new thread", "annot allocate memory", "failed to map segment")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tidelog {__version__}")
        raise typer.Exit


def options(
    context: typer.Context,
    location: Annotated[
        str | None,
        typer.Option(
            envvar="TIDELOG_LOCATION",
            metavar="URL",
            help="The place of all data: a path, file:///data/lake, s3://bucket/prefix, gs://, "
            "az://.",
        ),
    ] = None,
    consensus: Annotated[
        str | None,
        typer.Option(
            envvar=ENVIRONMENT,
            metavar="KIND",
            help="The place that resolves concurrent commits, chosen at the creation of a "
            "location: store (the location itself), sqlite:PATH, postgresql://USER@HOST/DATABASE. "
            "An existing location needs it only for a password, or after a move of the database.",
        ),
    ] = None,
    read_only: Annotated[
        bool,
        typer.Option(
            "--read-only",
            help="Send only reads and listings to the location. A command that writes is refused.",
        ),
    ] = False,
    version: Annotated[  # noqa: ARG001  Typer runs the callback only for a declared parameter.
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Durable logs, and collections of rows with their history, on object storage."""
    context.obj = location
    if consensus is not None:
        # All locations that this process opens read it, and so do child processes.
        os.environ[ENVIRONMENT] = consensus
    if read_only:
        os.environ[READ_ONLY_VARIABLE] = "on"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; ``arguments`` defaults to ``sys.argv``."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if sys.stdout is None:  # The shell closed it. Fail before any work begins.
        say("tidelog: standard output is closed: write it to a file, or to /dev/null")
        return FAILED
    try:
        os.getcwd()  # Without a working directory, DuckDB would abort the process.
    except OSError:
        say("tidelog: the working directory no longer exists: change to another one (cd)")
        return MISUSED
    told = {name: os.environ[name] for name in _SET_HERE if name in os.environ}
    try:
        _run(given)
        return DONE
    except typer.Exit as done:
        return done.exit_code
    except OutputClosed:
        return DONE
    except (KeyboardInterrupt, typer.Abort):
        say("tidelog: interrupted")
        return INTERRUPTED
    except _Misuse as error:
        _tell_misuse(error, given)
        return MISUSED
    except TidelogError as error:
        _tell(error, _options_of(given))
        if isinstance(error, ExpressionTooSlow):
            atexit.register(_leave_at_once, status_of(error))
        return status_of(error)
    except Exception as error:  # noqa: BLE001  # The last resort: users get no traceback.
        _tell_unforeseen(error)
        return FAILED
    finally:
        # The options must not apply to the next command in the same process.
        for name in _SET_HERE:
            os.environ.pop(name, None)
        os.environ.update(told)


def _leave_at_once(status: int) -> None:
    """Exit without cleanup if a thread still evaluates a condition that was too slow."""
    if any(thread.name == "tidelog-condition" for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def status_of(error: TidelogError) -> int:
    """Return the exit status of an error; of several sources, the one that all errors share."""
    if isinstance(error, SourcesFailed):
        statuses = {status_of(one) for one in error.failed.values()}
        return statuses.pop() if len(statuses) == 1 else FAILED
    if isinstance(error, _MISUSES):
        return MISUSED
    return STORE_FAILED if isinstance(error, LocationError) else FAILED


def make_app(only: str | None = None) -> typer.Typer:
    """Build the command with all verbs, or with the one verb or group that ``only`` names."""
    app = typer.Typer(
        name="tidelog",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        # Plain help: the framed kind takes twice as long to appear.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(options)
    for verb, module in _VERBS.items():
        if only in (None, verb):
            app.command(verb)(getattr(import_module(f"tidelog.cli.{module}"), verb))
    for group, module in _GROUPS.items():
        if only in (None, group):
            app.add_typer(import_module(f"tidelog.cli.{module}").app, name=group)
    return app


@cache
def _made(only: str | None) -> Any:  # The module of its class differs between typer versions.
    made: Any = typer.main.get_command(make_app(only))
    _keep_short_help_whole(made)
    return made


def _keep_short_help_whole(group: Any) -> None:
    """Show the whole first sentence of each verb in lists: by default the parser cuts it."""
    for command in group.commands.values():
        first = " ".join((command.help or "").partition("\n\n")[0].split())
        command.short_help = command.short_help or first.partition(". ")[0].rstrip(".") + "."
        if hasattr(command, "commands"):
            _keep_short_help_whole(command)


def _verb_of(arguments: Sequence[str]) -> str | None:
    """Return the verb or the group of verbs that the arguments name; None if it is unclear."""
    rest = list(arguments)
    while rest and (rest[0] == _FLAG or rest[0].partition("=")[0] in _PLACES):
        del rest[: 1 if rest[0] == _FLAG or "=" in rest[0] else 2]
    # To import and build one verb takes a third of the time of all verbs.
    is_known = bool(rest) and (rest[0] in _VERBS or rest[0] in _GROUPS)
    return rest[0] if is_known and _COMPLETE not in os.environ else None


def _run(arguments: list[str]) -> None:
    # A call of the app itself would turn a closed pipe and Ctrl-C into exits of typer's own.
    command = _made(_verb_of(arguments))
    if _COMPLETE in os.environ:
        # A shell asks for completions: only the library's own runner answers that.
        command.main(arguments, prog_name="tidelog")
    with command.make_context("tidelog", arguments) as context:
        command.invoke(context)


def _options_of(arguments: Sequence[str]) -> list[str]:
    """Return the options of the command that the arguments name."""
    command = _made(_verb_of(arguments))
    found = [*command.params]
    for word in arguments:
        if word in getattr(command, "commands", ()):
            command = command.commands[word]
            found += command.params
    return [name for one in found for name in (*one.opts, *one.secondary_opts)]


def _tell(error: TidelogError, options: Sequence[str]) -> None:
    facts = _TABLE_OF_WRITER.sub("", str(error).removeprefix(error.sentence))
    told = " ".join(f"{with_options(error.sentence, options)}{facts}".split("\n"))
    if isinstance(error, InvariantError):
        told = f"internal error of tidelog, please report it: {told}"
    say(f"tidelog: {told}")
    _tell_trace(error)


def _tell_misuse(error: Exception, arguments: Sequence[str]) -> None:
    message: Callable[[], str] = getattr(error, "format_message", error.__str__)
    told = message().strip()
    if type(error).__name__ == "NoArgsIsHelpError":
        say(told)
        return
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else _path_of(arguments)
    told = " ".join(told.split()).replace(_KIND_OF_MISUSE, "", 1)
    told = _SUGGESTED.sub("", told).removesuffix(".")
    for said, plain in _PLAIN:
        told = told.replace(said, f"{_value_refused(error)} is {plain}")
    told = told[:1].lower() + told[1:]
    told = _EXTRA.sub(lambda found: f"unexpected argument {found[1]!r}", told)
    hint = next((hint for part, hint in _HINTS if part in f"{command}: {told}"), None)
    hint = hint or _suggestion(told, context) or _usage(told, context)
    say(f"tidelog: {told}; {hint or f'see {command} --help'}")


def _path_of(arguments: Sequence[str]) -> str:
    """Return the command that the arguments name, for an error of the parser without a context."""
    command, path = _made(_verb_of(arguments)), "tidelog"
    for word in arguments:
        if word in getattr(command, "commands", ()):
            command, path = command.commands[word], f"{path} {word}"
    return path


def _value_refused(error: Exception) -> str:
    """Return the value that the option parser refused, from the cause of its error."""
    causes: Sequence[Any] = getattr(error.__cause__, "errors", list)()
    return quoted(str(causes[0]["input"])) if causes else "it"


def _usage(told: str, context: Any) -> str | None:
    """Return the usage of a command that got an unexpected argument; else None."""
    if not told.startswith("unexpected argument") or context is None:
        return None
    pieces = [context.command_path, *context.command.collect_usage_pieces(context)]
    usage = " ".join(pieces).replace("{", "").replace("}", "")  # Some versions of typer add them.
    return f"write {usage}, and put patterns and expressions in quotes"


def _suggestion(told: str, context: Any) -> str | None:
    """Return the hint for an unknown verb or option; None if none resembles the word typed."""
    unknown = _UNKNOWN.match(told)
    if unknown is None or context is None:
        return None
    kind, word = unknown[1], unknown[2].strip("'\"")
    if kind == "option":
        known = [name for option in context.command.params for name in option.opts]
        bare = {name.lstrip("-"): name for name in known if name.startswith("--")}
        ours = _FOREIGN_OPTIONS.get(word)
        if ours is not None and ours in known:
            return _question([ours])
    else:
        bare = {name: name for name in context.command.commands}
        if word.lower() in _FOREIGN_VERBS:
            return _FOREIGN_VERBS[word.lower()]
        homes = [path for path, verbs in _verbs_by_group() if word in verbs]
        if homes:
            return _question([f"{path} {word}" for path in homes])
    found = get_close_matches(word.lstrip("-"), bare, n=2, cutoff=_ALIKE)
    return _question([bare[name] for name in found]) if found else None


def _question(choices: Sequence[str]) -> str:
    *first, last = map(repr, choices)
    return f"did you mean {', '.join(first)}{' or ' if first else ''}{last}?"


def _verbs_by_group() -> list[tuple[str, list[str]]]:
    """Return the path of the command and of each of its groups, with their verbs."""
    whole = _made(None)
    groups = [(f"tidelog {name}", list(whole.commands[name].commands)) for name in _GROUPS]
    return [("tidelog", list(_VERBS)), *groups]


def _tell_unforeseen(error: Exception) -> None:
    told = " ".join(str(error).split())[:300]
    if isinstance(error, MemoryError) or any(sign in told for sign in _NO_MORE):
        say(
            "tidelog: the process is at its limit of memory or threads: raise the limits "
            "(ulimit -v, ulimit -u)"
        )
        _tell_trace(error)
        return
    say(
        f"tidelog: unexpected error; please report it with the output of {_DEBUG}=1: "
        f"{type(error).__name__}{': ' if told else ''}{told}"
    )
    _tell_trace(error)


def _tell_trace(error: Exception) -> None:
    if os.environ.get(_DEBUG) == "1":
        say("".join(traceback.format_exception(error)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
