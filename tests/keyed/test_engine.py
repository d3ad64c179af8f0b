"""Keyed logs against a dict of lists: all calls, restarts, compactions, retention, forks."""

from __future__ import annotations

import random

import pytest

from kit.keyed_engine import KeyedGame, keyed_logs, small_keyed

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


def test_a_game_does_everything() -> None:
    """Each seed gives a different sequence of random choices."""
    games = [random.Random(f"keyed {seed}") for seed in range(SEEDS)]
    assert len({dice.random() for dice in games}) == SEEDS
