"""The URLs and paths by which executors open a place that the driver knows. Pure."""

from __future__ import annotations

from tidelog.errors import UsageError
from tidelog.store.port import Store
from tidelog.store.urls import local_path


def url_for_executors(url: str, store: Store) -> str:
    """Return the URL by which executors open ``store``, which the driver opened by ``url``.

    Raises:
        UsageError: the store is this process's memory, and executors are other processes.
    """
    if store.url.startswith("memory:"):
        raise UsageError(
            "Spark's executors are other processes, which cannot reach memory://: use a path "
            "or a bucket, or the engine 'local'"
        )
    # A relative path would depend on the executor's working directory.
    return store.url if store.url.startswith("file:") else url


def path_for_spark(url: str, key: str) -> str:
    """Return the path by which Spark reads an object of a local store."""
    # Spark expands glob patterns in paths, so their special characters are escaped.
    path = local_path(url, key)
    return "".join(f"\\{c}" if c in "*?[]{}\\" else c for c in path)
