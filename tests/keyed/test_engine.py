"""Keyed logs against a dict of lists: all calls, restarts, compactions, retention, forks."""

from __future__ import annotations

import random

import pytest

from kit.keyed_engine import STEP_NAMES, KeyedGame, keyed_logs, small_keyed

SEEDS = 40
STEPS = 60


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_the_engine_shows_what_the_oracle_has(seed: int) -> None:
    """After each step, every kind of read agrees with the oracle, whatever the handle caches."""
    game = KeyedGame(keyed_logs(), random.Random(f"keyed {seed}"))
    with small_keyed():
        await game.begin()
        for _ in range(STEPS):
            await game.step()
            name = game.dice.choice(sorted(game.handles))
            await game.check(name, game.handles[name])
        await game.end()


async def test_a_game_does_everything() -> None:
    """The random steps include each kind of step: otherwise a fault of that kind stays hidden."""
    done: set[str] = set()
    made = False
    for seed in range(3):
        game = KeyedGame(keyed_logs(), random.Random(f"keyed {seed}"))
        with small_keyed():
            await game.begin()
            for _ in range(STEPS):
                await game.step()
            await game.end()
        done |= set(game.done)
        made |= len(game.handles) > 1 and bool(game.kept)
    assert done == set(STEP_NAMES)
    assert made, "no game has a fork and a checkpoint"
