"""Calls on a log that may be damaged: answers are compared with the truth, errors are noted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import pyarrow as pa

from fuzz.clock import IdleFollower
from fuzz.specimens import Row, rows_in
from tidelog.errors import InvariantError, TidelogError

T = TypeVar("T")

FOREIGN: Final = "foreign"  # An error of a library or of Python.
BLAMED: Final = "blamed"  # An error that blames tidelog itself.
MEMORY: Final = "memory"
TIME: Final = "time"
CHANGED: Final = "changed"  # Wrong records or facts.
MISSING: Final = "missing"  # Missing records without an error.
BLIND: Final = "blind"  # The scrub found nothing.


@dataclass(frozen=True, slots=True)
class Complaint:
    """A wrong result: its kind, step and log."""

    kind: str
    step: str
    log: str
    told: str

    def __str__(self) -> str:
        return f"{self.step} of {self.log!r}: {self.kind}: {self.told}"


@dataclass(slots=True)
class Asker:
    """The calls on one log, and their results."""

    log: str
    step: str = ""  # The last one that began.
    complaints: list[Complaint] = field(default_factory=list)
    refused: dict[str, TidelogError] = field(default_factory=dict)
    read_whole: set[str] = field(default_factory=set)

    def complain(self, kind: str, step: str, told: str) -> None:
        self.complaints.append(Complaint(kind, step, self.log, told))

    async def ask(self, step: str, work: Awaitable[T]) -> T | None:
        """Return the answer. Note an error and return None."""
        self.step = step
        try:
            return await work
        except Exception as error:  # noqa: BLE001  # The fuzzer looks for any error.
            self.note(step, error)
            return None

    def note(self, step: str, error: Exception) -> None:
        """Note an error: a named one is an answer, and any other is a complaint."""
        if any(isinstance(each, MemoryError) for each in _chain_of(error)):
            self.complain(MEMORY, step, _short(error))
        elif isinstance(error, InvariantError):
            self.complain(BLAMED, step, _short(error))
        elif not isinstance(error, TidelogError):
            self.complain(FOREIGN, step, f"{_short(error)}, at {_place_of(error)}")
        else:
            self.refused[step] = error

    async def read(
        self, step: str, tables: AsyncIterator[pa.Table], wanted: Sequence[Row]
    ) -> list[Row] | None:
        """Read records and compare each with the truth. Return them if they are complete."""
        rows: list[Row] = []
        is_whole, self.step = False, step
        try:
            async for table in tables:
                rows += rows_in(table)
            is_whole = True
        except IdleFollower:
            is_whole = True  # A follower has reached the current end.
        except Exception as error:  # noqa: BLE001  # As above.
            self.note(step, error)
        if not self.compare(step, rows, wanted, is_whole=is_whole):
            return None
        self.read_whole.add(step)
        return rows

    def compare(
        self, step: str, rows: Sequence[Row], wanted: Sequence[Row], *, is_whole: bool
    ) -> bool:
        """Return True if the records are all the wanted ones. Complain about wrong ones."""
        if list(rows) != list(wanted[: len(rows)]):
            at = next(
                (n for n, (one, other) in enumerate(zip(rows, wanted, strict=False))
                 if one != other),
                len(wanted),
            )  # fmt: skip
            told = f"record {at}: {_shown(rows, at)}, not {_shown(wanted, at)}"
            self.complain(CHANGED, step, told)
            return False
        if is_whole and len(rows) < len(wanted):
            self.complain(MISSING, step, f"{len(rows)} records of {len(wanted)}, and no error")
            return False
        return is_whole

    def same(self, step: str, found: object, wanted: object) -> None:
        """Complain if an answer differs from the truth."""
        if found != wanted:
            self.complain(CHANGED, step, f"{found!r}, not {wanted!r}"[:400])


def _shown(rows: Sequence[Row], at: int) -> str:
    return repr(rows[at])[:160] if at < len(rows) else "nothing"


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:240]}"


def _chain_of(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    last: BaseException | None = error
    while last is not None and last not in found:
        found.append(last)
        if isinstance(last, BaseExceptionGroup):
            found += [each for one in last.exceptions for each in _chain_of(one)]
        last = last.__cause__ or last.__context__
    return found


def _place_of(error: BaseException) -> str:
    """Return the place of an error in tidelog's code: its last file and line."""
    place, trace = "?", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if "/tidelog/" in name:
            place = f"{name.rpartition('/tidelog/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
