"""The signals of the health of a replay, and their thresholds: a YAML file of limits for each kind of execution."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tracebed.ground.yaml_file import YamlFile, abbreviated
from tracebed.orchestrator.testbeds.limits import HINT, PRESSURES, STEAL, LimitsFile, Signal, limits_of

SHIPPED = Path(__file__).with_name("health.yaml")  # the thresholds that tracebed provides


# Signal -> its meaning and unit.
SIGNALS = {
    # Completeness.
    "nodes_missing": Signal("nodes of the inventory that sent no message", ""),
    "agents_lost": Signal("nodes lost", ""),
    "interrupted": Signal("the replay was interrupted", ""),
    "pauses": Signal("pauses of the replay until it was resumed", ""),
    "jobs_disturbed": Signal("disturbed jobs", "%"),
    # Lateness: the schedule was shifted.
    "rank_late_s": Signal("a rank was stopped or late", "s"),
    "residual_s": Signal("a job was behind its plan when it ended", "s"),
    "lost_time": Signal("difference between planned and real run times, over planned run times", "%"),
    "run_time_off_s": Signal("the recorded time of a job to its end, or to a resize, differs from its plan, by", "s"),
    "run_time_off": Signal("sum of such differences of run times, over planned run times", "%"),
    "overhead_late_s": Signal("a launch or an end took more than twice the usual time, by", "s"),
    "overhead_excess": Signal("sum of such delays of launches and ends, over planned run times", "%"),
    "loop_late_s": Signal("the replayer was late", "s"),
    "agent_late_s": Signal("an agent was late", "s"),
    "submission_late_s": Signal("a job was submitted late", "s"),
    "core_overlap_s": Signal("a CPU was in the masks of two jobs at once", "s"),
    "clock_step_s": Signal("step of the clock of this machine", "s"),
    # Risk: conditions under which a schedule is shifted.
    "cpu_wait": Signal("time in which computing threads waited for a CPU", "%"),
    **PRESSURES,
    "steal": STEAL,
    "outside_load": Signal("load by other processes, over the cores", "%"),
    "rate_spread": Signal("spread of the work rate (p05 to p95, over the median)", "%"),
    "rate_drift": Signal("difference of the work rate from its calibration", "%"),
    "calibration_drift": Signal("difference of the work rates measured before and after the jobs", "%"),
    "clock_loss": Signal("time in which the steady clock stood still", "%"),
}

SEVERE = ("unhealthy", "degraded")  # the states of causes, the worst first

Positive = Annotated[float, Field(ge=0)]


def format_value(value: float, unit: str) -> str:
    """Return the value of a signal with its unit as text."""
    return {"%": f"{100 * value:.3g} %", "s": f"{value:.3g} s"}.get(unit, f"{value:g}")


@dataclass(frozen=True)
class TimeScale:
    """The times of a replay to which limits may be relative."""

    speed: float  # trace s per wall s
    run_time_s: float  # mean planned run time of the jobs, wall s
    interarrival_s: float  # mean time between two submissions, wall s


class Limit(BaseModel):
    """A limit: the largest of `least` and the limits relative to the times of a replay, but at most `most`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    least: Positive = 0.0
    most: Positive = float("inf")
    run_times: Positive = 0.0
    """Multiple of the mean planned run time of the jobs in wall time."""
    interarrivals: Positive = 0.0
    """Multiple of the mean wall time between two submissions."""
    trace_s: Positive = 0.0
    """Limit in trace seconds."""

    @model_validator(mode="before")
    @classmethod
    def _number(cls, raw: Any) -> Any:
        if isinstance(raw, (int, float)) and not isinstance(raw, bool):
            return {"least": raw}
        if not isinstance(raw, dict):
            raise ValueError(f"{abbreviated(raw)} is not a number, nor a mapping of {', '.join(cls.model_fields)}")
        return raw

    def at(self, times: TimeScale) -> float:
        """Return the limit in a replay with the times `times`."""
        relative = (
            self.run_times * times.run_time_s,
            self.interarrivals * times.interarrival_s,
            self.trace_s / times.speed,
        )
        return min(self.most, max(self.least, *relative))


class SignalLimits(BaseModel):
    """The limits of a signal. A value above a limit makes the replay degraded or unhealthy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    degraded: Limit | None = None
    unhealthy: Limit | None = None


@dataclass(frozen=True)
class HealthThresholds:
    """The limits of each signal, and the text of their file."""

    where: str  # the file, for messages
    text: str  # the content of the file
    limits: Mapping[str, Mapping[str, SignalLimits]]  # kind -> signal -> limits; without, a signal is not judged

    @property
    def sha256(self) -> str:
        """The SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def wider(self, kind: str, times: TimeScale) -> list[str]:
        """Return the limits that are wider than the defaults for a replay, as text: `agents_lost: 5 instead of 0`."""
        own, texts = self.limits[kind], []
        for name, usual in HealthThresholds.read().limits[kind].items():
            for state in SEVERE:
                limit: Limit | None = getattr(usual, state)
                own_limit: Limit | None = getattr(own.get(name, SignalLimits()), state)
                if limit is None or (own_limit is not None and own_limit.at(times) <= limit.at(times)):
                    continue
                most = "no limit" if own_limit is None else format_value(own_limit.at(times), SIGNALS[name].unit)
                usually = format_value(limit.at(times), SIGNALS[name].unit)
                texts.append(f"{name}: {state} above {most} instead of {usually}".replace("above no limit", "never"))
        return texts

    def marking(self, kind: str, times: TimeScale) -> float:
        """Return the difference from the plan beyond which a run time is marked, at most the default, wall s."""
        limits = (
            each.limits[kind].get("run_time_off_s", SignalLimits()).degraded for each in (self, HealthThresholds.read())
        )
        return min(limit.at(times) for limit in limits if limit is not None)

    @classmethod
    def read(cls, path: Path = SHIPPED) -> HealthThresholds:
        """Read a file of thresholds, by default the file that tracebed provides. An error has the line."""
        return _shipped() if path == SHIPPED else _read(path)

    @classmethod
    def parse(cls, text: str, where: str) -> HealthThresholds:
        """Return the thresholds in `text`, which was read from `where`. Raises InputError if they are invalid."""
        shipped = _shipped()
        if (text, where) == (shipped.text, shipped.where):
            return shipped
        return cls._of(YamlFile.parse(text, where, hint=HINT))

    @classmethod
    def _of(cls, yaml: YamlFile) -> HealthThresholds:
        return cls(yaml.where, yaml.text, limits_of(yaml, LimitsFile[SignalLimits], SIGNALS))


@cache
def _shipped() -> HealthThresholds:
    """Return the thresholds that tracebed provides. A validation needs them twice for each real run."""
    return _read(SHIPPED)


def _read(path: Path) -> HealthThresholds:
    return HealthThresholds._of(YamlFile.read(path, "thresholds of health", hint=HINT, unreadable="check --health"))
