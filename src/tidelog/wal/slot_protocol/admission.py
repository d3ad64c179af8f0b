"""Which appends of a batch may be written: those to streams that are open when it is their turn.

Pure. What is open is told from the tail of the turn, with all that is under way; a batch that comes
to nothing takes its turn with it, and what is sent again is judged anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.errors import UsageError
from tidelog.wal.append.work import Work
from tidelog.wal.format.streams import Streams, enact, no_such_stream, refusal


def admit(
    streams: Streams, batch: Sequence[Work]
) -> tuple[list[Work], list[tuple[Work, UsageError]]]:
    """Return those of a batch that may be written after what is open, and others with why not."""
    if not any(work.control or work.stream is not None for work in batch):
        return list(batch), []
    open_now = dict(streams.by_id) if any(work.control for work in batch) else streams.by_id
    admitted: list[Work] = []
    refused: list[tuple[Work, UsageError]] = []
    for work in batch:
        error: UsageError | None = None
        if work.control is not None:
            error = refusal(open_now, work.control)
            if error is None and isinstance(open_now, dict):
                enact(open_now, work.control, 0)  # Where it will stand is not known yet.
        elif work.stream is not None and work.stream not in open_now:
            error = no_such_stream(work.stream)
        if error is None:
            admitted.append(work)
        else:
            refused.append((work, error))
    return admitted, refused
