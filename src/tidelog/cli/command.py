"""Common parts of all commands: shared options, one event loop, one open location."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from tidelog.cli.output import say
from tidelog.core.arguments import joined_names, quoted
from tidelog.errors import CorruptionError, UsageError
from tidelog.store.wrappers.read_only import READ_ONLY_VARIABLE, told_read_only

if TYPE_CHECKING:
    from tidelog.location import Location

T = TypeVar("T")

AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print JSON, one object per line. In a pipe or a file, this is the default.",
    ),
]
CollectionName = Annotated[
    str, typer.Argument(metavar="NAME", help="A collection, or NAME_errors for its bad rows.")
]
LogName = Annotated[str, typer.Argument(metavar="NAME", help="A log.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
SourceName = Annotated[str, typer.Argument(metavar="NAME", help="A source.")]

Wait = Annotated[bool, typer.Option("--wait", help="Wait until the time is complete.")]
Timeout = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="Wait until the time is complete, but at most this long, such as 30s or 5m. A plain "
        "number counts seconds.",
    ),
]


_READS: Final = """
read, changes, history, sql, inspect, scrub, serve, collection list, collection describe,
table list, table describe, source list, source describe, source status, rendition list,
rendition describe, rendition history, rendition diff, hold list, log scan,
log follow, log list, log describe, log scrub, log export, log stream list, log cursor list,
log pin list, keyed list, keyed describe, keyed scan, keyed follow, keyed count, keyed keys,
keyed segments, keyed scrub, keyed checkpoint list, shard read, shard changes, shard list,
shard describe, shard state, shard diffs, shard parts, shard usage
"""
# The commands that a read-only connection permits. `tidelog log export` writes to another place.
READS: Final = frozenset(" ".join(_READS.split()).split(", "))


class Damaged(CorruptionError):
    """Some logs or shards are damaged; the command has reported each."""


def location_url(context: typer.Context, *, is_lasting: bool = True) -> str:
    """Return the URL of the command's location.

    ``is_lasting`` is False for a command that creates all its data itself.

    Raises:
        UsageError: the user gave no location, or one whose data would vanish with the command; or
            the command writes, and the connection is read-only.
    """
    refuse_write(context.command_path.partition(" ")[2])
    url: str | None = context.find_root().obj
    if not url:
        raise UsageError(
            "no location: write 'tidelog --location URL ...' (file:///data/lake, "
            "s3://bucket/prefix, or a path), or set TIDELOG_LOCATION"
        )
    if is_lasting and url.lower().startswith("memory:"):
        raise UsageError("memory:// ends with the command: use a path, file:// or s3://")
    return url


def refuse_write(command: str) -> None:
    """Refuse a command that writes, if the user asked for a read-only connection.

    Raises:
        UsageError: see above.
    """
    if command not in READS and told_read_only(None):
        raise UsageError(
            f"the connection is read-only: run 'tidelog {command}' without --read-only, and "
            f"without {READ_ONLY_VARIABLE}=on in the environment"
        )


def on_location(
    context: typer.Context, work: Callable[[Location], Awaitable[T]], *, create: bool = False
) -> T:
    """Open the location, await ``work`` on it, and return the result.

    Raises:
        NoSuchLocation: the location does not exist, and ``create`` is False.
        Any error of ``work``.
    """
    from tidelog.location import open_location

    url = location_url(context)

    async def whole() -> T:
        return await work(await open_location(url, create=create))

    return asyncio.run(whole())


def group(help: str, /, **verbs: Callable[..., None] | typer.Typer) -> typer.Typer:
    """Return a group of verbs and of smaller groups, in the order of the help."""
    app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=help)
    for name, verb in verbs.items():
        if isinstance(verb, typer.Typer):
            app.add_typer(verb, name=name)
        else:
            app.command(name)(verb)
    return app


def ask_first(
    question: Callable[[], str], *, deed: str, undone: str = "Nothing was dropped."
) -> None:
    """Ask the user to confirm a deed that is final; exit if the answer is not yes.

    Raises:
        UsageError: standard input is not a terminal.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"standard input is not a terminal: pass --yes to {deed}")
    try:
        is_meant = typer.confirm(question(), err=True)
    except typer.Abort as abort:
        if not isinstance(abort.__context__, EOFError):
            raise
        say("")  # At the end of input, the terminal's cursor is still on the line of the question.
        undone, is_meant = f"No answer. {undone}", False
    if not is_meant:
        say(undone)
        raise typer.Exit(1)


async def readers_in(location: Location, name: str) -> list[str]:
    """Return the names of the sources that read a collection of the location."""
    from tidelog.collection.source.followed import readers_of

    return readers_of(await location.controller.catalog(), name)


def readers_text(readers: Sequence[str]) -> str:
    """Return a sentence about the sources that read a collection to drop, or nothing."""
    if not readers:
        return ""
    if len(readers) == 1:
        return f" The source {readers[0]!r} reads it: its rows stay, and no more can follow."
    names = joined_names(readers)
    return f" The sources {names} read it: their rows stay, and no more can follow."


def timeout_us_of(text: str | None) -> int | None:
    """Return the microseconds of ``--timeout``.

    Raises:
        UsageError: see `wait_us`.
    """
    return None if text is None else wait_us(text, "--timeout")


def wait_us(text: str, option: str, *, least: str = "0s", most: str = "36500d") -> int:
    """Return the microseconds of a wait, such as 90s or 10m; a plain number counts seconds.

    Raises:
        UsageError: the text is not a duration, or it is out of range.
    """
    from tidelog.collection.formats.times import parse_duration_ms

    low, high = (1_000 * parse_duration_ms(bound, what=option) for bound in (least, most))
    is_plain = _SECONDS.fullmatch(text.strip()) is not None
    found = round(float(text) * 1e6) if is_plain else 1_000 * parse_duration_ms(text, what=option)
    if not low <= found <= high:
        raise UsageError(f"{option} must be from {least} to {most}, not {quoted(text)}")
    return found


def interval_us(context: typer.Context, text: str, *, follow: bool) -> int:
    """Return the microseconds of ``--interval``, the pause between two rounds of ``--follow``.

    Raises:
        UsageError: the text is not a duration, or the user passed it without ``--follow``.
    """
    check_follows(context, "interval", follow=follow)
    return wait_us(text, "--interval", least="100ms")


def check_follows(context: typer.Context, option: str, *, follow: bool) -> None:
    """Refuse an option that the user passed without ``--follow``, which alone uses it.

    Raises:
        UsageError: the user did.
    """
    source = context.get_parameter_source(option)
    if not follow and source is not None and source.name == "COMMANDLINE":
        raise UsageError(f"--{option} needs --follow: add --follow, or remove --{option}")


_SECONDS: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")


def with_options(text: str, options: Iterable[str]) -> str:
    """Replace parameters of the library by options of the command in an error's text.

    The library writes a parameter as ``key=``, with a value as ``envelope='upsert'`` or
    ``force=True``, and a setting of a source as ``settings['rate']``. A parameter for which the
    command has no option stays.
    """
    known = {option[2:].replace("-", "_"): option for option in options if option[:2] == "--"}

    def option_of(found: re.Match[str]) -> str:
        option, value = known.get(found["name"]), found["value"]
        if option is None:
            return found[0]
        if value in ("", "True"):
            return option
        return f"{option} {value[1:-1] if value[1:-1].isalnum() else value}"

    for parameter, option in _OTHER_OPTIONS.items():
        if option.partition(" ")[0] in options:
            text = re.sub(parameter, option, text)
    for parameter, option in _OPTIONS_ELSEWHERE.items():
        text = text.replace(parameter, option)
    return _PARAMETER.sub(option_of, text)


_PARAMETER: Final = re.compile(
    r"(?<![\w.'-])(?P<name>[a-z][a-z_]*)=(?P<value>'[^']*'|True\b|(?![\w'\"(\[]))"
)
_OTHER_OPTIONS: Final = {
    r"settings\['shape'\]='([a-z-]+)'": r"--generator \1",
    r"settings\['shape'\]": "--generator",
    r"settings\['([\w.]+)'\]": r"--set \1",
    r"Sealing\(age_us=\)": "--seal-age",
    r"Retention\(age_us=\)": "--retain-age",
}
# Parameters of an error for which only another command has the option.
_OPTIONS_ELSEWHERE: Final = {"Sealing(age_us=)": "--seal-age of 'tidelog keyed configure'"}
