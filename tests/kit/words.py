"""A machine's language in tests: a state is a list of words, so expected states are obvious."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from tidelog.consensus.memory import MemoryConsensus
from tidelog.core.clock import SystemClock
from tidelog.machine.language import Decision
from tidelog.machine.machine import Machine
from tidelog.store.memory import MemoryStore

Words = tuple[str, ...]
CLOCK = SystemClock()


class WordsLanguage:
    """A state is a list of words, and a change adds a word."""

    def initial(self) -> Words:
        return ()

    def apply(self, state: Words, diff: str) -> Words:
        return (*state, diff)

    def encode_diff(self, diff: str) -> bytes:
        return diff.encode()

    def decode_diff(self, data: bytes) -> str:
        return data.decode()

    def encode_state(self, state: Words) -> bytes:
        return json.dumps(state).encode()

    def decode_state(self, data: bytes) -> Words:
        return tuple(json.loads(data))

    def vanished(self, diff: str) -> list[str]:
        return []

    def seqno_since(self, state: Words) -> int | None:
        return None


class Place:
    """A store and a consensus that machines share."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.consensus = MemoryConsensus()

    def machine(self, *, rollup_every: int = 64, **changed: object) -> Machine[Words, str]:
        parts: dict[str, object] = {
            "store": self.store,
            "consensus": self.consensus,
            "clock": CLOCK,
            "rollup_every": rollup_every,
            **changed,
        }
        return Machine(key="k", prefix="words/k", language=WordsLanguage(), **parts)  # type: ignore[arg-type]

    def rollups(self) -> list[str]:
        return sorted(self.store.objects)

    def kept(self) -> list[int]:
        return [int(r.seqno) for r in self.consensus.records["k"]]


def say(word: str) -> Callable[[Words], Decision[str, int]]:
    """Decide to add a word; the answer is the new number of words."""
    return lambda state: Decision(len(state) + 1, word)


def say_once(word: str) -> Callable[[Words], Decision[str, bool]]:
    return lambda state: Decision(False) if word in state else Decision(True, word)


async def say_all(machine: Machine[Words, str], words: Iterable[str]) -> None:
    for word in words:
        await machine.commit(say(word))


class Papers(WordsLanguage):
    """A word is an object in the store, ``-word`` removes it, and ``@3`` holds seqno 3."""

    def apply(self, state: Words, diff: str) -> Words:
        if diff.startswith("-"):
            return tuple(word for word in state if word != diff[1:])
        if diff.startswith("@"):
            state = tuple(word for word in state if not word.startswith("@"))
        return (*state, diff)

    def vanished(self, diff: str) -> list[str]:
        return [diff[1:]] if diff.startswith("-") else []

    def seqno_since(self, state: Words) -> int | None:
        return min((int(word[1:]) for word in state if word.startswith("@")), default=None)


def papers(place: Place, **changed: object) -> Machine[Words, str]:
    machine = place.machine(**{"vanished_us": 0, **changed})  # type: ignore[arg-type]
    machine.language = Papers()
    return machine
