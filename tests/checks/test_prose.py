"""The rate of sentences that a reader would have to read twice: it must not rise.

A limit is the number of sentences with a fault in each 100. Lower a limit when a rewrite has made
it slack. The aim is 3 for documents and code, and 6 for tests and the simulator.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kit import prose

ROOT = Path(__file__).resolve().parents[2]
LIMITS = {
    "README.md": 2,
    "CHANGELOG.md": 2,
    "docs/start": 2,
    "docs": 2,
    "src/tidelog": 2,
    "bench": 2,
    "examples": 2,
    "sim": 3,
    "tests": 2,
}
PLAIN = (
    "A reader behind `since` gets `AsOfBeforeSince`.",
    "Which store holds the location?",
    "The writer returns the seqno, or raises LogFull.",
)
AWKWARD = (
    "Who comes too late is told AsOfBeforeSince.",
    "What was merged stays for an hour.",
    "Of a name that both have, both are found.",
    "A record is there, and nobody lets go of it.",
    "There is none of that name.",
    " ".join(["word"] * (prose.WORDS_MAX + 1)),
)


@pytest.mark.parametrize("folder", LIMITS)
def test_few_sentences_need_a_second_reading(folder: str) -> None:
    """A rewrite may lower the rate; no change may raise it."""
    found = [one for path in prose.files_below(ROOT / folder) for one in prose.sentences_of(path)]
    assert found
    awkward = [f"{one.path}:{one.line}: {one.text}" for one in found if one.faults]
    assert prose.rate(found) <= LIMITS[folder], "\n".join(awkward[-40:])


@pytest.mark.parametrize("text", PLAIN)
def test_a_plain_sentence_passes(text: str) -> None:
    """A pattern must not refuse the field's own words."""
    assert prose.faults_of(text) == []


@pytest.mark.parametrize("text", AWKWARD)
def test_an_awkward_sentence_is_found(text: str) -> None:
    """Each pattern must be able to fail."""
    assert prose.faults_of(text) != []


def test_texts_of_a_module_are_found(tmp_path: Path) -> None:
    """The check reads docstrings, comments, messages and help, and skips code and markers."""
    module = tmp_path / "module.py"
    module.write_text(
        '"""Who reads this is told of it."""\n'
        "# Whoever reads this must guess.\n"
        "x = 1  # noqa: who reads this is not read\n"
        'raise ValueError(f"what is {x} is told to nobody")\n'
        'y = Option(help="By what this is done nobody knows.")\n'
    )
    assert [one.line for one in prose.sentences_of(module) if one.faults] == [1, 4, 5, 2]


def test_texts_of_a_page_are_found(tmp_path: Path) -> None:
    """The check skips code, and takes each item of a list for a sentence, even without a stop."""
    page = tmp_path / "page.md"
    page.write_text(
        "# Logs\n\n```\nwhat is this for\n```\n- what is read is had\n- a plain item\n"
        "- Nobody reads it.\n- Version 0.1 was told of it by `x.y`, and no more.\n"
    )
    assert [one.line for one in prose.sentences_of(page) if one.faults] == [6, 8, 9]


def test_a_paragraph_in_bold_is_no_item_of_a_list(tmp_path: Path) -> None:
    """A sentence that begins in bold goes on in the next line."""
    page = tmp_path / "page.md"
    page.write_text("**Ends.** A reader stops at the last record\nof the log that it reads.\n")
    assert [one.text for one in prose.sentences_of(page) if one.faults] == []


def test_each_row_of_a_table_in_a_docstring_is_a_sentence(tmp_path: Path) -> None:
    """A long table is not one long sentence."""
    module = tmp_path / "module.py"
    rows = "\n".join("| a row of a table | has few words |" for _ in range(prose.WORDS_MAX))
    module.write_text(f'"""Scenarios.\n\n{rows}\n"""\n')
    found = list(prose.sentences_of(module))
    assert len(found) == prose.WORDS_MAX
    assert [one.text for one in found if one.faults] == []
