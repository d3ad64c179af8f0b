"""Records of CSV: fields as written in the file, and records that cannot be read."""

from __future__ import annotations

from collections.abc import Sequence

from messy.records import WHITE, Rows, Unit, as_row, row_forms
from messy.values import Form, csv_form


def csv_text(rows: Rows, form: Form) -> str | None:
    """Return a field as its record writes it, or None if CSV cannot express it."""
    asked, dice = rows.settings.csv, rows.dice
    quote, text = asked.quote or "", form.text
    ends = "\r" in text or "\n" in text
    needed = form.quoted or (not form.plain and text in ("", *(asked.nulls or ())))
    needed |= ends or (asked.delimiter or ",") in text or bool(quote and text.startswith(quote))
    if (needed and not quote) or ("\n" in text and not asked.multiline):
        return None
    if not needed and (form.plain or not quote or dice.random() < 0.75):
        return text
    return quote + text.replace(quote, quote * 2) + quote


def csv_record(
    rows: Rows, names: Sequence[str], *, wrong: float, broken: float, may_open: bool
) -> Unit:
    """Draw a record of CSV with these columns, without its line end."""
    dice, settings = rows.dice, rows.settings
    sign = settings.csv.delimiter or ","
    kinds = {name: settings.columns.get(name, "bigint") for name in dict.fromkeys(names)}
    name = dice.choice([*kinds]) if dice.random() < wrong else None
    if name is not None and name not in settings.columns:
        name = None
    formats = [f for f in (settings.csv.date_format, settings.csv.timestamp_format) if f]

    def draw(kind: str, is_bad: bool) -> Form:
        for _ in range(20):
            form = csv_form(dice, kind, is_bad=is_bad, formats=formats)
            if csv_text(rows, form) is not None:
                return form
        return Form("1", 1, is_bad=is_bad)

    forms, is_bad = row_forms(rows, kinds, draw, str, wrong=name)
    fields, seen = [], set[str]()
    for column in names:
        # If two columns have one name, the first one counts.
        form = forms[column] if column not in seen else Form("again")
        seen.add(column)
        nothing = dice.choice(["", *(settings.csv.nulls or ())])
        text = csv_text(rows, Form(nothing, plain=True) if form is None else form)
        fields.append(nothing if text is None else text)
    row, note = None if is_bad else as_row(settings, forms), f"{name} does not fit" if name else ""
    opens = False
    if dice.random() < broken:
        note, opens = _break(fields, rows, may_open=may_open)
        row, is_bad = None, True
    data = sign.join(fields).encode("utf-8", "surrogateescape")
    if not data.strip(WHITE):
        return Unit(data, len(data), None, note="blank")
    first = data.find(b"\n")
    last = min(data.rfind(sign.encode()), first if first >= 0 else len(data))
    blank = len(data) - len(data.lstrip(WHITE))
    is_cut = row is not None and last > blank
    return Unit(
        data,
        len(data),
        None,
        row=row,
        is_bad=is_bad,
        cut_min=blank if is_cut else 0,
        cut_max=last if is_cut else 0,
        opens=opens,
        note=note,
    )


def _break(fields: list[str], rows: Rows, *, may_open: bool) -> tuple[str, bool]:
    """Break a record. Return how, and True if a quote stays open for good."""
    dice, asked = rows.dice, rows.settings.csv
    quote, place = asked.quote or "", dice.randrange(len(fields))
    note = dice.choice(["few", "many", "behind", "open", "bytes", "return"])
    # A broken record is read again line by line.
    fields[:] = ["x" if "\n" in field else field for field in fields]
    if note == "few":
        fields.pop(place)
    elif note == "behind" and quote:
        fields[place] = f"{quote}a{quote}b"
    elif note == "open" and quote and (may_open or not asked.multiline):
        fields[:] = ["x" if quote in field else field for field in fields]
        fields[-1] = f"{quote}open"
        return note, asked.multiline is True
    elif note in ("bytes", "return"):
        fields[place] = "\udcfe\udcfd" if note == "bytes" else "a\rb"
    else:
        note = "many"
        fields.append("")
    return note, False
