"""Each route of keyed logs, for OpenData's clients and for users."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from kit.keyed_model import MemoryKeyed
from kit.served import NAME
from server.conftest import AppUnderTest, Asking, others_run, until
from tidelog.errors import Fenced, LocationError, Outcome, OutcomeUnknown, TidelogError
from tidelog.http.api import messages
from tidelog.http.api.keys import Base64
from tidelog.http.api.protobuf_wire import decode_message, encode_message
from tidelog.keyed.values import Retention
from tidelog.server.response import encoded
from tidelog.server.routers import Plain

PROTOBUF = {"content-type": "application/protobuf", "accept": "application/protobuf"}


def b64(value: bytes) -> dict[str, str]:
    """Return bytes in the base64 form that any client may use."""
    return {"base64": base64.b64encode(value).decode()}


def shown(value: bytes) -> str | dict[str, str]:
    """Return bytes as the server writes them: a text, or base64 if they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return b64(value)


async def values(asked: AppUnderTest, **query: Any) -> list[str]:
    answer = await asked.get("scan", params=query)
    assert answer.status_code == 200, answer.text
    return [value["value"] for value in answer.json()["values"]]


async def test_the_routes_and_fields_of_opendata_are_answered(asked: AppUnderTest) -> None:
    """The routes and fields are those of OpenData's RFC 0004; a text is a text."""
    records = [{"key": "my-key", "value": "my-value"}]
    appended = await asked.post("append", {"records": records, "awaitDurable": True})
    scanned = await asked.get("scan", params={"key": "my-key", "end_seq": 2**64 - 1})
    keys = await asked.get("keys", params={"start_segment": 0, "end_segment": 2**32 - 1})
    segments = await asked.get("segments")
    count = await asked.get("count", params={"key": "my-key", "start_seq": 0})

    assert appended.json() == {"status": "success", "recordsAppended": 1, "startSequence": 1}
    body = scanned.json()
    assert (body["status"], body["key"], body["nextSequence"]) == ("success", "my-key", 2)
    assert body["values"][0].items() >= {"sequence": 1, "value": "my-value"}.items()
    assert keys.json()["keys"][0]["key"] == "my-key"
    assert segments.json()["segments"][0].items() >= {"id": 0, "startSeq": 1}.items()
    assert count.json() == {"status": "success", "count": 1}


@pytest.mark.parametrize("text", ["order-1", "abcd", "YQ==", "YQ", "", "\u00e9\u0000\U0001f600"])
async def test_a_text_is_stored_as_its_own_bytes(asked: AppUnderTest, text: str) -> None:
    """A text is stored as UTF-8, even if it could be base64, and is returned as a text."""
    first = await asked.append((text, text))

    found = await asked.log.scan(text.encode()).to_arrow()
    assert found["value"].to_pylist() == [text.encode()]
    answer = (await asked.post("scan", {"key": text})).json()
    assert answer["key"] == text
    assert [(one["sequence"], one["value"]) for one in answer["values"]] == [(first, text)]
    assert (await asked.post("count", {"key": b64(text.encode())})).json()["count"] == 1


async def test_protobuf_is_taken_and_answered(asked: AppUnderTest) -> None:
    """Content-Type and Accept choose protobuf; Accept decides the answer."""
    record = messages.RecordIn(key="k", value=Base64(b"\xff"))
    body = encode_message(messages.AppendRequest(records=[record]))
    told = await asked.web.post("/api/v1/log/append", content=body, headers=PROTOBUF)
    assert told.headers["content-type"] == "application/protobuf"
    appended = decode_message(told.content, messages.AppendAnswer, items_max=9)
    assert (appended.records_appended, appended.start_sequence) == (1, 1)

    found = await asked.get("scan", params={"key": "k"}, headers=PROTOBUF)
    scanned = decode_message(found.content, messages.ScanAnswer, items_max=9)
    assert [value.value for value in scanned.values] == [Base64(b"\xff")]
    for accept, kind in (
        ("application/json", "application/json"),
        ("application/protobuf+json", "application/protobuf+json"),
        ("application/json;q=0.5, application/protobuf", "application/protobuf"),
        ("*/*", "application/json"),
        ("text/html", "application/json"),
    ):
        answer = await asked.get("count", params={"key": "k"}, headers={"accept": accept})
        assert answer.headers["content-type"] == kind
    failed = await asked.web.post("/api/v1/log/append", content=b"\xff", headers=PROTOBUF)
    assert failed.status_code == 400
    error = decode_message(failed.content, messages.ErrorAnswer, items_max=9)
    assert (error.status, error.kind) == ("error", "usage")


@pytest.mark.parametrize("key", [b"", b"a", b"\x00", b"\xff\xfe", bytes(range(256)), b"k" * 16_384])
async def test_keys_of_any_bytes_are_found_again(asked: AppUnderTest, key: bytes) -> None:
    """A key of any bytes is found by escapes, both kinds of base64, hex, and in a body."""
    record = {"key": b64(key), "value": b64(b"v")}
    assert (await asked.post("append", {"records": [record]})).status_code == 200
    escaped = "".join(f"%{byte:02x}" for byte in key)
    urls = [
        f"key={escaped}",
        f"key_base64={base64.urlsafe_b64encode(key).decode()}",
        f"key_base64={b64(key)['base64']}",
        f"key_base64={base64.urlsafe_b64encode(key).decode().rstrip('=')}",
        f"key_hex={key.hex()}",
    ]
    for url in urls:
        assert (await asked.get(f"count?{url}")).json()["count"] == 1
        found = (await asked.get(f"scan?{url}")).json()
        assert (found["key"], len(found["values"])) == (shown(key), 1)
    assert (await asked.post("count", {"key": b64(key)})).json()["count"] == 1
    posted = (await asked.post("scan", {"key": b64(key)})).json()
    assert posted["values"][0]["value"] == "v"
    listed = (await asked.get("keys")).json()["keys"]
    assert [one["key"] for one in listed] == [shown(key)]


async def test_scans_are_of_a_key_a_prefix_or_a_range(asked: AppUnderTest) -> None:
    """A scan reads a key, a prefix or a range, from either end, page by page."""
    await asked.append(("a1", "1"), ("a2", "2"), ("b", "3"), ("a1", "4"))

    assert await values(asked, key="a1") == ["1", "4"]
    assert await values(asked, prefix="a") == ["1", "2", "4"]
    assert await values(asked, prefix="") == ["1", "2", "3", "4"]
    assert await values(asked, first="a2") == ["2", "3"]
    assert await values(asked, first="a1", last="a2") == ["1", "4"]
    assert await values(asked, last="a2") == ["1", "4"]
    assert await values(asked, key="a1", newest_first="true", limit=1) == ["4"]
    assert await values(asked, key="a1", start_seq=2) == ["4"]
    assert await values(asked, key="a1", end_seq=4) == ["1"]
    page = (await asked.get("scan", params={"prefix": "a", "limit": 2})).json()
    assert (page["nextSequence"], page["more"]) == (3, True)
    assert [one["key"] for one in page["values"]] == ["a1", "a2"]
    rest = (await asked.get("scan", params={"prefix": "a", "start_seq": 3})).json()
    assert (rest["nextSequence"], rest["more"], len(rest["values"])) == (5, False, 1)
    idle = (await asked.get("scan", params={"key": "nobody"})).json()
    assert (idle["nextSequence"], idle["values"]) == (5, [])


async def test_keys_and_segments_are_paged(asked: AppUnderTest) -> None:
    """Each page reports whether more follow."""
    await asked.append(*((f"k{n}", "v") for n in range(5)))
    await asked.log.seal()
    await asked.append(("k1", "w"))
    await asked.log.compact()

    page = (await asked.get("keys", params={"limit": 3})).json()
    assert ([one["key"] for one in page["keys"]], page["more"]) == (["k0", "k1", "k2"], True)
    assert page["keys"][1]["records"] == 2
    rest = (await asked.get("keys", params={"after": "k2", "prefix": "k"})).json()
    assert ([one["key"] for one in rest["keys"]], rest["more"]) == (["k3", "k4"], False)
    newest = (await asked.get("keys", params={"start_segment": 1})).json()
    assert [(one["key"], one["records"]) for one in newest["keys"]] == [("k1", 1)]
    assert (await asked.get("keys", params={"start_segment": 7})).status_code == 404
    first = (await asked.get("segments", params={"limit": 1})).json()
    assert (first["segments"][0]["endSeq"], first["more"]) == (6, True)
    assert first["segments"][0]["startTimeMs"] > 1_600_000_000_000
    second = (await asked.get("segments", params={"start_seq": 6})).json()["segments"]
    assert [one["id"] for one in second] == [1]
    assert "endSeq" not in second[0]


async def test_counts_are_exact_or_bounded(asked: AppUnderTest) -> None:
    """A count is exact, or has bounds; it may cover a range."""
    await asked.append(("a", "1"), ("b", "2"), ("a", "3"))

    assert (await asked.get("count", params={"key": "a"})).json()["count"] == 2
    assert (await asked.get("count", params={"key": "a", "end_seq": 3})).json()["count"] == 1
    about = (await asked.get("count", params={"key": "a", "approximate": "true"})).json()
    assert about["least"] <= about["count"] <= about["most"]


async def test_a_follower_past_its_end_gets_an_empty_page(asked: AppUnderTest) -> None:
    """A client that polls again after the last sequence gets no error; a plain scan gets one."""
    past = {"prefix": "", "start_seq": 5, "end_seq": 3}

    assert await values(asked, **past, follow="true") == []
    assert (await asked.get("scan", params=past)).status_code == 400


async def test_whoever_follows_waits_for_what_comes(asked: AppUnderTest) -> None:
    """A follower gets existing records at once, else new ones, else an empty page in time."""
    await asked.append(("a", "1"))
    assert await values(asked, key="a", follow="true") == ["1"]
    nothing = await asked.get(
        "scan", params={"key": "a", "start_seq": 2, "follow": "true", "timeout_ms": 20}
    )
    assert (nothing.json()["values"], nothing.json()["nextSequence"]) == ([], 2)
    waiting = [
        asyncio.ensure_future(values(asked, start_seq=2, follow="true", **choice))
        for choice in ({"key": "a"}, {"prefix": "a"}, {"first": "a", "last": "b"})
    ]
    await until(lambda: asked.followers == 3)
    await asked.append(("b", "other"))
    await others_run()
    assert not any(one.done() for one in waiting)
    await asked.append(("a", "2"))
    assert await asyncio.gather(*waiting) == [["2"], ["2"], ["2"]]
    assert asked.followers == 0
    moved = await asked.get("scan", params={"key": "b", "start_seq": 3, "follow": "true",
                                            "timeout_ms": 10})  # fmt: skip
    assert moved.json()["nextSequence"] == 4
    ended = await asked.get("scan", params={"key": "a", "start_seq": 2, "end_seq": 3,
                                            "follow": "true"})  # fmt: skip
    assert (ended.json()["values"], ended.json()["nextSequence"]) == ([], 3)


async def test_every_log_is_served_by_its_name(asked: AppUnderTest) -> None:
    """Each log is served by its name; a missing one is a 404 until it is created."""
    path = "/api/v1/keyed"
    assert (await asked.web.get(f"{path}/other/count?key=a")).status_code == 404
    await asked.lake.keyed.create("other")
    body = {"records": [{"key": "a", "value": "1"}]}
    assert (await asked.web.post(f"{path}/other/append", json=body)).status_code == 200

    assert (await asked.web.get(f"{path}/other/count?key=a")).json()["count"] == 1
    assert (await asked.get("count?key=a")).json()["count"] == 0
    assert (await asked.web.get(path)).json()["logs"] == [NAME, "other"]
    assert (await asked.web.get(f"{path}/other")).json()["nextSequence"] == 2
    assert (await asked.get("describe")).json()["name"] == NAME
    assert (await asked.web.get(f"{path}/a%2Fb/count?key=a")).status_code == 404
    assert (await asked.web.get(f"{path}/../x/count?key=a")).status_code == 404
    assert (await asked.web.get(f"{path}/%00/count?key=a")).status_code == 400


async def test_opendatas_paths_need_a_log(asking: Asking) -> None:
    """A server without a default log does not serve OpenData's paths."""
    async with asking(log=None) as asked:
        assert (await asked.get("count?key=a")).status_code == 404


async def test_a_read_of_retired_records_gets_410_with_the_oldest_sequence(
    asked: AppUnderTest,
) -> None:
    """A read of retired records gets 410, with the oldest sequence in the message."""
    await asked.append(("a", "1"))
    await asked.log.seal()
    await asked.append(("a", "2"))
    await asked.log.retire(Retention(segments=1))

    for path in ("scan", "count"):
        gone = await asked.get(path, params={"key": "a", "start_seq": 1})
        assert (gone.status_code, gone.json()["error"]) == (410, "SequenceRetired")
        assert "oldest=2" in gone.json()["message"]
    assert await values(asked, key="a") == ["2"]


async def test_a_full_log_is_a_429_that_says_when(asked: AppUnderTest) -> None:
    """A full log gets 429 and nothing is appended; with a timeout, the server waits for room."""
    await asked.append(("a", "1"))
    asked.log.weather.is_full = True
    body = {"records": [{"key": "a", "value": "2"}]}
    for more in ({}, {"timeoutMs": 10}):
        full = await asked.post("append", {**body, **more})
        assert (full.status_code, full.headers["retry-after"]) == (429, "1")
        assert full.json().items() >= {"error": "LogFull", "outcome": "not_applied"}.items()
    waiting = asyncio.ensure_future(asked.post("append", {**body, "timeoutMs": 5_000}))
    await others_run()
    assert not waiting.done()
    asked.log.weather.is_full = False
    assert (await waiting).json()["startSequence"] == 2


async def test_what_is_not_durable_yet_was_asked_for(asked: AppUnderTest) -> None:
    """An append is durable unless the request says otherwise, in JSON and in protobuf."""
    body = {"records": [{"key": "a", "value": "1"}]}
    await asked.post("append", {**body, "awaitDurable": False})
    assert await asked.log.durable_sequence() == 1
    # It is not shown either: a cursor that passed it could miss another record there.
    shown = (await asked.get("scan?key=a&follow=true&timeout_ms=10")).json()
    assert (shown["values"], shown["nextSequence"]) == ([], 1)
    assert await values(asked, key="a") == []
    await asked.post("append", body)
    assert await asked.log.durable_sequence() == 3
    record = messages.RecordIn(key="a", value="")
    for durable, upper in ((False, 3), (True, 5)):
        message = messages.AppendRequest(records=[record], await_durable=durable)
        content = encode_message(message)
        await asked.web.post("/api/v1/log/append", content=content, headers=PROTOBUF)
        assert await asked.log.durable_sequence() == upper


@pytest.mark.parametrize(
    ("error", "status", "outcome"),
    [
        (OutcomeUnknown("nobody knows"), 500, "unknown"),
        (LocationError("the store failed"), 503, "not_applied"),
        (RuntimeError("a mistake"), 500, "not_applied"),
    ],
)
@pytest.mark.parametrize("lands", [False, True])
async def test_failed_appends_say_what_is_known(
    asked: AppUnderTest, error: Exception, status: int, outcome: str, lands: bool
) -> None:
    """A failed append never reports success, and reports UNKNOWN if it may have landed."""
    await asked.append(("a", "1"))
    asked.log.weather.errors.append((error, lands))
    failed = await asked.post("append", {"records": [{"key": "a", "value": "2"}]})

    if isinstance(error, TidelogError):
        assert (failed.status_code, failed.json()["outcome"]) == (status, outcome)
        assert ("retry-after" in failed.headers) == (status == 503)
    else:
        assert (failed.status_code, failed.json()["outcome"]) == (500, "unknown")
    assert failed.json()["status"] == "error"


async def test_an_append_takes_the_log_back(asked: AppUnderTest) -> None:
    """Another process wrote: the server's next append takes the log back, without loss."""
    await asked.append(("a", "1"))
    other = await asked.lake.keyed.open(NAME, visibility="durable")
    await other.append([(b"a", b"2")])

    assert await asked.append(("a", "3")) == 3
    assert await values(asked, key="a") == ["1", "2", "3"]
    assert (await asked.web.get("/-/ready")).status_code == 200
    with pytest.raises(Fenced):
        await other.append([(b"a", b"4")])


async def test_appends_at_once_after_a_takeover_are_stored_once(asked: AppUnderTest) -> None:
    """All parallel appends meet the fenced handle; one new handle replaces it."""
    await asked.append(("a", "0"))
    before = asked.log
    await (await asked.lake.keyed.open(NAME, visibility="durable")).append([(b"a", b"1")])

    await asyncio.gather(*(asked.append(("a", str(number))) for number in range(2, 12)))
    assert sorted(map(int, await values(asked, key="a"))) == [*range(12)]
    assert before.is_closed


async def test_an_append_of_unknown_outcome_is_not_sent_again(asked: AppUnderTest) -> None:
    """The records may be in the log, so the server does not retry; the client gets UNKNOWN."""
    await asked.append(("a", "1"))
    asked.log.weather.errors.append((Fenced("taken", outcome=Outcome.UNKNOWN), True))
    body = {"records": [{"key": "a", "value": "2"}]}
    answers = [await asked.post("append", body) for _ in range(2)]

    assert [one.status_code for one in answers] == [500, 200]
    assert answers[0].json()["outcome"] == "unknown"
    assert await values(asked, key="a") == ["1", "2", "2"]


async def test_a_log_that_others_take_at_every_try_is_a_409(
    asked: AppUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a number of takeovers the append gets 409; nothing was appended."""
    await asked.append(("a", "1"))

    async def fenced(*_: Any, **__: Any) -> int:
        raise Fenced("taken")

    monkeypatch.setattr(MemoryKeyed, "try_append", fenced)
    refused = await asked.post("append", {"records": [{"key": "a", "value": "2"}]})
    monkeypatch.undo()

    assert (refused.status_code, refused.json()["error"]) == (409, "Fenced")
    assert refused.json()["outcome"] == "not_applied"
    assert await asked.append(("a", "3")) == 2


async def test_a_server_that_only_reads_takes_nothing_over(asking: Asking) -> None:
    """An append to a read-only server gets 403, and the writer stays the writer."""
    async with asking(is_read_only=True) as asked:
        writer = await asked.lake.keyed.open(NAME, visibility="durable")
        assert isinstance(writer, MemoryKeyed)
        await writer.append([(b"a", b"1")])
        refused = await asked.post("append", {"records": [{"key": "a", "value": "2"}]})

        assert refused.status_code == 403
        assert await values(asked, key="a") == ["1"]
        assert not writer.is_fenced


async def test_a_request_that_is_cut_off_is_answered(asked: AppUnderTest) -> None:
    """If the server cancels a request, the client still gets an answer in the form of errors."""
    await asked.append(("a", "1"))
    asked.log.weather.is_full = True
    record = {"key": "a", "value": "2"}
    append = {"records": [record], "timeoutMs": 60_000}
    requests = [
        asyncio.ensure_future(asked.post("append", append)),
        asyncio.ensure_future(asked.get("scan?key=a&start_seq=2&follow=true")),
    ]
    await until(lambda: asked.followers == 1)
    for one in requests:
        one.cancel()
    answers = await asyncio.gather(*requests)

    assert [one.status_code for one in answers] == [500, 503]
    assert [one.json()["outcome"] for one in answers] == ["unknown", "not_applied"]


async def test_a_failure_outside_the_handlers_has_the_form_of_errors(
    asked: AppUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure in encoding gets the API's own error, and is counted."""
    failures = [RuntimeError("a mistake")]

    def failing(answer: Any, media_type: str) -> Plain:
        if failures:
            raise failures.pop()
        return encoded(answer, media_type)

    monkeypatch.setattr("tidelog.server.app.encoded", failing)
    failed = await asked.get("count?key=a")

    assert failed.status_code == 500
    assert failed.json().items() >= {"status": "error", "outcome": "not_applied"}.items()
    counted = {"method": "GET", "route": "/api/v1/log/count", "status": "500"}
    registry = asked.state.metrics.registry
    assert registry.get_sample_value("http_requests_total", counted) == 1
