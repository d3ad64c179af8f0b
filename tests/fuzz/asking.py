"""Asking a log that may be damaged: its answers are held to the truth, its refusals are noted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import pyarrow as pa

from fuzz.clock import Idle
from fuzz.specimens import Row, rows_in
from tidelog.errors import InvariantError, TidelogError

T = TypeVar("T")

FOREIGN: Final = "foreign"  # An error of a library's, or of Python's.
BLAMED: Final = "blamed"  # An error that says that the program is wrong.
MEMORY: Final = "memory"
TIME: Final = "time"
CHANGED: Final = "changed"  # Records, or what is said of them, that are not the truth.
MISSING: Final = "missing"  # Fewer than there are, and no word about it.
BLIND: Final = "blind"  # Scrub saw nothing.


@dataclass(frozen=True, slots=True)
class Complaint:
    """What must not be: of which kind, at which step, with which log."""

    kind: str
    step: str
    log: str
    told: str

    def __str__(self) -> str:
        return f"{self.step} of {self.log!r}: {self.kind}: {self.told}"


@dataclass(slots=True)
class Asker:
    """Asks one log, and keeps what it was told."""

    log: str
    step: str = ""  # The last that was begun.
    complaints: list[Complaint] = field(default_factory=list)
    refused: dict[str, TidelogError] = field(default_factory=dict)
    read_whole: set[str] = field(default_factory=set)

    def complain(self, kind: str, step: str, told: str) -> None:
        self.complaints.append(Complaint(kind, step, self.log, told))

    async def ask(self, step: str, work: Awaitable[T]) -> T | None:
        """Return the answer; None if it is an error, which is noted."""
        self.step = step
        try:
            return await work
        except Exception as error:  # noqa: BLE001  # That is what is looked for.
            self.note(step, error)
            return None

    def note(self, step: str, error: Exception) -> None:
        """Note an error: one with a name is an answer, others are complaints."""
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
        """Read records; return them if they are all, and each was held to what is wanted."""
        rows: list[Row] = []
        is_whole, self.step = False, step
        try:
            async for table in tables:
                rows += rows_in(table)
            is_whole = True
        except Idle:
            is_whole = True  # Whoever follows has come to what is the end for now.
        except Exception as error:  # noqa: BLE001  # As above.
            self.note(step, error)
        if not self.compare(step, rows, wanted, is_whole=is_whole):
            return None
        self.read_whole.add(step)
        return rows

    def compare(
        self, step: str, rows: Sequence[Row], wanted: Sequence[Row], *, is_whole: bool
    ) -> bool:
        """Say whether records are those that are wanted, all of them; complain if they are not."""
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
        """Complain if an answer is not the truth."""
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
    """Return where in our own code an error came up: the last file and line of it."""
    place, trace = "?", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if "/tidelog/" in name:
            place = f"{name.rpartition('/tidelog/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
