"""The manifest of a log: the root of its tree, as a value and as bytes. Pure.

A manifest lists the newest fragments, and before them pointers to snapshots. Its setsum is the
setsum of the collected records plus the setsums of all children.

Invariants: see `problems_of_manifest`. Bytes written by wal3 stay the same after decoding and
encoding.
Source: wal3, "Data Structures"; docs/internals/wal3.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tidelog.core.setsum import Setsum
from tidelog.errors import UsageError
from tidelog.wal.format.epoch_chain import Chain, decode_chain, encode_chain, problems_of_chain
from tidelog.wal.format.fragment import (
    Fragment,
    decode_fragment,
    encode_fragment,
    fragment_path,
    has_path_of_its_number,
    seq_no_in,
)
from tidelog.wal.format.json import CHECK, Fields, check_of, parse, position, render
from tidelog.wal.format.link import Tail
from tidelog.wal.format.snapshot import (
    Pointer,
    decode_pointer,
    encode_pointer,
    problems_of_children,
    sum_of,
)

MANIFEST: Final = "manifest/MANIFEST"
FIRST_POSITION: Final = 1
FIRST_SEQ_NO: Final = 1
CHAIN: Final = "tidelog"  # The only field of ours in a manifest; wal3 ignores it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The root of a log. ``acc_bytes`` is the bytes of all fragments, also of the collected ones.

    Only slot logs have a ``chain``.
    """

    setsum: Setsum = field(default_factory=Setsum.zero)
    collected: Setsum = field(default_factory=Setsum.zero)
    acc_bytes: int = 0
    writer: str
    snapshots: tuple[Pointer, ...] = ()
    fragments: tuple[Fragment, ...] = ()
    initial_offset: int | None = None
    initial_seq_no: int | None = None
    chain: Chain | None = None

    @property
    def children(self) -> list[Pointer | Fragment]:
        """Return its snapshots and fragments, oldest first."""
        return [*self.snapshots, *self.fragments]

    @property
    def oldest(self) -> int:
        """Return the position of the oldest retained record; in an empty log, the next position."""
        starts = [child.start for child in self.children]
        return min(starts, default=self.initial_offset or FIRST_POSITION)

    @property
    def next(self) -> int:
        """Return the position of the next record."""
        limits = [child.limit for child in self.children]
        return max(limits, default=self.initial_offset or FIRST_POSITION)

    @property
    def is_destroyed(self) -> bool:
        """Return True if the log was dropped, and this is its tombstone."""
        return self.chain is not None and self.chain.is_destroyed

    @property
    def next_seq_no(self) -> int:
        """Return the number of the next fragment."""
        numbers = [fragment.seq_no for fragment in self.fragments]
        return max(numbers) + 1 if numbers else self.initial_seq_no or FIRST_SEQ_NO


def overlaps(child: Pointer | Fragment, start: int, limit: int | None) -> bool:
    """Return True if a child has any of the positions ``[start, limit)``."""
    return child.limit > start and (limit is None or child.start < limit)


def tail_of(manifest: Manifest) -> Tail:
    """Return the tail of a log that has only what its manifest lists.

    Raises:
        UsageError: the log has wal3's protocol, not slot commits.
    """
    chain = chain_of(manifest)
    return Tail(
        epoch=chain.epochs[-1],
        slot=manifest.next_seq_no,
        position=manifest.next,
        setsum=manifest.setsum,
        log_bytes=manifest.acc_bytes,
        streams=chain.streams,
    )


def chain_of(manifest: Manifest) -> Chain:
    """Return the chain of epochs of a manifest.

    Raises:
        UsageError: the log has wal3's protocol, not slot commits.
    """
    if manifest.chain is None:
        raise UsageError(
            "this log uses the manifest protocol, not the slot protocol: open it as a manifest log"
        )
    return manifest.chain


def decode_manifest(data: bytes, *, where: str = MANIFEST) -> Manifest:
    """Decode a manifest.

    Raises:
        CorruptionError: the bytes are not a manifest.
        UsageError: they are the manifest of one of wal3's replicated logs.
    """
    found = parse(data, where=where)
    chain = _decode_chain(found) if found.has(CHAIN) else None
    return Manifest(
        setsum=found.setsum("setsum"),
        collected=found.setsum("collected") if "collected" in found.found else Setsum.zero(),
        acc_bytes=found.whole("acc_bytes"),
        writer=found.text("writer"),
        snapshots=tuple(decode_pointer(child) for child in found.children("snapshots")),
        fragments=tuple(decode_fragment(child) for child in found.children("fragments")),
        initial_offset=found.position("initial_offset") if found.has("initial_offset") else None,
        initial_seq_no=seq_no_in(found, "initial_seq_no") if found.has("initial_seq_no") else None,
        chain=chain,
    )


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest."""
    found: dict[str, object] = {
        "setsum": manifest.setsum.hex(),
        "collected": manifest.collected.hex(),
        "acc_bytes": manifest.acc_bytes,
        "writer": manifest.writer,
        "snapshots": [encode_pointer(child) for child in manifest.snapshots],
        "fragments": [encode_fragment(child) for child in manifest.fragments],
    }
    if manifest.initial_offset is not None:
        found["initial_offset"] = position(manifest.initial_offset)
    if manifest.initial_seq_no is not None:
        found["initial_seq_no"] = manifest.initial_seq_no
    if manifest.chain is not None:
        chain = encode_chain(manifest.chain)
        found[CHAIN] = {**chain, CHECK: check_of({**found, CHAIN: chain})}
    return render(found)


def _decode_chain(found: Fields) -> Chain:
    fields = found.child(CHAIN)
    chain = decode_chain(fields)
    # A changed epoch would direct readers to an empty place, which looks like the end of the log.
    # So check the manifest as a whole.
    bare = {name: value for name, value in fields.found.items() if name != CHECK}
    if fields.text(CHECK) != check_of({**found.found, CHAIN: bare}):
        raise fields.wrong(CHECK, "does not match the manifest")
    return chain


def problems_of_manifest(manifest: Manifest) -> list[str]:
    """Return the faults that a manifest shows by itself."""
    children = manifest.children
    problems = list(problems_of_children(children))
    if sum_of(children) + manifest.collected != manifest.setsum:
        problems.append("its setsum is not the sum of its collected records and its children")
    if manifest.initial_offset is not None and manifest.initial_offset != manifest.oldest:
        problems.append("its initial_offset is not the start of its oldest fragment")
    if _begins_elsewhere(manifest):
        problems.append("its initial_seq_no is not the number of its oldest fragment")
    size = sum(child.num_bytes for child in children)
    # The sizes of collected fragments are not recorded.
    known = size if manifest.collected == Setsum.zero() else max(size, manifest.acc_bytes)
    if manifest.acc_bytes != known:
        problems.append("its acc_bytes are not the total size of its fragments")
    chain = manifest.chain
    problems += [
        f"the path of fragment {fragment.seq_no} does not match its number"
        for fragment in manifest.fragments
        if (chain is None or chain.knows(fragment.seq_no))
        and has_path_of_its_number(fragment)
        and fragment.path != path_of(fragment.seq_no, chain)
    ]
    if chain is not None:
        problems += problems_of_chain(chain, manifest.next_seq_no)
        problems += _problems_of_streams(chain, manifest)
    return problems


def _begins_elsewhere(manifest: Manifest) -> bool:
    if manifest.initial_seq_no is None or not manifest.fragments:
        return False
    # Fragments in snapshots have lower numbers.
    first = manifest.fragments[0].seq_no
    is_lower = bool(manifest.snapshots) and manifest.initial_seq_no < first
    return manifest.initial_seq_no != first and not is_lower


def path_of(seq_no: int, chain: Chain | None) -> str:
    """Return the path of the fragment with a number, in a log of either protocol."""
    return fragment_path(seq_no) if chain is None else chain.of(seq_no).path(seq_no)


def _problems_of_streams(chain: Chain, manifest: Manifest) -> Iterator[str]:
    if any(stream.position >= manifest.oldest for stream in chain.streams_at_start):
        yield "a stream that is open at its start was opened after it"
    if any(stream.position >= manifest.next for stream in chain.streams):
        yield "a stream that is open at its end was opened after it"
