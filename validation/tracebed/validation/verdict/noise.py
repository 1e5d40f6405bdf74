"""Noise profiles: the variation of the metrics of a testbed between repetitions.

A profile pools the variances of the logarithm of each metric over cells (a workload under a policy), each around its
own mean. It supplies the noise of a real run that was not repeated, if that run is from a testbed of the same class
(docs/explanation/noise.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd
from pydantic import Field

from tracebed.ground.errors import InputError
from tracebed.ground.stored import Part, StoredFile
from tracebed.ground.version import version
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.orchestrator.testbeds.calibration import Instant, Number, Sha256
from tracebed.validation.metrics import TAU, Margin, MeasuredRun, all_metrics, summarize
from tracebed.validation.verdict import screening
from tracebed.validation.verdict.cases import case_name
from tracebed.validation.verdict.comparison import time_compression
from tracebed.validation.verdict.decision import Samples, estimate, repeats_needed
from tracebed.validation.verdict.health import UNHEALTHY, Health, counted_notes
from tracebed.validation.verdict.screening import copied, log_sha256
from tracebed.validation.verdict.tolerances import Tolerances

LEAST_DF = 4  # smallest number of degrees of freedom of a profile: those of five repetitions of one cell


class TestbedClass(Part):
    """The facts of a testbed on which the noise depends. Profiles are valid for runs with equal facts."""

    __test__: ClassVar[bool] = False  # for pytest

    execution: str  # `computed`, `emulated`, `logged` or a mixture
    testbed: str  # type of testbed: `local`; empty for a log
    nodes: Annotated[int, Field(ge=1)]
    cores: list[Annotated[int, Field(ge=1)]]  # the different numbers of cores per node
    duty: list[Number]  # the different duties of the nodes
    clock: str  # `wall` or `steady`; empty for a log
    speed: Annotated[float, Field(gt=0, allow_inf_nan=False)]  # trace seconds per wall second
    cpu: list[str]  # the different models of CPUs

    @classmethod
    def of(cls, info: RunInfo) -> Self:
        """Return the class of the testbed of a run."""
        return cls(
            execution=info.execution,
            testbed=str(info.parameters.get("testbed", "")),
            nodes=len(info.nodes),
            cores=sorted({node.cores for node in info.nodes}),
            duty=sorted({float(each) for each in info.duties}),
            clock=str(info.parameters.get("clock", "")),
            speed=info.speed,
            cpu=sorted({str(host.get("cpu", "")) for host in info.hosts}),
        )

    def differences(self, other: TestbedClass) -> list[str]:
        """Return the facts that differ, as text: `speed 500 and 1000`."""
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in type(self).model_fields]
        return [f"{name} {_value_text(a)} and {_value_text(b)}" for name, a, b in pairs if a != b]


def _value_text(value: Any) -> str:
    values = value if isinstance(value, list) else [value]
    return "/".join(f"{each:g}" if isinstance(each, float) else str(each) for each in values) or "unknown"


class MetricNoise(Part):
    """The noise of one metric."""

    # Standard deviation of the logarithm of the metric: about its coefficient of variation.
    log_sd: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    df: Annotated[float, Field(ge=1, allow_inf_nan=False)]  # degrees of freedom of `log_sd`: repetitions - cells
    cells: Annotated[int, Field(ge=1)]


class ProfiledCell(Part):
    """The repetitions of a workload under a policy."""

    workload: str
    policy: str
    runs: list[Sha256]  # hash of the times and states of the jobs of each repetition


class NoiseProfile(StoredFile):
    """The noise of a class of testbeds, from earlier repetitions."""

    KIND: ClassVar[str] = "noise profile"
    HINT: ClassVar[str] = "`tracebed metrics RUN... --noise FILE` writes noise profiles"

    file_schema: Annotated[Literal["tracebed-noise/1"], Field(alias="schema")] = "tracebed-noise/1"
    created: Instant
    """ISO 8601, with the time zone."""
    tracebed: str
    """Version of tracebed."""
    tau: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Threshold of the bounded slowdown, s."""
    testbed: TestbedClass
    metrics: dict[str, MetricNoise]
    cells: list[ProfiledCell]

    def noise(self, metric: str) -> MetricNoise | None:
        """Return the noise of a metric, or None if it is unknown."""
        return self.metrics.get(metric)

    def require(self, info: RunInfo, tau: float) -> None:
        """Check that a run is from a testbed of the class of the profile, and that the metrics are the same.

        Args:
            info: the facts of the real run to be judged.
            tau: threshold of the bounded slowdown, s.

        Raises:
            InputError: the class differs, or the threshold. The error names what differs.
        """
        if tau != self.tau:
            what = f"the noise profile has bounded slowdowns with tau {self.tau:g}, this verdict with tau {tau:g}"
            raise InputError(what, hint=f"use --tau {self.tau:g}, or make a profile with --tau {tau:g}")
        if different := self.testbed.differences(TestbedClass.of(info)):
            raise InputError(
                f"the noise profile is from another class of testbed: {'; '.join(different)}",
                hint="make a profile from repetitions on the same testbed, with the same settings",
            )


@dataclass(frozen=True)
class CellNoise:
    """The variation of one metric over the repetitions of a cell."""

    cell: str
    metric: str
    repetitions: int
    mean: float
    sd: float
    """Standard deviation of a repetition, unit of the metric; NaN for one repetition."""
    compression: float = 1.0
    """Factor on margins in seconds: the compression of the run times of the workload."""

    @property
    def cv(self) -> float:
        """Coefficient of variation: sd / mean; NaN for a mean of 0."""
        return self.sd / abs(self.mean) if self.mean else math.nan


@dataclass(frozen=True)
class NoiseFloor:
    """The noise of repeated real runs, by cell and metric, and the profile that pools it."""

    cells: tuple[CellNoise, ...]
    profile: NoiseProfile | None
    """None if the repetitions are too few for a profile."""
    left_out: tuple[str, ...]
    """Runs that are not used, with the reason."""
    unusual: tuple[str, ...] = ()
    """Runs that are used although their outcome is unusual (H4, H5), with the signals."""
    notes: tuple[str, ...] = ()
    """How the health of runs differs from their record, and what could not be recomputed; a sentence each."""
    selections: Mapping[str, Mapping[str, MetricNoise]] = field(default_factory=dict)
    """Other selections of runs -> metric -> pooled noise: `with excluded` and `without unusual`, if they differ."""


def noise_floor(runs: Mapping[str, Run] | Sequence[Run], tau: float = TAU) -> NoiseFloor:
    """Return the noise of repetitions of one or several cells on one testbed.

    Unhealthy runs, interrupted runs, and copies of an earlier run (up to a shift and to rounding) are excluded. The
    workload, the policy and its parameters make the cell. InputError: a run is a prediction, the runs are from
    different classes of testbeds, or no run is usable.
    """
    named = runs if isinstance(runs, Mapping) else {f"run {number}": run for number, run in enumerate(runs, 1)}
    if not named:
        raise InputError("no runs are given", hint="name the repetitions of a real run")
    _check_class(named)
    repetitions, left_out = _screened(named, tau)
    used = [each for each in repetitions if not each.excluded]
    if not used:
        raise InputError(f"no run is usable: {left_out[0]}", hint="repeat the runs on an idle machine")
    flags = _unusual(used)
    cells = _cells(used)
    variations = [item for label, cell in zip(_labels(cells), cells, strict=True) for item in cell.noise(label)]
    others = {
        "with excluded": repetitions if len(repetitions) > len(used) else [],
        "without unusual": [each for each in used if each.name not in flags] if flags else [],
    }
    return NoiseFloor(
        cells=tuple(variations),
        profile=_profile(cells, tau),
        left_out=tuple(left_out),
        unusual=tuple(f"{name}: {text}" for name, text in flags.items()),
        notes=tuple(
            counted_notes([(each.name, note) for each in repetitions for note in each.notes], len(repetitions))
        ),
        selections={name: _pooled_metrics(_cells(runs)) for name, runs in others.items() if runs},
    )


@dataclass(frozen=True)
class _Repetition:
    """A real run with its figures."""

    name: str
    info: RunInfo
    figures: Mapping[str, Any]
    digest: str
    excluded: bool
    notes: tuple[str, ...]


def _screened(runs: Mapping[str, Run], tau: float) -> tuple[list[_Repetition], list[str]]:
    """Return the runs without copies, and a text for each run that is not used."""
    repetitions, left_out = [], []
    earlier: dict[str, Run] = {}
    for name, run in runs.items():
        figures = summarize(MeasuredRun(run, tau))
        health = Health.of(run, figures["clock_skew_jobs"])
        if health.state == UNHEALTHY:
            left_out.append(f"{name}: unhealthy: {health.why}")
        elif original := copied(run, earlier):
            left_out.append(f"{name}: the same times as {original}")
            continue
        else:
            earlier[name] = run
        unhealthy = health.state == UNHEALTHY
        repetitions.append(_Repetition(name, run.info, figures, log_sha256(run), unhealthy, health.notes))
    return repetitions, left_out


def _unusual(runs: Sequence[_Repetition]) -> dict[str, str]:
    """Return the signals H4 and H5 of the runs that have some, by name."""
    columns = ["mean_run_s", "makespan_s", "loss_of_capacity"]
    texts: dict[str, str] = {}
    for key in dict.fromkeys(_key(each.info) for each in runs):
        own = [each for each in runs if _key(each.info) == key]
        table = pd.DataFrame([[each.figures[name] for name in columns] for each in own], columns=columns, dtype=float)
        texts |= {each.name: text for each, text in zip(own, screening.signals(table), strict=True) if text}
    return texts


def _cells(runs: Sequence[_Repetition]) -> list[_Cell]:
    """Return the runs by workload, policy and its parameters."""
    cells: dict[tuple[str, ...], _Cell] = {}
    for each in runs:
        cell = cells.setdefault(_key(each.info), _Cell(each.info, each.name, [], []))
        cell.add(each.figures, each.digest)
    return list(cells.values())


@dataclass
class _Cell:
    """The figures of the repetitions of a cell."""

    info: RunInfo
    first: str  # name of its first run
    figures: list[Mapping[str, Any]]
    hashes: list[str]

    def add(self, figures: Mapping[str, Any], digest: str) -> None:
        self.figures.append(figures)
        self.hashes.append(digest)

    def values(self, metric: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return a metric of each repetition; empty if it is undefined for some."""
        values = np.array([figures[metric] for figures in self.figures], dtype=np.float64)
        return values if np.isfinite(values).all() else values[:0]

    def noise(self, label: str) -> Iterable[CellNoise]:
        """Yield the noise of each metric with a margin that is defined."""
        for name, metric in all_metrics().items():
            values = self.values(name)
            if metric.margin is not None and len(values):
                sd = float(values.std(ddof=1)) if len(values) > 1 else math.nan
                yield CellNoise(label, name, len(values), float(values.mean()), sd, time_compression(self.info))


def _check_class(runs: Mapping[str, Run]) -> None:
    """Raise InputError for a prediction, and for runs from different classes of testbeds."""
    first: tuple[str, TestbedClass] | None = None
    for name, run in runs.items():
        if not run.info.is_real:
            raise InputError(f"is {run.info.kind}", where=name, hint="name real runs only")
        own = TestbedClass.of(run.info)
        first = first or (name, own)
        if different := first[1].differences(own):
            what = f"another class of testbed than {first[0]}: {'; '.join(different)}"
            raise InputError(what, where=name, hint="make a profile of each class")


def _key(info: RunInfo) -> tuple[str, ...]:
    parameters = json.dumps(info.policy_parameters, sort_keys=True, default=str)
    return str(info.workload.get("sha256")), info.policy, parameters, info.machine.digest if info.machine else ""


def _labels(cells: Sequence[_Cell]) -> list[str]:
    """Return the name of each cell, with the first run where this is ambiguous."""
    names = [case_name(cell.info) for cell in cells]
    return [
        f"{name} ({cell.first})" if names.count(name) > 1 else name for name, cell in zip(names, cells, strict=True)
    ]


def _profile(cells: Sequence[_Cell], tau: float) -> NoiseProfile | None:
    """Return the profile of the cells, or None if no metric has `LEAST_DF` degrees of freedom."""
    metrics = {name: noise for name, noise in _pooled_metrics(cells).items() if noise.df >= LEAST_DF}
    if not metrics:
        return None
    return NoiseProfile(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tracebed=version(),
        tau=tau,
        testbed=TestbedClass.of(cells[0].info),
        metrics=metrics,
        cells=[
            ProfiledCell(workload=str(cell.info.workload.get("name") or ""), policy=cell.info.policy, runs=cell.hashes)
            for cell in cells
        ],
    )


def _pooled_metrics(cells: Sequence[_Cell]) -> dict[str, MetricNoise]:
    """Return the pooled noise of each metric for which it is known."""
    pooled = {name: _pooled([cell.values(name) for cell in cells]) for name in all_metrics()}
    return {name: noise for name, noise in pooled.items() if noise is not None}


def _pooled(samples: Sequence[np.ndarray[Any, np.dtype[np.float64]]]) -> MetricNoise | None:
    """Return the pooled standard deviation of the logarithms around the mean of each cell (of two values above 0)."""
    logs = [np.log(values) for values in samples if len(values) > 1 and (values > 0).all()]
    if not logs:
        return None
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in logs)
    df = sum(len(values) - 1 for values in logs)
    return MetricNoise(log_sd=math.sqrt(squares / df), df=float(df), cells=len(logs))


def repeats_for(floor: NoiseFloor, tolerances: Tolerances) -> dict[str, int | None]:
    """Return for each metric the repetitions of each cell with which an exact prediction is proved accurate.

    The probability is 80 %, in a validation of all cells together. The metrics are those with a margin and with two
    repetitions in some cell. None: more than 1,000 repetitions.
    """
    known: dict[str, list[CellNoise]] = {}
    for item in floor.cells:
        if item.repetitions > 1 and item.metric in tolerances.margins:
            known.setdefault(item.metric, []).append(item)
    needed = {}
    for name, items in known.items():
        mean, sd, count = (np.array([getattr(item, key) for item in items]) for key in ("mean", "sd", "repetitions"))
        margin = np.array([_margin(tolerances.margins[name], item) for item in items])
        samples = Samples(mean, sd, count - 1.0, count, mean, margin)
        found = estimate(samples, tolerances.alpha, tolerances.kappa)
        needed[name] = repeats_needed(samples, found, tolerances.alpha, tolerances.repeats(len(items)))
    return needed


def _margin(margin: Margin, item: CellNoise) -> float:
    """Return the margin of a metric in a cell, unit of the metric."""
    if all_metrics()[item.metric].unit == "s":
        margin = replace(margin, absolute=margin.absolute * item.compression)
    return margin.at(item.mean)
