"""Parquet columns of other types than the source's, and their results."""

from __future__ import annotations

import io
import random
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from messy.records import Row, Rows, Unit, row_forms
from messy.values import DATES, EPOCH, JSON_NESTED, TEXTS, Form, csv_form

STRUCT: Final = pa.struct([("a", pa.int64()), ("b", pa.string())])
NATIVE: Final[dict[str, pa.DataType]] = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "decimal": pa.decimal128(12, 2),
    "boolean": pa.bool_(),
    "varchar": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "struct": STRUCT,
    "list": pa.list_(pa.int64()),
}
OTHERS: Final[dict[str, list[pa.DataType]]] = {
    "bigint": [pa.string(), pa.float64(), pa.uint64(), pa.int16(), pa.decimal128(20, 2)],
    "int": [pa.int64(), pa.string(), pa.float64()],
    "double": [pa.string(), pa.float32()],
    "decimal": [pa.decimal128(20, 4), pa.string()],
    "boolean": [pa.string()],
    "varchar": [pa.large_string(), pa.dictionary(pa.int32(), pa.string())],
    "date": [pa.string(), pa.timestamp("us"), pa.timestamp("ms", tz="UTC"), pa.int64()],
    "timestamp": [pa.timestamp("ns"), pa.timestamp("ms", tz="UTC"), pa.string(), pa.int64()],
    "struct": [pa.struct([("b", pa.string()), ("a", pa.int32())])],
    "list": [pa.large_list(pa.int64()), pa.list_(pa.int32())],
}


def draw_parquet(rows: Rows, *, size: int) -> tuple[list[Unit], bytes]:
    """Draw a file. Return a unit for each of its rows, and its bytes."""
    dice, settings = rows.dice, rows.settings
    names = list(settings.columns)
    if dice.random() < 0.3:
        dice.shuffle(names)
    if dice.random() < 0.15 and len(names) > 2:
        names.pop(dice.randrange(len(names)))
    own = {"tag", "at", "gone", *settings.keys}
    types = {name: NATIVE[settings.columns[name]] for name in names}
    for name in names:
        if name not in own and dice.random() < 0.3:
            types[name] = dice.choice(OTHERS[settings.columns[name]])
    units, written = [], []
    for _ in range(size):
        unit, values = _draw_row(rows, types)
        for _ in range(2 if dice.random() < 0.06 else 1):
            units.append(unit)
            written.append(values)
    columns: list[pa.Array[Any]] = [
        pa.array([values[name] for values in written], types[name]) for name in names
    ]
    if dice.random() < 0.1:
        names.append("more")
        columns.append(pa.array([*range(len(units))], pa.int64()))
    sink = io.BytesIO()
    table = pa.table(columns, names=names)
    group = dice.choice([1, 2, 100])
    pq.write_table(table, sink, row_group_size=group, compression=dice.choice(["snappy", "none"]))
    return units, sink.getvalue()


def _draw_row(rows: Rows, types: dict[str, pa.DataType]) -> tuple[Unit, dict[str, Any]]:
    settings, dice = rows.settings, rows.dice
    kinds = {name: kind for name, kind in settings.columns.items() if name in types}
    values: dict[str, Any] = {}
    names = iter([n for n in sorted(kinds, key=lambda n: n == "gone") if _is_free(rows, n)])

    def draw(kind: str, is_bad: bool) -> Form:
        name = next(names)
        form, values[name] = _draw_value(dice, kind, types[name])
        return form

    forms, is_bad = row_forms(rows, kinds, draw, str, wrong=None)
    row: Row = {
        name: None if (form := forms.get(name)) is None else form.value for name in settings.columns
    }
    for name, form in forms.items():
        if form is None:
            values[name] = None
        elif not _is_free(rows, name):
            values[name] = form.value
    unit = Unit(b"x", 1, 1, row=None if is_bad else row, is_bad=is_bad, note="parquet")
    return unit, values


def _is_free(rows: Rows, name: str) -> bool:
    return name not in {"tag", "at", "gone", *rows.settings.keys}


def _draw_value(dice: random.Random, kind: str, dtype: pa.DataType) -> tuple[Form, Any]:
    """Draw a value for a column type. Return its result and the value."""
    if pa.types.is_string(dtype) and kind != "varchar":
        form = csv_form(dice, kind, is_bad=dice.random() < 0.3)
        if "\udcff" in form.text or not form.text:
            form = Form("x", is_bad=True)
        return form, form.text
    if kind in ("bigint", "int", "double"):
        return _draw_number(dice, kind, dtype)
    if kind == "varchar":
        text = dice.choice(TEXTS)
        return Form(text, text), text
    if kind in ("struct", "list"):
        value = dice.choice(JSON_NESTED[kind]).value
        return Form("", value), value
    if kind == "decimal":
        value = Decimal(dice.randrange(-9_999, 9_999)).scaleb(-2)
        if dtype == NATIVE[kind] or dice.random() < 0.7:
            return Form("", value), value
        return Form("", is_bad=True), value + Decimal("0.0001")
    if kind == "boolean":
        return Form("", value := dice.random() < 0.5), value
    return _draw_moment(dice, kind, dtype)


def _draw_number(dice: random.Random, kind: str, dtype: pa.DataType) -> tuple[Form, Any]:
    small = dice.randrange(-99, 99)
    if kind == "double":
        halves = small / 2
        return Form("", halves), halves
    if pa.types.is_floating(dtype):
        half = dice.random() < 0.3
        return Form("", small, is_bad=half), small + 0.5 * half
    if pa.types.is_decimal(dtype):
        half = dice.random() < 0.3
        return Form("", small, is_bad=half), Decimal(small) + Decimal("0.50") * half
    most = 2**63 if kind == "bigint" else 2**31
    if pa.types.is_uint64(dtype):
        return dice.choice([(Form("", is_bad=True), most + 1), (Form("", abs(small)), abs(small))])
    if kind == "int" and dtype == pa.int64() and dice.random() < 0.3:
        return Form("", is_bad=True), most
    edge = most - 1 if dtype == NATIVE[kind] and dice.random() < 0.2 else small
    return Form("", edge), edge


def _draw_moment(dice: random.Random, kind: str, dtype: pa.DataType) -> tuple[Form, Any]:
    if pa.types.is_integer(dtype):
        return Form("", is_bad=True), 1_700_000_000  # An integer does not state its unit.
    day = dice.choice([date(1969, 12, 31), date(2024, 2, 29)])
    if kind == "date":
        if pa.types.is_date(dtype):
            found = dice.choice(DATES)
            return Form("", found), found
        late = dice.random() < 0.3
        at = datetime.fromisoformat(f"{day}T00:00:00") + timedelta(hours=late)
        return Form("", day, is_bad=late), at
    at = datetime.fromisoformat(f"{day}T12:30:01")
    if dtype == pa.timestamp("ns"):
        nanos = (at - EPOCH) // timedelta(microseconds=1) * 1_000
        cut = dice.random() < 0.3
        return Form("", at, is_bad=cut), nanos + cut
    return Form("", at), at
