"""The common root of several URLs, paths and patterns."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

from tidelog.errors import UsageError
from tidelog.store.patterns import escape
from tidelog.store.urls import split_glob, split_query, without_secrets


def split_globs(places: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Split the files of a source into the URL of a store and the patterns of keys in it.

    For a single place see `split_glob`. Several places become patterns below their common
    directory.

    Raises:
        UsageError: they are in different stores, two are the same, or one has an unknown form.
    """
    found = [split_glob(one) for one in places]
    for at, one in enumerate(found):
        if one in found[:at]:
            raise UsageError(
                f"{without_secrets(places[at])} occurs twice: give each location of a source once"
            )
    if len(found) == 1:
        return found[0][0], (found[0][1],)
    roots = [_split_root(url) for url, _ in found]
    (root, query), first = roots[0][:2], roots[0][2]
    for place, own in zip(places, roots, strict=True):
        if own[:2] != (root, query):
            raise UsageError(
                f"{without_secrets(places[0])} and {without_secrets(place)} are in different "
                "stores: create a source for each, or copy the files to one store"
            )
    depth = _common([folders for *_, folders in roots])
    base = root + "/".join(first[:depth])
    if base != "file:///":
        base = base.rstrip("/")
    patterns = (
        "/".join([*(escape(_name(root, part)) for part in folders[depth:]), pattern])
        for (*_, folders), (_, pattern) in zip(roots, found, strict=True)
    )
    return (f"{base}?{query}" if query else base), tuple(patterns)


def _split_root(url: str) -> tuple[str, str, list[str]]:
    """Split a store's URL into its disk or bucket, its settings, and the folders below."""
    place, query = (url, "") if url.startswith("file:") else split_query(url)
    scheme, _, rest = place.partition("://")
    bucket, _, path = rest.partition("/")
    return f"{scheme}://{bucket}/", query, [part for part in path.split("/") if part]


def _name(root: str, part: str) -> str:
    """Return the name of a URL's part in the store."""
    return unquote(part) if root.startswith("file:") else part


def _common(paths: Sequence[Sequence[str]]) -> int:
    """Return the number of folders that all paths begin with."""
    depth = 0
    for same in zip(*paths, strict=False):
        if len(set(same)) > 1:
            break
        depth += 1
    return depth
