"""Which streams a fragment holds, so that whoever reads one stream need not fetch it. Pure.

A few are listed; of many there is a bloom filter, which may keep a fragment that holds none of
a stream's records, and never leaves out one that does.
Source: wal3-draft, "Streams"; design page 3, "Streams".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias, TypeGuard

from tidelog.wal.bloom import BYTES_MAX, HASHES_MAX, Bloom, bloom_of
from tidelog.wal.form import Fields, render_bytes

LISTED_MAX: Final = 16
LISTED_BYTES_MAX: Final = 1_024  # Of all ids together: a manifest has hundreds of such lists.

Held: TypeAlias = tuple[bytes, ...] | Bloom


def held_of(streams: Iterable[bytes]) -> Held:
    """Give what is recorded of streams; the same for the same ones, in whatever order."""
    found = tuple(sorted(set(streams)))
    is_short = len(found) <= LISTED_MAX and sum(map(len, found)) <= LISTED_BYTES_MAX
    return found if is_short else bloom_of(found)


def is_listed(held: Held) -> TypeGuard[tuple[bytes, ...]]:
    """Say whether streams are recorded one by one."""
    return not isinstance(held, Bloom)


def may_hold(held: Held | None, stream: bytes) -> bool:
    """Say whether a fragment may hold records of a stream; of None nothing is known."""
    if held is None:
        return True
    return held.may_hold(stream) if isinstance(held, Bloom) else stream in held


def encode_held(held: Held) -> Any:
    """Give plain values."""
    if isinstance(held, Bloom):
        return {"bits": render_bytes(held.bits), "hashes": held.hashes}
    return [render_bytes(stream) for stream in held]


def held_in(found: Fields, name: str) -> Held:
    """Read what `encode_held` gave; a missing field means none.

    Raises:
        CorruptionError: it is something else.
    """
    if not found.has(name):
        return ()
    if isinstance(found.found[name], list):
        listed = tuple(found.blobs(name))
        if len(listed) > LISTED_MAX or list(listed) != sorted(set(listed)):
            raise found.wrong(name, "is no list of a few streams in order")
        return listed
    child = found.child(name)
    bits, hashes = child.blob("bits"), child.whole("hashes", most=HASHES_MAX)
    if not 1 <= len(bits) <= BYTES_MAX or not hashes:
        raise found.wrong(name, "is no bloom filter")
    return Bloom(bits, hashes)
