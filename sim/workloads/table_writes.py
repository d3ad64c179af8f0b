"""Random writes of tables, each with its effect on counted rows. Pure."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sim.checkers.demands import demand

Row = tuple[int, int]
Rows = Counter[Row]
IDS: Final = 9
LEAST: Final = 6


@dataclass(frozen=True, slots=True)
class Write:
    """A call of a method of a table or a transaction; ``effect`` returns the rows after it."""

    method: str
    effect: Callable[[Rows], Rows] = field(repr=False)
    given: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def widened(self, columns: Sequence[str]) -> Write:
        """Return the write with the id of each row in further columns."""
        given = tuple(
            [{**row, **dict.fromkeys(columns, row["id"])} for row in rows] for rows in self.given
        )
        return replace(self, given=given)


def drawn_write(dice: random.Random, *, keyed: bool) -> Write:
    """Return a random write; the ids of its rows are distinct."""
    ids = dice.sample(range(IDS), dice.choice([1, 1, 2, 4]))
    rows = {one: dice.randrange(10) for one in ids}
    kinds = [_insert, _delete_where, _update, _merge]
    kinds += [_upsert, _upsert, _upsert, _delete_keys] if keyed else [_insert, _insert]
    return dice.choice(kinds)(dice, rows, keyed)


def _dicts(rows: dict[int, int]) -> list[dict[str, int]]:
    return [{"id": one, "n": n} for one, n in rows.items()]


def _insert(_: random.Random, given: dict[int, int], keyed: bool) -> Write:
    def effect(rows: Rows) -> Rows:
        known = {one for one, _ in rows}
        demand(not keyed or not known & given.keys(), "a key was inserted twice", rows=rows)
        return rows + Counter(given.items())

    return Write("insert", effect, (_dicts(given),))


def _upsert(_: random.Random, given: dict[int, int], keyed: bool) -> Write:
    del keyed

    def effect(rows: Rows) -> Rows:
        return _kept(rows, lambda one, _: one not in given) + Counter(given.items())

    return Write("upsert", effect, (_dicts(given),))


def _delete_keys(_: random.Random, given: dict[int, int], keyed: bool) -> Write:
    del keyed
    return Write(
        "delete",
        lambda rows: _kept(rows, lambda one, _: one not in given),
        options={"keys": list(given)},
    )


def _delete_where(_: random.Random, given: dict[int, int], keyed: bool) -> Write:
    del given, keyed
    return Write(
        "delete",
        lambda rows: _kept(rows, lambda _, n: n < LEAST),
        options={"where": f"n >= {LEAST}"},
    )


def _update(_: random.Random, given: dict[int, int], keyed: bool) -> Write:
    del given, keyed

    def effect(rows: Rows) -> Rows:
        return Counter((one, n + 1 if n < LEAST else n) for one, n in rows.elements())

    return Write("update", effect, options={"set": {"n": "n + 1"}, "where": f"n < {LEAST}"})


def _merge(dice: random.Random, given: dict[int, int], keyed: bool) -> Write:
    del keyed
    matched = dice.choice(["update", "delete", "ignore"])
    other = dice.choice(["insert", "ignore"])

    def effect(rows: Rows) -> Rows:
        known = {one for one, _ in rows}
        after: Rows = Counter()
        for one, n in rows.elements():
            if one not in given or matched == "ignore":
                after[one, n] += 1
            elif matched == "update":
                after[one, given[one]] += 1
        if other == "insert":
            after.update(pair for pair in given.items() if pair[0] not in known)
        return after

    options = {"on": ["id"], "when_matched": matched, "when_not_matched": other}
    return Write("merge", effect, (_dicts(given),), options)


def _kept(rows: Rows, keeps: Callable[[int, int], bool]) -> Rows:
    return Counter({row: count for row, count in rows.items() if keeps(*row)})
