"""The health of nodes before a replay: signals from their reports, judged by thresholds in a YAML file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from tracebed.ground.cpus import parse_cpus
from tracebed.ground.yaml_file import YamlFile
from tracebed.orchestrator.testbeds.checking.survey import NodeReport, work_rates
from tracebed.orchestrator.testbeds.limits import HINT, PRESSURES, STEAL, LimitsFile, Signal, limits_of
from tracebed.orchestrator.testbeds.nodes import Node

SHIPPED = Path(__file__).with_name("health.yaml")
"""The thresholds that tracebed provides."""
STATES = ("healthy", "degraded", "unhealthy")
"""The states of a node. A degraded node can be used, but distorts results; an unhealthy node should be left out."""


SIGNALS = {
    "load": Signal("load average of the last minute, over the CPUs of the machine", ""),
    **PRESSURES,
    "memory_free_mib": Signal("free memory", "MiB", falls=True),
    "disk_free_mib": Signal("free space on the disk of the spool", "MiB", falls=True),
    "shared_free_mib": Signal("free space in /dev/shm", "MiB", falls=True),
    "cpu_quota": Signal("CPU quota of the control group, over the cores of the node", "%", falls=True),
    "memory_limit": Signal("memory limit of the control group, over the memory of the node", "%", falls=True),
    "process_limit": Signal("largest number of processes of the control group", "", falls=True),
    "clock_offset_s": Signal("difference of the time of day from this machine", "s"),
    "round_trip_s": Signal("shortest round trip of a message", "s"),
    "outside_load": Signal("load by other processes, over the cores of the node", "%"),
    "steal": STEAL,
    "rate_deviation": Signal("deviation of the work rate from the median of the group", "%"),
}
"""Signal -> its meaning and unit."""


class NodeLimits(BaseModel):
    """The limits of a signal."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    degraded: Annotated[float, Field(ge=0)] | None = None
    unhealthy: Annotated[float, Field(ge=0)] | None = None


class NodeCause(NamedTuple):
    """A signal beyond a limit."""

    signal: str
    value: float
    limit: float
    state: str
    text: str


@dataclass(frozen=True)
class NodeHealth:
    """The health of a node: one of `STATES`, the causes, and all signals that are known."""

    node: str
    state: str
    causes: tuple[NodeCause, ...]
    signals: Mapping[str, float]
    error: str | None = None

    @property
    def reason(self) -> str:
        """The error or the causes as text."""
        return self.error or "; ".join(cause.text for cause in self.causes)

    def as_dict(self) -> dict[str, Any]:
        """Return the health as JSON values."""
        causes = [cause._asdict() for cause in self.causes]
        return {"state": self.state, "error": self.error, "causes": causes, "signals": dict(self.signals)}


def read_limits(path: Path = SHIPPED) -> dict[str, dict[str, NodeLimits]]:
    """Read a file of thresholds: kind of node -> signal -> limits. The message of an error has the line."""
    yaml = YamlFile.read(path, "thresholds of nodes", hint=HINT, unreadable="check --health")
    return limits_of(yaml, LimitsFile[NodeLimits], SIGNALS)


def kind_of(node: Node) -> str:
    """Return the kind of a node, one of `limits.KINDS`."""
    return "emulated" if node.emulated else "paced" if node.duty_or(None) < 1 else "computing"


def judge(reports: Sequence[NodeReport], limits: Mapping[str, Mapping[str, NodeLimits]]) -> list[NodeHealth]:
    """Return the health of each node. A node whose agent has not answered is unhealthy."""
    medians = work_rates(reports)
    judged = []
    for report in reports:
        if report.error is not None:
            judged.append(NodeHealth(report.node.name, "unhealthy", (), {}, report.error))
            continue
        signals = signals_of(report, medians.get(report.group))
        causes = tuple(_causes(signals, limits[kind_of(report.node)]))
        state = max((cause.state for cause in causes), key=STATES.index, default="healthy")
        judged.append(NodeHealth(report.node.name, state, causes, signals))
    return judged


def signals_of(report: NodeReport, median_rate: float | None = None) -> dict[str, float]:
    """Return the signals of a node that are known, given the median work rate of its group."""
    facts, node = report.facts, report.node
    cgroup, rate = facts["cgroup"], report.units_per_core_second
    cores = node.cores or len(parse_cpus(facts["cpus"]))
    signals: dict[str, float | None] = {
        "load": facts["load"][0] / facts["topology"]["cpus"],
        **{f"{name}_pressure": facts["pressure"][name] for name in ("cpu", "io", "memory")},
        "memory_free_mib": facts["memory"]["free_mib"],
        "disk_free_mib": facts["disk"]["free_mib"],
        "shared_free_mib": facts["disk"]["shared_free_mib"],
        "cpu_quota": None if cgroup["cpus"] is None else cgroup["cpus"] / cores,
        "memory_limit": cgroup["memory_mib"] / node.memory_mib if cgroup["memory_mib"] and node.memory_mib else None,
        "process_limit": cgroup["processes"],
        "clock_offset_s": None if report.wall_offset_s is None else abs(report.wall_offset_s),
        "round_trip_s": report.clock.get("round_trip_s"),
        "rate_deviation": abs(rate / median_rate - 1) if rate is not None and median_rate else None,
        **_between(report, cores),
    }
    return {name: value for name, value in signals.items() if value is not None}


def _between(report: NodeReport, cores: int) -> dict[str, float | None]:
    """Return the signals from the counters of a computing node between the two samples."""
    if len(report.samples) < 2 or report.node.emulated:
        return {}
    (start, first), (end, last) = report.samples[0], report.samples[-1]
    span = (end - start) * cores
    if span <= 0 or "busy_s" not in first or "busy_s" not in last:
        return {}
    busy, own = last["busy_s"] - first["busy_s"], last["cpu_s"] - first["cpu_s"]
    return {"outside_load": max(0.0, busy - own) / span, "steal": (last["steal_s"] - first["steal_s"]) / span}


def _causes(signals: Mapping[str, float], limits: Mapping[str, NodeLimits]) -> Iterable[NodeCause]:
    """Yield the signals beyond a limit, each with the worse of its states."""
    for name, value in signals.items():
        signal, of_signal = SIGNALS[name], limits.get(name, NodeLimits())
        for state, limit in (("unhealthy", of_signal.unhealthy), ("degraded", of_signal.degraded)):
            if limit is not None and (value < limit if signal.falls else value > limit):
                text = f"{signal.meaning}: {_shown(value, signal.unit)} (limit {_shown(limit, signal.unit)})"
                yield NodeCause(name, value, limit, state, text)
                break


def _shown(value: float, unit: str) -> str:
    return f"{value:.1%}" if unit == "%" else f"{value:.3g} {unit}".strip() if value < 1000 else f"{value:,.0f} {unit}"
