"""The blocking API: collections. Do not edit: `kit.blocking_source` writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.blocking.portal import Blocking, documented_as
from tidelog.collection import collection as awaited_collection
from tidelog.collection import collections as awaited_collections

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from tidelog.collection.formats.times import When
    from tidelog.collection.reading import CollectionDescription, Contents
    from tidelog.core.frontier import Frontier


@documented_as(awaited_collections.Collections)
class Collections(Blocking[awaited_collections.Collections]):
    """The collections of a location."""

    def open(self, name: str) -> Collection:
        return Collection(self._portal, self._portal.run(self._inner.open(name)))

    def list(self) -> builtins.list[str]:
        return self._portal.run(self._inner.list())

    def retain(self, name: str, retain_ms: int | None) -> None:
        self._portal.run(self._inner.retain(name, retain_ms))


@documented_as(awaited_collection.Collection)
class Collection(Blocking[awaited_collection.Collection]):
    """A collection.

    A time is ISO 8601 text, a datetime, a date (its midnight in UTC) or milliseconds since 1970.
    """

    def __repr__(self) -> str:
        return repr(self._inner)

    def hold(self, name: str, at: When | None = None, *, token: int | None = None) -> Frontier:
        return self._portal.run(self._inner.hold(name, at, token=token))

    def move_hold(self, name: str, at: When, *, token: int | None = None) -> Frontier:
        return self._portal.run(self._inner.move_hold(name, at, token=token))

    def drop_hold(self, name: str, *, token: int | None = None) -> bool:
        return self._portal.run(self._inner.drop_hold(name, token=token))

    def snapshot(
        self,
        as_of: When | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> Contents:
        return self._portal.run(
            self._inner.snapshot(as_of, columns=columns, where=where, limit=limit)
        )

    def consolidated(
        self,
        as_of: When | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        return self._portal.run(
            self._inner.consolidated(as_of, columns=columns, where=where, limit=limit)
        )

    def scan(
        self,
        as_of: When | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> Iterator[pa.Table]:
        return self._portal.iterate(
            self._inner.scan(as_of, columns=columns, where=where, limit=limit)
        )

    def changes(
        self,
        since: When,
        until: When | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        return self._portal.run(
            self._inner.changes(since, until, columns=columns, where=where, limit=limit)
        )

    def describe(self) -> CollectionDescription:
        return self._portal.run(self._inner.describe())
