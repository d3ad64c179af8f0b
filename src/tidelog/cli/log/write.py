"""``tidelog log create``, ``append`` and ``seal``, and the streams of a log."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, LogName, group, on_location
from tidelog.cli.feed import (
    Feed,
    FeedResult,
    Files,
    as_they_are,
    check_input,
    feed_all,
    show_appended,
)
from tidelog.cli.log.options import check_log, key_of, on_log, stream_id
from tidelog.cli.output import Column, show, show_list
from tidelog.cli.records import escaped, text_or_base64
from tidelog.errors import NoSuchLog, UsageError

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.describe import LogInfo
    from tidelog.wal.format.streams import StreamInfo
    from tidelog.wal.log import Log


def create(
    context: typer.Context,
    name: LogName,
    *,
    protocol: Annotated[
        str,
        typer.Option(
            metavar="slot|manifest",
            help="slot: one request for an append; a new writer fences the former one. "
            "manifest: the protocol of Chroma's wal3; writers are not fenced, and their "
            "records interleave. For failover use slot.",
        ),
    ] = "slot",
    as_json: AsJson = False,
) -> None:
    """Create a log, and the location if it does not exist."""

    async def work(location: Location) -> LogInfo:
        return await (await location.logs.create(name, protocol=protocol)).describe()

    found = on_location(context, work, create=True)
    told = f"Created the log {name!r}. Append to it with: tidelog log append {name} < LINES"
    show(found.to_dict(), told, as_json=as_json)


def append(
    context: typer.Context,
    name: LogName,
    files: Files = None,
    *,
    whole: Annotated[
        bool, typer.Option("--whole", help="Append each file as one record, not its lines.")
    ] = False,
    stream: Annotated[
        str | None,
        typer.Option(
            "--stream", metavar="STREAM", help="Append to this stream, which must be open."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="KEY", help="The key of all records; 'scan --key' selects it."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Append lines, each a record, and show their positions once all are durable.

    A line ends at a newline. The newline, and a CR right before it, are not part of the record;
    --whole keeps every byte.

    The command sends lines as it reads them. Lines acknowledged before an error stay appended.
    """
    if whole and not files:
        raise UsageError("--whole needs files: name them")
    wanted = key_of(key)
    check_input(files or [])

    async def work(opened: Log) -> FeedResult:
        async with opened as log:
            feed = Feed(partial(log.append, stream=stream_id(stream), key=wanted), as_they_are)
            return await feed_all(feed, files or [], log, name, whole=whole)

    show_appended(name, on_log(context, name, work), "positions", as_json=as_json)


def seal(
    context: typer.Context,
    name: LogName,
    *,
    successor: Annotated[
        str, typer.Option(metavar="NAME", help="The log that writers continue in.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """End a log for good: no process can append to it."""
    if successor:
        check_log(successor)
    if successor == name:
        raise UsageError(f"the log {name!r} cannot be its own successor: name another log")

    async def work(location: Location) -> LogInfo:
        log = await location.log(name)
        if successor:
            await _check_successor(location, successor, before=name)
        await log.seal(successor=successor)
        return await log.describe()

    found = on_location(context, work)
    told = f"Sealed the log {name!r}: it ends before position {found.next}."
    show(found.to_dict(), told, as_json=as_json)


async def _check_successor(location: Location, successor: str, *, before: str) -> None:
    try:
        await location.log(successor)
    except NoSuchLog as error:
        raise UsageError(
            f"no log named {successor!r}, so {before!r} was not sealed: create the successor "
            f"first (tidelog log create {successor})"
        ) from error


StreamId = Annotated[str, typer.Argument(metavar="STREAM", help="The name of a stream.")]
Meta = Annotated[
    str, typer.Option("--meta", metavar="TEXT", help="A text that the log stores with the stream.")
]


def open_stream(
    context: typer.Context,
    name: LogName,
    stream: StreamId,
    *,
    meta: Meta = "",
    as_json: AsJson = False,
) -> None:
    """Open a stream, so that records can be appended to it."""
    said, of = os.fsencode(meta), os.fsencode(stream)
    position = _changed(context, name, lambda log: log.open_stream(of, said))
    _show_changed(name, stream, "is open", position, as_json=as_json)


def close_stream(
    context: typer.Context, name: LogName, stream: StreamId, *, as_json: AsJson = False
) -> None:
    """Close a stream: it takes no records until it is opened again."""
    position = _changed(context, name, lambda log: log.close_stream(os.fsencode(stream)))
    _show_changed(name, stream, "is closed", position, as_json=as_json)


def meta_stream(
    context: typer.Context,
    name: LogName,
    stream: StreamId,
    text: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="A text that the log stores with the stream."),
    ] = None,
    *,
    meta: Annotated[
        str | None, typer.Option("--meta", metavar="TEXT", help="The same text, as an option.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replace the stored text of an open stream by TEXT, or by --meta TEXT."""
    texts = [given for given in (text, meta) if given is not None]
    if not texts:
        raise UsageError("the text is missing: pass it after STREAM, or as --meta TEXT")
    if len(texts) > 1:
        raise UsageError("TEXT and --meta exclude each other: pass one")
    said, of = os.fsencode(texts[0]), os.fsencode(stream)
    position = _changed(context, name, lambda log: log.meta_stream(of, said))
    became = "has this text"
    _show_changed(name, stream, became, position, as_json=as_json)


def list_streams(context: typer.Context, name: LogName, as_json: AsJson = False) -> None:
    """List the streams that are open."""
    columns: tuple[Column[StreamInfo], ...] = (
        Column("stream", lambda one: escaped(one.id)),
        Column("opened at", lambda one: str(one.position), right=True),
        Column("meta", lambda one: escaped(one.meta)),
    )
    show_list(
        on_log(context, name, lambda log: log.streams()),
        columns,
        fields=_stream_fields,
        as_json=as_json,
        none_yet=f"No stream is open. Open one: tidelog log stream open {name} STREAM",
    )


stream_app = group(
    "Streams: named sequences of records in a log.",
    open=open_stream,
    close=close_stream,
    meta=meta_stream,
    list=list_streams,
)


def _changed(context: typer.Context, name: str, change: Callable[[Log], Awaitable[int]]) -> int:
    """Change a stream of a log, and return the position of the change."""

    async def work(opened: Log) -> int:
        async with opened as log:
            return await change(log)

    return on_log(context, name, work)


def _show_changed(name: str, stream: str, became: str, position: int, *, as_json: bool) -> None:
    named = text_or_base64("stream", os.fsencode(stream))
    told = f"The stream {stream!r} {became} since position {position}."
    show({"log": name, **named, "position": position}, told, as_json=as_json)


def _stream_fields(info: StreamInfo) -> dict[str, str | int]:
    return {
        **text_or_base64("stream", info.id),
        "position": info.position,
        **text_or_base64("meta", info.meta),
    }
