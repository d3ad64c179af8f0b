"""Changes that leave a valid Parquet file: other rows, types, links, and sizes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from fuzz.byte_changes import Change
from fuzz.json_changes import change_json
from tidelog.wal.format import slot_object

BOMB_VALUE_BYTES: Final = 1_000_000
BOMB_ROWS: Final = 3_000
TIMES: Final = (0, 1, -1, 2**62, 2**63 - 1)

Table = pa.Table
Compression = Literal["snappy", "none", "gzip"]
TableChange = Callable[[random.Random, Table], tuple[str, Table] | None]


def change_parquet(dice: random.Random, data: bytes, *, sum_anew: bool) -> Change | None:
    """Return a description of the change and the bytes, or None if no change was possible."""
    file = pq.ParquetFile(pa.BufferReader(data))
    said = {k: v for k, v in (file.metadata.metadata or {}).items() if k != b"ARROW:schema"}
    if slot_object.LINK in said and dice.random() < 0.5:
        return _change_link(dice, file.read(), said, sum_anew=sum_anew)
    if dice.random() < 0.1:
        return _bomb(dice, file, said)
    changed = dice.choice(TABLE_CHANGES)(dice, file.read())
    if changed is None:
        return None
    told, table = changed
    compressions: list[Compression] = ["snappy", "none", "gzip"]
    return told, _written(table, said, compression=dice.choice(compressions))


def _change_link(
    dice: random.Random, table: Table, said: dict[bytes, bytes], *, sum_anew: bool
) -> Change | None:
    if dice.random() < 0.1:
        gone = dice.choice([slot_object.LINK, slot_object.CHECK])
        return f"without {gone!r}", _written(table, {k: v for k, v in said.items() if k != gone})
    # The checksum is next to the link, not in it.
    changed = change_json(dice, said[slot_object.LINK], sum_anew=False)
    if changed is None:
        return None
    told, link = changed
    said = {**said, slot_object.LINK: link}
    if sum_anew:
        said[slot_object.CHECK] = slot_object._check_of(link)
    return f"link: {told}", _written(table, said)


def _written(
    table: Table, said: dict[bytes, bytes], *, compression: Compression = "snappy"
) -> bytes:
    sink = pa.BufferOutputStream()
    schema = pa.schema(list(table.schema))
    with pq.ParquetWriter(
        sink,
        schema,
        compression=compression,
        write_statistics=False,
        store_schema=False,
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table.replace_schema_metadata(None))
        if said:
            # As bytes, because a hostile writer need not write text.
            writer.add_key_value_metadata(dict(said))  # type: ignore[arg-type]
    return sink.getvalue().to_pybytes()


def change_body(dice: random.Random, table: Table) -> tuple[str, Table] | None:
    return _change_cell(dice, table, "body", [b"", b"other", b"\x00", b"x" * 100])


def change_time(dice: random.Random, table: Table) -> tuple[str, Table] | None:
    return _change_cell(dice, table, "timestamp_us", [*TIMES, 1_750_000_000_000_001])


def change_position(dice: random.Random, table: Table) -> tuple[str, Table] | None:
    name = "position" if "position" in table.column_names else "offset"
    return _change_cell(dice, table, name, [*TIMES, 3])


def change_stream(dice: random.Random, table: Table) -> tuple[str, Table] | None:
    if "stream" not in table.column_names:
        return None
    return _change_cell(dice, table, "stream", [None, b"", b"a", b"nobody's", b"x" * 2_000])


def drop_row(dice: random.Random, table: Table) -> tuple[str, Table] | None:
    if not table.num_rows:
        return None
    row = dice.randrange(table.num_rows)
    left = [n for n in range(table.num_rows) if n != row]
    return f"row {row} dropped", table.take(left)


def double_row(dice: random.Random, table: Table) -> tuple[str, Table] | None:
    if not table.num_rows:
        return None
    row = dice.randrange(table.num_rows)
    return f"row {row} twice", table.take([*range(row + 1), *range(row, table.num_rows)])


def reorder(dice: random.Random, table: Table) -> tuple[str, Table] | None:
    if table.num_rows < 2:
        return None
    return "rows turned round", table.take(list(reversed(range(table.num_rows))))


def other_type(dice: random.Random, table: Table) -> tuple[str, Table] | None:
    """Write a column as another type, with the same values as far as possible."""
    index = dice.randrange(table.num_columns)
    column, field = table.column(index), table.schema.field(index)
    kinds: list[Any] = [pa.int32(), pa.float64(), pa.string(), pa.large_binary(), pa.uint64()]
    kind = dice.choice(kinds)
    try:
        changed = column.cast(kind)
    except pa.ArrowException:
        changed = pa.chunked_array([pa.nulls(len(column), kind)])
    return f"{field.name} as {kind}", table.set_column(index, field.name, changed)


def nulls(dice: random.Random, table: Table) -> tuple[str, Table] | None:
    index = dice.randrange(table.num_columns)
    field = table.schema.field(index)
    column: Any = pa.nulls(table.num_rows, field.type)
    return f"{field.name} all null", table.set_column(index, field.name, column)


def columns(dice: random.Random, table: Table) -> tuple[str, Table] | None:
    """Drop a column, rename it, or repeat it."""
    index = dice.randrange(table.num_columns)
    name = table.schema.names[index]
    match dice.randrange(3):
        case 0:
            return f"without {name}", table.remove_column(index)
        case 1:
            names = [*table.schema.names]
            names[index] = dice.choice(["x", "body", ""])
            return f"{name} called {names[index]!r}", table.rename_columns(names)
    return f"{name} twice", table.append_column(name, table.column(index))


def as_it_is(dice: random.Random, table: Table) -> tuple[str, Table] | None:
    """Write the same records by another writer. The file differs, but its content is the same."""
    return "written by another", table


TABLE_CHANGES: Final[tuple[TableChange, ...]] = (
    *(change_body, change_body, change_time, change_position, change_stream),
    *(drop_row, double_row, reorder, other_type, nulls, columns, as_it_is),
)


def _bomb(dice: random.Random, file: pq.ParquetFile, said: dict[bytes, bytes]) -> Change:
    """Return a small file with gigabytes of records, by one body that a dictionary repeats."""
    table, count = file.schema_arrow, BOMB_ROWS
    arrays: list[Any] = []
    for field in table:
        if field.name == "body":
            one = pa.array([b"\x00" * BOMB_VALUE_BYTES], pa.binary())
            same = pa.array([0] * count, pa.int8())
            arrays.append(pa.DictionaryArray.from_arrays(same, one))
        elif field.name == "stream":
            arrays.append(pa.nulls(count, field.type))
        elif field.name == "timestamp_us":
            arrays.append(pa.array([1_750_000_000_000_000] * count, field.type))
        else:
            arrays.append(pa.array(range(1, count + 1), field.type))
    told = f"{count} bodies of {BOMB_VALUE_BYTES} bytes each, in a small file"
    return told, _written(pa.table(arrays, names=table.names), said)


def _change_cell(
    dice: random.Random, table: Table, name: str, values: list[Any]
) -> tuple[str, Table] | None:
    if not table.num_rows or name not in table.column_names:
        return None
    index, row, value = table.column_names.index(name), dice.randrange(table.num_rows), None
    held = table.column(index).to_pylist()
    kind = table.schema.field(index).type
    value = dice.choice(values)
    if value is not None and value == -1 and kind == pa.uint64():
        value = 2**64 - 1
    was, held[row] = held[row], value
    told = f"{name} of row {row}: {was!r} to {value!r}"[:120]
    return told, table.set_column(index, name, pa.chunked_array([pa.array(held, kind)]))
