"""The blocking API: sources. Do not edit: `kit.blocking_source` writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.blocking.portal import BlockingTwin, documented_as
from tidelog.collection import renditions as awaited_renditions
from tidelog.collection import sources as awaited_sources

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from tidelog.collection.catalog.catalog import RenditionInfo, SourceInfo
    from tidelog.collection.formats.times import When
    from tidelog.collection.ingest.binding_of import BoundAddresses
    from tidelog.collection.ingest.checking import SourceCheck
    from tidelog.collection.ingest.engine import Engine
    from tidelog.collection.ingest.status import SourceStatus
    from tidelog.collection.ingest.summary import RunProgress, Summary
    from tidelog.collection.rendition_spec import RenditionSpec
    from tidelog.collection.renditions import RenditionChange, RenditionFacts
    from tidelog.collection.spec_types import SourceSpec


@documented_as(awaited_sources.Sources)
class Sources(BlockingTwin[awaited_sources.Sources]):
    """The sources of a location."""

    def create(self, spec: SourceSpec) -> SourceInfo:
        return self._portal.run(self._inner.create(spec))

    def find(self, name: str) -> tuple[SourceInfo, RenditionInfo]:
        return self._portal.run(self._inner.find(name))

    def list(self) -> builtins.list[str]:
        return self._portal.run(self._inner.list())

    def drop(self, name: str) -> None:
        self._portal.run(self._inner.drop(name))

    def alter(
        self,
        name: str,
        *,
        add: pa.Schema | str | None = None,
        drop: Sequence[str] = (),
        discard_values: bool = False,
    ) -> tuple[SourceInfo, RenditionInfo]:
        return self._portal.run(
            self._inner.alter(name, add=add, drop=drop, discard_values=discard_values)
        )

    def skip(self, name: str, path: str) -> None:
        self._portal.run(self._inner.skip(name, path))

    def acknowledge(self, name: str, *paths: str) -> None:
        self._portal.run(self._inner.acknowledge(name, *paths))

    def ingest(
        self,
        name: str,
        *,
        engine: Engine | None = None,
        bytes_max: int | None = None,
        strict: bool = False,
        final: bool = False,
        on_tick: Callable[[RunProgress], None] | None = None,
    ) -> Summary:
        return self._portal.run(
            self._inner.ingest(
                name,
                engine=engine,
                bytes_max=bytes_max,
                strict=strict,
                final=final,
                on_tick=on_tick,
            )
        )

    def ingest_all(
        self,
        *,
        engine: Engine | None = None,
        bytes_max: int | None = None,
        strict: bool = False,
        final: bool = False,
        on_tick: Callable[[str, RunProgress], None] | None = None,
    ) -> dict[str, Summary]:
        return self._portal.run(
            self._inner.ingest_all(
                engine=engine, bytes_max=bytes_max, strict=strict, final=final, on_tick=on_tick
            )
        )

    def check(
        self,
        name: str,
        *,
        since: When | None = None,
        until: When | None = None,
        engine: Engine | None = None,
        on_binding: Callable[[SourceCheck], None] | None = None,
    ) -> SourceCheck:
        return self._portal.run(
            self._inner.check(name, since=since, until=until, engine=engine, on_binding=on_binding)
        )

    def status(self, name: str) -> SourceStatus:
        return self._portal.run(self._inner.status(name))

    def get_binding(self, name: str, path: str, address: int) -> BoundAddresses:
        return self._portal.run(self._inner.get_binding(name, path, address))


@documented_as(awaited_renditions.Renditions)
class Renditions(BlockingTwin[awaited_renditions.Renditions]):
    """The renditions of collections."""

    def create(self, spec: RenditionSpec, *, of: str) -> RenditionFacts:
        return self._portal.run(self._inner.create(spec, of=of))

    def list(self, of: str) -> builtins.list[RenditionFacts]:
        return self._portal.run(self._inner.list(of))

    def describe(self, name: str) -> RenditionFacts:
        return self._portal.run(self._inner.describe(name))

    def history(self, of: str) -> tuple[builtins.list[RenditionChange], int | None]:
        return self._portal.run(self._inner.history(of))

    def diff(self, one: str, other: str, *, as_of: When | None = None) -> pa.Table:
        return self._portal.run(self._inner.diff(one, other, as_of=as_of))

    def handover(
        self,
        of: str,
        *,
        to: str,
        at: When | None = None,
        wait: bool = False,
        timeout_us: int | None = None,
    ) -> int:
        return self._portal.run(
            self._inner.handover(of, to=to, at=at, wait=wait, timeout_us=timeout_us)
        )

    def drop(self, name: str) -> None:
        self._portal.run(self._inner.drop(name))
