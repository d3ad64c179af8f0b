"""Values as text: how JSON and CSV write one, and its result or its bad row.

Shape: a text may hold bytes that are not UTF-8, as Python's "surrogateescape" stores them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

SQL: Final = {
    "bigint": "bigint",
    "int": "int",
    "double": "double",
    "decimal": "decimal(12, 2)",
    "boolean": "boolean",
    "varchar": "varchar",
    "date": "date",
    "timestamp": "timestamp",
    "json": "json",
    "struct": "struct(a bigint, b varchar)",
    "list": "bigint[]",
}
NESTED: Final = ("json", "struct", "list")
LIMITS: Final = {"bigint": 2**63, "int": 2**31}
EPOCH: Final = datetime.fromisoformat("1970-01-01")
LEAP: Final = datetime.fromisoformat("2024-02-29T23:59:59")
TEXTS: Final = (
    *("plain", "x", "two words", " spaced ", "a,b;c|d", "tab\there", '5" pipe', "it's", '"'),
    *("", "NA", "null", "-", "?", "\\N", "ä", "日本", "\U0001f600", "e\u0301", "\u202e", "#", "="),
    *("line\nbreak", "line\r\nbreak", "true", "0", "12", "\\", "\\n", "{}", "[1,2]", "a\x00b"),
    *("\u2028", "\ufeff", "z" * 5_000, "\x7f", "'quoted'", '"quoted"', "'", ","),
)
DATES: Final = (
    *(date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31), date(1, 1, 1)),
    *(date(1582, 10, 15), date(2023, 11, 14)),
)


@dataclass(frozen=True, slots=True)
class Form:
    """A value as it is written.

    Shape: ``is_bad`` makes its row a bad one. With ``breaks``, a line with it is not JSON. With
    ``plain`` CSV must not quote it, and with ``quoted`` it must.
    """

    text: str
    value: Any = None
    is_bad: bool = False
    breaks: bool = False
    plain: bool = False
    quoted: bool = False


def bad(*texts: str, breaks: bool = False) -> list[Form]:
    return [Form(text, is_bad=True, breaks=breaks) for text in texts]


def json_form(dice: random.Random, kind: str, *, is_bad: bool = False) -> Form:
    """Return a value of a type as JSON writes it."""
    if is_bad:
        return dice.choice(JSON_BAD[kind])
    if kind in NESTED:
        return dice.choice(JSON_NESTED[kind])
    if kind == "varchar":
        text = dice.choice(TEXTS)
        return Form(json.dumps(text, ensure_ascii=dice.random() < 0.5), text)
    found = PLAIN[kind](dice)
    text = found.text.lower() if kind == "boolean" else found.text
    if kind in ("date", "timestamp") or (kind == "decimal" and dice.random() < 0.3):
        text = f'"{text}"'
    elif kind in LIMITS:
        text = str(found.value)
    return Form(text, found.value)


def csv_form(
    dice: random.Random, kind: str, *, is_bad: bool = False, formats: Sequence[str] = ()
) -> Form:
    """Return a value as CSV writes it; dates and times in strptime's ``formats``."""
    if is_bad:
        return dice.choice(CSV_BAD[kind])
    if kind == "varchar":
        text = dice.choice(TEXTS)
        return Form(text, text)
    found = PLAIN[kind](dice)
    if formats and kind in ("date", "timestamp") and dice.random() < 0.5:
        form = formats[kind == "timestamp"]
        text = found.value.strftime(form)
        whole = kind == "date" or found.value.microsecond == 0
        return Form(text, found.value) if whole and found.value.year >= 1000 else found
    return found


def moment_form(dice: random.Random, value: datetime) -> Form:
    """Return a timestamp in one of the forms of ISO 8601, with or without an offset."""
    hours = dice.choice([None, None, 0, 2, -11])
    at = value if hours is None else value + timedelta(hours=hours)
    text = at.isoformat(dice.choice("T "), timespec="microseconds")
    text += dice.choice(["", "", "000"])
    if dice.random() < 0.5 and not at.microsecond:
        text = at.isoformat(dice.choice("T "), timespec="seconds")
    if hours is not None:
        text += "Z" if hours == 0 else f"{hours:+03d}:00"
    return Form(text, value)


def _whole(kind: str) -> Callable[[random.Random], Form]:
    limit = LIMITS[kind]

    def draw(dice: random.Random) -> Form:
        most = dice.choice([9, 9, 1_000, limit])
        value = dice.choice([dice.randrange(-most, most), limit - 1, -limit, min(2**53 + 1, 7)])
        texts = [str(value), str(value), f"{value:+d}", f"{value:05d}"]
        return Form(dice.choice(texts), value)

    return draw


def _double(dice: random.Random) -> Form:
    texts = ["0.1", "-2.5", "1e300", "5e-324", "123456789.125", "3.0", "3", "9007199254740993"]
    texts += ["0.1000000000000000055511151231257827", "1E5", str(dice.uniform(-9, 9))]
    text = dice.choice(texts)
    return Form(text, float(text))


def _decimal(dice: random.Random) -> Form:
    cents = dice.choice([dice.randrange(-10_000, 10_000), 10**12 - 1, 1 - 10**12, 5])
    value = Decimal(cents).scaleb(-2)
    short = str(value)
    if "." in short and dice.random() < 0.5:
        short = short.rstrip("0").rstrip(".")
    return Form(short, Decimal(cents).scaleb(-2))


def _boolean(dice: random.Random) -> Form:
    value = dice.random() < 0.5
    return Form(dice.choice([str(value).lower(), str(value).lower(), str(value)]), value)


def _date(dice: random.Random) -> Form:
    value = dice.choice(DATES)
    return Form(value.isoformat() + dice.choice(["", "", "", "T00:00:00", " 00:00:00"]), value)


def _timestamp(dice: random.Random) -> Form:
    micros = dice.choice([0, 0, 1, 999_999, 120_000])
    at = dice.choice([EPOCH, EPOCH - timedelta(days=4_000), LEAP])
    return moment_form(dice, at + timedelta(microseconds=micros, seconds=dice.randrange(9)))


PLAIN: Final[dict[str, Callable[[random.Random], Form]]] = {
    "bigint": _whole("bigint"),
    "int": _whole("int"),
    "double": _double,
    "decimal": _decimal,
    "boolean": _boolean,
    "date": _date,
    "timestamp": _timestamp,
}
JSON_NESTED: Final[dict[str, list[Form]]] = {
    "json": [
        *(Form(t, t) for t in ("1.10", '"x"', "true", "[ ]", "1e300", "123456789012345678901234")),
        *(Form(t, t) for t in ('{"a": [1, 2.50]}', '{"b":"\\u00e9"}', '{"z":1,"a":{"z":2}}')),
        Form("null", None),
    ],
    "struct": [
        Form('{"a": 1, "b": "x"}', {"a": 1, "b": "x"}),
        Form('{"b":null,"a":2}', {"a": 2, "b": None}),
        Form('{"b": "only"}', {"a": None, "b": "only"}),
    ],
    "list": [Form("[1, null, 3]", [1, None, 3]), Form("[]", []), Form("[-5]", [-5])],
}
NO_MOMENTS: Final = (
    *("2024-01-01T10:00:00.1234567", "2024-13-01T00:00:00", "2024-01-01T25:00:00", "yesterday"),
    *("infinity", "epoch", "2024-01-01T10", "10:00:00"),
)
NO_DAYS: Final = (
    *("2023-02-29", "2024-02-29T10:00:00", "2024-02-29T00:00:00+02:00", "infinity", "epoch"),
    *("31/31/2024", "today", "2024-02"),
)
CSV_BAD: Final[dict[str, list[Form]]] = {
    "bigint": [
        *bad("1.5", "1e3", "abc", "12x", "0x10", "1 2", "--1", "1_000", str(2**63), str(-(2**70))),
        Form("", is_bad=True, quoted=True),
    ],
    "int": bad("1.0", "1e3", "abc", str(2**31), str(-(2**31) - 1), "2147483648000000000000"),
    "double": bad("1e400", "abc", "1_0", "1.2.3", "-1e999"),
    "decimal": bad("1.234", "10000000000", "abc", "1.2.3", "0.001"),
    "boolean": bad("maybe", "2.5", "tru e"),
    "varchar": bad("not utf-8 \udcff", "overlong \udcc0\udcaf", "\udced\udca0\udc80"),
    "date": bad(*NO_DAYS),
    "timestamp": bad(*NO_MOMENTS),
}
JSON_BAD: Final[dict[str, list[Form]]] = {
    "bigint": bad("1.5", '"12"', "true", str(2**63), str(-(2**63) - 1), "[1]", '{"a":1}', "1e400"),
    "int": bad("1.5", '"12"', str(2**31), "false", str(-(2**31) - 1)),
    "double": bad('"1.5"', "1e400", "true", "[1.5]", "-1e999"),
    "decimal": bad("1.234", '"1.234"', "10000000000", '"abc"', "true", "0.001"),
    "boolean": bad("1", '"true"', '"x"', "[true]"),
    "varchar": [
        *bad("5", "true", "[]", '"\\ud800"', "{}"),
        *bad('"\x01"', '"\\q"', '"\udcff"', '"\udcc0\udcaf"', '"\x00"', breaks=True),
    ],
    "date": bad(*(f'"{t}"' for t in NO_DAYS), "5", "true"),
    "timestamp": bad(*(f'"{t}"' for t in NO_MOMENTS), "1700000000", "false"),
    "json": [*bad("NaN"), *bad("{a:1}", "[1,]", "tru", breaks=True)],
    "struct": bad('{"a":"x"}', "[1]", "5", '{"a":1.5}', '"{}"'),
    "list": bad('[1,"x"]', '{"a":1}', "5", "[1.5]", "[[1]]"),
}
