"""Decoders of keyed logs: states, marks, pages, directories, and HTTP messages.

Parts and directories are Parquet. Tests in ``tests/keyed`` change their bytes under checksums that
detect it. Here are tidelog's own encodings in them, without the checksums.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.http.api.keys import Base64
from tidelog.http.api.messages import AppendRequest, RecordIn, encode_json
from tidelog.http.api.protobuf_wire import decode_message, encode_message
from tidelog.keyed.format.directory import HEAD, read_head
from tidelog.keyed.format.pages import decode_page, integers_of, values_of
from tidelog.keyed.format.part import PAGED, EncodedPart
from tidelog.keyed.format.part_file import encode_part
from tidelog.keyed.format.records import MAGIC, encode_marker, marks_in
from tidelog.keyed.read.run_objects import told_as_damage
from tidelog.keyed.states.forking import decide_fork, decide_void_checkpoint
from tidelog.keyed.states.language import KeyedLanguage
from tidelog.keyed.states.run import Run
from tidelog.keyed.states.state import ForkOrigin, KeyedDiff, apply_diff
from tidelog.keyed.states.transition import (
    Decided,
    decide_checkpoint,
    decide_compact,
    decide_create,
    decide_seal,
)
from tidelog.keyed.values import KEYED_RECORDS, Retention, Sealing
from tidelog.server.request import decode_json

KeyedDecoders = dict[str, tuple[bytes, Callable[[bytes], object], bool]]

LANGUAGE: Final = KeyedLanguage("k")
ROWS: Final = 300


def _part() -> EncodedPart:
    columns = [
        pa.array([b"k%03d" % (n // 3) for n in range(ROWS)], pa.binary()),
        pa.array(range(1, ROWS + 1), pa.int64()),
        pa.array(range(ROWS), pa.int64()),
        pa.array([b"value %d" % n for n in range(ROWS)], pa.binary()),
    ]
    return encode_part(pa.table(columns, schema=KEYED_RECORDS), path="keyed/k/run/0/x-0.parquet")


def _diffs(part: EncodedPart) -> list[KeyedDiff]:
    """Return diffs that contain everything that a state may have."""
    run = Run(id="x", epoch=0, lower=1, upper=ROWS + 1, at_us=9, parts=(part.part,))
    state, found = LANGUAGE.initial(), []

    def then(decided: Any) -> None:
        nonlocal state
        found.append(decided.diff)
        state = apply_diff(state, decided.diff)

    then(
        decide_create(
            state, sealing=Sealing(bytes=9, age_us=9), retention=Retention(age_us=9, segments=2)
        )
    )
    then(decide_compact(state, [run], sinks=marks_in(_marked(encode_marker("query:q", 3)))))
    then(decide_seal(state, ROWS + 1, 5))
    then(decide_checkpoint(state, "c", next_sequence=ROWS + 1, at_us=7, fork="f"))
    origin = ForkOrigin(log="k", checkpoint="c")
    fork: Decided = decide_fork(
        LANGUAGE.initial(), state.checkpoints["c"], origin,
        sealing=state.sealing, retention=state.retention, sinks=state.sinks,
    )  # fmt: skip
    return [*found, cast("KeyedDiff", fork.diff), _voided()]


def _voided() -> KeyedDiff:
    diff = decide_void_checkpoint(LANGUAGE.initial(), "fork.f.0").diff
    assert diff is not None
    return diff


def _marked(body: bytes) -> pa.Table:
    columns = {
        "key": pa.array([None], pa.binary()),
        "timestamp_us": pa.array([1], pa.int64()),
        "body": pa.array([body], pa.binary()),
    }
    return pa.table(columns)


def _state(data: bytes) -> object:
    state = LANGUAGE.decode_state(data)
    return LANGUAGE.encode_state(state)


def _diff(data: bytes) -> object:
    diff = LANGUAGE.decode_diff(data)
    return LANGUAGE.encode_diff(diff), LANGUAGE.vanished(diff)


def _pages(part: EncodedPart, head: Any) -> KeyedDecoders:
    found: KeyedDecoders = {}
    for column, name in enumerate(PAGED):
        place = head.layout.pages(column, 0, 1)[0]
        stored = part.data[place.span.start : place.span.limit]
        is_value = name == "value"

        def of(plain: bytes, is_value: bool = is_value, rows: int = place.rows) -> object:
            # Like pages under checksums: a page is valid, or it is reported as damage.
            return values_of(plain, 0, rows) if is_value else integers_of(plain, rows)

        def whole(data: bytes, of: Any = of, rows: int = place.rows) -> object:
            return of(decode_page(data, rows))

        found[f"page of {name}"] = stored, _told(whole), False
        plain = decode_page(stored, place.rows)
        found[f"plain page of {name}"] = plain, _told(of), False
    return found


def _told(of: Callable[[bytes], object]) -> Callable[[bytes], object]:
    def decode(data: bytes) -> object:
        with told_as_damage("x", "a part of a keyed log"):
            return of(data)

    return decode


def _head(data: bytes) -> object:
    told: Any = SimpleNamespace(metadata={HEAD.encode(): base64.b64encode(data)})
    with told_as_damage("x", "a directory of a keyed log"):
        return read_head(told)


def keyed_decoders() -> KeyedDecoders:
    """Return by name: the bytes of each decoder, the call, and whether the bytes are msgpack."""
    part = _part()
    state = LANGUAGE.initial()
    diffs = _diffs(part)
    for diff in diffs[:4]:
        state = apply_diff(state, diff)
    footer = pq.read_metadata(pa.BufferReader(part.directory))
    packed = base64.b64decode((footer.metadata or {})[HEAD.encode()])
    records = [RecordIn(key=Base64(b"a"), value=Base64(b"bc")), RecordIn(key="a", value="b")]
    asked = AppendRequest(records=records, await_durable=True, timestamp_us=5)
    sent = AppendRequest(records=records[:1], await_durable=True, timestamp_us=5)
    found: KeyedDecoders = {
        f"keyed diff {n}": (LANGUAGE.encode_diff(one), _diff, True) for n, one in enumerate(diffs)
    }
    return found | _pages(part, read_head(footer)) | {
        "keyed state": (LANGUAGE.encode_state(state), _state, True),
        "head of a directory": (packed, _head, True),
        "mark": (encode_marker("query:q", 7), lambda d: marks_in(_marked(d)), False),
        "mark's pair": (
            msgspec.msgpack.encode(["query:q", 7]),
            lambda d: marks_in(_marked(MAGIC + d)),
            True,
        ),
        "append in JSON": (
            encode_json(asked), lambda d: decode_json(d, AppendRequest, items_max=9), False
        ),
        "append in protobuf": (
            encode_message(sent), lambda d: decode_message(d, AppendRequest, items_max=9), False
        ),
    }  # fmt: skip
