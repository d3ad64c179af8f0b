"""Layouts: how units form a text of JSON lines, of a JSON array, or of CSV."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from messy.csv_records import csv_record
from messy.json_records import json_unit
from messy.records import WHITE, Rows, Unit

MARK: Final = b"\xef\xbb\xbf"
BLANKS: Final = (b"", b" ", b"\t", b"   ", b"\r")


def draw_units(rows: Rows, *, size: int) -> list[Unit]:
    """Draw the text of a file in the source's format."""
    dice, settings = rows.dice, rows.settings
    if settings.format == "csv":
        return _csv_units(rows, size)
    if settings.format == "json-array" and dice.random() < 0.8:
        return _array_units(rows, size)
    drawn = [json_unit(rows, lines=True) for _ in range(size)]
    units = _ended(dice, _repeated(dice, drawn))
    if units and dice.random() < 0.1:
        units[0] = units[0].headed(MARK, slack=len(MARK))
    return units


def _repeated(dice: random.Random, units: list[Unit]) -> list[Unit]:
    """Repeat some records unchanged; each copy is a row."""
    return [unit for unit in units for _ in range(2 if dice.random() < 0.06 else 1)]


def _ended(dice: random.Random, units: list[Unit], delimiter: str = ",") -> list[Unit]:
    """End each record with a line end, of one kind or mixed, and add some blank lines."""
    ends = dice.choice([[b"\n"], [b"\n"], [b"\r\n"], [b"\n", b"\r\n"]])
    found = []
    for unit in units:
        if dice.random() < 0.05:
            # A blank line has no delimiter, which would separate nulls.
            blank = dice.choice(BLANKS).replace(delimiter.encode(), b"") + b"\n"
            found.append(Unit(blank, 0, len(blank), note="blank"))
        end = dice.choice(ends)
        text = unit.text + end
        found.append(replace(unit, text=text, ends=len(text)))
    if units and dice.random() < 0.2:
        last = found[-1]
        found[-1] = replace(last, text=last.text[: last.body], ends=None)
    return found


def _array_units(rows: Rows, size: int) -> list[Unit]:
    dice = rows.dice
    gaps = dice.choice([[""], ["\n"], ["\n  "], ["", " ", "\r\n", "\n\n"]])
    drawn = _repeated(dice, [json_unit(rows, lines=False) for _ in range(size)])
    mark = MARK if dice.random() < 0.1 else b""
    begin, end = mark + b"[", b"]" + dice.choice([b"", b"\n", b" \r\n"])
    if not drawn:
        text = begin + dice.choice(gaps).encode() + end
        return [Unit(text, 0, len(begin) + 1, note="empty array")]
    found = []
    for number, unit in enumerate(drawn):
        lead = (begin if number == 0 else b"") + dice.choice(gaps).encode()
        last = number == len(drawn) - 1
        tail = dice.choice(gaps).encode() + (end if last else b",")
        headed = unit.headed(lead, slack=len(lead))
        stop = len(headed.text) + len(tail) - (len(end) - 1 if last else 0)
        cut_min = len(lead) + 1 if unit.cut_max else 0
        # An array that is not closed waits, even if it ends with an object.
        found.append(
            replace(headed, text=headed.text + tail, ends=stop, alone=False, cut_min=cut_min)
        )
    return found


def _csv_units(rows: Rows, size: int) -> list[Unit]:
    dice, settings = rows.dice, rows.settings
    names, header = _header(rows)
    quote = (settings.csv.quote or "").encode()
    drawn: list[Unit] = []
    for _ in range(size):
        opened = any(unit.opens for unit in drawn)
        unit = csv_record(rows, names, wrong=0.08, broken=0.08, may_open=not opened)
        # No later record may close the open quote by chance.
        if opened and quote in unit.text:
            continue
        drawn.append(unit)
    if not settings.csv.header and drawn and drawn[0].text.startswith(MARK):
        drawn = drawn[1:]
    if not any(unit.opens for unit in drawn):
        drawn = _repeated(dice, drawn)
    units = _ended(dice, drawn, settings.csv.delimiter or ",")
    if header is not None:
        line = (header + dice.choice(["\n", "\n", "\r\n"])).encode()
        units.insert(0, Unit(line, len(header.encode()), len(line), is_header=True))
    if units and dice.random() < 0.1 and units[0].text.strip(WHITE):
        units[0] = units[0].headed(MARK, slack=len(MARK))
    return units


def _header(rows: Rows) -> tuple[list[str], str | None]:
    """Draw the columns of a file, their order, and its first line."""
    dice, settings = rows.dice, rows.settings
    names = list(settings.columns)
    if not settings.csv.header:
        return names, None
    if dice.random() < 0.3:
        dice.shuffle(names)
    if dice.random() < 0.15 and len(names) > 2:
        names.pop(dice.randrange(len(names)))
    if dice.random() < 0.15:
        names.insert(dice.randrange(len(names) + 1), dice.choice(["more", "TAG", *names]))
    sign, quote = settings.csv.delimiter or ",", settings.csv.quote or ""
    fields = []
    for name in names:
        text = f"{quote}{name}{quote}" if dice.random() < 0.2 else name
        spaced = not text.startswith(quote or "\0") and dice.random() < 0.1
        fields.append(f" {text} " if spaced else text)
    if sum(name in names for name in settings.columns) * 2 < len(settings.columns):
        return _header(rows)
    return names, sign.join(fields)
