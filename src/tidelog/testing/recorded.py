"""A store that records its requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tidelog.errors import TidelogError
from tidelog.store.port import Entry, Object, Store


@dataclass(slots=True)
class RecordedRequest:
    """One request and its result.

    ``condition``: ``absent``, ``match <e_tag>``, ``unless <e_tag>``, ``bytes [start, limit)``,
    ``after <key>``, or empty. ``size``: bytes read or written, keys deleted, entries listed.
    ``result``: the e_tag, ``same`` for a refresh that found no change, ``done``, or the class of
    the error.
    """

    op: str
    key: str
    condition: str = ""
    size: int = 0
    result: str = "under way"


class RecordedStore:
    """A store around another one, with a list of `RecordedRequest` in the order of their starts."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.records: list[RecordedRequest] = []

    @property
    def url(self) -> str:
        return self._store.url

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        whole = start == 0 and limit is None
        condition = "" if whole else f"bytes [{start}, {'end' if limit is None else limit})"
        with self._record(RecordedRequest("get", key, condition)) as record:
            stored = await self._store.get(key, start=start, limit=limit)
            record.size, record.result = len(stored.data), stored.e_tag
            return stored

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        with self._record(RecordedRequest("refresh", key, f"unless {e_tag}")) as record:
            stored = await self._store.refresh(key, e_tag)
            if stored is None:
                record.result = "same"
            else:
                record.size, record.result = len(stored.data), stored.e_tag
            return stored

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        condition = "absent" if if_absent else "" if if_match is None else f"match {if_match}"
        with self._record(RecordedRequest("put", key, condition, len(data))) as record:
            record.result = await self._store.put(key, data, if_absent=if_absent, if_match=if_match)
            return record.result

    async def delete(self, keys: Sequence[str]) -> None:
        with self._record(RecordedRequest("delete", " ".join(keys), size=len(keys))) as record:
            await self._store.delete(keys)
            record.result = "done"

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        condition = "" if after is None else f"after {after}"
        with self._record(RecordedRequest("list", prefix, condition)) as record:
            async for entry in self._store.list(prefix, after=after):
                record.size += 1
                yield entry
            record.result = "done"

    @contextmanager
    def _record(self, record: RecordedRequest) -> Iterator[RecordedRequest]:
        self.records.append(record)
        try:
            yield record
        except TidelogError as error:
            record.result = type(error).__name__
            raise
