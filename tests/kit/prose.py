"""Sentences that an engineer would have to read twice, found by their patterns.

A hit is a place to look at, not a verdict. The rate of a folder, in hits for each 100 sentences,
must not rise: see `checks.test_prose`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WORDS_MIN = 4
WORDS_MAX = 40
# The start of a sentence, or of a part of one.
_START = r"(?:^|[.:;!?(]\s*)"
_ACTORLESS = "who|whoever|whose|whom|whatever|what|by whom|by what|of what"
PATTERNS = {
    "a clause as the subject": rf"{_START}(?:{_ACTORLESS}|which)\b(?![^.]*\?)",
    "an actor without a name": r"\b(?:whoever|nobody|somebody|anybody|everybody)\b",
    "who without a noun": r"\b(?:and|but|by|for|if|of|or|than|that|to|with) who\b",
    "a clause in place of a noun": (
        r"\bwhat (?:is|are|was|were|has|had|it|they|there|others|nothing|comes|came|lies|stands|"
        r"waits|must|may|can)\b(?![^.]*\?)"
    ),
    "a preposition before which": r"(?:^|[,.;:]\s)(?:of|by|in|to|with|for) (?:which|whom|whose)\b",
    "a sentence that begins with Of": (
        rf"{_START}of (?:a|an|the|its|it|each|all|two|what|these|those|several|many|one)\b"
    ),
    "tell, for raise, return or report": (
        r"\b(?:is|are|was|were|be|been|gets?) told\b|\btold (?:of|by|as|apart)\b|"
        r"\btells (?:of|it|them|each|all)\b"
    ),
    "have, for get or receive": r"\b(?:is|are|was|were|be) had\b",
    "lets go of, comes to be": r"\blets? go of\b|\bcom(?:e|es|ing) to be\b|\bcame to be\b",
    "no more, for no longer": r"\bnot any more\b|\bany more\b|\b(?:is|are|has|does) no more\b",
    "is none": r"\b(?:is|are|was|there is) none\b",
    "an old word": r"\b(?:anew|afresh|besides|likewise|thereby|therein|whereof|for ever)\b",
}
_COMPILED = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in PATTERNS.items()}
# A full stop within a word, as in a version or a path, ends no sentence.
_SENTENCE = re.compile(r"[^.!?\s][^.!?]*(?:[.!?](?=\S)[^.!?]*)*(?:[.!?](?=\s|$)|$)")
_CODE = re.compile(r"`[^`]*`")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_FENCE = re.compile(r"^\s*```.*?^\s*```\s*$", re.MULTILINE | re.DOTALL)
# Each of these lines is a sentence of its own: an item of a list, a row of a table, a heading.
_LINE = re.compile(r"^\s*(?:[-*] |[|#>]).*$", re.MULTILINE)
# A `#` in a string is seldom preceded so.
_COMMENT = re.compile(r"(?:^\s*|  )# (.*)$")
_MARKER = re.compile(r"noqa|type:|pragma")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, and the line on which its text begins."""

    path: Path
    line: int
    text: str

    @property
    def faults(self) -> list[str]:
        """Return the names of the patterns that the sentence has."""
        return faults_of(self.text)


def faults_of(text: str) -> list[str]:
    found = [name for name, pattern in _COMPILED.items() if pattern.search(text)]
    return [*found, "too long"] if len(text.split()) > WORDS_MAX else found


def sentences_of(path: Path) -> Iterator[Sentence]:
    """Yield the sentences of a page, or of the docstrings, comments and messages of a module."""
    texts = _texts_of_module if path.suffix == ".py" else _texts_of_page
    for line, text in texts(path.read_text()):
        for match in _SENTENCE.finditer(_CODE.sub("X", text)):
            words = match.group().split()
            if len(words) >= WORDS_MIN:
                yield Sentence(path, line + text[: match.start()].count("\n"), " ".join(words))


def files_below(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(one for kind in ("*.py", "*.md") for one in path.rglob(kind))


def rate(sentences: list[Sentence]) -> float:
    """Return the sentences with a fault, for each 100 sentences."""
    return 100 * sum(bool(one.faults) for one in sentences) / max(1, len(sentences))


def _texts_of_page(text: str) -> Iterator[tuple[int, str]]:
    blank = _FENCE.sub(lambda match: "\n" * match.group().count("\n"), text)
    yield 1, _ended(_LINK.sub(r"\1", blank))


def _ended(text: str) -> str:
    """Return a text with a full stop after each line that is a sentence of its own."""
    return _LINE.sub(lambda match: match.group().rstrip(".") + ".", text)


def _texts_of_module(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if docstring := ast.get_docstring(node):
                yield node.body[0].lineno, _ended(docstring)
        elif isinstance(node, ast.Call):
            yield from _messages(node)
    for number, line in enumerate(text.splitlines(), 1):
        comment = _COMMENT.search(line)
        if comment and not _MARKER.match(comment[1]):
            yield number, comment[1]


def _messages(call: ast.Call) -> Iterator[tuple[int, str]]:
    """Yield the texts of an error, and of the help of a command's option."""
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    if not (name[:1].isupper() or name in ("require", "Option", "Argument")):
        return
    for value in (*call.args, *(one.value for one in call.keywords if one.arg == "help")):
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.lineno, value.value
        elif isinstance(value, ast.JoinedStr):
            parts = (v.value if isinstance(v, ast.Constant) else "X" for v in value.values)
            yield value.lineno, "".join(map(str, parts))
