"""The server's metrics, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """Counters of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "vitrail_requests", "Requests.", ["route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "vitrail_request_seconds", "Seconds from headers to response.", ["route"],
            buckets=_SECONDS, registry=self._registry,
        )  # fmt: skip
        self._batches = Histogram(
            "vitrail_batch_images", "Images per batch.",
            buckets=(1, 2, 4, 8, 16, 32, 64), registry=self._registry,
        )  # fmt: skip
        self.restarts = Counter(
            "vitrail_worker_restarts", "Restarts of model processes.", registry=self._registry
        )

    def watch(self, waiting: Callable[[], int], workers: Callable[[], int]) -> None:
        """Read gauges from functions."""
        gauges = {
            "vitrail_queue_images": ("Images waiting for a model.", waiting),
            "vitrail_workers_ready": ("Healthy model processes.", workers),
        }
        for name, (text, function) in gauges.items():
            Gauge(name, text, registry=self._registry).set_function(function)

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, images: int) -> None:
        """Count a batch."""
        self._batches.observe(images)

    def text(self) -> bytes:
        """Write all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
