"""Options that several verbs of ``tidelog keyed`` share, and checks of their values."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog.core.arguments import quoted
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.keyed.query import Keys

FORMS: Final = ("text", "hex", "base64")

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
        help="The first sequence. The default is the oldest.",
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
    from tidelog.keyed.query import chosen_keys

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
    import base64

    from tidelog.cli.log.feed import text_or_base64

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


def check_rows(rows: int | None) -> None:
    """Raise unless ``--limit`` is a number of rows.

    Raises:
        UsageError: it is negative.
    """
    if rows is not None and rows < 0:
        raise UsageError(f"--limit must be 0 or more, not {rows}")
