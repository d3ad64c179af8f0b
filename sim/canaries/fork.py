"""Broken forks and destroyers, which the simulator must catch; see `sim.canaries.builds`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace as changed
from typing import Any, Final
from unittest.mock import patch

from tidelog.core.clock import Clock
from tidelog.store.keys import Within
from tidelog.wal import retention
from tidelog.wal.admin import destroy
from tidelog.wal.format.epoch_chain import Chain
from tidelog.wal.format.gc_plan import Garbage
from tidelog.wal.format.manifest import Manifest, path_of
from tidelog.wal.gc import collector
from tidelog.wal.gc import pin_reach as pinned
from tidelog.wal.gc.orphans import OrphanVerdict, judge_fragment
from tidelog.wal.gc.pins import Pins
from tidelog.wal.gc.plan import paths_to_delete
from tidelog.wal.read.head import load_head
from tidelog.wal.slot_protocol.checkpoint import roll_up_tail


@contextmanager
def fork_does_not_see_whether_its_pin_held() -> Iterator[None]:
    """A fork shares records that were collected before its pin was made."""
    real = Pins.create

    async def trusting(
        self: Pins, name: str, *, start: int = 0, limit: int | None = None, holder: str = ""
    ) -> Any:
        if not holder:
            return await real(self, name, start=start, limit=limit)
        manifest = (await roll_up_tail(self.store, clock=self.clock, writer=self.writer)).manifest
        pin = self._pin(name, manifest, start or manifest.oldest, limit or manifest.next, holder)
        return await self._put(changed(pin, is_sure=True))

    with patch.object(Pins, "create", trusting):
        yield


@contextmanager
def fork_holds_nothing() -> Iterator[None]:
    """The fork releases its pin in the source at once."""
    real = Pins.create

    async def fleeting(self: Pins, name: str, *, holder: str = "", **bounds: Any) -> Any:
        held = await real(self, name, holder=holder, **bounds)
        if holder:
            await self.release(name, force=True)
        return held

    with patch.object(Pins, "create", fleeting):
        yield


@contextmanager
def collector_of_a_fork_deletes_what_it_shares() -> Iterator[None]:
    """The collector of a fork deletes objects of its source."""

    def all_of_it(plan: Garbage, chain: Chain | None = None) -> list[str]:
        numbers = range(plan.fragments_start, plan.fragments_limit)
        shared = [path for n in numbers if (path := path_of(n, chain)).startswith("../")]
        return [*paths_to_delete(plan, chain), *shared]

    async def delete(self: Within, keys: Sequence[str]) -> None:
        await self._store.delete([self._readable(key) for key in keys])

    with (
        patch.object(collector, "paths_to_delete", all_of_it),
        patch.object(Within, "delete", delete),
    ):
        yield


@contextmanager
def fork_lets_go_of_what_its_own_forks_read() -> Iterator[None]:
    """A fork shrinks its pin in the source although its own forks still read there."""

    async def hasty(store: Within, *, clock: Clock, writer: str) -> None:
        manifest = (await load_head(store)).manifest
        if manifest.chain is not None and (origin := manifest.chain.origin) is not None:
            source = Pins(store=store.sibling(origin.log), clock=clock, writer=writer)
            await source.shrink(origin.pin, manifest.oldest)

    with (
        patch.object(retention, "let_go_of_origin", hasty),
        patch.object(destroy, "let_go_of_origin", hasty),
    ):
        yield


@contextmanager
def sweep_of_pins_ignores_other_pins() -> Iterator[None]:
    """Objects released by one pin are deleted, though a fork still reads them."""

    async def none(*_: object) -> set[str]:
        return set()

    # In this module only: the collector checks the pins itself.
    with patch.object(pinned, "paths_pinned", none):
        yield


@contextmanager
def destroy_deletes_fences() -> Iterator[None]:
    """The whole folder of a log is deleted, so a paused writer finds its slot free."""

    def dead(manifest: Manifest, key: str) -> OrphanVerdict:
        found = judge_fragment(manifest, key)
        return OrphanVerdict.DEAD if found is OrphanVerdict.KEPT else found

    with patch.object(destroy, "judge_fragment", dead):
        yield


@contextmanager
def destroy_does_not_look_for_forks() -> Iterator[None]:
    """A log is destroyed with all objects that its forks share."""

    async def none(*_: object) -> set[str]:
        return set()

    with (
        patch.object(destroy, "_refuse_forks", none),
        patch.object(destroy, "paths_pinned", none),
    ):
        yield


@contextmanager
def destroy_keeps_the_pins_of_readers() -> Iterator[None]:
    """Pins are never released, in the log or in the source of a fork."""

    async def nothing(*_: object) -> None:
        return

    with patch.object(destroy, "_let_go_of_pins", nothing):
        yield


@contextmanager
def destroy_does_not_seal() -> Iterator[None]:
    """An active writer continues, and its records are acknowledged."""

    class Nobody:
        def __init__(self, **_: object) -> None:
            """Accept an opener's arguments."""

        async def seal(self) -> None:
            return

    with patch.object(destroy, "Fencer", Nobody):
        yield


FOR_FORKS: Final[tuple[Callable[[], AbstractContextManager[None]], ...]] = (
    fork_does_not_see_whether_its_pin_held,
    fork_holds_nothing,
    fork_lets_go_of_what_its_own_forks_read,
    collector_of_a_fork_deletes_what_it_shares,
    sweep_of_pins_ignores_other_pins,
    destroy_deletes_fences,
    destroy_does_not_look_for_forks,
    destroy_keeps_the_pins_of_readers,
    destroy_does_not_seal,
)
