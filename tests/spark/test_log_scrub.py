"""A scrub on Spark finds the same as the plain scrub, in intact and in damaged logs."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from kit.lake_logs import folder_of, make_two, on_log, scrubbed
from tidelog.cli.main import main
from tidelog.errors import CorruptionError, NoSuchLog
from tidelog.spark import log_scrub
from tidelog.spark.log_scrub import scrub_log
from tidelog.wal.opening import PROTOCOLS
from tidelog.wal.scrub.report import ScrubReport

DAMAGE = ("flipped", "cut", "lost", "swapped", "snapshot", "strange")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A location with a log of each protocol; the slot log has fences, a tail and a seal."""
    lake = tmp_path_factory.mktemp("lake")
    make_two(lake, 14)
    assert on_log(lake, "slot", lambda log: log.describe()).rolled_up == 141
    on_log(lake, "slot", lambda log: log.seal())
    return lake


def plain(found: ScrubReport) -> dict[str, Any]:
    """Return a scrub's result with sorted problems, since their order is not fixed."""
    problems = sorted((p.path, p.why) for p in found.problems)
    return {**asdict(found), "problems": problems}


def both(spark: SparkSession, lake: Path, name: str) -> ScrubReport:
    """Scrub in both ways; the results must be equal."""
    expected, found = scrubbed(lake, name), scrub_log(spark, str(lake), name)
    assert plain(found) == plain(expected)
    return found


def hurt(folder: Path, damage: str) -> None:
    """Damage objects in the tree, and in a slot log also past the manifest."""
    data = sorted(path for path in folder.rglob("*.parquet") if pq.read_metadata(path).num_rows)
    for one, other in ((data[3], data[4]), (data[-3], data[-2])):
        match damage:
            case "flipped":
                whole = one.read_bytes()
                one.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
            case "cut":
                one.write_bytes(one.read_bytes()[:-9])
            case "lost":
                one.unlink()
            case "swapped":
                first, second = one.read_bytes(), other.read_bytes()
                one.write_bytes(second)
                other.write_bytes(first)
            case "snapshot":
                snapshot = min(folder.glob("snapshot/*"))
                snapshot.write_bytes(snapshot.read_bytes()[:-20])
            case "strange":
                (folder / "strange.parquet").write_bytes(b"x")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_whole_log_is_clean(
    spark: SparkSession, lake: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many tasks count every record, object and byte of an intact log."""
    monkeypatch.setattr(log_scrub, "SHARE_BYTES", 5_000)
    found = both(spark, lake, protocol)

    assert found.is_clean
    assert found.snapshots
    assert found.records == (200 if protocol == "slot" else 140)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_damage_is_found_as_the_plain_scrub_finds_it(
    spark: SparkSession, lake: Path, tmp_path: Path, protocol: str, damage: str
) -> None:
    """Both scrubs report the same damage."""
    shutil.copytree(lake, tmp_path / "lake")
    hurt(folder_of(tmp_path / "lake", protocol), damage)

    found = both(spark, tmp_path / "lake", protocol)

    assert found.is_clean == (damage == "strange")
    assert ("strange.parquet" in found.unnamed) == (damage == "strange")


def test_what_nothing_can_be_said_of_is_an_error(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    """A missing log and an unreadable manifest are errors, as in the plain scrub."""
    shutil.copytree(lake, tmp_path / "lake")
    with pytest.raises(NoSuchLog):
        scrub_log(spark, str(tmp_path / "lake"), "other")
    (folder_of(tmp_path / "lake", "slot") / "manifest" / "MANIFEST").write_bytes(b"{")
    with pytest.raises(CorruptionError):
        scrub_log(spark, str(tmp_path / "lake"), "slot")


@pytest.mark.parametrize("is_hurt", [False, True])
def test_the_command_says_the_same_on_spark(
    spark: SparkSession,
    lake: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    is_hurt: bool,
) -> None:
    """The command uses the running session, and does not stop it."""
    shutil.copytree(lake, tmp_path / "lake")
    if is_hurt:
        hurt(folder_of(tmp_path / "lake", "slot"), "lost")
    said = []
    for flags in ([], ["--spark"]):
        status = main(["--location", str(tmp_path / "lake"), "log", "scrub", "slot", *flags])
        said.append((status, sorted(capsys.readouterr().out.splitlines())))

    assert said[0] == said[1]
    assert said[0][0] == int(is_hurt)
    assert spark.range(3).count() == 3


async def test_a_log_is_scrubbed_in_a_notebook(spark: SparkSession, lake: Path) -> None:
    """A notebook cell runs within an event loop, and can call the scrub."""
    assert scrub_log(spark, str(lake), "slot").problems == []
