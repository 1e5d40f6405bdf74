"""Calibration files of testbeds: overheads and work rates. Runs name the file that was used.

A `Calibration` is made by `tracebed nodes calibrate` and used by `simulate --calibration` and `replay --calibration`. A
`StoredRate` is the work rate of the computing nodes of one machine, measured once, so that all replays do equal work.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer

from tracebed.ground import bounds
from tracebed.ground.errors import InputError
from tracebed.ground.stored import Part, StoredFile

OVERHEADS = (
    *("launch_s", "launch_join_s", "launch_rank_s", "end_s", "end_rank_s"),
    *("reconfiguration_s", "expand_s", "expand_rank_s", "release_s"),
)
"""The overheads of a calibration: arguments of `simulation.overheads.Overheads`, wall seconds."""
COSTS = (
    *("expand_pause_s", "expand_pause_rank_s", "expand_pause_mib_s"),
    *("shrink_pause_s", "shrink_pause_rank_s", "shrink_pause_mib_s", "shrink_release_s"),
)
"""The costs of the resizes of an application, wall seconds (`simulation.delays.Pauses`)."""


def _instant(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("the time zone is missing")
    return text


def _overhead(name: str) -> str:
    if name not in OVERHEADS:
        raise ValueError(f"{name} is not an overhead")
    return name


def _cost(name: str) -> str:
    if name not in COSTS:
        raise ValueError(f"{name} is not a cost of a resize")
    return name


Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Instant = Annotated[str, AfterValidator(_instant)]
Step = Literal["launch", "end", "expand", "reconfiguration", "release"]
Overhead = Annotated[str, AfterValidator(_overhead)]
Cost = Annotated[str, AfterValidator(_cost)]


def host_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a machine that a calibration stores: those that are a text, a number or unknown."""
    return {key: value for key, value in facts.items() if isinstance(value, str | int | float | None)}


class OverheadEstimate(Part):
    """An estimate of one quantity: the constant that predictions use, its interval, and facts of the samples."""

    value: Number
    """The constant."""
    median: Number
    low: Number
    """Lower end of the confidence interval (95 %) of the constant."""
    high: Number
    """Upper end of the confidence interval."""
    count: Annotated[int, Field(ge=0)]
    """Number of samples."""
    repetitions: list[Number] = Field(default_factory=list)
    """The constant estimated from each repetition alone."""


class RateEstimate(Part):
    """The work rate of a core over windows of time, units per second of CPU time."""

    median: Positive
    low: Positive
    """Lower end of the confidence interval (95 %) of the median."""
    high: Positive
    p05: Positive
    """5th percentile of the windows."""
    p95: Positive
    windows: Annotated[int, Field(ge=1)]
    window_s: Positive
    """Duration of a window, CPU seconds."""

    @property
    def spread(self) -> list[float]:
        """The 5th and the 95th percentile as multiples of the median."""
        return [round(self.p05 / self.median, 4), round(self.p95 / self.median, 4)]


class SizeEstimate(Part):
    """An overhead of the jobs with one number of ranks, wall seconds."""

    ranks: Annotated[int, Field(ge=1)]
    estimate: OverheadEstimate


class SpeedupEstimate(Part):
    """The time and the speedup of a fixed amount of work of a benchmark on one allocation."""

    benchmark: str
    nodes: Annotated[int, Field(ge=1)]
    cores: Annotated[int, Field(ge=1)]
    """Cores per node."""
    seconds: OverheadEstimate
    speedup: Positive
    """Relative to one core of one node."""


class DutyProposal(Part):
    """The largest duty with which the work of an iteration fits into its plan."""

    duty: Annotated[float, Field(gt=0, le=1)]
    quantile: Annotated[float, Field(gt=0, lt=1)]
    """Share of the iterations whose work must fit into the plan, on the slowest of all ranks."""
    ranks: Annotated[int, Field(ge=1)]
    late: Annotated[float, Field(ge=0, le=1)]
    """Share of the iterations that are expected to end late with this duty."""


Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Loss = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class FittedRuns(Part):
    """Repetitions that overheads were fitted to."""

    workload: str
    sha256: Sha256
    policy: str
    speed: Positive
    """Trace seconds per wall second."""
    runs: list[str]
    """Names or folders."""


class FitFold(Part):
    """A fit without the runs of one workload, applied to that workload."""

    workload: str
    overheads: dict[Overhead, Number]
    loss_in: Loss
    """Loss for the workloads of the fit."""
    loss_out: Loss
    """Loss for the workload left out."""
    loss_out_without: Loss
    """Loss for the workload left out without overheads."""


class FitRecord(Part):
    """The fit of overheads to real runs: `tracebed nodes calibrate RUN...`."""

    loss: Literal["metrics", "jobs"]
    """Mean relative error of the gated metrics, or of wait and response of each job."""
    value: Loss
    """Loss of the fitted overheads."""
    without_overheads: Loss
    tolerance: Loss
    """Largest additional loss of a set of the cloud."""
    budget: Annotated[int, Field(ge=1)]
    seed: Annotated[int, Field(ge=0)]
    sets: Annotated[int, Field(ge=1)]
    """Number of parameter sets tried."""
    simulations: Annotated[int, Field(ge=1)]
    """Number of simulations, cross-validation included."""
    identified: list[Overhead]
    """Overheads that the runs determine within a factor of 2."""
    known: list[Overhead]
    """Overheads that were given."""
    without_effect: list[Overhead]
    """Overheads that change nothing in these runs. They are 0."""
    runs: list[FittedRuns]
    cross_validation: list[FitFold]
    """A fold per workload; empty with a single workload."""


class Calibration(StoredFile):
    """A calibration of a testbed. All times are wall seconds."""

    KIND: ClassVar[str] = "calibration"
    HINT: ClassVar[str] = "`tracebed nodes calibrate` writes calibrations"

    file_schema: Annotated[Literal["tracebed-calibration/1"], Field(alias="schema")] = "tracebed-calibration/1"
    name: str
    created: Instant
    """ISO 8601, with the time zone."""
    tracebed: str
    """Version of tracebed."""
    inventory: str
    """Name of the inventory."""
    execution: Literal["computed", "emulated"]
    nodes: Annotated[int, Field(ge=1)]
    cores: list[Annotated[int, Field(ge=1)]]
    """The different numbers of cores per node."""
    host: dict[str, str | int | float | None]
    """Facts of the machine."""
    speed: Annotated[float, Field(ge=bounds.MIN_SPEED, le=bounds.MAX_SPEED)]
    """Trace seconds per wall second of the probes."""
    grain_s: Annotated[float, Field(ge=0, le=60)]
    """Target duration of an iteration; 0: the jobs of a batch system have no iterations."""
    repetitions: Annotated[int, Field(ge=1)]
    units_per_core_second: RateEstimate | None = None
    """None: the nodes are emulated."""
    duty: Annotated[float, Field(ge=0, le=1)]
    """Duty of the probes, and of replays with this calibration on nodes without a duty. 0: the nodes are emulated."""
    duty_proposal: DutyProposal | None = None
    overheads: dict[Overhead, OverheadEstimate]
    """Overhead of the simulator -> estimate. A missing overhead is 0."""
    factors: dict[Step, list[Annotated[float, Field(ge=0, allow_inf_nan=False)]]] = Field(default_factory=dict)
    """Step of a job -> measured delays as multiples of their overhead, ascending: factors of equal probability, with
    mean 1, from which an ensemble draws. Empty: not measured, as in a fit."""
    launch: list[SizeEstimate] = Field(default_factory=list)
    """Time from the allocation of a job to its first work, by number of ranks."""
    end: list[SizeEstimate] = Field(default_factory=list)
    """Time from the planned end of the work of a job until its nodes are idle, by number of ranks."""
    resizes: dict[str, OverheadEstimate] = Field(default_factory=dict)
    """Stage of a resize (`expand asked to decided`, ...) -> its duration."""
    applications: dict[str, dict[Cost, OverheadEstimate]] = Field(default_factory=dict)
    """Application, or command, of malleable jobs -> costs of its resizes, in place of the overheads. Of an expansion
    (`expand`) and of a shrink by one node with an empty state the pause (`_pause_s`), in addition for each further node
    (`_pause_rank_s`) and each MiB of the state (`_pause_mib_s`), and the time from the end of the pause of a shrink
    until its nodes are idle (`shrink_release_s`). Empty: no program ran."""
    steps: dict[Overhead, OverheadEstimate] = Field(default_factory=dict)
    """`launch_s` and `end_s` of malleable jobs beside a layer, in addition to those of `overheads`: such a job starts a
    step of the batch system on each of its nodes, and ends when its steps have ended. Empty: no layer."""
    grain: OverheadEstimate | None = None
    """Time from the request of a shrink to its malleability point, in durations of an iteration."""
    speedups: list[SpeedupEstimate] = Field(default_factory=list)
    sharing: OverheadEstimate | None = None
    """Slowdown of cores by work on the other cores of their node. 1: no slowdown."""
    interference: dict[str, dict[str, OverheadEstimate]] = Field(default_factory=dict)
    """Compute kernel -> kernel on the other half of the cores -> rate of the first one, relative to idle other cores.

    Empty: not measured."""
    skipped: list[str] = Field(default_factory=list)
    """Measurements that were left out, and why."""
    workloads: list[Sha256]
    """SHA-256 of the workloads from which the calibration was made. No verdict may be based on them."""
    batch: str = ""
    """The batch system to which the overheads belong; empty: the overheads belong to jobs launched by tracebed."""
    fit: FitRecord | None = None
    """None: the overheads were measured, not fitted. The intervals of fitted overheads are ranges over the cloud."""
    cloud: list[dict[Overhead, Number]] = Field(default_factory=list)
    """Sets of overheads that fit the runs equally well; the first is the best."""

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the contents. Files without what is measured of some runs only keep the hash of earlier runs."""
        written: dict[str, Any] = write(self)
        return {key: each for key, each in written.items() if each or key not in ("applications", "steps")}

    @property
    def constants(self) -> dict[str, float]:
        """The overheads as arguments of `simulation.overheads.Overheads`, wall seconds."""
        return {name: max(0.0, estimate.value) for name, estimate in self.overheads.items()} | {"grain_s": self.grain_s}

    @property
    def members(self) -> list[Calibration]:
        """A calibration for each set of the cloud, to predict with each; empty for measured overheads."""
        return [self.model_copy(update={"overheads": _estimates(overheads), "cloud": []}) for overheads in self.cloud]

    def facts(self) -> dict[str, Any]:
        """Return the facts of the calibration in `run.json`."""
        rate = self.units_per_core_second
        table = {kernel: {other: one.value for other, one in row.items()} for kernel, row in self.interference.items()}
        costs = {name: {key: one.value for key, one in each.items()} for name, each in self.applications.items()}
        steps = {name: one.value for name, one in self.steps.items()}
        return {
            "name": self.name,
            "sha256": self.sha256,
            "created": self.created,
            "inventory": self.inventory,
            "execution": self.execution,
            "units_per_core_second": rate and rate.median,
            "spread": rate and rate.spread,
            "duty": self.duty,
            "workloads": list(self.workloads),
            **({"interference": table} if table else {}),
            **({"applications": costs} if costs else {}),
            **({"steps": steps} if steps else {}),
        }


def _estimates(overheads: Mapping[str, float]) -> dict[str, OverheadEstimate]:
    """Return `overheads` (wall s) as estimates without an interval."""
    return {
        name: OverheadEstimate(value=value, median=value, low=value, high=value, count=0)
        for name, value in overheads.items()
    }


class StoredRate(StoredFile):
    """The work rate of the computing nodes of a machine, by which replays on these nodes size the work of jobs."""

    KIND: ClassVar[str] = "work rate"
    HINT: ClassVar[str] = "delete the file to measure the work rate again"

    file_schema: Annotated[Literal["tracebed-rate/1"], Field(alias="schema")] = "tracebed-rate/1"
    created: Instant
    """ISO 8601, with the time zone."""
    host: str
    cpu: str
    kernel: str
    """How the work is compiled: `c` or `numpy`."""
    work: str = "pils"
    """The kernel that does the work: `pils` or `stream`."""
    cpus: str
    """The CPUs of the nodes."""
    units_per_core_second: RateEstimate

    @property
    def path(self) -> Path:
        """The file of the rate in the user's state folder."""
        return rate_path(self.host, self.cpu, self.kernel, self.cpus, self.work)

    def facts(self) -> dict[str, Any]:
        """Return the facts of the rate in `run.json`."""
        return {
            "name": f"stored rate {self.path.stem}",
            "sha256": self.sha256,
            "created": self.created,
            "units_per_core_second": self.units_per_core_second.median,
            "spread": self.units_per_core_second.spread,
            "duty": None,
            "workloads": [],
        }


def state_folder() -> Path:
    """Return the folder for the state of tracebed of this user: `$XDG_STATE_HOME/tracebed`."""
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "tracebed"


def rate_path(host: str, cpu: str, kernel: str, cpus: str, work: str = "pils") -> Path:
    """Return the file of the stored rate of some CPUs of a machine."""
    digest = hashlib.sha256("\n".join((host, cpu, kernel, cpus)).encode()).hexdigest()[:12]
    name = re.sub(r"[^\w.-]", "_", host)[:40]
    kind = kernel if work == "pils" else f"{work}-{kernel}"
    return state_folder() / "rates" / f"{name}-{kind}-{digest}.yaml"


def load_rate(host: str, cpu: str, kernel: str, cpus: str, work: str = "pils") -> StoredRate | None:
    """Return the stored rate of some CPUs of a machine, or None if no rate is stored."""
    path = rate_path(host, cpu, kernel, cpus, work)
    if not path.exists():
        return None
    rate = StoredRate.load(path)
    if (rate.host, rate.cpu, rate.kernel, rate.cpus, rate.work) != (host, cpu, kernel, cpus, work):
        raise InputError("is the rate of another machine", where=str(path), hint="delete it to measure again")
    return rate


def store_rate(rate: StoredRate) -> Path:
    """Write the rate to the user's state folder, and return its path. Raises InputError if it cannot be written."""
    path = rate.path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"cannot be written: {error.strerror}"
        raise InputError(what, where=str(path.parent), hint="set XDG_STATE_HOME to another folder") from error
    return rate.save(path, replace=True)
