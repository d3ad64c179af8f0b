"""What ``tidelog source create`` may be told of a source, option by option."""

from __future__ import annotations

from typing import Annotated

import typer

Files = Annotated[
    str,
    typer.Option(
        metavar="FILES",
        help="A directory, a prefix, or a pattern in quotes: './events/*.jsonl', "
        "'s3://bucket/raw/**/*.parquet'.",
    ),
]
Format = Annotated[
    str, typer.Option(metavar="json|csv|parquet", help="json is JSON lines; csv: see docs/csv.md.")
]
Envelope = Annotated[
    str,
    typer.Option(
        metavar="none|upsert", help="none: every row counts; upsert: the newest of each key."
    ),
]
Key = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMNS", help="The columns that name a row: carrier,flight,day."),
]
TimeColumn = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="The rows' times; without it, the time they are ingested."),
]
TimeUnit = Annotated[
    str, typer.Option(metavar="s|ms|us|ns", help="The unit of integers in --time-column.")
]
MaxAhead = Annotated[
    str,
    typer.Option(
        metavar="DURATION|any",
        help="A row whose time lies further past the clock is a bad one: it would make all that "
        "comes until then late.",
    ),
]
DeleteWhen = Annotated[
    str | None, typer.Option(metavar="SQL", help="Rows for which this holds delete their key.")
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMNS", help="'flight int, day date'; by default inferred from the files."
    ),
]
Shards = Annotated[int, typer.Option(help="How many shards the rows are spread over.")]
