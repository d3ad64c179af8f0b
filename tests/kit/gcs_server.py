"""A server for tests with the part of Google Cloud Storage's XML API that obstore uses.

It follows the requests that obstore sends and the answers that object_store expects. It proves
nothing about Google's own server: its limits of replacements, its load, or its error texts. It has:

- rising generations, and puts with ``x-goog-if-generation-match`` (0: the object must not exist);
- ranges, and If-None-Match;
- listings in pages, with ``start-after`` and continuation tokens;
- single deletions, with 404 for a missing object (obstore sends no batches here);
- OAuth tokens of the metadata server, which every request needs.
"""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "tide"
PAGE_ENTRIES = 7  # Few, so that each listing of a test has several pages.


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object: its bytes and its generation."""

    data: bytes
    generation: int
    modified: str

    @property
    def e_tag(self) -> str:
        # As on Google, equal bytes have equal e_tags.
        return f'"{md5(self.data, usedforsecurity=False).hexdigest()}"'


@dataclass(slots=True)
class GcsServer:
    """The server, inside ``with``; clients find it by ``environment``.

    ``told`` has the answered requests: verb, path and query.
    """

    objects: dict[str, StoredObject] = field(default_factory=dict)
    told: list[tuple[str, str, str]] = field(default_factory=list)
    tokens: int = 0
    generation: int = 1_700_000_000_000_000
    lock: threading.Lock = field(default_factory=threading.Lock)
    _http: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"gcs": self})
        self._http = _ListeningServer(("127.0.0.1", 0), handler)
        # Each test with a server waits for one such interval at its end.
        serve = self._http.serve_forever
        threading.Thread(target=serve, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._http is not None
        self._http.shutdown()
        self._http.server_close()

    @property
    def environment(self) -> dict[str, str]:
        assert self._http is not None
        host = f"127.0.0.1:{self._http.server_port}"
        return {"GOOGLE_BASE_URL": f"http://{host}", "GCE_METADATA_HOST": host}

    def url(self, prefix: str = "") -> str:
        return f"gs://{BUCKET}/{prefix}"

    def put(self, key: str, data: bytes, match: str | None) -> StoredObject | None:
        """Put an object; None if the condition does not hold."""
        with self.lock:
            there = self.objects.get(key)
            if match is not None and int(match) != (there.generation if there else 0):
                return None
            self.generation += 1
            self.objects[key] = StoredObject(data, self.generation, formatdate(usegmt=True))
            return self.objects[key]

    def page(self, prefix: str, after: str) -> tuple[list[tuple[str, StoredObject]], bool]:
        """Return a page of objects after a key, and True if more follow."""
        with self.lock:
            found = sorted(
                (k, v) for k, v in self.objects.items() if k.startswith(prefix) and k > after
            )
        return found[:PAGE_ENTRIES], len(found) > PAGE_ENTRIES


class _ListeningServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # Many clients connect at the same time.


class _Handler(BaseHTTPRequestHandler):
    gcs: GcsServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        if place.path.startswith("/computeMetadata/"):
            self._token()
            return
        key = self._key()
        if key is None:
            return
        if key == "":
            self._list({name: values[0] for name, values in parse_qs(place.query).items()})
        else:
            self._read(key, with_body=True)

    def do_HEAD(self) -> None:
        key = self._key()
        if key is not None:
            self._read(key, with_body=False)

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        key = self._key()
        if key is None:
            return
        stored = self.gcs.put(key, data, self.headers["x-goog-if-generation-match"])
        if stored is None:
            self._fail(412, "PreconditionFailed")
        else:
            self._answer(200, b"", _facts(stored))

    def do_DELETE(self) -> None:
        key = self._key()
        if key is None:
            return
        with self.gcs.lock:
            found = self.gcs.objects.pop(key, None)
        if found is None:
            self._fail(404, "NoSuchKey")
        else:
            self._answer(204)

    def _token(self) -> None:
        self.gcs.tokens += 1
        token = {"access_token": f"token-{self.gcs.tokens}", "expires_in": 3_600}
        self._answer(200, json.dumps(token | {"token_type": "Bearer"}).encode())

    def _key(self) -> str | None:
        """Return the key of a request, "" for the bucket itself; None if it was refused."""
        place = urlsplit(self.path)
        bucket, _, key = place.path.lstrip("/").partition("/")
        self.gcs.told.append((self.command, unquote(key), place.query))
        if not re.fullmatch(r"Bearer token-\d+", self.headers["Authorization"] or ""):
            self._fail(401, "AuthenticationRequired")
            return None
        if bucket != BUCKET:
            self._fail(404, "NoSuchBucket")
            return None
        return unquote(key)

    def _read(self, key: str, *, with_body: bool) -> None:
        stored = self.gcs.objects.get(key)
        if stored is None:
            self._fail(404, "NoSuchKey")
            return
        if self.headers["If-None-Match"] == stored.e_tag:
            self._answer(304, b"", _facts(stored))
            return
        size = len(stored.data)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        if asked is None:
            self._answer(200, stored.data, _facts(stored), with_body=with_body)
            return
        start, last = int(asked[1]), min(int(asked[2] or size), size - 1)
        if start >= size:
            self._fail(416, "InvalidRange")
            return
        told = {"Content-Range": f"bytes {start}-{last}/{size}"}
        self._answer(206, stored.data[start : last + 1], told | _facts(stored))

    def _list(self, query: dict[str, str]) -> None:
        prefix = query.get("prefix", "")
        after = query.get("continuation-token", "") or query.get("start-after", "")
        page, has_more = self.gcs.page(prefix, after)
        lines = [
            f"<Contents><Key>{escape(key)}</Key><Generation>{one.generation}</Generation>"
            f"<LastModified>{_iso(one)}</LastModified><ETag>{escape(one.e_tag)}</ETag>"
            f"<Size>{len(one.data)}</Size></Contents>"
            for key, one in page
        ]
        if has_more:
            last = escape(page[-1][0])
            lines.append(f"<NextContinuationToken>{last}</NextContinuationToken>")
        head = f"<IsTruncated>{str(has_more).lower()}</IsTruncated>"
        body = f"<ListBucketResult>{head}{''.join(lines)}</ListBucketResult>"
        self._answer(200, body.encode())

    def _fail(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
        self._answer(status, body.encode())

    def _answer(
        self,
        status: int,
        body: bytes = b"",
        told: dict[str, str] | None = None,
        *,
        with_body: bool = True,
    ) -> None:
        self.send_response(status)
        for name, value in (told or {}).items():
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body and self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


def _facts(stored: StoredObject) -> dict[str, str]:
    return {
        "ETag": stored.e_tag,
        "x-goog-generation": str(stored.generation),
        "Last-Modified": stored.modified,
    }


def _iso(stored: StoredObject) -> str:
    from email.utils import parsedate_to_datetime

    return parsedate_to_datetime(stored.modified).strftime("%Y-%m-%dT%H:%M:%S.000Z")
