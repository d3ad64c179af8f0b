"""The scopes that tests always visit: those without violations, and a canary for each rule.

Each is the smallest that shows something of its own. The command line of `sim.models` takes larger
ones. In a canary's scope, the broken rule causes a violation.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from sim.models import (
    collection,
    group_consensus,
    lazy_apply,
    object_consensus,
    slot_commit,
    sweeping,
    vanishing,
)
from sim.models.explore import Exploration
from sim.models.slot_world import Scope as SlotScope

Scope = (
    SlotScope
    | collection.Scope
    | vanishing.Scope
    | sweeping.Scope
    | lazy_apply.Scope
    | object_consensus.Scope
    | group_consensus.Scope
)
SCOPES: Final[dict[str, Scope]] = {
    "slot": SlotScope(),
    "collection": collection.Scope(),
    "vanishing": vanishing.Scope(),
    "sweeping": sweeping.Scope(),
    "lazy_apply": lazy_apply.Scope(),
    "object_consensus": object_consensus.Scope(),
    "group_consensus": group_consensus.Scope(),
}
RULES: Final = {
    "slot": slot_commit.BROKEN,
    "collection": collection.BROKEN,
    "vanishing": vanishing.BROKEN,
    "sweeping": sweeping.BROKEN,
    "lazy_apply": lazy_apply.BROKEN,
    "object_consensus": object_consensus.BROKEN,
    "group_consensus": group_consensus.BROKEN,
}

HOLDING: Final[tuple[Scope, ...]] = (
    SlotScope(records=2, openers=1, racing=True),
    SlotScope(records=1, openers=2),
    SlotScope(records=2, openers=1, ghosts=1),
    SlotScope(records=1, openers=1, sealer=True),
    SlotScope(records=1, openers=1, reader=True, racing=True),
    SlotScope(records=2, openers=0, sealer=True, reader=True),
    SlotScope(records=1, openers=1, resolving=True),
    SlotScope(records=1, openers=1, closing=True, reader=True),
    SlotScope(records=2, openers=1, ghosts=1, alpha=1, lying=True),
    # Fences placed by the protocol: an opener that runs alone ends within so many steps.
    SlotScope(records=2, openers=1, signs=2, closing=True, alone=18),
    SlotScope(records=2, openers=1, signs=1, lying=True, alone=16),
    SlotScope(records=2, openers=1, ghosts=1, alpha=1, signs=1, alone=19),
    collection.Scope(collectors=1, cursors=2),
    collection.Scope(collectors=2, cursors=1),
    collection.Scope(records=3, collectors=1, cursors=1, pins=1),
    collection.Scope(collectors=2, cursors=1, pins=1),
    vanishing.Scope(merges=3, readers=1, collectors=2),
    vanishing.Scope(merges=2, readers=2, moves=0),
    sweeping.Scope(writers=2, sweepers=1),
    sweeping.Scope(writers=1, tries=3, sweepers=2),
    sweeping.Scope(writers=2, registered=True),
    sweeping.Scope(writers=1, sweepers=2, registered=True),
    lazy_apply.Scope(tries=2, reader=True),
    lazy_apply.Scope(tries=2, reads_first=True, lost=True),
    lazy_apply.Scope(reader=True, merger=True, sweeper=True, reads_first=True),
    object_consensus.Scope(clients=3),
    object_consensus.Scope(clients=2, records=2),
    object_consensus.Scope(clients=2, records=2, tries=1, cuts=1),
    group_consensus.Scope(tries=4),
    group_consensus.Scope(processes=3, calls=1),
)

CANARIES: Final[tuple[Scope, ...]] = (
    SlotScope(records=1, openers=1, broken="unfence"),
    SlotScope(records=1, openers=1, broken="unproven"),
    SlotScope(records=2, openers=0, sealer=True, broken="unproven"),
    SlotScope(records=1, openers=1, broken="upstart"),
    SlotScope(records=1, openers=1, closing=True, broken="closing"),
    SlotScope(records=1, openers=1, broken="noverify"),
    SlotScope(records=1, openers=0, sealer=True, broken="noverify"),
    SlotScope(records=1, openers=1, broken="eager"),
    SlotScope(records=1, openers=0, sealer=True, broken="eager"),
    SlotScope(records=1, openers=1, broken="early"),
    SlotScope(records=1, openers=1, broken="vague"),
    SlotScope(records=2, openers=1, ghosts=1, alpha=1, broken="crosses"),
    SlotScope(records=1, openers=1, ghosts=1, broken="ignorant"),
    SlotScope(records=1, openers=1, resolving=True, broken="deposes"),
    SlotScope(records=1, openers=1, signs=1, lying=True, alone=16, broken="trustful"),
    SlotScope(records=2, openers=1, broken="before"),
    SlotScope(records=1, openers=1, broken="hasty"),
    SlotScope(records=1, openers=1, broken="forgetful"),
    SlotScope(records=1, openers=0, reader=True, broken="blind"),
    SlotScope(records=1, openers=1, reader=True, closing=True, broken="restful"),
    SlotScope(records=1, openers=1, sealer=True, broken="gullible"),
    SlotScope(records=1, openers=0, sealer=True, reader=True, broken="gullible"),
    SlotScope(records=2, openers=0, racing=True, broken="careless"),
    *(
        collection.Scope(collectors=1, cursors=cursors, pins=1 - cursors, broken=rule)
        for rule in ("unread", "unlooked", "planless", "planful", "crosswise", "careless", "swift")
        for cursors in (1, 0)
    ),
    collection.Scope(collectors=1, cursors=1, broken="backwards"),
    collection.Scope(collectors=2, cursors=1, broken="withdraws"),
    collection.Scope(collectors=2, cursors=1, broken="usurps"),
    collection.Scope(collectors=2, cursors=1, broken="tidies"),
    *(
        vanishing.Scope(broken=rule)
        for rule in ("blind", "piecemeal", "eager", "early", "keeps", "stubborn")
    ),
    *(sweeping.Scope(broken=rule) for rule in ("unchecked", "narrow", "unnamed")),
    *(
        sweeping.Scope(writers=1, sweepers=2, registered=True, broken=rule)
        for rule in ("unchecked", "narrow", "unfenced", "unapplied", "reversed", "blindly")
    ),
    *(lazy_apply.Scope(reader=True, tries=2, broken=rule) for rule in ("backwards", "partial")),
    lazy_apply.Scope(reader=True, merger=True, broken="by_name"),
    lazy_apply.Scope(sweeper=True, broken="repeats"),
    lazy_apply.Scope(broken="drops"),
    lazy_apply.Scope(lost=True, broken="forgetful"),
    lazy_apply.Scope(reads_first=True, broken="unread"),
    *(lazy_apply.Scope(sweeper=True, epochs=3, broken=rule) for rule in ("unfenced", "unapplied")),
    *(object_consensus.Scope(broken=rule) for rule in ("careless", "rash", "trustful", "renamed")),
    *(object_consensus.Scope(records=2, broken=rule) for rule in ("shallow", "late")),
    *(
        object_consensus.Scope(records=2, tries=1, cuts=1, broken=rule)
        for rule in ("guesses", "swift")
    ),
    *(group_consensus.Scope(broken=rule) for rule in group_consensus.BROKEN),
)


def visit(scope: Scope, *, states_max: int) -> Exploration[Any]:
    """Visit every run of a scope of any model."""
    match scope:
        case collection.Scope():
            return collection.model(scope, states_max=states_max)
        case vanishing.Scope():
            return vanishing.model(scope, states_max=states_max)
        case sweeping.Scope():
            return sweeping.model(scope, states_max=states_max)
        case lazy_apply.Scope():
            return lazy_apply.model(scope, states_max=states_max)
        case group_consensus.Scope():
            return group_consensus.model(scope, states_max=states_max)
        case object_consensus.Scope():
            return object_consensus.model(scope, states_max=states_max)
        case _:
            return slot_commit.model(scope, states_max=states_max)


def name_of(scope: Scope) -> str:
    """Return the name of a scope's model."""
    return next(name for name, one in SCOPES.items() if type(one) is type(scope))


def command_of(scope: Scope) -> str:
    """Return a scope as arguments of ``python -m sim.models``."""
    words = [name_of(scope)]
    for each in fields(scope):
        value = getattr(scope, each.name)
        if value is True:
            words.append(f"--{each.name}")
        elif value != each.default:
            words.append(f"--{each.name} {value}")
    return " ".join(words)
