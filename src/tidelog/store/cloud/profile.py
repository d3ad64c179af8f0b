"""Credentials of AWS's own files: profiles, with all that boto3 finds out from them.

A profile may name keys, a role to assume, a command, or a single sign-on. boto3 knows them all, so
it is asked (``pip install 'tidelog[aws]'``), where one is named, or where the environment says
nothing and there is a default. It is asked about web identity, too, where it is installed; without
it obstore does that itself. Keys in the environment, and the roles of machines and containers, are
obstore's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.errors import UsageError

if TYPE_CHECKING:
    from obstore.auth.boto3 import Boto3CredentialProvider

DEFAULT = "default"
# Where one of these is set, credentials are known without any file.
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


def chosen_profile(told: Mapping[str, str], environ: Mapping[str, str]) -> str | None:
    """Return the profile that a URL or the environment names, or None: keys prevail.

    Raises:
        UsageError: the URL gives a profile and keys.
    """
    named = told.get("profile")
    if "access_key_id" in told or "secret_access_key" in told:
        if named is not None:
            raise UsageError("the URL gives a profile and keys: leave out one of them")
        return None
    if named is not None:
        return named
    return None if environ.get("AWS_ACCESS_KEY_ID") else environ.get("AWS_PROFILE") or None


def may_know(environ: Mapping[str, str]) -> bool:
    """Say whether boto3 may know who one is: no keys are given, and there is what it looks at."""
    if any(environ.get(name) for name in _KNOWN_OTHERWISE):
        return False
    if environ.get(_WEB_IDENTITY):
        return True
    paths = (Path(environ.get(name) or path) for name, path in _FILES.items())
    try:
        return any(path.expanduser().is_file() for path in paths)
    except (OSError, RuntimeError):  # There is no home.
        return False


def profile_credentials(
    told: Mapping[str, str], environ: Mapping[str, str]
) -> Boto3CredentialProvider | None:
    """Return what gets credentials by a profile, or None where none is meant.

    Raises:
        UsageError: the profile is not there, is wrong or empty, or boto3 is not installed.
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
    except (BotoCoreError, OSError) as error:  # A command that is not there is an OSError.
        raise UsageError(
            f"the profile {name or DEFAULT!r} cannot be used: {error}; see ~/.aws/config, "
            "AWS_PROFILE and the URL's profile"
        ) from error
    except ValueError as error:
        if name is None:
            return None
        raise UsageError(f"the profile {name!r} has no credentials: see ~/.aws/config") from error
