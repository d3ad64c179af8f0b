"""Bearer tokens: the clients that may read, and those that may append. Pure, except `load_tokens`.

A server stores only digests of tokens.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.errors import UsageError
from tidelog.http.api.failures import Forbidden, Unauthorized

TOKEN_CHARACTERS_MIN: Final = 16
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_BEARER: Final = re.compile(r"(?i:bearer) +([A-Za-z0-9._~+/-]+=*) *")


@dataclass(frozen=True, slots=True)
class Token:
    """A token's digest; ``is_writer`` means that the token may append."""

    digest: bytes
    is_writer: bool


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that a server accepts; without any, it accepts every request."""

    known: tuple[Token, ...] = ()

    def check(self, authorization: str | None, *, is_write: bool) -> None:
        """Check the token of a request.

        Raises:
            Unauthorized: it is missing or unknown.
            Forbidden: it may not append.
        """
        if not self.known:
            return
        given = _BEARER.fullmatch(authorization or "")
        if given is None:
            raise Unauthorized("the request has no token: send 'Authorization: Bearer TOKEN'")
        digest = digest_of(given[1])
        # Each comparison takes constant time, and all tokens are compared, so timing leaks nothing.
        tokens = [token for token in self.known if hmac.compare_digest(token.digest, digest)]
        if not tokens:
            raise Unauthorized("the token is unknown to this server: use one of its token file")
        if is_write and not any(token.is_writer for token in tokens):
            raise Forbidden("the token is read-only: use one that may append")


def digest_of(token: str) -> bytes:
    """Return the digest of a token."""
    return hashlib.sha256(token.encode()).digest()


def parse_tokens(lines: Iterable[str], *, source: str) -> Tokens:
    """Parse the lines of a token file: ``TOKEN``, or ``TOKEN read`` if it may not append.

    Empty lines and lines that begin with ``#`` are ignored.

    Raises:
        UsageError: a line is not valid, or no line has a token. The message contains no token.
    """
    known: list[Token] = []
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        token, *rest = words
        if rest not in ([], ["read"]):
            raise UsageError(f"{source}: a line must be TOKEN, or TOKEN read", line=number)
        if _TOKEN.fullmatch(token) is None or len(token) < TOKEN_CHARACTERS_MIN:
            raise UsageError(
                f"{source}: a token must have at least {TOKEN_CHARACTERS_MIN} characters, of "
                "letters, digits and ._~+/-",
                line=number,
            )
        known.append(Token(digest_of(token), is_writer=not rest))
    if not known:
        raise UsageError(f"{source} has no token: write one per line")
    return Tokens(tuple(known))


def load_tokens(path: Path) -> Tokens:
    """Return the tokens of a file; see `parse_tokens`.

    Raises:
        UsageError: the file cannot be read, or is not valid.
    """
    shown = f"the token file {str(path)[:300]!r}"
    try:
        return parse_tokens(path.read_text(encoding="utf-8").splitlines(), source=shown)
    except OSError as error:
        raise UsageError(f"{shown} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{shown} must be text in UTF-8") from error
