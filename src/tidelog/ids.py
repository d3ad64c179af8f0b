"""Names and ids: what users may call things, and what things call themselves."""

from __future__ import annotations

import re
from typing import NewType

from tidelog.arguments import quoted
from tidelog.clock import Clock
from tidelog.errors import UsageError

ShardId = NewType("ShardId", str)  # "s" and 32 hex digits
RenditionId = NewType("RenditionId", str)  # "r" and 32 hex digits
SourceId = NewType("SourceId", str)  # "o" and 32 hex digits
WriterId = NewType("WriterId", str)  # "w" and 32 hex digits, or a name somebody chose
SeqNo = NewType("SeqNo", int)  # version of a durable state, dense from 1

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


def check_name(name: str, *, of: str = "name") -> str:
    """Return ``name`` back if logs, shards and collections may be called so.

    Raises:
        UsageError: it is not 1 to 128 of letters, digits, ``.``, ``_``, ``-``, or starts with a
        dot.
    """
    given: object = name
    if not isinstance(given, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"{quoted(name)} cannot be the {of}: use 1 to 128 letters, digits, '.', '_' or '-', "
            "not starting with a dot"
        )
    return name


def new_shard_id(clock: Clock) -> ShardId:
    return ShardId("s" + clock.unique())


def new_rendition_id(clock: Clock) -> RenditionId:
    return RenditionId("r" + clock.unique())


def new_source_id(clock: Clock) -> SourceId:
    return SourceId("o" + clock.unique())


def new_writer_id(clock: Clock) -> WriterId:
    return WriterId("w" + clock.unique())
