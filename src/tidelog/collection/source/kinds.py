"""The kinds of sources that there are, by name, and how a source of one is opened.

tidelog brings files, logs and a generator. Others are found by the entry points of installed
packages (group ``tidelog.sources``: the kind's name, and the class), or were registered in this
process. A catalog's name for a kind is looked up, and never imported: it is data.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from importlib import metadata
from typing import Final

from tidelog.arguments import quoted
from tidelog.clock import Clock
from tidelog.collection.catalog.catalog import FILES, SourceInfo
from tidelog.collection.source.addressed import AddressedSource
from tidelog.collection.source.files import FilesSource
from tidelog.collection.source.kind import OpenedWith, SourceKind, told
from tidelog.collection.source.port import RawSource
from tidelog.errors import GoneError, UsageError
from tidelog.persist.format.schema import ShardSchema
from tidelog.store.port import Store
from tidelog.store.urls import open_store, real_root
from tidelog.store.wrappers.metered import Metered

GROUP: Final = "tidelog.sources"
GENERATOR: Final = "generator"
LOG: Final = "log"
OWN: Final = (GENERATOR, LOG)
_registered: dict[str, type[SourceKind]] = {}


def register_kind(kind: type[SourceKind]) -> type[SourceKind]:
    """Make a kind of source known in this process, by its name; return it, as decorators do."""
    _registered[kind.name] = kind
    return kind


def registered_kind(name: str) -> type[SourceKind] | None:
    """Return a kind that was registered in this process, which other processes know nothing of."""
    return _registered.get(name)


def find_kind(name: str) -> type[SourceKind]:
    """Find a kind of source, other than files.

    Raises:
        UsageError: there is none of the name here.
    """
    found = _registered.get(name) or _own(name) or _installed(name)
    if found is None:
        known = ", ".join(sorted({FILES, *OWN, *_registered}))
        raise UsageError(
            f"no kind of source {quoted(name)}; existing kinds: {known}. Install the package that "
            "has it, or register it in this process with register_kind"
        )
    return found


def _own(name: str) -> type[SourceKind] | None:
    # Imported when asked for: most who ingest files need neither.
    if name == GENERATOR:
        from tidelog.collection.source.generator import Generator

        return Generator
    if name == LOG:
        from tidelog.collection.source.log import LogRecords

        return LogRecords
    return None


def _installed(name: str) -> type[SourceKind] | None:
    for entry in metadata.entry_points(group=GROUP, name=name):
        found = entry.load()
        if isinstance(found, type) and issubclass(found, SourceKind):
            return found
    return None


def open_kind(
    info: SourceInfo, *, store: Store, clock: Clock, opened: dict[str, Metered] | None = None
) -> SourceKind:
    """Open a source of another kind than files; ``store`` is the location's.

    ``opened`` are other stores that are open, by URL; those that the source opens are put there.

    Raises:
        UsageError: there is no such kind here, or it has no such setting.
    """
    kind = find_kind(info.kind)
    unknown = [name for name in info.settings if name not in kind.knows]
    if unknown:
        known = ", ".join(kind.knows) or "none"
        raise UsageError(
            f"--set {unknown[0]}: a source of the kind {info.kind!r} has no such setting; "
            f"it has {known}"
        )
    stores = {} if opened is None else opened
    opening = partial(_open_once, stores, clock)
    return kind(OpenedWith(info=info, store=store, clock=clock, open_store=opening))


def _open_once(stores: dict[str, Metered], clock: Clock, url: str) -> Metered:
    if url not in stores:
        stores[url] = Metered(open_store(url, clock=clock), clock=clock)
    return stores[url]


def open_source(
    info: SourceInfo,
    schema: ShardSchema,
    *,
    store: Store,
    clock: Clock,
    final: bool = False,
    opened: dict[str, Metered] | None = None,
) -> RawSource:
    """Open a source that the catalog knows; see `open_kind`.

    Raises:
        UsageError: it is of a kind that is not installed here.
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


async def release_source(info: SourceInfo, *, store: Store, clock: Clock) -> bool:
    """Release what a dropped source holds elsewhere; return False if its kind is not known here.

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
