"""The runs of ``tidelog ingest``: of one source, and of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.cli.engine import LateSession, LateSpark, choose_engine
from tidelog.cli.ingest_all_report import open_all_reporter
from tidelog.cli.ingest_report import open_reporter
from tidelog.cli.rounds import stopped_by_sigterm

if TYPE_CHECKING:
    from tidelog.collection.ingest.all_sources import AllResults
    from tidelog.collection.ingest.ingest import Ingester
    from tidelog.collection.ingest.run import FirstHead
    from tidelog.collection.ingest.summary import RunProgress, Summary
    from tidelog.collection.ingest.turns import Turns
    from tidelog.location import Location


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """The arguments of the command, checked; ``name`` is None for all sources."""

    name: str | None
    engine: str
    master: str | None
    conf: Mapping[str, str]
    follow: bool
    interval_us: int
    heartbeat_us: int
    bytes_max: int | None
    strict: bool
    final: bool
    merges: bool
    as_json: bool


@dataclass(frozen=True, slots=True)
class _Opened:
    """The ingester of a source, its engine, and the head that was read to choose the engine."""

    ingester: Ingester
    engine: str
    first: FirstHead | None

    @classmethod
    async def open(cls, location: Location, name: str, options: IngestOptions) -> _Opened:
        ingester = await location.sources.ingester(
            name, bytes_max=options.bytes_max, strict=options.strict, final=options.final
        )
        if options.engine == "auto":
            return cls(ingester, *await choose_engine(ingester))
        return cls(ingester, options.engine, None)

    async def run(
        self,
        options: IngestOptions,
        *,
        spark: LateSpark,
        on_tick: Callable[[RunProgress], None],
        stop: Callable[[], bool],
        turns: Turns | None = None,
    ) -> Summary:
        from tidelog.collection.ingest.run import run_ingest

        if self.engine == "spark":
            self.ingester.engine = spark
            self.ingester.bytes_max = options.bytes_max or spark.tick_bytes
        return await run_ingest(
            self.ingester,
            follow=options.follow,
            interval_us=options.interval_us,
            heartbeat_us=options.heartbeat_us,
            on_tick=on_tick,
            stop=stop,
            first=self.first,
            merges=options.merges,
            turns=turns,
        )


async def ingest_one(location: Location, name: str, options: IngestOptions) -> None:
    """Ingest the source of a name, and show the progress and the summary."""
    opened = await _Opened.open(location, name, options)
    with open_reporter(name, opened.engine, as_json=options.as_json) as reporter:
        session = LateSession(master=options.master, conf=options.conf)
        spark = LateSpark(location, reporter.note, session)
        try:
            with stopped_by_sigterm() as stopping:
                summary = await opened.run(
                    options, spark=spark, on_tick=reporter.tell, stop=stopping.is_set
                )
        finally:
            await session.close()
    reporter.finish(summary)


async def ingest_all(location: Location, options: IngestOptions) -> None:
    """Ingest all sources, and show the progress of each and one summary.

    Raises:
        SourcesFailed: sources failed; the others were ingested.
    """
    from tidelog.collection.ingest.all_sources import AllSources
    from tidelog.collection.ingest.turns import Turns

    turns = Turns()
    with open_all_reporter(as_json=options.as_json) as reporter:
        session = LateSession(master=options.master, conf=options.conf)
        spark = LateSpark(location, reporter.note, session)
        try:
            with stopped_by_sigterm() as stopping:

                async def run(name: str, tell: Callable[[RunProgress], None]) -> Summary:
                    async with turns.tick():
                        opened = await _Opened.open(location, name, options)
                    reporter.engines[name] = opened.engine
                    return await opened.run(
                        options, spark=spark, on_tick=tell, stop=stopping.is_set, turns=turns
                    )

                results: AllResults = await AllSources(
                    controller=location.controller,
                    clock=location.clock,
                    run=run,
                    on_tick=reporter.tell,
                    on_error=reporter.fail,
                    stop=stopping.is_set,
                    follow=options.follow,
                    interval_us=options.interval_us,
                ).go()
        finally:
            await session.close()
    reporter.finish(results)
    results.check()
