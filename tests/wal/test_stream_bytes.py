"""Stored bytes of streams: control records, links and tables. Garbage is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.golden_slots import EMPTY, TAIL
from tidelog.core.setsum import Setsum
from tidelog.errors import (
    CorruptionError,
    NameTaken,
)
from tidelog.wal.format.json import parse, render
from tidelog.wal.format.link import ControlFragment, Tail
from tidelog.wal.format.manifest import (
    decode_manifest,
    encode_manifest,
    problems_of_manifest,
)
from tidelog.wal.format.slot_object import (
    _encode,
    decode_data,
    encode_data,
    place_slot_records,
    problems_of_data,
    setsum_of_slot_records,
)
from tidelog.wal.format.streams import (
    CLOSE,
    META,
    OPEN,
    STREAMS_MAX,
    Control,
    StreamInfo,
    Streams,
    decode_control,
    decode_controls,
    encode_control,
    encode_controls,
    encode_streams,
    refusal,
    streams_in,
)
from tidelog.wal.slot_protocol.chain import extend, step
from tidelog.wal.slot_protocol.checkpoint import check_continues

IDS = st.binary(min_size=1, max_size=6)
CONTROLS = st.one_of(
    st.builds(Control, op=st.sampled_from([OPEN, META]), stream=IDS, meta=st.binary(max_size=9)),
    st.builds(Control, op=st.just(CLOSE), stream=IDS),
)


@given(controls=st.lists(st.tuples(st.integers(0, 2**63), CONTROLS), max_size=8))
def test_controls_come_back(controls: list[tuple[int, Control]]) -> None:
    """Control records survive storage as bodies of records and in links."""
    said = tuple(controls)
    fields = parse(render({"controls": encode_controls(said)}), where="x")

    assert decode_controls(fields.children("controls")) == said
    for _, control in said:
        assert decode_control(encode_control(control), where="x") == control


@given(infos=st.lists(st.builds(StreamInfo, id=IDS, meta=IDS, position=st.integers(0, 2**63))))
def test_tables_come_back(infos: list[StreamInfo]) -> None:
    """A table of streams survives storage in order; a repeated stream raises."""
    fields = parse(render({"streams": encode_streams(infos)}), where="x")
    unique = {info.id: info for info in infos}

    if len(unique) < len(infos):
        with pytest.raises(CorruptionError, match="twice"):
            streams_in(fields, "streams")
        return
    assert list(streams_in(fields, "streams")) == infos
    assert streams_in(parse(b"{}", where="x"), "streams") == Streams()


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=6) | st.sampled_from(["open", "close", "YQ=="]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["op", "stream", "meta", "id", "position"]), inner, max_size=5
        )
    ),
    max_leaves=12,
)


@given(value=JSON)
def test_garbage_is_refused(value: object) -> None:
    """A stored value raises CorruptionError, or it decodes to values that encode again."""
    fields = parse(render({"streams": value}), where="x")
    try:
        streams = streams_in(fields, "streams")
        again = parse(render({"streams": encode_streams(streams)}), where="x")
        assert streams_in(again, "streams") == streams
    except CorruptionError:
        pass
    try:
        control = decode_control(render({"x": value} if not isinstance(value, dict) else value),
                                 where="x")  # fmt: skip
        assert decode_control(encode_control(control), where="x") == control
    except CorruptionError:
        pass


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"op":"open","stream":"YQ=="}',
        b'{"op":"shut","stream":"YQ==","meta":""}',
        b'{"op":"close","stream":""}',
        b'{"op":"close","stream":"?"}',
    ],
)
def test_what_is_no_control_record_is_refused(body: bytes) -> None:
    """A control record needs all fields, and cannot name the control stream."""
    with pytest.raises(CorruptionError):
        decode_control(body, where="x")


def test_only_so_many_are_open_at_once() -> None:
    """The manifest lists all open streams, so their number is limited; a close makes room."""
    table = {b"%d" % n: StreamInfo(id=b"%d" % n, position=n) for n in range(STREAMS_MAX)}

    error = refusal(table, Control(op=OPEN, stream=b"one more"))
    assert error is not None
    assert "at most 10000" in str(error)
    assert isinstance(refusal(table, Control(op=OPEN, stream=b"7")), NameTaken)
    assert refusal(table, Control(op=CLOSE, stream=b"7")) is None
    del table[b"7"]
    assert refusal(table, Control(op=OPEN, stream=b"one more")) is None


def records_at(tail: Tail, streams: list[bytes | None], bodies: list[bytes]) -> pa.Table:
    return place_slot_records(
        pa.array(bodies, pa.binary()),
        start=tail.position,
        times=np.full(len(bodies), 7, dtype=np.int64),
        streams=pa.array(streams, pa.binary()),
    )


def test_the_control_stream_is_told_from_none_by_setsums() -> None:
    """A setsum distinguishes a control record from an appended body without a stream."""
    tail = TAIL
    sums = {
        setsum_of_slot_records(records_at(tail, [stream], [body]))
        for stream, body in ((None, b"ab"), (b"", b"ab"), (b"a", b"b"), (b"ab", b""))
    }

    assert len(sums) == 4
    assert Setsum.zero() not in sums


def test_links_are_held_against_their_records() -> None:
    """A link with other streams, control records or another time than its records is detected."""
    tail = TAIL
    opening = encode_control(Control(op=OPEN, stream=b"a"))
    records = records_at(tail, [b"", b"a", None], [opening, b"x", b"y"])
    link, data = encode_data(records, tail, writer="w")
    after, fragment = step(tail, link, len(data))
    assert isinstance(fragment, ControlFragment)
    assert (fragment.streams, fragment.last_us) == ((b"", b"a"), 7)
    assert b"a" in after.streams

    assert problems_of_data(decode_data(data, path="p")[1], link, len(data), fragment) == []
    for wrong in (
        replace(link, streams=(b"",)),
        replace(link, streams=(b"", b"a", b"b")),
        replace(link, controls=()),
        replace(link, controls=((1, Control(op=OPEN, stream=b"b")),)),
        replace(link, controls=((2, Control(op=OPEN, stream=b"a")),)),
        replace(link, last_us=8),
    ):
        changed = _encode(records, wrong)
        named = replace(fragment, num_bytes=len(changed))
        assert problems_of_data(records, wrong, len(changed), named) != []
    for named in (replace(fragment, streams=(b"a",)), replace(fragment, last_us=6)):
        assert problems_of_data(records, link, len(data), named) != []
    bad = records_at(tail, [b""], [b"no control record"])
    with pytest.raises(CorruptionError):
        encode_data(bad, tail, writer="w")


def test_controls_that_do_not_fit_break_the_chain() -> None:
    """A walk refuses control records that do not match the open streams."""
    tail = TAIL
    for control in (Control(op=CLOSE, stream=b"a"), Control(op=META, stream=b"a")):
        records = records_at(tail, [b""], [encode_control(control)])
        link, data = encode_data(records, tail, writer="w")
        with pytest.raises(CorruptionError, match="contradicts the open streams"):
            step(tail, link, len(data))


def test_a_manifest_continues_what_was_open() -> None:
    """A roll-up keeps the streams at the start and changes those at the end by records."""
    tail = TAIL
    opening = encode_control(Control(op=OPEN, stream=b"a"))
    link, data = encode_data(records_at(tail, [b""], [opening]), tail, writer="w")
    after, fragment = step(tail, link, len(data))
    manifest = extend(EMPTY, [fragment], writer="w")
    chain = manifest.chain
    assert chain is not None
    assert chain.streams == after.streams
    assert type(manifest.fragments[0]) is not ControlFragment
    assert decode_manifest(encode_manifest(manifest)) == manifest
    assert problems_of_manifest(manifest) == []
    check_continues(EMPTY, manifest)
    early = Streams({b"b": StreamInfo(id=b"b", position=1)})
    late = Streams({b"b": StreamInfo(id=b"b", position=9)})
    for wrong in (
        replace(chain, streams=Streams()),
        replace(chain, streams=early),
        replace(chain, streams_at_start=early),
    ):
        with pytest.raises(CorruptionError):
            check_continues(manifest, replace(manifest, chain=wrong))
    for wrong in (replace(chain, streams=late), replace(chain, streams_at_start=late)):
        assert problems_of_manifest(replace(manifest, chain=wrong)) != []
