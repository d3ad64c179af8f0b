"""Bearer tokens: who may ask, and who may append. Pure, but for reading the file."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.errors import UsageError
from tidelog.http_api.failures import Forbidden, Unauthorized

TOKEN_CHARACTERS_MIN: Final = 16
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_BEARER: Final = re.compile(r"(?i:bearer) +([A-Za-z0-9._~+/-]+=*) *")


@dataclass(frozen=True, slots=True)
class Token:
    """A token, of which only the digest is kept; ``is_writer`` says that it may append."""

    digest: bytes
    is_writer: bool


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that a server knows; without any, everybody may ask everything."""

    known: tuple[Token, ...] = ()

    def check(self, authorization: str | None, *, is_write: bool) -> None:
        """Refuse who may not ask.

        Raises:
            Unauthorized: there is no token, or it is not known. Forbidden: it is for reading only.
        """
        if not self.known:
            return
        given = _BEARER.fullmatch(authorization or "")
        if given is None:
            raise Unauthorized("a token is needed: send 'Authorization: Bearer TOKEN'")
        digest = digest_of(given[1])
        # All of them are compared, each in constant time, so that time tells nothing of any.
        found = [one for one in self.known if hmac.compare_digest(one.digest, digest)]
        if not found:
            raise Unauthorized("the token is not one that this server knows")
        if is_write and not any(one.is_writer for one in found):
            raise Forbidden("the token is for reading only")


def digest_of(token: str) -> bytes:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode()).digest()


def parse_tokens(lines: Iterable[str], *, source: str) -> Tokens:
    """Return the tokens of a file: one a line, with ``read`` after it if it may not append.

    Empty lines, and what begins with ``#``, are passed over.

    Raises:
        UsageError: a line is none, or there is no token at all. No message has a token in it.
    """
    known: list[Token] = []
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        token, *rest = words
        if rest not in ([], ["read"]):
            raise UsageError(f"{source}: a line is TOKEN, or TOKEN read", line=number)
        if _TOKEN.fullmatch(token) is None or len(token) < TOKEN_CHARACTERS_MIN:
            raise UsageError(
                f"{source}: a token has at least {TOKEN_CHARACTERS_MIN} characters, of letters, "
                "digits and ._~+/-",
                line=number,
            )
        known.append(Token(digest_of(token), is_writer=not rest))
    if not known:
        raise UsageError(f"{source} has no token: write one per line")
    return Tokens(tuple(known))


def load_tokens(path: Path) -> Tokens:
    """Return the tokens of a file; see `parse_tokens`.

    Raises:
        UsageError: it cannot be read, or is none.
    """
    shown = f"the token file {str(path)[:300]!r}"
    try:
        return parse_tokens(path.read_text(encoding="utf-8").splitlines(), source=shown)
    except OSError as error:
        raise UsageError(f"{shown} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{shown} is no text in UTF-8") from error
