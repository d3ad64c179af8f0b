"""The registry of source kinds by name, and the opening of sources.

tidelog has the kinds files, log, kafka, generator and collection. Installed packages add kinds by
entry points (group ``tidelog.sources``: the kind's name, and the class), and a process can register
more. The catalog's name of a kind is only looked up here. It is never imported as a module, because
it is data.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from importlib import metadata
from typing import Final

from tidelog.collection.catalog.catalog import COLLECTION, FILES, SourceInfo
from tidelog.collection.source.addressed import AddressedSource
from tidelog.collection.source.files import FilesSource
from tidelog.collection.source.kind import OpenedWith, SourceKind, check_secrets, told
from tidelog.collection.source.port import RawSource, Releasing
from tidelog.core.arguments import quoted
from tidelog.core.clock import Clock
from tidelog.errors import GoneError, UsageError
from tidelog.persist.format.schema import ShardSchema
from tidelog.store.port import Store
from tidelog.store.urls import open_store, real_root
from tidelog.store.wrappers.metered import MeteringStore

GROUP: Final = "tidelog.sources"
GENERATOR: Final = "generator"
LOG: Final = "log"
KAFKA: Final = "kafka"
OWN: Final = (GENERATOR, KAFKA, LOG)
_registered: dict[str, type[SourceKind]] = {}


def register_kind(kind: type[SourceKind]) -> type[SourceKind]:
    """Register a kind of source in this process, by its name. Return it, for use as a decorator."""
    _registered[kind.name] = kind
    return kind


def registered_kind(name: str) -> type[SourceKind] | None:
    """Return a kind that is registered in this process; an executor may not have it."""
    return _registered.get(name)


def find_kind(name: str) -> type[SourceKind]:
    """Return a kind of source, other than files.

    Raises:
        UsageError: this process has no kind of the name.
    """
    found = _registered.get(name) or _own(name) or _installed(name)
    if found is None:
        known = ", ".join(sorted({FILES, COLLECTION, *OWN, *_registered}))
        raise UsageError(
            f"no kind of source named {quoted(name)}; existing kinds: {known}. Install the "
            "package that has it, or register it in this process with register_kind"
        )
    return found


def _own(name: str) -> type[SourceKind] | None:
    # Imported on demand: a process that ingests files needs neither.
    if name == GENERATOR:
        from tidelog.collection.source.generator import Generator

        return Generator
    if name == LOG:
        from tidelog.collection.source.log import LogRecords

        return LogRecords
    if name == KAFKA:
        from tidelog.collection.source.kafka.messages import KafkaMessages

        return KafkaMessages
    return None


def _installed(name: str) -> type[SourceKind] | None:
    for entry in metadata.entry_points(group=GROUP, name=name):
        found = entry.load()
        if isinstance(found, type) and issubclass(found, SourceKind):
            return found
    return None


def open_kind(
    info: SourceInfo,
    *,
    store: Store,
    clock: Clock,
    opened: dict[str, MeteringStore] | None = None,
) -> SourceKind:
    """Open a source of another kind than files; ``store`` is the location's.

    ``opened`` has the other open stores, by URL. The stores that the source opens are added to it.

    Raises:
        UsageError: this process has no such kind, or the kind has no such setting.
    """
    kind = find_kind(info.kind)
    unknown = [name for name in info.settings if name not in kind.knows]
    if unknown:
        known = ", ".join(kind.knows) or "none"
        raise UsageError(
            f"settings[{unknown[0]!r}] is not a setting of a source of the kind {info.kind!r}; "
            f"its settings: {known}"
        )
    check_secrets(kind, info.settings)
    stores = {} if opened is None else opened
    opening = partial(_open_once, stores, clock)
    return kind(OpenedWith(info=info, store=store, clock=clock, open_store=opening))


def _open_once(stores: dict[str, MeteringStore], clock: Clock, url: str) -> MeteringStore:
    if url not in stores:
        stores[url] = MeteringStore(open_store(url, clock=clock), clock=clock)
    return stores[url]


def open_source(
    info: SourceInfo,
    schema: ShardSchema,
    *,
    store: Store,
    clock: Clock,
    final: bool = False,
    opened: dict[str, MeteringStore] | None = None,
) -> RawSource:
    """Open a source of the catalog; see `open_kind`.

    Raises:
        UsageError: the source's kind is not installed here.
    """
    stores = {} if opened is None else opened
    if info.kind == FILES:
        files = _open_once(stores, clock, info.url)
        own = real_root(store.url)
        return FilesSource(store=files, clock=clock, info=info, schema=schema, final=final, own=own)
    return AddressedSource(
        kind=open_kind(info, store=store, clock=clock, opened=stores),
        info=info,
        schema=schema,
        clock=clock,
        final=final,
        opened=stores,
        brought=registered_kind(info.kind),
    )


async def release_opened(
    source: RawSource, info: SourceInfo, *, store: Store, clock: Clock
) -> None:
    """Release the holds of an open source that was dropped; see `release_source`.

    Raises:
        LocationError: a store failed.
    """
    if isinstance(source, Releasing):
        await source.release()
    else:
        await release_source(info, store=store, clock=clock)


async def release_source(info: SourceInfo, *, store: Store, clock: Clock) -> bool:
    """Release a dropped source's holds outside of the location, such as its cursor in a log.

    Return False if this process does not have its kind. Another process can then release them.

    Raises:
        LocationError: a store failed.
    """
    if info.kind == FILES:
        return True
    # A log that no longer exists holds no records for the source.
    with suppress(GoneError):
        try:
            kind = open_kind(info, store=store, clock=clock)
        except UsageError:
            return False
        with suppress(UsageError), told(kind):
            await kind.release()
    return True
