"""The guide of Kafka: its commands run, on a real broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from confluent_kafka import Producer

from kit.doc_blocks import blocks_of
from kit.kafka_server import KafkaServer

PAGE = "docs/guides/kafka.md"
SHOWN = "127.0.0.1:9092"


def send(kafka: KafkaServer, topic: str, messages: list[tuple[str, object]]) -> None:
    producer = Producer(kafka.clients)
    for key, value in messages:
        producer.produce(topic, None if value is None else json.dumps(value), key=key)
    assert producer.flush(60) == 0


def test_the_commands_of_the_guide_run(kafka: KafkaServer, tmp_path: Path) -> None:
    """The output has the newest messages, and the offsets that are reached."""
    for topic in ("orders", "customers"):
        kafka.create(topic)
    send(kafka, "orders", [("o1", {"item": "tea", "pieces": 3}), ("o2", {"item": "jam"})])
    people = [("ann", {"city": "Bern"}), ("bob", {"city": "Rome"}), ("ann", {"city": "Oslo"})]
    send(kafka, "customers", [*people, ("bob", None)])
    programs = Path(sys.executable).parent
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    said = ""
    for block in blocks_of(PAGE):
        if block.language != "sh":
            continue
        assert SHOWN in block.text
        script = "set -e\n" + block.text.replace(SHOWN, kafka.servers)
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "TIDELOG_LOCATION": str(tmp_path / "lake")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said += done.stdout
    assert "tea" in said
    assert '"reached":{"orders/0":2}' in said
    assert "Oslo" in said
    assert "bob" not in said
    assert "Bern" not in said
