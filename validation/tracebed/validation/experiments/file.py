"""Experiment files: YAML files that define an experiment.

    workloads: {mine: mine.parquet}
    policies: [easy, pref]
    testbed: {inventory: emulated-4, speed: 500}
    repetitions: 5
    simulators: {tracebed: {calibration: emulated.calibration.yaml}}

Without a testbed, the cells are simulated. docs/reference/experiment.md describes every key.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any
from warnings import warn

import yaml

from tracebed.ground.errors import InputError
from tracebed.ground.files import replacing
from tracebed.ground.yaml_file import YamlFile
from tracebed.orchestrator.configurations import CONFIGURATIONS
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.validation.experiments import experiment_schema as schema
from tracebed.validation.experiments.experiment import KEYS, OF_SIMULATIONS, OF_WORKLOADS, Experiment, Point
from tracebed.validation.experiments.experiment_schema import NO_OUTAGES, NO_PROCESSES
from tracebed.validation.experiments.recorded_runs import workloads_at
from tracebed.validation.metrics import all_metrics
from tracebed.validation.setups import AXES

FILE = "experiment.yaml"  # copy of the experiment file in an output folder
SHIPPED = files("tracebed.validation.experiments") / "shipped"
HINT = "`tracebed experiment NAME --show` prints a shipped experiment as an example"


@dataclass(frozen=True)
class ExperimentFile:
    """An experiment with its name and its file."""

    name: str
    experiment: Experiment
    source: YamlFile

    @property
    def folder(self) -> Path:
        """Base folder of relative paths in the file."""
        return Path(self.source.where).parent

    @property
    def argument(self) -> str:
        """The experiment as an argument of commands: the name of a shipped one, or that of its file."""
        shipped = self.name in names() and (SHIPPED / f"{self.name}.yaml").read_text("utf-8") == self.source.text
        return self.name if shipped else f"{self.name}.yaml"

    def write(self, output: Path) -> None:
        """Write a copy of the file to an output folder."""
        with replacing(output / FILE) as stream:
            stream.write(self.source.text.encode())

    def replayed(self, points: Sequence[Point], workload: Path, real: Mapping[str, Any]) -> ExperimentFile:
        """Return the experiment of some simulated points as replays, with a prediction of each by tracebed.

        Args:
            points: the points, which differ in their policies only.
            workload: the file of their jobs, the same for a policy that resizes no job.
            real: the keys `testbed`, `repetitions` and other ones of replays, as in a file.

        Raises:
            InputError: a key is invalid, or the points have processes or outages, which are simulated only.
        """
        point, raw = points[0], dict(self.source.raw)
        if point.processes != NO_PROCESSES or point.outages != NO_OUTAGES:
            what = "processes and outages are simulated only"
            raise InputError(what, where=self.source.where, hint="choose other cells with --only")
        for key in (*OF_SIMULATIONS, *OF_WORKLOADS, "exclude"):
            raw.pop(key, None)
        chosen = {each.policy for each in points}
        named = zip(raw["policies"], self.experiment.policies, strict=True)
        raw |= {key: getattr(point, key) for key in AXES if key in raw} | {
            "workloads": {point.workload: str(workload.resolve())},
            "policies": [each for each, policy in named if policy.name in chosen],
            "simulators": {"tracebed": {}},
            **real,
        }
        text = yaml.safe_dump(raw, sort_keys=False)
        try:
            return _checked(self.name, YamlFile.parse(text, self.source.where, hint=self.source.hint))
        except InputError as error:  # its line is that of the copy
            raise InputError(error.what, where=self.source.where, hint=error.hint) from error

    def selected(self, only: Mapping[str, list[str]]) -> list[Point]:
        """Return the points that match `only`: key -> accepted values as text.

        Raises:
            InputError: a key is unknown, no point has a value, a policy is not installed, or a parameter of a policy is
                unknown.
        """
        points = self.experiment.points()
        for key, wanted in only.items():
            _known_key(key, self.source.error)
            there = {_text(asdict(point)[key]) for point in points}
            for value in wanted:
                if value not in there:
                    have = ", ".join(sorted(there))
                    raise InputError(f"no point with {key}={value}", where=self.source.where, hint=f"use one of {have}")
            points = [point for point in points if _text(asdict(point)[key]) in wanted]
        if not points:
            raise InputError("no points of the grid remain", where=self.source.where, hint="exclude fewer points")
        self._check_policies({point.policy for point in points})
        return points

    def _check_policies(self, labels: set[str]) -> None:
        # The speed of real runs is that of their testbed or record: it is checked with them.
        speed = None if self.experiment.is_real else self.experiment.speed or 1.0
        for index, policy in enumerate(self.experiment.policies):
            if policy.name in labels:
                try:
                    registry.resolve(policy.policy, policy.parameters, speed=speed)
                except InputError as error:
                    hint = error.hint or HINT
                    raise InputError(
                        error.what, where=self.source.error("", "policies", index).where, hint=hint
                    ) from error


def place_of(bed: str) -> tuple[str, ...]:
    """Return the path of a testbed in the file; the name of the only testbed is empty."""
    return ("testbeds", bed) if bed else ("testbed",)


def names() -> list[str]:
    """Return the names of the shipped experiments."""
    return sorted(file.name.removesuffix(".yaml") for file in SHIPPED.iterdir() if file.name.endswith(".yaml"))


def load_experiment(name: str) -> ExperimentFile:
    """Read an experiment: the name of a shipped experiment, or the path of a YAML file.

    Raises:
        InputError: the experiment does not exist, the file is not YAML, or a key or value is invalid.
    """
    if name in names():
        with as_file(SHIPPED / f"{name}.yaml") as path:
            return _read(path)
    return _read(Path(name))


def _read(path: Path) -> ExperimentFile:
    unreadable = f"use one of {', '.join(names())}, or the path of a YAML file"
    return _checked(path.stem, YamlFile.read(path, "experiment", hint=HINT, unreadable=unreadable))


def _checked(name: str, source: YamlFile) -> ExperimentFile:
    raw = source.raw if isinstance(source.raw, dict) else {}
    if "cells" in raw or "defaults" in raw:
        what = "an experiment has no `cells`: its cells are all workloads under all policies on all testbeds"
        raise source.error(what, min({"cells", "defaults"} & set(raw)), hint="list workloads, policies and testbeds")
    if isinstance(raw.get("policies"), dict):
        what = "`policies` is a list"
        raise source.error(what, "policies", hint="write - {label: NAME, policy: POLICY, parameters: {...}}")
    file = ExperimentFile(name, experiment_of(source), source)
    _check_references(file)
    _check_executor(file)
    return file


def experiment_of(source: YamlFile) -> Experiment:
    """Return the experiment of a file, with absolute paths of the policies in files, and files as calibrations."""
    folder = Path(source.where).parent
    experiment = _with_found_workloads(source, folder).checked(Experiment)

    def located(key: str, at: int | str, spec: Any, **changes: Any) -> Any:
        try:
            return spec.model_copy(update={"policy": spec.policy and registry.located(spec.policy, folder)} | changes)
        except InputError as error:
            raise source.error(error.what, key, at, hint=error.hint) from error

    policies = [
        located("policies", index, _with_conf(spec, folder, source, index))
        for index, spec in enumerate(experiment.policies)
    ]
    measured = experiment.work_rates
    unmeasured = [name for name in experiment.testbed_names if name not in measured]
    simulators = {}
    for name, spec in experiment.simulators.items():
        if spec.calibration is True and unmeasured:
            recorded = "recorded" if experiment.recorded is not None else "testbed"
            place = f"testbed {unmeasured[0]}" if unmeasured[0] else f"`{recorded}`"
            what = f"`calibration: true` stands for the file `work_rate` of each testbed, but {place} has none"
            hint = "add `work_rate: FILE` there, or name a file: `calibration: FILE`"
            raise source.error(what, "simulators", name, "calibration", hint=hint)
        simulators[name] = located(
            "simulators", name, spec, **({"calibration": measured} if spec.calibration is True else {})
        )
    outages = [
        spec if spec.is_none or spec.file is None else spec.model_copy(update={"file": str(folder / spec.file)} | label)
        for spec in experiment.outages
        for label in ({"label": spec.name},)
    ]
    workloads = {}
    for name, workload in experiment.workloads.items():
        try:
            workloads[name] = workload.placed(folder)
        except InputError as error:
            where = f"{error.where}: " if error.where else ""
            raise source.error(f"{where}{error.what}", "workloads", name, "machine", hint=error.hint) from error
    changes = {"policies": policies, "simulators": simulators, "workloads": workloads, "outages": outages}
    found: Experiment = experiment.model_copy(update=changes)
    return found


def _with_conf(spec: schema.PolicySpec, folder: Path, source: YamlFile, index: int) -> schema.PolicySpec:
    """Return a policy with the parameters of its slurm.conf, which those of the experiment file override."""
    names = (spec.conf,) if isinstance(spec.conf, str) else spec.conf
    if not names:
        return spec
    try:
        conf = CONFIGURATIONS.load(spec.policy).read(*(folder / name for name in names))
    except InputError as error:
        where = f"{error.where}: " if error.where else ""
        raise source.error(f"{where}{error.what}", "policies", index, "conf", hint=error.hint) from error
    for difference in conf.differences:
        warn(f"{', '.join(names)}: {difference}", stacklevel=2)
    return spec.configured(conf.parameters, conf.machine)


def _with_found_workloads(source: YamlFile, folder: Path) -> YamlFile:
    """Return the file with the names of the recorded workloads in place of a pattern of names."""
    raw = source.raw if isinstance(source.raw, dict) else {}
    given, recorded = raw.get("workloads"), raw.get("recorded")
    of_names = given if isinstance(given, dict) else {}
    pattern = given if isinstance(given, str) else next((name for name in of_names if {*"*?["} & {*str(name)}), None)
    if pattern is None:
        return source
    runs = recorded.get("runs") if isinstance(recorded, dict) else recorded
    if not isinstance(runs, str) or "{workload}" not in runs or "{case}" in runs:
        what = (
            "`workloads` is a pattern of names, but `recorded` has no pattern of paths with {workload}, and no {case}"
        )
        raise source.error(what, "workloads", hint="write workloads: {NAME: FILE}")
    policies = [each.get("label") or each.get("policy") if isinstance(each, dict) else each for each in raw["policies"]]
    names = workloads_at(runs, pattern, list(map(str, policies)), folder)
    if not names:
        what = f"no recorded run is of a workload {pattern}"
        raise source.error(what, "workloads", hint=f"the paths are {runs} in the folder {folder}")
    if not of_names:
        return replace(source, raw=raw | {"workloads": names})
    spec = of_names[pattern]
    spec = {"file": spec} if isinstance(spec, str) else spec or {}
    if not isinstance(spec, dict) or "{workload}" not in str(spec.get("file", "{workload}")):
        hint = "{workload} is the name: write " + f'{{"{pattern}": "plans/{{workload}}.json"}}'
        raise source.error("a pattern of names requires {workload} in its `file`", "workloads", pattern, hint=hint)
    made = {name: {key: _filled(value, name) for key, value in spec.items()} for name in names}
    return replace(
        source, raw=raw | {"workloads": made | {key: value for key, value in of_names.items() if key != pattern}}
    )


def _filled(value: Any, workload: str) -> Any:
    return value.replace("{workload}", workload) if isinstance(value, str) else value


def _check_executor(file: ExperimentFile) -> None:
    """Raise InputError if the cells cannot be simulated or replayed, or two real cells have the same name."""
    experiment, error = file.experiment, file.source.error
    if not experiment.is_real:
        for name, workload in experiment.workloads.items():
            if not workload.has_source:
                raise error(f"workload {name} requires one of `file`, `log` and `model`", "workloads", name)
        return
    for index, policy in enumerate(experiment.policies):
        if not re.fullmatch(schema.NAME, policy.name):
            what = f"{policy.name!r} is not a name of folders; add a `label` of letters, digits, and any of _.+-"
            raise error(what, "policies", index)
    names = Counter(map(experiment.case_name, experiment.points()))
    if twice := [name for name, count in names.items() if count > 1]:
        raise error(f"two cases have the same name {twice[0]}; rename a workload, or add a `label` to a policy")
    for name, simulator in experiment.simulators.items():
        beds = experiment.testbed_names
        if isinstance(simulator.calibration, dict) and (other := set(simulator.calibration) - set(beds)):
            remedy = f"use one of {', '.join(beds)}" if beds != [""] else "the only testbed has no name: give one file"
            raise error(f"unknown testbed {min(other)!r}; {remedy}", "simulators", name, "calibration")


def _check_references(file: ExperimentFile) -> None:
    """Raise InputError if the file refers to a key, label, window or metric that does not exist."""
    experiment, error = file.experiment, file.source.error
    labels = [policy.name for policy in experiment.policies]
    for index, label in enumerate(labels):
        if label in labels[:index]:
            raise error(f"two policies have the name {label!r}; add a `label`", "policies", index)
    known = experiment.axes
    if (size := math.prod(map(len, known.values()))) > schema.MOST_POINTS:
        raise error(f"the grid has {size:,} points, more than {schema.MOST_POINTS:,}; shorten an axis")

    def check(where: schema.Where | None, *loc: int | str) -> None:
        for key, wanted in (where or {}).items():
            _known_key(key, error, *loc)
            for value in schema.as_list(wanted):
                if value not in known[key]:
                    has = ", ".join(map(str, known[key]))
                    raise error(f"no point has {key} {value!r}; use one of {has}", *loc, key)

    for index, where in enumerate(experiment.exclude):
        check(where, "exclude", index)
    for index, published in enumerate(experiment.published):
        figures = [*all_metrics(), *schema.OF_WORKLOADS, *experiment.shares_of_jobs]
        if published.figure not in figures:
            known_figures = ", ".join(figures)
            what = f"unknown figure {published.figure!r}; use one of {known_figures}"
            raise error(what, "published", index, "figure")
        check(published.at, "published", index, "at")
        check(published.relative_to, "published", index, "relative_to")
        for place, where in enumerate(published.order):
            check(where, "published", index, "order", place)
        if published.window is not None and published.window not in experiment.windows:
            what = f"unknown window {published.window!r}; use one of {', '.join(experiment.windows)}"
            raise error(what, "published", index, "window")
    for name, plot in experiment.plots.items():
        if plot.window is not None and plot.window not in experiment.windows:
            what = f"unknown window {plot.window!r}; use one of {', '.join(experiment.windows)}"
            raise error(what, "plots", name, "window")
        check(plot.at, "plots", name, "at")
        check(plot.relative_to, "plots", name, "relative_to")
    if not experiment.points():
        raise error("`exclude` removes all points of the grid", "exclude")


def _known_key(key: str, error: Any, *loc: int | str) -> None:
    if key not in KEYS:
        raise error(f"unknown key {key!r}; use one of {', '.join(KEYS)}", *loc)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value).strip('"')
