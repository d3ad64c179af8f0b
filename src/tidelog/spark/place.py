"""How executors find a place that the driver was told of. Pure."""

from __future__ import annotations

from tidelog.errors import UsageError
from tidelog.store.port import Store


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
