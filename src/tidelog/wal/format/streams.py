"""Streams: which are open at a position, and the control records that change this. Pure.

Control records are in the log itself, in a stream with an empty id, which users cannot choose. So a
reader that reads them in order knows the streams open at each position. Links repeat the control
records. The manifest stores the streams open at its two ends.

Invariants: a stream is opened only while it is closed, and closed or described only while it is
open.
Source: wal3-draft, "Streams"; design page 3, "Streams".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from tidelog.errors import CorruptionError, NameTaken, NoSuchStream, UsageError
from tidelog.wal.format.json import Fields, parse, render, render_bytes

CONTROL: Final = b""
STREAM_BYTES_MAX: Final = 1_024
META_BYTES_MAX: Final = 1_024
STREAMS_MAX: Final = 10_000
OPEN: Final = "open"
CLOSE: Final = "close"
META: Final = "meta"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """An open stream. ``position`` is the record that opened it; ``meta`` belongs to its user."""

    id: bytes
    meta: bytes = b""
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A control record: open a stream, close it, or change its meta."""

    op: str
    stream: bytes
    meta: bytes = b""


Controls: TypeAlias = tuple[tuple[int, Control], ...]  # Control records with their positions.


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams open at one position, in the order in which they were opened."""

    by_id: Mapping[bytes, StreamInfo] = field(default_factory=dict, hash=False)

    def __len__(self) -> int:
        return len(self.by_id)

    def __contains__(self, stream: bytes) -> bool:
        return stream in self.by_id

    def __iter__(self) -> Iterator[StreamInfo]:
        return iter(self.by_id.values())


def check_stream(stream: object) -> None:
    """Refuse a value that cannot be the id of a stream.

    Raises:
        UsageError: the value is not a valid id.
    """
    if isinstance(stream, str):
        raise UsageError("the id of a stream must be bytes, not str: encode it first")
    if not isinstance(stream, bytes) or not 1 <= len(stream) <= STREAM_BYTES_MAX:
        raise UsageError(f"the id of a stream must have 1 to {STREAM_BYTES_MAX} bytes")


def check_control(control: Control) -> None:
    """Refuse a control record that would be invalid whatever streams are open.

    Raises:
        UsageError: the stream's id or its meta is invalid.
    """
    check_stream(control.stream)
    meta: object = control.meta
    if isinstance(meta, str):
        raise UsageError("the meta of a stream must be bytes, not str: encode it first")
    if not isinstance(meta, bytes) or len(meta) > META_BYTES_MAX:
        raise UsageError(f"the meta of a stream must have at most {META_BYTES_MAX} bytes")


def refusal(open_now: Mapping[bytes, StreamInfo], control: Control) -> UsageError | None:
    """Return the error of a control record that does not fit the open streams; None if it fits."""
    is_open = control.stream in open_now
    if control.op == OPEN and is_open:
        return NameTaken(
            "the stream is already open: close it first, or change its meta", stream=control.stream
        )
    if control.op == OPEN and len(open_now) >= STREAMS_MAX:
        return UsageError(
            f"a log has at most {STREAMS_MAX} open streams: close some, or use more logs"
        )
    if control.op == CLOSE and not is_open:
        return NoSuchStream("the stream is not open, so it cannot be closed", stream=control.stream)
    return None if control.op == OPEN or is_open else no_such_stream(control.stream)


def no_such_stream(stream: bytes) -> NoSuchStream:
    """Return the error of a stream that is not open."""
    return NoSuchStream("the stream is not open: open it first", stream=stream)


def apply_controls(streams: Streams, controls: Controls) -> Streams:
    """Return the streams that are open after control records.

    Raises:
        UsageError: a record does not fit the open streams.
    """
    if not controls:
        return streams
    open_now = dict(streams.by_id)
    for position, control in controls:
        if (error := refusal(open_now, control)) is not None:
            raise error
        enact(open_now, control, position)
    return Streams(open_now)


def enact(open_now: dict[bytes, StreamInfo], control: Control, position: int) -> None:
    """Change the open streams by a control record that fits them."""
    stream = control.stream
    if control.op == OPEN:
        open_now[stream] = StreamInfo(id=stream, meta=control.meta, position=position)
    elif control.op == CLOSE:
        del open_now[stream]
    else:
        open_now[stream] = replace(open_now[stream], meta=control.meta)


def encode_control(control: Control) -> bytes:
    """Encode the body of a control record."""
    return render(_control_fields(control))


def decode_control(body: bytes, *, where: str) -> Control:
    """Decode the body of a control record.

    Raises:
        CorruptionError: it is not a control record.
    """
    return _control_of(parse(body, where=where))


def encode_controls(controls: Controls) -> list[dict[str, object]]:
    """Return plain values."""
    return [{"position": position, **_control_fields(control)} for position, control in controls]


def decode_controls(found: Sequence[Fields]) -> Controls:
    """Decode the values of `encode_controls`.

    Raises:
        CorruptionError: they are not control records.
    """
    return tuple((child.whole("position"), _control_of(child)) for child in found)


def encode_streams(streams: Iterable[StreamInfo]) -> list[dict[str, object]]:
    """Return plain values."""
    return [
        {
            "id": render_bytes(stream.id),
            **({"meta": render_bytes(stream.meta)} if stream.meta else {}),
            "position": stream.position,
        }
        for stream in streams
    ]


def streams_in(found: Fields, name: str) -> Streams:
    """Decode the values of `encode_streams`; a missing field means no streams.

    Raises:
        CorruptionError: they are not streams.
    """
    children = found.children(name) if found.has(name) else []
    infos = [
        StreamInfo(
            id=_checked(child, child.blob("id")),
            meta=child.blob("meta") if child.has("meta") else b"",
            position=child.whole("position"),
        )
        for child in children
    ]
    streams = Streams({info.id: info for info in infos})
    if len(streams) < len(infos):
        raise found.wrong(name, "names a stream twice")
    return streams


def _control_fields(control: Control) -> dict[str, str]:
    fields = {"op": control.op, "stream": render_bytes(control.stream)}
    return fields if control.op == CLOSE else {**fields, "meta": render_bytes(control.meta)}


def _control_of(found: Fields) -> Control:
    op = found.text("op")
    if op not in (OPEN, CLOSE, META):
        raise found.wrong("op", "is not open, close or meta")
    stream = _checked(found, found.blob("stream"))
    return Control(op=op, stream=stream, meta=b"" if op == CLOSE else found.blob("meta"))


def _checked(found: Fields, stream: bytes) -> bytes:
    try:
        check_stream(stream)
    except UsageError as error:
        raise CorruptionError(f"{error}: restore the object", path=found.where) from error
    return stream
