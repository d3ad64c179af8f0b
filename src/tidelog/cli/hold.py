"""``tidelog hold``: keep times of collections and shards readable, and drop them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, Yes, ask_first, group, on_location
from tidelog.cli.output import Column, print_table, show
from tidelog.errors import NoSuchCollection, UsageError

if TYPE_CHECKING:
    from tidelog.collection.collection import Collection
    from tidelog.core.frontier import Frontier
    from tidelog.location import Location
    from tidelog.persist.handle.shard import Shard
    from tidelog.persist.states.state import Hold, State

Of = Annotated[str, typer.Argument(metavar="NAME", help="A collection or a shard.")]
HoldName = Annotated[str, typer.Argument(metavar="HOLD", help="The name of the hold.")]
Token = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="The number of the hold's owner; each new owner passes a greater one. A command with "
        "a greater number takes the hold over; one with a smaller number fails.",
    ),
]
IsShard = Annotated[
    bool,
    typer.Option("--shard", help="NAME is a shard. Needed only if a collection has the same name."),
]

app = group("Holds: keep times of collections and shards readable.")


@app.command("list")
def list_holds(
    context: typer.Context, name: Of, *, shard: IsShard = False, as_json: AsJson = False
) -> None:
    """List the holds of a collection or a shard; --json also has the earliest readable time."""

    async def work(location: Location) -> tuple[Held, list[HoldRow]]:
        held = await _held(location, name, shard)
        return held, hold_rows(held.states, await purposes_in(location))

    held, rows = on_location(context, work)
    columns: tuple[Column[HoldRow], ...] = (
        Column("hold", lambda row: row.hold),
        Column("kind", lambda row: row.kind),
        Column("since", lambda row: held.text(row.since)),
        Column("token", lambda row: "" if row.token is None else str(row.token), right=True),
        Column("purpose", lambda row: row.purpose or ""),
    )
    fields = {"name": name, "since": held.since, "holds": [asdict(row) for row in rows]}
    text = partial(print_table, rows, columns) if rows else f"{name!r} has no holds."
    show(fields, text, as_json=as_json)


@app.command("create")
def create(
    context: typer.Context,
    name: Of,
    hold: HoldName,
    *,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="The earliest time to keep readable. The default is the earliest readable time.",
        ),
    ] = None,
    token: Token = None,
    shard: IsShard = False,
    as_json: AsJson = False,
) -> None:
    """Keep a time and all later times readable, until the hold is moved or dropped.

    If the hold exists, its time stays, and a greater --token takes it over. Merges keep the
    history since the hold, so storage grows until the hold moves.
    """

    async def work(location: Location) -> tuple[Held, Frontier]:
        from tidelog.collection.hold_all import place_hold

        held = await _held(location, name, shard, owned=hold)
        since = None if at is None else held.time_of(at, "--at")
        if since is not None:
            _check_readable(held, since)
            _check_complete(held, since)
        if held.collection is not None:
            time = None if since is None else since.time
            return held, await held.collection.hold(hold, time, token=token)
        return held, await place_hold(held.shards, hold, since, token=token)

    held, since = on_location(context, work)
    told = f"The hold {hold!r} of {name!r} is at {held.text_of(since)}"
    _show(held, hold, since, told, as_json=as_json)


@app.command("move")
def move(
    context: typer.Context,
    name: Of,
    hold: HoldName,
    *,
    at: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="The new time of the hold. Earlier times may become unreadable."
        ),
    ],
    token: Token = None,
    shard: IsShard = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Move a hold to a later time. Times that no hold keeps become unreadable for good."""
    if not yes:
        ask_first(
            lambda: f"Give up the times of {name!r} before {at} that {hold!r} keeps, for good?",
            deed="give up earlier times",
            undone="Nothing was given up.",
        )

    async def work(location: Location) -> tuple[Held, Frontier]:
        from tidelog.collection.hold_all import move_hold

        held = await _held(location, name, shard, owned=hold)
        since = held.time_of(at, "--at")
        if held.collection is None:
            _check_complete(held, since)
        if held.collection is not None:
            return held, await held.collection.move_hold(hold, since.time, token=token)
        return held, await move_hold(held.shards, hold, since, token=token)

    held, since = on_location(context, work)
    told = f"The earliest readable time of {name!r} is {held.text_of(since)}"
    _show(held, hold, since, told, as_json=as_json)


@app.command("drop")
def drop(
    context: typer.Context,
    name: Of,
    hold: HoldName,
    *,
    token: Token = None,
    shard: IsShard = False,
    as_json: AsJson = False,
) -> None:
    """Drop a hold. The next ingest tick gives up the times that no other hold keeps.

    For a table, the first 'tidelog compact' after a later write does. A shard without a source
    keeps those times until another of its holds moves.
    """

    async def work(location: Location) -> Held:
        from tidelog.collection.hold_all import drop_hold, holds_of

        held = await _held(location, name, shard, owned=hold)
        holds_of(held.shards, hold)
        if held.collection is not None:
            await held.collection.drop_hold(hold, token=token)
        else:
            await drop_hold(held.shards, hold, token=token)
        return held

    held = on_location(context, work)
    fields = {"name": name, "hold": hold, "dropped": True, "since": held.since}
    show(fields, f"Dropped the hold {hold!r} of {name!r}", as_json=as_json, is_said=True)


def _show(held: Held, hold: str, at: Frontier, told: str, *, as_json: bool) -> None:
    time = None if at.is_empty else at.time
    fields = {"name": held.name, "hold": hold, "since": time}
    show(fields, told, as_json=as_json, is_said=True)


@dataclass(frozen=True, slots=True)
class HoldRow:
    """A hold as the command shows it; the fields are those of its JSON."""

    hold: str
    kind: str
    since: int | None
    token: int | None
    until_us: int | None
    purpose: str | None


async def purposes_in(location: Location) -> dict[str, str]:
    """Return the purposes of the holds that tidelog itself places, by the names of the holds."""
    from msgspec import UNSET

    from tidelog.collection.catalog.catalog import COLLECTION, INGEST_HOLD
    from tidelog.collection.ingest.copying import copy_hold
    from tidelog.collection.source.followed import hold_of

    catalog = await location.controller.catalog()
    found = {
        hold_of(one): f"the source {one.name!r} reads from here"
        for one in catalog.sources.values()
        if one.kind == COLLECTION
    }
    for rendition in catalog.renditions.values():
        if rendition.ingest_hold != INGEST_HOLD:
            found[rendition.ingest_hold] = f"the ingesters of the rendition {rendition.called!r}"
        if rendition.copies is not UNSET:
            found[copy_hold(rendition)] = f"the rendition {rendition.called!r} copies from here"
    return found


def hold_rows(states: Sequence[State], purposes: Mapping[str, str]) -> list[HoldRow]:
    """Return the holds of some shards, sorted by name; ``purposes`` has those of tidelog's own.

    A hold of several shards is shown at its earliest time.
    """
    found: dict[str, Hold] = {}
    for state in states:
        for name, hold in state.holds.items():
            known = found.get(name)
            if known is None or hold.frontier < known.frontier:
                found[name] = hold
    return [
        HoldRow(n, h.kind.value, h.since, h.token or None, h.until_us, h.purpose or purposes.get(n))
        for n, h in sorted(found.items())
    ]


def _check_readable(held: Held, since: Frontier) -> None:
    """Check that the time of a hold is not before the earliest readable time of its shards.

    Raises:
        UsageError: the time is before a shard's since.
    """
    from tidelog.core.frontier import Frontier

    earliest = Frontier.of(held.since)
    if not earliest <= since:
        raise UsageError(
            f"a hold of {held.name!r} can be at {held.text_of(earliest)} at least, the earliest "
            "readable time: pass that or a later time",
            asked=held.text_of(since),
        )


def _check_complete(held: Held, since: Frontier) -> None:
    """Check that the time of a hold is not after the upper of its shards.

    Raises:
        UsageError: the time is after an upper.
    """
    from tidelog.core.frontier import meet

    if held.collection is not None:
        upper = held.collection.upper
    else:
        upper = meet(state.upper_frontier for state in held.states)
    if not since <= upper:
        raise UsageError(
            f"a hold of {held.name!r} can be at {held.text_of(upper)} at most, the upper: "
            "pass that or an earlier time",
            asked=held.text_of(since),
        )


class Held:
    """The shards that a hold covers: those of a collection (times are dates), or one shard."""

    def __init__(
        self, name: str, shards: Sequence[Shard], collection: Collection | None = None
    ) -> None:
        self.name = name
        self.shards = shards
        self.collection = collection

    @property
    def is_collection(self) -> bool:
        return self.collection is not None

    @property
    def states(self) -> Sequence[State]:
        """Return the states of the shards, as they were last read."""
        if self.collection is not None:
            return [one for era in self.collection.eras for one in era.all_states]
        return [shard.state for shard in self.shards]

    @property
    def since(self) -> int | None:
        """Return the earliest time at which all shards are readable."""
        from tidelog.core.frontier import join

        if self.collection is not None:
            found = self.collection.since
        else:
            found = join([state.since_frontier for state in self.states])
        return None if found.is_empty else found.time

    def time_of(self, text: str, what: str) -> Frontier:
        """Parse a time; ``what`` names the option in errors.

        Raises:
            UsageError: the text is not a time.
        """
        from tidelog.cli.shard.arguments import time_of
        from tidelog.collection.formats.times import parse_time
        from tidelog.core.frontier import Frontier

        return Frontier.at(
            parse_time(text, what=what, now_us=self.shards[0].clock.now_us())
            if self.is_collection
            else time_of(text, what)
        )

    def text(self, time: int | None) -> str:
        """Return the text of a time."""
        from tidelog.cli.shard.arguments import shard_time_text
        from tidelog.collection.formats.times import format_time

        return (
            shard_time_text(time) if time is None or not self.is_collection else format_time(time)
        )

    def text_of(self, frontier: Frontier) -> str:
        return self.text(None if frontier.is_empty else frontier.time)


async def _held(location: Location, name: str, is_shard: bool, *, owned: str = "") -> Held:
    """Return the shards of a collection or a shard; ``owned`` is the hold to change, if any.

    Raises:
        NoSuchCollection: neither a collection nor a shard has the name.
        NoSuchShard: no shard has the name, and ``is_shard`` is True.
        UsageError: the hold belongs to tidelog itself, or the shard is dropped.
    """
    from tidelog.collection.hold_all import check_not_own
    from tidelog.collection.maintenance import no_such

    if not is_shard:
        try:
            collection = await location.collection(name)
        except NoSuchCollection as error:
            shards = await location.shards.list()
            if name not in shards:
                raise no_such(error, name, shards) from None
        else:
            check_not_own(owned)
            await collection.refresh()
            held = [shard for era in collection.eras for shard in era.all_shards]
            return Held(name, held, collection)
    found = await location.shards.find(name)
    if found.state.is_dropped:
        raise UsageError(f"the shard {name!r} was dropped: there is nothing to hold")
    return Held(name, [found])
