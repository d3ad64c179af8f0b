"""Creation of a rendition: from a source and the wanted changes to the items of the catalog. Pure.

The new rendition has a source of its own, with other ids and with the changes. If the changes leave
the division of the messages into ticks as it is, and the source keeps its bindings, both renditions
share the shard of the bindings. So they have the same messages at the same times.
Source: storage, "Renditions"; design page 6, "Collection, rendition, handover".
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import UNSET

from tidelog.collection.catalog.catalog import FILES, RenditionInfo, SourceInfo
from tidelog.collection.catalog.retention import retention_text
from tidelog.collection.create import source_schema
from tidelog.collection.formats.csv.guess import CsvOptions
from tidelog.collection.formats.lines import CsvDialect
from tidelog.collection.formats.times import duration_text
from tidelog.collection.formats.types import parse_schema
from tidelog.collection.ingest.program import program_of
from tidelog.collection.spec_types import SourceSpec
from tidelog.core.clock import Clock
from tidelog.core.ids import (
    check_name,
    group_of,
    new_group_id,
    new_rendition_id,
    new_shard_id,
    new_source_id,
)
from tidelog.errors import UsageError
from tidelog.persist.handle.argument_checks import check_flag

_GUESSED = CsvOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class RenditionSpec:
    """The spec of a new rendition. An option that is None is as in the active rendition.

    Shape: the options are those of `SourceSpec` that say how rows are decoded. A ``delete_when`` of
        "" means that no row deletes its key. With ``copy``, the rows are those of the active
        rendition, and no other option than ``shards`` can be given.
    """

    name: str
    shards: int | None = None
    schema: str | None = None
    envelope: str | None = None
    key: tuple[str, ...] | None = None
    delete_when: str | None = None
    time_column: str | None = None
    time_unit: str | None = None
    max_ahead: str | None = None
    lateness: str | None = None
    csv: CsvOptions = _GUESSED
    copy: bool = False

    def check(self) -> None:
        """Check the options, as far as possible without the catalog.

        Raises:
            UsageError: an option contradicts another one, or the name is not valid.
        """
        check_name(self.name, of="name of a rendition")
        check_flag(self.copy, "copy")
        if not self.copy:
            return
        others = [one.name for one in fields(self) if one.name not in _OF_COPIES]
        given = [name for name in others if getattr(self, name) not in (None, _GUESSED)]
        if given:
            options = ", ".join(f"{name}=" for name in given)
            raise UsageError(
                "a copy has the rows of the active rendition unchanged, and does not decode them: "
                f"leave out {options}, or copy=True"
            )


_OF_COPIES = ("name", "shards", "copy")
# Other values of these change the times of ticks, or the addresses at which a tick can end.
_OF_TICKS = ("time_column", "time_unit", "max_ahead_ms", "lateness_ms", "evolve")


def resolve_rendition(
    spec: RenditionSpec, base: SourceInfo, of: RenditionInfo, *, clock: Clock
) -> tuple[RenditionInfo, SourceInfo]:
    """Check a spec against the source of a rendition, and choose ids.

    Raises:
        UsageError: an option is wrong, needs another one, or names a missing column.
    """
    if spec.copy:
        _check_copied(base, of)
    given = None if spec.schema is None else parse_schema(spec.schema)
    wanted = _full_spec(spec, base, of)
    wanted.check()
    data = of.data_schema.data if given is None else given
    schema = source_schema(wanted, data)
    info = msgspec.structs.replace(
        base,
        id=new_source_id(clock),
        name=spec.name,
        rendition=new_rendition_id(clock),
        envelope=wanted.envelope,
        key=tuple(wanted.key),
        time_column=wanted.time_column,
        time_unit=wanted.time_unit,
        max_ahead_ms=wanted.max_ahead_ms,
        lateness_ms=wanted.lateness_ms,
        delete_when=wanted.delete_when,
        csv=_dialect(spec.csv, base.csv, given),
        created_us=clock.now_us(),
    )
    info = msgspec.structs.replace(info, program=program_of(info))
    is_same = given is None and schema.key == of.data_schema.key
    shares = spec.copy or why_own_bindings(info, base, of, is_same=is_same) is None
    if not shares:
        info = msgspec.structs.replace(info, skipped={})
    # One commit can then write a binding and rows of either rendition.
    group = (group_of(of.remap or "") if shares else None) or new_group_id(clock)
    rendition = RenditionInfo(
        id=info.rendition,
        collection=of.collection,
        name=spec.name,
        schema=of.schema if is_same else schema.encoded,
        earlier=of.earlier if is_same else UNSET,
        shards=tuple(new_shard_id(clock, group) for _ in range(wanted.shards)),
        errors=new_shard_id(clock, group),
        remap=of.remap if shares else new_shard_id(clock, group),
        deletions=tuple(
            new_shard_id(clock, group) for _ in range(wanted.shards * wanted.keeps_deletions)
        ),
        copies=of.id if spec.copy else UNSET,
    )
    return rendition, info


def _check_copied(base: SourceInfo, of: RenditionInfo) -> None:
    """Check that a rendition can be copied, and have its bindings in common with the copy.

    Raises:
        UsageError: its columns have changed, or ingesters may change them.
    """
    if base.evolve is True or len(of.schemas) > 1:
        why = "may add columns" if base.evolve is True else "has changed its columns"
        raise UsageError(
            f"the source of {of.called!r} {why}, so its rows cannot be copied: leave out copy=, to "
            "read the source again"
        )


def _full_spec(spec: RenditionSpec, base: SourceInfo, of: RenditionInfo) -> SourceSpec:
    """Return the spec of a source with the settings of ``base``, except those that are given."""
    settings: dict[str, Any] = {
        "shards": len(of.shards),
        "envelope": base.envelope,
        "key": base.key,
        "delete_when": base.delete_when,
        "time_column": base.time_column,
        "time_unit": base.time_unit,
        "max_ahead": "any" if base.max_ahead_ms is None else duration_text(base.max_ahead_ms),
        "lateness": duration_text(base.lateness_ms),
    }
    for name in settings:
        if (value := getattr(spec, name)) is not None:
            settings[name] = value
    if spec.envelope == "none" and spec.key is None:
        settings |= {"key": (), "delete_when": spec.delete_when}
    return SourceSpec(
        name=spec.name,
        files=base.url if base.kind == FILES else None,
        kind=base.kind,
        settings=base.settings,
        format=base.format,
        include=[f"{column}={name}" for name, column in base.includes.items()],
        retain=retention_text(base.retain_ms),
        schema=spec.schema,
        csv=spec.csv,
        avro_schema=base.avro_schema or None,
        **{**settings, "delete_when": settings["delete_when"] or None},
    )


def _dialect(given: CsvOptions, base: CsvDialect, columns: pa.Schema | None) -> CsvDialect:
    """Return a csv dialect with the given options, for the given columns.

    Raises:
        UsageError: an option would change the number or the order of the fields.
    """
    said = {one.name: getattr(given, one.name) for one in msgspec.structs.fields(given)}
    if said.pop("header") is not None or said["multiline"] is not None:
        raise UsageError(
            "header= and multiline= decide where records begin, so a rendition cannot change them: "
            "create another source"
        )
    changed = {name: value for name, value in said.items() if value is not None}
    if columns is not None:
        changed |= {"inferred": UNSET, "names": tuple(columns.names) if base.names else ()}
    return msgspec.structs.replace(base, **changed) if changed else base


def why_own_bindings(
    info: SourceInfo, base: SourceInfo, of: RenditionInfo, *, is_same: bool
) -> str | None:
    """Return why a new rendition cannot obey the bindings of the one that it is made from.

    None means that it obeys them. ``is_same`` says that both have the same columns and key.
    """
    if base.keeps_bindings is not True:
        return "the source does not keep its bindings: see keep_bindings="
    if base.evolve is True:
        return "the source may add columns"
    # The ranges of an altered source name the schema in which they are decoded.
    if len(of.schemas) > 1 and not is_same:
        return "the source has changed its columns, and the rendition has other columns"
    changed = [n for n in _OF_TICKS if getattr(info, n) != getattr(base, n)]
    if changed:
        options = " and ".join(f"{name.removesuffix('_ms')}=" for name in changed)
        return f"its ticks differ by {options}"
    if info.csv.quote != base.csv.quote and base.csv.multiline:
        return "quote= changes where its records begin"
    return None
