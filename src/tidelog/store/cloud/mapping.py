"""The mapping of a cloud store's failures: obstore's exceptions become tidelog's, only here.

obstore has classes for some failures and only text for others, and the text ends with a debug dump.
This module searches the text for the HTTP status, the code of S3's error body, and a failed
connection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from obstore import exceptions as foreign

from tidelog.errors import (
    LocationError,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
    Outcome,
    StoreRefused,
    TidelogError,
    UsageError,
)

# obstore raises these; some of its errors are Python's own.
FOREIGN = (foreign.BaseError, OSError, ValueError, NotImplementedError)

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_NO_CONNECTION = re.compile(r"legacy::Error\(\s*Connect,")
# Without credentials, obstore asks the metadata service of the machine's cloud. Outside that cloud
# no service answers.
_METADATA = re.compile(r"/latest/(api/token|meta-data)|/computeMetadata/|/metadata/identity")
# The key in a listing that obstore cannot parse.
_INVALID_PATH = re.compile(r'object with invalid path: .*?[Pp]ath "((?:[^"\\\\]|\\\\.)*)"')
# An error of boto3, which `tidelog.store.cloud.profile` uses for credentials.
_PROVIDER = re.compile(r"External AWS credential provider: (?:\w+: )?(.*)", re.DOTALL)
_SYSTEM_MESSAGE = re.compile(r'message: "([^"]+)"')
_PAST_THE_END = re.compile(r"Wanted range starting at \d+, but object was only \d+ bytes long")
_REASON_CHARACTERS = 300

_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "InvalidBucketName")
_CONFLICT = ("ConditionalRequestConflict", "OperationAborted")
_REFUSALS = {
    "InvalidAccessKeyId": "the store does not know the access key: "
    "check access_key_id in the URL, or AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret does not match the access key: "
    "check secret_access_key in the URL, or AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the session token has expired: get new credentials",
    "InvalidToken": "the session token is wrong: check session_token, or AWS_SESSION_TOKEN",
    "RequestTimeTooSkewed": "this machine's clock is wrong: correct it",
    "AuthorizationHeaderMalformed": "the region is wrong: set region in the URL, or AWS_REGION",
    "PermanentRedirect": "the bucket is in another region: set region in the URL, or AWS_REGION",
    "NotImplemented": "the store lacks a request that tidelog needs: use another store",
}
_DENIED = (
    "the store denies the request: check the credentials, and their rights to list, read, write "
    "and delete in this bucket"
)
_NO_CREDENTIALS = {
    "s3": "no credentials were found: pass access_key_id and secret_access_key in the URL, set "
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile: AWS_PROFILE, or "
    "?profile= in the URL (pip install 'tidelog[aws]')",
    "gs": "no credentials were found: set GOOGLE_APPLICATION_CREDENTIALS to the file of a service "
    "account's key, or log in with 'gcloud auth application-default login'",
    "az": "no credentials were found: set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}

Verb = Literal["get", "put", "delete", "list"]
Condition = Literal["none", "absent", "match"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRequest:
    """The request that failed.

    ``condition`` is the condition of a put. A put with a condition is sent only once, so a failed
    connection proves that it never left.
    """

    verb: Verb
    key: str
    bucket: str
    store: str
    condition: Condition = "none"


class WriteConflict(Exception):
    """S3 was busy with another conditional write of the key (409): neither refused nor done."""


def to_tidelog(error: Exception, asked: FailedRequest) -> TidelogError | WriteConflict:
    """Return the error to raise instead of ``error``."""
    text = str(error).partition("\n\nDebug source:")[0]
    code = _first(_CODE, text)
    facts: dict[str, Any] = {"key": asked.key, "store": asked.store}
    missing = isinstance(error, FileNotFoundError)
    if code in _NO_BUCKET or (missing and asked.verb in ("put", "list")):
        return LocationError(
            f"no bucket named {asked.bucket!r} at this store: create it, or check its name and "
            "the endpoint",
            store=asked.store,
        )
    exists = isinstance(error, foreign.AlreadyExistsError)
    if code in _CONFLICT or (exists and asked.condition != "absent"):
        return WriteConflict(text)
    if code in _REFUSALS:
        return StoreRefused(_REFUSALS[code], **facts, code=code)
    if missing:
        return ObjectNotFound("no object has that key", **facts)
    if exists:
        return ObjectExists("the object already exists", **facts)
    if isinstance(error, foreign.PreconditionError):
        return ObjectChanged("another process replaced or deleted the object", **facts)
    return _refused(error, text, asked) or _failed(error, text, asked)


def is_past_the_end(error: Exception) -> bool:
    """Return True if a range begins at or after the end of the object.

    Azure's emulator answers such a request normally, and obstore reports that the object ends
    before the range.
    """
    if not isinstance(error, foreign.GenericError):
        return False
    return _first(_STATUS, str(error)) == "416" or _PAST_THE_END.search(str(error)) is not None


def _refused(error: Exception, text: str, asked: FailedRequest) -> TidelogError | None:
    status = _first(_STATUS, text)
    facts: dict[str, Any] = {"key": asked.key, "store": asked.store, "reason": _reason(text)}
    provider_error = _first(_PROVIDER, text)
    if provider_error is not None:
        return StoreRefused(
            "the profile has no credentials: check ~/.aws/config, and log in again",
            store=asked.store,
            reason=provider_error.strip()[:_REASON_CHARACTERS],
        )
    if _METADATA.search(text):
        return StoreRefused(_NO_CREDENTIALS[asked.store.partition(":")[0]], store=asked.store)
    if status in ("401", "403") or isinstance(
        error, foreign.PermissionDeniedError | foreign.UnauthenticatedError
    ):
        return StoreRefused(_DENIED, **facts)
    if status == "501" or isinstance(error, foreign.NotSupportedError | NotImplementedError):
        return StoreRefused(_REFUSALS["NotImplemented"], **facts)
    if "non-partial response" in text:
        return StoreRefused("the store ignores byte ranges in reads: use another store", **facts)
    if "Received redirect" in text or status == "301":
        return StoreRefused(_REFUSALS["PermanentRedirect"], **facts)
    odd = _first(_INVALID_PATH, text)
    if odd is not None:
        # obstore drops the whole page of the listing, so the keys near it are unknown.
        return StoreRefused(
            "the listing has a key with an empty part, '.', '..' or a control character, which "
            "requests cannot name: rename or delete that object, or list another prefix",
            key=odd.encode("unicode_escape").decode(),
            store=asked.store,
        )
    if "Could not parse path" in text or _first(_CODE, text) == "KeyTooLongError":
        return UsageError(
            "this store cannot store an object with that key: use another key", **facts
        )
    if status is not None and status.startswith("4"):
        return LocationError("the store rejects the request: correct the reason", **facts)
    return None


def has_odd_key(error: Exception) -> bool:
    """Return True if a listing failed because obstore cannot read one of its keys."""
    return _INVALID_PATH.search(str(error)) is not None


def _failed(error: Exception, text: str, asked: FailedRequest) -> LocationError:
    unreachable = _NO_CONNECTION.search(str(error)) is not None
    # Only a request that is sent once can be known never to have left.
    never_left = unreachable and asked.condition != "none"
    sentence = "the store failed or did not answer: try again"
    if unreachable:
        sentence = "cannot connect to the store: check its endpoint and the network, then try again"
        text = _first(_SYSTEM_MESSAGE, str(error)) or "the connection timed out"
    changes = asked.verb in ("put", "delete")
    return LocationError(
        sentence,
        outcome=Outcome.UNKNOWN if changes and not never_left else Outcome.NOT_APPLIED,
        key=asked.key,
        store=asked.store,
        reason=_reason(text),
    )


def _reason(text: str) -> str:
    """Return the readable part of an error's text, on one line."""
    words = _first(_MESSAGE, text) or text.rpartition(" - ")[2]
    return " ".join(words.split())[:_REASON_CHARACTERS]


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return None if match is None else match.group(1)
