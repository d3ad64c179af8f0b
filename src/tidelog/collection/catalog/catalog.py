"""The catalog: the controller's state as a value, and the changes that each command makes.

Shape: the controller's state is a shard of rows ``(kind, name, value)``; the value is JSON. A
    collection names its renditions and the active one. A rendition names its shards. A source
    names the rendition that it feeds, and a table the rendition that programs write. A collection
    with several renditions has a source for each, and the source has the rendition's name. Dropped
    shards stay listed, with the kind ``dropped``, until the collector has deleted their objects.
Does no I/O: see `tidelog.collection.catalog.controller`.
Source: storage, "Renditions", "Controller".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa

from tidelog.collection.formats.lines import CsvDialect
from tidelog.errors import CorruptionError, NameTaken, NoSuchCollection, UsageError
from tidelog.persist.format.schema import ShardSchema, decode_schema, shard_schema

CATALOG_SCHEMA: Final = shard_schema(
    pa.schema({"kind": pa.string(), "name": pa.string(), "value": pa.string()}),
    key=["kind", "name"],
)
_ERROR_COLUMNS: Final[dict[str, pa.DataType]] = {
    "file": pa.string(),
    "offset": pa.int64(),
    "reason": pa.string(),
    "text": pa.string(),
}
ERRORS_SCHEMA: Final = shard_schema(pa.schema(_ERROR_COLUMNS), key=["file", "offset"])
ERRORS_SUFFIX: Final = "_errors"
INGEST_HOLD: Final = "ingest"  # In the remap shard, it is behind the uppers of all outputs.
BINDINGS_HOLD: Final = "bindings"  # In the remap shard, it keeps all bindings.


class Era(msgspec.Struct, frozen=True, array_like=True):
    """The times from ``begins`` on (milliseconds), at which readers read one rendition.

    It ends where the next era begins. ``rendition`` is an id, and ``name`` its name; that rendition
    may be dropped.
    """

    rendition: str
    begins: int
    name: str


class CollectionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A collection, by the name that users give it.

    Shape: ``handovers`` has the eras of the collection, oldest first. It is absent before the first
        handover. The marks in the states of shards decide the handovers, and this is a copy of
        them: the newest handover may be missing.
    """

    name: str
    active: str
    renditions: tuple[str, ...]
    created_us: int
    handovers: tuple[Era, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def eras(self) -> tuple[Era, ...]:
        """Return the eras of the collection, oldest first."""
        return (
            (Era(self.active, 0, self.name),) if self.handovers is msgspec.UNSET else self.handovers
        )


class RenditionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One complete version of a collection.

    Its number of shards never changes: the hash of a row's key selects one of them.
    Shape: ``schema`` is the newest one. ``earlier`` has the schemas before it, oldest first. It is
        absent without an alteration, so the entry has the bytes that earlier versions wrote.
        ``name`` is absent in the first rendition of a collection, which has the collection's name.
        ``dropping`` is True once its drop has begun, and else absent. ``copies`` is the id of the
        rendition whose rows it copies, or has copied; absent if all rows come from the source.
    """

    id: str
    collection: str
    schema: bytes
    shards: tuple[str, ...]
    errors: str | None = None
    remap: str | None = None
    deletions: tuple[str, ...] = ()
    earlier: tuple[bytes, ...] | msgspec.UnsetType = msgspec.UNSET
    name: str | msgspec.UnsetType = msgspec.UNSET
    dropping: bool | msgspec.UnsetType = msgspec.UNSET
    copies: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def called(self) -> str:
        """Return the name of the rendition."""
        return self.collection if self.name is msgspec.UNSET else self.name

    @property
    def ingest_hold(self) -> str:
        """Return the name of its ingesters' hold on the remap shard, which others may share."""
        return INGEST_HOLD if self.name is msgspec.UNSET else f"{INGEST_HOLD}-{self.id}"

    @property
    def schemas(self) -> tuple[bytes, ...]:
        """Return all schemas, oldest first."""
        return (*(() if self.earlier is msgspec.UNSET else self.earlier), self.schema)

    @property
    def data_schema(self) -> ShardSchema:
        """Return the newest schema; with earlier ones, it knows them all."""
        newest = decode_schema(self.schema)
        if len(self.schemas) == 1:
            return newest
        return replace(newest, known=tuple(decode_schema(one).data for one in self.schemas))

    @property
    def roles(self) -> dict[str, str]:
        """Return the purpose of each shard of the rendition, by the id of the shard."""
        found = dict.fromkeys(self.shards, "rows") | dict.fromkeys(self.deletions, "deletions")
        if self.errors is not None:
            found[self.errors] = "bad rows"
        if self.remap is not None:
            found[self.remap] = "source progress"
        return found


DAY_MS: Final = 86_400_000
FILES: Final = "files"  # The kind of the sources that read files.
COLLECTION: Final = "collection"  # The kind of those that read another collection.


class SourceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A raw source, and the settings by which its messages become a collection.

    Shape: ``url`` is the store of the files, and ``patterns`` select among its keys. A source of
        another ``kind`` has neither; its ``settings`` name its data. ``delete_when`` is SQL: a
        row for which it is true deletes its key. ``skipped`` has the skipped files, with the time
        of the skip in microseconds. A former path there skips one version of a file (see
        `collection.source.generations`). A plain path skips all files of that name, now and later.
        ``evolve`` is True if ingesters add columns for new fields, and ``keeps_bindings`` if no
        binding is forgotten. Both are absent otherwise, so the entry has the bytes that earlier
        versions wrote. ``program`` has digests of the code that decides rows, by the names of their
        samples (see `collection.ingest.program`); sources of earlier versions lack it.
        ``include`` has columns of the kind that come next to the fields of the decoded text: the
        kind's names, by those of the columns.
        ``avro_schema`` is the text of the schema of messages in avro.
    Units: a row whose time is more than ``max_ahead_ms`` after the clock is bad. The upper stays
        ``lateness_ms`` behind the newest time of the data. Times older than ``retain_ms`` become
        unreadable; None keeps the whole past.
    """

    id: str
    name: str
    rendition: str
    url: str
    patterns: tuple[str, ...]
    format: str
    kind: str = FILES
    settings: dict[str, str] = {}
    envelope: str = "none"
    key: tuple[str, ...] = ()
    time_column: str | None = None
    time_unit: str = "ms"
    delete_when: str | None = None
    max_ahead_ms: int | None = DAY_MS
    lateness_ms: int = 0
    retain_ms: int | None = None
    csv: CsvDialect = CsvDialect()
    skipped: dict[str, int] = {}
    created_us: int = 0
    evolve: bool | msgspec.UnsetType = msgspec.UNSET
    keeps_bindings: bool | msgspec.UnsetType = msgspec.UNSET
    program: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    include: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    avro_schema: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def includes(self) -> Mapping[str, str]:
        """Return the kind's names of the included columns, by the names of the columns."""
        return {} if self.include is msgspec.UNSET else self.include

    @property
    def is_clocked(self) -> bool:
        """Return True if rows have the time of their ingestion, and none of their own."""
        return self.time_column is None and self.kind != COLLECTION

    @property
    def dialect(self) -> CsvDialect | None:
        """Return the dialect by which csv is split into records; other formats have none."""
        return self.csv if self.format == "csv" else None


class TableInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A table: a collection that programs write, through the transaction shard of all tables.

    Shape: a table without a ``key`` may have equal rows. ``mode`` is "wal", or "direct": one shard,
        which is not registered in the transaction shard.
    Units: times older than ``retain_ms`` become unreadable; None keeps the whole past.
    """

    name: str
    rendition: str
    key: tuple[str, ...] = ()
    created_us: int = 0
    mode: str = "wal"
    retain_ms: int | None = None


W = TypeVar("W", SourceInfo, TableInfo)


class DroppedSource(msgspec.Struct, frozen=True, kw_only=True):
    """A dropped source that may still have holds outside of the location, such as cursors.

    Shape: ``shards`` are the shards that were dropped with it. ``is_released`` is True once its
        holds were released. An ingester that was paused during the drop may create a hold
        afterwards, and die before it releases it. So all holds are released a second time, after
        the collector has deleted the objects of the shards.
    """

    source: SourceInfo
    shards: tuple[str, ...] = ()
    is_released: bool = False


@dataclass(frozen=True, slots=True)
class Catalog:
    """The contents of the catalog, by name; renditions and ``releasing`` are by id.

    ``releasing`` are the dropped sources whose holds elsewhere are not all released.
    """

    collections: Mapping[str, CollectionInfo] = field(default_factory=dict)
    renditions: Mapping[str, RenditionInfo] = field(default_factory=dict)
    sources: Mapping[str, SourceInfo] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    releasing: Mapping[str, DroppedSource] = field(default_factory=dict)
    tables: Mapping[str, TableInfo] = field(default_factory=dict)

    def collection(self, name: str) -> CollectionInfo:
        """Return a collection.

        Raises:
            NoSuchCollection: no collection has the name; the message lists the existing ones.
        """
        named = self._by_name.get(name)
        if named is not None and name not in self.collections:
            raise NoSuchCollection(
                f"{name!r} is a rendition of the collection {named.collection!r}: name that one"
            )
        _check_known(self.collections, name, "collection")
        return self.collections[name]

    def source(self, name: str) -> SourceInfo:
        """Return the source of a collection's active rendition, or of a rendition by its name.

        Raises:
            NoSuchCollection: no source has the name; the message lists the existing ones.
        """
        if name in self.tables:
            raise NoSuchCollection(
                f"{name!r} is a table, so it has no source: write and alter it as a table"
            )
        if name in self.collections:
            return self.feeder(self.collections[name].active)
        _check_known(self.sources, name, "source")
        return self.sources[name]

    def feeder(self, rendition: str) -> SourceInfo:
        """Return the source that feeds the rendition of an id; each of a source's has one."""
        return next(one for one in self.sources.values() if one.rendition == rendition)

    def sharing(self, rendition: RenditionInfo) -> list[RenditionInfo]:
        """Return the other renditions that have the same bindings."""
        others = (one for one in self.renditions.values() if one.id != rendition.id)
        return [one for one in others if one.remap is not None and one.remap == rendition.remap]

    def copied_by(self, rendition: RenditionInfo) -> RenditionInfo | None:
        """Return the rendition whose rows a rendition copies, or has copied, unless dropped."""
        copies = rendition.copies
        return None if copies is msgspec.UNSET else self.renditions.get(copies)

    def copies_of(self, rendition: RenditionInfo) -> list[RenditionInfo]:
        """Return the renditions that copy the rows of a rendition, or have copied them."""
        return [one for one in self.renditions.values() if one.copies == rendition.id]

    @property
    def _by_name(self) -> dict[str, RenditionInfo]:
        return {one.called: one for one in self.renditions.values()}

    @property
    def living_sources(self) -> list[SourceInfo]:
        """Return the sources whose new rows readers may still read, by name."""
        former = {era.rendition for one in self.collections.values() for era in one.eras[:-1]}
        known = (source for _, source in sorted(self.sources.items()))
        return [source for source in known if source.rendition not in former]

    def rendition(self, name: str) -> RenditionInfo:
        """Return a rendition by its name; raises like `collection`."""
        _check_known(self._by_name, name, "rendition")
        return self._by_name[name]

    def table(self, name: str) -> TableInfo:
        """Return a table; raises like `collection`."""
        if name in self.sources:
            raise NoSuchCollection(
                f"{name!r} is not a table, because its source writes it: read it as a collection, "
                "and alter it as a source"
            )
        _check_known(self.tables, name, "table")
        return self.tables[name]

    def writer(self, name: str) -> SourceInfo | TableInfo:
        """Return the table or the source of a name; raises like `collection`."""
        return self.tables[name] if name in self.tables else self.source(name)

    def active(self, name: str) -> RenditionInfo:
        """Return a collection's active rendition."""
        return self.renditions[self.collection(name).active]

    def lone_rendition(self, name: str) -> tuple[RenditionInfo, bool] | None:
        """Return the rendition of a name that no collection has; with True, its bad rows.

        So a new rendition can be looked at before its handover.
        """
        named, owner = self._by_name, name.removesuffix(ERRORS_SUFFIX)
        if name in self.collections or self.errors_of(name) is not None:
            return None
        if name in named:
            return named[name], False
        found = named.get(owner) if owner != name else None
        return None if found is None or found.errors is None else (found, True)

    def errors_of(self, name: str) -> RenditionInfo | None:
        """Return the rendition whose bad rows are read as ``name``; None if ``name`` is no such."""
        owner = name.removesuffix(ERRORS_SUFFIX)
        if owner == name or name in self.collections or owner not in self.collections:
            return None
        rendition = self.active(owner)
        return rendition if rendition.errors is not None else None


def _check_known(known: Mapping[str, object], name: str, what: str) -> None:
    if name not in known:
        names = ", ".join(sorted(known))
        others = f"existing {what}s: {names}" if known else f"no {what} exists yet"
        alike = get_close_matches(name, known, n=1)
        hint = f"did you mean {alike[0]!r}? " if alike else ""
        raise NoSuchCollection(f"no {what} named {name!r}; {hint}{others}")


Row = tuple[str, str, str]  # kind, name, value
Change = tuple[Row, int]  # a row, and +1 or -1

_KINDS: Final[dict[str, Any]] = {
    "collection": CollectionInfo,
    "rendition": RenditionInfo,
    "source": SourceInfo,
    "dropped source": DroppedSource,
    "table": TableInfo,
}


def read_catalog(rows: Iterable[Row]) -> Catalog:
    """Return the catalog that the controller's rows describe.

    Rows of an unknown kind are ignored: a later version of tidelog wrote them.

    Raises:
        CorruptionError: a row cannot be decoded.
    """
    found: dict[str, dict[str, Any]] = {kind: {} for kind in _KINDS}
    dropped: set[str] = set()
    for kind, name, value in rows:
        if kind == "dropped":
            dropped.add(name)
        elif kind in _KINDS:
            try:
                found[kind][name] = msgspec.json.decode(value, type=_KINDS[kind])
            except msgspec.MsgspecError as error:
                raise CorruptionError(
                    "an entry of the catalog cannot be decoded: restore the shard of the catalog",
                    kind=kind,
                    name=name,
                ) from error
    return Catalog(
        found["collection"],
        found["rendition"],
        found["source"],
        frozenset(dropped),
        found["dropped source"],
        found["table"],
    )


def plan_create(
    catalog: Catalog, collection: CollectionInfo, rendition: RenditionInfo, source: SourceInfo
) -> list[Change]:
    """Return the changes that create a source, its collection and its rendition.

    Raises:
        NameTaken: the name exists, or conflicts with an existing name.
    """
    check_name_free(catalog, collection.name, has_errors=True)
    return [(row_of(item), +1) for item in (collection, rendition, source)]


def plan_create_table(
    catalog: Catalog, collection: CollectionInfo, rendition: RenditionInfo, table: TableInfo
) -> list[Change]:
    """Return the changes that create a table, its collection and its rendition.

    Raises:
        NameTaken: the name exists, or conflicts with an existing name.
    """
    check_name_free(catalog, collection.name, has_errors=False)
    return [(row_of(item), +1) for item in (collection, rendition, table)]


def check_name_free(catalog: Catalog, name: str, *, has_errors: bool) -> None:
    """Check that a new collection can have a name; ``has_errors`` if it will have bad rows.

    Raises:
        NameTaken: the name exists, or conflicts with an existing name.
    """
    if name in catalog.collections or name in catalog.sources:
        writer = "table" if name in catalog.tables else "source"
        if name not in catalog.collections:
            writer = "rendition"
        raise NameTaken(
            f"{name!r} already exists: choose another name, or drop it with 'tidelog {writer} "
            f"drop {name}'"
        )
    # The bad rows of NAME are read as NAME_errors. So a new NAME_errors would hide the bad rows of
    # an existing NAME, and the bad rows of a new NAME would be hidden by an existing NAME_errors.
    owner, twin = name.removesuffix(ERRORS_SUFFIX), name + ERRORS_SUFFIX
    has_twin = owner in catalog.sources or catalog.errors_of(name) is not None
    taken = owner if owner != name and has_twin else None
    if has_errors and (twin in catalog.collections or twin in catalog.sources):
        taken = twin
    if taken is not None:
        raise NameTaken(
            f"{name!r} conflicts with {taken!r}: NAME_errors is the collection of the "
            "bad rows of NAME; choose another name"
        )


def plan_drop(catalog: Catalog, name: str) -> list[Change]:
    """Return the changes that drop a source and its collection, with all renditions.

    The shards stay listed as dropped, so that the collector can find and delete their objects. A
    source that does not read files stays listed too, until its holds elsewhere are released.

    Raises:
        NoSuchCollection: no source has the name. UsageError: it is the name of a rendition.
    """
    source = catalog.source(name)
    if name not in catalog.collections:
        owner = catalog.renditions[source.rendition].collection
        raise UsageError(
            f"{name!r} is a rendition of {owner!r}: drop it with 'tidelog rendition drop {name}'"
        )
    renditions = catalog.collection(name).renditions
    writers = [one for one in catalog.sources.values() if one.rendition in renditions]
    changes = _plan_drop_of(catalog, catalog.collection(name))
    shards = tuple(name for (kind, name, _), _ in changes if kind == "dropped")
    for one in writers:
        changes += plan_end_of(one, shards)
    return changes


def plan_end_of(source: SourceInfo, shards: tuple[str, ...]) -> list[Change]:
    """Return the changes that remove a source, whose ``shards`` are dropped."""
    changes: list[Change] = [(row_of(source), -1)]
    if source.kind != FILES:
        changes.append((row_of(DroppedSource(source=source, shards=shards)), +1))
    return changes


def plan_drop_table(catalog: Catalog, name: str) -> list[Change]:
    """Return the changes that drop a table and its collection; its shards stay listed as dropped.

    Raises:
        NoSuchCollection: no table has the name.
    """
    try:
        table = catalog.table(name)
    except NoSuchCollection as error:
        if not catalog.dropped:
            raise
        raise NoSuchCollection(
            f"{error.sentence}; if a drop of {name!r} was interrupted, the table is dropped, and "
            "'tidelog collect' deletes its objects"
        ) from error
    return [(row_of(table), -1), *_plan_drop_of(catalog, catalog.collection(name))]


def _plan_drop_of(catalog: Catalog, collection: CollectionInfo) -> list[Change]:
    renditions = [catalog.renditions[one] for one in collection.renditions]
    changes: list[Change] = [(row_of(collection), -1), *((row_of(one), -1) for one in renditions)]
    # Renditions may share the shard of their source's bindings.
    shards = dict.fromkeys(shard for one in renditions for shard in one.roles)
    return changes + [(("dropped", shard, "{}"), +1) for shard in shards]


def plan_released(catalog: Catalog, id: str) -> list[Change]:
    """Return the changes that record the release of a dropped source.

    If the objects of its shards are deleted, the source is removed from the catalog. Otherwise it
    stays listed as released, and needs a second release: see `DroppedSource`.
    """
    found = catalog.releasing.get(id)
    if found is None:
        return []
    changes: list[Change] = [(row_of(found), -1)]
    if not is_gone(catalog, found):
        changes.append((row_of(msgspec.structs.replace(found, is_released=True)), +1))
    return changes


def is_gone(catalog: Catalog, dropped: DroppedSource) -> bool:
    """Return True if the objects of all shards that were dropped with a source are deleted."""
    return catalog.dropped.isdisjoint(dropped.shards)


def plan_skip(catalog: Catalog, name: str, paths: Iterable[str], *, now_us: int) -> list[Change]:
    """Return the changes that record skipped files; a file that is skipped already keeps its time.

    Raises:
        NoSuchCollection: no source has the name.
    """
    source = catalog.source(name)
    new = {path: now_us for path in paths if path not in source.skipped}
    return replaced(source, skipped={**source.skipped, **new}) if new else []


def plan_retain(catalog: Catalog, name: str, retain_ms: int | None) -> list[Change]:
    """Return the changes that set the retention of a collection, in all of its renditions.

    Raises:
        NoSuchCollection: no table has the name, and no source.
    """
    of = catalog.renditions[catalog.writer(name).rendition].collection
    changes: list[Change] = []
    writers: list[SourceInfo | TableInfo] = [*catalog.sources.values(), *catalog.tables.values()]
    for one in writers:
        if catalog.renditions[one.rendition].collection == of and one.retain_ms != retain_ms:
            changes += replaced(one, retain_ms=retain_ms)
    return changes


def plan_alter(
    catalog: Catalog, writer: W, change: Callable[[RenditionInfo, W], RenditionInfo]
) -> list[Change]:
    """Return the changes that give a table or a source the schema that ``change`` adds.

    Raises:
        UsageError: another rendition shares the bindings, which name schemas by their number.
        All errors of ``change``.
    """
    before = catalog.renditions[writer.rendition]
    for one in catalog.sharing(before):
        raise UsageError(
            f"the rendition {one.called!r} has the same bindings, so its columns would change too: "
            "drop it first, or create a rendition with other columns"
        )
    after = change(before, writer)
    return [] if after == before else [(row_of(before), -1), (row_of(after), +1)]


def plan_forget(catalog: Catalog, shards: Iterable[str]) -> list[Change]:
    """Return the changes that remove dropped shards from the catalog."""
    return [(("dropped", shard, "{}"), -1) for shard in shards if shard in catalog.dropped]


def replaced(
    item: CollectionInfo | RenditionInfo | SourceInfo | TableInfo, **changed: Any
) -> list[Change]:
    """Return the changes that give an item other values."""
    return [
        (row_of(item), -1),
        (row_of(msgspec.structs.replace(item, **changed)), +1),
    ]


def row_of(item: CollectionInfo | RenditionInfo | SourceInfo | TableInfo | DroppedSource) -> Row:
    """Return the row of an item."""
    kind = next(k for k, t in _KINDS.items() if isinstance(item, t))
    if isinstance(item, DroppedSource):
        name = item.source.id
    else:
        name = item.id if isinstance(item, RenditionInfo) else item.name
    return kind, name, msgspec.json.encode(item).decode()
