"""The source of the blocking API: ``python -m kit.blocking_source`` writes it again.

Each module of `MODULES` holds the blocking twins of awaited classes. A method of a twin runs the
awaited method in the connection's loop and waits for it. Signatures, defaults and imports come from
the source of the awaited class, so that a method is written once.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

FOLDER: Final = Path(__file__).resolve().parents[2] / "src/tidelog/blocking"


@dataclass(frozen=True)
class Twin:
    """A blocking class: the awaited class, and the members that it leaves out or adds."""

    awaited: str  # Module and class, ``tidelog.wal.log.Log``.
    doc: str
    base: str = "BlockingTwin"
    internal: frozenset[str] = frozenset()  # Members for engines and other handles of tidelog.
    fields: tuple[str, ...] = ()  # Fields of a dataclass that callers read.
    in_loop: frozenset[str] = frozenset()  # Plain methods that need the running loop.

    @property
    def name(self) -> str:
        return self.awaited.rpartition(".")[2]

    @property
    def cls(self) -> type:
        module, _, name = self.awaited.rpartition(".")
        found: type = getattr(importlib.import_module(module), name)
        return found


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


MODULES: Final[dict[str, tuple[Twin, ...]]] = {
    "location": (
        Twin(
            "tidelog.location.Location",
            "A connection to a location; close it, or use it in ``with``.",
            base="tidelog.blocking.transacting.TransactingConnection",
            internal=names(
                "controller maintenance executor_url store ingest_store table_transactions "
                "transact attempts"
            ),
            fields=("url",),
        ),
    ),
    "logs": (
        Twin("tidelog.wal.logs.Logs", "The logs of a location.", internal=names("found within")),
        Twin(
            "tidelog.wal.log.Log",
            "A log; close it, or use it in ``with``. Several threads may use one log at once.",
            base="ClosingTwin",
            fields=("name", "protocol"),
        ),
    ),
    "keyed": (
        Twin(
            "tidelog.keyed.logs.KeyedLogs",
            "The keyed logs of a location.",
            internal=names("state_handle has"),
        ),
        Twin(
            "tidelog.keyed.port.KeyedScan",
            "Records, read on demand by one thread. Leaving the loop by ``break`` ends the scan.",
            base="ClosingTwin",
        ),
        Twin(
            "tidelog.keyed.reader.KeyedReader",
            "A keyed log that is read; close it, or use it in ``with``.",
            base="ClosingTwin",
            fields=("name",),
        ),
        Twin(
            "tidelog.keyed.log.KeyedLog",
            "A keyed log that is written and read; close it, or use it in ``with``.",
            in_loop=names("on_durable"),
        ),
    ),
    "shards": (
        Twin("tidelog.persist.shards.Shards", "The shards of a location."),
        Twin(
            "tidelog.persist.handle.shard.Shard",
            "A shard.",
            internal=names(
                "state refresh commit_parts report_before_data snapshot_of check_replaced writer "
                "may_inline wait_for_upper written_schema"
            ),
        ),
        Twin(
            "tidelog.persist.read.snapshot.ShardSnapshot",
            "A shard's contents at one time.",
            internal=names("is_whole"),
        ),
        Twin(
            "tidelog.persist.handle.appender.Appender",
            "A named writer.",
            base="ClosingTwin",
            fields=("upper",),
        ),
        Twin(
            "tidelog.persist.handle.leasing.LeasedReader",
            "A reader with a lease.",
            base="ClosingTwin",
            fields=("since", "until_us"),
            internal=names("begin beat"),
        ),
        Twin(
            "tidelog.persist.transactions.transactions.Transactions",
            "Transactions: writes to several shards at one time.",
            internal=names("state refresh shard id_of decide seen"),
        ),
        Twin("tidelog.persist.transactions.begun.Transaction", "One transaction."),
    ),
    "collections": (
        Twin(
            "tidelog.collection.collections.Collections",
            "The collections of a location.",
            internal=names("opened of_rendition"),
        ),
        Twin(
            "tidelog.collection.collection.Collection",
            "A collection.\n\nA time is ISO 8601 text, a datetime, a date (its midnight in UTC) or "
            "milliseconds since 1970.",
            internal=names(
                "all_shards all_states states check_since refresh since upper resolve_as_of "
                "resolve_between resolve_start reading served contents rows_of changes_of "
                "parts_until parts_between snapshots snapshots_at first_shard own_reading mark "
                "eras era_at is_complete states_at"
            ),
        ),
        Twin(
            "tidelog.collection.reading.Contents",
            "The rows of a collection at one time; ``len`` and other libraries read them.",
            base="RowsTwin",
            fields=("as_of",),
        ),
        Twin(
            "tidelog.collection.tables.Tables",
            "The tables of a location.",
            internal=names("finished"),
        ),
        Twin(
            "tidelog.collection.table_handle.Table",
            "A table: a collection that programs write.",
            internal=names("info columns writer reader registered finish check_listed"),
        ),
        Twin(
            "tidelog.collection.transaction.TableTransaction",
            "A transaction over tables; use it in ``with``, which commits it at the end.",
            base="ClosingTwin",
            fields=("time",),
            internal=names("is_refused"),
        ),
    ),
    "sources": (
        Twin(
            "tidelog.collection.sources.Sources",
            "The sources of a location.",
            internal=names("add ingester"),
        ),
        Twin("tidelog.collection.renditions.Renditions", "The renditions of collections."),
    ),
}
HOMES: Final = {twin.name: module for module, twins in MODULES.items() for twin in twins}
TWINS: Final = {twin.name: twin for twins in MODULES.values() for twin in twins}


def source(module: str) -> str:
    """Return the source of one module of `MODULES`, formatted."""
    return formatted(Source(module).text())


@dataclass
class Source:
    """One module of blocking classes, as it is written."""

    name: str
    needed: set[tuple[str, str]] = field(default_factory=set)  # Imports at run time.
    typed: set[tuple[str, str]] = field(default_factory=set)  # Imports for type checkers.

    def text(self) -> str:
        classes = [self._class(twin) for twin in MODULES[self.name]]
        self.typed -= self.needed
        head = [
            f'"""The blocking API: {self.name}. Do not edit: `kit.blocking_source` writes it."""',
            "from __future__ import annotations",
            "from typing import TYPE_CHECKING",
            *_imports(self.needed),
            "if TYPE_CHECKING:",
            *(f"    {line}" for line in _imports(self.typed)),
        ]
        return "\n".join(head) + "\n\n\n" + "\n\n\n".join(classes) + "\n"

    def _class(self, twin: Twin) -> str:
        self.needed.add(("tidelog.blocking.portal", "documented_as"))
        module = twin.awaited.rpartition(".")[0]
        alias = f"awaited_{module.rpartition('.')[2]}"
        self.needed.add((module, f"as {alias}"))
        awaited = f"{alias}.{twin.name}"
        parents = [base for base in twin.cls.__mro__[1:] if base.__name__ in TWINS]
        home, _, name = twin.base.rpartition(".")
        base = parents[0].__name__ if parents else f"{name}[{awaited}]"
        if not parents:
            self.needed.add((home or "tidelog.blocking.portal", name))
        lines = [f"@documented_as({awaited})", f"class {twin.name}({base}):"]
        lines.append(
            textwrap.indent(
                f'"""{twin.doc}\n"""' if "\n" in twin.doc else f'"""{twin.doc}"""', "    "
            )
        )
        if parents:
            lines.append(f"\n    _inner: {awaited}")
        own_repr = vars(twin.cls).get("__repr__")
        # That of a dataclass wraps another function; it shows fields that callers do not know.
        if own_repr is not None and not hasattr(own_repr, "__wrapped__") and not parents:
            lines.append("\n    def __repr__(self) -> str:\n        return repr(self._inner)")
        lines += [textwrap.indent(part, "    ") for part in self._members(twin, parents)]
        return "\n".join(lines)

    def _members(self, twin: Twin, parents: list[type]) -> Iterator[str]:
        for name in twin.fields:
            yield self._field(twin, name)
        seen = set[str]()
        for parent in parents:
            seen |= {name for name in dir(parent) if not name.startswith("__")}
            seen -= set(vars(twin.cls)) - set(vars(parent))
        seen |= {*twin.fields, *twin.internal}
        for cls in twin.cls.__mro__[:-1]:
            if cls in parents:
                break
            for name, member in vars(cls).items():
                is_iterated = name == "__aiter__"
                if name in seen or (name.startswith("_") and not is_iterated):
                    continue
                seen.add(name)
                if isinstance(member, property):
                    assert member.fget is not None
                    yield self._property(member.fget)
                elif inspect.isfunction(member):
                    yield self._method(twin, member)

    def _field(self, twin: Twin, name: str) -> str:
        for cls in twin.cls.__mro__:
            found = vars(cls).get(name)
            if isinstance(found, property):
                assert found.fget is not None
                return self._property(found.fget)
            if name in vars(cls).get("__annotations__", {}):
                annotation = str(vars(cls)["__annotations__"][name])
                annotation = annotation.removeprefix("ClassVar[").removesuffix("]")
                self._resolve(cls.__module__, ast.parse(annotation), self.typed)
                return (
                    f"\n@property\ndef {name}(self) -> {annotation}:\n    return self._inner.{name}"
                )
        raise LookupError(f"{twin.awaited} has no {name}")

    def _property(self, getter: Any) -> str:
        node = _node(getter)
        assert node.returns is not None
        self._resolve(getter.__module__, node.returns, self.typed)
        returned = ast.unparse(node.returns)
        lines = [f"\n@property\ndef {node.name}(self) -> {returned}:"]
        value = f"self._inner.{node.name}"
        return "\n".join([*lines, textwrap.indent(self._returned(returned, value), "    ")])

    def _method(self, twin: Twin, function: Any) -> str:
        node = _node(function)
        assert node.returns is not None
        returned = _with_twin(function.__module__, ast.unparse(node.returns))
        node.returns = ast.parse(returned, mode="eval").body
        self._resolve(function.__module__, node.args, self.typed)
        self._resolve(function.__module__, node.returns, self.typed)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self._resolve(function.__module__, default, self.needed)
        arguments = self._arguments(node.args)
        name = {"__aiter__": "__iter__", "aclose": "close"}.get(node.name, node.name)
        call = f"self._inner.{node.name}({arguments})"
        if node.name == "__aiter__":
            call = "aiter(self._inner)"
        item = _item(node.returns)
        if item is not None:
            self.typed.add(("collections.abc", "Iterator"))
            returned, body = f"Iterator[{item}]", f"return self._portal.iterate({call})"
        else:
            is_async = isinstance(node, ast.AsyncFunctionDef)
            if is_async:
                call = f"self._portal.run({call})"
            elif node.name in twin.in_loop:
                call = f"self._portal.call(lambda: {call})"
            body = self._returned(returned, call)
        return f"\ndef {name}({ast.unparse(node.args)}) -> {returned}:\n" + textwrap.indent(
            body, "    "
        )

    def _arguments(self, args: ast.arguments) -> str:
        """Return the arguments of the call of the awaited method; twins are unwrapped."""
        given = [*args.posonlyargs, *args.args][1:]
        passed = [self._passed(each) for each in given]
        if args.vararg is not None:
            passed.append(f"*{args.vararg.arg}")
        passed += [f"{each.arg}={self._passed(each)}" for each in args.kwonlyargs]
        return ", ".join(passed)

    def _passed(self, argument: ast.arg) -> str:
        kind = ast.unparse(argument.annotation) if argument.annotation is not None else ""
        if kind not in TWINS:
            return argument.arg
        self.needed.add(("tidelog.blocking.portal", "unwrapped"))
        self._import_twin(kind, self.needed)
        return f"unwrapped({argument.arg}, {kind})"

    def _returned(self, returned: str, value: str) -> str:
        """Return the statement that returns a value, wrapped if it has a blocking twin."""
        if returned not in TWINS:
            return f"return {value}" if returned != "None" else value
        lines = []
        if HOMES[returned] != self.name:
            lines.append(f"from tidelog.blocking.{HOMES[returned]} import {returned}\n")
        return "\n".join([*lines, f"return {returned}(self._portal, {value})"])

    def _resolve(self, module: str, node: ast.AST, into: set[tuple[str, str]]) -> None:
        """Add the imports of all names in an annotation or a default."""
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and each.id in TWINS:
                self._import_twin(each.id, into)
            elif isinstance(each, ast.Name) and not hasattr(builtins, each.id):
                into.add(_home(importlib.import_module(module), each.id))

    def _import_twin(self, name: str, into: set[tuple[str, str]]) -> None:
        if HOMES[name] != self.name:
            into.add((f"tidelog.blocking.{HOMES[name]}", name))


def _with_twin(module: str, returned: str) -> str:
    """Return the base of a type that has a twin, or the type itself.

    Raises:
        LookupError: callers would have to await a method of the type, because it has no twin.
    """
    home, name = _home(importlib.import_module(module), returned)
    cls = getattr(importlib.import_module(home), name, None) if name.isidentifier() else None
    if not isinstance(cls, type):
        return returned
    for base in cls.__mro__:
        if base.__name__ in TWINS:
            return base.__name__
    methods = [getattr(cls, each) for each in dir(cls) if each[0] != "_"]
    if hasattr(cls, "__aiter__") or any(map(inspect.iscoroutinefunction, methods)):
        raise LookupError(f"{returned} must be awaited, and has no blocking twin")
    return returned


def _item(returns: ast.expr) -> str | None:
    """Return the type of the items of an awaited iterator, or None for another type."""
    if not isinstance(returns, ast.Subscript) or not ast.unparse(returns.value).startswith("Async"):
        return None
    item = returns.slice.elts[0] if isinstance(returns.slice, ast.Tuple) else returns.slice
    return ast.unparse(item)


def _node(function: Any) -> ast.FunctionDef | ast.AsyncFunctionDef:
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return node


@cache
def _homes(module: ModuleType) -> dict[str, tuple[str, str]]:
    """Return the module and the original name of each name that a module imports or defines."""
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom):
            found |= {
                each.asname or each.name: (str(node.module), each.name) for each in node.names
            }
        elif isinstance(node, ast.Import):
            found |= {
                each.asname or each.name: (each.name, f"as {each.asname}" if each.asname else "")
                for each in node.names
            }
    return found


def _home(module: ModuleType, name: str) -> tuple[str, str]:
    return _homes(module).get(name, (module.__name__, name))


def _imports(found: set[tuple[str, str]]) -> list[str]:
    lines = []
    for module, name in sorted(found):
        if name.startswith("as "):
            parent, _, last = module.rpartition(".")
            lines.append(
                f"from {parent} import {last} {name}" if parent else f"import {module} {name}"
            )
        else:
            lines.append(f"from {module} import {name}" if name else f"import {module}")
    return lines


def formatted(text: str) -> str:
    """Return the text as ruff formats it, with sorted imports."""
    for command in (["check", "-q", "--fix", "--select", "I,F401"], ["format", "-q"]):
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", "blocking.py", "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=FOLDER.parents[2],
        ).stdout
    return text


if __name__ == "__main__":
    for module in MODULES:
        (FOLDER / f"{module}.py").write_text(source(module))
