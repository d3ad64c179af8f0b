"""The pages generated from the code: they list every error, metric, option and command."""

from __future__ import annotations

import importlib.util
import inspect
import re
from functools import cache
from types import ModuleType

from kit import package_map
from kit.doc_blocks import ROOT
from tidelog import errors
from tidelog.core.metrics import METRICS
from tidelog.errors import TidelogError
from tidelog.server.exposition import ServerMetrics
from tidelog.spark.options import OPTIONS


@cache
def loaded(name: str) -> ModuleType:
    """Load a hook as MkDocs does, by its path."""
    path = ROOT / f"docs/reference/{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(page: str) -> str:
    pages: dict[str, str] = loaded("generate").pages()
    return pages[page]


def test_each_error_has_a_fault_and_a_remedy() -> None:
    """A user who gets an error searches for its name, and needs the next step."""
    page = made("reference/errors.md")
    kinds = [
        each
        for each in vars(errors).values()
        if inspect.isclass(each) and issubclass(each, TidelogError) and each is not TidelogError
    ]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+ \| [^|]+ \| [123]) \|$", page, re.MULTILINE))

    assert sorted(rows) == sorted(kind.__name__ for kind in kinds)
    assert rows["StoreRefused"].endswith("| 3")
    assert rows["NoSuchLog"].endswith("| 2")


def test_each_metric_is_listed() -> None:
    """Each metric of the code is on the page, so that an alarm can use its true name."""
    page = made("reference/metrics.md")
    text = ServerMetrics().text().decode()
    names = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    own = {name for name in names if not name.startswith("tidelog_") and "_created" not in name}

    missing = [name for name in (*own, *METRICS) if f"| `{name}` |" not in page]
    assert len(own) > 8
    assert missing == []


def test_each_option_of_spark_is_listed_with_its_kind() -> None:
    """Each kind lists its own options, because `load` refuses those of another kind."""
    sections = made("reference/spark-options.md").split("\n## ")[1:]
    listed = {
        section.partition("\n")[0]: re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
        for section in sections
    }

    assert listed == {kind: list(options) for kind, options in OPTIONS.items()}


def test_each_command_has_a_purpose_and_its_options() -> None:
    """Each command has a line with its purpose in the reference, and a section with its options."""
    index = made("reference/cli/index.md")
    rows = re.findall(
        r"^\| \[`([^`]+)`\]\(([\w-]+\.md)(#[\w-]+)?\) \| (.+) \|$", index, re.MULTILINE
    )
    pages = {page: made(f"reference/cli/{page}") for _, page, _, _ in rows}

    assert {"source create", "log cursor move", "keyed scan", "ingest"} <= {row[0] for row in rows}
    assert [name for name, _, _, purpose in rows if len(purpose) < 10] == []
    assert [name for name, page, _, _ in rows if f"# tidelog {name}\n" not in pages[page]] == []
    assert "| `--envelope none|upsert` | none: append each row" in pages["source.md"]
    assert "[default: none]" in pages["source.md"]


def test_an_error_that_spans_lines_keeps_them() -> None:
    """A line that continues without an indent is joined, because the parser would drop it."""
    text = (
        "Append.\n\nRaises:\n    UsageError: one is over 64 MiB\n    or empty.\n    Fenced: no.\n"
    )

    assert loaded("inherit").joined(text).splitlines()[3:] == [
        "    UsageError: one is over 64 MiB or empty.",
        "    Fenced: no.",
    ]


def test_the_picture_of_the_packages_shows_the_imports_of_the_code() -> None:
    """`python -m kit.package_map` draws the committed picture, which has no cycle."""
    graph = package_map.imports()

    assert package_map.PICTURE.read_text() == package_map.drawn(graph)
    assert package_map.cycles(graph) == set()


def test_a_cycle_of_packages_is_red() -> None:
    """An import that closes a cycle is drawn in another class than the others."""
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}

    assert package_map.cycles(graph) == {("b", "c"), ("c", "b")}
    assert package_map.drawn(graph).count('class="cycle"') == 2
