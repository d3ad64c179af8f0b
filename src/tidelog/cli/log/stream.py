"""``tidelog log stream``: the streams of a log."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, LogName, on_location
from tidelog.cli.log.feed import escaped, text_or_base64
from tidelog.cli.output import Column, choose_format, print_json, print_listing, say
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.location import Location
    from tidelog.wal.format.streams import StreamInfo
    from tidelog.wal.log import Log

StreamId = Annotated[str, typer.Argument(metavar="STREAM", help="The name of a stream.")]
Meta = Annotated[
    str, typer.Option("--meta", metavar="TEXT", help="A text that the log stores with the stream.")
]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Streams of a log.")


@app.command("open")
def open_stream(
    context: typer.Context,
    name: LogName,
    stream: StreamId,
    *,
    meta: Meta = "",
    as_json: AsJson = False,
) -> None:
    """Open a stream, so that records can be appended to it."""
    said = os.fsencode(meta)
    _change(
        context,
        name,
        stream,
        "is open",
        lambda log: log.open_stream(os.fsencode(stream), said),
        as_json=as_json,
    )


@app.command("close")
def close_stream(
    context: typer.Context, name: LogName, stream: StreamId, *, as_json: AsJson = False
) -> None:
    """Close a stream: it takes no records until it is opened again."""
    _change(
        context,
        name,
        stream,
        "is closed",
        lambda log: log.close_stream(os.fsencode(stream)),
        as_json=as_json,
    )


@app.command("meta")
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
    if len(texts) != 1:
        raise UsageError("give the text once: after STREAM, or as --meta TEXT")
    said = os.fsencode(texts[0])
    _change(
        context,
        name,
        stream,
        "has this text",
        lambda log: log.meta_stream(os.fsencode(stream), said),
        as_json=as_json,
    )


@app.command("list")
def list_streams(context: typer.Context, name: LogName, as_json: AsJson = False) -> None:
    """List the streams that are open."""

    async def work(location: Location) -> list[StreamInfo]:
        return await (await location.log(name)).streams()

    columns: tuple[Column[StreamInfo], ...] = (
        Column("stream", lambda one: escaped(one.id)),
        Column("opened at", lambda one: str(one.position), right=True),
        Column("meta", lambda one: escaped(one.meta)),
    )
    print_listing(
        on_location(context, work),
        columns,
        fields=_fields,
        as_json=as_json,
        none_yet=f"No stream is open. Open one: tidelog log stream open {name} STREAM",
    )


def _change(
    context: typer.Context,
    name: str,
    stream: str,
    became: str,
    change: Callable[[Log], Awaitable[int]],
    *,
    as_json: bool,
) -> None:
    async def work(location: Location) -> int:
        async with await location.log(name) as log:
            return await change(log)

    position = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json({"log": name, **text_or_base64("stream", os.fsencode(stream)),
                    "position": position})  # fmt: skip
    else:
        say(f"The stream {stream!r} {became} since position {position}.")


def _fields(info: StreamInfo) -> dict[str, str | int]:
    return {
        **text_or_base64("stream", info.id),
        "position": info.position,
        **text_or_base64("meta", info.meta),
    }
