"""The parts of an experiment file: workloads, malleable shares, policies, windows, published figures, plots."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from tracebed.converters.malleability import MOST_DOUBLINGS, Thresholds
from tracebed.converters.models.registry import MODELS
from tracebed.converters.perturbation import Perturbation
from tracebed.ground.errors import InputError
from tracebed.ground.yaml_file import FileName
from tracebed.orchestrator.scheduling.names import FIRST
from tracebed.orchestrator.scheduling.placement import PLACEMENTS
from tracebed.orchestrator.simulation.processes import Processes
from tracebed.validation.metrics import all_metrics

MOST_POINTS = 1_000_000
"""Largest accepted number of points of a grid, and of seeds. A larger number is probably a typing error."""
MOST_REPETITIONS = 10_000
JOB_FIGURES = ("slowdown_ref", "wait", "run", "response")
"""Figures of jobs for heat maps and daily lines."""
OF_WORKLOADS = (
    *("workload_jobs", "workload_jobs_per_hour", "workload_records", "workload_removed", "workload_run_time_lost"),
)
"""Figures of workloads that claims may name: `characteristics`."""
FIGURES_OF_KIND = {
    **dict.fromkeys(("ecdf", "heatmap", "daily"), JOB_FIGURES),
    "distribution": ("nodes", "run_time"),
    "queue": ("utilization", "queue"),
}
"""Kind of plot that requires the jobs of a simulation -> its figures."""


def as_list(value: Any) -> Any:
    """Return a list unchanged, and any other value as a list with one element."""
    return value if isinstance(value, list) else [value]


def counted(value: Any) -> Any:
    """Return the seeds 0, 1, ... for a number of seeds, and any other value unchanged."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return value
    if not 0 < value <= MOST_POINTS:
        raise ValueError(f"{value:,} seeds; use a number from 1 to {MOST_POINTS:,}, or a list such as [0]")
    return list(range(value))


def numbered(value: Any) -> Any:
    """Return the numbers 1, 2, ... of random changes for their count (0: none), and any other value unchanged."""
    if value == 0 and not isinstance(value, bool):
        return [0]
    found = counted(value)
    return found if found is value else [number + 1 for number in found]


def _hashable(value: Any) -> Any:
    return repr(value) if isinstance(value, dict | list) else value


def _distinct(values: list[Any]) -> list[Any]:
    if twice := [value for value, count in Counter(map(_hashable, values)).items() if count > 1]:
        raise ValueError(f"{twice[0]!r} is listed twice")
    return values


def at_path(value: Any) -> Any:
    """Return a workload for the path of its file, or for no value, and any other value unchanged."""
    return {"file": value} if isinstance(value, str) else {} if value is None else value


def by_name(value: Any) -> Any:
    """Return a mapping for a list of names, and any other value unchanged."""
    if not isinstance(value, list):
        return value
    for index, name in enumerate(value):
        if not isinstance(name, str):
            raise ValueError(f"{name!r} is not a name; use a mapping of names to values")
        if name in value[:index]:
            raise ValueError(f"{name!r} is listed twice")
    return dict.fromkeys(value)


def named(value: Any) -> Any:
    """Return a policy without parameters for a name, and any other value unchanged."""
    return {"policy": value} if isinstance(value, str) else value


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Threshold = Annotated[float, Field(gt=0, le=1)]
NAME = r"^[\w][\w.+-]*$"
"""Pattern of names that are also names of folders."""
Name = Annotated[str, Field(pattern=NAME, max_length=80)]
Where = dict[str, Any]
AXIS = (BeforeValidator(as_list), Field(min_length=1), AfterValidator(_distinct))
"""A value or a list of distinct values."""
STRICT = ConfigDict(extra="forbid", strict=True, frozen=True)
"""Unknown keys and values of a wrong type are errors."""


class ExperimentPart(BaseModel):
    """A part of an experiment file."""

    model_config = STRICT


class LogSpec(ExperimentPart):
    """A public log: its recipe, its source, and the fingerprint that identifies the log."""

    recipe: str | None = None
    source: str = ""
    """Where to download the log."""
    path: str | None = None
    """Path relative to the experiment file. `--log` has precedence."""
    jobs: Annotated[list[Annotated[int, Field(ge=1)]], BeforeValidator(as_list)] = []
    """Number of jobs after cleaning; several numbers if an incomplete log is accepted, too."""
    fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """`workloads.fingerprint` of the cleaned workload."""
    settings: dict[str, dict[str, Any]] = {}
    """Parameters that override those of the recipe: step -> parameter -> value."""
    options: dict[str, Any] = {}
    """Options of the reader of the log."""


class Scaling(ExperimentPart):
    """Arguments of `scaling.scale`."""

    nodes: Annotated[int, Field(ge=1)] | None = None
    cores_per_node: Annotated[int, Field(ge=1)] | None = None
    window: Annotated[float, Field(gt=0)] | None = None
    start: float | None = None
    run_time: Annotated[float, Field(gt=0)] | None = None
    longest: Annotated[float, Field(gt=0)] | None = None
    arrivals: Annotated[float, Field(gt=0)] | None = None


class WorkloadSpec(ExperimentPart):
    """A workload from one source (a file, a log with a recipe, or a model with its options), optionally scaled.

    Recorded runs and recorded predictions need no source.
    """

    file: FileName | None = None
    """File of the workload, relative to the experiment file."""
    log: LogSpec | None = None
    model: str | None = None
    options: dict[str, Any] = {}
    scale: Scaling | None = None
    nodes: Annotated[int, Field(ge=1)] | None = None
    """Number of nodes of the simulated machine; by default that of the system of the workload."""
    cores_per_node: Annotated[int, Field(ge=1)] | None = None
    limits: Literal["exact"] | Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Limits in place of those of the source: the run times (`exact`), or the limits times a factor."""
    calibration: bool = False
    """Whether a simulator was calibrated with the workload: its cases are shown, and never gated."""
    cluster: str = ""
    """Name of the cluster of dependent workloads to which the workload belongs; empty: found from the runs."""

    @property
    def has_source(self) -> bool:
        """Whether the jobs are given."""
        return any(source is not None for source in (self.file, self.log, self.model))

    @property
    def is_plain(self) -> bool:
        """Whether the workload is its file, unchanged."""
        return self.file is not None and self.model_fields_set <= {"file", "calibration", "cluster"}

    @model_validator(mode="after")
    def _one_source(self) -> WorkloadSpec:
        if sum(source is not None for source in (self.file, self.log, self.model)) > 1:
            raise ValueError("a workload has only one of `file`, `log` and `model`")
        if not self.has_source and (
            given := self.model_fields_set - {"file", "log", "model", "calibration", "cluster"}
        ):
            raise ValueError(f"`{min(given)}` requires the source of the workload: `file`, `log` or `model`")
        if self.options and self.model is None:
            raise ValueError("`options` requires a `model`; use `log.options` for the options of a log")
        return self

    @field_validator("model")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        if name is not None and name not in MODELS.names():
            raise ValueError(f"unknown model {name!r}; use one of {', '.join(MODELS.names())}")
        return name


class Malleable(ExperimentPart):
    """Shares of the rigid jobs that become malleable, and the thresholds of `malleability.to_malleable`."""

    shares: Annotated[list[Annotated[float, Field(ge=0, le=1)]], *AXIS]
    preferred: Threshold = Thresholds.preferred
    most: Threshold = Thresholds.most
    least: Threshold = Thresholds.least
    doublings: Annotated[int, Field(ge=0, le=MOST_DOUBLINGS)] = Thresholds.doublings

    @property
    def thresholds(self) -> Thresholds:
        """Thresholds of the parallel efficiency, or the number of doublings."""
        return Thresholds(self.preferred, self.most, self.least, self.doublings)


class PerturbationSpec(ExperimentPart):
    """The largest changes of a workload: those of `converters.perturbation`."""

    submit_s: Seconds = Perturbation.submit_s
    limit_s: Seconds = Perturbation.limit_s

    @property
    def largest(self) -> Perturbation:
        """The largest changes."""
        return Perturbation(self.submit_s, self.limit_s)


class PolicySpec(ExperimentPart):
    """A policy, its parameters, and its label in tables and plots."""

    policy: str
    parameters: dict[str, Any] = {}
    conf: FileName | tuple[FileName, ...] = ()
    """A slurm.conf with further parameters of the policy `slurm`, or the file and the output of sacctmgr (accounts,
    QOS), relative to the experiment file."""
    placement: str = FIRST
    label: str = ""

    @field_validator("placement")
    @classmethod
    def _placed(cls, name: str) -> str:
        if name not in PLACEMENTS.names():
            raise ValueError(f"unknown placement {name!r}; use one of {', '.join(PLACEMENTS.names())}")
        return name

    @field_validator("label")
    @classmethod
    def _shown(cls, label: str) -> str:
        if not label.isprintable():
            raise ValueError(f"label {label!r} contains characters that cannot be printed")
        return label

    @property
    def name(self) -> str:
        """The label, by default the policy with its parameters and its placement."""
        placement = [] if self.placement == FIRST else [self.placement]
        parameters = [f"{key}={value}" for key, value in self.parameters.items()]
        return self.label or " ".join([self.policy.rpartition(":")[2], *parameters, *placement])


NO_PROCESSES = "none"


def communicating(value: Any) -> Any:
    """Return processes without options for the name of a communication, and any other value unchanged."""
    return {"communication": value} if isinstance(value, str) else value


class ProcessesSpec(ExperimentPart):
    """Jobs as programs of processes: their communication, the options of `Processes`, and the label in tables."""

    communication: Literal["none", "asynchronous", "synchronous"]
    options: dict[str, Any] = {}
    label: Annotated[str, Field(max_length=80)] = ""

    @model_validator(mode="after")
    def _known(self) -> ProcessesSpec:
        try:
            chosen = self.chosen
        except InputError as error:
            raise ValueError(f"{error.what}; {error.hint}") from error
        if chosen is None and self.options:
            raise ValueError("jobs without processes have no options; leave `options` out")
        return self

    @property
    def chosen(self) -> Processes | None:
        """The choices; None: jobs take their run times."""
        return None if self.communication == "none" else Processes.of(self.communication, self.options)

    @property
    def name(self) -> str:
        """The label, by default the communication with its options."""
        return self.label or " ".join([self.communication, *(f"{key}={value}" for key, value in self.options.items())])


class WindowSpec(ExperimentPart):
    """Selection of the jobs for the metrics: see `after` and `ended` of `metrics`."""

    after_s: Seconds = 0.0
    ended: bool = False


Bounds = Annotated[list[Annotated[float, Field(ge=0, allow_inf_nan=False)]], Field(min_length=2, max_length=2)]


class JobsSpec(ExperimentPart):
    """Jobs whose nodes and run time are within bounds, both included."""

    nodes: Bounds | None = None
    run_time: Bounds | None = None
    """Bounds of the run time on the requested nodes, s."""

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """Column of the workload -> its bounds."""
        given = {"nodes": self.nodes, "run_time": self.run_time}
        return {name: (values[0], values[1]) for name, values in given.items() if values is not None}


class SensitivitySpec(ExperimentPart):
    """The free choices of an experiment, for `tracebed experiment --sensitivity`."""

    base: Where = {}
    """Choice -> value at the base. Other choices have their first value at the base."""
    figures: Annotated[list[str], BeforeValidator(as_list), Field(min_length=1)] = ["mean_response_s", "mean_wait_s"]
    choices: dict[str, Annotated[list[Any], *AXIS]] = {}
    """Choice -> other values. A value that is a mapping changes several choices at once."""

    @field_validator("figures")
    @classmethod
    def _measured(cls, figures: list[str]) -> list[str]:
        for figure in figures:
            if figure not in all_metrics():
                raise ValueError(f"unknown figure {figure!r}; use one of {', '.join(all_metrics())}")
        return figures


class Plot(ExperimentPart):
    """A plot of simulated cells."""

    kind: Literal["bars", "normalized", "lines", "ecdf", "heatmap", "daily", "distribution", "queue"]
    element: Annotated[str, Field(max_length=80)] = ""
    """The printed figure that the plot repeats: `figure 7`."""
    figures: Annotated[list[str], BeforeValidator(as_list), Field(min_length=1)]
    window: str | None = None
    """Name of the window; by default the first window."""
    at: Where = {}
    """Points to show. For heat maps and daily lines: points to compare with `relative_to`."""
    relative_to: Where | None = None
    """Baseline points; required for the kinds that compare, and allowed for lines."""
    spread: Literal["jobs", "seeds"] = "seeds"
    """Seeds: bars have intervals of the means over seeds. Jobs: they also have boxes of quartiles over jobs."""
    width: Literal["column", "page", ""] = ""
    """Width of the picture: of one column or of two columns of a paper; by default by the number of panels."""
    title: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Plot:
        compares = self.kind in ("normalized", "heatmap", "daily")
        if self.kind != "lines" and (self.relative_to is None) == compares:
            raise ValueError(f"`relative_to` is {'required' if compares else 'not allowed'} for the kind `{self.kind}`")
        known = FIGURES_OF_KIND.get(self.kind) or tuple(all_metrics())
        for figure in self.figures:
            if figure not in known:
                raise ValueError(f"unknown figure {figure!r} for {self.kind}; use one of {', '.join(known)}")
        return self

    @property
    def of_jobs(self) -> bool:
        """Whether the plot requires the jobs of a simulation in addition to its metrics."""
        return self.kind in FIGURES_OF_KIND
