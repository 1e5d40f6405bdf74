"""The state of a replay as OpenMetrics text, which Prometheus reads from a port or from a file.

prometheus_client (extra `prometheus`) writes the text and serves it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tracebed.ground.errors import InputError
from tracebed.ground.outputs import METRICS
from tracebed.orchestrator.watching.view import View

ADDRESS = "127.0.0.1"  # the loopback address: the metrics are served only to this machine


def families(view: View) -> Iterator[Any]:
    """Yield the metrics of a replay."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    def gauge(name: str, what: str, value: float) -> Any:
        return GaugeMetricFamily(f"tracebed_{name}", what, value=value)

    jobs = GaugeMetricFamily("tracebed_jobs", "Jobs by state.", labels=["state"])
    for state, count in view.counts().items():
        jobs.add_metric([state], count)
    nodes = GaugeMetricFamily("tracebed_nodes", "Nodes by state.", labels=["state"])
    for state, count in view.node_counts().items():
        nodes.add_metric([state], count)
    late = GaugeMetricFamily(
        "tracebed_submission_lateness_seconds", "Lateness of the submissions.", labels=["quantile"]
    )
    lateness = view.lateness()
    for name, quantile in (("p50", "0.5"), ("p99", "0.99"), ("max", "1")):
        late.add_metric([quantile], lateness.get(name, math.nan) / 1e3)
    found = view.health()
    state = found.get("defaults", found)["state"]
    what = "1 for the current health state, by the default limits where those of the replay are wider; else 0."
    health = GaugeMetricFamily("tracebed_health", what, labels=["state"])
    for name in ("healthy", "degraded", "unhealthy"):
        health.add_metric([name], float(name == state))
    faults = CounterMetricFamily("tracebed_faults", "Faults by kind.", labels=["kind"])
    for kind, count in view.fault_counts.items():
        faults.add_metric([kind], count)
    changes = CounterMetricFamily("tracebed_core_changes", "Changes of the cores of jobs by cause.", labels=["cause"])
    for cause, count in view.core_changes.items():
        changes.add_metric([cause], count)
    yield from (jobs, nodes, late, health, faults, changes)
    yield CounterMetricFamily("tracebed_resizes", "Resizes of jobs.", value=view.resizes)
    worst = view.handovers()
    yield gauge("overlap_seconds", "Longest overlap of the masks of two jobs.", worst.get("overlap_s", math.nan))
    yield gauge("handover_gap_seconds", "Longest gap of a hand-over of a CPU.", worst.get("gap_s", math.nan))
    yield gauge("trace_seconds", "Trace time of the replay.", view.now)
    yield gauge("speed", "Trace seconds per second.", view.info.speed)
    yield gauge("utilization_ratio", "Share of the core seconds of the window that jobs held.", view.utilization())
    yield gauge("left_seconds", "Estimate of the time left.", view.left_s())


class Metrics:
    """The metrics of a replay, served on a port, written to a file, or both.

    The values refer to the last update, because the view of a replay must not be read while it changes.

    Args:
        port: port on the loopback address; None: not served.
        file: text file for the node exporter (`*.prom`); None: not written.

    Raises:
        InputError: prometheus_client is not installed, or the port is taken.
    """

    def __init__(self, port: int | None, file: Path | None) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            hint = "pip install prometheus_client"
            raise InputError("prometheus_client, which writes the metrics, is not installed", hint=hint) from error
        self._families: list[Any] = []
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._file = file
        self._server: Any = None
        if port is not None:
            try:
                self._server, self._thread = start_http_server(port, addr=ADDRESS, registry=self._registry)
            except OSError as error:
                what = f"port {port} cannot be used: {error.strerror}"
                raise InputError(what, hint="choose another one with --metrics PORT") from error

    def collect(self) -> list[Any]:
        """Return the metrics."""
        return self._families

    def update(self, view: View) -> None:
        """Take the metrics from a view, and write the file, if it is set.

        Raises:
            InputError: the file cannot be written.
        """
        self._families = list(families(view))
        if self._file is None:
            return
        from prometheus_client import generate_latest

        with METRICS.file(self._file) as file:
            file.write(generate_latest(self._registry))

    def close(self) -> None:
        """Stop the server."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
