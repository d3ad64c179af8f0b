"""Stores that break a promise, which `tidelog.store.probe` must refuse.

`LyingServer` is an S3 server on loopback that accepts conditions and ignores them, as some servers
do. It can also truncate bodies, fail, or be busy.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tidelog.store.memory import MemoryStore
from tidelog.store.port import Entry, Object

_MODIFIED = "Sun, 01 Nov 2026 10:00:00 GMT"


class IgnoresIfAbsent(MemoryStore):
    """A store that ignores ``if_absent``: every creation succeeds."""

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        return await MemoryStore.put(self, key, data, if_match=if_match)


class IgnoresIfMatch(MemoryStore):
    """A store that ignores ``if_match``: every replacement succeeds."""

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        return await MemoryStore.put(self, key, data, if_absent=if_absent)


class ReadsStale(MemoryStore):
    """A store that returns the first version of each object, as a stale cache would."""

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        first: dict[str, Object] = self.__dict__.setdefault("first", {})
        return first.setdefault(key, await MemoryStore.get(self, key))

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        e_tag = await MemoryStore.put(self, key, data, if_absent=if_absent, if_match=if_match)
        await self.get(key)
        return e_tag


class ListsNothing(MemoryStore):
    """A store whose listings show no object."""

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        nothing: Sequence[Entry] = ()
        for entry in nothing:
            yield entry


class CutsShort(MemoryStore):
    """A store that truncates the first read of an object to its end, to half of the bytes.

    With ``only``, it truncates only the object of that key. ``asked`` has the objects read to their
    end, and ``cuts`` the truncated ones.
    """

    def __init__(self, whole: MemoryStore, *, only: str | None = None) -> None:
        super().__init__(objects=whole.objects, puts_count=whole.puts_count)
        self.only = only
        self.asked: set[str] = set()
        self.cuts: set[str] = set()

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        found = await MemoryStore.get(self, key, start=start, limit=limit)
        if limit is not None:
            return found
        self.asked.add(key)
        if key in self.cuts or self.only not in (None, key):
            return found
        self.cuts.add(key)
        return Object(found.data[: len(found.data) // 2], found.e_tag, found.modified_us)


class LyingServer:
    """An S3 server without conditions; ``meddle`` may answer a request in its place.

    ``meddle(method, path)`` returns a status and a body to send, or ``None`` for the normal answer.
    """

    def __init__(
        self, meddle: Callable[[str, str], tuple[int, bytes] | None] | None = None
    ) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.cut_bytes = 0  # The number of bytes missing from the body of a GET.
        self.meddle = meddle or (lambda method, path: None)
        # The port is bound now, and refuses connections until the server listens.
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), _handler_of(self), bind_and_activate=False
        )
        self._server.server_bind()
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def url(self, prefix: str = "") -> str:
        endpoint = f"http://127.0.0.1:{self._server.server_port}"
        keys = "access_key_id=a&secret_access_key=b"
        return f"s3://liar/{prefix}?endpoint={endpoint}&{keys}"

    def start(self) -> None:
        self._server.server_activate()
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _handler_of(server: LyingServer) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        liar = server

    return Handler


class _Handler(BaseHTTPRequestHandler):
    liar: LyingServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self._meddled():
            return
        parts = urlsplit(self.path)
        if "list-type" in parts.query:
            self._answer(200, self._listing(parse_qs(parts.query)))
            return
        data = self.liar.objects.get(self._key())
        if data is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self._answer(200, data, e_tag=_e_tag(data), cut_bytes=self.liar.cut_bytes)

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self._meddled():
            self.liar.objects[self._key()] = data
            self._answer(200, b"", e_tag=_e_tag(data))

    def do_POST(self) -> None:
        """Delete several objects: the only POST that clients send here."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._meddled():
            return
        for element in ElementTree.fromstring(body).iter():
            if element.tag.rpartition("}")[2] == "Key" and element.text:
                self.liar.objects.pop(element.text, None)
        self._answer(200, b"<DeleteResult></DeleteResult>")

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def _meddled(self) -> bool:
        self.liar.requests.append((self.command, self.path))
        answer = self.liar.meddle(self.command, self.path)
        if answer is None:
            return False
        if answer[0] == 0:  # Close the connection without an answer.
            self.close_connection = True
        else:
            self._answer(*answer)
        return True

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix("/liar/")

    def _listing(self, query: dict[str, list[str]]) -> bytes:
        prefix = query.get("prefix", [""])[0]
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size>"
            f"<LastModified>2026-11-01T10:00:00.000Z</LastModified>"
            f"<ETag>{escape(_e_tag(data))}</ETag></Contents>"
            for key, data in sorted(self.liar.objects.items())
            if key.startswith(prefix)
        )
        return f"<ListBucketResult><Name>liar</Name>{contents}</ListBucketResult>".encode()

    def _answer(self, status: int, body: bytes, *, e_tag: str = "", cut_bytes: int = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", _MODIFIED)
        if e_tag:
            self.send_header("ETag", e_tag)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) - cut_bytes])
        if cut_bytes:
            self.close_connection = True


def _e_tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
