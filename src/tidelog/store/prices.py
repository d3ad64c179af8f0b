"""The prices of requests and storage: S3's list prices in us-east-1, without transfer. Pure.

Source: persist, "Cost" (the price list of S3).
"""

from __future__ import annotations

from typing import Final

# Dollars for one request. A deletion is free on S3 itself, but not everywhere.
PRICES: Final = {"get": 0.0004e-3, "put": 0.005e-3, "list": 0.005e-3, "delete": 0.005e-3}
# S3's gigabyte has 2**30 bytes.
GIB_MONTH: Final = 0.023
MONTHS: Final = 12


def storage_dollars_a_month(size_bytes: int) -> float:
    """Return the price of storing bytes for a month, rounded to a nanodollar.

    Every stored byte is paid for, whether an object is live or garbage.
    """
    return round(size_bytes / 2**30 * GIB_MONTH, 9)


def storage_dollars_a_year(size_bytes: int) -> float:
    """Return the price of storing bytes for a year."""
    return MONTHS * storage_dollars_a_month(size_bytes)
