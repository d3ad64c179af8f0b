"""Admission: which appends of a batch may be written, by the streams that are open. Pure.

An append to a stream is admitted only if the stream is open at the append's place in the log. The
tail supplies the open streams, and counts all batches in flight as written. If one of those batches
fails, the writer takes its place back and admits the later batches again.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.errors import UsageError
from tidelog.wal.append.work import Work
from tidelog.wal.format.streams import Streams, enact, no_such_stream, refusal


def admit(
    streams: Streams, batch: Sequence[Work]
) -> tuple[list[Work], list[tuple[Work, UsageError]]]:
    """Return the appends that fit the open streams, and the others with their errors."""
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
                # The position is not known yet, and does not matter here.
                enact(open_now, work.control, 0)
        elif work.stream is not None and work.stream not in open_now:
            error = no_such_stream(work.stream)
        if error is None:
            admitted.append(work)
        else:
            refused.append((work, error))
    return admitted, refused
