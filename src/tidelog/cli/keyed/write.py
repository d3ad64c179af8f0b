"""``tidelog keyed append``, ``seal``, ``fork`` and ``drop``, and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tidelog.cli.command import AsJson, Yes, ask_first, group, on_location
from tidelog.cli.feed import Feed, FeedResult, Files, check_input, feed_all, show_appended
from tidelog.cli.keyed.arguments import (
    KeyedName,
    KeyForm,
    check_form,
    check_keyed,
    closing,
    key_bytes,
    on_reader,
    on_writer,
    read_key,
)
from tidelog.cli.output import Column, show, show_list, time_text
from tidelog.core.arguments import quoted
from tidelog.errors import UsageError
from tidelog.http.api.keys import base64_bytes

if TYPE_CHECKING:
    from tidelog.keyed.port import KeyedWrites
    from tidelog.keyed.values import CheckpointInfo, KeyedInfo
    from tidelog.location import Location


def append(
    context: typer.Context,
    name: KeyedName,
    files: Files = None,
    *,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="The key of all lines; each line is a value."),
    ] = None,
    key_form: KeyForm = "text",
    format: Annotated[
        str | None,
        typer.Option(
            metavar="json|raw",
            help='json: lines such as {"key": "a", "value": "b"}, the output of scan. raw: each '
            "line is a value of --key. The default is raw with --key, else json.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Append lines, and show their sequences once all are durable.

    The command sends lines as it reads them. Lines acknowledged before an error stay appended.
    """
    check_form(key_form)
    read = _reading(key, key_form, format)
    check_input(files or [])

    async def work(log: KeyedWrites) -> FeedResult:
        from tidelog.keyed.log import KeyedLog

        wal = log.wal if isinstance(log, KeyedLog) else log
        feed = Feed(log.append, read)
        return await feed_all(feed, files or [], wal, name, kind="keyed log", places="sequences")

    show_appended(name, on_writer(context, name, work), "sequences", as_json=as_json)


def _reading(key: str | None, form: str, format: str | None) -> Reads:
    """Return the function that turns lines into records.

    Raises:
        UsageError: the format is unknown, or the options contradict each other.
    """
    if format not in (None, "json", "raw"):
        raise UsageError(f"--format must be json or raw, not {format[:200]!r}")
    if format == "raw" and key is None:
        raise UsageError("--format raw needs a key for all lines: pass --key KEY")
    for_all = None if key is None else key_bytes(key, form, "--key")
    if for_all is not None and format != "json":
        return raw_records(for_all)
    return json_records(for_all, form)


Reads = Callable[[list[bytes]], list[tuple[bytes, bytes]]]
_KNOWN = ("key", "key_base64", "value", "value_base64", "sequence", "timestamp_us")


def raw_records(key: bytes) -> Reads:
    """Return a reader that takes each line as a value of ``key``."""
    return lambda lines: [(key, line) for line in lines]


def json_records(key: bytes | None, form: str) -> Reads:
    """Return a reader that takes each line as a JSON object and skips empty lines.

    The reader accepts the output of ``scan``, but ignores its sequences and times: an append
    assigns new ones. If ``key`` is given, it is the key of all lines, and a line must have none.
    """
    seen = 0

    def read(lines: list[bytes]) -> list[tuple[bytes, bytes]]:
        nonlocal seen
        found = []
        for line in lines:
            seen += 1
            if line.strip():
                try:
                    found.append(_record(line, key, form))
                except UsageError as error:
                    raise UsageError(f"line {seen:,}: {error}") from error
        return found

    return read


def _record(line: bytes, key: bytes | None, form: str) -> tuple[bytes, bytes]:
    try:
        told: object = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f'not JSON ({error}): write {{"key": "a", "value": "b"}}, or pass --key and plain lines'
        ) from error
    if not isinstance(told, dict):
        raise UsageError('not an object such as {"key": "a", "value": "b"}')
    if strange := [name for name in told if name not in _KNOWN]:
        raise UsageError(f"unknown field {quoted(strange[0])}: the fields are key and value")
    value = _bytes(told, "value", "text")
    if key is None:
        return _checked(_bytes(told, "key", form)), value
    if "key" in told or "key_base64" in told:
        raise UsageError("the line has a key, and so has --key: omit one of them")
    return key, value


def _checked(key: bytes) -> bytes:
    from tidelog.keyed.values import check_key

    return check_key(key)


def _bytes(told: dict[str, object], name: str, form: str) -> bytes:
    """Return the bytes of the field ``name`` (written in ``form``) or of ``name_base64``."""
    given = [one for one in (name, f"{name}_base64") if one in told]
    if len(given) != 1:
        missing = f"no {name}" if not given else f"{given[0]} and {given[1]}"
        raise UsageError(f"the line has {missing}: write one of {name} and {name}_base64")
    text = told[given[0]]
    if not isinstance(text, str):
        raise UsageError(
            f'{given[0]} is not text: put it in quotes, as "3", and a backslash before each quote '
            "in it; or pass --key, and plain values, one per line"
        )
    if given[0] == name:
        return read_key(text, form, name)
    return base64_bytes(text, given[0])


def seal(context: typer.Context, name: KeyedName, *, as_json: AsJson = False) -> None:
    """Seal the active segment: the next record begins a new segment."""
    found = on_writer(context, name, lambda log: log.seal())
    told = "The active segment is empty: nothing was sealed."
    if found is not None:
        last = (found.limit or 0) - 1
        told = f"Sealed the segment {found.id}: sequences {found.start:,} to {last:,}."
    sealed = None if found is None else asdict(found)
    show({"log": name, "sealed": sealed}, told, as_json=as_json)


SourceKeyed = Annotated[str, typer.Argument(metavar="SOURCE", help="An existing keyed log.")]
NewKeyed = Annotated[str, typer.Argument(metavar="NAME", help="The keyed log to create.")]


def fork(
    context: typer.Context, source: SourceKeyed, name: NewKeyed, *, as_json: AsJson = False
) -> None:
    """Create a keyed log that begins with the records of SOURCE.

    The two share the stored objects; nothing is copied. Later appends to one do not change the
    other.
    """
    check_keyed(source)
    check_keyed(name)

    async def work(location: Location) -> KeyedInfo:
        async with closing(await location.keyed.fork(source, name)) as log:
            return await log.describe()

    found = on_location(context, work)
    show(
        asdict(found),
        f"{name!r} is a fork of {source!r}; its next sequence is {found.next_sequence:,}.",
        as_json=as_json,
    )


def drop(
    context: typer.Context,
    name: KeyedName,
    *,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Drop a keyed log with its keys, records and checkpoints, for good.

    The name is never reused.
    """
    check_keyed(name)
    if not yes:
        ask_first(
            lambda: f"Drop the keyed log {name!r} with its records and checkpoints, for good?",
            deed="drop the keyed log",
        )
    on_location(context, lambda location: location.keyed.drop(name))
    show({"log": name, "dropped": True}, f"Dropped the keyed log {name!r}.", as_json=as_json)


CheckpointName = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="The name of a checkpoint.")
]

checkpoint_app = group("Checkpoints: keep a keyed log readable as it is at one moment.")


@checkpoint_app.command("create")
def create_checkpoint(
    context: typer.Context,
    name: KeyedName,
    checkpoint: CheckpointName,
    *,
    as_json: AsJson = False,
) -> None:
    """Create a checkpoint: all records readable now stay readable until it is dropped."""
    _check_name(checkpoint)
    found = on_writer(context, name, lambda log: log.create_checkpoint(checkpoint))
    last = f"{found.next_sequence - 1:,}"
    told = f"The checkpoint {checkpoint!r} keeps sequences {found.oldest:,} to {last}."
    show({"log": name, **asdict(found)}, told, as_json=as_json)


@checkpoint_app.command("list")
def list_checkpoints(context: typer.Context, name: KeyedName, as_json: AsJson = False) -> None:
    """List the checkpoints of a keyed log."""
    columns: tuple[Column[CheckpointInfo], ...] = (
        Column("checkpoint", lambda one: one.name),
        Column("from", lambda one: f"{one.oldest:,}", right=True),
        Column("to", lambda one: f"{one.next_sequence - 1:,}", right=True),
        Column("for", lambda one: f"the fork {one.fork}" if one.fork else ""),
        Column("created", lambda one: time_text(one.made_us), whole=True),
    )
    show_list(
        on_reader(context, name, lambda log: log.checkpoints()),
        columns,
        fields=asdict,
        as_json=as_json,
        none_yet=f"No checkpoints. Create one: tidelog keyed checkpoint create {name} CHECKPOINT",
    )


@checkpoint_app.command("drop")
def drop_checkpoint(
    context: typer.Context,
    name: KeyedName,
    checkpoint: CheckpointName,
    *,
    as_json: AsJson = False,
) -> None:
    """Drop a checkpoint.

    The next 'tidelog keyed collect' deletes the objects that only this checkpoint kept.
    """
    _check_name(checkpoint)
    on_writer(context, name, lambda log: log.drop_checkpoint(checkpoint))
    told = f"Dropped the checkpoint {checkpoint!r}."
    show({"log": name, "dropped": checkpoint}, told, as_json=as_json)


def _check_name(checkpoint: str) -> None:
    from tidelog.core.ids import check_name

    check_name(checkpoint, of="name of a checkpoint")
