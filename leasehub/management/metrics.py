"""/metrics: gauges read by SQL, the same from every process, and how long this process's requests took."""

import hmac
import logging
import os
import threading
import time
from collections.abc import Iterator
from ipaddress import ip_address

from django.conf import settings
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from leasehub import __version__
from leasehub.api import timing
from leasehub.api.rendering import error_response
from leasehub.errors import MethodNotAllowed, Unauthenticated
from leasehub.management import gauges
from leasehub.management.gauges import Figures

logger = logging.getLogger(__name__)

#: However often somebody scrapes, the database is asked no more often by one process.
KEPT_SECONDS = 5.0
# A proxy on this machine speaks for somebody else: then the address says nothing of who asks.
FORWARDED = ("HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED", "HTTP_X_REAL_IP")


class Gauges:
    """The readings of the last KEPT_SECONDS."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._figures: list[Figures] = []

    def read(self) -> list[Figures]:
        # Whoever comes while another thread reads waits for that reading.
        with self._lock:
            if time.monotonic() - self._read_at >= KEPT_SECONDS:
                self._figures = list(self._reading())
                self._read_at = time.monotonic()
            return self._figures

    def forget(self) -> None:
        self._read_at = float("-inf")

    def _reading(self) -> Iterator[Figures]:
        began = time.perf_counter()
        failed = Figures("leasehub_readings_failed", "1 for each group of figures that could not be read.", ("group",))
        for reading in gauges.READINGS:
            try:
                found = reading()
            except DatabaseError as error:
                # One that took too long, or the database is away: the others are told all the same.
                logger.warning("metrics: %s cannot be read: %s", reading.__name__, str(error).strip().splitlines()[:1])
                failed.add(1.0, reading.__name__)
            else:
                failed.add(0.0, reading.__name__)
                yield from found
        yield failed
        took = Figures("leasehub_readings_seconds", "How long reading these figures from the database took.")
        took.add(time.perf_counter() - began)
        yield took


class Collector:
    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("leasehub_build_info", "The version of this process.", labels=["version"])
        build.add_metric([__version__], 1.0)
        yield build
        for figures in kept.read():
            gauge = GaugeMetricFamily(figures.name, figures.help, labels=figures.labels)
            for labels, value in figures.values.items():
                gauge.add_metric(labels, value)
            yield gauge
        yield durations()


def durations() -> Metric:
    """By process: each scrape reaches one, and a counter that jumps between processes would look like restarts."""
    found = HistogramMetricFamily(
        "leasehub_request_duration_seconds",
        "How long requests took, the time they were told to wait included.",
        labels=["operation", "method", "status", "process"],
    )
    process = str(os.getpid())
    for timed in timing.read():
        labels = [timed.operation, timed.method, timed.status, process]
        found.add_metric(labels, buckets=timed.buckets, sum_value=timed.seconds)
    return found


kept = Gauges()
registry = CollectorRegistry(auto_describe=False)
registry.register(Collector())


def metrics(request: HttpRequest) -> HttpResponse:
    """For whoever is on an allowed network, or has the token: the labels are tenants' names."""
    if request.method not in ("GET", "HEAD"):
        return error_response(MethodNotAllowed("This address takes GET.", allow="GET, HEAD"))
    if not (is_near(request) or has_token(request)):
        return error_response(Unauthenticated("Metrics are for LEASEHUB_METRICS_ALLOW or with LEASEHUB_METRICS_TOKEN."))
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


def is_near(request: HttpRequest) -> bool:
    """Whether the peer itself, not somebody behind a proxy, is on an allowed network."""
    if any(name in request.META for name in FORWARDED):
        return False
    try:
        address = ip_address(request.META.get("REMOTE_ADDR", ""))
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return any(address in network for network in settings.LEASEHUB_METRICS_ALLOW)


def has_token(request: HttpRequest) -> bool:
    scheme, _, given = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    token: str = settings.LEASEHUB_METRICS_TOKEN
    return bool(token) and scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())
