"""The cut of a log's tree by a collection: dropped, kept and rewritten objects. Pure.

Invariants: fragments are dropped from the first one on, without a gap. A snapshot with both dropped
and kept children is written again without the dropped ones, at any depth.
Source: wal3, "Garbage Collection"; docs/internals/wal3.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidelog.errors import CorruptionError
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest_update import pointer_to, snapshot_over
from tidelog.wal.format.snapshot import Pointer, Snapshot

# The writer's name in rewritten snapshots. It is Chroma's, so that both collectors write the same
# bytes.


COLLECTOR: Final = "garbage collection"


@dataclass(slots=True)
class TreeCut:
    """One pass down the tree, with the dropped and rewritten objects, leaves first."""

    cutoff: int
    known: Mapping[str, Snapshot]
    names_depth: bool
    erased: list[Fragment] = field(default_factory=list)
    dropped: list[Pointer] = field(default_factory=list)
    made: list[Snapshot] = field(default_factory=list)

    def split(self, children: Sequence[Pointer | Fragment]) -> list[Pointer | Fragment]:
        """Drop the children below the cutoff; return those that stay."""
        kept: list[Pointer | Fragment] = []
        for child in children:
            if child.limit <= self.cutoff:
                self.drop(child)
            elif isinstance(child, Pointer) and child.start < self.cutoff:
                kept.append(self.halve(child))
            else:
                kept.append(child)
        return kept

    def drop(self, child: Pointer | Fragment) -> None:
        """Drop a fragment, or a snapshot and everything below it.

        Raises:
            CorruptionError: the fragments are not contiguous.
        """
        if isinstance(child, Pointer):
            for below in self.known[child.path].children:
                self.drop(below)
            self.dropped.append(child)
            return
        if self.erased and child.seq_no != self.erased[-1].seq_no + 1:
            raise CorruptionError(
                "the log's fragments are not contiguous, so nothing was collected: scrub the log",
                path=child.path,
                expected=self.erased[-1].seq_no + 1,
            )
        self.erased.append(child)

    def halve(self, pointer: Pointer) -> Pointer:
        """Return a pointer to the kept part of a snapshot."""
        children = self.known[pointer.path].children
        kept = self.split(children)
        if kept == children:
            return pointer  # The cutoff is inside the first fragment, which stays whole.
        self.dropped.append(pointer)
        if isinstance(kept[0], Pointer) and len(kept) == 1:
            # A snapshot of this child alone would have the child's name, so it could not be stored.
            return kept[0]
        made = snapshot_over(kept, writer=COLLECTOR, names_depth=self.names_depth)
        self.made.append(made)
        return pointer_to(made)
