"""``tidelog hold``: keep times of collections and shards readable, and drop them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.command import AsJson, ask_first, on_location
from tidelog.cli.output import Column, is_json, print_json, print_table, say
from tidelog.errors import NoSuchCollection, UsageError

if TYPE_CHECKING:
    from tidelog.core.frontier import Frontier
    from tidelog.location import Location
    from tidelog.persist.handle.shard import Shard
    from tidelog.persist.states.hold import Hold
    from tidelog.persist.states.state import State

Of = Annotated[str, typer.Argument(metavar="NAME", help="A collection or a shard.")]
HoldName = Annotated[str, typer.Argument(metavar="HOLD", help="The name of the hold.")]
Token = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="A number of the hold's owner. A command with a greater number takes the hold over; "
        "one with a smaller number fails.",
    ),
]
IsShard = Annotated[
    bool, typer.Option("--shard", help="NAME is a shard, if a collection has the same name.")
]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Holds: keep times of collections and shards readable.",
)


@app.command("list")
def list_holds(
    context: typer.Context, name: Of, *, shard: IsShard = False, as_json: AsJson = False
) -> None:
    """List the holds of a collection or a shard; --json also has its earliest readable time."""
    held = on_location(context, lambda location: _held(location, name, shard))
    rows = hold_rows([one.state for one in held.shards])
    if is_json(as_json=as_json):
        print_json({"name": name, "since": held.since, "holds": rows})
        return
    if not rows:
        say(f"{name!r} has no holds.")
        return

    def text(row: dict[str, Any], field: str) -> str:
        return "" if row[field] is None else str(row[field])

    print_table(
        rows,
        [
            Column("hold", lambda row: text(row, "hold")),
            Column("kind", lambda row: text(row, "kind")),
            Column("since", lambda row: held.text(row["since"])),
            Column("token", lambda row: text(row, "token"), right=True),
            Column("purpose", lambda row: text(row, "purpose")),
        ],
    )


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

    The time of an existing hold does not change; a greater --token takes it over. Merges keep the
    history since the hold, so storage grows until the hold moves.
    """

    async def work(location: Location) -> tuple[Held, Frontier]:
        from tidelog.collection.hold_all import place_hold

        held = await _held(location, name, shard, owned=hold)
        since = None if at is None else held.time_of(at, "--at")
        return held, await place_hold(held.shards, hold, since, token=token)

    held, at_time = on_location(context, work)
    _told(held, hold, at_time, as_json=as_json)


@app.command("move")
def move(
    context: typer.Context,
    name: Of,
    hold: HoldName,
    time: Annotated[
        str,
        typer.Argument(
            metavar="TIME", help="The new time of the hold. Earlier times may become unreadable."
        ),
    ],
    *,
    token: Token = None,
    shard: IsShard = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Move a hold to a later time. Times before all holds become unreadable for good."""
    if not yes:
        ask_first(
            lambda: f"Give up the times of {name!r} before {time} that {hold!r} keeps, for good?",
            deed="give up earlier times",
            undone="Nothing was given up.",
        )

    async def work(location: Location) -> tuple[Held, Frontier]:
        from tidelog.collection.hold_all import check_newest_stays, move_hold

        held = await _held(location, name, shard, owned=hold)
        since = held.time_of(time, "TIME")
        if held.is_collection:
            check_newest_stays(held.shards, since)
        else:
            _check_complete(held.shards[0], since)
        return held, await move_hold(held.shards, hold, since, token=token)

    held, since = on_location(context, work)
    if is_json(as_json=as_json):
        _print_hold(held, hold, since)
    if as_json:
        return
    say(f"The earliest readable time of {name!r} is {held.text_of(since)}")


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
    """Drop a hold. The next ingest tick gives up the times that no other hold keeps."""

    async def work(location: Location) -> Held:
        from tidelog.collection.hold_all import drop_hold, holds_of

        held = await _held(location, name, shard, owned=hold)
        holds_of(held.shards, hold)
        await drop_hold(held.shards, hold, token=token)
        return held

    held = on_location(context, work)
    if is_json(as_json=as_json):
        print_json({"name": name, "hold": hold, "dropped": True, "since": held.since})
    if not as_json:
        say(f"Dropped the hold {hold!r} of {name!r}")


def hold_rows(states: Sequence[State]) -> list[dict[str, Any]]:
    """Return the holds of some shards, sorted by name.

    A hold of several shards is shown at its earliest time.
    """
    found: dict[str, Hold] = {}
    for state in states:
        for name, hold in state.holds.items():
            known = found.get(name)
            if known is None or hold.frontier < known.frontier:
                found[name] = hold
    return [
        {"hold": n, "kind": h.kind.value, "since": h.since, "token": h.token or None}
        | {"until_us": h.until_us, "purpose": h.purpose or None}
        for n, h in sorted(found.items())
    ]


def _check_complete(shard: Shard, since: Frontier) -> None:
    """Raise unless the shard is complete before a time, the new place of a hold.

    Raises:
        UsageError: it is not.
    """
    upper = shard.state.upper_frontier
    if not upper.is_empty and not since.is_empty and since.time > upper.time:
        raise UsageError(
            f"the shard is complete only before {upper.time}: pass {upper.time} or an earlier time",
            asked=since.time,
        )


class Held:
    """The shards that a hold covers: those of a collection (times are dates), or one shard."""

    def __init__(self, name: str, shards: Sequence[Shard], *, is_collection: bool) -> None:
        self.name = name
        self.shards = shards
        self.is_collection = is_collection

    @property
    def since(self) -> int | None:
        """Return the earliest time at which all shards are readable."""
        from tidelog.core.frontier import join

        found = join([shard.state.since_frontier for shard in self.shards])
        return None if found.is_empty else found.time

    def time_of(self, text: str, what: str) -> Frontier:
        """Parse a time; ``what`` names the option in errors.

        Raises:
            UsageError: the text is not a time.
        """
        from tidelog.cli.shard.opened import time_of
        from tidelog.collection.formats.times import parse_time
        from tidelog.core.frontier import Frontier

        return Frontier.at(
            parse_time(text, what=what, now_us=self.shards[0].clock.now_us())
            if self.is_collection
            else time_of(text, what)
        )

    def text(self, time: int | None) -> str:
        """Return the text of a time."""
        from tidelog.cli.shard.opened import time_text
        from tidelog.collection.formats.times import format_time

        return time_text(time) if time is None or not self.is_collection else format_time(time)

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
            return Held(name, collection.all_shards, is_collection=True)
    found = await location.shards.find(name)
    if found.state.is_buried:
        raise UsageError(f"the shard {name!r} was dropped: there is nothing to hold")
    return Held(name, [found], is_collection=False)


def _told(held: Held, hold: str, at: Frontier, *, as_json: bool) -> None:
    if is_json(as_json=as_json):
        _print_hold(held, hold, at)
    if not as_json:
        say(f"The hold {hold!r} of {held.name!r} is at {held.text_of(at)}")


def _print_hold(held: Held, hold: str, at: Frontier) -> None:
    time = None if at.is_empty else at.time
    print_json({"name": held.name, "hold": hold, "since": time})
