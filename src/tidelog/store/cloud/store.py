"""A store in the cloud: S3 and compatible stores, Google Cloud Storage, Azure.

obstore sends reads, plain puts and deletes again for a few seconds. A conditional put is sent once.
If obstore sent it again, the store could refuse it because of its own first try, without a trace.
`tidelog.store.conditional` sends it again, and reads back. Bodies are sent in one request, never in
parts, because only that is atomic on every store.
Source: wal3, "Interacting with Object Storage".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import NotModifiedError

from tidelog.core.clock import Clock, backoff_us
from tidelog.errors import ContentionError, CorruptionError, StoreRefused, TidelogError, UsageError
from tidelog.store.cloud.mapping import (
    FOREIGN,
    Condition,
    FailedRequest,
    Verb,
    WriteConflict,
    has_odd_key,
    is_past_the_end,
    to_tidelog,
)
from tidelog.store.cloud.order import in_key_order, is_past, listing_start
from tidelog.store.cloud.s3_listing import S3Listing
from tidelog.store.keys import check_key, may_begin_key
from tidelog.store.port import Entry, Object

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta, PutMode, PutResult
    from obstore.store import ObjectStore

_CONFLICT_TRIES = 6
_PAGE_ENTRIES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One bucket and a prefix in it, opened twice.

    Shape: ``patient`` sends requests again if possible, ``single`` never. ``strings`` means that
    listings are known to be ordered as plain strings. ``by_version`` means that replacements are
    conditional on the version (Google's generation) instead of the e_tag. ``listing`` lists objects
    whose keys obstore cannot read.
    """

    name: str
    url: str
    patient: ObjectStore
    single: ObjectStore
    strings: bool
    by_version: bool
    listing: S3Listing | None = None


class CloudStore:
    """Objects under a prefix of a bucket; built by `tidelog.store.cloud.open.open_cloud`."""

    def __init__(self, bucket: Bucket, *, clock: Clock) -> None:
        self._bucket = bucket
        self._clock = clock

    @property
    def url(self) -> str:
        return self._bucket.url

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        """Read an object, or a range of it.

        Raises:
            ObjectNotFound: the object does not exist.
            LocationError: the store failed.
            StoreRefused: the store refused the credentials.
            CorruptionError: the store sent fewer bytes than it announced.
        """
        check_key(key)
        try:
            if limit is not None and limit <= start:
                return await self._head(key)
            return await self._get(key, _range_options(start, limit))
        except FOREIGN as error:
            if not is_past_the_end(error):
                raise self._mapped(error, "get", key) from error
        try:
            return await self._head(key)
        except FOREIGN as error:
            raise self._mapped(error, "get", key) from error

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        check_key(key)
        try:
            return await self._get(key, {"if_none_match": self._e_tag_of(e_tag)})
        except NotModifiedError:
            return None
        except FOREIGN as error:
            raise self._mapped(error, "get", key) from error

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        """Store an object and return its e_tag; a conditional put is sent once.

        Raises:
            ObjectExists: the condition does not hold. NOT_APPLIED.
            ObjectChanged: the condition does not hold. NOT_APPLIED.
            ContentionError: the store was busy with other conditional puts of the key. NOT_APPLIED.
            StoreRefused: the store refused the credentials. NOT_APPLIED.
            LocationError: no answer, or a failure; UNKNOWN, or NOT_APPLIED if the put never left.
        """
        if if_absent and if_match is not None:
            raise UsageError("a put takes one condition at most: remove one", key=key)
        check_key(key)
        mode: PutMode = "create" if if_absent else "overwrite"
        condition: Condition = "absent" if if_absent else "none"
        if if_match is not None:
            mode, condition = self._mode_of(if_match), "match"
        for attempt in range(_CONFLICT_TRIES):
            try:
                return await self._put(key, data, mode)
            except FOREIGN as error:
                mapped = self._failure(error, "put", key, condition)
                if not isinstance(mapped, WriteConflict):
                    raise mapped from error
            await self._clock.sleep(backoff_us(attempt, self._clock, first_us=20_000))
        raise ContentionError(
            "the store is busy with other conditional writes of this object: try again later",
            key=key,
            store=self.url,
        )

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, many with one request if the store can.

        Raises:
            LocationError: the store failed; some objects may be deleted. UNKNOWN.
        """
        paths = [check_key(key) for key in keys]
        try:
            if paths:
                await obstore.delete_async(self._bucket.patient, paths)
        except FileNotFoundError:
            # Google and Azure fail at the first missing object, and the others still exist.
            for path in paths:
                await self._delete_one(path)
        except FOREIGN as error:
            raise self._mapped(error, "delete", keys[0]) from error

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        """Yield the objects in key order.

        A store of unknown order is assumed to order keys as strings or part by part. Then one
        directory at a time is held back and sorted.
        """
        if not may_begin_key(prefix):
            return
        entries = self._entries(prefix, after)
        ordered = entries if self._bucket.strings else in_key_order(entries, prefix)
        async for entry in ordered:
            yield entry

    async def _entries(self, prefix: str, after: str | None) -> AsyncIterator[Entry]:
        last = listing_start(prefix, after, strings=self._bucket.strings)
        try:
            pages = obstore.list(
                self._bucket.patient,
                prefix[: prefix.rfind("/") + 1] or None,  # obstore lists only whole parts.
                offset=last,
                chunk_size=_PAGE_ENTRIES,
            )
            async for page in pages:
                for meta in page:
                    last = meta["path"]
                    if is_past(prefix, last):
                        return
                    if _is_wanted(last, prefix, after):
                        yield self._entry(meta)
        except FOREIGN as error:
            mapped = self._mapped(error, "list", prefix)
            if self._bucket.listing is None or not has_odd_key(error):
                raise mapped from error
        else:
            return
        folder = prefix[: prefix.rfind("/") + 1]
        try:
            async for entry in self._bucket.listing.entries(folder, last, clock=self._clock):
                if is_past(prefix, entry.key):
                    return
                if _is_wanted(entry.key, prefix, after):
                    yield entry
        except FOREIGN as error:
            raise self._mapped(error, "list", prefix) from error

    async def _get(self, key: str, options: GetOptions) -> Object:
        result = await obstore.get_async(self._bucket.patient, key, options=options)
        start, limit = result.range
        meta = result.meta
        data = bytes(await result.bytes_async())
        if len(data) != limit - start:
            raise CorruptionError(
                "the store sent a different number of bytes than it announced: read again; if "
                "the error remains, compare the object with its copies",
                key=key,
                store=self.url,
                announced_bytes=limit - start,
                got_bytes=len(data),
            )
        return self._object(data, meta)

    async def _head(self, key: str) -> Object:
        return self._object(b"", await obstore.head_async(self._bucket.patient, key))

    async def _put(self, key: str, data: bytes, mode: PutMode) -> str:
        store = self._bucket.patient if mode == "overwrite" else self._bucket.single
        return self._tag(await obstore.put_async(store, key, data, mode=mode, use_multipart=False))

    async def _delete_one(self, path: str) -> None:
        try:
            await obstore.delete_async(self._bucket.patient, path)
        except FileNotFoundError:
            pass
        except FOREIGN as error:
            raise self._mapped(error, "delete", path) from error

    def _object(self, data: bytes, meta: ObjectMeta) -> Object:
        return Object(data, self._tag(meta), _modified_us(meta))

    def _entry(self, meta: ObjectMeta) -> Entry:
        return Entry(meta["path"], meta["size"], self._tag(meta), _modified_us(meta))

    def _tag(self, of: ObjectMeta | PutResult) -> str:
        """Return the e_tag; if replacements use the version, it precedes the e_tag."""
        e_tag = of["e_tag"]
        if e_tag is None:
            raise StoreRefused(
                "the store returns no e_tags, so objects cannot be replaced safely: use another "
                "store",
                store=self.url,
            )
        if not e_tag.endswith('"'):
            e_tag = f'"{e_tag}"'  # Azure's listings omit the quotes.
        return f"{of['version'] or ''}|{e_tag}" if self._bucket.by_version else e_tag

    def _mode_of(self, tag: str) -> PutMode:
        if not self._bucket.by_version:
            return {"e_tag": tag}
        version, _, e_tag = tag.partition("|")
        return {"e_tag": e_tag, "version": version}

    def _e_tag_of(self, tag: str) -> str:
        return tag.partition("|")[2] if self._bucket.by_version else tag

    def _failure(
        self, error: Exception, verb: Verb, key: str, condition: Condition = "none"
    ) -> TidelogError | WriteConflict:
        return to_tidelog(
            error,
            FailedRequest(
                verb=verb,
                key=key,
                bucket=self._bucket.name,
                store=self.url,
                condition=condition,
            ),
        )

    def _mapped(self, error: Exception, verb: Verb, key: str) -> TidelogError:
        mapped = self._failure(error, verb, key)
        if isinstance(mapped, WriteConflict):
            return ContentionError(
                "the store is busy with other writes of this object: try again later",
                key=key,
                store=self.url,
            )
        return mapped


def _is_wanted(key: str, prefix: str, after: str | None) -> bool:
    """Return True if a listing has a key. Azure's emulator ignores the offset."""
    return key.startswith(prefix) and (after is None or key > after)


def _range_options(start: int, limit: int | None) -> GetOptions:
    if limit is not None:
        return {"range": (start, limit)}
    return {"range": {"offset": start}} if start else {}


def _modified_us(meta: ObjectMeta) -> int:
    return int(meta["last_modified"].timestamp() * 1e6)
