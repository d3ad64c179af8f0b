"""The commands and the Python of README and of the pages for new users, run in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.doc_blocks import ROOT, Block
from kit.doc_tours import Tour, run_line

LINES_MAX = 120
WORDS_MAX = 900
PAGES = (
    "README.md",
    "docs/start/first-collection.md",
    "docs/start/first-log.md",
    "docs/concepts/exactly-once.md",
    "docs/concepts/glossary.md",
    "docs/concepts/times.md",
    "docs/concepts/which.md",
    "docs/guides/keyed-logs-from-a-shell.md",
    "docs/guides/read-a-collection.md",
    "docs/guides/shards-from-a-shell.md",
)


def without_spark(block: Block) -> bool:
    """Return True if a block needs no Spark: tests/spark runs the others."""
    return "tidelog.spark" not in block.text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which a new user begins."""
    monkeypatch.setenv("TIDELOG_LOCATION", "")
    monkeypatch.delenv("TIDELOG_LOCATION")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_each_block_of_a_page_runs_and_prints_what_the_page_shows(page: str, folder: Path) -> None:
    """A new user copies the blocks, and compares."""
    tour = Tour(without_spark)
    tour.run(page)

    assert tour.compared_count > 0
    assert any(folder.iterdir())


def test_an_output_that_a_page_shows_wrongly_is_found(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary: a wrong row and a failing command are found."""
    shown = (ROOT / "README.md").read_text()
    page = tmp_path / "page.md"
    monkeypatch.setattr("kit.doc_blocks.ROOT", tmp_path)
    page.write_text(shown.replace("     5\n3 rows", "     6\n3 rows"))

    with pytest.raises(AssertionError, match="shows:"):
        Tour(without_spark).run("page.md")
    with pytest.raises(AssertionError, match="no log"):
        run_line("tidelog log scan missing")


def test_readme_is_short() -> None:
    """The README stays short, so that a reader sees within minutes whether tidelog fits."""
    text = (ROOT / "README.md").read_text()

    assert len(text.splitlines()) <= LINES_MAX
    assert len(text.split()) <= WORDS_MAX
    assert "make test" in text
    assert "make demo" in text
