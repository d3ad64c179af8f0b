"""The holds that tidelog itself places on collections, and their purposes for users. Pure."""

from __future__ import annotations

import msgspec

from tidelog.collection.catalog.catalog import COLLECTION, INGEST_HOLD, Catalog
from tidelog.collection.ingest.copying import copy_hold
from tidelog.collection.source.followed import hold_of


def hold_purposes(catalog: Catalog) -> dict[str, str]:
    """Return the purposes of the holds whose names have ids, by the names of the holds."""
    found = {
        hold_of(one): f"the source {one.name!r} reads from here"
        for one in catalog.sources.values()
        if one.kind == COLLECTION
    }
    for rendition in catalog.renditions.values():
        if rendition.ingest_hold != INGEST_HOLD:
            found[rendition.ingest_hold] = f"the ingesters of the rendition {rendition.called!r}"
        if rendition.copies is not msgspec.UNSET:
            found[copy_hold(rendition)] = f"the rendition {rendition.called!r} copies from here"
    return found
