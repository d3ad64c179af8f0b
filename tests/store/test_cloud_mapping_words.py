"""The message for missing credentials names those of the URL's cloud."""

from __future__ import annotations

import pytest

from tidelog.errors import StoreRefused
from tidelog.store.cloud.mapping import FailedRequest, to_tidelog

NOBODY_ANSWERS = "Error performing GET http://metadata/computeMetadata/v1/instance"


@pytest.mark.parametrize(
    ("scheme", "told"),
    [
        ("s3", "AWS_ACCESS_KEY_ID"),
        ("gs", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az", "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_the_credentials_that_lack_are_those_of_the_cloud(scheme: str, told: str) -> None:
    """A missing credential is named by the variable of the URL's cloud."""
    asked = FailedRequest(verb="get", key="k", bucket="b", store=f"{scheme}://b")
    found = to_tidelog(OSError(NOBODY_ANSWERS), asked)

    assert isinstance(found, StoreRefused)
    assert told in str(found)
