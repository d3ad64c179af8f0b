"""The text of ``keyed_log.proto``: ``python -m kit.proto_source`` writes it again.

It comes from `tidelog.http.api.messages`, so that a message is described once.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from tidelog.http.api import messages
from tidelog.http.api.protobuf_wire import WireField, fields_of

PATH: Final = Path(messages.__file__).parent / "keyed_log.proto"
KINDS: Final = {"int": "uint64", "bool": "bool", "str": "string", "bytes": "bytes"}
HEAD: Final = """\
// The messages of the HTTP API of keyed logs, for application/protobuf.
//
// `python -m kit.proto_source` makes this file from tidelog.http.api.messages. Names and numbers up
// to 15 are those of the HTTP API of OpenData's log (RFC 0004, as its server implements it: a
// record's key is bytes, not a message). The fields that tidelog adds begin at 16.
// docs/reference/http.md describes the fields.
syntax = "proto3";

package opendata.log.v1;
"""


def message_types() -> list[type[Struct]]:
    """Return the messages, in the order of their definition."""
    found = [one for one in vars(messages).values() if inspect.isclass(one)]
    return [one for one in found if issubclass(one, Struct) and one.__module__ == messages.__name__]


def source() -> str:
    """Return the text of the description."""
    return "\n".join([HEAD, "\n".join(_lines_of_all())])


def _lines_of_all() -> Iterator[str]:
    for message in message_types():
        yield f"// {inspect.getdoc(message)}"
        yield f"message {message.__name__} {{"
        yield from (_line(field) for field in fields_of(message))
        yield "}\n"


def _line(field: WireField) -> str:
    item = field.item.__name__ if field.item is not None else field.kind
    label = "repeated " if field.kind == "list" else "optional " if field.is_optional else ""
    note = f"  // {field.note}" if field.note else ""
    return f"  {label}{KINDS.get(item, item)} {field.name} = {field.number};{note}"


if __name__ == "__main__":
    PATH.write_text(source())
