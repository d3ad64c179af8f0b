"""Listings of S3 with keys that obstore cannot read; obstore drops the whole page of such a key.

obstore signs the request, with the query in the bucket's name, so the credentials come from the
same source as for other requests. Only a listing that failed is sent this way.
"""

from __future__ import annotations

import urllib.request
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final
from urllib.parse import unquote_plus, urlencode
from xml.etree import ElementTree

import obstore
from obstore.store import S3Store

from tidelog.core.clock import Clock
from tidelog.errors import LocationError
from tidelog.store.port import Entry

_TIMEOUT_S: Final = 60


@dataclass(frozen=True, slots=True)
class S3Listing:
    """The listing of a bucket below ``prefix``, which is empty or ends with ``/``.

    ``open_query`` opens a store that signs a query.
    """

    prefix: str
    open_query: Callable[[str], S3Store]

    async def entries(
        self, folder: str, after: str | None, *, clock: Clock
    ) -> AsyncIterator[Entry]:
        """Yield the objects of a folder that follow ``after``, in the order of the store.

        Raises:
            LocationError: the store failed.
        """
        asked = {"list-type": "2", "encoding-type": "url", "prefix": self.prefix + folder}
        if after is not None:
            asked["start-after"] = self.prefix + after
        while True:
            # obstore appends a slash to the name of a bucket; the last parameter absorbs it.
            store = self.open_query(urlencode({**asked, "x-id": "ListObjectsV2"}))
            data = await clock.offload(partial(_load, store))
            page = ElementTree.fromstring(data)
            for element in page.iterfind("{*}Contents"):
                yield self._entry(element)
            token = page.findtext("{*}NextContinuationToken")
            if not token:
                return
            asked["continuation-token"] = token

    def _entry(self, element: ElementTree.Element) -> Entry:
        key = unquote_plus(element.findtext("{*}Key", ""))
        modified = datetime.fromisoformat(element.findtext("{*}LastModified", ""))
        size = int(element.findtext("{*}Size", "0"))
        e_tag = element.findtext("{*}ETag", "")
        return Entry(key.removeprefix(self.prefix), size, e_tag, int(modified.timestamp() * 1e6))


def _load(store: S3Store) -> bytes:
    url = obstore.sign(store, "GET", "", timedelta(seconds=_TIMEOUT_S))
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            data: bytes = answer.read()
    except OSError as error:
        raise LocationError(
            "the store failed or did not answer: try again", reason=str(error)
        ) from error
    return data
