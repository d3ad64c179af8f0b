"""The OpenAPI 3.1 description of a server, generated from its routes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from tidelog.http.api.messages import ErrorAnswer
from tidelog.server.request import JSON_TYPES, PROTOBUF_TYPES
from tidelog.server.routers import Endpoint, Router

Json = dict[str, Any]

_REF: Final = "#/components/schemas/{name}"
_WHY: Final = {
    400: "The request is wrong: correct it.",
    401: "The token is missing or unknown.",
    403: "The token or the server is read-only.",
    404: "No such log, segment or route exists.",
    408: "The body arrived too slowly.",
    409: "Another process was first, or has opened and fenced the log.",
    410: "Records from this sequence were retired: start at the oldest one.",
    413: "The body is too large.",
    415: "The body is neither JSON nor protobuf.",
    429: "A limit is reached, or the log is full: nothing was applied; try again later.",
    500: "The request failed; ``outcome`` states whether it was applied.",
    503: "The store failed, or the server shuts down: nothing was applied; try again later.",
}
_PLAIN: Final = "text/plain"


def describe_routes(routers: Iterable[Router], *, version: str, has_tokens: bool) -> Json:
    """Return the description of the routes of some routers."""
    endpoints = [endpoint for router in routers for endpoint in router.endpoints]
    messages = {e.request for e in endpoints if e.request is not None}
    answers = {e.answer for e in endpoints if not isinstance(e.answer, str)}
    _, schemas = msgspec.json.schema_components(
        sorted({*messages, *answers, ErrorAnswer}, key=lambda message: message.__name__),
        ref_template=_REF,
    )
    paths: dict[str, Json] = {}
    for endpoint in endpoints:
        described = _described(endpoint, has_tokens=has_tokens)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = described
    scheme = {"bearer": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "tidelog", "version": version, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": schemas, **({"securitySchemes": scheme} if has_tokens else {})},
    }


def _described(endpoint: Endpoint, *, has_tokens: bool) -> Json:
    operation: Json = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "parameters": [*_path_parameters(endpoint.path), *_query_parameters(endpoint)],
        "responses": _responses(endpoint, has_tokens=has_tokens),
    }
    if endpoint.request is not None:
        operation["requestBody"] = {"required": True, "content": _content(endpoint.request)}
    if has_tokens and not endpoint.is_public:
        operation["security"] = [{"bearer": []}]
    return operation


def _path_parameters(path: str) -> list[Json]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"\{(\w+)\}", path)
    ]


def _query_parameters(endpoint: Endpoint) -> list[Json]:
    return [
        {
            "name": parameter.name,
            "in": "query",
            "required": False,
            "description": parameter.told,
            "schema": dict(parameter.schema),
        }
        for parameter in endpoint.parameters
    ]


def _responses(endpoint: Endpoint, *, has_tokens: bool) -> Json:
    statuses = [400, *endpoint.errors, 429, 500, 503]
    if endpoint.request is not None:
        statuses += [408, 413, 415]
    if endpoint.is_public:
        statuses = [500, 503]
    elif has_tokens:
        statuses += [401, 403]
    elif endpoint.is_write:
        statuses.append(403)
    if isinstance(endpoint.answer, str):
        body: Mapping[str, Any] = {endpoint.answer or _PLAIN: {"schema": {}}}
    else:
        body = _content(endpoint.answer)
    failed = {
        str(status): {"description": _WHY[status], "content": _content(ErrorAnswer)}
        for status in sorted({*statuses})
    }
    return {"200": {"description": "The request succeeded.", "content": body}, **failed}


def _content(message: type[Struct]) -> Json:
    schema = {"$ref": _REF.format(name=message.__name__)}
    binary = {"type": "string", "contentMediaType": PROTOBUF_TYPES[0]}
    return {
        JSON_TYPES[0]: {"schema": schema},
        PROTOBUF_TYPES[0]: {"schema": binary},
    }
