"""Retention of keyed logs: settings that never retire anything are refused."""

from __future__ import annotations

import pytest

from kit.keyed_engine import keyed_logs
from tidelog.errors import UsageError
from tidelog.keyed.values import Retention, Sealing

DAY = Retention(age_us=86_400 * 10**6)
HOURLY = Sealing(age_us=3_600 * 10**6)


@pytest.mark.parametrize(
    "sealing", [None, Sealing(bytes=9), Sealing(age_us=DAY.age_us and DAY.age_us + 1)]
)
async def test_a_retention_by_age_that_can_never_act_is_refused(sealing: Sealing | None) -> None:
    """Retention by age without sealing by age would never retire a quiet segment."""
    logs = keyed_logs()
    with pytest.raises(UsageError, match="retention deletes only sealed"):
        await logs.create("log", sealing=sealing, retention=DAY)
    assert await logs.list() == []

    log = await logs.create("log", sealing=sealing)
    with pytest.raises(UsageError, match="retention deletes only sealed"):
        await log.retain(DAY)
    assert not (await log.describe()).retention.is_set
    await log.configure(HOURLY)
    await log.retain(DAY)
    with pytest.raises(UsageError, match="retention deletes only sealed"):
        await log.configure(sealing or Sealing())
    assert (await log.describe()).sealing == HOURLY
    await log.close()


@pytest.mark.parametrize("sealing", [HOURLY, Sealing(bytes=None)])
async def test_a_retention_that_can_act_is_accepted(sealing: Sealing) -> None:
    """Retention by age is accepted with sealing by age, or if only the caller seals."""
    log = await keyed_logs().create("log", sealing=sealing, retention=DAY)

    assert (await log.describe()).retention == DAY
    await log.close()
