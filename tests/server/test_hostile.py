"""The server answers any request, and never with a 500."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kit.keyed_model import MemoryLake
from kit.served import NAME, keyed_app
from server.conftest import AppUnderTest
from tidelog.server.app import ServerState

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
texts = st.sampled_from(["YQ==", "", "!", "a-_b", "\ud800", "%ff"]) | st.text(max_size=6)
keys = texts | st.fixed_dictionaries({"base64": texts})
numbers = st.sampled_from([0, 1, -1, 2**31, 2**63, 2**64, 2**70, 1.5, True, "1", None])
fields = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("key", "value", "prefix", "first", "last"), keys),
        **dict.fromkeys(("startSeq", "endSeq", "limit", "timestampUs"), numbers),
        "timeoutMs": st.sampled_from([0, 1, -1, "x"]),
        "follow": st.booleans(),
        "newestFirst": st.booleans(),
        "records": st.lists(
            st.fixed_dictionaries({}, optional=dict.fromkeys(("key", "value", "x"), keys))
            | json_values,
            max_size=3,
        ),
    },
)
ROUTES = ["append", "scan", "count"]
FORM = "application/x-www-form-urlencoded"  # The content type that curl sends by default.
KINDS = [
    "application/json",
    FORM,
    "application/protobuf",
    "",
    "text/plain",
    "application/json; x=y",
]


async def _ask(route: str, body: bytes, kind: str) -> httpx.Response:
    lake = MemoryLake()
    await lake.keyed.create(NAME)
    app = keyed_app(lake, ServerState())
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as web:
        headers = {"content-type": kind} if kind else {}
        return await web.post(f"/api/v1/log/{route}", content=body, headers=headers)


def checked(route: str, body: bytes, kind: str) -> None:
    answer = asyncio.run(_ask(route, body, kind))

    assert answer.status_code in (200, 400, 415), answer.text
    if answer.status_code != 200 and "protobuf" not in answer.headers["content-type"]:
        assert answer.json()["status"] == "error"


@settings(deadline=None)
@given(route=st.sampled_from(ROUTES), body=st.binary(max_size=80), kind=st.sampled_from(KINDS))
@example(route="append", body=b"[" * 200_000, kind="application/json")
@example(route="append", body=b'{"records":' * 100_000, kind="application/json")
@example(route="scan", body=b'{"startSeq":' + b"9" * 5_000 + b"}", kind="application/json")
@example(route="append", body=b'{"records":[{"key":"' + b"A" * 70_001, kind="application/json")
def test_any_bytes_are_answered(route: str, body: bytes, kind: str) -> None:
    """Any bytes get 200, 400 or 415, as JSON, as protobuf or without a type."""
    checked(route, body, kind)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(route=st.sampled_from(ROUTES), message=fields | json_values)
def test_any_json_is_answered(route: str, message: Any) -> None:
    """Any JSON gets an answer, be it nearly right or completely wrong."""
    body = json.dumps(message).encode("utf-8", "surrogatepass")
    checked(route, body, "application/json")


@pytest.mark.parametrize(
    "query",
    [
        *("", "key=a&key=b", "key=a&key_hex=61", "key=a&prefix=b", "key_hex=6", "key_hex=zz"),
        *("key_base64=a", "key_base64=%ff", "key=a&limit=1.5", "key=a&limit=%ff", "key=a&nix=1"),
        *("key=a&follow=yes", "key=a&start_seq=-1", "key=a&start_seq=9223372036854775808"),
        *("key=a&start_seq=5&end_seq=4", "first=b&last=a", "first=a&prefix=b"),
        *("key=a&follow=true&newest_first=true", "key=a&end_seq=18446744073709551616"),
        *("key=" + "a" * 16_385, "%ff=1", "&&&", "=", "key=a&limit=" + "1" * 5_000),
        "&".join(f"a{n}=1" for n in range(300)),
    ],
    ids=lambda query: query[:40],
)
async def test_queries_that_are_wrong_are_a_400(asked: AppUnderTest, query: str) -> None:
    """A bad query gets 400 with a short sentence."""
    answer = await asked.get(f"scan?{query}")

    assert answer.status_code == 400, answer.text
    assert answer.json()["kind"] == "usage"
    assert len(answer.json()["message"]) < 1_000


async def test_methods_and_paths_that_are_not_there(asked: AppUnderTest) -> None:
    """A wrong method gets 405 with the allowed ones, and a wrong path NoSuchRoute."""
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "FOO"):
        answer = await asked.web.request(method, "/api/v1/log/scan")
        assert answer.status_code == 405
        assert {"GET", "POST", "HEAD"} == {*answer.headers["allow"].split(", ")}
    head = await asked.web.head("/-/healthy")
    assert (head.status_code, int(head.headers["content-length"]) > 0) == (200, True)
    for path in ("/", "/api", "/api/v1/log", "/api/v1/log/nix", "/api/v1/keyed/x/nix", "/%00"):
        assert (await asked.web.get(path)).json()["error"] == "NoSuchRoute", path


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        ({"base64": "YQ"}, "must use the standard alphabet and padding"),
        ({"base64": "-_=="}, "standard alphabet"),
        ({"base64": "order-1"}, "write text unencoded"),
        ({"base64": "YQ==", "x": 1}, "unknown field `x`"),
        ({}, "missing required field `base64`"),
        (1, "got `int`"),
    ],
)
async def test_a_key_that_is_neither_text_nor_base64_is_a_400(
    asked: AppUnderTest, key: Any, fault: str
) -> None:
    """The server does not guess: the error names the field and the remedy."""
    appended = await asked.post("append", {"records": [{"key": key, "value": ""}]})
    counted = await asked.post("count", {"key": key})

    for answer in (appended, counted):
        assert (answer.status_code, answer.json()["kind"]) == (400, "usage")
        assert fault in answer.json()["message"]
    assert "records[0]" in appended.json()["message"]
    assert (await asked.get("keys")).json()["keys"] == []


async def test_the_former_field_of_texts_is_refused_with_the_present_one(
    asked: AppUnderTest,
) -> None:
    """``keyText`` was once the field of a text; the refusal names ``key``."""
    records = [{"keyText": "a", "valueText": "b"}]
    answer = (await asked.post("append", {"records": records})).json()

    assert 'Write a text as "key" or "value"' in answer["message"]


async def test_a_limit_is_told_with_no_bound_that_is_none(asked: AppUnderTest) -> None:
    """The message must not offer a limit of 2^63-1, which the next check would refuse."""
    answer = (await asked.get("scan", params={"key": "a", "limit": 0})).json()

    assert "limit must be a whole number of at least 1" in answer["message"]
