"""A server's metrics in Prometheus' format; docs/reference/metrics.md has their table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tidelog.core.metrics import METRICS, Metric
from tidelog.errors import TidelogError

PREFIX: Final = "tidelog_"
SECONDS: Final = tuple(0.001 * 2**n for n in range(14))


class ServerMetrics:
    """The metrics of one server, and the sink for tidelog's own metrics."""

    def __init__(self) -> None:
        own = self.registry = CollectorRegistry()
        self.requests = Counter(
            "http_requests", "Requests answered", ("method", "route", "status"), registry=own
        )
        self.seconds = Histogram(
            "http_request_duration_seconds",
            "Duration from a request's head to the end of its answer",
            ("route",),
            buckets=SECONDS,
            registry=own,
        )
        self.in_flight = Gauge("http_requests_in_flight", "Requests being answered", registry=own)
        self.errors = Counter(
            "http_errors", "Requests refused or failed", ("kind", "outcome"), registry=own
        )
        self.dropped = Counter(
            "http_connections_dropped",
            "Connections closed before a request: above the limit, or without a handshake in time",
            registry=own,
        )
        self.left = Counter(
            "http_clients_left", "Clients that disconnected, or were too slow", registry=own
        )
        self.records_in = Counter("log_append_records", "Records appended", registry=own)
        self.bytes_in = Counter("log_append_bytes", "Bytes of appended records", registry=own)
        self.records_out = Counter("log_records_scanned", "Records sent", registry=own)
        self.bytes_out = Counter("log_bytes_scanned", "Bytes of records sent", registry=own)
        self.followers = Gauge("log_followers", "Requests that wait for records", registry=own)
        self._inner = {metric.name: self._made(metric) for metric in METRICS.values()}

    def _made(self, metric: Metric) -> Counter | Histogram:
        kind = Counter if metric.kind == "counter" else Histogram
        return kind(PREFIX + metric.name, metric.meaning, metric.labels, registry=self.registry)

    def observe(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        """Record a number of tidelog's own work; see `tidelog.core.metrics`."""
        series = self._inner[metric.name].labels(**labels)
        if isinstance(series, Counter):
            series.inc(value)
        else:
            series.observe(value)

    def count_error(self, error: TidelogError) -> None:
        """Count an error answer."""
        self.errors.labels(error.kind, error.outcome.value).inc()

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
