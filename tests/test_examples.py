"""The examples run as they stand there."""

from __future__ import annotations

import runpy
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tidelog.errors import SourceRewritten

ROOT = Path(__file__).resolve().parents[1]
KIND = ROOT / "examples" / "sqlite_rows.py"


def test_a_source_of_ones_own_is_one_small_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under a hundred lines make a kind; each row comes in once, and a changed one is found out."""
    main = runpy.run_path(str(KIND))["main"]
    database = tmp_path / "app.db"

    def change(sql: str) -> None:
        with closing(sqlite3.connect(database)) as connection:
            connection.execute(sql)
            connection.commit()

    def ingested() -> str:
        main(str(database), "orders", str(tmp_path / "lake"))
        return capsys.readouterr().out

    change("CREATE TABLE orders (id INTEGER PRIMARY KEY, what TEXT, price REAL)")
    change("INSERT INTO orders VALUES (1, 'tea', 2.5), (2, NULL, 3), (7, 'jam', 4)")
    assert ingested() == "3 new rows; 3 in all\n"
    change("INSERT INTO orders VALUES (8, 'rice', 1)")
    assert ingested() == "1 new rows; 4 in all\n"
    change("UPDATE orders SET price = 9 WHERE id = 8")
    with pytest.raises(SourceRewritten, match="'orders' has changed in the range 8 to 8 after"):
        ingested()
    assert len(KIND.read_text().splitlines()) < 100
