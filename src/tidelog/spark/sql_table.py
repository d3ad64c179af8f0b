"""Tables of Spark's catalog: ``CREATE TABLE name USING tidelog``. Pure.

Spark passes the options of a table to the source only when it creates the table. Each later query
gets no options, but the schema that the source returned (seen in PySpark 4.3.0). So the options are
stored in that schema, as metadata of its first column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

from tidelog.errors import UsageError

METADATA: Final = "tidelog"
OPTION: Final = "option."
# Properties that Spark adds when it creates a table, and that no read has.
ADDED: Final = ("owner", "provider")
STATEMENT: Final = "CREATE TABLE name USING tidelog LOCATION 'URL/COLLECTION'"


def options_of_table(properties: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options in the properties of a new table; None if no table is created.

    The place of a table is the URL of the location, a slash, and the collection. Spark repeats each
    option of the statement under a prefix.

    Raises:
        UsageError: the properties name no collection.
    """
    values = {name.lower(): value for name, value in properties.items()}
    if not any(name in values for name in ADDED):
        return None
    options = {n.removeprefix(OPTION): v for n, v in values.items() if n.startswith(OPTION)}
    place = values.get("path") or values.get("location", "")
    url, _, name = place.rstrip("/").rpartition("/")
    if not url:
        raise UsageError(f"the collection of the table is missing: write {STATEMENT}")
    return {**options, "location": url, "path": name}


def stored_in(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema of a table, with its options in the first column."""
    first, *others = schema.fields
    return StructType([_with(first, {METADATA: dict(options)}), *others])


def options_stored_in(schema: StructType) -> tuple[dict[str, str] | None, StructType]:
    """Return the options that the schema of a table contains, and the schema without them.

    The options are None if the schema is not that of a table.
    """
    options = schema.fields[0].metadata.get(METADATA) if schema.fields else None
    if options is None:
        return None, schema
    first, *others = schema.fields
    return dict(options), StructType([_with(first, {}), *others])


def _with(field: StructField, metadata: dict[str, object]) -> StructField:
    return StructField(field.name, field.dataType, field.nullable, metadata)


def check_unchanged(stored: StructType, present: StructType) -> None:
    """Check that a table has the present columns.

    Raises:
        UsageError: it has not.
    """
    if [(f.name, f.dataType) for f in stored] != [(f.name, f.dataType) for f in present]:
        raise UsageError(
            "the columns have changed since CREATE TABLE: run DROP TABLE, then CREATE TABLE again",
            table=", ".join(stored.names),
            now=", ".join(present.names),
        )
