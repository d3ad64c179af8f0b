"""Fragments: the immutable files of records, as a log's tree names them. Pure.

Bytes written by wal3 stay the same after decoding and encoding.
Source: wal3, "Data Structures"; docs/internals/wal3.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.core.setsum import Setsum
from tidelog.errors import UsageError
from tidelog.store.keys import BESIDE
from tidelog.wal.format.fragment_sets import (
    KeySet,
    StreamSet,
    encode_key_set,
    encode_stream_set,
    key_set_in,
    stream_set_in,
)
from tidelog.wal.format.json import Fields, position
from tidelog.wal.format.paths import path_in, place_of

FRAGMENTS: Final = "log/"
BUCKET_FRAGMENTS: Final = 4_096
TIME_MAX_US: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """An immutable file of the records ``[start, limit)``.

    ``last_us`` is the greatest time of its records, ``streams`` and ``keys`` the sets of their
    streams and keys. All three are None in wal3's protocol. In a slot log ``keys`` may also be
    None, which means that the set is not recorded.

    Units:
        num_bytes: bytes of the stored file.
    """

    path: str
    seq_no: int
    start: int
    limit: int
    num_bytes: int
    setsum: Setsum
    last_us: int | None = None
    streams: StreamSet | None = None
    keys: KeySet = None


def fragment_path(seq_no: int) -> str:
    """Return the only path for the fragment with a number, in wal3's protocol."""
    bucket = seq_no // BUCKET_FRAGMENTS * BUCKET_FRAGMENTS
    return f"{FRAGMENTS}Bucket={bucket:016x}/FragmentSeqNo={seq_no:016x}.parquet"


def has_path_of_its_number(fragment: Fragment) -> bool:
    """Return True if the path of a fragment fits its number, in a log of either protocol."""
    _, _, shared = fragment.path.removeprefix(BESIDE).partition("/")
    place = place_of(shared if fragment.path.startswith(BESIDE) else fragment.path)
    if place is not None:
        return place.slot == fragment.seq_no
    return fragment.path == fragment_path(fragment.seq_no)


def decode_fragment(found: Fields) -> Fragment:
    """Decode a fragment from the fields of an object, which may be part of a larger one."""
    last_us = last_us_in(found)
    return Fragment(
        path=path_in(found, "path"),
        seq_no=seq_no_in(found, "seq_no"),
        start=found.position("start"),
        limit=found.position("limit"),
        num_bytes=found.whole("num_bytes"),
        setsum=found.setsum("setsum"),
        last_us=last_us,
        # A fragment with a time also has the sets. Most fragments have no streams and no keys, so
        # no fields for them.
        streams=None if last_us is None else stream_set_in(found, "streams"),
        keys=None if last_us is None else key_set_in(found, "keys"),
    )


def encode_fragment(fragment: Fragment) -> dict[str, object]:
    """Return plain values."""
    fields: dict[str, object] = {
        "path": fragment.path,
        "seq_no": fragment.seq_no,
        "start": position(fragment.start),
        "limit": position(fragment.limit),
        "num_bytes": fragment.num_bytes,
        "setsum": fragment.setsum.hex(),
    }
    if fragment.last_us is not None:
        fields["last_us"] = fragment.last_us
        if fragment.streams:
            fields["streams"] = encode_stream_set(fragment.streams)
        if fragment.keys != ():
            fields["keys"] = encode_key_set(fragment.keys)
    return fields


def last_us_in(found: Fields) -> int | None:
    return found.whole("last_us", most=TIME_MAX_US) if found.has("last_us") else None


def seq_no_in(found: Fields, name: str) -> int:
    if isinstance(found.found.get(name), str):
        raise UsageError(
            "this is a replicated log of wal3, whose fragments have names instead of numbers: "
            "tidelog reads only wal3's classic logs",
            path=found.where,
        )
    return found.whole(name)
