"""Credentials from AWS's own files: profiles, resolved by boto3.

A profile may contain keys, a role to assume, a command, or a single sign-on. boto3 supports all of
these (``pip install 'tidelog[aws]'``). It is used if a profile is named, or if the environment has
no credentials and a default profile exists. If installed, it also handles web identity; otherwise
obstore does. obstore itself handles keys in the environment, and the roles of machines and
containers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.errors import UsageError

if TYPE_CHECKING:
    from obstore.auth.boto3 import Boto3CredentialProvider

DEFAULT = "default"
# If one of these is set, credentials are known without a file.
_WEB_IDENTITY = "AWS_WEB_IDENTITY_TOKEN_FILE"
_KNOWN_OTHERWISE = (
    "AWS_ACCESS_KEY_ID",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
_FILES = {
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "AWS_CONFIG_FILE": "~/.aws/config",
}
_INSTALL = "profiles need boto3: pip install 'tidelog[aws]', or set AWS_ACCESS_KEY_ID instead"

SECRETS = ("access_key_id", "secret_access_key", "session_token")  # Parameters of an s3:// URL.


def chosen_profile(told: Mapping[str, str], environ: Mapping[str, str]) -> str | None:
    """Return the profile that a URL or the environment names; None if there are keys.

    Raises:
        UsageError: the URL has both a profile and keys.
    """
    named = told.get("profile")
    if "access_key_id" in told or "secret_access_key" in told:
        if named is not None:
            raise UsageError("the URL has a profile and keys: remove one of them")
        return None
    if named is not None:
        return named
    return None if environ.get("AWS_ACCESS_KEY_ID") else environ.get("AWS_PROFILE") or None


def may_know(environ: Mapping[str, str]) -> bool:
    """Return True if boto3 may find credentials: none are given, and one of its sources exists."""
    if any(environ.get(name) for name in _KNOWN_OTHERWISE):
        return False
    if environ.get(_WEB_IDENTITY):
        return True
    paths = (Path(environ.get(name) or path) for name, path in _FILES.items())
    try:
        return any(path.expanduser().is_file() for path in paths)
    except (OSError, RuntimeError):  # There is no home directory.
        return False


def profile_credentials(
    told: Mapping[str, str], environ: Mapping[str, str]
) -> Boto3CredentialProvider | None:
    """Return a provider of credentials from a profile, or None if no profile is used.

    Raises:
        UsageError: the profile is missing, invalid or empty, or boto3 is not installed.
    """
    name = chosen_profile(told, environ)
    has_keys = "access_key_id" in told or "secret_access_key" in told
    if name is None and (has_keys or not may_know(environ)):
        return None
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        if name is None:
            return None
        raise UsageError(_INSTALL, profile=name) from error
    try:
        return Boto3CredentialProvider(boto3.Session(profile_name=name))
    except (BotoCoreError, OSError) as error:  # A missing command is an OSError.
        raise UsageError(
            f"the profile {name or DEFAULT!r} cannot be used: {error}; check ~/.aws/config, "
            "AWS_PROFILE and the profile in the URL"
        ) from error
    except ValueError as error:
        if name is None:
            return None
        raise UsageError(f"the profile {name!r} has no credentials: check ~/.aws/config") from error
