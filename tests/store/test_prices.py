"""What storage costs is said in one place, and of all bytes that lie there."""

from __future__ import annotations

import pytest

from tidelog.persist.upkeep.usage import ObjectUse, ShardUsage
from tidelog.store.prices import storage_dollars_a_month, storage_dollars_a_year


def test_a_tebibyte_costs_what_the_list_says() -> None:
    """$0.023 a GiB-month, twelve times a year."""
    assert storage_dollars_a_month(1 << 40) == pytest.approx(23.552)
    assert storage_dollars_a_year(1 << 40) == pytest.approx(282.624)
    assert storage_dollars_a_month(0) == 0


def test_what_lies_there_is_paid_for_whatever_it_is() -> None:
    """A merge that was not collected yet is on the bill, and so is what the dead have left."""
    sizes = {use: 1 << (30 + index) for index, use in enumerate(ObjectUse)}
    usage = ShardUsage(dict.fromkeys(ObjectUse, 1), sizes, ())

    assert usage.stored_bytes == 31 << 30
    assert usage.dollars_a_month == pytest.approx(31 * 0.023)
