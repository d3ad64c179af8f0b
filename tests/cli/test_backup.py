"""A copied location is complete, and independent of its original (docs/guides/backup.md)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cli.conftest import Cli


@pytest.mark.parametrize("kind", ["store", "sqlite"])
def test_a_copy_is_whole_and_goes_its_own_way(cli: Cli, kind: str) -> None:
    """Collections, shards and consensus are copied; changes to one copy do not affect the other."""
    own, copied = cli.folder / "own.db", cli.folder / "copied.db"
    where = ["--consensus", f"sqlite:{own}"] if kind == "sqlite" else []
    there = ["--consensus", f"sqlite:{copied}"] if kind == "sqlite" else []
    backup = ["--location", str(cli.folder / "backup"), *there]
    cli.write_lines("in/1.jsonl", *({"n": n} for n in range(100)))
    create = ("shard", "create", "s", "--schema", "k bigint")
    assert cli.run("--location", cli.location, *where, *create).status == 0
    cli.done("shard", "append", "s", "--time", "0", given=b'{"k": 1}')
    cli.done("source", "create", "c", "--files", str(cli.folder / "in"))
    cli.ingest("c")

    shutil.copytree(cli.folder / "lake", cli.folder / "backup")
    for path in (p for p in cli.folder.glob("own.db*") if kind == "sqlite"):
        shutil.copy(path, Path(str(path).replace("own.db", "copied.db")))
    assert cli.run(*backup, "scrub").status == 0
    assert len(cli.run(*backup, "read", "c", "--json").objects) == 100

    assert cli.run(*backup, "shard", "append", "s", "--time", "1", given=b'{"k": 2}').status == 0
    assert cli.run(*backup, "shard", "read", "s").objects[1:] == [{"k": 2, "_diff": 1}]
    assert cli.done("shard", "read", "s").objects == [{"k": 1, "_diff": 1}]
    for place in (backup, ["--location", cli.location]):
        assert cli.run(*place, "scrub").status == 0
