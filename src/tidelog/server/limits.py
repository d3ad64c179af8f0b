"""How much a request may be, hold, and take; and what all of them may hold together. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

from tidelog.arguments import quoted
from tidelog.errors import UsageError
from tidelog.http_api.failures import TooMany

MIB: Final = 1024 * 1024
SECOND_US: Final = 1_000_000
# Who sends, or takes, less than this of a large body is as good as gone.
BYTES_A_SECOND_MIN: Final = 16_384
HEAD_BYTES_MAX: Final = 65_536  # A key of 16,384 bytes fits, with each byte as %XX.
REFUSED_MAX: Final = 64  # Connections above the limit that get an answer at a time.
FILES_KEPT: Final = 256  # Open files for the store, and for connections that are refused.


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What a server lets be asked of it.

    Units: ``reads_max`` are those that read at a time, and not those that wait for records;
    ``held_bytes_max`` is of all bodies that come in, and of all that go out, at a time;
    ``body_timeout_us`` and ``answer_timeout_us`` are for the first bytes, and then for each 16 KiB
    a second more.
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
                    f"{field.name} is a whole number (int) from 1 on", found=quoted(value)
                )


def fit_open_files(limits: ServerLimits, files: int) -> ServerLimits:
    """Return limits that leave open files for the store, if the process may have ``files``."""
    connections = files - min(FILES_KEPT, files // 2)
    if connections >= limits.connections_max:
        return limits
    followers = min(limits.followers_max, max(1, connections // 2))
    return replace(limits, connections_max=max(1, connections), followers_max=followers)


class Allowance:
    """An amount of which requests take a part, and give it back when they are done."""

    def __init__(self, most: int, told: str) -> None:
        self._most, self._told = most, told
        self.taken = 0

    def take(self, amount: int) -> None:
        """Take a part; who comes alone may take any.

        Raises:
            TooMany: there is not as much left.
        """
        if self.taken and self.taken + amount > self._most:
            raise TooMany(f"{self._told}: ask again later", most=self._most)
        self.taken += amount

    def give(self, amount: int) -> None:
        """Give a part back."""
        self.taken -= amount
