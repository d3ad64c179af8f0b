"""Every block of every page runs, or says which test runs it, or why none does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.conftest import Cli
from kit.doc_pages import ROOT, RUN, SHOWN, Block, Page, blocks, pages

BLOCKS = {page: list(blocks(page, (ROOT / page).read_text())) for page in pages()}
COMMAND = re.compile(r"^(?:tidelog|pip|curl|make|export|spark-submit) ", re.MULTILINE)


def is_run_here(block: Block) -> bool:
    return block.language in RUN and block.mark not in ("run by", "not run")


@pytest.fixture
def page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Page:
    """A run in an empty folder, with the location ``lake`` below it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("TIDELOG_LOCATION", str(tmp_path / "lake"))
    cli = Cli(tmp_path, capsys)

    def tidelog(words: list[str], given: bytes | None) -> str:
        said = cli.run(*words, given=given)
        assert said.status == 0, f"tidelog {' '.join(words)}: {said.err}"
        return said.out

    return Page(tmp_path, tidelog, {})


@pytest.mark.parametrize(
    "name", [name for name, found in BLOCKS.items() if any(map(is_run_here, found))]
)
def test_the_blocks_of_a_page_run(name: str, page: Page) -> None:
    """A reader copies them one after the other, into an empty folder."""
    for block in filter(is_run_here, BLOCKS[name]):
        page.run(block)


def test_each_block_has_a_language() -> None:
    """A block without one has no highlighting, and could hide a command from these tests."""
    strange = [
        f"{block.page}: ```{block.language}: {block.text.splitlines()[0]}"
        for found in BLOCKS.values()
        for block in found
        if block.language not in (*RUN, *SHOWN)
        or (block.language in SHOWN and COMMAND.search(block.text))
    ]

    assert strange == []


def test_a_block_that_is_left_to_a_test_is_named_there() -> None:
    """The test may be moved, or may lose the page."""
    for found in BLOCKS.values():
        for block in found:
            if block.mark == "run by":
                assert block.page in (ROOT / block.said).read_text(), (block.page, block.said)


def test_a_block_that_does_not_run_is_found() -> None:
    """The canary: of three blocks, one is for reading, and one has a marker."""
    text = "```text\na\n```\n<!-- not run: a cluster -->\n```sh\nb\n```\n```python\n1 / 0\n```\n"
    found = list(blocks("page.md", text))

    assert [block.language for block in found if is_run_here(block)] == ["python"]
    with pytest.raises(ZeroDivisionError):
        Page(Path(), lambda words, given: "", {}).run(found[2])
