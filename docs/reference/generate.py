"""Pages of the site that are made from the code, as hooks of MkDocs.

`pages` returns the text of each: the command line from the commands, the Python API from the
exported names, errors, metrics and Spark's options from their declarations. They are made at each
build, so that none can be out of date.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.main import get_command

import tidelog
from tidelog import aio, errors
from tidelog.cli.main import make_app, status_of
from tidelog.core.metrics import METRICS
from tidelog.errors import TidelogError
from tidelog.http import client
from tidelog.server.exposition import PREFIX, ServerMetrics
from tidelog.spark.options import OPTIONS

DOCS = Path(__file__).resolve().parents[1]
CLI = "reference/cli"
PYTHON = "reference/python"
# The classes with a page of their own; the other exported names share one page.
CLASSES = (
    "Location",
    "Collections",
    "Collection",
    "Sources",
    "Tables",
    "Table",
    "Logs",
    "Log",
    "KeyedLogs",
    "KeyedLog",
    "KeyedReader",
    "Shards",
    "Shard",
    "Transactions",
)
HTTP_NAMES = ("HttpKeyedLog", "HttpScan")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace each folder in the navigation by its pages."""
    folders = {
        folder: sorted(path for path in pages() if path.startswith(folder + "/"))
        for folder in (CLI, PYTHON)
    }
    records = sorted(path.name for path in (DOCS / "decisions").glob("[0-9]*.md"))
    folders["decisions"] = ["decisions/index.md", *(f"decisions/{name}" for name in records)]
    config.nav = _expanded(config.nav, folders)
    return config


def _expanded(entry: Any, folders: dict[str, list[str]]) -> Any:
    if isinstance(entry, list):
        return [_expanded(each, folders) for each in entry]
    if isinstance(entry, dict):
        return {title: _expanded(each, folders) for title, each in entry.items()}
    # The index comes first, so that it is the page of its section.
    found = folders.get(entry)
    return sorted(found, key=lambda path: not path.endswith("index.md")) if found else entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


@cache
def pages() -> dict[str, str]:
    """Return the text of each page by its path below docs/."""
    return {
        **dict(_command_pages()),
        **dict(_python_pages()),
        "changelog.md": (DOCS.parent / "CHANGELOG.md").read_text().replace("](docs/", "]("),
        "decisions/index.md": _decisions_page(),
        "reference/errors.md": _errors_page(),
        "reference/metrics.md": _metrics_page(),
        "reference/spark-options.md": _spark_page(),
    }


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table of Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(text) for text in line) + " |" for line in lines)


def _cell(text: str) -> str:
    # Python-Markdown leaves a bar in code alone, and would show a backslash before it.
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part[:1] == "`" else part.replace("|", "&#124;") for part in parts)


# The command line


def _command_pages() -> Iterator[tuple[str, str]]:
    top: Any = get_command(make_app())
    single = {name: c for name, c in top.commands.items() if not hasattr(c, "commands")}
    groups = {name: c for name, c in top.commands.items() if hasattr(c, "commands")}
    for name, command in single.items():
        yield f"{CLI}/{name}.md", f"# tidelog {name}\n\n{_command(command, name)}"
    for name, group in groups.items():
        parts = [f"# tidelog {name}\n", _prose(group.help or ""), ""]
        for path, command in _commands(group, name):
            parts += [f"## tidelog {path}\n", _command(command, path)]
        yield f"{CLI}/{name}.md", "\n".join(parts)
    every = [(name, name, c) for name, c in single.items()]
    every += [
        (path, name, c) for name, group in groups.items() for path, c in _commands(group, name)
    ]
    rows = [(_link(path, name), _first(c.help)) for path, name, c in every]
    yield (
        f"{CLI}/index.md",
        _INDEX.format(
            options=_options(top, "tidelog"), commands=table(("command", "purpose"), rows)
        ),
    )


_INDEX = """# Command line

```
tidelog [--location URL] [--consensus KIND] COMMAND ...
```

`python -m tidelog` is the same command. Options of `tidelog` itself come before the command:

{options}

{commands}

Standard output has the result; with `--json`, one JSON object a line. Standard error has progress
and messages. `tidelog --install-completion` installs completion for the shell.

| exit status | meaning |
| --- | --- |
| 0 | success |
| 1 | failure |
| 2 | misuse: the message states the remedy |
| 3 | the store failed |
| 130 | interrupted |
"""


def _link(path: str, page: str) -> str:
    anchor = "" if path == page else "#tidelog-" + path.replace(" ", "-")
    return f"[`{path}`]({page}.md{anchor})"


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        elif not command.hidden:
            yield f"{path} {name}", command


def _command(command: Any, path: str) -> str:
    context = command.make_context(path, [], resilient_parsing=True)
    usage = " ".join(["tidelog", path, *command.collect_usage_pieces(context)])
    help_text, options = _prose(command.help or ""), _options(command, path)
    return f"```\n{usage}\n```\n\n{help_text}\n\n{options}\n"


def _options(command: Any, path: str) -> str:
    context = command.make_context(path, [], resilient_parsing=True)
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    rows = [(f"`{name}`", _prose(text)) for name, text in filter(None, records)]
    return table(("argument or option", "meaning"), rows)


def _first(text: str | None) -> str:
    paragraph = " ".join((text or "").partition("\n\n")[0].split())
    return _prose(paragraph.partition(". ")[0].removesuffix(".") + ".")


def _prose(text: str) -> str:
    """Return help as Markdown: its pages become links, and its asterisks stay."""
    text = text.replace("*", "\\*").replace("<", "&lt;")
    return re.sub(r"docs/([\w/-]+)\.md", r"[\1](../../\1.md)", text)


# The Python API


def _python_pages() -> Iterator[tuple[str, str]]:
    values = [name for name in tidelog.__all__ if name not in (*CLASSES, "connect")]
    names = {"location": ("connect", "Location"), "values": tuple(values)}
    names |= {_slug(name): (name,) for name in CLASSES[1:]}
    for page, exported in names.items():
        title = "Settings and values" if page == "values" else exported[-1]
        blocks = "\n\n".join(f"::: {_home(getattr(tidelog, name))}" for name in exported)
        yield f"{PYTHON}/{page}.md", f"# {title}\n\n{blocks}\n"
    blocks = "\n\n".join(f"::: {_home(getattr(client, name))}" for name in HTTP_NAMES)
    yield (
        f"{PYTHON}/http-client.md",
        f"# HTTP client\n\n{inspect.getdoc(client)}\n\n{blocks}\n",
    )
    awaited = ", ".join(f"`{name}`" for name in aio.__all__ if inspect.isclass(getattr(aio, name)))
    rows = [
        (
            f"[`{exported[-1]}`]({page}.md)" if page != "values" else f"[values]({page}.md)",
            _summary(getattr(tidelog, exported[-1]))
            if page != "values"
            else "settings, codecs and results",
        )
        for page, exported in names.items()
    ]
    rows.append(("[`HttpKeyedLog`](http-client.md)", _summary(client.HttpKeyedLog)))
    yield (
        f"{PYTHON}/index.md",
        _PYTHON.format(names=table(("name", "purpose"), rows), awaited=awaited),
    )


_PYTHON = """# Python API

`import tidelog` is the blocking API. `tidelog.connect(url)` opens a location; its methods return
the other objects.

{names}

`tidelog.aio` has the same names for programs with an event loop: {awaited}. Await each method that
reads or writes. The methods of a blocking class call the awaited method of the same name.
"""


def _slug(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def _home(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _summary(thing: object) -> str:
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


# Decisions, errors, metrics, options


def _decisions_page() -> str:
    rows = []
    for path in sorted((DOCS / "decisions").glob("[0-9]*.md")):
        text = path.read_text()
        title = re.search(r"^# (.*)$", text, re.MULTILINE)
        date = re.search(r"^- Date: (.*)$", text, re.MULTILINE)
        number, _, decision = (title[1] if title else "").partition(". ")
        rows.append((number, f"[{decision}]({path.name})", date[1] if date else ""))
    return f"# Decisions\n\n{table(('number', 'decision', 'date'), rows)}\n"


def _errors_page() -> str:
    parts = [_ERRORS]
    for group in sorted(_kinds(TidelogError), key=_line):
        classes = [group, *sorted(_below(group), key=_line)]
        rows = [(f"`{each.__name__}`", *_fault(each), str(_status(each))) for each in classes]
        parts += [
            f"## {group.__name__}\n",
            f"`kind`: `{group.kind}`\n",
            table(("error", "fault", "remedy", "exit"), rows),
            "",
        ]
    return "\n".join(parts)


_ERRORS = """# Errors

All errors are classes of `tidelog.errors`, below `TidelogError`. The groups follow the caller's
next step. Each error has a `kind` (its group) and an `outcome`:

| `outcome` | meaning |
| --- | --- |
| `NOT_APPLIED` | the change was not made |
| `APPLIED` | the change was made |
| `UNKNOWN` | the change may be made, now or later: read back before you repeat it |

```python
from tidelog.errors import Fenced, LocationError, Outcome

try:
    position = log.append([b"one"])
except Fenced:
    raise  # another process writes this log now
except LocationError as error:
    if error.outcome is Outcome.UNKNOWN:
        ...  # see the guide "Write a log"
```

The last column is the exit status of the command line. Spark shows an error as
`[TIDELOG_POSITION_COLLECTED]` with its message: the name of the class in capital letters. Over HTTP
an error has the same `kind` and `outcome` ([HTTP](http.md#errors)). The
[guide](../guides/write-a-log.md#after-unknown) has a program for an unknown outcome.
"""


def _kinds(base: type[TidelogError]) -> list[type[TidelogError]]:
    return [each for each in base.__subclasses__() if each.__module__ == errors.__name__]


def _below(base: type[TidelogError]) -> Iterator[type[TidelogError]]:
    for each in _kinds(base):
        yield each
        yield from _below(each)


def _line(kind: type[TidelogError]) -> int:
    return inspect.getsourcelines(kind)[1]


def _fault(kind: type[TidelogError]) -> tuple[str, str]:
    fault, _, remedy = (kind.__doc__ or "").partition("Remedy: ")
    return fault.strip().removesuffix("."), remedy.strip().removesuffix(".")


def _status(kind: type[TidelogError]) -> int:
    return status_of(kind.__new__(kind))


def _metrics_page() -> str:
    own = [
        (f"`{name}`", metric.kind, ", ".join(metric.labels), metric.unit, metric.meaning)
        for name, metric in METRICS.items()
    ]
    shown = [metric for metric in vars(ServerMetrics()).values() if hasattr(metric, "_labelnames")]
    server = [
        (f"`{_exposed(m)}`", m._type, ", ".join(m._labelnames), m._documentation) for m in shown
    ]
    return _METRICS.format(
        own=table(("name", "kind", "labels", "unit", "meaning"), own),
        server=table(("name", "kind", "labels", "meaning"), server),
        prefix=PREFIX,
    )


def _exposed(metric: Any) -> str:
    name: str = metric._name
    return name + ("_total" if metric._type == "counter" else "")


_METRICS = """# Metrics

## Of a process
tidelog reports these numbers to the sink of the program; by default there is none.

```python
import tidelog
from tidelog.core.metrics import Metric, use_sink


class Printer:
    def observe(self, metric: Metric, value: float, labels: dict[str, str]) -> None:
        print(metric.name, value, labels)


with use_sink(Printer()), tidelog.connect("file:///data/lake", create=True) as lake:
    lake.logs.create("events").close()
```

{own}

## Of a server
`tidelog serve` has these numbers at `/metrics`, in Prometheus's text format. It also has the
numbers above, with the prefix `{prefix}` (counters end in `_total`). Prometheus's library adds a
`_created` to each counter and histogram.

{server}
"""


def _spark_page() -> str:
    parts = [_SPARK]
    for kind, options in OPTIONS.items():
        rows = [(f"`{name}`", of, meaning) for name, (of, meaning) in options.items()]
        parts += [f"## {kind}\n", table(("option", "method", "meaning"), rows), ""]
    return "\n".join(parts)


_SPARK = textwrap.dedent("""\
    # Options of Spark

    `spark.read.format("tidelog")` and `readStream` take these options, and `load(name)` takes the
    name. Names of options ignore case. The option `kind` selects one of the sections below. Guides:
    [collections](../guides/spark.md), [logs](../guides/spark-logs.md),
    [keyed logs](../guides/spark-keyed-logs.md).
    """)
