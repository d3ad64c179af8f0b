"""Generated input: json lines whose outcomes are known without parsing."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """One line with its line end.

    ``row`` is the row that it holds, or None if it is bad; then the errors shard must give
    ``reason``, perhaps with more text after it.
    """

    data: bytes
    row: tuple[str, int | None, int, bool] | None
    reason: str = ""

    @property
    def at(self) -> int:
        assert self.row is not None
        return self.row[2]


@dataclass(slots=True)
class Input:
    """Files by path, and the bytes of each that exist already (some files grow during the run)."""

    files: dict[str, list[Line]]
    written: dict[str, int] = field(default_factory=dict)

    def bytes_of(self, path: str) -> bytes:
        return b"".join(line.data for line in self.files[path])

    def lines_between(self, path: str, start: int, limit: int) -> list[tuple[int, Line]]:
        """Return the lines that begin in ``[start, limit)``, with their offsets."""
        found: list[tuple[int, Line]] = []
        offset = 0
        for line in self.files[path]:
            if start <= offset < limit:
                found.append((offset, line))
            offset += len(line.data)
        return found

    def lines(self) -> list[Line]:
        return [line for path in sorted(self.files) for line in self.files[path]]


COLUMNS = 'k varchar, n bigint, "at" bigint, gone boolean'
KEY = ("k",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The parameters of generated input.

    ``disorder`` is the share of lines with times out of order. A null in a ``required`` column
    makes a line bad.
    """

    files: int = 3
    lines: int = 14
    keys: int = 4
    start: int = 1_000
    step: int = 3
    disorder: float = 0.0
    bad: float = 0.1
    gone: float = 0.2
    required: tuple[str, ...] = ()


def generate(dice: random.Random, shape: Shape) -> Input:
    """Generate files over few keys; their times mostly rise, and many are equal."""
    files: dict[str, list[Line]] = {}
    time = shape.start
    for number in range(shape.files):
        lines: list[Line] = []
        for _ in range(shape.lines):
            # Several changes of one key at one time are common here on purpose.
            time += dice.choice([0, 0, 0, 1, shape.step])
            if dice.random() < shape.bad:
                lines.append(_bad_line(dice, time, shape))
                continue
            at = time
            if dice.random() < shape.disorder:
                at = max(0, time + dice.randrange(-20, 20))
            lines.append(_good_line(dice, at, shape))
        files[f"src/{number:03}.jsonl"] = lines
    return Input(files)


def _good_line(dice: random.Random, at: int, shape: Shape) -> Line:
    key = f"k{dice.randrange(shape.keys)}"
    number = dice.choice([None, 0, 1, 2, 3])
    gone = dice.random() < shape.gone
    row = (key, number, at, gone)
    fields: dict[str, Any] = {"k": key, "n": number, "at": at, "gone": gone}
    if number is None and dice.random() < 0.5:
        del fields["n"]
    if dice.random() < 0.1:
        fields["unknown"] = dice.choice([1, "x", None, {"a": [1]}])
    names = list(fields)
    dice.shuffle(names)
    text = json.dumps(
        {n: fields[n] for n in names}, separators=dice.choice([(",", ":"), (", ", ": ")])
    )
    return Line(text.encode() + dice.choice([b"\n", b"\n", b"\r\n", b"\n\n"]), row)


def _bad_line(dice: random.Random, at: int, shape: Shape) -> Line:
    good = f'{{"k":"k0","n":1,"at":{at},"gone":false}}'
    kinds = [
        ("not json", "the line is not one json value"),
        ("[1, 2]", "the line is not a json object"),
        (good[:-2], "the line is not one json value"),
        (good + good, "the line is not one json value"),
        (f'{{"k":"k0","n":"one","at":{at},"gone":false}}', "column 'n' does not fit"),
        ("{", "the line is not one json value"),
    ]
    if "k" in shape.required:
        kinds.append((f'{{"k":null,"n":1,"at":{at},"gone":false}}', "column 'k' is null"))
        kinds.append((f'{{"n":1,"at":{at}}}', "column 'k' is null"))
    if "at" in shape.required:
        kinds.append(('{"k":"k0","n":1,"gone":false}', "column 'at' is null"))
        mad = '{"k":"k0","n":1,"at":900000000000000,"gone":false}'
        kinds.append((mad, "column 'at' is later than"))
    text, reason = dice.choice(kinds)
    return Line(text.encode() + b"\n", None, reason)
