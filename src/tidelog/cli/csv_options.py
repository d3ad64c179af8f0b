"""The options of ``tidelog source create`` that say how csv is written, and how they are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tidelog.collection.formats.csv.guess import CsvOptions
    from tidelog.collection.formats.dialect import CsvDialect

Delimiter = Annotated[
    str | None,
    typer.Option(
        metavar="CHARACTER", help="Of csv: what stands between fields; 'tab' is a tab. Guessed."
    ),
]
Quote = Annotated[
    str | None,
    typer.Option(
        metavar="CHARACTER", help="Of csv: what fields may stand in; 'none' is nothing. Guessed."
    ),
]
Null = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT",
        help="Of csv: a field, not quoted, that is null too; may be repeated. Guessed.",
    ),
]
DateFormat = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT", help="Of csv: dates, such as %d.%m.%Y, beside ISO 8601. Guessed."
    ),
]
TimestampFormat = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        help="Of csv: times, such as '%d.%m.%Y %H:%M', beside ISO 8601. Guessed.",
    ),
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header", help="Of csv: whether files begin with column names. Guessed."
    ),
]
Multiline = Annotated[
    bool | None,
    typer.Option(
        "--multiline/--no-multiline", help="Of csv: whether line ends stand in quotes. Guessed."
    ),
]


def csv_options(
    *,
    delimiter: str | None,
    quote: str | None,
    null: list[str] | None,
    date_format: str | None,
    timestamp_format: str | None,
    header: bool | None,
    multiline: bool | None,
) -> CsvOptions:
    """Return what was said of csv."""
    from tidelog.collection.formats.csv.guess import CsvOptions

    return CsvOptions(
        delimiter="\t" if delimiter in ("tab", "\\t") else delimiter,
        quote="" if quote == "none" else quote,
        nulls=tuple(null) if null else None,
        date_format=date_format,
        timestamp_format=timestamp_format,
        header=header,
        multiline=multiline,
    )


def csv_fields(dialect: CsvDialect) -> dict[str, Any]:
    """Return how csv is read, as an object of JSON."""
    return {
        "delimiter": dialect.delimiter,
        "quote": dialect.quote or "none",
        "nulls": list(dialect.nulls),
        "date_format": dialect.date_format,
        "timestamp_format": dialect.timestamp_format,
        "header": dialect.has_header,
        "multiline": dialect.multiline,
    }


def csv_text(found: dict[str, Any]) -> str:
    """Return how csv is read, by the options that say it."""
    told = [f"--{option} {found[option]!r}" for option in ("delimiter", "quote")]
    told += [f"--null {text!r}" for text in found["nulls"]]
    for option in ("date_format", "timestamp_format"):
        if found[option] is not None:
            told.append(f"--{option.replace('_', '-')} {found[option]!r}")
    told.append("--header" if found["header"] else "--no-header")
    told.append("--multiline" if found["multiline"] else "--no-multiline")
    return " ".join(told)
