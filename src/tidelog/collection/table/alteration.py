"""Alterations: the columns that a table gains and loses, and the schemas that follow. Pure.

A rendition keeps all its schemas, oldest first. The schemas of each of its shards are the first
ones of this list, because `tidelog.collection.table.registering` moves a shard from each schema to
the next one. So an id of a schema means the same in all shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import pyarrow as pa

from tidelog.collection.catalog.catalog import RenditionInfo, TableInfo
from tidelog.collection.formats.types import parse_schema, sql_type_of
from tidelog.collection.table.direct import DIRECT
from tidelog.core.arguments import check_kind, check_names, joined_names
from tidelog.errors import UsageError
from tidelog.persist.format.schema import ShardSchema, shard_schema
from tidelog.persist.states.evolution import check_successor


@dataclass(frozen=True, slots=True)
class Alteration:
    """The columns to add at the end of a table, and the names of those to drop."""

    add: pa.Schema
    drop: tuple[str, ...]

    @staticmethod
    def of(add: pa.Schema | str | None, drop: Sequence[str]) -> Alteration:
        """Check the arguments of an alteration, as far as possible without the table.

        Raises:
            UsageError: an argument is invalid, or there is no column to add or to drop.
        """
        if isinstance(add, str):
            add = parse_schema(add, what="add")
        added = pa.schema([]) if add is None else add
        check_kind(added, pa.Schema, "add= must be a pyarrow.Schema or a text 'name type, ...'")
        dropped = [check_name_of_column(name, "drop") for name in check_names(drop, "drop")]
        if not (added.names or dropped):
            raise UsageError("nothing to alter: pass add= with new columns, or drop= with names")
        for name in dropped:
            if name in added.names:
                raise UsageError(f"add= and drop= both name the column {name!r}: remove one")
            if dropped.count(name) > 1:
                raise UsageError(f"drop= names the column {name!r} twice: remove one")
        for column in added:
            if not column.nullable:
                raise UsageError(
                    f"the new column {column.name!r} is not nullable, but it is null in the rows "
                    "that exist: make it nullable"
                )
        return Alteration(shard_schema(added).data if added.names else added, tuple(dropped))

    def is_made_in(self, rendition: RenditionInfo) -> bool:
        """Return True if a rendition was altered in this way, and has the new columns still.

        A caller that lost the answer repeats the call. Others may have altered the table since.
        """
        schema = rendition.data_schema
        is_present = {*self.add.names} <= {*schema.names}
        return is_present and any(self._makes(*steps) for steps in pairwise(schema.known))

    def _makes(self, before: pa.Schema, after: pa.Schema) -> bool:
        return {*self.drop} <= {*before.names} and self._columns(before).equals(after)

    def applied(self, rendition: RenditionInfo, table: TableInfo) -> RenditionInfo:
        """Return the rendition after the alteration; the same one if it was made already.

        Raises:
            UsageError: a column to add exists or existed, or a column to drop does not exist, or
                orders the rows; or the table is a direct one.
        """
        if table.mode == DIRECT:
            raise UsageError(
                f"the table {table.name!r} has the mode 'direct', so it keeps its columns: write "
                "the rows to a table of the mode 'wal'"
            )
        if self.is_made_in(rendition):
            return rendition
        schema = rendition.data_schema
        kept = dict.fromkeys(table.key, f"is in the key of the table {table.name!r}")
        why = f"orders the rows of the table {table.name!r}, which has no key"
        return self.next_of(
            rendition, f"table {table.name!r}", {**dict.fromkeys(schema.key, why), **kept}
        )

    def next_of(
        self, rendition: RenditionInfo, owner: str, kept: Mapping[str, str]
    ) -> RenditionInfo:
        """Return the rendition with the next schema.

        ``owner`` is the table or source in errors. ``kept`` has the columns that cannot be dropped,
        with what each of them is.

        Raises:
            UsageError: a column to add exists or existed, or a column to drop does not exist or is
                kept.
        """
        schema = rendition.data_schema
        self._check(schema, owner, kept)
        if not set(schema.names) - {*self.drop} | {*self.add.names}:
            raise UsageError(f"the {owner} would have no column left: keep one")
        after = shard_schema(self._columns(schema.data), key=schema.key)
        check_successor(schema, after)
        return msgspec.structs.replace(rendition, schema=after.encoded, earlier=rendition.schemas)

    def _columns(self, before: pa.Schema) -> pa.Schema:
        return pa.schema([*(one for one in before if one.name not in self.drop), *self.add])

    def _check(self, schema: ShardSchema, owner: str, kept: Mapping[str, str]) -> None:
        present = {field.name.lower(): field for field in schema.data}
        dropped = {name.lower() for one in schema.known for name in one.names} - {*present}
        kind = owner.split(maxsplit=1)[0]
        # The data of a source decide the name, so a column of another name would stay null.
        remedy = "choose another name" if kind == "table" else "create another source with it"
        for name in self.add.names:
            if name.lower() in present:
                there = present[name.lower()]
                raise UsageError(
                    f"the {owner} has a column {there.name!r} already, of the type "
                    f"{sql_type_of(there)}: remove {name!r} from add="
                )
            if name.lower() in dropped:
                raise UsageError(
                    f"a column {name!r} of the {owner} was dropped, and old rows may still have "
                    f"its values: {remedy}"
                )
        for name in self.drop:
            if name not in schema.names:
                raise UsageError(
                    f"the {owner} has no column {name!r}; the columns are "
                    f"{joined_names(schema.names)}"
                )
            if name in kept:
                raise UsageError(
                    f"the column {name!r} cannot be dropped, because it {kept[name]}: read the "
                    "other columns instead"
                )


def check_name_of_column(name: object, what: str) -> str:
    """Return the name of a column, given in the argument ``what``, if it is a text.

    Raises:
        UsageError: it is not.
    """
    if not isinstance(name, str):
        raise UsageError(f"{what}= must be names of columns", given=name)
    return name
