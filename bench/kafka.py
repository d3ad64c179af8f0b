"""Messages of Kafka a second, next to a plain consumer, and the time until a message is readable.

    PYTHONPATH=tests:. python bench/kafka.py [--messages N] [--rounds N] [--seconds N] [--engine E]

A real broker runs on the same machine. The plain consumer is confluent-kafka's; it makes Arrow
tables of batches, and one Parquet file of each 100,000 messages. tidelog ingests the same messages
into a location on disk. Sides take turns, and a ratio is the median over the rounds. With ``rows``,
both keep key, value, offset and timestamp; with ``json``, both decode the value by Arrow.

The last table: a message a tenth of a second, one tick a second; the time from the send to the
first read that has it.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from confluent_kafka import Consumer, Message, Producer, TopicPartition

import tidelog
from figures import percentile, print_table, ratio
from kit.kafka_server import KafkaServer

PARTITIONS = 4
FILE_ROWS = 100_000
BATCH = 20_000


def fill(kafka: KafkaServer, topic: str, messages: int) -> int:
    """Send messages of about 150 bytes; return the bytes of their values."""
    producer = Producer({**kafka.clients, "linger.ms": 50, "compression.type": "lz4"})
    size = 0
    for n in range(messages):
        fields = {"n": n, "code": f"c{n % 997}", "price": n * 0.01, "note": f"the note of {n:09}"}
        body = json.dumps({**fields, "city": "Bern", "flag": n % 2 == 0}).encode()
        size += len(body)
        while True:
            try:
                producer.produce(topic, body, key=b"k%d" % (n % 10_000), partition=n % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0
    return size


def rows_of(messages: list[Message]) -> pa.Table:
    """Return the columns that tidelog's rows have, too."""
    return pa.table(
        {
            "key": pa.array([one.key() for one in messages], pa.binary()),
            "value": pa.array([one.value() for one in messages], pa.binary()),
            "offset": pa.array([one.offset() for one in messages], pa.int64()),
            "timestamp": pa.array(
                [one.timestamp()[1] for one in messages], pa.timestamp("ms", tz="UTC")
            ),
        }
    )


def json_of(messages: list[Message]) -> pa.Table:
    return pj.read_json(io.BytesIO(b"\n".join(one.value() or b"" for one in messages)))


def plain(
    kafka: KafkaServer, topic: str, messages: int, form: str, folder: Path
) -> tuple[float, int]:
    """Read all messages with a plain consumer into Parquet files; return seconds and rows."""
    table_of = json_of if form == "json" else rows_of
    consumer = Consumer({**kafka.clients, "group.id": "plain", "isolation.level": "read_committed"})
    began = time.perf_counter()
    consumer.assign([TopicPartition(topic, one, 0) for one in range(PARTITIONS)])
    tables: list[pa.Table] = []
    done = waiting = 0
    while done < messages:
        batch = consumer.consume(min(BATCH, messages - done), timeout=1)
        if not batch:
            continue
        tables.append(table_of(batch))
        done, waiting = done + len(batch), waiting + len(batch)
        if waiting >= FILE_ROWS or done == messages:
            path = folder / f"{done}.parquet"
            pq.write_table(pa.concat_tables(tables), path, compression="zstd")
            tables, waiting = [], 0
    took = time.perf_counter() - began
    consumer.close()
    return took, done


def ours(kafka: KafkaServer, topic: str, form: str, folder: Path, engine: str) -> tuple[float, int]:
    """Ingest all messages into a new location; return seconds and rows."""
    settings = {"servers": kafka.servers, "topic": topic}
    schema = "key blob, value blob, offset bigint, timestamp timestamptz"
    with tidelog.connect(folder / "lake", create=True) as lake:
        spec = tidelog.SourceSpec(
            name="s",
            kind="kafka",
            format=form,
            settings=settings,
            schema=schema if form == "rows" else None,
        )
        lake.sources.create(spec)
        chosen = None
        if engine == "spark":
            from tidelog.core.clock import SystemClock
            from tidelog.spark.engine import SparkEngine
            from tidelog.spark.session import session

            url = (folder / "lake").as_uri()
            chosen = SparkEngine(session(quick=True), location_url=url, clock=SystemClock())
        began = time.perf_counter()
        done = lake.sources.ingest("s", engine=chosen)
        return time.perf_counter() - began, done.rows


def measure_rates(kafka: KafkaServer, given: argparse.Namespace) -> None:
    kafka.create("rates", partitions=PARTITIONS)
    size = fill(kafka, "rates", given.messages)
    print(f"{given.messages:,} messages, {size / 1e6:.0f} MB of values")
    lines = []
    for form in ("rows", "json"):
        sides: dict[str, list[float]] = {"plain": [], "tidelog": []}
        for _ in range(given.rounds):
            for side, times in sides.items():
                with tempfile.TemporaryDirectory() as folder:
                    at = Path(folder)
                    if side == "plain":
                        took, done = plain(kafka, "rates", given.messages, form, at)
                    else:
                        took, done = ours(kafka, "rates", form, at, given.engine)
                assert done == given.messages, (side, done)
                times.append(took)
        for side, times in sides.items():
            second = statistics.median(times)
            to_plain = f"{ratio(times, sides['plain']):.2f}"
            rate = f"{given.messages / second:,.0f}"
            lines.append([form, side, f"{second:.2f}", rate, to_plain])
    print_table(["format", "side", "seconds", "messages/s", "ratio to plain"], lines)


def measure_latency(kafka: KafkaServer, given: argparse.Namespace, folder: Path) -> None:
    kafka.create("latency")
    url = str(folder / "lake")
    settings = {"servers": kafka.servers, "topic": "latency"}
    sent: dict[int, float] = {}
    seen: dict[int, float] = {}
    with tidelog.connect(url, create=True) as lake:
        spec = tidelog.SourceSpec(
            name="s", kind="kafka", format="json", schema="n int", settings=settings
        )
        lake.sources.create(spec)
        lake.sources.ingest("s")
        command = [sys.executable, "-m", "tidelog.cli.main", "--location", url, "ingest", "s"]
        follow = [*command, "--follow", "--interval", "1", "--engine", "local"]
        with subprocess.Popen(follow, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:

            def send() -> None:
                producer = Producer({**kafka.clients, "linger.ms": 0})
                for n in range(given.seconds * 10):
                    sent[n] = time.perf_counter()
                    producer.produce("latency", json.dumps({"n": n}))
                    producer.flush(10)
                    time.sleep(0.1)

            sender = threading.Thread(target=send, daemon=True)
            sender.start()
            since = int(lake.collection("s").describe().upper or 1) - 1
            for step in lake.collection("s").listen(since):
                now = time.perf_counter()
                seen.update((int(n or 0), now) for n in step.updates.column("n").to_pylist())
                if len(seen) == given.seconds * 10:
                    break
            run.terminate()
    waits = sorted(seen[n] - sent[n] for n in seen if n >= 20)  # The process starts meanwhile.
    line = [f"{percentile(waits, 0.5):.2f}", f"{percentile(waits, 0.95):.2f}", f"{waits[-1]:.2f}"]
    print_table(["send to readable: p50 s", "p95 s", "max s"], [line])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=30, help="of the latency's run")
    parser.add_argument("--engine", choices=["local", "spark"], default="local")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with KafkaServer(folder / "kafka", heap_mb=1024) as kafka:
            measure_rates(kafka, given)
            measure_latency(kafka, given, folder)


if __name__ == "__main__":
    main()
