"""The server and its OpenAPI description: requests and answers conform to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.parameters import ParameterLocation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from kit.keyed_model import MemoryLake
from kit.served import NAME, keyed_app, served
from server.conftest import AppUnderTest, Asking
from tidelog.http.api.failures import BY_KIND
from tidelog.http.client import HttpKeyedLog
from tidelog.server.app import ServerState
from tidelog.server.limits import ServerLimits
from tidelog.server.tokens import parse_tokens

TOKEN = "token-0123456789abcdef"
# Without `positive_data_acceptance`: OpenAPI cannot say that a request has exactly one kind of key,
# or that a range must not be reversed.
CHECKS: tuple[Any, ...] = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
    ignored_auth,
)


@schemathesis.serializer("application/protobuf")
def protobuf_of(_: Any, value: Any) -> bytes:
    """Return a protobuf body; the description declares it as bytes."""
    return value.encode("utf-8", "replace") if isinstance(value, str) else b"\xff"


def settled() -> ServerState:
    """Return a state with short waits, and a token."""
    tokens = parse_tokens([TOKEN], source="test")
    limits = ServerLimits(follow_us_max=1_000, append_us_max=1_000)
    return ServerState(limits=limits, tokens=tokens)


async def described() -> dict[str, Any]:
    """Return the server's description, without a socket."""
    transport = httpx.ASGITransport(keyed_app(MemoryLake(), settled()))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as web:
        found: dict[str, Any] = (await web.get("/openapi.json")).json()
        return found


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Return the URL of a server with some records."""
    with served(state=settled()) as server:
        with HttpKeyedLog(server.url, token=TOKEN) as log:
            log.append([(b"a", b"1"), (b"b", b"2")])
            server.run(server.place.handles[NAME].seal)
            log.append([(b"a", b"\xff")])
        yield server.url


# The paths of OpenData have the same handlers and the same description.
schema: Any = schemathesis.openapi.from_dict(asyncio.run(described())).exclude(
    path_regex="^/api/v1/log/"
)


@schema.parametrize()  # type: ignore[untyped-decorator]
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[*HealthCheck],
)
def test_all_that_the_description_allows_and_forbids(case: Any, url: str) -> None:
    """A valid request is answered, an invalid one refused, and none passes without a token.

    If a case lacks the token on purpose, the test must not add it: the rest of the case may be
    valid.
    """
    is_without = case.meta.is_negative_at(ParameterLocation.HEADER)
    headers = {} if is_without else {"Authorization": f"Bearer {TOKEN}"}
    case.call_and_validate(base_url=url, headers=headers, checks=CHECKS)


async def test_every_route_is_described(asked: AppUnderTest) -> None:
    """The description has every route, with each status that an error of tidelog can have."""
    told = (await asked.web.get("/openapi.json")).json()
    described = {
        (method.upper(), path) for path, methods in told["paths"].items() for method in methods
    }
    assert {("POST", "/api/v1/log/append"), ("GET", "/api/v1/keyed/{name}/scan")} <= described
    assert ("GET", "/metrics") in described
    scan = told["paths"]["/api/v1/log/scan"]["get"]
    assert {str(status) for status in BY_KIND.values()} <= set(scan["responses"])
    append = told["paths"]["/api/v1/log/append"]["post"]["responses"]
    assert {"403", "408", "409", "413", "415", "429", "500", "503"} <= set(append)
    assert "413" not in scan["responses"]
    assert "securitySchemes" not in told["components"]


@pytest.mark.parametrize("has_log", [False, True])
async def test_the_paths_of_opendata_are_described_where_they_are(
    asking: Asking, has_log: bool
) -> None:
    """OpenData's paths are described only if the server has a default log."""
    async with asking(log=NAME if has_log else None) as asked:
        answer: httpx.Response = await asked.web.get("/openapi.json")
        assert ("/api/v1/log/scan" in answer.json()["paths"]) == has_log
