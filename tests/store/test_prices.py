"""The price of storage is defined in one place, and covers all stored bytes."""

from __future__ import annotations

import pytest

from tidelog.persist.maintenance.usage import ObjectUse, ShardUsage
from tidelog.store.prices import storage_dollars_a_month, storage_dollars_a_year


def test_a_tebibyte_costs_what_the_list_says() -> None:
    """Storage costs $0.023 for a GiB-month, and twelve times that for a year."""
    assert storage_dollars_a_month(1 << 40) == pytest.approx(23.552)
    assert storage_dollars_a_year(1 << 40) == pytest.approx(282.624)
    assert storage_dollars_a_month(0) == 0


def test_what_lies_there_is_paid_for_whatever_it_is() -> None:
    """All stored bytes cost, also those of merged parts and of dead processes."""
    sizes = {use: 1 << (30 + index) for index, use in enumerate(ObjectUse)}
    usage = ShardUsage(dict.fromkeys(ObjectUse, 1), sizes, ())

    assert usage.stored_bytes == 31 << 30
    assert usage.dollars_a_month == pytest.approx(31 * 0.023)
