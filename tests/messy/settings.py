"""The source that a seed draws: its format, its columns, and how it is ingested."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from messy.values import SQL
from tidelog.collection.formats.csv.guess import CsvOptions
from tidelog.collection.spec_types import SourceSpec

FORMATS: Final = ("json", "json", "json-array", "csv", "csv", "csv", "parquet")
KINDS: Final = {
    "csv": ("bigint", "int", "double", "decimal", "boolean", "varchar", "date", "timestamp"),
    "parquet": (
        *("bigint", "int", "double", "decimal", "boolean", "varchar", "date", "timestamp"),
        *("struct", "list"),
    ),
}
TIMES: Final = ("bigint", "bigint", "bigint", "timestamp", "timestamp", "date")
NULLS: Final = ("NA", "NULL", "\\N", "-", "?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A source, and how it is ingested.

    Shape: ``columns`` are types by name: ``tag`` in each source, ``k`` the key, ``at`` the time,
    and ``gone`` the deletion. With ``is_versioned``, files are ingested like cloud objects.
    """

    format: str
    columns: dict[str, str]
    keys: tuple[str, ...] = ()
    time: str | None = None
    unit: str = "ms"
    ahead: str = "1d"
    lateness: str = "0s"
    deletes: bool = False
    shards: int = 1
    csv: CsvOptions = field(default_factory=CsvOptions)
    suffixes: tuple[str, ...] = ("",)
    pattern: str = "**"
    is_versioned: bool = False
    block_bytes: int = 1 << 20
    piece_bytes: int = 16 << 20

    @property
    def required(self) -> set[str]:
        return {*self.keys, *([] if self.time is None else ["at"])}

    @property
    def is_held(self) -> bool:
        return self.lateness != "0s"

    @property
    def extension(self) -> str:
        return {"json": "jsonl", "json-array": "json"}.get(self.format, self.format)

    def spec(self, files: str) -> SourceSpec:
        """Return the source as a user defines it."""
        schema = ", ".join(f'"{name}" {SQL[kind]}' for name, kind in self.columns.items())
        return SourceSpec(
            name="c",
            files=files,
            format=self.format,
            schema=schema,
            envelope="upsert" if self.keys else "none",
            key=self.keys,
            time_column=None if self.time is None else "at",
            time_unit=self.unit,
            max_ahead=self.ahead,
            lateness=self.lateness,
            delete_when="gone" if self.deletes else None,
            shards=self.shards,
            csv=self.csv,
        )


def draw_settings(dice: random.Random) -> Settings:
    """Draw a source."""
    name = dice.choice(FORMATS)
    kinds = KINDS.get(name, tuple(SQL))
    columns = {"tag": "varchar"}
    keys: tuple[str, ...] = ()
    if dice.random() < 0.5:
        columns["k"] = dice.choice(["bigint", "bigint", "varchar", "date", "int"])
        keys = ("k",)
        if dice.random() < 0.2:
            columns["k2"], keys = "boolean", ("k2", "k")
    time = dice.choice(TIMES) if dice.random() < 0.6 else None
    if time is not None:
        columns["at"] = time
    # With days, the next day would make the collection forget a deletion: decision 14.
    ahead = dice.choice(["1d", "1d", "90s", "any"])
    deletes = bool(keys) and dice.random() < 0.25 and time != "date" and ahead != "any"
    if deletes:
        columns["gone"] = "boolean"
    for n in range(dice.randrange(1, 4)):
        columns[dice.choice([f"c{n}", f"Column {n}", f"ä{n}"])] = dice.choice(kinds)
    names = list(columns)
    dice.shuffle(names)
    is_versioned = dice.random() < 0.1
    texts = [("",), ("",), ("", ".gz"), ("", ".gz", ".zst"), (".gz",), (".zst",)]
    block = dice.choice([64, 1 << 20])
    return Settings(
        format=name,
        columns={column: columns[column] for column in names},
        keys=keys,
        time=time,
        unit=dice.choice(["ms", "ms", "s", "us"]) if time == "bigint" else "ms",
        ahead=ahead,
        lateness=dice.choice(["5s", "10m", "2h"]) if time and dice.random() < 0.25 else "0s",
        deletes=deletes,
        shards=dice.choice([1, 1, 1, 2]),
        csv=_dialect(dice) if name == "csv" else CsvOptions(),
        suffixes=dice.choice(texts) if name != "parquet" else ("",),
        pattern=dice.choice(["**", "**", "*", "**/*"]),
        is_versioned=is_versioned,
        block_bytes=block,
        piece_bytes=block * dice.choice([1, 4, 1 << 10]),
    )


def _dialect(dice: random.Random) -> CsvOptions:
    quote = dice.choice(['"', '"', '"', "'", ""])
    by_format = dice.random() < 0.3
    return CsvOptions(
        delimiter=dice.choice([",", ",", ";", "\t", "|", "^"]),
        quote=quote,
        nulls=tuple(dice.sample(NULLS, dice.randrange(3))),
        date_format="%d.%m.%Y" if by_format else None,
        timestamp_format="%d.%m.%Y %H:%M:%S" if by_format else None,
        header=dice.random() < 0.75,
        multiline=bool(quote) and dice.random() < 0.4,
    )
