"""Files as a raw source: json, csv, parquet and avro, in any store.

An address is a path and a byte offset. Files are ingested in the order of their paths. Each head
shows new files, and files that have grown. A binding proves the bytes of its ranges. Objects in the
cloud are replaced as a whole, so their versions are the proof. Files on a disk may grow, so the
sums of their bytes are the proof: a file that has grown continues, and one that was rewritten is
detected.
Source: design page 6, "Raw sources", "Who reads what".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, cast

import msgspec

from tidelog.collection.catalog.catalog import SourceInfo
from tidelog.collection.formats.packed.packed import BINARY_FORMATS, codec_of
from tidelog.collection.source.binding import (
    BLOCK_BYTES,
    AddressRange,
    FileRange,
    Taken,
    are_blocks,
)
from tidelog.collection.source.decode import ReadData
from tidelog.collection.source.decoded_cache import KeptRows, RowsInMemory, read_kept
from tidelog.collection.source.fetch import OpenedFile, can_be_shared, join_kept, read_share
from tidelog.collection.source.files_head import (
    FilesHead,
    SurveyMemory,
    choose_candidates,
    each_once,
    is_asked_for,
    leads_into,
)
from tidelog.collection.source.identified import (
    Search,
    find_moved_on,
    find_others,
    listed_now,
    paths_of,
    replaced_since,
    sizes_now,
)
from tidelog.collection.source.moves import (
    Moves,
    date_of,
    family_of,
    gone_by_beginning,
    kin_by_beginning,
    known_identity,
    record_displaced,
    without_stale,
)
from tidelog.collection.source.port import Plan, SourceHead, Survey
from tidelog.collection.source.still_there import NEW_US, find_lost
from tidelog.collection.source.survey import survey_piece
from tidelog.collection.source.survey_facts import (
    CHANGED,
    WENT,
    AnyPiece,
    Cut,
    FileCandidate,
    FileSurvey,
    SurveyFacts,
    SurveyPiece,
    choose_cut,
    choose_rough_cut,
    join_pieces,
    ranges_until,
    split_candidate,
    take_all,
    unseen,
    upper_after,
    went_away,
)
from tidelog.collection.source.survey_packed import OpenTexts, read_any_text, read_packed
from tidelog.collection.source.survey_result import SurveyJob, greatest_time
from tidelog.core.clock import Clock
from tidelog.errors import CorruptionError, GoneError, InvariantError, SourceRewritten
from tidelog.persist.format.schema import ShardSchema, encode_with_known
from tidelog.store.keys import distinct_prefixes, is_odd_key, shown_key
from tidelog.store.port import Store
from tidelog.store.urls import keeps_versions
from tidelog.store.wrappers.metered import Usage, usage_of

ROUNDS_MAX: Final = 3
PLACES_MAX: Final = 1_000  # The most files that are searched for the bytes of a moved one.
ODD_KEY: Final = (
    "its key has an empty part, '.', '..' or a control character, so requests cannot name it: "
    "rename or delete the object"
)
SEARCHES_MAX: Final = 3  # Each search costs a listing, also for a file that was deleted.
PIECE_BYTES: Final = 16 * 1024 * 1024
KEPT_BYTES_MAX: Final = 256 * 1024 * 1024
# The formats whose surveys decode whole records. For the others, a survey reads only the time
# column.
# A piece of a json array is not a text that can be decoded by itself.
_DECODED_WHOLE: Final = frozenset({"json", "csv"})


@dataclass(slots=True, kw_only=True)
class FilesSource:
    """The files in one store that match patterns, except those below the location's path ``own``.

    With ``final``, a text file's last record is whole without a line end. The source caches the
    bytes that it surveys in this process, or in ``rows`` the rows decoded from them. So an ingester
    that computes its own binding need not read or decode them again.
    """

    store: Store
    clock: Clock
    info: SourceInfo
    schema: ShardSchema
    final: bool = False
    own: str = ""
    is_versioned: bool | None = None
    block_bytes: int = BLOCK_BYTES
    piece_bytes: int = PIECE_BYTES
    kept_bytes_max: int = KEPT_BYTES_MAX
    rows: KeptRows | None = field(default_factory=RowsInMemory)
    _known: SurveyMemory = field(default_factory=SurveyMemory)
    _kept: dict[tuple[str, str], list[tuple[int, bytes]]] = field(default_factory=dict)
    _kept_bytes: int = 0
    _skipped: frozenset[str] = frozenset()
    _moves: Moves = field(default_factory=Moves)
    _texts: OpenTexts = field(default_factory=dict)
    _waiting: dict[str, str] = field(default_factory=dict)
    _nameless: dict[str, str] = field(default_factory=dict)
    _unlike: frozenset[str] = frozenset()

    @property
    def range_type(self) -> type[AddressRange]:
        return FileRange

    def adopt(self, schema: ShardSchema) -> None:
        self.schema = schema
        self._known.stalled.clear()  # A file may have waited because of its columns.

    def pass_over(self, paths: frozenset[str]) -> None:
        self._skipped = paths

    async def head(self) -> FilesHead:
        patterns, listed_us = self.info.patterns, self.clock.monotonic_us()
        listed = {
            entry.key: entry
            for prefix in distinct_prefixes(patterns)
            async for entry in self.store.list(prefix)
            if entry.key not in self._skipped
            and is_asked_for(entry.key, patterns)
            and not leads_into(entry, self.own)
        }
        if not self._has_versions():
            entries = await listed_now([*listed.values()], self.info.url, self.clock)
            listed = {entry.key: entry for entry in entries}
        found = {key: entry for key, entry in listed.items() if entry.size_bytes}
        # A binding records the path as text, so a path that is not UTF-8 cannot be bound.
        nameless = {key for key in found if shown_key(key) != key}
        self._nameless = {shown_key(key): "its name is not UTF-8: rename it" for key in nameless}
        if keeps_versions(self.info.url):
            odd = {key for key in found if is_odd_key(key)}
            self._nameless |= {key.encode("unicode_escape").decode(): ODD_KEY for key in odd}
            nameless |= odd
        named = [found[key] for key in sorted(found.keys() - nameless)]
        return FilesHead(tuple(each_once(named)), listed_us, frozenset(listed.keys() - found))

    async def plan(
        self, taken: Taken, head: SourceHead, *, lower: int, bytes_max: int, survey: Survey
    ) -> Plan | None:
        if not isinstance(head, FilesHead):
            raise InvariantError("a files source was given another source's head")
        taken = cast("Mapping[str, FileRange]", taken)  # Its remap shard has no other ranges.
        job = self._job(lower)
        self._kept, self._kept_bytes, self._waiting = {}, 0, {}
        if self.rows is not None and not self.info.lateness_ms:
            # With a lateness, later bindings read the held rows again, so the cache stays.
            self.rows.forget()
        self._known.forget(head.sizes, taken)
        seen: dict[FileCandidate, FileSurvey] = {}
        budget = bytes_max
        round_ = 0
        compared: set[str] = set()
        while round_ < 64:
            sizes = await self._sizes(taken, head)
            progress = self._moves.progress(taken, sizes, head.tags)
            if await self._find_others(taken, progress, sizes, head, compared):
                continue  # Not a round: each path is compared once, so this ends.
            chosen, complete = choose_candidates(
                (entry for entry in head.entries if entry.key not in self._skipped),
                progress,
                self._known,
                bytes_max=budget,
                block_bytes=self.block_bytes,
                format=self.info.format,
            )
            await self._look(chosen, seen, job, survey)
            surveys = [seen[one] for one in chosen]
            if self._leave_changed(surveys, taken):
                continue  # Not a round: the files now count as new.
            if await self._find_moved(surveys, progress, sizes, head, job, complete=complete):
                continue  # Not a round: each move is found once.
            files, complete = _in_order(surveys, complete=complete)
            cut = _cut(files, job, complete=complete, rough=round_ >= ROUNDS_MAX)
            if cut is not None:
                plan = self._take(files, cut, job)
                if await self._is_proven(plan, head):
                    return self._recorded(plan, taken)
                continue  # Not a round: the files that have changed wait now.
            if complete:
                moved = Plan(tuple(self._moves.found.values()), None)
                if not moved.ranges or job.is_timed:
                    return None
                if await self._is_proven(moved, head):
                    return self._recorded(moved, taken)
                continue
            # All surveyed data wait, or have one time, or are unordered: survey more.
            budget, round_ = budget * 2, round_ + 1
        return None

    async def survey(self, piece: AnyPiece, job: SurveyJob) -> SurveyFacts:
        if not isinstance(piece, SurveyPiece):
            raise InvariantError("a files source was given another source's piece")
        asked = piece.candidate
        version = asked.before if asked.checked and asked.before is not None else asked
        file = OpenedFile(
            store=self.store,
            path=asked.path,
            e_tag=version.e_tag if job.is_versioned else None,
            source=self.info.name,
        )
        # Cache either the decoded rows or the bytes, not both.
        are_decoded = job.is_timed and self.info.format in _DECODED_WHOLE
        keep_rows = self.rows.keep if self.rows is not None and are_decoded else None
        return await survey_piece(
            piece,
            job,
            file,
            clock=self.clock,
            texts=self._texts,
            keep=partial(self._keep, asked.e_tag) if keep_rows is None else None,
            keep_rows=keep_rows,
        )

    async def _find_others(
        self,
        taken: Mapping[str, FileRange],
        progress: Mapping[str, FileRange],
        sizes: Mapping[str, int],
        head: FilesHead,
        compared: set[str],
    ) -> bool:
        """Find paths whose file is another one by its identity; return True if any is found.

        ``compared`` has the paths that this plan has compared. This call adds to it.
        """
        if self._has_versions():
            return False
        rest = [entry for entry in head.entries if entry.key not in compared]
        changed = [
            entry
            for entry in rest
            if (before := progress.get(entry.key)) is not None
            and entry.key in taken
            and not self._known.is_checked(entry, before)
        ]
        if not changed:
            return False
        compared.update(entry.key for entry in changed)
        others = await find_others(
            changed, head, progress, sizes, url=self.info.url, clock=self.clock
        )
        for path in others.replaced:
            self._moves.replace(path, head.tags[path], taken[path], proven=True)
        # A copy counts as the former file if it has the date and size of that file, and the file
        # itself is not elsewhere.
        same = {e.key: e.e_tag for e in changed if date_of(e.e_tag) == date_of(taken[e.key].e_tag)}
        self._known.checked.update({path: same[path] for path in others.unlike & same.keys()})
        self._unlike = (others.unlike - same.keys()) | (self._unlike - compared)
        return bool(others.replaced)

    def _leave_changed(self, surveys: Sequence[FileSurvey], taken: Mapping[str, FileRange]) -> bool:
        """Treat files whose bound bytes have changed as new files; return True if any is found."""
        is_any = False
        for one in surveys:
            asked = one.candidate
            if one.found.waits == CHANGED and asked.path in taken:
                is_any = True
                self._moves.replace(asked.path, asked.e_tag, taken[asked.path], proven=False)
            elif asked.checked and one.found.waits is None and asked.path in self._unlike:
                self._moves.count_as_grown(asked.path)
        return is_any

    def _recorded(self, plan: Plan, taken: Mapping[str, FileRange]) -> Plan:
        ranges = cast("Sequence[FileRange]", plan.ranges)
        return Plan(tuple(record_displaced(ranges, taken, self._moves.replaced)), plan.upper)

    async def _find_moved(
        self,
        files: Sequence[FileSurvey],
        taken: Mapping[str, FileRange],
        sizes: Mapping[str, int],
        head: FilesHead,
        job: SurveyJob,
        *,
        complete: bool,
    ) -> bool:
        """Find files that were ingested under other names or disappeared; True if any is found."""
        new = [one for one in files if one.candidate.before is None and not one.is_empty]
        if not new or job.is_versioned:
            self._moves.doubt_objects(new, taken, sizes)
            return False
        sizes = without_stale(sizes, (one.candidate for one in new), taken, head.tags)
        search = Search(
            gone=gone_by_beginning(taken, sizes),
            kin=kin_by_beginning(taken, sizes, new),
            moves=self._moves,
            info=self.info,
            skipped=self._skipped,
            listed=head.empty | head.sizes.keys(),
            tags=head.tags,
            is_complete=complete,
            store=self.store,
            clock=self.clock,
        )
        renamed = await search.run(new)
        self._known.stalled.update({one.path: (0, one.e_tag, WENT) for one in renamed.went})
        return renamed.found or bool(renamed.went)

    async def _is_proven(self, plan: Plan, head: FilesHead) -> bool:
        """Return True if the files of a plan are still those that were listed and surveyed.

        Files that have changed wait, and the next round plans without them.
        """
        ranges = cast("Sequence[FileRange]", plan.ranges)
        lost: Sequence[FileRange] = ()
        if not self._has_versions():
            lost = await find_moved_on(ranges, self.info, store=self.store, clock=self.clock)
        elif ranges and self.clock.monotonic_us() - head.listed_us >= NEW_US:
            prefixes = distinct_prefixes(self.info.patterns)
            lost = await find_lost(ranges, head, self.store, prefixes)
        for found in lost:
            is_moved = self._moves.found.pop(found.path, None) is not None
            start = 0 if is_moved and not found.is_read else found.start
            self._known.stalled[found.path] = start, head.tags.get(found.path, found.e_tag), WENT
        return not lost

    def waiting(self) -> Mapping[str, str]:
        return {**self._known.waiting, **self._waiting, **self._nameless}

    def notes(self) -> Mapping[str, str]:
        return dict(self._moves.notes)

    def usage(self) -> Usage:
        return usage_of(self.store)

    async def hold(self, taken: Taken, *, make: bool) -> None:
        """Do nothing: the owner of the files decides how long they exist."""

    async def gone(self, taken: Taken) -> Sequence[AddressRange]:
        return []

    async def read(
        self,
        found: AddressRange,
        low: int | None = None,
        high: int | None = None,
        *,
        anew: bool = False,
    ) -> tuple[FileRange, ReadData]:
        if not isinstance(found, FileRange):
            raise InvariantError("a files source was given another source's range")
        start, limit = found.start if low is None else low, found.limit if high is None else high
        try:
            return await self._read_at(found.path, found, start, limit, anew=anew)
        except (GoneError, SourceRewritten):
            # The file may have moved since its binding. Sums or a version prove its bytes under any
            # name. It may move again during the search, so search several times.
            places: Sequence[str] = ()
            for _ in range(SEARCHES_MAX):
                before, places = places, await self._places_of(found)
                for place in places if places != before else ():
                    with suppress(GoneError, CorruptionError):
                        return await self._read_at(place, found, start, limit, anew=True)
            raise

    async def _read_at(
        self, path: str, found: FileRange, start: int, limit: int, *, anew: bool
    ) -> tuple[FileRange, ReadData]:
        version = found.e_tag if path == found.path else date_of(found.e_tag)
        file = OpenedFile(
            store=self.store,
            path=path,
            e_tag=None if found.is_summed else version,
            source=self.info.name,
        )
        # The cache is by version: another ingester may have bound another version than the one
        # surveyed here.
        kept = sorted(self._kept.get((path, date_of(found.e_tag)), ()), key=_span_start)
        if self.rows is not None and not anew:
            rows = await read_kept(self.rows, file, found, start, limit, clock=self.clock)
            if rows is not None:
                return found, rows
        has_other_form = codec_of(path) != codec_of(found.path)
        if self.info.format not in BINARY_FORMATS and (found.packed or has_other_form):
            # For a compressed file, the cached spans are of its text, not of its bytes.
            text = join_kept(kept, found.start, found.limit)
            if text is None or not _is_bound(text, found):
                text = await self._text_at(path, file, found)
            if found.packed:
                return found, text
            kept = [(found.start, text)]
        file.kept = kept
        return await read_share(file, found, start, limit, source=self.info)

    async def _text_at(self, path: str, file: OpenedFile, found: FileRange) -> bytes:
        if codec_of(path) == codec_of(found.path):
            try:
                return await read_packed(file, found, clock=self.clock)
            except SourceRewritten:
                if not found.is_summed:
                    raise
                # If the file was compressed again, its bytes differ and its text may be the same.
        span = found.start, found.limit
        try:
            text = await read_any_text(file, span, format=self.info.format, clock=self.clock)
        except CorruptionError as error:
            raise file.rewritten() from error
        if not found.is_summed or not _is_bound(text, found):
            raise file.rewritten()
        return text

    async def _places_of(self, found: FileRange) -> Sequence[str]:
        """Return the paths where the file of a range may be now, the likeliest first."""
        entries = (await self.head()).entries
        if not found.is_summed:
            return [one.key for one in entries if date_of(one.e_tag) == date_of(found.e_tag)]
        known = "" if self._has_versions() else known_identity(found)
        own = paths_of(known, entries)
        kin = [one.key for one in entries if family_of(one.key) == family_of(found.path)]
        rest = [one.key for one in entries][:PLACES_MAX]
        return list(dict.fromkeys([*own, *kin, *rest]))

    def _keep(self, e_tag: str, path: str, start: int, data: bytes) -> None:
        if self._kept_bytes + len(data) <= self.kept_bytes_max:
            self._kept.setdefault((path, date_of(e_tag)), []).append((start, data))
            self._kept_bytes += len(data)

    def _job(self, lower: int) -> SurveyJob:
        schema, newest = self.schema, max(0, len(self.schema.known) - 1)
        return SurveyJob(
            source=self.info,
            schema=encode_with_known(schema) if newest else schema.encoded,
            schema_id=newest,
            lower=lower,
            time_max=greatest_time(self.info, now_us=self.clock.now_us(), lower=lower),
            final=self.final,
            is_versioned=self._has_versions(),
            pieces=(),
        )

    def _has_versions(self) -> bool:
        return keeps_versions(self.info.url) if self.is_versioned is None else self.is_versioned

    async def _look(
        self,
        chosen: Sequence[FileCandidate],
        seen: dict[FileCandidate, FileSurvey],
        job: SurveyJob,
        survey: Survey,
    ) -> None:
        """Have the engine survey the candidates that must be read before a binding."""
        new = [one for one in chosen if one not in seen]
        asked = [one for one in new if self._must_be_seen(one, job)]
        pieces = [self._split(one, job) for one in asked]
        if pieces:
            flat = tuple(piece for one in pieces for piece in one)
            found = iter((await survey(msgspec.structs.replace(job, pieces=flat))).found)
            went = await self._replaced_since(asked)
            for one, of_it in zip(asked, pieces, strict=True):
                surveyed = join_pieces(one, [next(found) for _ in of_it])
                seen[one] = went_away(one) if one.path in went else surveyed
                if seen[one].found.waits == CHANGED:
                    continue
                self._known.learn(seen[one])
                if (why := seen[one].found.waits) is not None:
                    self._waiting[one.path] = why
        for one in new:
            if one not in seen:
                seen[one] = unseen(one)

    async def _replaced_since(self, asked: Sequence[FileCandidate]) -> set[str]:
        """Return the paths whose file was deleted or replaced since it was listed."""
        if self._has_versions():
            return set()
        tags = {one.path: one.e_tag for one in asked}
        return await replaced_since(tags, self.info.url, self.clock)

    def _must_be_seen(self, asked: FileCandidate, job: SurveyJob) -> bool:
        if not job.is_light(asked.path) or asked.checked:
            return True
        # A listing does not show whether an object has the source's format. So read the header or
        # the footer of each new object once.
        has_form = self.info.format in BINARY_FORMATS or (
            self.info.dialect is not None and self.info.dialect.has_header
        )
        return asked.before is None and has_form

    def _split(self, asked: FileCandidate, job: SurveyJob) -> list[SurveyPiece]:
        unknown = asked.checked and job.is_versioned
        if unknown or job.is_light(asked.path) or not can_be_shared(self.info, asked.path):
            return [SurveyPiece(candidate=asked, low=asked.start, high=asked.limit)]
        return split_candidate(asked, self.piece_bytes)

    def _take(self, files: Sequence[FileSurvey], cut: Cut, job: SurveyJob) -> Plan:
        held_ms = 0 if self.final else self.info.lateness_ms
        ranges = ranges_until(cut, files, time_max=job.time_max, is_held=held_ms > 0)
        upper = upper_after(cut, job.lower, held_ms=held_ms) if job.is_timed else None
        followed = {found.path for found in ranges}
        moved = (found for path, found in self._moves.found.items() if path not in followed)
        return Plan((*ranges, *moved), upper)

    async def _sizes(self, taken: Mapping[str, FileRange], head: FilesHead) -> Mapping[str, int]:
        if self._has_versions():
            return head.sizes
        return await sizes_now(taken, head.sizes, store=self.store)


def _span_start(span: tuple[int, bytes]) -> int:
    return span[0]


def _is_bound(text: bytes, found: FileRange) -> bool:
    """Return True if a text is that of a bound range, by its length and its sums."""
    return len(text) == found.limit - found.start and (
        not found.is_summed
        or are_blocks(
            text, found.start, start=found.start, sums=found.sums, block_bytes=found.block_bytes
        )
    )


def _in_order(chosen: Sequence[FileSurvey], *, complete: bool) -> tuple[list[FileSurvey], bool]:
    """Return the files with data to bind; the second result is True if no others have any.

    If a compressed file has more text than was surveyed, later files must wait: files are ingested
    in order.
    """
    files: list[FileSurvey] = []
    for one in chosen:
        if not one.is_empty:
            files.append(one)
        if one.found.packed is not None and not one.sees_the_end:
            return files, False
    return files, complete


def _cut(files: Sequence[FileSurvey], job: SurveyJob, *, complete: bool, rough: bool) -> Cut | None:
    """Return the cut of the files; None if more data must be surveyed, or there are no files."""
    if not files:
        return None
    if not job.is_timed:
        return take_all(files)
    cut = choose_cut(files, complete=complete)
    return choose_rough_cut(files) if cut is None and rough else cut
