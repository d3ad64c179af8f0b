"""The driver's view of a log: its end, and the objects that hold its positions.

The view walks the fragments past the manifest once; a later look continues from the previous end.
It follows links, and reads no records.
Source: design page 3, "Read"; docs/guides/spark-logs.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelog.core.clock import Clock
from tidelog.errors import NoSuchLog, ObjectNotFound, PositionCollected, UsageError
from tidelog.store.port import Store
from tidelog.wal.format.epoch_chain import Seal
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.link import Tail, plain
from tidelog.wal.format.manifest import Manifest, overlaps, tail_of
from tidelog.wal.format.slot_object import checked_data
from tidelog.wal.format.wal3_records import checked_fragment
from tidelog.wal.read.head import Head, TreeReader, load_living, missing, renew_head
from tidelog.wal.read.record_reader import RecordReader
from tidelog.wal.slot_protocol.chain_reader import ChainReader


@dataclass(slots=True, kw_only=True)
class LogView:
    """A view of the log at the root of ``store``, as of its last `renew`.

    Shape: ``beyond`` are the fragments past the manifest, in order.
    """

    store: Store
    clock: Clock
    head: Head
    beyond: Sequence[Fragment] = ()
    _tail: Tail | None = field(init=False, default=None)
    _seal: Seal | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if (chain := self.head.manifest.chain) is not None:
            self._tail, self._seal = tail_of(self.head.manifest), chain.seal

    @property
    def is_slots(self) -> bool:
        return self.head.manifest.chain is not None

    @property
    def oldest(self) -> int:
        return self.head.manifest.oldest

    @property
    def next(self) -> int:
        """Return the position after the last one in the view."""
        return max([self.head.manifest.next, *(fragment.limit for fragment in self.beyond)])

    async def renew(self) -> None:
        """Update the view to the present end of the log.

        Raises:
            NoSuchLog: the log no longer exists.
            CorruptionError: an object does not continue the log.
            LocationError: the store failed.
        """
        if self._tail is None or self._seal is not None:
            self._take(await renew_head(self.store, self.head))
            return
        try:
            end = await ChainReader(store=self.store, clock=self.clock).end(self.head, self._tail)
        except UsageError as error:
            raise self._replaced_error() from error  # The log now has the other protocol.
        self._take(end.head)
        self._tail, self._seal = end.tail, end.seal
        for fragment in end.fragments:
            if fragment.limit > self.next:
                self.beyond = (*self.beyond, plain(fragment))

    async def fragments(self, start: int, limit: int) -> list[Fragment]:
        """Return the fragments that hold any of the positions ``[start, limit)``, in order.

        Raises:
            PositionCollected: records from ``start`` were collected.
            CorruptionError: the bytes of the tree are wrong.
            LocationError: the store failed.
        """
        while start < limit:
            manifest = self.head.manifest
            if start < manifest.oldest:
                raise collected_error(start, manifest)
            tree = TreeReader(store=self.store, clock=self.clock)
            try:
                fragments = await tree.fragments_of(manifest, start=start, limit=limit)
            except ObjectNotFound as error:
                self._take(await renew_head(self.store, self.head))
                if self.head.manifest.oldest == manifest.oldest:
                    raise missing(error) from error
            else:
                return fragments + [
                    fragment for fragment in self.beyond if overlaps(fragment, start, limit)
                ]
        return []

    def _take(self, head: Head) -> None:
        newer = head.manifest
        if newer.next < self.head.manifest.next or (newer.chain is None) == self.is_slots:
            raise self._replaced_error()
        self.head = head
        self.beyond = tuple(f for f in self.beyond if f.start >= newer.next)

    def _replaced_error(self) -> NoSuchLog:
        return NoSuchLog(
            f"another log has replaced the log at {self.store.url} since it was opened: "
            "open it again"
        )


async def open_view(store: Store, *, clock: Clock, beyond: Sequence[Fragment] = ()) -> LogView:
    """Open a view of the manifest's fragments, and of the known ones past it.

    Raises:
        NoSuchLog: the log does not exist.
        CorruptionError: its manifest cannot be read.
        LocationError: the store failed.
    """
    return LogView(store=store, clock=clock, head=await load_living(store), beyond=beyond)


def reader_of(store: Store, clock: Clock, *, is_slots: bool) -> RecordReader:
    """Return the reader of the fragments of a log, by its protocol."""
    tree = TreeReader(store=store, clock=clock)
    return RecordReader(tree=tree, codec=checked_data if is_slots else checked_fragment)


def collected_error(start: int, manifest: Manifest) -> PositionCollected:
    """Return the error of a read whose first record was collected."""
    return PositionCollected(
        f"records from {start} were collected: the oldest record is {manifest.oldest}. Load the "
        f"log again with option('start', {manifest.oldest}); a stream needs a new checkpoint",
        oldest=manifest.oldest,
    )
