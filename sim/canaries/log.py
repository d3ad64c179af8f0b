"""Broken logs, each of which the simulator must catch; see `sim.canaries.builds`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from tidelog.store import conditional
from tidelog.store.port import Store
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.manifest_protocol.committer import Committer
from tidelog.wal.read.head import TreeReader


@contextmanager
def log_acknowledges_before_the_manifest() -> Iterator[None]:
    """Records are acknowledged once their fragment is stored, before a manifest names it."""

    async def believed(*_: object) -> bool:
        return True

    with patch.object(Committer, "publish", believed):
        yield


@contextmanager
def log_takes_a_refusal_for_a_loss() -> Iterator[None]:
    """A fragment with a refused manifest is written again, though another writer named it."""

    async def lost(*_: object) -> bool:
        return False

    with patch.object(Committer, "_is_named", lost):
        yield


@contextmanager
def log_opens_without_looking() -> Iterator[None]:
    """An opener does not add a fragment that a crash left without a manifest."""

    async def none(*_: object) -> None:
        return None

    with patch.object(Committer, "_orphan_after", none):
        yield


@contextmanager
def log_replaces_whatever_is_there() -> Iterator[None]:
    """The manifest is replaced without a condition."""

    async def careless(store: Store, key: str, data: bytes, **_: Any) -> str:
        return await store.put(key, data)

    with patch.object(conditional, "replace", careless):
        yield


@contextmanager
def log_reader_skips_snapshots() -> Iterator[None]:
    """A reader reads only the fragments that the manifest itself names."""
    real = TreeReader.fragments_of

    async def shallow(self: TreeReader, manifest: Manifest, **bounds: Any) -> list[Fragment]:
        return await real(self, replace(manifest, snapshots=()), **bounds)

    with patch.object(TreeReader, "fragments_of", shallow):
        yield


FOR_LOGS: Final[tuple[Callable[[], AbstractContextManager[None]], ...]] = (
    log_acknowledges_before_the_manifest,
    log_takes_a_refusal_for_a_loss,
    log_replaces_whatever_is_there,
    log_reader_skips_snapshots,
)
