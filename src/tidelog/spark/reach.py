"""Checks of the executors' software and access, before any work is sent to them.

Each executor must do these things: import this tidelog, read an object that the driver just wrote
to the location, write one, and read the beginning of a file of the source. Only such a test shows
whether a path is the same directory on all machines: it may be a mount, or just the same name.

With this module, an executor imports only the standard library and PySpark. So an executor that
lacks another package can still report it.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import re
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tidelog.errors import (
    GoneError,
    LocationError,
    ObjectNotFound,
    StoreRefused,
    TidelogError,
    UsageError,
)
from tidelog.spark.ship import fingerprint, ship

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.core.clock import Clock
    from tidelog.persist.format.part import Part
    from tidelog.spark.tasks import SparkTasks

PREFIX: Final = "probe/"
SAMPLE_BYTES: Final = 4_096
ASKED_MAX: Final = 1_000
READS_MAX: Final = 8
NEEDED: Final = ("duckdb", "msgspec", "numpy", "obstore", "pyarrow", "xxhash")
HOW: Final = "see docs/guides/cluster.md"
_NO_PYTHON: Final = re.compile(r'Cannot run program "([^"]+)"')
_NO_MODULE: Final = re.compile(r"No module named '([^']+)'")
_VERSIONS: Final = re.compile(r"different version: (\S+?)\.? than that in driver:? (\d+\.\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachSample:
    """The beginning of one file of a source; ``told`` is the source's URL for messages."""

    url: str
    told: str
    path: str
    size_bytes: int
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachRequest:
    """A request to an executor; the bytes of the object ``key`` are the key itself."""

    fingerprint: str
    location_url: str
    key: str
    sample: ReachSample | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachAnswer:
    """The answer of an executor.

    Shape: ``missing`` are packages; ``location`` and ``source`` are the errors of access to them;
        ``answer`` is the key of the object that the executor wrote.
    """

    host: str
    fingerprint: str
    missing: tuple[str, ...] = ()
    location: TidelogError | None = None
    source: TidelogError | None = None
    answer: str | None = None


async def check_executors(
    spark: SparkSession,
    tasks: SparkTasks,
    *,
    location_url: str,
    source_url: str,
    paths: Sequence[str],
    clock: Clock,
) -> None:
    """Check that executors can do the work: the same software, and access to the same data.

    ``paths`` are files of the source, in the store at ``source_url``. The check deletes its objects
    from the location.

    Raises:
        UsageError: they cannot; the message names the remedy.
        LocationError: a store failed, here or in an executor, or Spark.
    """
    from tidelog.store.wrapping import open_wrapped

    store = open_wrapped(location_url, clock=clock).meter
    asked = ReachRequest(
        fingerprint=fingerprint(),
        location_url=location_url,
        key=PREFIX + clock.unique(),
        sample=await take_sample(source_url, paths, clock=clock),
    )
    await store.put(asked.key, asked.key.encode())
    try:
        for answer in await _ask(spark, tasks, asked, clock):
            if (problem := judge(answer, asked, store.url)) is not None:
                raise problem
            try:
                await store.get(answer.answer or asked.key)
            except ObjectNotFound as error:
                raise _unseen_location(answer.host, store.url) from error
    finally:
        await store.delete([entry.key async for entry in store.list(asked.key)])


async def check_once(
    spark: SparkSession, tasks: SparkTasks, url: str, checked: set[str], *, clock: Clock
) -> None:
    """Check the executors once per location, if they are not threads of this process.

    Raises:
        UsageError, LocationError: see `check_executors`.
    """
    if url in checked:
        return
    if tasks.is_elsewhere:
        await check_executors(spark, tasks, location_url=url, source_url=url, paths=[], clock=clock)
    checked.add(url)


async def see_parts(
    parts: Sequence[Part], tasks: SparkTasks, location_url: str, *, clock: Clock
) -> None:
    """Check that the driver sees the parts: a new executor may be on a machine with another disk.

    Raises:
        UsageError: a part is missing here.
    """
    from functools import partial

    from tidelog.core.clock import run_all
    from tidelog.store.wrapping import open_wrapped

    if not (location_url.startswith("file:") and tasks.is_elsewhere):
        return
    store = open_wrapped(location_url, clock=clock).meter
    paths = [part.path for part in parts if part.path is not None]
    try:
        await run_all([partial(store.get, path, limit=1) for path in paths], at_once=READS_MAX)
    except ObjectNotFound as error:
        raise UsageError(
            f"one of Spark's executors wrote to another directory than this process's "
            f"{location_url}: use a bucket (s3://, gs://, az://), or a path that all machines share"
        ) from error


async def take_sample(url: str, paths: Sequence[str], *, clock: Clock) -> ReachSample | None:
    """Read the beginning of the first file; None if none is given or the driver cannot read it."""
    from tidelog.store.urls import open_store
    from tidelog.store.wrappers.metered import MeteringStore

    if not paths:
        return None
    store = MeteringStore(open_store(url, clock=clock), clock=clock)
    try:
        data = (await store.get(paths[0], limit=SAMPLE_BYTES)).data
    except GoneError:
        return None
    digest = hashlib.sha256(data).digest()
    return ReachSample(url=url, told=store.url, path=paths[0], size_bytes=len(data), digest=digest)


async def _ask(
    spark: SparkSession, tasks: SparkTasks, asked: ReachRequest, clock: Clock
) -> list[ReachAnswer]:
    from tidelog.spark.job import run_job

    def ask_all() -> list[ReachAnswer]:
        ship(spark)
        # The first job waits until the first executors exist. Only then is the number of cores
        # known, which the second job uses to reach all of them.
        first = tasks.run(look, [asked])
        return [*first, *tasks.run(look, [asked] * min(ASKED_MAX, tasks.cores_count()))]

    try:
        return await run_job(tasks.tags, ask_all, clock=clock, what="the check of its executors")
    except LocationError as error:
        raise explain(error) from error


def look(asked: Iterable[ReachRequest]) -> Iterator[ReachAnswer]:
    """Check, in an executor, its software and its access."""
    for request in list(asked):
        seen = ReachAnswer(
            host=socket.gethostname(),
            fingerprint=fingerprint(),
            missing=tuple(name for name in NEEDED if importlib.util.find_spec(name) is None),
        )
        can_look = not seen.missing and seen.fingerprint == request.fingerprint
        yield asyncio.run(_reach(request, seen)) if can_look else seen


async def _reach(asked: ReachRequest, seen: ReachAnswer) -> ReachAnswer:
    from tidelog.core.clock import SystemClock
    from tidelog.spark.job import portable
    from tidelog.store.wrapping import open_wrapped

    clock = SystemClock()
    try:
        store = open_wrapped(asked.location_url, clock=clock).meter
        if (await store.get(asked.key)).data != asked.key.encode():
            raise ObjectNotFound("the executor sees another object", key=asked.key)
        answer = f"{asked.key}-{clock.unique()}"
        await store.put(answer, answer.encode())
    except TidelogError as error:
        return replace(seen, location=portable(error))
    seen = replace(seen, answer=answer)
    if asked.sample is None:
        return seen
    try:
        await _check_sample(asked.sample, clock)
    except TidelogError as error:
        return replace(seen, source=portable(error))
    return seen


async def _check_sample(sample: ReachSample, clock: Clock) -> None:
    from tidelog.store.urls import open_store

    store = open_store(sample.url, clock=clock)
    data = (await store.get(sample.path, limit=sample.size_bytes)).data
    if hashlib.sha256(data).digest() != sample.digest:
        raise ObjectNotFound("the executor sees another file", path=sample.path)


def judge(seen: ReachAnswer, asked: ReachRequest, location: str) -> TidelogError | None:
    """Return the fault of an executor as an error to raise; None if it has no fault.

    ``location`` is the location's URL for messages.
    """
    if seen.missing:
        return _lacking(f"on {seen.host}", ", ".join(seen.missing))
    if seen.fingerprint != asked.fingerprint:
        return UsageError(
            f"Spark's executors on {seen.host} run another tidelog than this process: start a new "
            "session, which sends this one to them"
        )
    if seen.location is not None:
        if isinstance(seen.location, GoneError | UsageError):
            return _unseen_location(seen.host, location)
        return _unreachable(seen.location, seen.host, f"the location {location}")
    if seen.source is not None and asked.sample is not None:
        files = f"the source's files at {asked.sample.told}"
        if isinstance(seen.source, GoneError | UsageError):
            return UsageError(
                f"Spark's executors on {seen.host} do not see {files} as this process does: put "
                "them into a bucket, or on a path that all machines share, or use the engine "
                "'local'",
                file=asked.sample.path,
            )
        return _unreachable(seen.source, seen.host, files)
    return None


def explain(error: LocationError) -> TidelogError:
    """Return the error with its remedy if Spark ran nothing at all; else the error itself."""
    text = str(error)
    if match := _VERSIONS.search(text):
        return UsageError(
            f"Spark's executors run Python {match[1]}, but this process runs {match[2]}: use one "
            f"version; the setting spark.pyspark.python=PATH selects the executors' Python ({HOW})"
        )
    if match := _NO_PYTHON.search(text):
        return UsageError(
            f"Spark's executors have no Python at {match[1]}: set its path with "
            f"the setting spark.pyspark.python, or PYSPARK_PYTHON ({HOW})"
        )
    if match := _NO_MODULE.search(text):
        return _lacking("of this session", match[1])
    return error


def _lacking(where: str, packages: str) -> UsageError:
    return UsageError(lacking_text(where, packages))


def lacking_text(where: str, packages: str) -> str:
    """Return the message about packages that executors lack."""
    return (
        f"Spark's executors {where} lack packages that tidelog needs: {packages}. Set "
        "PYSPARK_PYTHON to a Python that has them, install them for the executors' Python, or ship "
        f"an environment with spark.archives ({HOW})"
    )


def _unseen_location(host: str, location: str) -> UsageError:
    return UsageError(
        f"Spark's executors on {host} do not see the location {location} that this process sees: "
        "use a bucket (s3://, gs://, az://), a path that all machines share, or --engine local"
    )


def _unreachable(error: TidelogError, host: str, what: str) -> LocationError:
    kind = StoreRefused if isinstance(error, StoreRefused) else LocationError
    return kind(
        f"Spark's executors on {host} cannot use {what}: {error}. Give them the endpoint and the "
        f"credentials of this process ({HOW})"
    )
