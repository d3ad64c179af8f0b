"""The options of ``tidelog source create``, and the output of the csv options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.collection.formats.csv.guess import CsvOptions
    from tidelog.collection.formats.lines import CsvDialect
    from tidelog.collection.spec_types import SourceSpec

Files = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILES",
        help="A directory, a prefix, or a pattern in quotes: './events/*.jsonl', "
        "'s3://bucket/raw/**/*.parquet'; may be repeated, for several in one store.",
    ),
]
Log = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|URL",
        help="Instead of files: a log of this location, or the URL of a log elsewhere.",
    ),
]
Generator = Annotated[
    str | None,
    typer.Option(
        metavar="counter|key-value",
        help="Instead of files: generated rows, the same in each run; --set configures "
        "them (docs/guides/sources.md).",
    ),
]
Collection = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Instead of files: another collection of this location. --format decodes a column "
        "of text in it; without --format, its rows stay as they are "
        "(docs/guides/raw-collections.md).",
    ),
]
Kafka = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Instead of files: topics of Kafka, from this broker; several with commas. --set "
        "configures the client (docs/guides/kafka.md).",
    ),
]
Topic = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOPIC",
        help="With --kafka: the topic; may be repeated. '^orders-.*' is a pattern, also for later "
        "topics.",
    ),
]
Include = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMNS",
        help="With --format, for a source that reads no files: columns of the source next to the "
        "fields of the text, as in 'key,timestamp=at'.",
    ),
]
TextColumn = Annotated[
    str | None,
    typer.Option(
        "--column",
        metavar="COLUMN",
        help="With --collection and --format: the column to decode; by default the only one of "
        "text or bytes.",
    ),
]
Kind = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="Instead of files: a kind of source from another package."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A setting of the kind of source, if it reads no files; may be repeated.",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        metavar="json|json-array|csv|parquet|avro|text|bytes|rows",
        help="json (the default) is JSON lines, or json-array if the first file is one; csv: "
        "see docs/guides/ingest-csv.md; text makes a row of each line. For sources other than "
        "files: json, csv, avro or text decodes the column 'body' (of Kafka: 'value'), bytes keeps "
        "it as it is; rows (the default) keeps the columns.",
    ),
]
AvroSchema = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="With --format avro, for sources other than files: a file with the schema of the "
        "messages (.avsc). Its text is stored with the source.",
    ),
]
ENVELOPE = typer.Option(
    metavar="none|upsert",
    help="none: append each row; upsert: keep the newest row of each key.",
)
Envelope = Annotated[str, ENVELOPE]
Key = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMNS", help="The columns of the key: carrier,flight,day."),
]
TimeColumn = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="The column of the rows' times; without it, a row's time is the time of its "
        "ingestion.",
    ),
]
TIME_UNIT = typer.Option(metavar="s|ms|us|ns", help="The unit of integers in --time-column.")
TimeUnit = Annotated[str, TIME_UNIT]
MAX_AHEAD = typer.Option(
    metavar="DURATION|any",
    help="How far a row's time may be ahead of the clock. A row further ahead is a bad row: "
    "it would make all earlier rows late.",
)
MaxAhead = Annotated[str, MAX_AHEAD]
LATENESS = typer.Option(
    metavar="DURATION",
    help="How long ingestion waits for late rows: the collection trails the newest row by "
    "this much, until 'ingest --final'.",
)
Lateness = Annotated[str, LATENESS]
Retain = Annotated[
    str,
    typer.Option(
        metavar="DURATION|forever",
        help="How long earlier times stay readable; see 'collection retain'.",
    ),
]
DeleteWhen = Annotated[
    str | None,
    typer.Option(
        metavar="SQL", help="A condition; a row that meets it deletes the stored row of its key."
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMNS", help="'flight int, day date'; by default inferred from the files."
    ),
]
IgnoreCase = Annotated[
    bool,
    typer.Option(
        "--ignore-case",
        help="Match the names of columns in files without regard to upper and lower case.",
    ),
]
Evolve = Annotated[
    bool,
    typer.Option(
        "--evolve",
        help="Let ingesters add a column, with an inferred type, for each new field of the data.",
    ),
]
KeepBindings = Annotated[
    bool | None,
    typer.Option(
        "--keep-bindings/--forget-bindings",
        help="Remember which data was read at each time, so that a new rendition can read the "
        "same. The default for files; other sources forget it.",
    ),
]
SHARDS = typer.Option(metavar="N", help="Divide the rows among N shards, each with its own merges.")
Shards = Annotated[int, SHARDS]


def spec_type() -> type[SourceSpec]:
    """Return the type of a spec. Its module is loaded on demand: it loads Arrow."""
    from tidelog.collection.spec_types import SourceSpec

    return SourceSpec


def avro_schema_in(path: Path | None) -> str | None:
    """Return the text of a file.

    Raises:
        UsageError: the file cannot be read, or is not text.
    """
    try:
        return None if path is None else path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--avro-schema {str(path)!r} cannot be read: {error}") from error


def what_is_read(
    inputs: Mapping[str, str | list[str] | None],
    settings: list[str] | None,
    *,
    column: str | None,
    topics: list[str] | None,
) -> tuple[str, Mapping[str, str]]:
    """Return the kind of a source and its settings, from the options that name an input.

    Raises:
        UsageError: the options name no kind or several kinds, or a setting is not NAME=VALUE.
    """
    named = {name: value for name, value in inputs.items() if value}
    if len(named) > 1:
        options = " and ".join(f"--{name}" for name in named)
        raise UsageError(f"{options} exclude each other: a source reads one of them")
    if not named:
        *most, last = (f"--{name}" for name in inputs)
        raise UsageError(f"the source has no data to read: pass {', '.join(most)} or {last}")
    ((name, value),) = named.items()
    given = _settings_in(settings)
    if column is not None and name != "collection":
        raise UsageError("--column names a column of --collection: pass that, or remove --column")
    if topics and name != "kafka":
        raise UsageError("--topic names a topic of --kafka: pass that, or remove --topic")
    if name == "kafka" and not topics and "topic" not in given:
        raise UsageError("--kafka needs --topic: the topics to read")
    if name == "collection":
        given |= {} if column is None else {"column": column}
    if name == "kafka":
        given |= {"topic": ",".join(topics)} if topics else {}
    if name in _SETTING_OF:
        return name, {**given, _SETTING_OF[name]: str(value)}
    return str(value) if name == "kind" else name, given


# The setting that has the value of an option, by the option's name, which is that of a kind.
_SETTING_OF = {
    "collection": "collection",
    "log": "log",
    "generator": "shape",
    "kafka": "servers",
}


def _settings_in(settings: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for setting in settings or ():
        name, mark, value = setting.partition("=")
        if not mark or not name or name in found:
            raise UsageError(f"--set {setting!r}: write NAME=VALUE, and each name once")
        found[name] = value
    return found


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
    header: bool | None = None,
    multiline: bool | None = None,
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


def csv_fields(dialect: CsvDialect) -> dict[str, object]:
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


def csv_text(dialect: CsvDialect) -> str:
    """Return a csv dialect as the options that set it."""
    told = [f"--delimiter {dialect.delimiter!r}", f"--quote {dialect.quote or 'none'!r}"]
    told += [f"--null {text!r}" for text in dialect.nulls]
    if dialect.date_format is not None:
        told.append(f"--date-format {dialect.date_format!r}")
    if dialect.timestamp_format is not None:
        told.append(f"--timestamp-format {dialect.timestamp_format!r}")
    told.append("--header" if dialect.has_header else "--no-header")
    told.append("--multiline" if dialect.multiline else "--no-multiline")
    return " ".join(told)
