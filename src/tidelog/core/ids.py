"""Names, which users choose, and ids, which tidelog makes.

A shard's id is its key in consensus and its folder in the store, so the ids of all kinds share one
namespace. The form of an id shows its kind:

- The controller's shard is `CATALOG_SHARD`.
- The transaction shard of the tables is named `TABLES`, a name that users cannot choose.
- The shards of collections have random ids (`new_shard_id`). The shards of a source share one
  object of consensus, their group, and their ids begin with its id (`group_of`).
- A shard that a user named is ``KIND.NAME``, such as ``user.NAME``. Only these ids have a dot.
"""

from __future__ import annotations

import enum
import re
from typing import Final, NewType

from tidelog.core.arguments import quoted
from tidelog.core.clock import Clock
from tidelog.errors import UsageError

ShardId = NewType("ShardId", str)  # "s" and 32 hex digits, "user." and a name, or "catalog"
GroupId = NewType("GroupId", str)  # "g" and 32 hex digits; ids of its shards add "-" and 12 more
RenditionId = NewType("RenditionId", str)  # "r" and 32 hex digits
SourceId = NewType("SourceId", str)  # "o" and 32 hex digits
WriterId = NewType("WriterId", str)  # "w" and 32 hex digits, or a name that a user chose
SeqNo = NewType("SeqNo", int)  # version of a durable state, dense from 1

CATALOG_SHARD: Final = ShardId("catalog")
TABLES: Final = ".tables"
SEQNO_MAX: Final = 2**63 - 1

GROUPS: Final = "g"  # The first letter of the ids of groups and of their shards.
_GROUPED = re.compile(r"(g[0-9a-f]{32})-[0-9a-f]{12}")
_GROUP = re.compile(r"g[0-9a-f]{32}")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


def check_name(name: str, *, of: str = "name") -> str:
    """Return ``name`` if it is a valid name for a log, shard or collection.

    Raises:
        UsageError: it is not 1 to 128 letters, digits, ``.``, ``_``, ``-``, or it starts with a
            dot.
    """
    given: object = name
    if not isinstance(given, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"{quoted(name)} cannot be the {of}: use 1 to 128 letters, digits, '.', '_' or '-', "
            "not starting with a dot"
        )
    return name


class NamedKind(enum.Enum):
    """A kind of shard that users name; its value is the first word of the ids of its shards."""

    SHARD = "user"
    TRANSACTIONS = "txn"
    KEYED = "keyed"

    @property
    def prefix(self) -> str:
        """Return the prefix that the ids of this kind, and no other ids, have."""
        return f"{self.value}."


_KINDS: Final = {
    NamedKind.SHARD: "shard",
    NamedKind.TRANSACTIONS: "transaction shard",
    NamedKind.KEYED: "keyed log",
}


def named_id(kind: NamedKind, name: str) -> ShardId:
    """Return the id of the shard of a kind that users call ``name``.

    Raises:
        UsageError: it is not a valid name.
    """
    return ShardId(kind.prefix + check_name(name, of=f"name of a {_KINDS[kind]}"))


def transactions_id(name: str) -> ShardId:
    """Return the id of a transaction shard: that of users' transactions, or of the `TABLES`.

    Raises:
        UsageError: it is not a valid name.
    """
    kind = NamedKind.TRANSACTIONS
    return ShardId(kind.prefix + TABLES) if name == TABLES else named_id(kind, name)


def name_of(kind: NamedKind, key: str) -> str | None:
    """Return the users' name for the shard of an id; None if the id is of another kind."""
    name = key.removeprefix(kind.prefix)
    return name if name != key and _NAME.fullmatch(name) else None


def is_named(shard: str) -> bool:
    """Return True if a user named a shard, so that any process may write it."""
    return "." in shard


def new_shard_id(clock: Clock, group: GroupId | None = None) -> ShardId:
    """Return a new id: of a shard in a group, or of a shard with a consensus object of its own."""
    if group is None:
        return ShardId("s" + clock.unique())
    return ShardId(f"{group}-{clock.unique()[-12:]}")


def new_group_id(clock: Clock) -> GroupId:
    return GroupId("g" + clock.unique())


def group_of(key: str) -> GroupId | None:
    """Return the group of a shard; None if the shard has a consensus object of its own."""
    found = _GROUPED.fullmatch(key)
    return None if found is None else GroupId(found[1])


def consensus_object(key: str) -> str:
    """Return the name of the consensus object of a key: its own, or that of its group."""
    return group_of(key) or key


def is_group(name: str) -> bool:
    """Return True if the name of a consensus object is that of a group."""
    return _GROUP.fullmatch(name) is not None


def new_rendition_id(clock: Clock) -> RenditionId:
    return RenditionId("r" + clock.unique())


def new_source_id(clock: Clock) -> SourceId:
    return SourceId("o" + clock.unique())


def new_writer_id(clock: Clock) -> WriterId:
    return WriterId("w" + clock.unique())


def check_seqno(seqno: int) -> SeqNo:
    """Return ``seqno`` if it is valid for a record.

    Raises:
        UsageError: ``seqno`` is not in 1 to 2^63-1.
    """
    if not 1 <= seqno <= SEQNO_MAX:
        raise UsageError("a seqno must be a whole number from 1 to 2^63-1", given=seqno)
    return SeqNo(seqno)
