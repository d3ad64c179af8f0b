"""The cloud store under faults: credentials, buckets, networks, busy and lying servers."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit.lying import LyingServer
from kit.s3_servers import ACCESS_KEY, KEYS, SECRET_KEY, MotoServer, SeaweedServer
from kit.server_process import free_ports
from kit.sources import ingested, make_source, numbers
from tidelog.collection.spec_types import SourceSpec
from tidelog.core.clock import SystemClock
from tidelog.errors import (
    LocationError,
    ObjectNotFound,
    Outcome,
    StoreRefused,
    TidelogError,
)
from tidelog.store.port import Store
from tidelog.store.urls import open_store

CLOCK = SystemClock()


async def listed(store: Store) -> str:
    return " ".join([entry.key async for entry in store.list("")])


def verbs(store: Store) -> dict[str, Callable[[], Awaitable[object]]]:
    return {
        "get": lambda: store.get("x"),
        "refresh": lambda: store.refresh("x", '"e"'),
        "put": lambda: store.put("x", b"1"),
        "create": lambda: store.put("x", b"1", if_absent=True),
        "delete": lambda: store.delete(["x"]),
        "list": lambda: listed(store),
    }


def failures(store: Store, *, leave_out: str = "") -> dict[str, BaseException]:
    """Return the error of each verb; the verbs run concurrently, because some are slow."""

    async def fail(verb: Callable[[], Awaitable[object]]) -> BaseException:
        with pytest.raises(TidelogError) as failed:
            await verb()
        return failed.value

    async def run() -> dict[str, BaseException]:
        each = {name: verb for name, verb in verbs(store).items() if name != leave_out}
        return dict(zip(each, await asyncio.gather(*map(fail, each.values())), strict=True))

    return asyncio.run(run())


def failure_of(error: BaseException) -> LocationError:
    assert isinstance(error, LocationError)
    return error


def test_wrong_credentials_say_what_to_check(seaweed: SeaweedServer) -> None:
    """Wrong credentials raise StoreRefused with the name of the parameter and the variable."""
    cases = {
        "AWS_ACCESS_KEY_ID": seaweed.url("x", access_key_id="nobody"),
        "AWS_SECRET_ACCESS_KEY": seaweed.url("x", secret_access_key="wrong"),
    }
    for words, url in cases.items():
        for verb, error in failures(open_store(url, clock=CLOCK)).items():
            assert isinstance(error, StoreRefused), verb
            assert words in str(error), verb


async def test_no_credentials_say_where_to_put_them(
    seaweed: SeaweedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing credentials raise StoreRefused with a hint, outside of a cloud."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    with LyingServer() as cloud:
        cloud.meddle = lambda method, path: (404, b"")
        _, _, metadata = cloud.url().partition("endpoint=")
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", metadata.partition("&")[0])
        store = open_store(f"s3://tide/x?endpoint={seaweed.endpoint}", clock=CLOCK)
        with pytest.raises(StoreRefused, match="no credentials were found"):
            await store.get("x")


def test_no_such_bucket_is_named(moto: MotoServer) -> None:
    """A mistyped bucket must not look like missing data or an outage."""
    store = open_store(moto.url("x", bucket="nosuch"), clock=CLOCK)
    for verb, error in failures(store, leave_out="delete").items():  # moto allows it.
        assert type(error) is LocationError, verb
        assert "no bucket named 'nosuch'" in str(error), verb
        assert error.outcome is Outcome.NOT_APPLIED


@pytest.mark.parametrize("odd", ["b//c.jsonl", "e/../f.jsonl", "e/./f.jsonl", "g\x07.jsonl"])
async def test_a_key_that_no_request_can_name_is_listed_with_the_others(
    moto: MotoServer, odd: str
) -> None:
    """A listing keeps a key that no request can name; obstore drops its whole page."""
    boto3 = pytest.importorskip("boto3")
    place = CLOCK.unique()
    store = open_store(moto.url(place), clock=CLOCK)
    await store.put("a.jsonl", b"1")
    keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
    raw = boto3.client("s3", endpoint_url=moto.endpoint, region_name="us-east-1", **keys)
    raw.put_object(Bucket="tide", Key=f"{place}/{odd}", Body=b"1")

    await store.put("z z+.jsonl", b"1")

    assert [entry.key async for entry in store.list("")] == ["a.jsonl", odd, "z z+.jsonl"]
    entries = {entry.key: entry.e_tag async for entry in store.list("")}
    assert entries["a.jsonl"] == (await store.get("a.jsonl")).e_tag


async def test_a_source_takes_all_objects_but_those_that_no_request_can_name(
    moto: MotoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source ingests all objects that a request can name and reports the rest as waiting."""
    boto3 = pytest.importorskip("boto3")
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    place = CLOCK.unique()
    keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
    raw = boto3.client("s3", endpoint_url=moto.endpoint, region_name="us-east-1", **keys)
    odd = ("b//c.jsonl", "e/../f.jsonl", "h/./i.jsonl", "g\x07.jsonl")
    for number, name in enumerate(("a.jsonl", *odd, "z.jsonl")):
        raw.put_object(Bucket="tide", Key=f"{place}/{name}", Body=b'{"n": %d}\n' % number)

    spec = SourceSpec(name="c", files=moto.source_url(place), schema="n bigint")
    await make_source(tmp_path / "lake", spec)
    found = await ingested(tmp_path)
    assert await numbers(tmp_path) == [0, 5]
    assert {name.removeprefix(f"{place}/") for name in found.waiting} == {
        name.replace("\x07", "\\x07") for name in odd
    }


async def test_a_large_object_is_sent_in_one_request(moto: MotoServer) -> None:
    """In parts, the server would check the condition at the end and report a failure."""
    store = open_store(moto.url("whole"), clock=CLOCK)
    data = bytes(range(256)) * 4_096 * 63
    assert len(data) > 60 * 2**20
    for is_new in (True, False):
        e_tag = await store.put("large", data, if_absent=is_new)
        assert "-" not in e_tag
    assert (await store.get("large", start=len(data) - 3)).data == data[-3:]


@pytest.mark.parametrize("how", ["refused", "silent"])
def test_an_unreachable_endpoint_is_retried_for_seconds(how: str) -> None:
    """A request to an unreachable endpoint fails after four seconds: servers restart."""
    with ExitStack() as stack:
        port = free_ports(1)[0] if how == "refused" else _silent_port(stack)
        store = open_store(
            f"s3://b/p?endpoint=http://127.0.0.1:{port}&access_key_id=a&secret_access_key=b",
            clock=CLOCK,
        )
        begun = time.monotonic()
        failed = failures(store)
    for verb, error in failed.items():
        assert "cannot connect" in str(error), verb
        # A conditional put is sent once, so the client knows that it was never delivered.
        in_doubt = verb in ("put", "delete")
        expected = Outcome.UNKNOWN if in_doubt else Outcome.NOT_APPLIED
        assert failure_of(error).outcome is expected, verb
    assert time.monotonic() - begun > 4


def _silent_port(stack: ExitStack) -> int:
    """Return a port that neither accepts nor refuses connections, because its queue is full."""
    listener = stack.enter_context(socket.socket())
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    for _ in range(3):
        waiting = stack.enter_context(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex(listener.getsockname())
    return int(listener.getsockname()[1])


async def test_a_range_that_a_server_ignores_is_no_data() -> None:
    """A whole object in answer to a range raises an error. `rclone serve s3` ignores ranges."""
    with LyingServer() as server:
        server.objects["x"] = b"0123456789"
        with pytest.raises(TidelogError):
            await open_store(server.url(), clock=CLOCK).get("x", start=2, limit=4)


def test_urls_show_no_secrets(moto: MotoServer) -> None:
    """URLs and errors show no secret, because they reach logs, tickets and screenshots."""
    url = moto.url("some/where", session_token="a-token")
    store = open_store(url, clock=CLOCK)
    assert store.url == f"s3://tide/some/where?endpoint={moto.endpoint}&region=us-east-1"
    texts = [store.url, repr(store)]
    broken = open_store(moto.url(bucket="nosuch"), clock=CLOCK)
    for error in failures(broken, leave_out="delete").values():
        texts += [str(error), repr(error.__cause__)]
    for text in texts:
        for secret in (ACCESS_KEY, SECRET_KEY, "a-token"):
            assert secret not in text


async def test_the_environment_says_what_the_url_does_not(
    moto: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment supplies the settings that the URL leaves out."""
    nowhere = f"http://127.0.0.1:{free_ports(1)[0]}"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for variable in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(variable, moto.endpoint)
        store = open_store("s3://tide/environment", clock=CLOCK)
        with pytest.raises(ObjectNotFound):
            await store.get("x")
        monkeypatch.setenv(variable, nowhere)
        store = open_store(f"s3://tide/environment?endpoint={moto.endpoint}", clock=CLOCK)
        with pytest.raises(ObjectNotFound):
            await store.get("x")
        monkeypatch.delenv(variable)


def test_a_process_that_was_forked_from_one_with_a_cloud_store_is_told() -> None:
    """A forked child of a process with a cloud store gets UsageError instead of a hang."""
    script = (
        "import os, sys\n"
        "from tidelog.core.clock import SystemClock\n"
        "from tidelog.errors import UsageError\n"
        "from tidelog.store.urls import open_store\n"
        "open_store(sys.argv[1], clock=SystemClock())\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        open_store(sys.argv[1], clock=SystemClock())\n"
        "    except UsageError as error:\n"
        "        os._exit(7 if 'spawn' in str(error) else 2)\n"
        "    os._exit(1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "open_store(sys.argv[1], clock=SystemClock())\n"
    )
    place = "s3://tide/lake?region=us-east-1"
    command = [sys.executable, "-W", "ignore", "-c", script, place]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr
