"""Records with their results; `json_records` and `csv_records` write them.

Shape: a unit is a piece of text with its end: a record, a blank line, or a header.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any, Final

from messy.settings import Settings
from messy.values import EPOCH, Form, moment_form

Row = dict[str, Any]
WHITE: Final = b" \t\r\n"
FIRST: Final = 1_700_000_000_000_000  # The first time of a row, in microseconds since 1970.
SPAN: Final = 3 * 3_600_000_000
AHEAD: Final = datetime.fromisoformat("2999-01-01")
BEFORE: Final = datetime.fromisoformat("1969-12-31T23:59:58")


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of a text.

    Shape: ``row`` is its result, and ``is_bad`` marks a bad row; a unit with neither gives nothing.
    It is whole once ``ends`` bytes are visible, or at the end of the text if ``ends`` is None.
    Without its line end it has ``body`` bytes. With ``alone``, these bytes show that they are
    whole. A cut 1 to ``cut_max`` bytes after ``cut_min`` makes it a bad row. Its offset may be
    reported up to ``slack`` bytes later. With ``opens``, it opens a quote that nothing closes.
    ``note`` describes the draw.
    """

    text: bytes
    body: int
    ends: int | None
    row: Row | None = None
    is_bad: bool = False
    alone: bool = False
    cut_min: int = 0
    cut_max: int = 0
    slack: int = 0
    opens: bool = False
    is_header: bool = False
    note: str = ""

    def headed(self, mark: bytes, *, slack: int = 0) -> Unit:
        """Return the unit with some bytes before it."""
        size = len(mark)
        return replace(
            self,
            text=mark + self.text,
            body=self.body + size,
            ends=None if self.ends is None else self.ends + size,
            cut_min=self.cut_min + size,
            cut_max=self.cut_max + size if self.cut_max else 0,
            slack=self.slack + slack,
        )


@dataclass(slots=True)
class Rows:
    """A source of row values. Each row has its own tag, and times mostly increase."""

    dice: random.Random
    settings: Settings
    count: int = 0
    at_us: int = FIRST
    times: list[int] | None = None

    def tag(self) -> str:
        self.count += 1
        return f"r{self.count}"

    def time(self) -> Form:
        """Draw a time: mostly a little later than the last, sometimes the same, or any time."""
        dice, settings = self.dice, self.settings
        step = dice.choice([0, 1, 999, 1_000, 1_500, 1_000_000, 60_000_000])
        if dice.random() < 0.25:
            self.at_us = FIRST + dice.randrange(SPAN)
        self.at_us = min(self.at_us + step, FIRST + SPAN)
        at, form = self.at_us, None
        if dice.random() < 0.03:
            found = AHEAD if dice.random() < 0.5 else BEFORE
            at = (found - EPOCH) // timedelta(microseconds=1)
        if settings.time == "bigint":
            unit = {"s": 1_000_000, "ms": 1_000, "us": 1}[settings.unit]
            form = Form(str(at // unit), at // unit)
        elif settings.time == "date":
            day = (EPOCH + timedelta(microseconds=at)).date()
            if at < FIRST + SPAN:
                day += timedelta(days=dice.randrange(3) if at >= FIRST else 0)
            form = Form(day.isoformat(), day)
        else:
            form = moment_form(dice, EPOCH + timedelta(microseconds=at))
        is_ahead = at > FIRST + SPAN and settings.ahead != "any"
        return replace(form, is_bad=is_ahead)

    def gone(self, at: Any) -> bool:
        """Return True if a row deletes; one from before 1970 would be forgotten, so it does not."""
        early = {int: 0, datetime: EPOCH, date: EPOCH.date()}.get(type(at))
        return self.dice.random() < 0.35 and (early is None or at >= early)


def key_form(dice: random.Random, kind: str) -> Form:
    """Return one of a few keys."""
    if kind == "varchar":
        text = dice.choice(["a", "b", "A", "ä"])
        return Form(text, text)
    if kind == "date":
        day = dice.choice([date(2024, 2, 29), date(1969, 12, 31)])
        return Form(day.isoformat(), day)
    if kind == "boolean":
        known = dice.random() < 0.5
        return Form(str(known).lower(), known)
    value = dice.choice([1, 2, 3, -1])
    return Form(str(value), value)


def row_forms(
    rows: Rows,
    kinds: dict[str, str],
    draw: Callable[[str, bool], Form],
    as_text: Callable[[str], str],
    *,
    wrong: str | None,
) -> tuple[dict[str, Form | None], bool]:
    """Draw a value for each column, or None for null.

    Return the values, and True if the row is bad.

    ``wrong`` is the column that gets a bad value.
    """
    forms: dict[str, Form | None] = {}
    texts = {"tag", *rows.settings.keys}
    for name, kind in sorted(kinds.items(), key=lambda item: item[0] == "gone"):
        if name == wrong:
            forms[name] = draw(kind, True)
        elif name == "tag":
            text = rows.tag()
            forms[name] = Form(as_text(text), text)
        elif name in texts:
            found = key_form(rows.dice, kind)
            is_text = kind in ("varchar", "date")
            forms[name] = Form(as_text(found.text) if is_text else found.text, found.value)
        elif name == "at":
            found = rows.time()
            text = found.text if kind == "bigint" else as_text(found.text)
            forms[name] = replace(found, text=text)
        elif name == "gone":
            at = forms.get("at")
            deletes = rows.gone(None if at is None else at.value)
            forms[name] = Form(str(deletes).lower(), deletes)
        else:
            forms[name] = draw(kind, False)
        if name != wrong and rows.dice.random() < (0.03 if name in texts | {"at"} else 0.12):
            forms[name] = None
    missing = any(forms.get(name) is None for name in rows.settings.required)
    return forms, missing or any(form is not None and form.is_bad for form in forms.values())


def as_row(settings: Settings, forms: dict[str, Form | None]) -> Row:
    values = {name: forms.get(name) for name in settings.columns}
    return {name: None if form is None else form.value for name, form in values.items()}
