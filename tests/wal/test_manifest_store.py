"""The loop that replaces a manifest: lost races, lost answers, and the reported outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from kit.clocks import SwiftClock
from tidelog.errors import (
    ContentionError,
    CorruptionError,
    LocationError,
    ManifestMoved,
    NoSuchLog,
    ObjectExists,
    Outcome,
    UsageError,
)
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Object, Store
from tidelog.testing import Fault, FaultyStore, Request
from tidelog.wal.format.manifest import MANIFEST, Manifest
from tidelog.wal.format.new_object import NewObject
from tidelog.wal.read.head import Head, load_head
from tidelog.wal.read.manifest_store import Change, ManifestStore


def manifests_on(store: Store) -> ManifestStore:
    return ManifestStore(store=store, clock=SwiftClock())


def signing(name: str) -> Callable[[Manifest], Change | None]:
    """Return a change that adds a word to the manifest's writer, unless the word exists."""

    def decide(manifest: Manifest) -> Change | None:
        if name in manifest.writer.split():
            return None
        return Change(replace(manifest, writer=f"{manifest.writer} {name}"))

    return decide


async def words_of(store: Store) -> list[str]:
    return (await load_head(store)).manifest.writer.split()


class MeddledStore(MemoryStore):
    """A store that loses the answers of replacements, and lets another process write after each.

    With ``gone``, later requests fail too.
    """

    def __init__(self, *, times: int = 1, gone: bool = False) -> None:
        super().__init__()
        self.times, self.gone, self.is_lost = times, gone, False

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        if self.is_lost and self.gone:
            raise LocationError("gone")
        e_tag = await MemoryStore.put(self, key, data, if_absent=if_absent, if_match=if_match)
        if if_match is None or not self.times:
            return e_tag
        self.times -= 1
        await manifests_on(self).update(signing(f"other{self.times}"))
        self.is_lost = True
        raise LocationError("lost", outcome=Outcome.UNKNOWN)

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        found = await MemoryStore.get(self, key)
        if self.is_lost and self.gone and b"other" in found.data:
            raise LocationError("gone")
        return found


async def test_changes_made_side_by_side_are_all_there() -> None:
    """A writer that loses a race decides again over the winner, so all changes are applied."""
    store = MemoryStore()
    await manifests_on(store).create(Manifest(writer="maker"))
    names = [f"w{number}" for number in range(20)]

    await asyncio.gather(*(manifests_on(store).update(signing(name)) for name in names))

    assert sorted(await words_of(store)) == sorted(["maker", *names])


async def test_a_change_whose_answer_was_lost_is_made_once() -> None:
    """A change whose answer was lost is made once. The loop finds it under a later change."""
    store = MeddledStore()
    await manifests_on(store).create(Manifest(writer="maker"))

    await manifests_on(store).update(signing("ours"))

    assert await words_of(store) == ["maker", "ours", "other0"]


async def test_a_change_in_doubt_that_cannot_be_read_is_unknown() -> None:
    """A change in doubt that cannot be read back may be under another one: UNKNOWN."""
    store = MeddledStore(gone=True)
    await manifests_on(store).create(Manifest(writer="maker"))

    with pytest.raises(LocationError) as failed:
        await manifests_on(store).update(signing("ours"))

    assert failed.value.outcome is Outcome.UNKNOWN
    store.gone = False
    assert "ours" in await words_of(store)


async def test_others_at_every_try_end_it() -> None:
    """The loop gives up after a bounded number of lost races, and reports NOT_APPLIED."""
    inner = MemoryStore()
    await manifests_on(inner).create(Manifest(writer="maker"))
    tries = 0

    class BusyStore(MemoryStore):
        async def put(
            self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
        ) -> str:
            raise ContentionError("busy")

    busy = BusyStore()
    busy.objects = inner.objects

    def decide(manifest: Manifest) -> Change:
        nonlocal tries
        tries += 1
        return Change(replace(manifest, writer="ours"))

    with pytest.raises(ContentionError) as lost:
        await manifests_on(busy).update(decide)
    assert lost.value.outcome is Outcome.NOT_APPLIED
    assert 10 <= tries <= 1_000


async def test_an_old_manifest_decides_nothing_by_itself() -> None:
    """A refusal, or no change, decided over an old manifest is decided again."""
    store = MemoryStore()
    manifests = manifests_on(store)
    old = await manifests.create(Manifest(writer="maker"))
    await manifests.update(signing("other"))

    def unless_other(manifest: Manifest) -> Change | None:
        if "other" not in manifest.writer:
            raise UsageError("there is no other")
        return signing("ours")(manifest)

    assert (await manifests.update(unless_other, head=old)).manifest.writer == "maker other ours"
    assert (await manifests.update(lambda _: None, head=old)).manifest.writer == "maker other ours"
    with pytest.raises(UsageError):
        await manifests.update(lambda _: _refuse(), head=old)


def _refuse() -> Change:
    raise UsageError("no")


async def test_who_looks_around_before_the_next_try_can_end_it() -> None:
    """A check before the next try ends the loop, as a discarded plan must end a collection."""
    store = MemoryStore()
    manifests = manifests_on(store)
    old = await manifests.create(Manifest(writer="maker"))
    seen: list[Head] = []

    async def before_again(head: Head) -> None:
        seen.append(head)
        raise UsageError("no more")

    await manifests.update(signing("other"), head=old, before_again=before_again)
    with pytest.raises(UsageError, match="no more"):
        await manifests.update(signing("ours"), head=old, before_again=before_again)
    assert await words_of(store) == ["maker", "other"]
    assert len(seen) == 1


async def test_what_a_manifest_names_is_stored_before_it() -> None:
    """New objects are stored before the manifest that names them; equal ones are accepted."""
    inner, refused = MemoryStore(), {"snapshot/b"}

    def toss(request: Request) -> Fault:
        return Fault(told=False) if request.key in refused else Fault()

    manifests = manifests_on(FaultyStore(inner, toss=toss))
    await manifests.create(Manifest(writer="maker"))
    await inner.put("snapshot/a", b"a")
    objects = (NewObject("snapshot/a", b"a"), NewObject("snapshot/b", b"b"))

    def decide(manifest: Manifest) -> Change:
        return Change(replace(manifest, writer="ours"), objects)

    with pytest.raises(LocationError) as failed:
        await manifests.update(lambda m: Change(m, (NewObject("snapshot/b", b"other"),)))
    assert failed.value.outcome is Outcome.NOT_APPLIED
    assert await words_of(inner) == ["maker"]
    refused.clear()
    inner.objects.pop("snapshot/b", None)
    await manifests.update(decide)
    assert await words_of(inner) == ["ours"]
    assert (await inner.get("snapshot/b")).data == b"b"


async def test_a_log_is_made_once() -> None:
    """A log is created once, and a missing log has no manifest to change."""
    store = MemoryStore()
    with pytest.raises(NoSuchLog):
        await manifests_on(store).update(signing("ours"))

    await manifests_on(store).create(Manifest(writer="maker"))

    with pytest.raises(ObjectExists):
        await manifests_on(store).create(Manifest(writer="other"))


async def test_one_try_is_one_try() -> None:
    """A single replacement raises ManifestMoved after a lost race."""
    manifests = manifests_on(MemoryStore())
    old = await manifests.create(Manifest(writer="maker"))
    newer = await manifests.replace(old, Change(Manifest(writer="other")))

    with pytest.raises(ManifestMoved):
        await manifests.replace(old, Change(Manifest(writer="ours")))
    assert (await load_head(manifests.store)) == newer


async def test_a_manifest_that_contradicts_itself_is_not_written() -> None:
    """A manifest that contradicts itself is not written: readers would refuse the log."""
    manifests = manifests_on(MemoryStore())
    head = await manifests.create(Manifest(writer="maker"))
    wrong = Manifest(writer="ours", initial_offset=5, acc_bytes=-1)

    with pytest.raises(CorruptionError, match="nothing was written"):
        await manifests.replace(head, Change(wrong))
    assert (await load_head(manifests.store)) == head


@pytest.mark.parametrize("times", [1, 2])
async def test_a_body_cut_short_is_read_again(times: int) -> None:
    """A manifest that is cut short is read again. Only a permanently broken one is damage."""

    class CutStore(MemoryStore):
        left = times

        async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
            if self.left:
                self.left -= 1
                raise CorruptionError(
                    "the store sent a different number of bytes than it announced"
                )
            return await MemoryStore.get(self, key)

    store = CutStore()
    head = await manifests_on(store).create(Manifest(writer="maker"))
    assert (await load_head(store)) == head
    await MemoryStore.put(store, MANIFEST, b"no manifest")
    with pytest.raises(CorruptionError):
        await load_head(store)
