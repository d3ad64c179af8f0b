"""``tidelog compact``, ``collect``, ``collection retain``: docs/guides/maintenance.md."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tidelog
from cli.conftest import Cli


def fed(cli: Cli, ticks: int, *options: str) -> None:
    for tick in range(ticks):
        cli.write_lines(f"raw/{tick:02}.jsonl", {"k": tick % 2, "at": 1_000 * tick})
        if not tick:
            place = str(cli.folder / "raw")
            upsert = ("--envelope", "upsert", "--key", "k", "--time-column", "at")
            cli.done("source", "create", "s", "--files", place, *upsert, *options)
        cli.ingest("s")


def read(cli: Cli, at: str) -> list[dict[str, object]]:
    return cli.done("read", "s", "--as-of", at, "--format", "json").objects


def test_merging_changes_nothing_that_is_read(cli: Cli) -> None:
    """Compaction keeps all reads; its result is printed in rows and bytes."""
    fed(cli, 12)
    before = [read(cli, f"1970-01-01T00:00:{second:02}Z") for second in range(12)]
    done = {one["name"]: one for one in cli.done("compact", "--full", "--json").objects}
    assert [*done] == ["s", "(catalog)"]
    assert done["s"]["merges"] >= 2
    assert done["s"]["updates_read"] >= done["s"]["updates_written"] > 0
    assert [read(cli, f"1970-01-01T00:00:{second:02}Z") for second in range(12)] == before
    assert "nothing to merge" in cli.done("compact", "s").err
    said = cli.done("collect", "--grace", "0s", "--json").objects
    assert {one["name"]: one["waiting"] for one in said} == {"s": 0, "(catalog)": 0}


def test_what_is_not_kept_cannot_be_read(cli: Cli) -> None:
    """The status, the description and errors show the earliest readable time."""
    fed(cli, 12, "--retain", "4s")
    status = cli.done("source", "status", "s", "--json").object
    assert (status["retain_ms"], status["since"]) == (4_000, 7_000)
    assert cli.done("source", "describe", "s", "--json").object["retain_ms"] == 4_000
    refused = cli("read", "s", "--as-of", "1970-01-01T00:00:06Z")
    assert refused.status == 2
    assert "is readable since 1970-01-01T00:00:07Z" in refused.complaint
    assert "milliseconds" not in refused.complaint
    for given in (("read", "s", "--as-of", "6"), ("changes", "s", "--since", "6")):
        assert "a number counts milliseconds" in cli(*given).complaint

    said = cli.done("collection", "retain", "s", "1s", "--yes", "--json").object
    assert said.pop("holds")[0]["hold"] == "history"
    assert said == {"name": "s", "retain_ms": 1_000, "since": 10_000}
    told = cli.done("collection", "retain", "s", "forever").err.splitlines()
    assert told[0] == "'s' keeps all times; earliest readable time: 1970-01-01T00:00:10Z"
    assert told[1].startswith("Holds: history at 1970-01-01T00:00:10Z, ingest at ")
    assert cli("collection", "retain", "s", "1s").complaint.endswith("--yes to set the retention")


def test_a_retention_says_what_it_gives_up_first_and_a_longer_one_takes_it_back(cli: Cli) -> None:
    """Later, `forever` keeps all times, because the ingester's hold stays at the beginning."""
    fed(cli, 1)
    cli.write_lines("raw/late.jsonl", {"k": 1, "at": 90_000})
    cli.ingest("s")
    refused = cli("collection", "retain", "s", "10s")
    assert refused.complaint.endswith("--yes to give up times before 1970-01-01T00:01:20Z")
    told = cli.done("collection", "retain", "s", "10s", "--yes").err.splitlines()
    assert told[0] == (
        "The earliest readable time of 's' is 1970-01-01T00:00:00Z. Times before "
        "1970-01-01T00:01:20Z are given up for good after the next tick or 'tidelog compact "
        "--full' moves the hold 'ingest'; later ticks give up more."
    )
    assert told[1] == (
        "'s' keeps the last 10s; earliest readable time: 1970-01-01T00:00:00Z, and "
        "1970-01-01T00:01:20Z after the next tick or 'tidelog compact --full' moves the hold "
        "'ingest'"
    )

    told = cli.done("collection", "retain", "s", "forever").err.splitlines()
    assert told[0] == "'s' keeps all times; earliest readable time: 1970-01-01T00:00:00Z"
    for second in (95, 99):
        cli.write_lines(f"raw/{second}.jsonl", {"k": second, "at": 1_000 * second})
        cli.ingest("s")
    assert cli.done("read", "s", "--as-of", "1970-01-01T00:00:00Z", "--format", "json").objects
    holds = cli.done("hold", "list", "s", "--json").object
    assert {one["hold"]: one["since"] for one in holds["holds"]}["history"] == holds["since"] == 0


def test_a_retention_of_no_time_says_what_it_keeps(cli: Cli) -> None:
    """A message of "the last 0d" would suggest that nothing is kept."""
    fed(cli, 1)
    told = cli.done("collection", "retain", "s", "0s", "--yes").err
    assert "'s' keeps only its newest contents; earliest readable time: " in told


def test_a_retention_of_an_idle_source_names_what_moves_the_hold(cli: Cli) -> None:
    """An idle source has no next tick, so the message must name a command that moves the hold."""
    fed(cli, 1)
    cli.write_lines("raw/late.jsonl", {"k": 1, "at": 90_000})
    cli.ingest("s")
    cli.done("collection", "retain", "s", "10s", "--yes")
    cli.done("compact", "--full")

    told = cli.done("collection", "retain", "s", "10s", "--yes").err.splitlines()

    assert told == [
        "'s' keeps the last 10s; earliest readable time: 1970-01-01T00:01:20Z",
        "Holds: history at 1970-01-01T00:01:20Z, ingest at 1970-01-01T00:01:30Z",
    ]


def test_results_on_a_pipe_are_json_without_being_asked_for(cli: Cli) -> None:
    """On a pipe, results are JSON by default, and messages go to standard error."""
    cli.write_lines("raw/a.jsonl", {"n": 1})
    created = cli.done("source", "create", "s", "--files", str(cli.folder / "raw"))
    assert (created.object["name"], created.err[:7]) == ("s", "Created")
    cli.ingest("s")
    told = [
        cli.done(*words.split())
        for words in (
            "compact s --full",
            "collect s",
            "collection retain s 9d --yes",
            "hold create s mine",
            "hold move s mine --at 1970-01-01T00:00:00Z --yes",
            "hold drop s mine",
            "source drop s --yes",
        )
    ]
    assert [one.object["name"] for one in told] == ["s"] * len(told)
    assert all(one.err for one in told)
    assert told[-2].object["dropped"]


def test_a_hold_is_released_with_json_alone(cli: Cli) -> None:
    """--json prints one object, and no message."""
    fed(cli, 2)
    cli.done("hold", "create", "s", "mine")
    released = cli.done("hold", "drop", "s", "mine", "--json")
    assert released.object == {"name": "s", "hold": "mine", "dropped": True, "since": 0}
    assert released.err == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("collection", "retain", "s", "soon", "--yes"), "or forever"),
        (("collection", "retain", "t", "1d", "--yes"), "no source named 't'; existing sources: s"),
        (("compact", "t"), "no collection named 't'; existing collections: s"),
        (("collect", "t"), "no collection named 't'; existing collections: s"),
        (("collect", "--grace", "soon"), "--grace 'soon' is not a duration"),
        (("collect", "--after", "1h"), "did you mean '--grace'"),
        (("compact", "--follow", "--interval", "0"), "--interval must be from 100ms"),
        (("compact", "--interval", "5m"), "--interval needs --follow"),
        (("collect", "--interval", "60s"), "--interval needs --follow"),
        (("scrub", "--interval", "60s"), "--interval needs --follow"),
        (("inspect", "--interval", "60s"), "--interval needs --follow"),
        (("ingest", "s", "--interval", "5s"), "--interval needs --follow"),
        (("ingest", "s", "--once", "--heartbeat", "5s"), "--heartbeat needs --follow"),
        (("compact", "--engine", "flink"), "must be one of auto, spark, local, not 'flink'"),
        (("compact", "--engine", "local", "--master", "yarn"), "--engine local"),
        (("compact", "--master", "flink://x"), "is not a Spark master"),
        (("compact", "--conf", "memory=4g"), "is not a Spark setting"),
        (("source", "create", "t", "--files", "x", "--retain", "1"), "--retain '1' is not"),
    ],
)
def test_mistakes_are_told_before_anything_is_done(
    cli: Cli, arguments: tuple[str, ...], told: str
) -> None:
    """A mistake gives one sentence and exit status 2, and changes no file."""
    fed(cli, 2)
    before = sorted((cli.folder / "lake").rglob("*"))
    said = cli(*arguments)
    assert said.status == 2
    assert told in said.complaint
    assert sorted((cli.folder / "lake").rglob("*")) == before


def test_a_damaged_part_is_told_and_left(cli: Cli, tmp_path: Path) -> None:
    """A damaged part must not be merged; the message names the object to restore."""
    cli.write_lines("raw/a.jsonl", *({"n": n, "text": "x" * 40} for n in range(3_000)))
    cli.done("source", "create", "s", "--files", str(cli.folder / "raw"))
    cli.ingest("s")
    cli.write_lines("raw/b.jsonl", {"n": 1, "text": "y"})
    cli.ingest("s")
    (path,) = (cli.folder / "lake" / "shard").rglob("*.parquet")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    said = cli("compact", "--full")
    assert said.status == 1
    assert path.name in said.err
    assert path.exists()


def test_a_dropped_source_goes_with_the_next_collection(cli: Cli) -> None:
    """Collection reports the objects of dropped sources by name."""
    cli.write_lines("raw/a.jsonl", *({"n": n, "text": "x" * 40} for n in range(3_000)))
    cli.done("source", "create", "s", "--files", str(cli.folder / "raw"))
    cli.ingest("s")
    cli.done("source", "drop", "s", "--yes")
    assert list((cli.folder / "lake" / "shard").rglob("*.parquet"))
    waiting = cli.done("collect").err.splitlines()
    assert waiting == [
        "(catalog): 0 objects deleted",
        "(dropped): 0 objects deleted, 1 kept until 1h old",
        "(left by dropped sources): 1 object deleted",
    ]
    assert "(dropped): 1 object deleted" in cli.done("collect", "--grace", "0s").err
    assert not list((cli.folder / "lake" / "shard").rglob("*.parquet"))
    assert "dropped" not in cli.done("collect").err


def test_what_lies_there_is_told_and_swept(cli: Cli) -> None:
    """An object that a writer left is young, then dead, then deleted; all objects are counted."""
    cli.write_lines("raw/a.jsonl", *({"n": n, "text": "x" * 40} for n in range(3_000)))
    cli.done("source", "create", "s", "--files", str(cli.folder / "raw"))
    cli.ingest("s")
    (part,) = (cli.folder / "lake" / "shard").rglob("*.parquet")
    left = part.with_name("left.parquet")
    left.write_bytes(part.read_bytes())

    def rows() -> dict[str, object]:
        found = cli.done("inspect", "s", "--json").objects
        assert [one["role"] for one in found] == [
            "rows",
            "bad rows",
            "source progress",
        ]
        return found[0]

    told = rows()
    assert told["objects"] == {"live": 1, "gone": 0, "young": 1, "dead": 0, "other": 0}
    assert [(b["updates"], b["parts"]) for b in told["batches"]] == [(3_000, 1)]  # type: ignore[attr-defined]
    assert sorted(told["holds"]) == ["history", "ingest"]  # type: ignore[call-overload]
    deleted = [cli.done("collect", "s", "--sweep", "--json").object["deleted"] for _ in range(3)]
    assert deleted == [0, 0, 1]
    assert not left.exists()
    assert part.exists()
    assert rows()["objects"] == {"live": 2, "gone": 0, "young": 0, "dead": 0, "other": 0}
    assert cli("inspect", "t").status == 2
    assert [one["role"] for one in cli.done("inspect", "--json").objects][-1] == "catalog"


def test_what_a_killed_check_of_the_location_left_is_swept(cli: Cli) -> None:
    """A location check runs before the location exists, so no state names its object."""
    cli.done("log", "create", "l")
    left = cli.folder / "lake" / "probe" / "0123"
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"first")
    os.utime(left, (1, 1))

    assert "probes" not in cli.done("collect").err
    assert left.exists()
    assert "(probes): 1 object deleted" in cli.done("collect", "--sweep").err
    assert not left.exists()


def user_shard(cli: Cli, name: str = "mine", *, commits: int = 20) -> None:
    cli.done("shard", "create", name, "--schema", "k varchar, n int", "--key", "k")
    for time in range(commits):
        rows = "".join(f'{{"k": "k{n}", "n": {time}}}\n' for n in range(300 if time < 3 else 1))
        cli.done("shard", "append", name, "--time", str(time), given=rows.encode())


def test_collect_names_the_hold_that_keeps_objects(cli: Cli) -> None:
    """A DataFrame's hold outlives its driver, and keeps objects of any age."""
    user_shard(cli, commits=4)
    with tidelog.connect(cli.location) as lake:
        lake.shard("mine").lease(2, lease_us=10**12, fixed=True, purpose="a Spark DataFrame")
    cli.done("compact", "mine", "--full")

    said = cli.done("collect", "mine", "--grace", "0s").err
    (name,) = re.findall(
        r"the hold (term-\S+) \(a Spark DataFrame\) keeps \d objects until 20", said
    )
    assert "tidelog hold drop" in said
    assert "kept until" not in said
    held = cli.done("collect", "mine", "--grace", "0s", "--json").object
    assert held["held"] == {name: held["waiting"]}
    cli.done("hold", "drop", "mine", name)
    cli.done("compact", "mine", "--full")
    freed = cli.done("collect", "mine", "--grace", "0s", "--json").object
    assert (freed["held"], freed["waiting"], freed["deleted"] > 0) == ({}, 0, True)


def test_shards_that_users_made_are_kept_in_order(cli: Cli) -> None:
    """A user's own shards are compacted, collected, inspected and scrubbed, by name or with all."""
    fed(cli, 3)
    user_shard(cli)
    names = [one["name"] for one in cli.done("compact", "--json").objects]
    assert names == ["s", "mine", "(catalog)"]
    done = cli.done("compact", "mine", "--full", "--json").object
    assert (done["name"], done["batches"]) == ("mine", 1)
    assert cli.done("collect", "mine", "--grace", "0s", "--json").object["deleted"] > 0
    told = cli.done("inspect", "mine", "--json").object
    assert (told["role"], told["shard"]) == ("shard", "user.mine")
    cli.done("shard", "drop", "mine", "--yes")
    cli.done("collect", "--grace", "0s")
    assert not list((cli.folder / "lake" / "shard" / "user.mine").rglob("*.parquet"))
    user_shard(cli, "s", commits=1)
    roles = [one["role"] for one in cli.done("scrub", "s", "--json").objects]
    assert roles == ["rows", "bad rows", "source progress", "shard"]
    said = cli("scrub", "t")
    assert (said.status, "no shard named 't'" in said.complaint) == (2, True)


def test_a_scrub_reads_everything_and_tells_each_damage(cli: Cli) -> None:
    """A scrub reads every shard, names each damaged object and its remedy, and exits with 1."""
    fed(cli, 3)
    user_shard(cli)
    whole = cli.done("scrub", "--json").objects
    assert [one["damages"] for one in whole] == [[]] * len(whole)
    assert [one["name"] for one in whole] == ["s", "s", "s", "mine", "(catalog)"]
    assert whole[3]["updates"] == 917
    assert whole[3]["t_compared"]
    first, second, *_ = sorted((cli.folder / "lake" / "shard" / "user.mine").rglob("*.parquet"))
    first.write_bytes(first.read_bytes()[:-9] + b"?" * 9)
    second.unlink()
    said = cli("scrub", "--json")
    assert said.status == 1
    assert said.complaint.startswith("mine: damaged")
    (told,) = [one["damages"] for one in said.objects if one["damages"]]
    assert {one["path"].rpartition("/")[2] for one in told} == {first.name, second.name}
    assert {one["advice"].partition(" ")[0] for one in told} == {"restore"}
    assert len(said.objects) == 5
    # A damaged shard does not keep other shards from being merged.
    said = cli("compact", "--full", "--json")
    assert said.status == 1
    assert [one["name"] for one in said.objects] == ["s", "(catalog)"]
    assert first.name in said.err or second.name in said.err


@pytest.mark.parametrize("verb", ["compact", "collect", "inspect", "scrub"])
def test_followers_end_with_status_0_and_lose_no_row(cli: Cli, verb: str) -> None:
    """Three followers next to a writer end with status 0 at SIGTERM, and no row is lost."""
    fed(cli, 2)
    user_shard(cli, commits=2)
    extra = ["--grace", "0s", "--sweep"] if verb == "collect" else []
    command = [sys.executable, "-m", "tidelog", "--location", cli.location, verb, *extra]
    running = [
        subprocess.Popen(
            [*command, "--follow", "--interval", "0.1", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for _ in range(3)
    ]  # fmt: skip
    try:
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline()
        for time in range(2, 12):
            row = f'{{"k": "new", "n": {time}}}'.encode()
            cli.done("shard", "append", "mine", "--time", str(time), given=row)
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            _, err = process.communicate(timeout=60)
            assert (process.returncode, err) == (0, b"")
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert len(cli.done("shard", "read", "mine", "--json").objects) == 610
    assert cli.done("scrub").status == 0
