"""The blocking API: sources. Do not edit: `kit.blocking_source` writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.blocking.portal import BlockingTwin, documented_as
from tidelog.collection import sources as awaited_sources

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from tidelog.collection.catalog.catalog import RenditionInfo, SourceInfo
    from tidelog.collection.ingest.engine import Engine
    from tidelog.collection.ingest.summary import RunProgress, Summary
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
