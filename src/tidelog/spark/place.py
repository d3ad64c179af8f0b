"""How executors find a place that the driver was told of. Pure."""

from __future__ import annotations

from tidelog.errors import UsageError
from tidelog.store.port import Store
from tidelog.store.urls import local_path


def url_for_executors(url: str, store: Store) -> str:
    """Return the URL by which executors open ``store``, which the driver opened by ``url``.

    Raises:
        UsageError: they are other processes, which cannot reach it.
    """
    if store.url.startswith("memory:"):
        raise UsageError(
            "Spark's executors are other processes, which cannot reach memory://: use a path "
            "or a bucket, or the engine 'local'"
        )
    # A relative path would be another one wherever executors run.
    return store.url if store.url.startswith("file:") else url


def path_for_spark(url: str, key: str) -> str:
    """Return the path by which Spark reads an object of a store on a disk."""
    # Spark reads patterns in paths: what would be one is meant as it is.
    path = local_path(url, key)
    return "".join(f"\\{c}" if c in "*?[]{}\\" else c for c in path)
