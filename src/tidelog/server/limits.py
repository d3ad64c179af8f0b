"""The limits of one request, and of all requests together. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

from tidelog.core.arguments import quoted
from tidelog.errors import UsageError
from tidelog.http.api.failures import TooMany

MIB: Final = 1024 * 1024
SECOND_US: Final = 1_000_000
# A client that sends or reads a large body more slowly counts as gone.
BYTES_A_SECOND_MIN: Final = 16_384
HEAD_BYTES_MAX: Final = 65_536  # Enough for a key of 16,384 bytes with each byte as %XX.
REFUSED_MAX: Final = 64  # Connections above the limit that get an answer concurrently.
LINGER_SECONDS: Final = 2.0  # From a refusal until the close, if the client sends more bytes.
FILES_KEPT: Final = 256  # Open files for the store, and for refused connections.


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The limits of a server.

    Units: ``reads_max`` counts concurrent reads, without requests that wait for records.
    ``held_bytes_max`` limits the bytes of all incoming bodies, and of all outgoing answers.
    ``body_timeout_us`` and ``answer_timeout_us`` apply to the first bytes; each 16 KiB add a
    second.
    """

    body_bytes_max: int = 16 * MIB
    records_max: int = 10_000
    rows_max: int = 10_000
    scan_bytes_max: int = 8 * MIB
    reads_max: int = 32
    follow_us_max: int = 60 * SECOND_US
    append_us_max: int = 60 * SECOND_US
    followers_max: int = 1_000
    held_bytes_max: int = 256 * MIB
    connections_max: int = 2_000
    head_timeout_us: int = 10 * SECOND_US
    body_timeout_us: int = 15 * SECOND_US
    answer_timeout_us: int = 15 * SECOND_US
    ready_us: int = SECOND_US

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or value < 1:
                raise UsageError(
                    f"{field.name} must be a whole number (int) of at least 1", found=quoted(value)
                )


def fit_open_files(limits: ServerLimits, files: int) -> ServerLimits:
    """Return limits that leave open files for the store, if the process may open ``files``."""
    connections = files - min(FILES_KEPT, files // 2)
    if connections >= limits.connections_max:
        return limits
    followers = min(limits.followers_max, max(1, connections // 2))
    return replace(limits, connections_max=max(1, connections), followers_max=followers)


class Allowance:
    """An amount that concurrent requests share; each takes a part and returns it at its end."""

    def __init__(self, most: int, told: str) -> None:
        self._most, self._told = most, told
        self.taken = 0

    def take(self, amount: int) -> None:
        """Take a part; a single request may take any amount.

        Raises:
            TooMany: too little is left.
        """
        if self.taken and self.taken + amount > self._most:
            raise TooMany(f"{self._told}: try again later", most=self._most)
        self.taken += amount

    def give(self, amount: int) -> None:
        """Return a part."""
        self.taken -= amount
