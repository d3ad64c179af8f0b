"""Maintenance of keyed logs: compacts, seals, retires, collects, checkpoints, forks and drops."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from sim.checkers.demands import demand
from sim.checkers.keyed_truth import KeyedTruth
from sim.checkers.liveness import Deadline
from sim.kernel.world import Client
from sim.workloads.keyed import KeyedRun
from sim.workloads.keyed_reading import ReadHandle, rows_of
from sim.workloads.keyed_writing import write_on
from tidelog.errors import (
    HandleError,
    NameTaken,
    NoSuchCheckpoint,
    Outcome,
    SequenceRetired,
    TidelogError,
    UsageError,
)
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.values import Keys, Retention, Sealing

WAYS = (
    *("compact", "compact", "all", "seal", "retire", "retire", "collect", "collect"),
    *("configure", "checkpoint", "checkpoint", "drop checkpoint"),
)
SEALINGS = (
    Sealing(bytes=1),
    Sealing(bytes=600),
    Sealing(bytes=4_000),
    Sealing(bytes=None, age_us=150_000),
    Sealing(bytes=None),
)
RETENTIONS = (
    Retention(segments=1),
    Retention(segments=2),
    Retention(bytes=1),
    Retention(bytes=5_000),
    Retention(age_us=1),
    Retention(age_us=200_000),
    Retention(age_us=60_000_000, segments=3),
)


async def maintain_until_done(scenario: KeyedRun, client: Client) -> None:
    """Maintain a log until no writer is left."""
    within_us = 100_000
    log: KeyedLog | None = None
    while not scenario.is_over:
        await client.clock.sleep(scenario.dice.randrange(within_us))
        within_us += within_us // 4
        name = scenario.dice.choice([*scenario.watch.living(), "k"])
        with scenario.trouble(name, HandleError):
            if log is None or log.name != name or scenario.dice.random() < 0.3:
                log = await scenario.open(client, name, maintenance=False)
            await maintain(scenario, client, log)


async def maintain(scenario: KeyedRun, client: Client, log: KeyedLog) -> None:
    """Run one random maintenance operation."""
    dice, truth = scenario.dice, scenario.truth(log.name)
    toss = dice.choice(WAYS)
    async with Deadline(client, f"{toss} of {log.name}"):
        if toss in ("compact", "all"):
            await log.compact(full=toss == "all")
        elif toss == "seal":
            await _seal(truth, log)
        elif toss == "retire":
            await retire(truth, log, dice.choice([None, *RETENTIONS]))
        elif toss == "collect":
            scenario.report.collected += await log.collect(after_us=dice.choice([0, 0, 50_000]))
        elif toss == "configure":
            retention = dice.choice([None, None, *RETENTIONS])
            with suppress(UsageError):  # A retention that can never act is refused.
                await log.configure(dice.choice(SEALINGS))
                if retention is not None:
                    await log.retain(retention)
        elif toss == "checkpoint":
            await _checkpoint(scenario, client, log, truth)
        else:
            names = [name for name, one in truth.checkpoints.items() if not one.fork]
            if names:
                try:
                    await log.drop_checkpoint(dice.choice(names))
                except NoSuchCheckpoint:
                    # Another client was first, or an earlier drop landed without an answer.
                    scenario.report.refused += 1


async def _seal(truth: KeyedTruth, log: KeyedLog) -> None:
    sealed = await log.seal()
    if sealed is not None:
        demand(sealed.limit in truth.sealed_ever, "a seal was told that there is not", it=sealed)


async def retire(truth: KeyedTruth, log: KeyedLog, retention: Retention | None) -> None:
    """Retire; the model allows the retention as long as the call may take effect."""
    given = None if retention is None else replace(retention)
    if given is not None:
        truth.letting_go.append(given)
    try:
        await log.retire(retention)
    except TidelogError as error:
        if given is not None and error.outcome is Outcome.NOT_APPLIED:
            truth.letting_go = [one for one in truth.letting_go if one is not given]
        raise
    truth.letting_go = [one for one in truth.letting_go if one is not given]


async def _checkpoint(scenario: KeyedRun, client: Client, log: KeyedLog, truth: KeyedTruth) -> None:
    """Make a checkpoint, which must keep all acknowledged records, and read it."""
    known, name = truth.known_at(scenario.now()), f"c{scenario.dice.randrange(3)}"
    try:
        info = await log.create_checkpoint(name)
    except NameTaken:
        demand(name in truth.checkpoints or scenario.report.checkpoints, "a name is not taken")
        scenario.report.refused += 1
    else:
        scenario.report.checkpoints += 1
        demand(info.next_sequence >= known, "a checkpoint lacks what was acknowledged", it=info)
    if name in truth.checkpoints:
        await read_checkpoint(scenario, client, truth, name)


async def read_checkpoint(scenario: KeyedRun, client: Client, truth: KeyedTruth, name: str) -> None:
    """Read a checkpoint: it must keep all of its records, whatever was retired since."""
    point = truth.checkpoints[name]
    try:
        found = await scenario.logs(client).reader(truth.name, checkpoint=name)
        rows = [row async for table in found.scan(Keys.all()) for row in rows_of(table)]
        counts = {key: await found.count(key) for key in {row[0] for row in rows}}
        keys = [row async for page in found.keys(b"") for row in page.to_pylist()]
    except (NoSuchCheckpoint, SequenceRetired):
        demand(truth.checkpoints.get(name) is not point, "a checkpoint is gone", name=name)
        return
    if truth.checkpoints.get(name) is not point:
        return
    wanted = truth.rows(lambda _: True, point.oldest, point.next)
    demand(sorted(rows) == sorted(wanted), "a checkpoint keeps other records", name=name)
    told = {row["key"]: row["records"] for row in keys}
    demand(told == counts, "keys of a checkpoint have other counts", keys=told, counts=counts)
    demand(sum(counts.values()) == len(wanted), "a checkpoint counts otherwise than it reads")


async def fork_on(scenario: KeyedRun, client: Client) -> None:
    """Fork a log, write and maintain the fork, and perhaps drop it."""
    dice = scenario.dice
    for number in range(dice.choice([1, 2])):
        await client.clock.sleep(dice.randrange(400_000))
        source, name = dice.choice(scenario.watch.living()), f"f{number}"
        made = False
        with scenario.trouble(source, NameTaken):
            known, oldest = (
                scenario.truth(source).known_at(scenario.now()),
                scenario.truth(source).retired,
            )
            async with Deadline(client, "a fork"):
                fork = await scenario.logs(client).fork(source, name)
            made = True
            scenario.report.forks += 1
            truth = scenario.truth(name)
            demand(truth.wal.first >= known, "a fork lacks what was acknowledged", log=name)
            demand(truth.retired >= oldest, "a fork has what was let go of", log=name)
            await _look_through(scenario, client, fork, truth)
            await fork.close()
        if not made:
            continue
        await write_on(scenario, client, name)
        with scenario.trouble(name, HandleError):
            log = await scenario.open(client, name, maintenance=False)
            for _ in range(3):
                await maintain(scenario, client, log)
        if dice.random() < 0.5:
            await drop(scenario, client, name)


async def _look_through(
    scenario: KeyedRun, client: Client, fork: KeyedLog, truth: KeyedTruth
) -> None:
    """Read all records that a fork began with."""
    await ReadHandle(scenario, client, fork, truth, lambda: truth.wal.first).scan_all()


async def drop(scenario: KeyedRun, client: Client, name: str) -> None:
    """Drop a log, unless forks need it; a dropped log is not readable."""
    scenario.dropping.add(name)
    with scenario.trouble(name, UsageError):
        async with Deadline(client, f"to drop {name}"):
            await scenario.logs(client).drop(name)
        demand(scenario.truth(name).is_dropped, "a log is there that was dropped", log=name)
        scenario.report.dropped += 1
