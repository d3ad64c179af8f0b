"""``tidelog compact``, ``collect``, ``collection retain``: what cron and an operator do."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    """What it did is told in rows and bytes, for people and for programs."""
    fed(cli, 12)
    before = [read(cli, f"1970-01-01T00:00:{second:02}Z") for second in range(12)]
    done = {one["name"]: one for one in cli.done("compact", "--full", "--json").objects}
    assert [*done] == ["s", "(catalog)"]
    assert done["s"]["merges"] >= 2
    assert done["s"]["updates_read"] >= done["s"]["updates_written"] > 0
    assert [read(cli, f"1970-01-01T00:00:{second:02}Z") for second in range(12)] == before
    assert "nothing to merge" in cli.done("compact", "s").err
    said = cli.done("collect", "--after", "0s", "--json").objects
    assert {one["name"]: one["waiting"] for one in said} == {"s": 0, "(catalog)": 0}


def test_what_is_not_kept_cannot_be_read(cli: Cli) -> None:
    """The status and the description say what is, and an error says from when on."""
    fed(cli, 12, "--retain", "4s")
    status = cli.done("source", "status", "s", "--json").object
    assert (status["retain_ms"], status["since"]) == (4_000, 7_000)
    assert cli.done("source", "describe", "s", "--json").object["retain_ms"] == 4_000
    refused = cli("read", "s", "--as-of", "1970-01-01T00:00:06Z")
    assert refused.status == 2
    assert "keeps times from 1970-01-01T00:00:07Z on" in refused.complaint

    said = cli.done("collection", "retain", "s", "1s", "--yes", "--json").object
    assert said == {"name": "s", "retain_ms": 1_000, "since": 10_000}
    told = cli.done("collection", "retain", "s", "forever").err
    assert told == "'s' keeps all its past: it can be read from 1970-01-01T00:00:10Z on\n"
    assert cli("collection", "retain", "s", "1s").complaint.endswith(
        "--yes to give up what is older"
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("collection", "retain", "s", "soon", "--yes"), "or forever"),
        (("collection", "retain", "t", "1d", "--yes"), "there is no source 't': there are s"),
        (("compact", "t"), "there is no collection 't': there are s"),
        (("collect", "t"), "there is no collection 't': there are s"),
        (("collect", "--after", "3"), "--after '3' is not a duration"),
        (("compact", "--follow", "--interval", "0"), "less than"),
        (("source", "create", "t", "--files", "x", "--retain", "1"), "--retain '1' is not"),
    ],
)
def test_mistakes_are_told_before_anything_is_done(
    cli: Cli, arguments: tuple[str, ...], told: str
) -> None:
    """One sentence, exit status 2, and all is as it was."""
    fed(cli, 2)
    before = sorted((cli.folder / "lake").rglob("*"))
    said = cli(*arguments)
    assert said.status == 2
    assert told in said.complaint
    assert sorted((cli.folder / "lake").rglob("*")) == before


def test_a_damaged_part_is_told_and_left(cli: Cli, tmp_path: Path) -> None:
    """Merged, it would be believed; the message says which object is to be restored."""
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
    """Said by name, so that nobody wonders where the bytes went."""
    cli.write_lines("raw/a.jsonl", *({"n": n, "text": "x" * 40} for n in range(3_000)))
    cli.done("source", "create", "s", "--files", str(cli.folder / "raw"))
    cli.ingest("s")
    cli.done("source", "drop", "s", "--yes")
    assert list((cli.folder / "lake" / "shard").rglob("*.parquet"))
    waiting = cli.done("collect").err.splitlines()
    assert waiting == [
        "(catalog): 0 objects deleted",
        "(dropped): 0 objects deleted, 1 to go once 1h old",
    ]
    assert "(dropped): 1 object deleted" in cli.done("collect", "--after", "0s").err
    assert not list((cli.folder / "lake" / "shard").rglob("*.parquet"))
    assert "dropped" not in cli.done("collect").err


def test_what_lies_there_is_told_and_swept(cli: Cli) -> None:
    """An object that a writer left is young, then dead, then gone; all add up to what is there."""
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
            "what was taken of the source",
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
    assert rows()["objects"] == {"live": 1, "gone": 0, "young": 0, "dead": 0, "other": 0}
    assert cli("inspect", "t").status == 2
    assert [one["role"] for one in cli.done("inspect", "--json").objects][-1] == "catalog"
