"""The connection that runs a plain function as a transaction; the portal cannot import its twin."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from tidelog.blocking.portal import Connection
from tidelog.errors import AsOfBeforeSince, SchemaEvolved, UpperMismatch

if TYPE_CHECKING:
    from tidelog.blocking.collections import TableTransaction
    from tidelog.collection import transaction as awaited_transaction

T = TypeVar("T")


class Beginner(Protocol):
    """A handle that begins transactions."""

    def attempts(
        self, *, at: int | None = None
    ) -> AsyncGenerator[awaited_transaction.TableTransaction, None]: ...


B = TypeVar("B", bound=Beginner)


class TransactingConnection(Connection[B]):
    """A connection with `transact`, whose work is a function without ``await``."""

    def transact(self, work: Callable[[TableTransaction], T], *, at: int | None = None) -> T:
        """Return the result of ``work(transaction)``, with all its writes or none.

        If another process first changes or alters one of its tables, the work runs again, in a new
        transaction. So it must have no other effects.

        Raises:
            ContentionError: other commits changed its tables at every try. NOT_APPLIED.
            All errors of the work, and of the commit of the transaction.
        """
        # Imported here, because a program that only connects loads no Arrow.
        from tidelog.blocking.collections import TableTransaction

        for transaction in self._portal.iterate(self._inner.attempts(at=at)):
            try:
                with TableTransaction(self._portal, transaction) as given:
                    return work(given)
            except (UpperMismatch, AsOfBeforeSince, SchemaEvolved):
                if not transaction.is_refused:
                    raise
        raise AssertionError("the last try returns or raises")
