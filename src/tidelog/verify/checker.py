"""The comparison of a log's records with the sequences that were appended to it. Pure.

Whole arrays are compared first. Only if they differ, the first wrong record is searched for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidelog.errors import CorruptionError
from tidelog.verify.sequence import (
    Words,
    keys_of,
    make_bodies,
    read_keys,
    split_keys,
)

SHOWN_BYTES: Final = 64


class LogDiffers(CorruptionError):
    """The records read from a log differ from the records appended to it."""

    def __init__(self, mismatch: Mismatch) -> None:
        super().__init__(f"the log differs from the appended records: {mismatch.why}")
        self.mismatch = mismatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """The first wrong record, with everything needed to reproduce it.

    ``sequence`` is the number that the record has or should have. ``expected`` and ``found`` are
    the first bytes of bodies in hexadecimal; None means no record.
    """

    why: str
    seed: int
    position: int | None
    stream: int | None
    sequence: int | None
    expected: str | None
    found: str | None
    reader: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


@dataclass(slots=True)
class Checker:
    """A replay of the sequences along a log, from one position on.

    Shape: ``next`` has the number of the next record of each stream.
    """

    seed: int
    position: int
    next: Words
    name: str = ""

    def take(self, table: pa.Table) -> Words:
        """Compare the next records with the sequences; return their first words.

        Raises:
            LogDiffers: a record differs from the one appended there.
        """
        bodies: pa.BinaryArray = table.column("body").combine_chunks()  # type: ignore[assignment]
        positions = np.asarray(table.column("position")).astype(np.int64)
        keys, has_key = read_keys(bodies)
        streams, _ = split_keys(keys)
        wanted = np.arange(self.position, self.position + len(positions), dtype=np.int64)
        if not np.array_equal(positions, wanted):
            self._refuse_position(positions, wanted)
        known = has_key & (streams < np.uint64(len(self.next)))
        if known.all():
            expected = self._expected(streams)
            if np.array_equal(expected, keys) and make_bodies(self.seed, keys).equals(bodies):
                self.next += np.bincount(streams.astype(np.int64), minlength=len(self.next)).astype(
                    np.uint64
                )
                self.position += len(positions)
                return keys
        self._refuse(bodies, keys, known)
        return keys

    def check_reached(self, acknowledged: Mapping[int, int], acknowledged_to: int) -> None:
        """Check that all acknowledged records were read.

        ``acknowledged`` has the last number of each stream. All acknowledged records are before the
        position ``acknowledged_to``.

        Raises:
            LogDiffers: an acknowledged record was not read.
        """
        for stream, number in sorted(acknowledged.items()):
            if (reached := int(self.next[stream])) <= number:
                key = keys_of(*(np.array([n], dtype=np.uint64) for n in (stream, reached)))
                raise self._differs(
                    f"the records {reached} to {number} of the stream were acknowledged, but the "
                    "log ends without them",
                    position=None,
                    stream=stream,
                    sequence=reached,
                    expected=make_bodies(self.seed, key)[0].as_py(),
                )
        if self.position < acknowledged_to:
            raise self._differs(
                f"position {acknowledged_to - 1} was acknowledged, but the log ends before it",
                position=self.position,
            )

    def check_places(self, places: dict[int, int], start: int, keys: Words) -> None:
        """Check the records at acknowledged positions, and remove these positions from ``places``.

        ``keys`` are the first words of the records from ``start`` on.

        Raises:
            LogDiffers: another record is at an acknowledged position.
        """
        for position in [place for place in places if start <= place < start + len(keys)]:
            acknowledged, stored = places.pop(position), int(keys[position - start])
            if acknowledged != stored:
                streams, numbers = split_keys(np.array([acknowledged, stored], dtype=np.uint64))
                raise self._differs(
                    f"an append was acknowledged at this position, but it has record {numbers[1]} "
                    f"of stream {streams[1]}",
                    position=position,
                    stream=int(streams[0]),
                    sequence=int(numbers[0]),
                )

    def refuse_collected(self, oldest: object) -> LogDiffers:
        """Return the error of a log that was collected past its cursor."""
        return self._differs(
            f"the log begins at {oldest}, though a cursor holds the records since this position",
            position=self.position,
        )

    def refuse_end(self, following: int) -> LogDiffers:
        """Return the error of a log that ends before an earlier read did."""
        return self._differs(
            f"the log ends before position {following}, though an earlier read went further",
            position=following,
        )

    def cut(self) -> SequenceCut:
        """Return the current state of the sequences, from which another checker can continue."""
        return SequenceCut(self.seed, self.position, self.next.copy())

    def _expected(self, streams: Words) -> Words:
        """Return the expected first words of the next records, given their streams in order."""
        order = np.argsort(streams, kind="stable")
        ranked = streams[order]
        first = np.searchsorted(ranked, ranked, side="left")
        before = np.empty(len(streams), dtype=np.uint64)
        before[order] = (np.arange(len(streams)) - first).astype(np.uint64)
        return keys_of(streams, self.next[streams.astype(np.int64)] + before)

    def _refuse_position(self, positions: Any, wanted: Any) -> None:
        place = int(np.argmax(positions != wanted))
        raise self._differs(
            f"the record at position {wanted[place]} is missing: {positions[place]} comes next",
            position=int(wanted[place]),
        )

    def _refuse(self, bodies: pa.BinaryArray, keys: Words, known: Any) -> None:
        """Find the first wrong record by comparing one after the other."""
        streams, numbers = split_keys(keys)
        for place, body in enumerate(bodies):
            record = body.as_py()
            if not known[place]:
                raise self._differs(
                    "a record is not in the sequences: it was changed, or another process "
                    "appended it",
                    position=self.position,
                    found=record,
                )
            stream, number = int(streams[place]), int(numbers[place])
            wanted = int(self.next[stream])
            key = keys_of(*(np.array([n], dtype=np.uint64) for n in (stream, wanted)))
            expected = make_bodies(self.seed, key)[0].as_py()
            if record != expected:
                raise self._differs(
                    _why(number, wanted),
                    position=self.position,
                    stream=stream,
                    sequence=wanted,
                    expected=expected,
                    found=record,
                )
            self.next[stream] += np.uint64(1)
            self.position += 1

    def _differs(
        self,
        why: str,
        *,
        position: int | None,
        stream: int | None = None,
        sequence: int | None = None,
        expected: bytes | None = None,
        found: bytes | None = None,
    ) -> LogDiffers:
        return LogDiffers(
            Mismatch(
                why=why,
                seed=self.seed,
                position=position,
                stream=stream,
                sequence=sequence,
                expected=None if expected is None else expected[:SHOWN_BYTES].hex(),
                found=None if found is None else found[:SHOWN_BYTES].hex(),
                reader=self.name,
            )
        )


def _why(number: int, wanted: int) -> str:
    if number > wanted:
        return f"record {wanted} of the stream is missing or late: {number} comes first"
    if number < wanted:
        return f"record {number} of the stream is repeated or late: {wanted} must come next"
    return "the record was changed: it differs from the appended one"


@dataclass(frozen=True, slots=True)
class SequenceCut:
    """The state of the sequences at a position of a log, from which a replay can start."""

    seed: int
    position: int
    next: Words

    def checker(self, name: str) -> Checker:
        """Return a checker that continues from this state."""
        return Checker(self.seed, self.position, self.next.copy(), name)


def first_cut(seed: int, streams: int) -> SequenceCut:
    """Return the state at the beginning of a log."""
    return SequenceCut(seed, 1, np.ones(streams, dtype=np.uint64))


def encode_cut(cut: SequenceCut) -> bytes:
    """Encode a cut."""
    fields = {"seed": cut.seed, "position": cut.position, "next": cut.next.tolist()}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_cut(data: bytes) -> SequenceCut:
    """Decode a cut.

    Raises:
        CorruptionError: the bytes are not a cut.
    """
    try:
        fields = json.loads(data)
        numbers = np.array(fields["next"], dtype=np.uint64)
        return SequenceCut(int(fields["seed"]), int(fields["position"]), numbers)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise CorruptionError(
            f"the stored progress of an earlier run cannot be decoded ({error}): verify with "
            "another seed"
        ) from error
