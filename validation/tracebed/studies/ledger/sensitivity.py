"""Sensitivity of an experiment to its free choices: one choice at a time is changed about a base.

A choice has a name and values. The name is, in this order,

- `window`: a window of the metrics, by name;
- a key of the points (`policy`, `share`, `interval_s`, ...), except the random `seed` and `perturbation`;
- a key of the experiment file (`over_limit`, `tau`, `malleable.preferred`);
- a key of the workload (`limits`, `nodes`, `scale.start`, `log.settings.STEP.PARAMETER`, `options.OPTION`);
- a threshold of malleable jobs (`preferred`, `most`, `least`);
- a parameter of the policy (`calls`).

A value that is a mapping changes several choices at once, and its name is free.

The base and each change are simulated with the same perturbed inputs, with the seeds of the experiment in turn, so that
the effect of a choice is the mean of differences between pairs (`significance.differences`). The band is the interval
of the base: the effect of the perturbations alone on its figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracebed.ground.errors import InputError
from tracebed.ground.files import replacing
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.validation.experiments import experiment_schema as schema
from tracebed.validation.experiments.experiment import KEYS, Experiment, Point
from tracebed.validation.experiments.file import ExperimentFile, experiment_of
from tracebed.validation.experiments.pools import Pool
from tracebed.validation.experiments.runner import GridPlan, Progress, compute, gathered, plan, union
from tracebed.validation.experiments.views.averages import REPLICATE, with_inputs
from tracebed.validation.metrics import all_metrics
from tracebed.validation.setups import OF_ALL_CELLS
from tracebed.validation.significance import PERCENTS, Difference, differences

NOT_OF_A_POINT = ("about", "exclude", "plots", "published", "sensitivity")
"""Keys of an experiment that are about its whole grid."""


@dataclass(frozen=True)
class Choice:
    """Another value of a free choice."""

    name: str
    value: Any
    base: Any  # the value at the base; None if the value is a mapping, or if the experiment has none

    @property
    def changes(self) -> dict[str, Any]:
        """The keys that change, with their values."""
        return dict(self.value) if isinstance(self.value, dict) else {self.name: self.value}

    @property
    def label(self) -> str:
        """The choice as text: `calls: tick`."""
        return f"{self.name}: {value_text(self.value)}"


@dataclass(frozen=True)
class SinglePoint:
    """An experiment whose grid has one point."""

    file: ExperimentFile
    point: Point
    window: str

    def value(self, name: str) -> Any:
        """Return the value of a choice, or None if the experiment has none."""
        experiment, point = self.file.experiment, self.point
        if name == "window":
            return self.window
        if name in KEYS:
            return asdict(point)[name]
        first, *rest = name.split(".")
        whole = experiment.model_dump(mode="json")
        if first in OF_ALL_CELLS:  # a setting that is not given has the default of the setup
            found = next(part[first] for part in experiment.setup(point).as_dict().values() if first in part)
        elif first in Experiment.model_fields:
            found = whole.get(first)
        elif first in schema.WorkloadSpec.model_fields:
            found = whole["workloads"][point.workload].get(first)
        elif first in schema.Malleable.model_fields:
            found = (whole["malleable"] or {}).get(first)
        else:
            spec = experiment.policy(point)
            found = registry.parameters(registry.load(spec.policy, spec.parameters)).get(name)
        for part in rest:
            found = found.get(part) if isinstance(found, dict) else None
        return found

    def replicates(self, runs: int) -> list[Point]:
        """Return `runs` points with the random changes 1, 2, ... of the workload, and with the seeds in turn."""
        seeds = self.file.experiment.seeds
        return [replace(self.point, seed=seeds[run % len(seeds)], perturbation=run + 1) for run in range(runs)]


def value_text(value: Any) -> str:
    """Return a value as text: `kill`, `interval_s 0, malleability_interval_s 10`, and `-` for a missing one."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {value_text(each)}" for key, each in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def single_point(file: ExperimentFile, changes: Mapping[str, Any]) -> SinglePoint:
    """Return the first point of an experiment with some choices changed. The windows of the experiment remain."""
    axes = file.experiment.axes
    first = {key: values[0] for key, values in axes.items() if key not in (*REPLICATE, "testbed")}
    if first["share"] is None:
        del first["share"]
    wanted = first | {"window": next(iter(file.experiment.windows))} | dict(changes)
    raw = {key: deepcopy(value) for key, value in file.source.raw.items() if key not in NOT_OF_A_POINT}
    raw["workloads"] = {
        name: schema.shorthand("file")(schema.or_empty(spec)) for name, spec in raw["workloads"].items()
    }
    ordered = sorted(wanted, key=lambda key: key not in ("workload", "policy"))  # other names may be theirs
    try:
        for name in ordered:
            _set(file.experiment, raw, name, wanted[name])
        source = replace(file.source, raw=raw)
        narrow = ExperimentFile(file.name, experiment_of(source), source)
        (point, *_) = narrow.selected({})
    except InputError as error:
        about = f"{value_text(dict(changes))}: " if changes else ""
        raise InputError(f"{about}{error.what}", where=file.source.where, hint=error.hint) from error
    return SinglePoint(narrow, point, wanted["window"])


def changed_points(
    file: ExperimentFile, base: Mapping[str, Any], wanted: Mapping[str, Sequence[Any]]
) -> Iterator[tuple[Choice, SinglePoint]]:
    """Yield each of the `wanted` values of choices that is not that of the base, with its setting."""
    unchanged = single_point(file, base)
    for name, values in wanted.items():
        for value in values:
            choice = Choice(name, value, None if isinstance(value, dict) else unchanged.value(name))
            changed = single_point(file, {**base, **choice.changes})
            if any(changed.value(key) != unchanged.value(key) for key in choice.changes):
                yield choice, changed


def _set(experiment: Experiment, raw: dict[str, Any], name: str, value: Any) -> None:
    """Give a choice a value in the raw content of an experiment. Raises InputError if there is no such choice."""
    if name == "window":
        _one_of(name, value, experiment.windows)
    elif name in REPLICATE:
        raise InputError(
            f"{name} is drawn at random and not a choice", hint="leave it out; --perturb has the number of runs"
        )
    elif name == "workload":
        _one_of(name, value, experiment.workloads)
        raw["workloads"] = {value: raw["workloads"][value]}
    elif name == "policy":
        own = {spec.name: given for spec, given in zip(experiment.policies, raw["policies"], strict=True)}
        if value not in own:
            _one_of(name, value, [*own, *registry.names()])
        raw["policies"] = [
            {"label": value} | schema.shorthand("policy")(own.get(value, value))
        ]  # the name stays with other parameters
    elif name == "share":
        raw["malleable"] = {**(raw.get("malleable") or {}), "shares": value}
    elif name == "processes":
        given = schema.as_list(raw.get(name, schema.NO_PROCESSES))
        own = {spec.name: each for spec, each in zip(experiment.processes, given, strict=False)}
        raw[name] = own.get(value, value)
    elif name in KEYS:
        raw[name] = value
    else:
        _set_key(raw, name, value)


def _set_key(raw: dict[str, Any], name: str, value: Any) -> None:
    """Set a key of the experiment, of its only workload, of its malleable jobs, or a parameter of its only policy."""
    (workload,), (policy,) = raw["workloads"].values(), raw["policies"]
    parts = name.split(".")
    first = parts[0]
    if first in Experiment.model_fields:
        place = raw
    elif first in schema.WorkloadSpec.model_fields:
        place = workload
        if first == "log":  # other jobs than those of the experiment
            workload["log"] = {key: each for key, each in workload["log"].items() if key not in ("jobs", "fingerprint")}
    elif first in schema.Malleable.model_fields:
        place = raw.setdefault("malleable", {})
    else:
        place, parts = policy.setdefault("parameters", {}), [name]
    for part in parts[:-1]:
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            raise InputError(f"{part} has no keys", hint="write the key as in the experiment file, with dots")
    place[parts[-1]] = value


def _one_of(name: str, value: Any, known: Iterable[Any]) -> None:
    if value not in known:
        raise InputError(f"unknown {name} {value!r}", hint=f"use one of {', '.join(map(str, known))}")


COLUMNS = ["figure", "choice", "base_value", "value", "base", "band_low", "band_high", "changed", "change", "relative"]
COLUMNS += ["low", "high", "pairs", "differ", "found"]
NOT_SIGNIFICANT = "not significant"  # the interval of the effect contains zero: another random input may turn its sign
INSIDE = "inside the band"  # the effect has one sign, but is smaller than that of random perturbations on the base
OUTSIDE = "outside the band"
UNKNOWN = "unknown"  # fewer runs than a decision needs


@dataclass(frozen=True)
class Analysis:
    """The simulations of a sensitivity analysis, kept or to be computed."""

    file: ExperimentFile
    runs: int
    base: SinglePoint
    base_plan: GridPlan
    changed: list[tuple[Choice, SinglePoint, GridPlan]]
    refused: dict[str, str]
    """Label of a choice that cannot be simulated -> reason."""

    @property
    def settings(self) -> dict[str, Any]:
        """The values of the axes at the base, and the window. Axes that are not in the experiment are omitted."""
        point = {key: value for key, value in asdict(self.base.point).items() if key not in (*REPLICATE, "testbed")}
        return {key: value for key, value in point.items() if value is not None} | {"window": self.base.window}

    @property
    def about(self) -> str:
        """The axes at the base as text, without default values."""
        fields = Experiment.model_fields
        plain = {key: fields[key].default for key in self.settings if key in fields}
        return ", ".join(
            f"{key} {value_text(value)}" for key, value in self.settings.items() if [value] != plain.get(key)
        )

    def printed(self, figure: str) -> list[float]:
        """Return the published values of a figure at points like the base."""
        found = [each for each in self.file.experiment.published if each.figure == figure and not each.is_change]
        values = [each.value for each in found if each.rule is schema.Rule.NUMBER and self.base.point.fits(each.at)]
        return list(dict.fromkeys(value for value in values if value is not None))

    @property
    def plan(self) -> GridPlan:
        """The distinct simulations to be computed."""
        return union([self.base_plan, *(plan for _, _, plan in self.changed)])


@dataclass(frozen=True)
class Sensitivity:
    """The effects of the choices."""

    table: pd.DataFrame
    """A row per figure and changed choice, largest effect first; `COLUMNS`, in the unit of the metric."""
    failed: dict[str, str]
    """Label of a choice -> why there is no row."""
    warnings: dict[str, int]
    """Warning -> number of cells, of all simulations."""


def analysis(
    file: ExperimentFile,
    base: Mapping[str, Any],
    wanted: Mapping[str, Sequence[Any]],
    runs: int,
    folder: Path,
    logs: Mapping[str, Path],
) -> Analysis:
    """Prepare the workloads of the base and of each changed choice, and return what is to be computed.

    Args:
        base: choice -> value at the base.
        wanted: choice -> values.
        runs: number of perturbed inputs.
        folder: the output folder.
        logs: paths of logs by name of the workload.

    Raises:
        InputError: a choice is unknown, or the base cannot be simulated. A change that cannot be simulated is in
            `Analysis.refused`.
    """
    middle = single_point(file, base)

    def planned(each: SinglePoint) -> GridPlan:
        return plan(each.file, each.replicates(runs), folder, logs)

    base_plan, changed, refused = planned(middle), [], {}
    for choice, each in changed_points(file, base, wanted):
        try:
            changed.append((choice, each, planned(each)))
        except InputError as error:
            refused[choice.label] = str(error)
    return Analysis(file, runs, middle, base_plan, changed, refused)


def measure(asked: Analysis, folder: Path, pool: Pool, on_progress: Progress | None = None) -> Sensitivity:
    """Compute the cells that are not kept, write `sensitivity.csv`, and return the effects.

    Args:
        asked: the analysis, made for this folder.
        folder: the output folder, locked by `files.locked_folder`.
        pool: the workers.
        on_progress: called after each cell with the numbers of computed cells and of cells to compute.
    """
    errors = compute(asked.plan, folder, pool, on_progress)
    warnings: dict[str, int] = {}
    failed = dict(asked.refused)

    def runs_of(each: SinglePoint, made: GridPlan, label: str) -> pd.DataFrame | None:
        reasons = [errors[cell.identity] for cell in made.cells.values() if cell.identity in errors]
        if reasons:
            failed[label] = reasons[0]
            return None
        table, said = gathered(made, folder, ())
        for warning, count in said.items():
            warnings[warning] = warnings.get(warning, 0) + count
        return with_inputs(table[table["window"] == each.window])

    base = runs_of(asked.base, asked.base_plan, "base")
    rows: list[list[Any]] = []
    for choice, each, made in asked.changed:
        found = runs_of(each, made, choice.label)
        if base is None or found is None:
            continue
        for name, difference in differences(base, found).items():
            rows.append(_row(choice, name, difference, base[name].to_numpy(dtype=np.float64)))
    table = pd.DataFrame(rows, columns=COLUMNS)
    order = {name: place for place, name in enumerate(all_metrics())}
    by = table.assign(place=table["figure"].map(order), size=-table["change"].abs())
    table = table.loc[by.sort_values(["place", "size"], kind="stable").index].reset_index(drop=True)
    own = folder / asked.file.name
    own.mkdir(exist_ok=True)
    with replacing(own / "sensitivity.csv") as stream:
        table.to_csv(stream, index=False)
    return Sensitivity(table, failed, warnings)


def _row(choice: Choice, name: str, found: Difference, base: np.typing.NDArray[np.float64]) -> list[Any]:
    low, high = np.percentile(base[~np.isnan(base)], PERCENTS)
    changed = found.base + found.change
    if found.differ is None:
        verdict = UNKNOWN
    elif not found.differ:
        verdict = NOT_SIGNIFICANT
    else:
        verdict = INSIDE if low <= changed <= high else OUTSIDE
    about = [name, choice.name, value_text(choice.base), value_text(choice.value), found.base, low, high]
    effect = [changed, found.change, found.relative(found.change), found.low, found.high]
    return [*about, *effect, found.pairs, found.differ, verdict]
