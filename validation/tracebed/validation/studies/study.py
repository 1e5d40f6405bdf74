"""The study file: workloads, what is made malleable, policies, seeds; and the grid of points that they span.

    workloads: {mine: {file: mine.parquet}}
    malleable: {shares: [0, 0.5, 1]}
    policies: [easy, pref]
    seeds: 10

docs/sweeps.md has every key. A study is what a user writes; nothing here reads a log or runs a simulation.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from tracebed.converters.malleability import Thresholds
from tracebed.converters.models.registry import MODELS
from tracebed.errors import InputError
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.priorities import NAMES as PRIORITIES
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel
from tracebed.validation.metrics import TAU, all_metrics
from tracebed.yaml_file import YamlFile

SHIPPED = files("tracebed.validation.studies") / "shipped"
MEND = "docs/sweeps.md has every key"
LARGEST = 1_000_000
"""More points than this are a slip of the pen."""
JOB_FIGURES = ("slowdown_ref", "wait", "run", "response")
"""What heat maps and daily lines can show."""


@dataclass(frozen=True)
class Point:
    """One point of the grid: what a row of the table is about. `share` and `seed` choose the workload's variant."""

    workload: str
    share: float | None
    """Of the jobs made malleable; None: the workload as it is."""
    seed: int
    policy: str
    """The label that the study gives it."""
    priority: str
    runtime_model: str
    interval_s: float
    malleability_interval_s: float

    def fits(self, where: Mapping[str, Any]) -> bool:
        """Return whether the point has the values of `where`, each a value or several to choose from."""
        values = asdict(self)
        return all(values[key] in (wanted if isinstance(wanted, list) else [wanted]) for key, wanted in where.items())


KEYS = tuple(Point.__dataclass_fields__)


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _counted(value: Any) -> Any:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return value
    if not 0 < value <= LARGEST:
        raise ValueError(f"{value:,} seeds: a number from 1 to {LARGEST:,}, or a list such as [0]")
    return list(range(value))


def _distinct(values: list[Any]) -> list[Any]:
    if twice := [value for value, count in Counter(values).items() if count > 1]:
        raise ValueError(f"{twice[0]!r} is there twice")
    return values


def _named(value: Any) -> Any:
    return {"policy": value} if isinstance(value, str) else value


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Threshold = Annotated[float, Field(gt=0, le=1)]
Name = Annotated[str, Field(pattern=r"^[\w][\w.+-]*$", max_length=80)]
Where = dict[str, Any]
AXIS = (BeforeValidator(_listed), Field(min_length=1), AfterValidator(_distinct))
"""A value, or a list of different ones."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class LogSpec(_Part):
    """A public log: which, by which recipe, where users get it, and how to tell that it is the right one."""

    recipe: str | None = None
    source: str = ""
    """Where users get it."""
    path: str | None = None
    """Relative to the study file; `--log` goes before it."""
    jobs: Annotated[int, Field(ge=1)] | None = None
    """After cleaning."""
    fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Of the clean workload: `workloads.fingerprint`."""
    settings: dict[str, dict[str, Any]] = {}
    """Parameters of the recipe's steps that take other values."""
    options: dict[str, Any] = {}
    """Of the log's reader."""


class Scaling(_Part):
    """Arguments of `scaling.scale`."""

    nodes: Annotated[int, Field(ge=1)] | None = None
    cores_per_node: Annotated[int, Field(ge=1)] | None = None
    window: Annotated[float, Field(gt=0)] | None = None
    start: float | None = None
    run_time: Annotated[float, Field(gt=0)] | None = None
    longest: Annotated[float, Field(gt=0)] | None = None
    arrivals: Annotated[float, Field(gt=0)] | None = None


class WorkloadSpec(_Part):
    """A workload: one of a file, a log with a recipe, a model with its options; then maybe scaled."""

    file: str | None = None
    log: LogSpec | None = None
    model: str | None = None
    options: dict[str, Any] = {}
    scale: Scaling | None = None
    nodes: Annotated[int, Field(ge=1)] | None = None
    """Of the machine that is simulated; the workload's own system where left out."""
    cores_per_node: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> WorkloadSpec:
        if sum(source is not None for source in (self.file, self.log, self.model)) != 1:
            raise ValueError("a workload has one of `file`, `log` and `model`")
        if self.options and self.model is None:
            raise ValueError("`options` are those of a `model`; a log's are `log.options`")
        return self

    @field_validator("model")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        if name is not None and name not in MODELS.names():
            raise ValueError(f"no model {name!r}: one of {', '.join(MODELS.names())}")
        return name


class Malleable(_Part):
    """Which shares of the rigid jobs become malleable, by `malleability.to_malleable`, and its thresholds."""

    shares: Annotated[list[Annotated[float, Field(ge=0, le=1)]], *AXIS]
    preferred: Threshold = Thresholds.preferred
    most: Threshold = Thresholds.most
    least: Threshold = Thresholds.least

    @property
    def thresholds(self) -> Thresholds:
        """Return the thresholds of efficiency."""
        return Thresholds(self.preferred, self.most, self.least)


class PolicySpec(_Part):
    """A policy with parameters, and the label that tables and plots show."""

    policy: str
    parameters: dict[str, Any] = {}
    label: str = ""

    @field_validator("label")
    @classmethod
    def _shown(cls, label: str) -> str:
        if not label.isprintable():
            raise ValueError(f"{label!r} cannot be printed")
        return label

    @property
    def name(self) -> str:
        """The label; by default the policy with its parameters."""
        return self.label or " ".join([self.policy, *(f"{key}={value}" for key, value in self.parameters.items())])


class WindowSpec(_Part):
    """Which jobs enter the figures: see `metrics.metrics`."""

    after_s: Seconds = 0.0
    ended: bool = False


class Published(_Part):
    """A figure that a paper prints."""

    figure: str
    value: float
    """As printed; with `relative_to`, the change: -0.25 for 25 % less."""
    at: Where = {}
    """The points that it is about."""
    take: Literal["mean", "least", "greatest"] = "mean"
    """Of the points' figures (each the mean over seeds): all, or the best of them."""
    relative_to: Where | None = None
    note: str = ""


class Plot(_Part):
    """A picture of the study."""

    kind: Literal["bars", "normalised", "heatmap", "daily"]
    figures: Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]
    window: str | None = None
    """The first one where left out."""
    at: Where = {}
    """Which points are shown; of a heat map and of daily lines: what is held against `relative_to`."""
    relative_to: Where | None = None
    """Of all kinds but bars: the points that are 1."""
    spread: Literal["jobs", "seeds"] = "jobs"
    """Of bars: the quartiles that error bars show, over jobs (mean over seeds) or over seeds."""
    title: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Plot:
        if (self.relative_to is None) != (self.kind == "bars"):
            raise ValueError("`relative_to` goes with all kinds but `bars`, and they need it")
        known = JOB_FIGURES if self.of_jobs else tuple(all_metrics())
        for figure in self.figures:
            if figure not in known:
                raise ValueError(f"{self.kind} shows no figure {figure!r}: one of {', '.join(known)}")
        return self

    @property
    def of_jobs(self) -> bool:
        """Whether it needs the jobs of a simulation, not only its row."""
        return self.kind in ("heatmap", "daily")


class Study(_Part):
    """A study as the file has it."""

    about: str = ""
    workloads: Annotated[dict[Name, WorkloadSpec], Field(min_length=1)]
    malleable: Malleable | None = None
    policies: Annotated[list[Annotated[PolicySpec, BeforeValidator(_named)]], Field(min_length=1)]
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], *AXIS, BeforeValidator(_counted)] = [0]
    priority: Annotated[list[str], *AXIS] = ["fcfs"]
    runtime_model: Annotated[list[str], *AXIS] = ["ideal"]
    interval_s: Annotated[list[Seconds], *AXIS] = [0.0]
    malleability_interval_s: Annotated[list[Seconds], *AXIS] = [0.0]
    over_limit: Annotated[OverLimit, Field(strict=False)] = OverLimit.EXTEND
    tau: Annotated[float, Field(gt=0, allow_inf_nan=False)] = TAU
    windows: Annotated[dict[Name, WindowSpec], Field(min_length=1)] = {"all": WindowSpec()}
    exclude: list[Where] = []
    published: list[Published] = []
    plots: dict[Name, Plot] = {}

    @field_validator("runtime_model")
    @classmethod
    def _models(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in [*RuntimeModel]:
                raise ValueError(f"no runtime model {name!r}: one of {', '.join(RuntimeModel)}")
        return names

    @field_validator("priority")
    @classmethod
    def _priorities(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in PRIORITIES:
                raise ValueError(f"no priority {name!r}: one of {', '.join(PRIORITIES)}")
        return names

    def points(self) -> list[Point]:
        """Return the grid, but for what is excluded."""
        points = (Point(*values) for values in itertools.product(*self.axes.values()))
        return [point for point in points if not any(point.fits(where) for where in self.exclude)]

    @property
    def axes(self) -> dict[str, Sequence[Any]]:
        """Return the values of each key of the points."""
        return {
            "workload": list(self.workloads),
            "share": self.malleable.shares if self.malleable else [None],
            "seed": self.seeds,
            "policy": [policy.name for policy in self.policies],
            "priority": self.priority,
            "runtime_model": self.runtime_model,
            "interval_s": self.interval_s,
            "malleability_interval_s": self.malleability_interval_s,
        }

    def policy(self, point: Point) -> PolicySpec:
        """Return the policy that a point names."""
        return next(policy for policy in self.policies if policy.name == point.policy)


@dataclass(frozen=True)
class StudyFile:
    """A study, its name, and the file that it was read from."""

    name: str
    study: Study
    source: YamlFile

    @property
    def folder(self) -> Path:
        """Where its relative paths begin."""
        return Path(self.source.where).parent

    def selected(self, only: Mapping[str, list[str]]) -> list[Point]:
        """Return the points that have one of the values, as texts, that `only` names for a key.

        Raises:
            InputError: a key is none, no point has such a value, or a policy is not installed or does not know
                a parameter.
        """
        points = self.study.points()
        for key, wanted in only.items():
            _known_key(key, self.source.error)
            there = {_text(asdict(point)[key]) for point in points}
            for value in wanted:
                if value not in there:
                    have = ", ".join(sorted(there))
                    raise InputError(f"no point with {key}={value}", where=self.source.where, hint=f"there are {have}")
            points = [point for point in points if _text(asdict(point)[key]) in wanted]
        if not points:
            raise InputError("the grid has no point left", where=self.source.where, hint="exclude less")
        self._check_policies({point.policy for point in points})
        return points

    def _check_policies(self, labels: set[str]) -> None:
        for index, policy in enumerate(self.study.policies):
            if policy.name in labels:
                try:
                    registry.load(policy.policy, policy.parameters)
                except InputError as error:
                    hint = error.hint or MEND
                    raise InputError(
                        error.what, where=self.source.error("", "policies", index).where, hint=hint
                    ) from error


def names() -> list[str]:
    """Return the names of the studies that tracebed ships."""
    return sorted(file.name.removesuffix(".yaml") for file in SHIPPED.iterdir() if file.name.endswith(".yaml"))


def load_study(name: str) -> StudyFile:
    """Read a shipped study by name, or one's own by path.

    Raises:
        InputError: there is none, it is no YAML, or a key or value is wrong; the message names the line.
    """
    if name in names():
        with as_file(SHIPPED / f"{name}.yaml") as path:
            return _read(path)
    return _read(Path(name))


def _read(path: Path) -> StudyFile:
    unreadable = f"one of {', '.join(names())}, or the path of a YAML file"
    source = YamlFile.read(path, "study", hint=MEND, unreadable=unreadable)
    study = source.checked(Study)
    file = StudyFile(path.stem, study, source)
    _check_references(file)
    return file


def _check_references(file: StudyFile) -> None:
    """Raise InputError where a key, label, window or figure is named that the study does not have."""
    study, error = file.study, file.source.error
    labels = [policy.name for policy in study.policies]
    for index, label in enumerate(labels):
        if label in labels[:index]:
            raise error(f"two policies are called {label!r}; give one a `label`", "policies", index)
    known = study.axes
    if (size := math.prod(map(len, known.values()))) > LARGEST:
        raise error(f"the grid has {size:,} points, more than {LARGEST:,}: shorten an axis")

    def check(where: Where | None, *loc: int | str) -> None:
        for key, wanted in (where or {}).items():
            _known_key(key, error, *loc)
            for value in _listed(wanted):
                if value not in known[key]:
                    has = ", ".join(map(str, known[key]))
                    raise error(f"no point has {key} {value!r}: there are {has}", *loc, key)

    for index, where in enumerate(study.exclude):
        check(where, "exclude", index)
    for index, published in enumerate(study.published):
        if published.figure not in all_metrics():
            known_figures = ", ".join(all_metrics())
            raise error(f"no figure {published.figure!r}: one of {known_figures}", "published", index, "figure")
        check(published.at, "published", index, "at")
        check(published.relative_to, "published", index, "relative_to")
    for name, plot in study.plots.items():
        if plot.window is not None and plot.window not in study.windows:
            raise error(f"no window {plot.window!r}: one of {', '.join(study.windows)}", "plots", name, "window")
        check(plot.at, "plots", name, "at")
        check(plot.relative_to, "plots", name, "relative_to")
    if not study.points():
        raise error("`exclude` leaves no point of the grid", "exclude")


def _known_key(key: str, error: Any, *loc: int | str) -> None:
    if key not in KEYS:
        raise error(f"points have no key {key!r}: one of {', '.join(KEYS)}", *loc)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value).strip('"')
