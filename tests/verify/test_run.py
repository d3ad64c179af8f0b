"""Whole runs: clean on a correct log, and failing on a log that breaks a guarantee."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from kit.stores import InterposedStore
from tidelog.core.clock import SystemClock
from tidelog.errors import NoSuchLog, UsageError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing import Fault, FaultyStore
from tidelog.testing.faulty import Request
from tidelog.verify.run import Report, Settings, Verification
from tidelog.wal.log import Log
from tidelog.wal.logs import Logs

CLOCK = SystemClock()


def settings_of(**changed: Any) -> Settings:
    return Settings(**{"seed": 5, "seconds": 1.5, "streams": 16, "batch_max": 16, **changed})


def run(store: Store, settings: Settings, *, keep: bool = False) -> Report:
    verification = Verification(store=store, clock=CLOCK, writer="t", settings=settings)
    return asyncio.run(verification.run(keep=keep))


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
def test_a_log_that_keeps_its_promises_is_clean(protocol: str) -> None:
    """The run includes collections, replays and takeovers, and deletes its logs at the end."""
    for seconds in (1.5, 6.0, 24.0):  # A busy machine may not do all of these in the shortest run.
        store = MemoryStore()
        report = run(store, settings_of(protocol=protocol, seconds=seconds))
        figures = report.figures
        assert report.is_clean, report.to_dict()
        has_taken_over = protocol == "manifest" or figures.takeovers >= 1
        if has_taken_over and figures.collections >= 1 and figures.replays >= 1:
            break

    assert figures.records >= figures.appends > 10
    assert figures.records_read > 2 * figures.records
    assert figures.collections >= 1
    assert figures.replays >= 1
    assert protocol == "manifest" or figures.takeovers >= 1
    assert report.to_dict()["lag_p99_us"] >= report.to_dict()["lag_p50_us"] > 0
    for name in (report.settings.log, report.settings.cuts):
        with pytest.raises(NoSuchLog):
            asyncio.run(Logs(store=store, clock=CLOCK, writer="t").open(name))


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
def test_a_later_run_goes_on_from_the_cut(protocol: str) -> None:
    """A later run with the same seed first replays the records. It may add streams."""
    store = MemoryStore()
    first = run(store, settings_of(protocol=protocol, seconds=0.8), keep=True)
    second = run(store, settings_of(protocol=protocol, seconds=0.8, streams=20), keep=True)

    assert first.is_clean
    assert second.is_clean
    assert second.figures.resumed_at == first.figures.records + 1
    assert second.figures.replays >= 1
    other = "manifest" if protocol == "slot" else "slot"
    with pytest.raises(UsageError, match=f"with the protocol {protocol}"):
        run(store, settings_of(protocol=other))


@dataclass
class LyingLog:
    """A correct log, except that one of its handles harms the records."""

    inner: Log
    harm: str
    harmed: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def append_arrow(self, bodies: pa.BinaryArray) -> int:
        if self.harm == "lose" and not self.harmed and len(bodies) > 1:
            self.harmed.append("append")
            # The acknowledged records are missing, and no others.
            return (await self.inner.bounds()).next
        position = await self.inner.append_arrow(bodies)
        if self.harm == "misplace" and not self.harmed:
            self.harmed.append("append")
            return position - 1
        if self.harm == "double" and not self.harmed:
            self.harmed.append("append")
            await self.inner.append_arrow(bodies)
        return position

    def follow(self, start: int) -> AsyncIterator[pa.Table]:
        return self._harmed(self.inner.follow(start))

    def scan(self, start: int, *, limit: int | None = None) -> AsyncIterator[pa.Table]:
        return self._harmed(self.inner.scan(start, limit=limit))

    async def _harmed(self, tables: AsyncIterator[pa.Table]) -> AsyncIterator[pa.Table]:
        async for table in tables:
            bodies: list[Any] = table.column("body").to_pylist()
            if self.harm == "change" and not self.harmed:
                self.harmed.append("read")
                bodies[0] = bodies[0][:-1] + bytes([bodies[0][-1] ^ 1])
            elif self.harm == "reorder" and len(bodies) > 20 and not self.harmed:
                self.harmed.append("read")
                bodies.reverse()
            column = pa.array(bodies, pa.binary())
            yield table.set_column(table.schema.get_field_index("body"), "body", column)


@dataclass(slots=True, kw_only=True)
class HarmedRun(Verification):
    harm: str
    victim: str

    async def open_log(self, who: str) -> Log:
        log = await Verification.open_log(self, who)
        return LyingLog(log, self.harm) if who == self.victim else log  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("harm", "victim", "why"),
    [
        ("lose", "writer-0", "is missing"),
        ("double", "writer-1", "is repeated"),
        ("misplace", "writer-0", "acknowledged at this position"),
        ("change", "reader-1", "was changed"),
        ("change", "late reader", "was changed"),
        ("reorder", "reader-0", "is missing"),
        ("reorder", "collector", "is missing"),
    ],
)
def test_each_broken_promise_is_found(harm: str, victim: str, why: str) -> None:
    """A reader reports the record of each broken guarantee, and the run keeps the logs."""
    store, settings = MemoryStore(), settings_of(seconds=5)
    verification = HarmedRun(
        store=store, clock=CLOCK, writer="t", settings=settings, harm=harm, victim=victim
    )
    report = asyncio.run(verification.run())

    assert report.mismatch is not None, report.to_dict()
    assert not report.is_clean
    assert report.mismatch.seed == settings.seed
    told = report.mismatch.why
    # If the lost records were the last, the log has no gap, and the report concerns its end.
    may_end = harm == "lose" and "log ends" in told
    assert why in told or may_end, told
    asyncio.run(Logs(store=store, clock=CLOCK, writer="t").open(settings.log))


@pytest.mark.parametrize("harm", ["flip", "delete"])
@pytest.mark.parametrize("protocol", ["slot", "manifest"])
def test_a_store_that_lies_is_found(protocol: str, harm: str) -> None:
    """A checksum, a missing object or an early end reveals a store's wrong answer."""
    inner, settings = MemoryStore(), settings_of(protocol=protocol, seconds=5)
    harmed: list[str] = []
    folder = "epoch" if protocol == "slot" else "log"

    async def before(op: str, key: str) -> None:
        found = inner.objects.get(key)
        if op != "get" or not key.startswith(f"log/verify-5/{folder}/") or harmed:
            return
        if found is None or len(found.data) < 2_000:
            return  # A fence, which may no longer be needed.
        harmed.append(key)
        if harm == "delete":
            await inner.delete([key])
        else:
            await inner.put(key, found.data[:64] + b"\xff" * 64 + found.data[128:])

    report = run(InterposedStore(inner, before=before), settings)

    assert harmed
    assert not report.is_clean
    assert report.problems or report.mismatch
    asyncio.run(Logs(store=inner, clock=CLOCK, writer="t").open(settings.log))


def test_a_log_that_lost_its_end_between_two_runs_is_found() -> None:
    """The second run finds a lost end. The cut stores the position that the log must reach."""
    store = MemoryStore()
    run(store, settings_of(protocol="manifest", seconds=0.8), keep=True)
    cut = {k: v for k, v in store.objects.items() if k.startswith("log/verify-5-cuts/")}
    for key in [key for key in store.objects if key.startswith("log/verify-5/")]:
        del store.objects[key]
    run(MemoryStore(objects=store.objects), settings_of(protocol="manifest", seed=6, seconds=0.3))
    asyncio.run(_make(store, "verify-5"))
    assert all(store.objects[key] == value for key, value in cut.items())

    report = run(store, settings_of(protocol="manifest", seconds=0.8))

    assert report.mismatch is not None
    assert "ends before" in report.mismatch.why


async def _make(store: Store, name: str) -> None:
    log = await Logs(store=store, clock=CLOCK, writer="t").create(name, protocol="manifest")
    await log.create_cursor("cut", 1)


@pytest.mark.parametrize("protocol", ["slot", "manifest"])
def test_a_store_that_fails_now_and_then_is_no_mistake_of_the_log(protocol: str) -> None:
    """Lost answers and occasional failures of a store are no faults of the log."""
    puts = 0

    def toss(request: Request) -> Fault:
        nonlocal puts
        puts += request.changes
        if request.changes and puts % 15 == 0:
            return Fault(happened=puts % 2 == 0, told=False)
        # Few reads fail, because a scrub has many and starts again after a failure.
        is_told = request.changes or request.index % 200 > 0
        return Fault(happened=is_told, told=True)

    store = FaultyStore(MemoryStore(), toss=toss)
    report = run(store, settings_of(protocol=protocol, seed=9))

    assert report.is_clean, report.to_dict()
    assert report.figures.records > 10
    assert puts > 45


@pytest.mark.parametrize(
    "changed",
    [
        {"seconds": 0},
        {"seconds": 1e9},
        {"writers": 0},
        {"readers": 65},
        {"streams": 0},
        {"streams": 10_001},
        {"batch_max": 0},
        {"seed": -1},
        {"protocol": "raft"},
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(changed: dict[str, Any]) -> None:
    """Wrong settings raise before the run creates anything."""
    with pytest.raises(UsageError):
        settings_of(**changed)
