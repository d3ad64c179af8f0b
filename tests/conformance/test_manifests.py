"""Manifests, snapshots and the other JSON objects: names, spelling and sums.

| scenario of wal3's | shown by |
| --- | --- |
| paths of fragments and snapshots | test_names_of_objects |
| containment at boundaries, fragment_for_position | test_each_position_is_in_one_fragment |
| setsums that add up, or do not | wal/test_transitions.py: test_a_manifest_that_contradicts_itself_is_not_written |
| fragments apply in order only | wal/test_transitions.py: test_only_the_next_fragment_joins |
| 1000 random fragments; thresholds from 2 to 100 | test_any_thresholds_make_trees_that_add_up |
| fragments apply where snapshots are | wal/test_transitions.py: test_no_manifest_grows_beyond_its_thresholds_or_loses_anything |
| bounds with an initial offset, with snapshots | wal/test_golden.py: test_the_manifest_says_what_chroma_sees |
| JSON round trips | wal/test_golden.py: test_every_object_comes_out_as_it_went_in |
| empty manifest and plan, to the byte | test_what_is_empty_is_spelled_as_wal3_spells_it |
| mixed kinds of identifiers are refused | test_logs_with_uuids_are_refused |
| (not there) other spellings of the same JSON | test_spelling_does_not_matter |
| (not there) invalid JSON | test_what_wal3_cannot_read_we_do_not_take |
| names and order of fields are those of Chroma's files | test_our_objects_have_the_fields_of_chromas |
| names and columns of fragments are Chroma's | wal/test_writer.py: test_a_new_log_is_chromas_to_the_byte |
"""  # noqa: E501

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.goldens import NAMES, objects
from kit.protocols import WAL3, collector_on, cursors_on, wal3_reader
from kit.wal3_trees import Tree
from tidelog.core.setsum import Setsum
from tidelog.errors import CorruptionError, UsageError
from tidelog.store.memory import MemoryStore
from tidelog.wal.format.fragment import fragment_path
from tidelog.wal.format.gc_plan import Garbage, decode_garbage, encode_garbage
from tidelog.wal.format.manifest import (
    MANIFEST,
    Manifest,
    decode_manifest,
    encode_manifest,
    problems_of_manifest,
)
from tidelog.wal.format.snapshot import decode_snapshot, snapshot_path

TREE = objects("b_snapshots")


def test_names_of_objects() -> None:
    """Paths of objects equal the examples of wal3's own tests."""
    assert [fragment_path(number) for number in (1, 4097, 0x1234)] == [
        "log/Bucket=0000000000000000/FragmentSeqNo=0000000000000001.parquet",
        "log/Bucket=0000000000001000/FragmentSeqNo=0000000000001001.parquet",
        "log/Bucket=0000000000001000/FragmentSeqNo=0000000000001234.parquet",
    ]
    assert snapshot_path(Setsum.zero()) == "snapshot/SNAPSHOT." + "0" * 64


def test_what_is_empty_is_spelled_as_wal3_spells_it() -> None:
    """An empty manifest and an empty plan have wal3's bytes, by length and MD5."""
    for data, size, digest in (
        (encode_manifest(Manifest(writer="init")), 216, "94f109cffb30ff295ae551bf817f8117"),
        (encode_garbage(Garbage()), 272, "ea2b6aea9f94a339ef0f3cf5c05e232f"),
    ):
        assert len(data) == size
        assert hashlib.md5(data, usedforsecurity=False).hexdigest() == digest
    assert decode_garbage(encode_garbage(Garbage())).is_empty


async def test_each_position_is_in_one_fragment() -> None:
    """Each position is in one fragment, through all levels of snapshots; no other position is."""
    store = MemoryStore()
    for key, data in TREE.items():
        await store.put(key, data)
    reader = wal3_reader(store)
    manifest = await reader.manifest()
    for position in range(manifest.oldest, manifest.next):
        (found,) = await reader.fragments(start=position, limit=position + 1)
        assert found.start <= position < found.limit
    assert await reader.fragments(start=manifest.next) == []
    assert await reader.fragments(start=0, limit=manifest.oldest) == []


def test_logs_with_uuids_are_refused() -> None:
    """A UUID in place of a number raises UsageError, in a manifest, a snapshot and a plan."""
    uuid = "0195c1e2-0000-7000-8000-000000000001"
    manifest = json.loads(objects("a_tiny")[MANIFEST])
    manifest["fragments"][0]["seq_no"] = uuid
    with pytest.raises(UsageError, match="replicated"):
        decode_manifest(json.dumps(manifest).encode())
    manifest = json.loads(objects("h_all_collected")[MANIFEST])
    manifest["initial_seq_no"] = uuid
    with pytest.raises(UsageError, match="replicated"):
        decode_manifest(json.dumps(manifest).encode())
    leaf = next(data for key, data in TREE.items() if b'"fragments":[{' in data and key != MANIFEST)
    snapshot = json.loads(leaf)
    snapshot["fragments"][-1]["seq_no"] = uuid
    with pytest.raises(UsageError, match="replicated"):
        decode_snapshot(json.dumps(snapshot).encode(), where="x")
    plan = json.loads(encode_garbage(Garbage())) | {"fragments_are_uuids": True}
    with pytest.raises(UsageError, match="replicated"):
        decode_garbage(json.dumps(plan).encode())


@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1_000, max_size=1_000),
    fragments=st.integers(2, 100),
    snapshots=st.integers(2, 100),
)
def test_any_thresholds_make_trees_that_add_up(
    sizes: list[int], fragments: int, snapshots: int
) -> None:
    """With any thresholds, the tree's sums are consistent and it has all fragments in order."""
    tree = Tree(fragments=fragments, snapshots=snapshots).append(sizes)

    assert problems_of_manifest(tree.manifest) == []
    assert [one.seq_no for one in tree.fragments()] == list(range(1, 1_001))
    assert tree.manifest.next == 1 + sum(sizes)


def _reordered(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: _reordered(found[name]) for name in reversed(found)}
    return [_reordered(each) for each in found] if isinstance(found, list) else found


@pytest.mark.parametrize("name", NAMES)
def test_spelling_does_not_matter(name: str) -> None:
    """Field order, spaces, capital digits, unknown fields and null change no decoded manifest."""
    data = objects(name)[MANIFEST]
    found = json.loads(data)
    wanted = decode_manifest(data)
    capital = json.loads(data, object_hook=lambda o: o | _capital(o))
    absent = {"initial_offset": None, "initial_seq_no": None}
    for other in (
        json.dumps(_reordered(found)),
        json.dumps(found, indent=3) + "\n\n",
        json.dumps(found | {"not_known_yet": [1, {"a": None}]}),
        json.dumps(absent | found),
        json.dumps(capital),
    ):
        assert decode_manifest(other.encode()) == wanted
    text = {**found, "writer": "Zoë → 記録"}
    spelled = json.dumps(text, separators=(",", ":"), ensure_ascii=False).encode()
    assert encode_manifest(decode_manifest(spelled)) == spelled


def _capital(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name].upper() for name in ("setsum", "collected") if name in found}


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.replace(b'"writer"', b'"acc_bytes":0,"writer"'),
        lambda data: data.replace(b'"acc_bytes":0', b'"acc_bytes":0.0'),
        lambda data: data.replace(b'"acc_bytes":0', b'"acc_bytes":-1'),
        lambda data: data.replace(b'"acc_bytes":0', b'"acc_bytes":18446744073709551616'),
        lambda data: data.replace(b'"acc_bytes":0', b'"acc_bytes":NaN'),
        lambda data: data.replace(b'"acc_bytes":0,', b""),
        lambda data: data.replace(b'"00000000', b'"ffffffff'),
        lambda data: data.replace(b'"fragments":[]', b'"fragments":{}'),
        lambda data: data + b"x",
        lambda data: b"[" + data + b"]",
        lambda data: b"",
    ],
    ids=[
        *("bom", "twice", "float", "negative", "large", "nan", "missing", "sum", "object"),
        *("more", "list", "empty"),
    ],
)
def test_what_wal3_cannot_read_we_do_not_take(change: Any) -> None:
    """Invalid JSON raises CorruptionError; so does a sum that wal3 accepts and would write back."""
    data = objects("e_empty")[MANIFEST]
    assert change(data) != data
    with pytest.raises(CorruptionError):
        decode_manifest(change(data))


def _shape(found: Any) -> Any:
    """Return the names and order of fields at all depths, and the types of their values."""
    if isinstance(found, dict):
        return [(name, _shape(value)) for name, value in found.items()]
    if isinstance(found, list):
        shapes = [_shape(each) for each in found]
        return [shape for n, shape in enumerate(shapes) if shape not in shapes[:n]]
    return type(found).__name__


def _shapes(log: dict[str, bytes]) -> Iterator[tuple[str, Any]]:
    for key, data in log.items():
        kind = key.split("/")[0]
        if kind != "log":
            yield kind, _shape(json.loads(data))


async def test_our_objects_have_the_fields_of_chromas() -> None:
    """Manifests, snapshots, cursors and plans have Chroma's fields, throughout a log's life."""
    known = [shape for name in NAMES for shape in _shapes(objects(name))]
    # tidelog adds one field, which wal3 ignores; see docs/internals/wal3.md.
    planned = [[*fields, ("tidelog_write", "str")] for kind, fields in known if kind == "gc"]

    store, seen = MemoryStore(), list[dict[str, bytes]]()
    await WAL3.make(store)
    cursors, collector = cursors_on(store), collector_on(store, grace_us=1)

    def note() -> None:
        seen.append({key: found.data for key, found in store.objects.items()})

    for count in (1, 2, 12, 20):
        async with WAL3.writer(store) as writer:
            for _ in range(count):
                next_ = await writer.append([b"x"])
                note()
        held = (
            await cursors.create("reader", next_)
            if count == 1
            else await cursors.save(await cursors.load("reader"), next_ - count // 2)
        )
        note()
        await collector.collect()
        note()
    await cursors.save(held, next_ + 1)
    await collector.collect()
    note()
    logs = seen
    kinds = {kind for log in logs for kind, _ in _shapes(log)}
    assert kinds == {"manifest", "snapshot", "cursor", "gc"}
    for log in logs:
        for kind, shape in _shapes(log):
            assert (kind, shape) in known or (kind == "gc" and shape in planned), shape
