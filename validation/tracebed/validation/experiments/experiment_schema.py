"""The keys of an experiment file and the rules for their values: each class is a part of the file."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tracebed.converters.malleability import MOST_DOUBLINGS, Thresholds
from tracebed.converters.models.registry import MODELS
from tracebed.converters.perturbation import Perturbation
from tracebed.converters.workload import MAX_SIZE
from tracebed.ground import bounds
from tracebed.ground.errors import InputError
from tracebed.ground.yaml_file import FileName
from tracebed.machine.machine import Machine
from tracebed.machine.sources import read_machine
from tracebed.orchestrator.replay.options import Options
from tracebed.orchestrator.scheduling.names import FIRST
from tracebed.orchestrator.scheduling.placement import PLACEMENTS
from tracebed.orchestrator.testbeds.calibration import Overhead
from tracebed.validation.metrics import all_metrics
from tracebed.validation.setups import OF_REPLAYS, model_of
from tracebed.validation.simulators.reading import forms
from tracebed.validation.simulators.simulator import SIMULATORS, TIMEOUT_S, MatchName

if TYPE_CHECKING:
    from tracebed.orchestrator.simulation.processes import Processes

MOST_POINTS = 1_000_000  # largest number of points of a grid, and of seeds; a larger one is probably a typing error
MOST_REPETITIONS = 10_000
JOB_FIGURES = ("slowdown_ref", "wait", "run", "response")  # figures of jobs for heat maps and daily lines
OF_WORKLOADS = (
    *("workload_jobs", "workload_jobs_per_hour", "workload_records", "workload_removed", "workload_run_time_lost"),
)
"""Figures of workloads that claims may name: `workloads.of_workload`."""
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
    seeds = counted(value)
    return seeds if seeds is value else [number + 1 for number in seeds]


def _distinct(values: list[Any]) -> list[Any]:
    hashable = [repr(value) if isinstance(value, dict | list) else value for value in values]
    if twice := [value for value, count in Counter(hashable).items() if count > 1]:
        raise ValueError(f"{twice[0]!r} is listed twice")
    return values


def shorthand(key: str) -> Callable[[Any], Any]:
    """Return the function that expands a text to `{key: text}`, and keeps other values."""
    return lambda value: {key: value} if isinstance(value, str) else value


def or_empty(value: Any) -> Any:
    """Return an empty mapping for a missing value, and any other value unchanged."""
    return {} if value is None else value


def known(noun: str, names: Callable[[], Iterable[str]]) -> AfterValidator:
    """Return the validator of a name, or of a list of names, that must be among `names`."""

    def check(value: Any) -> Any:
        for name in value if isinstance(value, list) else [value]:
            if name is not None and name not in (accepted := [*names()]):
                raise ValueError(f"unknown {noun} {name!r}; use one of {', '.join(accepted)}")
        return value

    return AfterValidator(check)


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


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Threshold = Annotated[float, Field(gt=0, le=1)]
NAME = r"^[\w][\w.+-]*$"  # pattern of names that are also names of folders
Name = Annotated[str, Field(pattern=NAME, max_length=80)]
Where = dict[str, Any]
AXIS = (BeforeValidator(as_list), Field(min_length=1), AfterValidator(_distinct))  # a value or a list of distinct ones
STRICT = ConfigDict(extra="forbid", strict=True, frozen=True)  # unknown keys and values of a wrong type are errors


class ExperimentPart(BaseModel):
    """A part of an experiment file."""

    model_config = STRICT


class LogSpec(ExperimentPart):
    """A public log: its recipe, its source, and the fingerprint that identifies the log."""

    recipe: str | None = None
    source: str = ""  # where to download the log
    path: str | None = None  # Path relative to the experiment file. `--log` has precedence.
    # Number of jobs after cleaning; several numbers if an incomplete log is accepted, too.
    jobs: Annotated[list[Annotated[int, Field(ge=1)]], BeforeValidator(as_list)] = []
    # `workloads.fingerprint` of the cleaned workload.
    fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    settings: dict[str, dict[str, Any]] = {}  # parameters that override those of the recipe: step -> parameter -> value
    options: dict[str, Any] = {}  # options of the reader of the log


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

    file: FileName | None = None  # file of the workload, relative to the experiment file
    log: LogSpec | None = None
    model: Annotated[str | None, known("model", MODELS.names)] = None
    options: dict[str, Any] = {}
    scale: Scaling | None = None
    # Number of nodes of the simulated machine; by default that of the system of the workload.
    nodes: Annotated[int, Field(ge=1)] | None = None
    cores_per_node: Annotated[int, Field(ge=1)] | None = None
    # A file that describes the machine, with further files of it, relative to the experiment file; or the name of a
    # shipped inventory. It is in place of `nodes` and `cores_per_node`.
    machine: FileName | tuple[FileName, ...] = ()
    # Limits in place of those of the source: the run times (`exact`), or the limits times a factor.
    limits: Literal["exact"] | Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    # Whether a simulator was calibrated with the workload: its cases are shown, and never gated.
    calibration: bool = False
    # Name of the cluster of dependent workloads to which the workload belongs; empty: found from the runs.
    cluster: str = ""
    _machine: Machine | None = PrivateAttr(None)

    @property
    def on(self) -> Machine | None:
        """The machine of `machine`; None: it is not given."""
        return self._machine

    def placed(self, folder: Path) -> WorkloadSpec:
        """Return the workload on its machine, whose files are relative to `folder`.

        Raises:
            InputError: no file describes the machine, or it is invalid.
        """
        names = (self.machine,) if isinstance(self.machine, str) else self.machine
        if not names:
            return self
        spec = self.model_copy()
        spec._machine = read_machine(*(path if (path := folder / name).exists() else name for name in names))
        return spec

    @property
    def has_source(self) -> bool:
        """Whether the jobs are given."""
        return any(source is not None for source in (self.file, self.log, self.model))

    @property
    def is_plain(self) -> bool:
        """Whether the workload is its file, unchanged."""
        return self.file is not None and self.model_fields_set <= {"file", "calibration", "cluster"}

    @model_validator(mode="after")
    def _one_machine(self) -> WorkloadSpec:
        if self.machine and (given := self.model_fields_set & {"nodes", "cores_per_node"}):
            raise ValueError(f"`{min(given)}` and `machine` are given; the machine has its nodes")
        return self

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
    # A slurm.conf with further parameters of the policy `slurm`, or the file and the output of sacctmgr (accounts,
    # QOS), relative to the experiment file.
    conf: FileName | tuple[FileName, ...] = ()
    placement: Annotated[str, known("placement", PLACEMENTS.names)] = FIRST
    label: str = ""
    _machine: Machine | None = PrivateAttr(None)

    @property
    def machine(self) -> Machine | None:
        """The machine of `conf`; None: it describes none."""
        return self._machine

    def configured(self, parameters: Mapping[str, Any], machine: Machine | None) -> PolicySpec:
        """Return the policy with the parameters and the machine of its `conf`. Its own parameters come before them."""
        spec = self.model_copy(update={"parameters": {**parameters, **self.parameters}})
        spec._machine = machine
        return spec

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
        if self.communication == "none":
            return None
        from tracebed.orchestrator.simulation.processes import Processes  # with their simulator

        return Processes.of(self.communication, self.options)

    @property
    def name(self) -> str:
        """The label, by default the communication with its options."""
        return self.label or " ".join([self.communication, *(f"{key}={value}" for key, value in self.options.items())])


NO_OUTAGES = "none"


class OutagesSpec(ExperimentPart):
    """Outages of the nodes, from a file or drawn from a model; what happens to the jobs; and the label in tables.

    The fields are those of `OutageModel` and of `PredictionOptions`. Without `seed`, outages are drawn from the seed of
    the point.
    """

    file: FileName | None = None
    mtbf_s: float | None = None
    repair_s: float | None = None
    shape: float = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    on_node_failure: Literal["requeue", "fail", "shrink"] = "requeue"
    checkpoint_s: float = 0.0
    checkpoint_cost_s: float = 0.0
    label: Annotated[str, Field(max_length=80)] = ""

    @model_validator(mode="after")
    def _known(self) -> OutagesSpec:
        drawn = {"mtbf_s", "repair_s", "shape", "seed"} & self.model_fields_set
        if self.file is not None and drawn:
            raise ValueError(f"outages are read from a file or drawn: leave `file` or `{min(drawn)}` out")
        if self.is_none:
            if more := self.model_fields_set - {"file", "label"}:
                raise ValueError(f"there are no outages, so that `{min(more)}` has no effect")
            return self
        from tracebed.machine.calendar import Calendar
        from tracebed.orchestrator.simulation.outages import OutageModel
        from tracebed.orchestrator.simulation.prediction import PredictionOptions

        try:
            outages = Calendar() if self.file is not None else OutageModel.of(self.model(0))
            PredictionOptions(outages=outages, **self.treatment)
        except InputError as error:
            raise ValueError(f"{error.what}; {error.hint}") from error
        return self

    @property
    def is_none(self) -> bool:
        """Whether there are no outages."""
        return self.file == NO_OUTAGES or not self.model_fields_set - {"label"}

    @property
    def treatment(self) -> dict[str, Any]:
        """What happens to jobs that lose a node, as fields of `PredictionOptions`."""
        return {name: getattr(self, name) for name in ("on_node_failure", "checkpoint_s", "checkpoint_cost_s")}

    def model(self, seed: int) -> dict[str, Any]:
        """Return the fields of the model. `seed` is that of the point."""
        given = {name: getattr(self, name) for name in ("mtbf_s", "repair_s") if getattr(self, name) is not None}
        return given | {"shape": self.shape, "seed": seed if self.seed is None else self.seed}

    @property
    def name(self) -> str:
        """The label, by default the name of the file, or the given fields."""
        if self.label or self.is_none:
            return self.label or NO_OUTAGES
        fields = [name for name in type(self).model_fields if name in self.model_fields_set and name != "file"]
        own = [f"{name}={getattr(self, name)}" for name in fields]
        return " ".join([*([] if self.file is None else [self.file]), *own])


class WindowSpec(ExperimentPart):
    """Selection of the jobs for the metrics: see `after` and `ended` of `metrics`."""

    after_s: Seconds = 0.0
    ended: bool = False


Bounds = Annotated[list[Annotated[float, Field(ge=0, allow_inf_nan=False)]], Field(min_length=2, max_length=2)]


class JobsSpec(ExperimentPart):
    """Jobs whose nodes and run time are within bounds, both included."""

    nodes: Bounds | None = None
    run_time: Bounds | None = None  # bounds of the run time on the requested nodes, s

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """Column of the workload -> its bounds."""
        given = {"nodes": self.nodes, "run_time": self.run_time}
        return {name: (values[0], values[1]) for name, values in given.items() if values is not None}


class SensitivitySpec(ExperimentPart):
    """The free choices of an experiment, for `tracebed experiment --sensitivity`."""

    base: Where = {}  # Choice -> value at the base. Other choices have their first value at the base.
    figures: Annotated[list[str], BeforeValidator(as_list), Field(min_length=1), known("figure", all_metrics)] = [
        *("mean_response_s", "mean_wait_s"),
    ]
    # Choice -> other values. A value that is a mapping changes several choices at once.
    choices: dict[str, Annotated[list[Any], *AXIS]] = {}


class Plot(ExperimentPart):
    """A plot of simulated cells."""

    kind: Literal["bars", "normalized", "lines", "ecdf", "heatmap", "daily", "distribution", "queue"]
    element: Annotated[str, Field(max_length=80)] = ""  # the printed figure that the plot repeats: `figure 7`
    figures: Annotated[list[str], BeforeValidator(as_list), Field(min_length=1)]
    window: str | None = None  # name of the window; by default the first window
    at: Where = {}  # Points to show. For heat maps and daily lines: points to compare with `relative_to`.
    relative_to: Where | None = None  # baseline points; required for the kinds that compare, and allowed for lines
    by: Literal["size", "partition", "class"] = "size"  # rows of a heat map: requested nodes, partition, class of nodes
    # Seeds: bars have intervals of the means over seeds. Jobs: they also have boxes of quartiles over jobs.
    spread: Literal["jobs", "seeds"] = "seeds"
    # Width of the picture: of one column or of two columns of a paper; by default by the number of panels.
    width: Literal["column", "page", ""] = ""
    title: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Plot:
        compares = self.kind in ("normalized", "heatmap", "daily")
        if self.kind != "lines" and (self.relative_to is None) == compares:
            raise ValueError(f"`relative_to` is {'required' if compares else 'not allowed'} for the kind `{self.kind}`")
        if self.by != "size" and self.kind != "heatmap":
            raise ValueError(f"`by` is for the kind `heatmap`, not for `{self.kind}`")
        known = FIGURES_OF_KIND.get(self.kind) or tuple(all_metrics())
        for figure in self.figures:
            if figure not in known:
                raise ValueError(f"unknown figure {figure!r} for {self.kind}; use one of {', '.join(known)}")
        return self

    @property
    def of_jobs(self) -> bool:
        """Whether the plot requires the jobs of a simulation in addition to its metrics."""
        return self.kind in FIGURES_OF_KIND


class Rule(StrEnum):
    """How a figure of ours matches a claim."""

    NUMBER = "number"
    """The distance is at most 5 %, or 5 points for a change, which must also have the printed sign."""
    SIGN = "sign"
    """The change has the sign of `value`."""
    ORDER = "order"
    """The figures of the points in `order` increase."""
    AT_MOST = "at-most"
    """The figure is not above `value`."""
    AT_LEAST = "at-least"
    """The figure is not below `value`."""


class Claim(ExperimentPart):
    """A figure, a change or an ordering that a paper prints."""

    element: Annotated[str, Field(max_length=80)] = ""  # the printed place: `table 1`, `figure 7`, `section 3.2, wait`
    claim: str = ""  # the words of the paper
    rule: Annotated[Rule, Field(strict=False)] = Rule.NUMBER
    figure: str
    # The printed value. With `relative_to`, the relative change: -0.25 for 25 % less. Absent for an order.
    value: Annotated[float, Field(allow_inf_nan=False)] | None = None
    at: Where = Field(default_factory=dict)  # points that the figure describes
    # How to combine the figures of several points, each a mean over seeds.
    take: Literal["mean", "least", "greatest"] = "mean"
    # Points of the baseline. Each point is compared with the baseline of the same other keys, where there is one.
    relative_to: Where | None = None
    order: list[Where] = Field(default_factory=list)  # points whose figures increase, each in addition to `at`
    window: str | None = None  # name of the window; by default the first one counts, and the others are further rows
    assumption: str = ""  # What was assumed in place of the defaults of the study. Such rows are shown and not counted.
    fitted: bool = False  # Whether a constant was fitted to this figure. Such a row is shown and not counted.
    note: str = ""
    reason: str = ""  # Why our figure differs. It is shown where the figure does not match.
    experiment: str = ""  # the study or command behind the reason

    @model_validator(mode="before")
    @classmethod
    def _order(cls, raw: Any) -> Any:
        return {"rule": "order", **raw} if isinstance(raw, dict) and raw.get("order") else raw

    @model_validator(mode="after")
    def _whole(self) -> Claim:
        if self.rule is Rule.ORDER:
            if len(self.order) < 2 or self.value is not None:
                raise ValueError("an order has two points or more in `order`, and no `value`")
        elif self.order:
            raise ValueError("`order` requires the rule `order`")
        elif self.value is None:
            raise ValueError(f"the rule `{self.rule}` requires a `value`")
        if self.rule is Rule.SIGN and (self.relative_to is None or not self.value):
            raise ValueError("the rule `sign` requires `relative_to` and a `value` other than 0")
        return self

    @property
    def is_change(self) -> bool:
        """Whether the value is a relative change."""
        return self.relative_to is not None

    @property
    def places(self) -> list[Where]:
        """What selects the points of each figure: one, or several for an order."""
        return [{**self.at, **where} for where in self.order] or [self.at]


OF_POLICIES = {"inventory", "balance", "clock", "work_rate", *OF_REPLAYS} - {"speed"}
"""Keys that a batch system does not accept, because it decides itself."""

SettingsSpec = model_of("SettingsSpec", ExperimentPart, OF_REPLAYS)  # the settings of a replay


class TestbedSpec(SettingsSpec):  # type: ignore[misc, valid-type]
    """A testbed: its nodes, or the batch system that decides, with the settings and options of the replays."""

    __test__ = False  # not a test, in spite of its name

    inventory: FileName | dict[str, Any] | None = None  # name, file or content of an inventory
    balance: str = Options.balance
    clock: str = Options.clock
    work_rate: FileName | None = None  # file of a calibration with the work rate, relative to the experiment file
    beside: str = ""  # command that runs beside each repetition
    # Number of repetitions of each case on this testbed; None: that of the experiment.
    repetitions: Annotated[int, Field(ge=1, le=MOST_REPETITIONS)] | None = None
    scheduler: str | None = None  # name of a batch system that decides in place of a policy, on its own nodes
    partition: str | None = None
    # Additional options of each submission, `KEY=VALUE` or `KEY`.
    scheduler_options: list[str] = Field(default_factory=list)
    # Configuration of the batch system, relative to the experiment file; None: that of the environment.
    scheduler_conf: FileName | None = None

    @model_validator(mode="after")
    def _fits_scheduler(self) -> Self:
        if self.scheduler is not None and (wrong := OF_POLICIES & self.model_fields_set):
            raise ValueError(f"`{min(wrong)}` does not apply with `scheduler`: the batch system decides")
        return self


Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]  # a number of nodes or cores
Finite = Annotated[float, Field(allow_inf_nan=False)]
ParameterName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$", max_length=80)]
TRACEBED = "tracebed"  # name of the built-in simulator
PLACEHOLDERS = ("workload", "policy", "case")
"""Placeholders in patterns of paths: the names of the workload, of the policy, and of the case."""
MATCH_PLACEHOLDERS = (*PLACEHOLDERS, "folder", "stem")
"""Placeholders in the pattern of the file that matches the jobs of a run: also the folder of the file of the run, and
the name of that file without its suffix."""
READING = {"columns", "unit", "time_zone", "speed", "match"}
"""Keys of `ReadSpec` that are options of an importer."""
COMMAND_PLACEHOLDERS = ("workload", "policy", "nodes", "seed", "output")
"""Placeholders in commands. `workload` is the file of the workload there."""


def check_placeholders(text: str, known: tuple[str, ...]) -> str:
    """Return `text`. Raises ValueError if it has a placeholder that is not `known`, or a single brace."""
    try:
        placeholders = [
            (name, spec, conversion) for _, name, spec, conversion in Formatter().parse(text) if name is not None
        ]
    except ValueError as error:
        raise ValueError(f"{error}; write {{{{ and }}}} for braces") from error
    for name, spec, conversion in placeholders:
        if name not in known or spec or conversion:
            raise ValueError(f"unknown placeholder {{{name}}}; use {', '.join(f'{{{item}}}' for item in known)}")
    return text


class ReadSpec(ExperimentPart):
    """How the files of another system or simulator are read."""

    # Name of a simulator or format, as in `tracebed import --from`; None: folders of runs of tracebed.
    importer: Annotated[str | None, known("importer", forms)] = Field(None, alias="from")
    # Field -> name of its column, as in `tracebed import --columns`.
    columns: dict[str, str] = Field(default_factory=dict)
    unit: str = ""
    time_zone: str = ""
    speed: Annotated[float, Field(ge=bounds.MIN_SPEED, le=bounds.MAX_SPEED)] = 1.0  # trace seconds per second of a file
    # How jobs are matched, one of `MatchName`; or the pattern of the path of a file with two columns for each run, with
    # the placeholders `MATCH_PLACEHOLDERS`.
    match: FileName = "auto"

    @property
    def mapping(self) -> str | None:
        """The pattern of the files that match jobs; None: jobs are matched by `match`."""
        return None if self.match in get_args(MatchName) else self.match

    @field_validator("match")
    @classmethod
    def _match(cls, text: str) -> str:
        return check_placeholders(text, MATCH_PLACEHOLDERS)

    @model_validator(mode="after")
    def _of_importers(self) -> Self:
        if self.importer is None and (given := self.model_fields_set & READING):
            raise ValueError(f"`{min(given)}` requires `from`, the name of an importer")
        return self


class RecordedBed(ExperimentPart):
    """The testbed of recorded runs."""

    # Calibration with which the runs were replayed, relative to the experiment file: that of `calibration: true`.
    work_rate: FileName | None = None


class RecordedSpec(ReadSpec, RecordedBed):
    """Recorded real runs: those of a case match a pattern of paths."""

    # Pattern of paths, relative to the experiment file, with the placeholders {workload} and {policy}, or {case}.
    runs: FileName
    # Name -> testbed, if the runs are of several.
    testbeds: Annotated[dict[Name, RecordedBed], Field(min_length=1)] | None = None
    # Pattern of the path of a file, in the same form, whose run times are those that were planned. Without it, the run
    # times of a workload without a source are those observed in the first run.
    planned: FileName | None = None
    # Run times of the predictions: those of the workload, or those that the most complete run of the case observed.
    run_times: Literal["planned", "observed"] = "planned"
    # Number of nodes of the machine; or pattern of names of workloads -> number.
    nodes: Size | dict[str, Size] | None = None
    cores_per_node: Size | None = None

    @field_validator("runs", "planned")
    @classmethod
    def _pattern(cls, text: str | None) -> str | None:
        return text and check_placeholders(text, PLACEHOLDERS)

    @model_validator(mode="after")
    def _of_imported_runs(self) -> Self:
        if self.importer is None and (
            given := self.model_fields_set & {"planned", "run_times", "nodes", "cores_per_node"}
        ):
            raise ValueError(f"`{min(given)}` requires `from`: the folder of a run has the nodes and the run times")
        return self

    @model_validator(mode="after")
    def _by_case(self) -> Self:
        if self.testbeds is not None and not self.by_case:
            raise ValueError("`testbeds` requires {case} in the path of the runs")
        if self.testbeds is not None and self.work_rate is not None:
            raise ValueError("`work_rate` is a key of each of the `testbeds`")
        return self

    @property
    def by_case(self) -> bool:
        """Whether the paths differ by case, not only by workload and policy."""
        return "{case}" in self.runs

    def nodes_of(self, workload: str) -> int | None:
        """Return the nodes of the machine of a workload, None if not given; a pattern must match the name."""
        if not isinstance(self.nodes, dict):
            return self.nodes
        for pattern, number in self.nodes.items():
            if fnmatchcase(workload, pattern):
                return number
        raise InputError(f"no pattern of `nodes` matches {workload}", hint='the pattern "*" matches every name')


def at_range(value: Any) -> Any:
    """Return a range for a list of its ends, a known value as a range of equal ends, and any other value unchanged."""
    if isinstance(value, list) and len(value) == 2:
        return {"low": value[0], "high": value[1]}
    return {"low": value, "high": value} if isinstance(value, int | float) and not isinstance(value, bool) else value


class ParameterSpec(ExperimentPart):
    """A parameter of a command: its range, or with equal ends its value."""

    low: Finite
    high: Finite
    scale: Literal["log", "linear"] = "log"  # scale of the search: `log` gives each order of magnitude the same share
    integer: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"the range is {self.low:g} to {self.high:g}; give the lower end first")
        if self.low <= 0 and self.scale == "log" and not self.known:
            raise ValueError(f"a range from {self.low:g} has no logarithmic scale; write `scale: linear`")
        if self.integer and not (self.low.is_integer() and self.high.is_integer()):
            raise ValueError(f"the ends {self.low:g} and {self.high:g} are not integers")
        return self

    @property
    def known(self) -> bool:
        """Whether the parameter has a value, not a range."""
        return self.low == self.high


class SimulatorSpec(ReadSpec):
    """A simulator: tracebed, one of the registry, a command, or recorded runs."""

    # Name of a simulator of the registry, or `tracebed`.
    driver: Annotated[str | None, known("simulator", lambda: [TRACEBED, *SIMULATORS.names()])] = Field(
        None, alias="with"
    )
    runs: FileName | None = None  # pattern of the paths of recorded predictions, as in `RecordedSpec`
    # Further placeholders of the command -> their range, or their value.
    parameters: dict[ParameterName, Annotated[ParameterSpec, BeforeValidator(at_range)]] = Field(default_factory=dict)
    command: str | None = None  # Command line with placeholders. Its output is a run, or is read by the importer.
    # File of a calibration of the testbed, or name of a testbed -> file, or True for the file `work_rate` of each
    # testbed; for tracebed and the simulators of the registry. For a command, the file with the values of its
    # parameters that `tracebed validate --fit` wrote.
    calibration: FileName | dict[Name, FileName] | Literal[True] | None = None
    runtime_model: str = "ideal"  # run time of jobs that hold fewer cores than requested, for the built-in simulator
    # Policy of the predictions, in place of that of the case: a model of the scheduler of the real runs.
    policy: str | None = None
    # Parameters of that policy; those that are not given are those of `conf`, or of a case with the same policy.
    policy_parameters: dict[str, Any] = Field(default_factory=dict)
    # Configuration files of that policy, as in `PolicySpec`; of an entry of the board, relative to the data set.
    conf: FileName | tuple[FileName, ...] = ()
    # Time between two calls of that policy, trace s; 0: at each event. By default that of the real runs.
    interval_s: Annotated[float, Field(ge=0, le=bounds.MAX_SECONDS)] | None = None
    options: dict[str, str] = Field(default_factory=dict)  # options of a simulator of the registry
    # Overheads of the real system that are assumed in place of a calibration, wall s; a range is drawn for each seed.
    overheads: dict[Overhead, Annotated[list[Seconds], BeforeValidator(as_list), Field(min_length=1, max_length=2)]] = (
        Field(default_factory=dict)
    )
    # Standard deviation of the run time of a job, trace s: each seed has other run times, of a normal distribution.
    run_time_sd_s: Seconds = 0.0
    # Number of runs of a stochastic simulator, with the seeds 0, 1, ...; of the built-in one, of an ensemble.
    seeds: Annotated[int, Field(ge=1, le=MOST_REPETITIONS)] = 1
    # Time after which a simulation is stopped and fails, wall s.
    timeout_s: Annotated[float, Field(gt=0, le=bounds.MAX_SECONDS)] = TIMEOUT_S
    version: str = ""  # Version of the simulator. Another version repeats the predictions.

    @property
    def kind(self) -> str:
        """Key that determines the kind of the simulator: `tracebed`, `with`, `runs` or `command`."""
        if self.runs is not None:
            return "runs"
        if self.command is not None:
            return "command"
        return TRACEBED if self.driver in (None, TRACEBED) else "with"

    @field_validator("runs")
    @classmethod
    def _pattern(cls, text: str | None) -> str | None:
        return text and check_placeholders(text, PLACEHOLDERS)

    @field_validator("command")
    @classmethod
    def _placeholders(cls, text: str | None, info: ValidationInfo) -> str | None:
        if text is not None and "{output}" not in text:
            raise ValueError("the command has no {output}, the path to which the simulator writes")
        try:
            shlex.split(text or "")
        except ValueError as error:
            raise ValueError(f"not a command: {error}") from error
        parameters = tuple(info.data.get("parameters", ()))
        if text is not None and (absent := [name for name in parameters if f"{{{name}}}" not in text]):
            raise ValueError(f"the command has no {{{absent[0]}}}, one of its parameters")
        return text and check_placeholders(text, (*COMMAND_PLACEHOLDERS, *parameters))

    @field_validator("parameters")
    @classmethod
    def _no_placeholder(cls, parameters: dict[str, ParameterSpec]) -> dict[str, ParameterSpec]:
        if taken := parameters.keys() & set(COMMAND_PLACEHOLDERS):
            raise ValueError(f"{{{min(taken)}}} has another meaning in a command; rename the parameter")
        return parameters

    @model_validator(mode="after")
    def _keys_of_its_kind(self) -> Self:
        if sum(value is not None for value in (self.driver, self.runs, self.command)) > 1:
            raise ValueError("a simulator has one of the keys `with`, `runs` and `command`")
        if self.policy is None and (given := {"policy_parameters", "conf", "interval_s"} & self.model_fields_set):
            raise ValueError(f"`{min(given)}` requires `policy`")
        reading = {"importer", *READING}
        deciding = {"policy", "policy_parameters", "conf", "interval_s"}
        drawn = {"overheads", "run_time_sd_s"}
        allowed = {
            TRACEBED: {"driver", "calibration", "runtime_model", "seeds", *drawn, *deciding},
            "with": {"driver", "calibration", "options", "seeds", "timeout_s", *deciding - {"conf"}},
            "runs": {"runs", *reading},
            "command": {"command", "parameters", "calibration", "seeds", "timeout_s", *reading},
        }[self.kind]
        if wrong := self.model_fields_set - allowed - {"version"}:
            names = {"driver": "with", "importer": "from"}
            own = f"`{self.kind}`" if self.kind != TRACEBED else "the built-in simulator"
            raise ValueError(f"`{names.get(key := min(wrong), key)}` does not apply to a simulator by {own}")
        if self.overheads and self.calibration is not None:
            raise ValueError("a simulator has one of `overheads` and `calibration`")
        if self.seeds == 1 and (self.run_time_sd_s or any(len(each) > 1 for each in self.overheads.values())):
            raise ValueError("a range of `overheads`, and `run_time_sd_s`, require `seeds`, the size of the ensemble")
        for name, ends in self.overheads.items():
            if ends[0] > ends[-1]:
                raise ValueError(f"the range of {name} is {ends[0]:g} to {ends[1]:g}; give the lower end first")
        if self.command is not None and self.calibration is not None:
            if not isinstance(self.calibration, str):
                raise ValueError("the calibration of a command is one file")
            if not self.parameters:
                raise ValueError("`calibration` requires `parameters`, the parameters of the command")
        return self
