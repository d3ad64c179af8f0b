"""A Kafka broker of the tests' own: one node, KRaft, on loopback, its jars from Maven Central.

Times of the broker are short, so that tests of expiry, compaction and restarts are quick.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from kit.installs import copy_jars, installed, require_java
from kit.server_process import ServerProcess, free_ports, java

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from kit.certificates import Authority

Clients: TypeAlias = dict[str, str | int | float | bool]  # The settings of a client.
VERSION: Final = "4.4.0"
LOG4J: Final = "2.25.5"
USER: Final = "tide"
PASSWORD: Final = "tide-secret"
NODE: Final = 1
# Tiered storage's API is not in Maven Central under this version, and nothing here uses it.
_DEPENDENCIES: Final = f"""
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{VERSION}</version>
      <exclusions>
        <exclusion>
          <groupId>org.apache.kafka</groupId>
          <artifactId>kafka-tools-api</artifactId>
        </exclusion>
      </exclusions>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>{LOG4J}</version>
    </dependency>"""
# One node keeps one copy of each of the broker's own topics.
_ALONE: Final[Mapping[str, str | float]] = {
    "process.roles": "broker,controller",
    "node.id": NODE,
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 4,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 1,
}
_QUICK: Final[Mapping[str, str | float]] = {
    "group.initial.rebalance.delay.ms": 0,
    "log.initial.task.delay.ms": 200,
    "log.retention.check.interval.ms": 200,
    "log.segment.delete.delay.ms": 100,
    "log.cleaner.backoff.ms": 200,
    "log.cleaner.min.cleanable.ratio": 0.01,
    "log.cleaner.dedupe.buffer.size": 16 * 2**20,
    "log.index.size.max.bytes": 2**20,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    # A broker killed and started again is refused until the session of the killed one expires.
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 300,
    "controller.quorum.election.timeout.ms": 200,
    "controller.quorum.election.backoff.max.ms": 200,
    "num.network.threads": 2,
    "num.io.threads": 4,
}


def installed_kafka() -> Path:
    """Return the folder of the broker's jars; Maven copies them the first time.

    Raises:
        CannotInstall: Java 17 or Maven is missing, or Maven fails.
    """
    require_java(17, server="Kafka")
    name = f"kafka-{VERSION}"
    return installed(name, lambda at: copy_jars(at, _DEPENDENCIES, server="Kafka")) / "jars"


class KafkaServer(ServerProcess):
    """A broker in a process of its own. It may be stopped, killed and started again.

    Its data and its ports stay until `close`, or the end of ``with``.
    """

    name = "Kafka"

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        outlives: bool = False,
        partitions: int = 1,
        sasl: bool = False,
        authority: Authority | None = None,
        settings: Mapping[str, str | float] | None = None,
        heap_mb: int = 384,
    ) -> None:
        """Install the broker if it is not installed yet; `start` starts it.

        Args:
            directory: holds the broker's data and its log.
            port: as `ServerProcess`.
            outlives: as `ServerProcess`.
            partitions: of a topic that is created without a number of them.
            sasl: opens the listener of `sasl_clients`.
            authority: opens the listener of `ssl_clients`, with a certificate that it issues.
            settings: of the broker; they replace those of this module.
            heap_mb: the greatest heap of the broker, in MiB.

        Raises:
            CannotInstall: as `installed_kafka`.
        """
        super().__init__(directory, port=port, outlives=outlives)
        self._controller, self._sasl, self._ssl = free_ports(3)
        self._jars = installed_kafka()
        self._heap_mb = heap_mb
        self._authority = authority
        self._settings: dict[str, str | float] = {
            **_ALONE,
            **_QUICK,
            "num.partitions": partitions,
            "log.dirs": str(self._data),
            **self._listeners(sasl=sasl),
            **(settings or {}),
        }

    @property
    def servers(self) -> str:
        """The address of the listener without authentication, as ``HOST:PORT``."""
        return f"127.0.0.1:{self.port}"

    @property
    def clients(self) -> Clients:
        """The settings of a client: no authentication."""
        return {"bootstrap.servers": self.servers}

    @property
    def sasl_clients(self) -> Clients:
        """The settings of a client: `USER` and `PASSWORD`; SCRAM-SHA-256 works too."""
        return {
            "bootstrap.servers": f"127.0.0.1:{self._sasl}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }

    @property
    def ssl_clients(self) -> Clients:
        """The settings of a client: TLS, which trusts the authority of this server."""
        assert self._authority is not None
        return {
            "bootstrap.servers": f"localhost:{self._ssl}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(self._authority.folder / "authority.pem"),
        }

    def close(self) -> None:
        """Kill the broker, and remove its data."""
        super().close()
        shutil.rmtree(self._data, ignore_errors=True)

    def prepare(self) -> None:
        """Write the settings, and the identity of the cluster at the first start."""
        told = "".join(f"{name}={value}\n" for name, value in self._settings.items())
        self._properties.write_text(told)
        if (self._data / "meta.properties").exists():
            return
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        user = f"SCRAM-SHA-256=[name={USER},password={PASSWORD}]"
        # An identity may begin with a hyphen, so it is not an argument of its own.
        options = [f"--cluster-id={cluster}", "-c", str(self._properties), "--add-scram", user]
        done = subprocess.run(
            self._java("kafka.tools.StorageTool", "format", *options),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"Kafka cannot format its folder:\n{done.stdout}{done.stderr}")

    def command(self) -> list[str]:
        return self._java("kafka.Kafka", str(self._properties))

    def check(self) -> None:
        """Raise an exception unless the broker answers, and is in its cluster's list."""
        assert NODE in self.admin().list_topics(timeout=1).brokers

    def admin(self) -> AdminClient:
        """Return a new client for topics, groups and settings, which writes no log lines."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({**self.clients, "log_level": 0, "reconnect.backoff.max.ms": 200})

    def create(self, topic: str, *, partitions: int = 1, **config: str | float) -> None:
        """Create a topic, and wait for it; ``config`` has ``_`` in place of Kafka's ``.``."""
        from confluent_kafka.cimpl import NewTopic

        told = {name.replace("_", "."): str(value) for name, value in config.items()}
        made = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=told)
        admin = self.admin()  # A client that is no longer held ends, with its requests.
        admin.create_topics([made])[topic].result(timeout=60)

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait for it."""
        admin = self.admin()
        admin.delete_topics([topic])[topic].result(timeout=60)

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _listeners(self, *, sasl: bool) -> dict[str, str | float]:
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
        at = [f"PLAINTEXT://127.0.0.1:{self.port}", f"CONTROLLER://127.0.0.1:{self._controller}"]
        told: dict[str, str | float] = {}
        if sasl:
            protocols["SASL"] = "SASL_PLAINTEXT"
            at.append(f"SASL://127.0.0.1:{self._sasl}")
            module = "org.apache.kafka.common.security"
            told |= {
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
                "listener.name.sasl.plain.sasl.jaas.config": f"{module}.plain.PlainLoginModule"
                f' required user_{USER}="{PASSWORD}";',
                "listener.name.sasl.scram-sha-256.sasl.jaas.config": f"{module}.scram"
                ".ScramLoginModule required;",
            }
        if self._authority is not None:
            protocols["SSL"] = "SSL"
            at.append(f"SSL://localhost:{self._ssl}")
            told |= {
                "listener.name.ssl.ssl.keystore.type": "PEM",
                "listener.name.ssl.ssl.keystore.location": str(self._keystore(self._authority)),
            }
        told["listeners"] = ",".join(at)
        told["listener.security.protocol.map"] = ",".join(f"{a}:{b}" for a, b in protocols.items())
        told["controller.quorum.voters"] = f"{NODE}@127.0.0.1:{self._controller}"
        return told

    def _keystore(self, authority: Authority) -> Path:
        """Return a file with the key and the certificate of the broker."""
        certificate, key = authority.issue("kafka")
        path = authority.folder / "kafka-keystore.pem"
        path.write_bytes(key.read_bytes() + certificate.read_bytes())
        return path

    def _java(self, main: str, *arguments: str) -> list[str]:
        started = java(self.directory, heap_mb=self._heap_mb)
        return [*started, "-Dlog4j2.level=WARN", "-cp", f"{self._jars}/*", main, *arguments]
