"""Records of JSON: objects, and lines or elements that are not objects."""

from __future__ import annotations

import json
from typing import Final

from messy.records import Rows, Unit, as_row, row_forms
from messy.values import json_form

BROKEN: Final = (
    *("nonsense {n}", '"text {n}"', "{{'tag': {n}}}", "[1, {n}]", "{n}", "null", "-", "true"),
    *('{{"tag": "x{n}"}} {{"tag": "y"}}', '{{"tag" {n}}}', "\udcfe\udcfd {n}", "\x00\x00 {n}"),
    *('{{"tag": "x", "tag": "y{n}"}}', '{{"more": "\udcff{n}"}}'),
)
LINES_ONLY: Final = ('{{"tag": "x{n}"', '{{"tag": "x{n}"}},', '{{"tag": "x{n}', '"tag": {n}}}')
ALONE: Final = ('{{"tag": "x", "tag": "y{n}"}}',)
EXTRA: Final = ('"more": {"deep": [[[[1]]]]}', '"TAG": 5', '"": null', '"more": "\\u0000"')


def json_unit(rows: Rows, *, broken: float = 0.08, wrong: float = 0.08, lines: bool) -> Unit:
    """Draw a JSON object, without its line end."""
    dice, settings = rows.dice, rows.settings
    if dice.random() < broken:
        pool: tuple[str, ...] = (*BROKEN, *LINES_ONLY) if lines else BROKEN
        if settings.format == "json-array":
            pool = tuple(text for text in pool if not text.startswith("["))
        asked = dice.choice(pool)
        text = asked.format(n=dice.randrange(10**6))
        data = text.encode("utf-8", "surrogateescape")
        return Unit(data, len(data), None, is_bad=True, alone=asked in ALONE, note=asked)
    name = dice.choice([*settings.columns]) if dice.random() < wrong else None
    name = None if name in ("tag", "at", "gone", *settings.keys) and dice.random() < 0.5 else name
    forms, is_bad = row_forms(
        rows,
        settings.columns,
        lambda kind, is_bad: json_form(dice, kind, is_bad=is_bad),
        json.dumps,
        wrong=name,
    )
    fields = []
    for column in dice.sample([*forms], len(forms)):
        form = forms[column]
        if form is not None:
            fields.append(f"{json.dumps(column, ensure_ascii=dice.random() < 0.5)}: {form.text}")
        elif dice.random() < 0.5:
            fields.append(f"{json.dumps(column)}:null")
    if dice.random() < 0.15:
        fields.insert(dice.randrange(len(fields) + 1), dice.choice(EXTRA))
    gap = dice.choice(["", " "])
    text = "{" + gap + f",{gap}".join(fields) + gap + "}"
    data = text.encode("utf-8", "surrogateescape")
    breaks = any(form is not None and form.breaks for form in forms.values())
    return Unit(
        data,
        len(data),
        None,
        row=None if is_bad else as_row(settings, forms),
        is_bad=is_bad,
        alone=not breaks,
        cut_max=0 if is_bad else len(data) - 1,
        note=f"{name} does not fit" if name else "",
    )
