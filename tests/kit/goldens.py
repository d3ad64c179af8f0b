"""Logs that Chroma's own wal3 wrote, and the results of its own reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tidelog.store.memory import MemoryStore

FOLDER = Path(__file__).parents[1] / "golden" / "wal3"
NAMES = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


def expected(name: str) -> Any:
    """Return the results of Chroma's reader for a log."""
    return json.loads((FOLDER / f"{name}.expected.json").read_text())


def objects(name: str) -> dict[str, bytes]:
    """Return a log's objects by key."""
    folder = FOLDER / name
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


async def golden(name: str) -> MemoryStore:
    """Return a log in a store of its own."""
    store = MemoryStore()
    for key, data in objects(name).items():
        await store.put(key, data)
    return store
