"""Every block of every page runs, names the test that runs it, or gives a reason."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from cli.test_readme import PAGES
from kit.doc_blocks import ROOT, blocks_of
from kit.doc_tours import Tour

BLOCKS = {
    page: blocks_of(page)
    for page in sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
}
RUN = ("sh", "python")
SHOWN = ("text", "json", "toml")
COMMAND = re.compile(r"^(?:tidelog|pip|curl|make|export|spark-submit) ", re.MULTILINE)
USED = re.compile(r"(?<![\w.])tidelog (?!--version)")
LOCATION = re.compile(r"^export TIDELOG_LOCATION=|tidelog --location ", re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, with the location ``lake`` below it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("TIDELOG_LOCATION", str(tmp_path / "lake"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return tmp_path


@pytest.mark.parametrize(
    "page",
    [
        page
        for page, found in BLOCKS.items()
        if page not in PAGES and any(block.is_run for block in found)
    ],
)
def test_the_blocks_of_a_page_run(page: str, folder: Path) -> None:
    """A reader who copies the blocks in order, in an empty folder, meets no error."""
    Tour().run(page)

    assert any(folder.iterdir()) or page == "docs/start/install.md"


@pytest.mark.parametrize("page", BLOCKS)
def test_a_page_that_begins_in_an_empty_folder_names_its_location(page: str) -> None:
    """The tests set the variable for all pages, but a reader has not set it."""
    shell = [block for block in BLOCKS[page] if block.is_run and block.language == "sh"]
    if not shell or shell[0].mark == "first":
        return
    lines = [line for block in shell for line in block.text.splitlines()]
    first = next((n for n, line in enumerate(lines) if USED.search(line)), -1)

    assert LOCATION.search("\n".join(lines[: first + 1])) or first < 0


def test_each_block_has_a_language() -> None:
    """A block without a language has no highlighting, and could hide a command from these tests."""
    strange = [
        f"{page}: ```{block.language}: {block.text.splitlines()[0]}"
        for page, found in BLOCKS.items()
        for block in found
        if block.language not in (*RUN, *SHOWN)
        or (block.language in SHOWN and COMMAND.search(block.text))
    ]

    assert strange == []


def test_a_block_that_is_left_to_a_test_is_named_there() -> None:
    """The test that a block names exists and names the page."""
    for page, found in BLOCKS.items():
        for block in found:
            if block.mark == "run by":
                assert page in (ROOT / block.said).read_text(), (page, block.said)


def test_a_block_that_fails_is_found(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary: blocks of text and marked blocks do not run, and a failing block is an error."""
    monkeypatch.setattr("kit.doc_blocks.ROOT", tmp_path)
    page = tmp_path / "page.md"
    marked = "```text\na\n```\n<!-- not run: a cluster -->\n```sh\nfalse\n```\n"
    for block, error in (("python\n1 / 0", ZeroDivisionError), ("sh\nfalse", AssertionError)):
        page.write_text(f"{marked}```{block}\n```\n")

        assert [block.is_run for block in blocks_of("page.md")] == [False, False, True]
        with pytest.raises(error):
            Tour().run("page.md")


def test_a_block_that_does_not_run_gives_a_reason() -> None:
    """Each block that does not run gives a reason of at least three words."""
    reasons = [
        block.said for found in BLOCKS.values() for block in found if block.mark == "not run"
    ]

    assert [reason for reason in reasons if len(reason.split()) < 3] == []
