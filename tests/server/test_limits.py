"""The server's limits and access rules: each refusal has a status of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from server.conftest import AppUnderTest, Asking, until
from tidelog.core.clock import SystemClock
from tidelog.errors import UsageError
from tidelog.http.api.failures import TooMany, Unauthorized
from tidelog.http.api.messages import AppendRequest
from tidelog.server.app import ServerState
from tidelog.server.limits import Allowance, ServerLimits
from tidelog.server.request import decode_json
from tidelog.server.tokens import Tokens, load_tokens, parse_tokens

T = TypeVar("T")
WRITER, READER = "writer-0123456789abcdef", "reader-0123456789abcdef"
BODY = {"records": [{"key": "a", "value": "1"}]}


def limited(**limits: Any) -> ServerState:
    return ServerState(limits=replace(ServerLimits(), **limits))


class OffloadClock(SystemClock):
    """A clock that counts the work that it gives to threads."""

    offloaded = 0

    async def offload(self, work: Callable[[], T]) -> T:
        self.offloaded += 1
        return await super().offload(work)


async def statuses(asked: AppUnderTest, *answers: Any) -> list[int]:
    return [(await answer).status_code for answer in answers]


async def test_bodies_have_a_size_and_a_number_of_records(asking: Asking) -> None:
    """A large body gets 413 as early as possible; too many records get 400."""
    async with asking(limited(body_bytes_max=1_000, records_max=3)) as asked:
        url = "/api/v1/log/append"

        async def pieces() -> Any:
            for _ in range(50):
                yield b" " * 100

        assert (await asked.web.post(url, content=b" " * 1_001)).status_code == 413
        chunked = await asked.web.post(url, content=pieces())
        assert (chunked.status_code, chunked.headers["connection"]) == (413, "close")
        many = {"records": BODY["records"] * 4}
        refused = await asked.post("append", many)
        assert (refused.status_code, "more than 3 items" in refused.text) == (400, True)
        braces = {"records": [{"key": "{" * 50, "value": '\\"{{'}]}
        assert (await asked.post("append", braces)).status_code == 200
        assert asked.state.incoming.taken == 0


@pytest.mark.parametrize(
    "value",
    [
        '"' + "z" * 4_000_000 + '"',
        '"' + '\\"{{' * 1_000_000 + '"',
        '{"base64": "' + "enp6" * 1_000_000 + '"}',
    ],
    ids=["text", "braces", "base64"],
)
def test_a_body_costs_about_the_processor_time_of_its_decoder(value: str) -> None:
    """Decoding holds the GIL, so no Python code may look at each byte."""
    body = b'{"records": [{"key": "a", "value": ' + value.encode() + b"}]}"

    def cost(decode: Callable[[], object]) -> float:
        began = time.thread_time()
        decode()
        return time.thread_time() - began

    ours = min(cost(lambda: decode_json(body, AppendRequest, items_max=1)) for _ in range(3))
    assert ours < 8 * min(cost(lambda: msgspec.json.decode(body)) for _ in range(3))


async def test_a_large_body_is_decoded_off_the_loop(asking: Asking) -> None:
    """A thread decodes a large body, so that the loop can serve other requests."""
    clock = OffloadClock()
    async with asking(ServerState(clock=clock)) as asked:
        await asked.append(("a", "x" * 65_536))
        assert clock.offloaded == 1
        await asked.append(("a", "x"))
        assert clock.offloaded == 1


async def test_answers_have_rows_and_bytes(asking: Asking) -> None:
    """An answer that is full continues in the next request; a large record is alone in one."""
    async with asking(limited(scan_bytes_max=1_000, rows_max=5)) as asked:
        for size in (400, 400, 400, 3_000, 1):
            await asked.append(("a", "x" * size))
        start, seen = 0, []
        while True:
            page = (await asked.get("scan", params={"key": "a", "start_seq": start})).json()
            seen.append([len(v["value"]) for v in page["values"]])
            start = page["nextSequence"]
            if not page["more"]:
                break
        assert seen == [[400, 400], [400], [3_000], [1]]
        limit, back = 6, []
        while limit > 1:
            query = {"prefix": "", "newest_first": "true", "end_seq": limit}
            page = (await asked.get("scan", params=query)).json()
            back += [value["sequence"] for value in page["values"]]
            limit = min(back)
        assert back == [5, 4, 3, 2, 1]
        followed = (await asked.get("scan", params={"key": "a", "follow": "true"})).json()
        assert (len(followed["values"]), followed["more"], followed["nextSequence"]) == (2, True, 3)
        for wrong in ("6", "0", "ten", "-1", "9" * 30):
            refused = await asked.get("scan", params={"key": "a", "limit": wrong})
            assert refused.status_code == 400


async def test_waiting_has_an_end_and_a_number(asking: Asking) -> None:
    """A wait ends after the server's maximum; one follower too many gets 429."""
    async with asking(limited(followers_max=2, follow_us_max=1_000_000)) as asked:
        query = {"key": "a", "follow": "true", "start_seq": 1}
        long = {**query, "timeout_ms": 999_999_999}
        waiting = [asyncio.ensure_future(asked.get("scan", params=long)) for _ in range(2)]
        await until(lambda: asked.followers == 2)
        third = await asked.get("scan", params=query)
        assert (third.status_code, third.headers["retry-after"]) == (429, "1")
        assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200, 200]
    async with asking(limited(append_us_max=20_000)) as asked:
        await asked.append(("a", "1"))
        asked.log.weather.is_full = True
        full = await asked.post("append", {**BODY, "timeoutMs": 999_999_999})
        assert full.status_code == 429


async def test_reads_take_turns_and_waiting_takes_none(asking: Asking) -> None:
    """Reads are limited since they hold memory; waiting followers take no place."""
    async with asking(limited(reads_max=2)) as asked:
        await asked.append(("a", "1"))
        reading, most, go_on = 0, 0, asyncio.Event()
        count = asked.log.count

        async def slow(*given: Any) -> int:
            nonlocal reading, most
            reading += 1
            most = max(most, reading)
            await go_on.wait()
            reading -= 1
            return await count(*given)

        query = {"key": "a", "follow": "true", "start_seq": 2, "timeout_ms": 30_000}
        followers = [asyncio.ensure_future(asked.get("scan", params=query)) for _ in range(5)]
        await until(lambda: asked.followers == 5)
        setattr(asked.log, "count", slow)  # noqa: B010  A method of the model.
        counting = [asyncio.ensure_future(asked.get("count?key=a")) for _ in range(6)]
        await until(lambda: most == 2)
        await asked.append(("a", "2"))
        go_on.set()
        assert {one.json()["count"] for one in await asyncio.gather(*counting)} == {2}
        assert [len(one.json()["values"]) for one in await asyncio.gather(*followers)] == [1] * 5
        assert most == 2


async def test_tokens_are_asked_for(asking: Asking) -> None:
    """Everything but health and the description needs a token; a read token cannot append."""
    tokens = parse_tokens([f"{WRITER}", "# a comment", "", f"{READER} read"], source="x")
    async with asking(ServerState(tokens=tokens)) as asked:
        web = asked.web

        async def status(path: str, token: str | None, method: str = "GET") -> int:
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            body = BODY if method == "POST" else None
            answer = await web.request(method, path, headers=headers, json=body)
            assert ("www-authenticate" in answer.headers) == (answer.status_code == 401)
            assert WRITER not in answer.text
            return answer.status_code

        append, scan = "/api/v1/log/append", "/api/v1/log/scan?key=a"
        assert [await status(append, t, "POST") for t in (WRITER, READER, None, "x" * 20)] == [
            *(200, 403, 401, 401)
        ]
        assert [await status(scan, t) for t in (WRITER, READER, None, WRITER[:-1])] == [
            *(200, 200, 401, 401)
        ]
        assert [await status("/metrics", t) for t in (READER, None)] == [200, 401]
        for public in ("/-/healthy", "/-/ready", "/openapi.json"):
            assert await status(public, None) == 200
        basic = await web.get(scan, headers={"authorization": f"Basic {WRITER}"})
        assert basic.status_code == 401
        # An unauthorized body is not read.
        refused = await web.post(append, content=b"x" * 100_000)
        assert (refused.status_code, refused.headers["connection"]) == (401, "close")


async def test_a_page_of_the_web_does_not_append(asking: Asking) -> None:
    """A web page in a browser must not append to a local server without tokens."""
    headers = {"origin": "https://example.org", "content-type": "text/plain"}
    tokens = parse_tokens([WRITER], source="x")
    async with asking() as asked:
        for kind in ("application/json", "text/plain", ""):
            told = {**headers, "content-type": kind}
            refused = await asked.web.post("/api/v1/log/append", json=BODY, headers=told)
            assert refused.status_code == 403
        assert (await asked.get("count?key=a", headers=headers)).json()["count"] == 0
    async with asking(ServerState(tokens=tokens)) as asked:
        told = {"origin": "https://example.org", "authorization": f"Bearer {WRITER}"}
        assert (await asked.post("append", BODY, headers=told)).status_code == 200


@pytest.mark.parametrize(
    "lines",
    [[], ["# none"], ["short"], [f"{WRITER} write"], [f"{WRITER} read twice"], ["a b c d e f g"],
     ["ä" * 20]],
)  # fmt: skip
def test_a_token_file_that_is_none_is_refused(lines: list[str]) -> None:
    """The error names the line, and never the token."""
    with pytest.raises(UsageError) as found:
        parse_tokens(lines, source="tokens")
    assert WRITER not in str(found.value)


def test_token_files_are_read(tmp_path: Path) -> None:
    """A token file is read, or its fault is a UsageError."""
    path = tmp_path / "tokens"
    path.write_text(f"{WRITER}\n")
    load_tokens(path).check(f"bearer   {WRITER}", is_write=True)
    with pytest.raises(Unauthorized):
        load_tokens(path).check(f"Bearer {WRITER}x", is_write=False)
    Tokens().check(None, is_write=True)
    path.write_bytes(b"\xff\xfe")
    for wrong in (path, tmp_path / "nix", tmp_path):
        with pytest.raises(UsageError):
            load_tokens(wrong)


def test_an_allowance_is_shared() -> None:
    """A lone caller may take any amount; an amount given back can be taken again."""
    allowance = Allowance(10, "busy")
    allowance.take(100)
    with pytest.raises(TooMany):
        allowance.take(1)
    allowance.give(100)
    allowance.take(5)
    allowance.take(5)
    with pytest.raises(TooMany):
        allowance.take(1)


def test_limits_are_numbers() -> None:
    """A limit is a whole number from 1 on."""
    for wrong in (0, -1, True, "1"):
        with pytest.raises(UsageError):
            ServerLimits(rows_max=wrong)  # type: ignore[arg-type]


async def test_answers_that_are_on_their_way_have_a_limit(asking: Asking) -> None:
    """Answers under way have a memory limit: a larger read gets 429, an append succeeds."""
    async with asking(limited(held_bytes_max=1_000)) as asked:
        await asked.append(("a", "1"))
        asked.state.outgoing.take(990)
        refused = await asked.get("scan?key=a")
        assert (refused.status_code, refused.json()["error"]) == (429, "TooMany")
        assert refused.headers["retry-after"] == "1"
        # A completed append is always reported.
        await asked.append(("a", "2"))
        asked.state.outgoing.give(990)
        assert (await asked.get("count?key=a")).json()["count"] == 2
        assert asked.state.outgoing.taken == 0


async def test_what_is_held_for_all_has_a_limit(asking: Asking) -> None:
    """Bodies under way have a common memory limit: the next one gets 429."""
    async with asking(limited(held_bytes_max=1_000)) as asked:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slow() -> Any:
            yield b'{"records": [{"key": "a", "value": "'
            begun.set()
            await go_on.wait()
            yield b'x"}]}'

        headers = {"content-length": "999"}
        first = asyncio.ensure_future(
            asked.web.post("/api/v1/log/append", content=slow(), headers=headers)
        )
        await asyncio.wait({asyncio.ensure_future(begun.wait())}, timeout=5)
        second = await asked.web.post("/api/v1/log/append", json=BODY)
        go_on.set()
        await first
        assert (second.status_code, second.json()["error"]) == (429, "TooMany")
        assert (await asked.post("append", BODY)).status_code == 200
        assert asked.state.incoming.taken == 0
