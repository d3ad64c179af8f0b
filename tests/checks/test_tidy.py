"""The shape of the tree: permitted imports and awaits, sizes, names, docstrings and texts.

Each rule is a function from a tree to its complaints. It must have none about this tree, and some
about a canary, which is a small tree that breaks the rule. A room is a package or a module directly
below ``src/tidelog``.
Source: the house's page, and its style.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# A room may import only from itself and from rooms of earlier lines.
ROOMS = (
    ("errors",),
    ("core",),
    ("rowhash",),
    ("predicate",),
    ("store",),
    ("consensus",),
    ("wal",),
    ("machine", "verify"),
    ("persist", "keyed"),
    ("collection",),
    ("location",),
    ("blocking", "aio"),
    ("http",),
    ("demo", "spark", "server"),
    ("cli",),
)
# In these rooms, a folder may import only from its own level and from earlier ones. No folder may
# import from the files next to the folders, which are the room's interface.
# The folders of `PURE_FOLDERS` await nothing.
FOLDERS = {
    "wal": (
        ("format",),
        ("read",),
        ("append",),
        ("manifest_protocol",),
        ("slot_protocol",),
        ("gc",),
        ("admin",),
        ("scrub",),
    ),
    "persist": (
        ("format",),
        ("states",),
        ("read",),
        ("write",),
        ("handle", "maintenance", "transactions"),
    ),
    "keyed": (
        ("format",),
        ("values",),
        ("port",),
        ("states",),
        ("read",),
        ("write",),
        ("maintenance",),
    ),
    "collection": (("formats",), ("catalog",), ("table",), ("source",), ("ingest",)),
}
PURE_FOLDERS = frozenset(
    {
        ("wal", "format"),
        ("persist", "format"),
        ("persist", "states"),
        ("keyed", "format"),
        ("keyed", "states"),
        ("collection", "formats"),
    }
)
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}
EDGES = frozenset(room for rooms in ROOMS[-2:] for room in rooms)

OUTSIDE = ("__init__", "__main__", "testing", "pyspark_tidelog")  # They have no place in the order.

# Foreign packages, and the rooms that may import them at run time.
FOREIGN = {
    "pyspark": {"spark", "pyspark_tidelog"},
    "py4j": {"spark"},
    "numba": {"rowhash"},
    "duckdb": {"core", "persist", "predicate", "collection", "demo", "spark"},
    "obstore": {"store"},
    "typer": {"cli"},
    "rich": {"cli"},
    "starlette": {"server"},
    "uvicorn": {"server"},
    "prometheus_client": {"server"},
}

# Pure files outside of those folders. Their results must not depend on the moment of the call.
PURE = frozenset(
    {
        "collection/catalog/catalog.py",
        "collection/ingest/envelope.py",
        "collection/source/binding.py",
        "collection/source/decode.py",
        "collection/source/files_head.py",
        "collection/source/moves.py",
        "collection/source/survey_facts.py",
        "collection/source/survey_result.py",
        "collection/table/changes.py",
        "collection/table/inputs.py",
        "collection/table/lookups.py",
        "collection/table/placement.py",
        "consensus/object_consensus.py",
        "core/frontier.py",
        "keyed/maintenance/plan.py",
        "machine/record.py",
        "persist/read/selection.py",
        "persist/transactions/applying.py",
        "persist/transactions/next_time.py",
        "persist/transactions/state.py",
        "persist/transactions/transition.py",
        "predicate/expression.py",
        "predicate/predicate.py",
        "server/limits.py",
        "spark/plan.py",
        "spark/types.py",
        "wal/gc/cut.py",
        "wal/gc/plan.py",
        "wal/read/limits.py",
        "wal/slot_protocol/pipeline.py",
    }
)
NAMELESS = frozenset({"utils", "util", "helpers", "helper", "common", "base", "misc"})

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
TRIVIAL_LINES_MAX = 8  # Lines of a body that a reader reads as fast as a docstring.

# In pieces, because the rule reads this file, too.
MACHINE_PATH = re.compile(r"(?<![\w.*}>-])/" + r"(?:home|root|Users|work)/\w")
ADDRESS = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])")
LOOPBACK = re.compile(r"127\.|0\.0\.0\.0$")
OPEN_END = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b(?!\(#\d+\))")
DOCS_PATH = re.compile(r"`((?:src|tests|sim|bench|examples)/[\w./-]+)`")
TEXT = frozenset({".py", ".md", ".toml", ".properties", ".sql", ".sh", ".yml", ".yaml", ""})


@dataclass(frozen=True)
class Module:
    """A file of Python: its path from the root, its text, and its syntax tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """Return the room of a file under src: ``store`` for ``src/tidelog/store/local.py``."""
        package, *rest = self.path.with_suffix("").parts[1:]
        return rest[0] if package == "tidelog" else package

    @property
    def is_face(self) -> bool:
        """Return True for ``tidelog/__init__.py``, which exports names of all rooms."""
        return self.path.as_posix() == "src/tidelog/__init__.py"


def modules(root: Path, *tops: str) -> Iterator[Module]:
    for top in tops:
        for path in sorted((root / top).rglob("*.py")):
            yield _parsed(root, path, path.stat().st_mtime_ns)


@functools.cache
def _parsed(root: Path, path: Path, _changed: int) -> Module:
    text = path.read_text()
    return Module(path.relative_to(root), text, ast.parse(text))


def imports(module: Module, *, types: bool) -> Iterator[tuple[int, str]]:
    """Yield the line and full name of each import; with ``types``, also those for type checkers."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(module.tree):
        if not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped.update(each for child in node.body for each in ast.walk(child))
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def rooms_import_upwards(root: Path) -> Iterator[str]:
    """The tree is the architecture: a room may import only the rooms above it."""
    for module in modules(root, "src"):
        if module.is_face:
            continue
        for line, name in imports(module, types=True):
            package, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            if package == "tidelog" and not _may_import(module, target):
                yield f"{module.path}:{line}: {module.room} must not import {name}"


def _may_import(module: Module, target: str) -> bool:
    source = module.room
    if target in (source, "__version__"):
        return True
    if source in ("pyspark_tidelog", "__main__"):
        return target == ("cli" if source == "__main__" else "spark")
    if source == "testing":
        return target not in EDGES
    # A room without a level is unknown, or is testing, which no room may import.
    return LEVEL.get(target, len(ROOMS)) < LEVEL.get(source, -1)


def folders_import_upwards(root: Path) -> Iterator[str]:
    """In a large room, folders have an order, too, so pure folders cannot import agents."""
    for room, ordered in FOLDERS.items():
        level = {folder: number for number, folders in enumerate(ordered) for folder in folders}
        for module in modules(root, f"src/tidelog/{room}"):
            ours = _folder(module.path.with_suffix("").parts[3:])
            if ours is None:
                continue
            if ours not in level:
                yield f"{module.path}: {ours} has no place in FOLDERS of this test"
                continue
            for line, name in imports(module, types=True):
                if not name.startswith(f"tidelog.{room}."):
                    continue
                theirs = name.split(".")[2]
                if theirs != ours and level.get(theirs, len(level)) > level[ours]:
                    yield f"{module.path}:{line}: {ours} must not import {name}"


def _folder(parts: tuple[str, ...]) -> str | None:
    """Return the folder of a file within its room; None for a file next to the folders."""
    return parts[0] if len(parts) > 1 else None


def no_imports_form_a_cycle(root: Path) -> Iterator[str]:
    """Modules of a cycle can be neither read nor tested one by one.

    All imports count: also imports within functions, and imports for type checkers.
    """
    graph = _imported_modules(root)
    for name, (path, _) in graph.items():
        reached: set[str] = set()
        waiting = [name]
        while waiting:
            new = graph[waiting.pop()][1] - reached
            waiting += new
            reached |= new
        if name in reached:
            yield f"{path}: {name} imports modules that import it"


def _imported_modules(root: Path) -> dict[str, tuple[Path, set[str]]]:
    """Return the path of each module, and the modules that it imports, by its dotted name."""
    named = {_dotted(module.path): module for module in modules(root, "src")}
    graph: dict[str, tuple[Path, set[str]]] = {}
    for name, module in named.items():
        # An import names a module, or a thing within one.
        asked = (full for _, full in imports(module, types=True))
        found = {full if full in named else full.rpartition(".")[0] for full in asked}
        within = {name} if module.path.name == "__init__.py" else set()
        graph[name] = (module.path, (found & named.keys()) - within)
    return graph


def _dotted(path: Path) -> str:
    return ".".join(path.with_suffix("").parts[1:]).removesuffix(".__init__")


def every_room_is_known(root: Path) -> Iterator[str]:
    """Each room has a place in `ROOMS`, so the import rule covers it."""
    for module in modules(root, "src"):
        known = module.room in LEVEL or module.room in OUTSIDE
        if not known:
            yield f"{module.path}: {module.room} has no place in ROOMS of tests/checks/test_tidy.py"


def foreign_packages_stay_in_their_rooms(root: Path) -> Iterator[str]:
    """A user without Spark must not load it, and only Spark's room handles its exceptions."""
    for module in modules(root, "src"):
        for line, name in imports(module, types=False):
            rooms = FOREIGN.get(name.partition(".")[0])
            if rooms is not None and module.room not in rooms:
                yield f"{module.path}:{line}: {module.room} must not import {name}"


def pure_modules_do_not_await(root: Path) -> Iterator[str]:
    """Spark, asyncio and the simulator call the same pure code, and replay it from a seed."""
    for module in modules(root, "src/tidelog"):
        folder = (module.room, _folder(module.path.with_suffix("").parts[3:]))
        is_pure = module.path.relative_to("src/tidelog").as_posix() in PURE
        if not is_pure and folder not in PURE_FOLDERS:
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
                yield f"{module.path}:{node.lineno}: a pure module must not wait"


def files_and_functions_are_short(root: Path) -> Iterator[str]:
    """A reader must be able to hold a file or a function in mind."""
    for module in modules(root, "src", "tests", "sim", "bench"):
        if (lines := module.text.count("\n")) > FILE_LINES_MAX:
            yield f"{module.path}: {lines} lines, more than {FILE_LINES_MAX}"
        for node in _functions(module.tree):
            if (lines := _lines(node)) > FUNCTION_LINES_MAX:
                yield (
                    f"{module.path}:{node.lineno}: {node.name} has {lines} lines, "
                    f"more than {FUNCTION_LINES_MAX}"
                )


def things_have_names(root: Path) -> Iterator[str]:
    """A module's name states its contents; names such as common and base do not."""
    for module in modules(root, "src", "tests", "sim", "bench"):
        if module.path.stem in NAMELESS:
            yield f"{module.path}: name what it holds"


def a_class_name_means_one_thing(root: Path) -> Iterator[str]:
    """A name such as `Pace` must identify one class; only the blocking twins share names."""
    seen: dict[str, Path] = {}
    for module in modules(root, "src"):
        for node in module.tree.body:
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            if module.room == "blocking":
                continue
            if (other := seen.setdefault(node.name, module.path)) != module.path:
                yield f"{module.path}:{node.lineno}: {other} has another {node.name}"


def what_is_public_is_documented(root: Path) -> Iterator[str]:
    """A public class or function has a docstring, unless its body is trivial."""
    promised = set(_promised(root))
    for module in modules(root, "src"):
        if ast.get_docstring(module.tree) is None:
            yield f"{module.path}:1: the module has no docstring"
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and _is_public(node):
                if ast.get_docstring(node) is None:
                    yield f"{module.path}:{node.lineno}: {node.name} has no docstring"
                # An overriding method has its docstring in the base class or in the port.
                if not node.bases:
                    yield from _silent(module, node.body, told=promised)
        yield from _silent(module, module.tree.body, told=set())


def _promised(root: Path) -> Iterator[str]:
    for module in modules(root, "src"):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases):
                yield from (each.name for each in _functions(node) if ast.get_docstring(each))


def _silent(module: Module, body: list[ast.stmt], *, told: set[str]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_public(node):
            lines = (node.end_lineno or 0) - node.body[0].lineno + 1
            said = ast.get_docstring(node) or node.name in told
            if not said and lines > TRIVIAL_LINES_MAX:
                yield f"{module.path}:{node.lineno}: {node.name} has no docstring"


def _is_public(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return not node.name.startswith("_")


def open_ends_have_an_issue(root: Path) -> Iterator[str]:
    """An open end names its issue, as ``(#12)``. Otherwise it would be forgotten."""
    for path, number, line in _lines_of_text(root):
        if OPEN_END.search(line):
            yield f"{path}:{number}: say which issue: {line.strip()}"


def no_machine_is_named(root: Path) -> Iterator[str]:
    """A text must not contain a path or an address of one machine, which fails on all others."""
    for path, number, line in _lines_of_text(root):
        strange = [found for found in ADDRESS.findall(line) if not LOOPBACK.match(found)]
        if MACHINE_PATH.search(line) or strange:
            yield f"{path}:{number}: names a place on one machine: {line.strip()}"


def what_docs_name_is_there(root: Path) -> Iterator[str]:
    """Each file that a page names must exist at that path."""
    for page in sorted((root / "docs").rglob("*.md")):
        for number, line in enumerate(page.read_text().splitlines(), start=1):
            for path in DOCS_PATH.findall(line):
                if not (root / path).exists():
                    yield f"{page.relative_to(root)}:{number}: there is no {path}"


def each_test_says_why(root: Path) -> Iterator[str]:
    """A test has a docstring, so that a later developer can judge whether the test is right."""
    for module in modules(root, "tests"):
        for node in module.tree.body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name.startswith("test_") and not ast.get_docstring(node):
                yield f"{module.path}:{node.lineno}: {node.name} has no sentence that says why"


def _functions(within: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(within):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _lines_of_text(root: Path) -> Iterator[tuple[Path, int, str]]:
    for path in _text_files(root):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            yield path.relative_to(root), number, line


def _text_files(root: Path) -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    # An unpacked archive has no Git: read all files except the hidden ones.
    names = listed.stdout.split("\0") if (root / ".git").exists() else _visible(root)
    for path in sorted(root / name for name in names if name):
        if path.suffix in TEXT and path.is_file():
            yield path


def _visible(root: Path) -> Iterator[str]:
    for path in root.rglob("*"):
        relative = path.relative_to(root)
        if not any(part.startswith(".") or part.endswith(".egg-info") for part in relative.parts):
            yield str(relative)


Rule = Callable[[Path], Iterator[str]]

# Each rule with files that break it, and no other rule.
CANARIES: dict[Rule, list[dict[str, str]]] = {
    a_class_name_means_one_thing: [
        {
            "src/tidelog/store/a.py": "class Pace:\n    pass\n",
            "src/tidelog/wal/b.py": "class Pace:\n    pass\n",
        },
    ],
    rooms_import_upwards: [
        {"src/tidelog/store/local.py": "from tidelog.persist.format.part import Part\n"},
        {"src/tidelog/persist/format/part.py": "import tidelog.keyed.run\n"},
        {"src/tidelog/keyed/run.py": "def f():\n    from tidelog.persist import part\n"},
        {"src/tidelog/errors.py": "from tidelog.core import clock\n"},
        {"src/tidelog/core/clock.py": "if TYPE_CHECKING:\n    from tidelog.store import x\n"},
        {"src/tidelog/location.py": "from tidelog.testing.models import Model\n"},
        {"src/tidelog/spark/read.py": "from tidelog.cli.read import read\n"},
        {"src/tidelog/testing/spark.py": "from tidelog.spark.session import session\n"},
        {"src/tidelog/consensus/object_consensus.py": "from tidelog.wal.log import Log\n"},
        {"src/pyspark_tidelog/__init__.py": "from tidelog.persist.format.part import Part\n"},
    ],
    folders_import_upwards: [
        {"src/tidelog/collection/formats/x.py": "from tidelog.collection.source import port\n"},
        {"src/tidelog/collection/ingest/x.py": "from tidelog.collection.create import check\n"},
        {"src/tidelog/wal/read/x.py": "def f():\n    import tidelog.wal.gc.plan\n"},
        {"src/tidelog/wal/attic/x.py": ""},
    ],
    no_imports_form_a_cycle: [
        {
            "src/tidelog/store/a.py": "from tidelog.store.b import B\n",
            "src/tidelog/store/b.py": "def f():\n    import tidelog.store.c\n",
            "src/tidelog/store/c.py": "if TYPE_CHECKING:\n    from tidelog.store import a\n",
        },
        {"src/tidelog/store/a.py": "def f():\n    from tidelog.store.a import g\n"},
    ],
    every_room_is_known: [{"src/tidelog/attic/box.py": ""}],
    foreign_packages_stay_in_their_rooms: [
        {"src/tidelog/collection/read.py": "def f():\n    from pyspark.sql import SparkSession\n"},
        {"src/tidelog/store/local.py": "import duckdb\n"},
        {"src/tidelog/persist/format/part.py": "import obstore.store\n"},
    ],
    pure_modules_do_not_await: [
        {"src/tidelog/persist/states/state.py": "async def load(): ...\n"},
        {"src/tidelog/collection/source/survey_facts.py": "x = [await y async for y in z]\n"},
        {"src/tidelog/collection/formats/csv/x.py": "async def load(): ...\n"},
    ],
    files_and_functions_are_short: [
        {"src/tidelog/store/local.py": "x = 1\n" * (FILE_LINES_MAX + 1)},
        {"tests/test_x.py": "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX},
    ],
    things_have_names: [{"src/tidelog/store/utils.py": ""}, {"sim/helpers.py": ""}],
    what_is_public_is_documented: [
        {"src/tidelog/store/local.py": "x = 1\n"},
        {"src/tidelog/store/local.py": '"""M."""\nclass Store:\n    x = 1\n'},
        {
            "src/tidelog/location.py": '"""M."""\ndef run():\n'
            + "    x = 1\n" * (TRIVIAL_LINES_MAX + 1)
        },
    ],
    open_ends_have_an_issue: [
        {"src/tidelog/store/local.py": "x = 1  # TO" + "DO: later\n"},
        {"docs/x.md": "FIX" + "ME\n"},
    ],
    no_machine_is_named: [
        {"docs/x.md": "see /ho" + "me/ann/data\n"},
        {"Makefile": "x: /wo" + "rk/main\n"},
        {"tests/test_x.py": "HOST = '10.0." + "0.1'\n"},
    ],
    what_docs_name_is_there: [{"docs/x.md": "see `sim/moved.py` for it\n"}],
    each_test_says_why: [{"tests/store/test_x.py": "def test_x():\n    assert True\n"}],
}
RULES = list(CANARIES)
BROKEN = [
    pytest.param(rule, files, id=f"{rule.__name__}-{number}")
    for rule, broken in CANARIES.items()
    for number, files in enumerate(broken)
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_this_tree_keeps_the_rule(rule: Rule) -> None:
    """The tree has no complaint; the rule's own docstring has the reason."""
    complaints = list(rule(ROOT))

    assert not complaints, "\n".join(["", rule.__doc__ or "", *complaints])


def test_each_pure_module_exists() -> None:
    """Otherwise a moved module would silently leave the rule."""
    assert [path for path in PURE if not (ROOT / "src/tidelog" / path).is_file()] == []
    folders = ["/".join(folder) for folder in PURE_FOLDERS]
    assert [path for path in folders if not (ROOT / "src/tidelog" / path).is_dir()] == []


@pytest.mark.parametrize(("rule", "files"), BROKEN)
def test_the_rule_finds_what_breaks_it(rule: Rule, files: dict[str, str], tmp_path: Path) -> None:
    """Each rule complains about its canary; a rule that never complains would always pass."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    complaints = list(rule(tmp_path))

    assert complaints
    assert all(any(name in complaint for name in files) for complaint in complaints)


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8000",
        "s3://bucket/home/x",
        "version 1.2.3",
        "TO" + "DO(#12): later",
        "<root>/work/x",
    ],
)
def test_rules_of_text_leave_what_is_right_alone(text: str, tmp_path: Path) -> None:
    """The rules of text accept loopback, versions and URLs; false alarms would discredit them."""
    (tmp_path / "x.md").write_text(text)

    assert not list(no_machine_is_named(tmp_path))
    assert not list(open_ends_have_an_issue(tmp_path))
