"""The csv options of ``tidelog source create``, and their output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tidelog.collection.formats.csv.guess import CsvOptions
    from tidelog.collection.formats.dialect import CsvDialect

Delimiter = Annotated[
    str | None,
    typer.Option(
        metavar="CHARACTER", help="csv: the delimiter between fields, or 'tab'. By default guessed."
    ),
]
Quote = Annotated[
    str | None,
    typer.Option(
        metavar="CHARACTER", help="csv: the quote character, or 'none'. By default guessed."
    ),
]
Null = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT",
        help="csv: an unquoted field that means null, like the empty one; may be repeated."
        " By default guessed.",
    ),
]
DateFormat = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        help="csv: the format of dates, such as %d.%m.%Y, in addition to ISO 8601. By "
        "default guessed.",
    ),
]
TimestampFormat = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        help="csv: the format of times, such as '%d.%m.%Y %H:%M', in addition to ISO 8601."
        " By default guessed.",
    ),
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="csv: files begin with column names, or not. By default guessed.",
    ),
]
Multiline = Annotated[
    bool | None,
    typer.Option(
        "--multiline/--no-multiline",
        help="csv: quoted fields may contain line ends, or not. By default guessed.",
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
    """Return the csv options that the user gave; the others are None."""
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
    """Return a csv dialect as a JSON object."""
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
    """Return a csv dialect as the options that set it."""
    told = [f"--{option} {found[option]!r}" for option in ("delimiter", "quote")]
    told += [f"--null {text!r}" for text in found["nulls"]]
    for option in ("date_format", "timestamp_format"):
        if found[option] is not None:
            told.append(f"--{option.replace('_', '-')} {found[option]!r}")
    told.append("--header" if found["header"] else "--no-header")
    told.append("--multiline" if found["multiline"] else "--no-multiline")
    return " ".join(told)
