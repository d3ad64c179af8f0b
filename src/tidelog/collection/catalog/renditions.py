"""The changes of the catalog by the commands of renditions: add one, hand over to it, drop it.

Pure, like `tidelog.collection.catalog.catalog`.
Source: storage, "Renditions"; design page 6, "Collection, rendition, handover".
"""

from __future__ import annotations

from msgspec import UNSET

from tidelog.collection.catalog.catalog import (
    Catalog,
    Change,
    Era,
    RenditionInfo,
    SourceInfo,
    check_name_free,
    plan_end_of,
    replaced,
    row_of,
)
from tidelog.errors import SchemaEvolved, UsageError


def plan_rendition(
    catalog: Catalog, rendition: RenditionInfo, source: SourceInfo, *, of: RenditionInfo
) -> list[Change]:
    """Return the changes that add a rendition, made from ``of``, and the source that feeds it.

    Raises:
        NameTaken: the name exists. NoSuchCollection: the collection was dropped.
        SchemaEvolved: another process has altered or dropped ``of``.
    """
    check_name_free(catalog, rendition.called, has_errors=True)
    owner = catalog.collection(rendition.collection)
    if catalog.renditions.get(of.id) != of:
        raise SchemaEvolved(
            f"another process has changed the rendition {of.called!r} meanwhile: create the new "
            "one again"
        )
    listed = (*owner.renditions, rendition.id)
    added = [(row_of(item), +1) for item in (rendition, source)]
    return added + replaced(owner, renditions=listed)


def plan_handover(catalog: Catalog, name: str, era: Era) -> list[Change]:
    """Return the changes that copy a mark: readers of a collection read another rendition.

    Raises:
        NoSuchCollection: the collection was dropped.
    """
    owner = catalog.collection(name)
    if era in owner.eras:
        return []
    return replaced(owner, active=era.rendition, handovers=(*owner.eras, era))


def plan_dropping(catalog: Catalog, name: str, *, dropping: bool) -> list[Change]:
    """Return the changes that record the begin of a drop, or take it back.

    A handover to the rendition that begins later is refused. See `Renditions.drop`.

    Raises:
        NoSuchCollection: no rendition has the name. UsageError: it is the active one.
    """
    rendition = catalog.rendition(name)
    check_inactive(catalog, rendition)
    if (rendition.dropping is True) is dropping:
        return []
    return replaced(rendition, dropping=True if dropping else UNSET)


def check_inactive(catalog: Catalog, rendition: RenditionInfo) -> None:
    """Check that a rendition is not the active one, as far as the catalog knows.

    Raises:
        UsageError: it is.
    """
    owner = catalog.collection(rendition.collection)
    if rendition.id == owner.active:
        raise UsageError(
            f"readers of {owner.name!r} read the rendition {rendition.called!r}: hand the "
            "collection over to another rendition first, or drop the collection"
        )


def plan_drop_rendition(catalog: Catalog, name: str) -> list[Change]:
    """Return the changes that remove a rendition whose drop has begun.

    Raises:
        NoSuchCollection: no rendition has the name. UsageError: it is the active one.
    """
    rendition = catalog.rendition(name)
    check_inactive(catalog, rendition)
    owner = catalog.collection(rendition.collection)
    left = tuple(one for one in owner.renditions if one != rendition.id)
    kept = {shard for one in left for shard in catalog.renditions[one].roles}
    shards = tuple(shard for shard in rendition.roles if shard not in kept)
    changes: list[Change] = [(row_of(rendition), -1), *replaced(owner, renditions=left)]
    changes += [(("dropped", shard, "{}"), +1) for shard in shards]
    for source in catalog.sources.values():
        if source.rendition == rendition.id:
            changes += plan_end_of(source, shards)
    return changes
