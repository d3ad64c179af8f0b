"""The routes of a keyed log under one path: their parameters, messages and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.http.api.messages import (
    AppendAnswer,
    AppendRequest,
    CountAnswer,
    CountRequest,
    KeysAnswer,
    LogAnswer,
    ScanAnswer,
    ScanRequest,
    SegmentsAnswer,
)
from tidelog.server import keyed_asks
from tidelog.server.routers import Endpoint, Handler, Parameter

ERRORS: Final = (404, 409, 410)
_ID: Final = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
_KEYS: Final = (
    *keyed_asks.bytes_parameters("prefix", "A prefix of the keys"),
    *keyed_asks.bytes_parameters("after", "Keys after this one"),
    Parameter("start_segment", _ID, "The id of the first segment."),
    Parameter("end_segment", _ID, "Segments before this one."),
    keyed_asks.LIMIT,
)
_COUNT: Final = (
    *keyed_asks.KEY,
    *keyed_asks.RANGE,
    Parameter("approximate", {"type": "boolean"}, "Return an estimate with bounds."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedHandlers:
    """The handlers of the routes."""

    describe: Handler
    append: Handler
    scan: Handler
    keys: Handler
    segments: Handler
    count: Handler


def keyed_endpoints(path: str, name: str, handlers: KeyedHandlers) -> list[Endpoint]:
    """Return the routes of a keyed log under a path; their names begin with ``name``."""
    describe = Endpoint(
        path=path if "{" in path else f"{path}/describe",
        method="GET",
        name=f"{name}-describe",
        summary="Describe the log.",
        handler=handlers.describe,
        answer=LogAnswer,
        errors=ERRORS,
    )
    append = Endpoint(
        path=f"{path}/append",
        method="POST",
        name=f"{name}-append",
        summary="Append records with consecutive sequences.",
        handler=handlers.append,
        request=AppendRequest,
        answer=AppendAnswer,
        errors=ERRORS,
        is_write=True,
    )
    return [describe, append, *_reading(path, name, handlers), *_listing(path, name, handlers)]


def _reading(path: str, name: str, handlers: KeyedHandlers) -> list[Endpoint]:
    return [
        Endpoint(
            path=f"{path}/scan",
            method="GET",
            name=f"{name}-scan",
            summary="Read records of a key, a prefix or a range of keys, or wait for them.",
            handler=handlers.scan,
            parameters=keyed_asks.SCAN,
            answer=ScanAnswer,
            errors=ERRORS,
        ),
        Endpoint(
            path=f"{path}/scan",
            method="POST",
            name=f"{name}-scan-post",
            summary="Read records, with a request in the body, for keys too long for a URL.",
            handler=handlers.scan,
            request=ScanRequest,
            answer=ScanAnswer,
            errors=ERRORS,
        ),
        Endpoint(
            path=f"{path}/count",
            method="GET",
            name=f"{name}-count",
            summary="Count the records of a key.",
            handler=handlers.count,
            parameters=_COUNT,
            answer=CountAnswer,
            errors=ERRORS,
        ),
        Endpoint(
            path=f"{path}/count",
            method="POST",
            name=f"{name}-count-post",
            summary="Count records, with a request in the body, for keys too long for a URL.",
            handler=handlers.count,
            request=CountRequest,
            answer=CountAnswer,
            errors=ERRORS,
        ),
    ]


def _listing(path: str, name: str, handlers: KeyedHandlers) -> list[Endpoint]:
    return [
        Endpoint(
            path=f"{path}/keys",
            method="GET",
            name=f"{name}-keys",
            summary="List the keys in the order of their bytes.",
            handler=handlers.keys,
            parameters=_KEYS,
            answer=KeysAnswer,
            errors=ERRORS,
        ),
        Endpoint(
            path=f"{path}/segments",
            method="GET",
            name=f"{name}-segments",
            summary="List the segments in order.",
            handler=handlers.segments,
            parameters=(*keyed_asks.RANGE, keyed_asks.LIMIT),
            answer=SegmentsAnswer,
            errors=ERRORS,
        ),
    ]
