"""The picture of the packages and their imports: ``python -m kit.package_map`` draws it again.

A package stands below all packages that it imports. An arrow leads from a package to one that it
imports; an import that other arrows imply has no arrow. Red arrows are imports of a cycle of
packages. Imports of a function count, because they run; imports for type checkers do not.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final

REPO: Final = Path(__file__).resolve().parents[2]
PICTURE: Final = REPO / "docs/internals/images/packages.svg"
LEFT_OUT: Final = {"", "__main__", "aio"}  # They only name things of other packages.
WIDTH: Final = 820
BOX: Final = (124, 36)
ROW: Final = 76
GAP: Final = 28
ROUNDS: Final = 12
HEAD: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" \
height="{height}" role="img" aria-labelledby="title">
  <title id="title">Packages and their imports; {bad} imports are part of a cycle</title>
  <style>
    text {{ font: 14px sans-serif; fill: #222222; text-anchor: middle }}
    rect {{ fill: #e3f2fd; stroke: #1565c0 }}
    path {{ fill: none; stroke: #666666 }}
    .tip {{ fill: #666666; stroke: none }}
    .cycle {{ stroke: #cc0000; stroke-width: 3 }}
    .paper {{ fill: #ffffff; stroke: none }}
  </style>
  <marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" \
orient="auto"><path class="tip" d="M0 0 L8 4 L0 8 z"/></marker>
  <rect class="paper" width="{width}" height="{height}"/>"""

Graph = dict[str, set[str]]


def package_of(path: Path) -> str:
    """Return the package of a file of ``src``, or the name of a loose module."""
    parts = path.relative_to(REPO / "src").with_suffix("").parts
    if parts[0] != "tidelog":
        return parts[0]
    return "" if parts[1] == "__init__" else parts[1]


@cache
def files() -> dict[str, list[Path]]:
    """Return the source files of each package."""
    found = defaultdict(list)
    for path in sorted((REPO / "src").rglob("*.py")):
        found[package_of(path)].append(path)
    return {name: paths for name, paths in found.items() if name not in LEFT_OUT}


def run_time_imports(node: ast.AST) -> Iterator[str]:
    """Yield the modules that code imports when it runs."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.ImportFrom) and child.module:
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        else:
            yield from run_time_imports(child)


def imports() -> Graph:
    """Return the packages that each package imports."""
    graph: Graph = {name: set() for name in files()}
    for name, paths in files().items():
        for path in paths:
            for module in run_time_imports(ast.parse(path.read_text())):
                parts = [*module.split("."), ""]
                target = parts[1] if parts[0] == "tidelog" else parts[0]
                if target in graph and target != name:
                    graph[name].add(target)
    return graph


def reachable(graph: Graph, start: str) -> set[str]:
    """Return the packages that one package imports, directly or by others."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        waiting += (new := graph[waiting.pop()] - reached)
        reached |= new
    return reached


def cycles(graph: Graph) -> set[tuple[str, str]]:
    """Return the imports that are part of a cycle."""
    return {(a, b) for a in graph for b in graph[a] if a in reachable(graph, b)}


def needed(graph: Graph) -> Graph:
    """Return the imports that no other imports imply."""
    return {
        name: {
            other
            for other in targets
            if not any(other in reachable(graph, each) for each in targets - {other})
        }
        for name, targets in graph.items()
    }


def levels(graph: Graph) -> dict[str, int]:
    """Return the row of each package, from 0: one below all that it imports.

    Packages of a cycle, and all packages that import them, share the last row.
    """
    level: dict[str, int] = {}
    while ready := [n for n in graph if n not in level and graph[n] <= level.keys()]:
        level |= {n: 1 + max((level[other] for other in graph[n]), default=-1) for n in ready}
    return {name: level.get(name, len(level)) for name in graph}


def chains(graph: Graph) -> list[list[str]]:
    """Return the points of each arrow: both packages, and a place in each row between them."""
    level = levels(graph)
    return [
        [
            name,
            *(f"{name}>{target}@{row}" for row in range(level[name] - 1, level[target], -1)),
            target,
        ]
        for name, targets in sorted(needed(graph).items())
        for target in sorted(targets)
    ]


def placed(graph: Graph) -> dict[str, tuple[float, float]]:
    """Return the centre of each package and of each point of an arrow, in pixels.

    The order in a row is that of the averages of the neighbours above and below.
    """
    level, near = levels(graph), defaultdict[str, list[str]](list)
    for chain in chains(graph):
        for begin, end in pairwise(chain):
            level[end] = level.get(end, level[begin] - 1)
            near[begin].append(end)
            near[end].append(begin)
    found = [sorted(n for n in level if level[n] == row) for row in sorted(set(level.values()))]
    at: dict[str, tuple[float, float]] = dict.fromkeys(level, (WIDTH / 2, 0))
    for _ in range(ROUNDS):
        for number, row in enumerate(found):
            row.sort(key=lambda n: sum(at[m][0] for m in near[n]) / max(1, len(near[n])))
            widths = [GAP if ">" in name else BOX[0] + GAP for name in row]
            left = (WIDTH - sum(widths)) / 2
            for name, wide in zip(row, widths, strict=True):
                at[name] = (left + wide / 2, ROW * number + ROW / 2)
                left += wide
    return at


def drawn(graph: Graph) -> str:
    """Return the picture as SVG."""
    at, bad, (wide, high) = placed(graph), cycles(graph), BOX
    lines = [
        HEAD.format(width=WIDTH, height=max(y for _, y in at.values()) + ROW / 2, bad=len(bad))
    ]
    for chain in chains(graph):
        curve = ""
        for begin, end in pairwise(chain):
            (x, y), (to_x, to_y) = at[begin], at[end]
            top = y if ">" in begin else y - high / 2
            bottom = to_y if ">" in end else to_y + high / 2
            middle = f"{(top + bottom) / 2:.0f}"
            curve += f"M{x:.0f} {top:.0f} " if not curve else ""
            curve += f"C{x:.0f} {middle} {to_x:.0f} {middle} {to_x:.0f} {bottom:.0f} "
        kind = ' class="cycle"' if (chain[0], chain[-1]) in bad else ""
        lines.append(f'  <path{kind} d="{curve.strip()}" marker-end="url(#tip)"/>')
    for name in sorted(graph):
        x, y = at[name]
        corner = f'x="{x - wide / 2:.0f}" y="{y - high / 2:.0f}"'
        lines.append(f'  <rect {corner} width="{wide}" height="{high}" rx="6"/>')
        lines.append(f'  <text x="{x:.0f}" y="{y + 5:.0f}">{name}</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    graph = imports()
    PICTURE.write_text(drawn(graph))
    print(f"{len(graph)} packages, {len(cycles(graph))} imports in cycles")
    print(PICTURE.relative_to(REPO))
