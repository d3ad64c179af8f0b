"""Messages on their way from the tasks that decode them to the tasks of their keys' buckets. Pure.

The receiving task computes a message's times again from its row, its binding and its source, so
the times are not sent. If several messages of a key have one time, each task sends only the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidelog.collection.ingest.compute import Job
from tidelog.collection.ingest.envelope import (
    DELETE,
    OWN,
    hash_keys,
    last_of_each,
    messages_schema,
    restamp_rows,
)
from tidelog.persist.format.schema import TIME
from tidelog.rowhash import bucket_of
from tidelog.spark.plan import Share


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages for the shard at ``place``, as an Arrow stream; see `_packed`."""

    place: int
    data: bytes


def hand_on(messages: pa.Table, share: Share) -> Iterator[tuple[int, Messages]]:
    """Yield messages, each with the partition of its keys."""
    job = share.job
    named = hash_keys(messages, job.data_schema)
    buckets = bucket_of(named, share.buckets)
    if job.source.time_column is None:
        # All messages have one time. With event times, most keys occur once per time.
        there = np.zeros(messages.num_rows, dtype=np.bool_)
        there[last_of_each(messages, named)] = True
        buckets[~there] = -1
    for bucket in range(share.buckets):
        found = messages.filter(pa.array(buckets == bucket))
        if found.num_rows:
            yield bucket % share.partitions, Messages(bucket % len(share.places), _packed(found))


def received(messages: Messages, job: Job) -> pa.Table:
    """Return the messages in their original order, with their times computed again."""
    schema = job.data_schema
    with pa.ipc.open_stream(pa.py_buffer(messages.data)) as stream:
        rows = stream.read_all()
    rows = restamp_rows(rows, job.source, lower=job.lower, upper=job.upper)
    if DELETE not in rows.column_names:
        rows = rows.append_column(DELETE, pa.array(np.zeros(rows.num_rows, dtype=np.bool_)))
    wanted = messages_schema(schema)
    return rows.select(wanted.names).cast(wanted)


def _packed(messages: pa.Table) -> bytes:
    """Return messages as an Arrow stream: their rows, ranks and offsets.

    Shape: the column of deletes is present only if there are any.
    """
    names = [n for n in messages.column_names if n not in (TIME, OWN)]
    if not messages.column(DELETE).to_numpy().any():
        names.remove(DELETE)
    sink = pa.BufferOutputStream()
    rows = messages.select(names)
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return sink.getvalue().to_pybytes()
