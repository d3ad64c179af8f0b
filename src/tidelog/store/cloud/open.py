"""Opening a cloud store from its URL; the environment supplies missing settings.

``s3://bucket/prefix?endpoint=http://127.0.0.1:8333&region=us-east-1``, ``gs://bucket/prefix``,
``az://container/prefix``.
"""

from __future__ import annotations

import atexit
import os
import re
import threading
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from tidelog.core.clock import Clock
from tidelog.errors import UsageError
from tidelog.store.cloud.profile import SECRETS, profile_credentials
from tidelog.store.cloud.s3_listing import S3Listing
from tidelog.store.cloud.store import Bucket, CloudStore
from tidelog.store.keys import check_key

if TYPE_CHECKING:
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import ClientConfig, ObjectStore, RetryConfig, S3Config

# Parameters of a URL's query; gs:// and az:// use only the environment.
S3_PARAMETERS = (
    "endpoint",
    "region",
    "access_key_id",
    "secret_access_key",
    "session_token",
    "allow_http",
    "virtual_hosted",
    "profile",
)
_ENDPOINT_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURITE_BLOB_STORAGE_URL"),
}

# These settings outlast a restart of 3 s, and give up after 6 to 8 s.
_CONNECT_S = 2.5
_FAREWELL_S = 0.02
_REQUEST_S = 60
_RETRY: RetryConfig = {
    "max_retries": 200,  # The time is the limit. Waits are random, and many are short.
    "retry_timeout": timedelta(seconds=6.5),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=1),
        "base": 2,
    },
}
_ONCE: RetryConfig = {"max_retries": 0}
# Hosts whose listings are known to be ordered as plain strings.
_ORDERED_HOSTS = re.compile(r"\.(amazonaws\.com(\.cn)?|r2\.cloudflarestorage\.com)(:\d+)?/?$")


def open_cloud(url: str, *, clock: Clock) -> CloudStore:
    """Open the store at a URL. This sends no request.

    Raises:
        UsageError: a parameter is unknown or invalid, the URL names no bucket, or the process was
        forked from one that had opened a cloud store.
    """
    if _first_process() != os.getpid():
        raise UsageError(
            "this process was forked from one that uses a cloud store, and lacks its threads: "
            "start it with spawn, as multiprocessing.get_context('spawn') does"
        )
    place, _, query = url.partition("?")
    scheme, _, path = place.partition("://")
    name, _, prefix = path.partition("/")
    prefix = prefix.rstrip("/")
    if not name:
        raise UsageError(f"the URL has no bucket: write {scheme}://bucket/prefix", url=place)
    if prefix:
        check_key(prefix)
    parameters = _parameters(scheme, query)
    provider = profile_credentials(parameters, os.environ) if scheme == "s3" else None
    endpoint = parameters.get("endpoint") or _endpoint_of_environment(scheme)
    try:
        stores = [
            _open(
                scheme,
                name,
                prefix,
                parameters,
                endpoint,
                provider=provider,
                retry_config=retry_config,
            )
            for retry_config in (_RETRY, _ONCE)
        ]
    except (BaseError, ValueError) as error:
        if scheme == "az" and "Account must be specified" in str(error):
            raise UsageError(
                "az:// needs an account: set AZURE_STORAGE_ACCOUNT_NAME, and for its key "
                "AZURE_STORAGE_ACCOUNT_KEY",
                url=place,
            ) from error
        raise UsageError(
            "the store cannot be opened with these settings: "
            + str(error).partition("\n\nDebug source:")[0],
            url=place,
        ) from error
    bucket = Bucket(
        name=name,
        url=_shown(f"{scheme}://{name}/{prefix}".rstrip("/"), parameters),
        patient=stores[0],
        single=stores[1],
        strings=scheme == "gs"
        or (scheme == "s3" and (not endpoint or bool(_ORDERED_HOSTS.search(endpoint)))),
        by_version=scheme == "gs",
        listing=_s3_listing(name, prefix, parameters, provider, endpoint)
        if scheme == "s3"
        else None,
    )
    atexit.unregister(_await_threads)
    atexit.register(_await_threads)
    return CloudStore(bucket, clock=clock)


@cache
def _first_process() -> int:
    """Return the process that first opened a cloud store: this one, or the one it was forked from.

    A fork does not copy obstore's threads, so a request in the child would wait forever.
    """
    return os.getpid()


def _await_threads() -> None:
    """Let obstore's threads release their last answers.

    They need the GIL for that. A thread that requests it while the interpreter exits aborts the
    process, as one in twenty processes that exited right after a request did.
    """
    threading.Event().wait(_FAREWELL_S)


def _open(
    scheme: str,
    name: str,
    prefix: str,
    parameters: dict[str, str],
    endpoint: str,
    *,
    provider: Boto3CredentialProvider | None,
    retry_config: RetryConfig,
) -> ObjectStore:
    allow_http = _flag(parameters, "allow_http") or endpoint.startswith("http://")
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=_CONNECT_S),
        "timeout": timedelta(seconds=_REQUEST_S),
        # Stores close idle connections, and a put at that moment has an unknown outcome.
        "pool_idle_timeout": timedelta(seconds=15),
    }
    if allow_http:
        client["allow_http"] = True
    within = prefix or None
    if scheme == "gs":
        return GCSStore(name, prefix=within, client_options=client, retry_config=retry_config)
    if scheme == "az":
        return AzureStore(name, prefix=within, client_options=client, retry_config=retry_config)
    return S3Store(
        name,
        prefix=within,
        config=_s3_config(parameters),
        client_options=client,
        retry_config=retry_config,
        credential_provider=provider,
    )


def _s3_listing(
    name: str,
    prefix: str,
    parameters: dict[str, str],
    provider: Boto3CredentialProvider | None,
    endpoint: str,
) -> S3Listing:
    """Return the listing of a bucket by its own requests, with the bucket in the path."""
    config = _s3_config({**parameters, "virtual_hosted": "false"})
    client: ClientConfig = {"allow_http": True} if endpoint.startswith("http://") else {}

    def open_query(query: str) -> S3Store:
        return S3Store(
            f"{name}?{query}", config=config, client_options=client, credential_provider=provider
        )

    return S3Listing(f"{prefix}/" if prefix else "", open_query)


def _s3_config(parameters: dict[str, str]) -> S3Config:
    config: S3Config = {}
    if "endpoint" in parameters:
        # Set both, or AWS_ENDPOINT_URL_S3 in the environment would win over the URL.
        config["endpoint"] = parameters["endpoint"]
        config["aws_endpoint_url_s3"] = parameters["endpoint"]
    if "region" in parameters:
        config["region"] = parameters["region"]
    if "access_key_id" in parameters:
        config["access_key_id"] = parameters["access_key_id"]
    if "secret_access_key" in parameters:
        config["secret_access_key"] = parameters["secret_access_key"]
    if "session_token" in parameters:
        config["session_token"] = parameters["session_token"]
    if _flag(parameters, "virtual_hosted"):
        config["virtual_hosted_style_request"] = True
    return config


def _parameters(scheme: str, query: str) -> dict[str, str]:
    known = S3_PARAMETERS if scheme == "s3" else ()
    parameters = dict(parse_qsl(query.replace("+", "%2B"), keep_blank_values=True))
    for name in parameters:
        if name not in known:
            allowed = ", ".join(known) or "none; credentials come from the environment"
            raise UsageError(
                f"{name!r} is not a parameter of {scheme}:// URLs; known parameters: {allowed}"
            )
    if "endpoint" in parameters and not re.match(r"https?://[^/@]+/?", parameters["endpoint"]):
        raise UsageError("an endpoint must be http://host:port or https://host, without a user")
    return parameters


def _flag(parameters: dict[str, str], name: str) -> bool:
    value = parameters.get(name, "false").lower()
    if value not in ("true", "false", "1", "0"):
        raise UsageError(f"{name} must be true or false, not {value!r}")
    return value in ("true", "1")


def _endpoint_of_environment(scheme: str) -> str:
    names = _ENDPOINT_VARIABLES[scheme]
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _shown(place: str, parameters: dict[str, str]) -> str:
    shown = [
        f"{name}={quote(parameters[name], safe=':/[]')}"
        for name in parameters
        if name not in SECRETS
    ]
    return place + ("?" + "&".join(shown) if shown else "")
