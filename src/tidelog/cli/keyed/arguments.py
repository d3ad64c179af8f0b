"""Arguments and options of ``tidelog keyed``, their checks, and the opening of keyed logs."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from tidelog.cli.command import on_location
from tidelog.cli.records import text_or_base64
from tidelog.core.arguments import quoted
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.keyed.log import KeyedLog
    from tidelog.keyed.port import KeyedReads
    from tidelog.keyed.values import Keys
    from tidelog.location import Location

T = TypeVar("T")
L = TypeVar("L", bound="KeyedReads")

FORMS: Final = ("text", "hex", "base64")

KeyedName = Annotated[str, typer.Argument(metavar="NAME", help="A keyed log.")]


def on_reader(
    context: typer.Context,
    name: str,
    work: Callable[[KeyedReads], Awaitable[T]],
    *,
    checkpoint: str | None = None,
) -> T:
    """Open a log to read it, now or as of a checkpoint, and return the result of ``work``."""

    async def whole(location: Location) -> T:
        found = await location.keyed.reader(name, checkpoint=checkpoint)
        async with closing(found) as log:
            return await work(log)

    check_keyed(name)
    return on_location(context, whole)


def on_writer(context: typer.Context, name: str, work: Callable[[KeyedLog], Awaitable[T]]) -> T:
    """Open a log to change it, and return the result of ``work``."""

    async def whole(location: Location) -> T:
        async with closing(await location.keyed.open(name)) as log:
            return await work(log)

    check_keyed(name)
    return on_location(context, whole)


@asynccontextmanager
async def closing(log: L) -> AsyncIterator[L]:
    """Yield the log, and close it at the end."""
    try:
        yield log
    finally:
        await log.close()


def check_keyed(name: str) -> None:
    """Raise unless the name is valid for a keyed log.

    Raises:
        UsageError: it is not.
    """
    from tidelog.core.ids import check_name

    check_name(name, of="name of a keyed log")


KeyForm = Annotated[
    str,
    typer.Option(
        "--key-form",
        metavar="text|hex|base64",
        help="The form of keys in the input and the output.",
    ),
]
Key = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="Only this key; '' is the empty key.")
]
OneKey = Annotated[str, typer.Option("--key", metavar="KEY", help="The key; '' is the empty key.")]
Prefix = Annotated[
    str | None, typer.Option("--prefix", metavar="KEY", help="Only keys with this prefix.")
]
FromKey = Annotated[
    str | None, typer.Option("--from-key", metavar="KEY", help="The first key to read.")
]
ToKey = Annotated[str | None, typer.Option("--to-key", metavar="KEY", help="Stop before this key.")]
From = Annotated[
    int,
    typer.Option(
        "--from",
        metavar="SEQUENCE",
        help="The first sequence; 0 is the oldest in the log.",
    ),
]
To = Annotated[
    int | None,
    typer.Option(
        "--to", metavar="SEQUENCE", help="Stop before this sequence. The default is the end."
    ),
]
RowsMax = Annotated[int | None, typer.Option("--limit", metavar="N", help="At most N rows.")]


def keys_of(
    form: str,
    *,
    key: str | None,
    prefix: str | None = None,
    from_key: str | None = None,
    to_key: str | None = None,
) -> Keys:
    """Return the keys that the options choose.

    Raises:
        UsageError: a value is not a key, or two options exclude each other.
    """
    from tidelog.keyed.values import chosen_keys

    def chosen(given: str | None, option: str) -> bytes | None:
        return None if given is None else key_bytes(given, form, option)

    return chosen_keys(
        key=chosen(key, "--key"),
        prefix=chosen(prefix, "--prefix"),
        from_key=chosen(from_key, "--from-key"),
        to_key=chosen(to_key, "--to-key"),
        names=("--key", "--prefix", "--from-key and --to-key"),
    )


def check_form(form: str) -> None:
    """Raise unless ``--key-form`` is known.

    Raises:
        UsageError: it is not.
    """
    if form not in FORMS:
        raise UsageError(f"--key-form must be one of {', '.join(FORMS)}, not {quoted(form)}")


def key_bytes(given: str, form: str, what: str) -> bytes:
    """Return the bytes of a key from the command line; text need not be UTF-8.

    Raises:
        UsageError: the value is not in the form, or is not a valid key.
    """
    from tidelog.keyed.values import check_key

    check_form(form)
    return check_key(os.fsencode(given) if form == "text" else read_key(given, form, what))


def read_key(given: str, form: str, what: str) -> bytes:
    """Decode a text in a form (text, hex or base64).

    Raises:
        UsageError: the text is not in the form.
    """
    from tidelog.http.api.keys import base64_bytes, hex_bytes

    if form == "text":
        return given.encode()
    return (hex_bytes if form == "hex" else base64_bytes)(given, what)


def shown_key(key: bytes, form: str) -> dict[str, str]:
    """Return the JSON field of a key, in a form (text, hex or base64)."""
    if form == "text":
        return text_or_base64("key", key)
    return {"key": key.hex() if form == "hex" else base64.b64encode(key).decode()}


def check_sequence_range(start: int, limit: int | None) -> None:
    """Raise unless ``--from`` and ``--to`` are sequences with a sequence between them.

    Raises:
        UsageError: a value is not a sequence, or the range is empty.
    """
    from tidelog.keyed.values import SEQUENCE_MAX

    for option, value in (("--from", start), ("--to", limit)):
        if value is not None and not 0 <= value <= SEQUENCE_MAX:
            raise UsageError(f"{option} {quoted(value)} is not a sequence: sequences begin at 1")
    if limit is not None and limit <= start:
        raise UsageError(f"--to {limit} selects no sequence: the range begins at {start}")
