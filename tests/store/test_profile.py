"""Credentials from AWS's own files, against a server that checks keys."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kit.s3_servers import ACCESS_KEY, SECRET_KEY, SeaweedServer
from tidelog.core.clock import SystemClock
from tidelog.errors import StoreRefused, UsageError
from tidelog.store.cloud.profile import chosen_profile
from tidelog.store.port import Store
from tidelog.store.urls import open_store

CLOCK = SystemClock()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of AWS's files, without any other credentials."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return tmp_path


def write_profile(home: Path, name: str, *, secret: str = SECRET_KEY) -> None:
    with (home / "credentials").open("a") as file:
        file.write(f"[{name}]\naws_access_key_id={ACCESS_KEY}\naws_secret_access_key={secret}\n")


def place(server: SeaweedServer, more: str = "") -> Store:
    url = f"s3://tide/profile?endpoint={server.endpoint}&region=us-east-1{more}"
    return open_store(url, clock=CLOCK)


async def check_works(store: Store) -> None:
    key = CLOCK.unique()
    await store.put(key, b"data", if_absent=True)
    assert (await store.get(key)).data == b"data"


async def test_a_profile_is_named_by_the_url(home: Path, seaweed: SeaweedServer) -> None:
    """A URL can name a profile, which is not a secret. The stored URL shows it."""
    write_profile(home, "lake")
    write_profile(home, "default", secret="not-the-one")
    store = place(seaweed, "&profile=lake")
    await check_works(store)
    assert "profile=lake" in store.url


async def test_a_profile_is_named_by_the_environment(
    home: Path, seaweed: SeaweedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment can name a profile, as for other AWS tools."""
    write_profile(home, "lake")
    monkeypatch.setenv("AWS_PROFILE", "lake")
    await check_works(place(seaweed))


async def test_the_default_profile_counts_where_nothing_is_said(
    home: Path, seaweed: SeaweedServer
) -> None:
    """The default profile is used if nothing else is named."""
    write_profile(home, "default")
    await check_works(place(seaweed))


async def test_a_profile_may_name_a_command_for_credentials(
    home: Path, seaweed: SeaweedServer
) -> None:
    """A profile can name a command that prints credentials, which only boto3 supports."""
    told = f'{{"Version":1,"AccessKeyId":"{ACCESS_KEY}","SecretAccessKey":"{SECRET_KEY}"}}'
    (home / "said.json").write_text(told)
    command = f"{sys.executable} -c \"print(open('{home / 'said.json'}').read())\""
    (home / "config").write_text(f"[profile asked]\ncredential_process = {command}\n")
    await check_works(place(seaweed, "&profile=asked"))


@pytest.mark.parametrize(
    ("command", "word"), [("/nowhere/at-all", "at-all"), ("false", "custom-process")]
)
def test_a_command_that_fails_is_named(home: Path, command: str, word: str) -> None:
    """A failed command is named in the error."""
    (home / "config").write_text(f"[profile gone]\ncredential_process = {command}\n")
    with pytest.raises(UsageError, match="profile 'gone' cannot be used") as refused:
        open_store("s3://tide/x?profile=gone", clock=CLOCK)
    assert word in str(refused.value)


async def test_who_was_logged_out_meanwhile_is_told_so(home: Path, seaweed: SeaweedServer) -> None:
    """A profile that stops working raises StoreRefused at the next request."""
    (home / "config").write_text(
        "[profile far]\nrole_arn = arn:aws:iam::123456789012:role/x\nsource_profile = lake\n"
        "endpoint_url = http://127.0.0.1:1\nregion = us-east-1\n"
    )
    write_profile(home, "lake")
    with pytest.raises(StoreRefused, match="profile has no credentials") as refused:
        await place(seaweed, "&profile=far").get("x")
    assert "127.0.0.1:1" in str(refused.value)


@pytest.mark.usefixtures("home")
def test_a_profile_that_is_not_there_is_told_before_anything_is_sent() -> None:
    """A missing profile raises UsageError before any request."""
    with pytest.raises(UsageError, match="profile 'nobody' cannot be used"):
        open_store("s3://tide/x?profile=nobody", clock=CLOCK)


def test_without_boto3_it_says_what_to_install(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without boto3, a profile raises UsageError with the package to install."""
    write_profile(home, "lake")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(UsageError, match=r"pip install 'tidelog\[aws\]'"):
        open_store("s3://tide/x?profile=lake", clock=CLOCK)


@pytest.mark.parametrize(
    ("told", "environ", "chosen"),
    [
        ({}, {}, None),
        ({}, {"AWS_PROFILE": "a"}, "a"),
        ({}, {"AWS_PROFILE": "a", "AWS_ACCESS_KEY_ID": "k"}, None),
        ({"profile": "b"}, {"AWS_PROFILE": "a", "AWS_ACCESS_KEY_ID": "k"}, "b"),
        ({"access_key_id": "k", "secret_access_key": "s"}, {"AWS_PROFILE": "a"}, None),
    ],
)
def test_who_prevails(told: dict[str, str], environ: dict[str, str], chosen: str | None) -> None:
    """URL profile, then environment keys, then the environment's profile, like AWS's tools."""
    assert chosen_profile(told, environ) == chosen


def test_a_profile_and_keys_contradict_each_other() -> None:
    """A profile together with keys raises UsageError."""
    with pytest.raises(UsageError, match="remove one of them"):
        open_store("s3://b/x?profile=a&access_key_id=k&secret_access_key=s", clock=CLOCK)


async def test_web_identity_is_asked_of_aws(
    home: Path, monkeypatch: pytest.MonkeyPatch, seaweed: SeaweedServer
) -> None:
    """A pod's token is exchanged for keys at AWS's token service."""
    from kit.lying import LyingServer

    (home / "token").write_text("a-pods-token")
    seen: list[str] = []

    def answer(method: str, path: str) -> tuple[int, bytes]:
        seen.append(f"{method} {path}")
        keys = f"<AccessKeyId>{ACCESS_KEY}</AccessKeyId>"
        keys += f"<SecretAccessKey>{SECRET_KEY}</SecretAccessKey><SessionToken/>"
        whole = f"<Credentials>{keys}<Expiration>2999-01-01T00:00:00Z</Expiration></Credentials>"
        result = f"<AssumeRoleWithWebIdentityResult>{whole}</AssumeRoleWithWebIdentityResult>"
        text = f"<AssumeRoleWithWebIdentityResponse>{result}</AssumeRoleWithWebIdentityResponse>"
        return 200, text.encode()

    with LyingServer() as service:
        service.meddle = answer
        _, _, endpoint = service.url().partition("endpoint=")
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", endpoint.partition("&")[0])
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(home / "token"))
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/lake")
        await check_works(place(seaweed))
    assert seen == ["POST /"]
