"""The wrappers of a location's store: a cache of parts, and hedged requests.

The query of a cloud URL sets them (``?cache=256MiB&hedge=on``), or arguments, or the environment;
arguments win over the URL, and the URL wins over the environment. A place is named by its URL
without these options, because they state where this process keeps copies, not where objects are. A
place on disk takes none in its URL, because its name may contain a ``?``.

Invariants: the order is ``CachedStore(HedgedStore(MeteringStore(store)))``, so the meter counts the
requests sent. A read-only connection has a `ReadOnlyStore` below them. Only parts are cached,
because a part's name is never used again. A late writer may create a collected slot of a log again,
and consensus objects are replaced, so caching them would be wrong. Puts are sent once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote

from tidelog.core.arguments import check_kind, quoted
from tidelog.core.clock import Clock
from tidelog.errors import UsageError
from tidelog.store.port import Store
from tidelog.store.urls import CLOUD_SCHEMES, open_store, split_query, url_text
from tidelog.store.wrappers.cached import CachedStore, CacheSize
from tidelog.store.wrappers.hedged import HedgedStore
from tidelog.store.wrappers.metered import MeteringStore
from tidelog.store.wrappers.read_only import ReadOnlyStore

CACHE_VARIABLE: Final = "TIDELOG_CACHE"
HEDGE_VARIABLE: Final = "TIDELOG_HEDGE"
OPTIONS: Final = ("cache", "hedge")
OFF: Final = "off"
INGEST_CACHE: Final = CacheSize(memory_bytes=32 << 20)

_PART: Final = re.compile(r"shard/[^/]+/part/[0-9a-f]{8}/[^/]+")
_SIZE: Final = re.compile(r"([0-9]{1,6})(MiB|GiB)")
_SHIFTS: Final = {"MiB": 20, "GiB": 30}
_ON_DISK: Final = re.compile(rf"\?(?:.*&)?({'|'.join(OPTIONS)})=[^/]*$")
_CACHE_TOLD: Final = (
    "a cache must be a size in memory (256MiB, 2GiB), the absolute path of a folder, or 'off'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapping:
    """The settings given; None if not given. ``cache`` is a size, a folder, or "off"."""

    cache: str | None = None
    hedge: bool | None = None

    def __post_init__(self) -> None:
        if self.cache is not None:
            _check_cache(self.cache)

    def otherwise(self, other: Wrapping) -> Wrapping:
        """Return these settings, with the missing ones taken from ``other``."""
        return Wrapping(
            cache=other.cache if self.cache is None else self.cache,
            hedge=other.hedge if self.hedge is None else self.hedge,
        )

    @property
    def directory(self) -> Path | None:
        """Return the folder for cached copies, if there is one."""
        is_folder = self.cache is not None and self.cache.startswith("/")
        return Path(self.cache or "") if is_folder else None

    @property
    def bounds(self) -> CacheSize:
        """Return the limits of the cache."""
        match = _SIZE.fullmatch(self.cache or "")
        if match is None:
            return CacheSize()
        return CacheSize(memory_bytes=int(match[1]) << _SHIFTS[match[2]])


NOTHING_TOLD: Final = Wrapping()


@dataclass(frozen=True, slots=True)
class WrappedStores:
    """The layers of a wrapped store.

    ``whole`` is for parts and logs. ``fresh`` does not cache: it is for consensus, and for checks
    of stored bytes. ``meter`` counts the requests sent.
    """

    whole: Store
    fresh: Store
    meter: MeteringStore


def split_wrapping(url: str) -> tuple[str, Wrapping]:
    """Return the URL of a place without the options, and the options.

    Raises:
        UsageError: an option is invalid or given twice, or the place is on disk.
    """
    if url.partition(":")[0].lower() not in CLOUD_SCHEMES:
        match = _ON_DISK.search(url)
        if match is not None and not os.path.exists(url):
            raise UsageError(
                f"a path on disk cannot have the parameter {match[1]}=: set {CACHE_VARIABLE} or "
                f"{HEDGE_VARIABLE}, or in Python call connect(url, cache=..., hedge=...)",
                url=quoted(url),
            )
        return url, NOTHING_TOLD
    place, query = split_query(url)
    pieces = query.split("&") if query else []
    options = [piece for piece in pieces if piece.partition("=")[0] in OPTIONS]
    if not options:
        return url, NOTHING_TOLD
    pairs = parse_qsl("&".join(options).replace("+", "%2B"), keep_blank_values=True)
    if len(dict(pairs)) < len(pairs):
        raise UsageError("the URL has cache or hedge twice: remove one", url=place)
    left = [piece for piece in pieces if piece not in options]
    return place + ("?" + "&".join(left) if left else ""), _wrapping_of(dict(pairs))


def with_wrapping(url: str, wrapping: Wrapping) -> str:
    """Return a URL with which another process opens a place with the same wrappers.

    Spark's executors use it. A URL on disk is returned unchanged. The URL must have no such options
    yet.
    """
    if url.partition(":")[0].lower() not in CLOUD_SCHEMES:
        return url
    options = [] if wrapping.cache is None else [f"cache={quote(wrapping.cache, safe='/')}"]
    options += [] if wrapping.hedge is None else [f"hedge={'on' if wrapping.hedge else OFF}"]
    if not options:
        return url
    return url + ("&" if split_query(url)[1] else "?") + "&".join(options)


def told_wrapping(
    *, cache: str | os.PathLike[str] | None, hedge: bool | None, environment: Mapping[str, str]
) -> tuple[Wrapping, Wrapping]:
    """Return the settings of the arguments, and those of the environment.

    Raises:
        UsageError: a setting is invalid.
    """
    if hedge is not None:
        check_kind(hedge, bool, "hedge must be True or False")
    if cache is not None:
        check_kind(cache, str | os.PathLike, _CACHE_TOLD)  # type: ignore[arg-type]
    names = {"cache": CACHE_VARIABLE, "hedge": HEDGE_VARIABLE}
    values = {name: environment[at] for name, at in names.items() if environment.get(at)}
    given = None if cache is None else os.fspath(cache)
    return Wrapping(cache=given, hedge=hedge), _wrapping_of(values)


def wrap(
    store: Store, wrapping: Wrapping, *, clock: Clock, read_only: bool = False
) -> WrappedStores:
    """Wrap a store. This sends and creates nothing."""
    meter = MeteringStore(ReadOnlyStore(store) if read_only else store, clock=clock)
    fresh: Store = HedgedStore(meter, clock=clock) if wrapping.hedge else meter
    if wrapping.cache in (None, OFF):
        return WrappedStores(fresh, fresh, meter)
    kept = keep_parts(fresh, wrapping.bounds, clock=clock, directory=wrapping.directory)
    return WrappedStores(kept, fresh, meter)


def keep_parts(
    store: Store, bounds: CacheSize, *, clock: Clock, directory: Path | None = None
) -> CachedStore:
    """Return a store that caches parts."""
    return CachedStore(store, clock=clock, is_immutable=is_part, bounds=bounds, directory=directory)


def open_wrapped(url: str, *, clock: Clock, otherwise: Wrapping = NOTHING_TOLD) -> WrappedStores:
    """Open the store at a URL with the URL's options; ``otherwise`` supplies missing ones.

    Raises:
        UsageError: see `split_wrapping` and `tidelog.store.urls.open_store`.
    """
    place, wrapping = split_wrapping(url_text(url))
    return wrap(open_store(place, clock=clock), wrapping.otherwise(otherwise), clock=clock)


def is_part(key: str) -> bool:
    """Return True if a key of a location is the key of a shard's part."""
    return _PART.fullmatch(key) is not None


def _wrapping_of(values: Mapping[str, str]) -> Wrapping:
    wrapping = Wrapping(cache=values.get("cache"))
    hedge = values.get("hedge")
    if hedge is None:
        return wrapping
    if hedge not in ("on", OFF):
        raise UsageError(f"hedge must be on or off, not {quoted(hedge)}")
    return replace(wrapping, hedge=hedge == "on")


def _check_cache(cache: str) -> None:
    size = _SIZE.fullmatch(cache)
    is_folder = cache.startswith("/") and "\0" not in cache
    if cache != OFF and not is_folder and (size is None or not int(size[1])):
        raise UsageError(f"{_CACHE_TOLD}, not {quoted(cache)}")
    if is_folder and os.path.exists(cache) and not os.path.isdir(cache):
        raise UsageError(f"the cache {quoted(cache)} is not a folder: pass another path")
