"""Numbers of micro-batches: a replay repeats its number, and a copied checkpoint does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.errors import CheckpointCopied
from tidelog.spark.micro_batch import is_repeat, name_of_batch

QUERY = "5d3a"


def number_of(batch: int, checkpoint: str | None) -> int:
    return name_of_batch([QUERY], batch, checkpoint)[1]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text(f'{{"id": "{QUERY}"}}')
    plan(tmp_path, 4, "first")
    plan(tmp_path, 5, "second")
    return tmp_path


def plan(checkpoint: Path, batch: int, text: str) -> None:
    (checkpoint / "offsets" / str(batch)).write_text(text)


def test_a_batch_is_new_or_the_last_one_again(checkpoint: Path) -> None:
    """The number depends on the batch and its plan only, by each way to write the place."""
    numbers = {number_of(4, given) for given in (str(checkpoint), checkpoint.as_uri())}
    numbers.add(number_of(4, f"file:{checkpoint}"))
    assert len(numbers) == 1
    (four,) = numbers

    assert not is_repeat(None, four)
    assert is_repeat(four, four)
    assert not is_repeat(four, number_of(5, str(checkpoint)))


def test_another_plan_or_a_smaller_number_is_a_copy(checkpoint: Path) -> None:
    """A copy plans its own batch, or is behind the newest batch."""
    four, five = (number_of(batch, str(checkpoint)) for batch in (4, 5))
    with pytest.raises(CheckpointCopied, match="new checkpointLocation"):
        is_repeat(five, four)
    plan(checkpoint, 4, "another")
    with pytest.raises(CheckpointCopied, match="new checkpointLocation"):
        is_repeat(four, number_of(4, str(checkpoint)))


@pytest.mark.parametrize("place", [None, "s3a://bucket/check", "/no/such/folder"])
def test_an_unknown_plan_counts_as_the_same(checkpoint: Path, place: str | None) -> None:
    """If this process does not reach the checkpoint, only the number decides."""
    four, five = (number_of(batch, str(checkpoint)) for batch in (4, 5))
    unknown = number_of(4, place)
    assert is_repeat(four, unknown)
    assert is_repeat(unknown, four)
    assert not is_repeat(unknown, five)
    with pytest.raises(CheckpointCopied):
        is_repeat(five, unknown)


def test_a_folder_of_another_query_is_no_checkpoint(checkpoint: Path) -> None:
    """The path may be on another machine, and have another query's files here."""
    assert number_of(4, None) != number_of(4, str(checkpoint))
    (checkpoint / "metadata").write_text('{"id": "other"}')
    assert number_of(4, None) == number_of(4, str(checkpoint))
