"""Where a collection cuts a log's tree: what of it goes, what stays, what is made anew. Pure.

Invariants: fragments go from the first on, without a gap; a snapshot that names some that go and
some that stay is made anew without, however deep it lies.
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

# Who wrote a snapshot that was made anew: as in Chroma's, so that both make the same bytes of it.


COLLECTOR: Final = "garbage collection"


@dataclass(slots=True)
class TreeCut:
    """One way down the tree, and what it finds to drop and to make, leaves first."""

    cutoff: int
    known: Mapping[str, Snapshot]
    names_depth: bool
    erased: list[Fragment] = field(default_factory=list)
    dropped: list[Pointer] = field(default_factory=list)
    made: list[Snapshot] = field(default_factory=list)

    def split(self, children: Sequence[Pointer | Fragment]) -> list[Pointer | Fragment]:
        """Drop what lies below the cutoff, and return what stays."""
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
        """Drop a fragment, or a snapshot and all that it names.

        Raises:
            CorruptionError: the fragments do not follow each other.
        """
        if isinstance(child, Pointer):
            for below in self.known[child.path].children:
                self.drop(below)
            self.dropped.append(child)
            return
        if self.erased and child.seq_no != self.erased[-1].seq_no + 1:
            raise CorruptionError(
                "the log's fragments do not follow each other, so nothing of it is collected: "
                "scrub it",
                path=child.path,
                expected=self.erased[-1].seq_no + 1,
            )
        self.erased.append(child)

    def halve(self, pointer: Pointer) -> Pointer:
        """Return a pointer to what stays of a snapshot."""
        children = self.known[pointer.path].children
        kept = self.split(children)
        if kept == children:
            return pointer  # The cutoff lies within its first fragment, which stays whole.
        self.dropped.append(pointer)
        if isinstance(kept[0], Pointer) and len(kept) == 1:
            # A snapshot of it alone would have its name, and could never be stored.
            return kept[0]
        made = snapshot_over(kept, writer=COLLECTOR, names_depth=self.names_depth)
        self.made.append(made)
        return pointer_to(made)
