"""Suites: the cases of an experiment with real runs, their replays or recorded runs, and the simulators to validate."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from warnings import warn

from tracebed.converters.formats.reading import read_workload
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.ground.registry import one_of
from tracebed.orchestrator.configurations import predicted_setup
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.setup import Setup
from tracebed.validation.experiments.experiment import Point
from tracebed.validation.experiments.file import ExperimentFile, place_of
from tracebed.validation.experiments.predicted.recorded import paths_at, read_run
from tracebed.validation.experiments.predicted.simulators import SuiteSimulator, simulator_of
from tracebed.validation.experiments.predicted.task import Task
from tracebed.validation.experiments.real.campaign import Campaign, RealCell, cell_of, inventory_on
from tracebed.validation.experiments.workloads import Bases, is_kept, make, variant_of
from tracebed.validation.simulators.assembly import workload_of
from tracebed.validation.verdict.noise import NoiseProfile
from tracebed.validation.verdict.tolerances import Tolerances


@dataclass(frozen=True)
class SuiteCase:
    """A workload under a policy, and its recorded runs."""

    name: str
    task: Task
    """The task of the simulators."""
    workload: str
    """Name of the workload in reports, with the testbed if there are several."""
    calibration: bool
    """Whether a simulator was calibrated with the workload."""
    cluster: str
    """Name of the cluster of dependent workloads; empty: found from the runs."""
    recorded: Mapping[str, Run]
    """Name -> recorded run; empty with a testbed."""


@dataclass(frozen=True)
class Suite:
    """The real side of an experiment, and its simulators."""

    file: ExperimentFile
    cases: dict[str, SuiteCase]
    campaign: Campaign | None
    """The replays; None with recorded runs."""
    simulators: dict[str, SuiteSimulator]
    tolerances: Tolerances
    noise: NoiseProfile | None


def load_suite(
    file: ExperimentFile,
    points: Sequence[Point],
    output: Path,
    logs: Mapping[str, Path],
    only: Sequence[str] = (),
) -> Suite:
    """Read the workloads, inventories, calibrations and recorded runs that an experiment names.

    Args:
        file: an experiment with testbeds or recorded runs.
        points: the cells to run now. The settings of all cells of a file are checked and kept.
        output: the output folder, which keeps the workloads that are not read from a file as they are.
        logs: paths of logs by name of the workload.
        only: names of the simulators; empty for all.

    Raises:
        InputError: a file is invalid, or the cells are simulated. The error names the line of the experiment file.
    """
    if not file.experiment.is_real:
        what = "the experiment has neither a testbed nor recorded runs"
        raise InputError(what, where=file.source.where, hint="add `testbed: {inventory: ...}`, or `recorded`")
    for name in only:
        one_of("simulator of the experiment", name, file.experiment.simulators)
    return _SuiteLoader(file, output, logs).suite(points, only or list(file.experiment.simulators))


class _SuiteLoader:
    """Reader of the files that an experiment names."""

    def __init__(self, file: ExperimentFile, output: Path, logs: Mapping[str, Path]) -> None:
        self.file, self.experiment, self.source, self.folder = file, file.experiment, file.source, file.folder
        self.bases = Bases(file, logs, output)
        self.read: dict[Path, Workload] = {}

    def suite(self, points: Sequence[Point], only: Sequence[str]) -> Suite:
        """Return the suite with some of its simulators."""
        experiment = self.experiment
        simulators = {}
        for name in only:
            with self._at("simulators", name):
                simulators[name] = simulator_of(name, experiment.simulators[name], self.folder)
        needed = bool(experiment.beds) or any(simulator.needs_workload for simulator in simulators.values())
        cases: dict[str, SuiteCase] = {}
        cells: dict[str, RealCell] = {}
        chosen = {experiment.case_name(point) for point in points}
        for point in experiment.points() if experiment.beds else points:
            path, workload = self._workload(point, needed)
            if experiment.beds:
                assert workload is not None
                cell = self._cell(point, path, workload)
                cells[cell.name] = cell
                task = Task(self._names(point), path, cell.title, workload, cell.inventory.facts, cell.setup)
                if cell.name in chosen:
                    cases[cell.name] = self._case(point, task, {})
            else:
                case = self._recorded(point, path, workload, needed)
                cases[case.name] = case
        with self._at("tolerances"):
            file = experiment.tolerances
            tolerances = Tolerances.load(self.folder / file) if file else Tolerances.default()
        with self._at("noise"):
            noise = NoiseProfile.load(self.folder / experiment.noise) if experiment.noise else None
        return Suite(
            self.file,
            cases,
            Campaign(self.file, cells, frozenset(chosen)) if cells else None,
            simulators,
            tolerances,
            noise,
        )

    def _names(self, point: Point) -> dict[str, str]:
        """Return the values of the placeholders in patterns of paths, and the testbed."""
        case = self.experiment.case_name(point)
        return {"workload": point.workload, "policy": point.policy, "case": case, "testbed": point.testbed}

    def _workload(self, point: Point, needed: bool) -> tuple[Path | None, Workload | None]:
        """Return the file of the workload of a point, and the workload. `needed`: without a source is an error."""
        spec = self.experiment.workloads[point.workload]
        with self._at("workloads", point.workload):
            if not spec.has_source:
                if needed and self.experiment.recorded is None:
                    raise InputError("the source of the workload is missing", hint=f"write {point.workload}: FILE")
                return None, None
            path = self._file(point)
            if path not in self.read:
                self.read[path] = read_workload(path)
            return path, self.read[path]

    def _file(self, point: Point) -> Path:
        """Return the file of the workload of a point: the user's own, or one that is kept in the output folder."""
        spec = self.experiment.workloads[point.workload]
        if spec.is_plain and not point.share and not point.perturbation:
            return self.folder / str(spec.file)
        base = self.bases.of(point)
        policy = self.experiment.setup(point).on(base.system.grid).complete()[1]
        wanted = variant_of(self.experiment, point, base, policy)
        return base.path if wanted is None else wanted.path if is_kept(wanted.path) else make(wanted)

    def _cell(self, point: Point, path: Path | None, workload: Workload) -> RealCell:
        """Return the cell of the replays of a point."""
        experiment, name = self.experiment, self.experiment.case_name(point)
        bed, place = experiment.beds[point.testbed], place_of(point.testbed)
        with self._at(*place):
            inventory = inventory_on(point.testbed, workload, self.file)
            if experiment.simulators:
                inventory.check_real()
            elif inventory.execution == "virtual":
                warn(
                    f"the nodes of {inventory.name} are virtual: its runs are not real, and equal in all repetitions",
                    stacklevel=2,
                )
        title = self._title(point, path)
        repetitions = experiment.repetitions_on(point.testbed)
        with self._at(*place, what=f"case {name}: "):
            setup = experiment.setup(point)
            return cell_of(name, bed, setup, workload, title, inventory, repetitions, self.folder)

    def _title(self, point: Point, path: Path | None) -> str:
        """Return the name of the workload in reports: that of the user's file, or that in the experiment."""
        plain = self.experiment.workloads[point.workload].is_plain
        return path.name if path is not None and plain else point.workload

    def _parameters(self, point: Point, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return all parameters of a policy; `defaults` are those that the experiment does not set."""
        spec = self.experiment.policy(point)
        with self._at("policies", self.experiment.policies.index(spec)):
            given = {**defaults, **spec.parameters}
            return registry.parameters(registry.resolve(spec.policy, given)[1])

    def _recorded(self, point: Point, path: Path | None, workload: Workload | None, needed: bool) -> SuiteCase:
        """Return a case with its recorded runs. The first run provides the parameters that are not set.

        Args:
            path: the file of the workload; None: the workload has no source.
            workload: the workload, if it has a source.
            needed: whether a simulator needs the workload. Without a source, it is then that of the planned run times
                or of the first run.
        """
        spec, name = self.experiment.recorded, self.experiment.case_name(point)
        assert spec is not None
        names, policy, title = self._names(point), self.experiment.policy(point).policy, self._title(point, path)
        with self._at("recorded", what=f"case {name}: "):
            paths = paths_at(spec.runs, names, self.folder, of_runs=spec.importer is None)
            machine = {"nodes": spec.nodes_of(point.workload), "cores_per_node": spec.cores_per_node}
            reading: Any = {"policy": policy, "title": title, **machine}
            if workload is None and spec.planned is not None:
                planned = paths_at(spec.planned, names, self.folder, of_runs=False)
                if len(planned) > 1:
                    what = f"{len(planned)} files have planned run times: {planned[0].name}, {planned[1].name}"
                    raise InputError(what, hint="let the pattern `planned` match one file of each case")
                workload = workload_of(read_run(planned[0], spec, "real", workload=None, **reading))
            runs: list[Run] = []
            for each in paths:
                whose = workload or (runs[0] if runs and spec.importer else None)
                runs.append(read_run(each, spec, "real", workload=whose, **reading))
            info, conditions = runs[0].info, self.experiment.conditions(point)
            if not info.imported:
                self._check_conditions(info, conditions)
            if needed and path is None:
                workload = workload or self._own_workload(point, runs[0])
            own = predicted_setup(info).scheduling.policy_parameters if info.policy == policy else {}
            if workload is not None and info.workload.get("sha256") != workload.sha256:
                hint = "the hashes of the jobs differ"
                raise InputError(f"the recorded run is not of the workload {path}", hint=hint)
            setup = Setup.of(info.setup, policy=policy, policy_parameters=self._parameters(point, own), **conditions)
            task = Task(names, path, title, workload, info.nodes, setup)
        distinct = len({each.name for each in paths}) == len(paths)
        shown = [each.name if distinct else os.path.relpath(each, self.folder) for each in paths]
        return self._case(point, task, dict(zip(shown, runs, strict=True)))

    def _own_workload(self, point: Point, run: Run) -> Workload:
        """Return the workload of a recorded run. Raises InputError if the run lacks properties of its jobs."""
        try:
            return workload_of(run)
        except InputError as error:
            what = f"the source of the workload is missing: {error.what}"
            raise self.source.error(what, "workloads", point.workload, hint=f"write {point.workload}: FILE") from error

    def _check_conditions(self, info: RunInfo, conditions: Mapping[str, Any]) -> None:
        """Raise InputError if a setting of the experiment is not that which a run of tracebed has recorded."""
        recorded = info.setup.scheduling
        for name, value in conditions.items():
            asked, was = getattr(Setup.of(info.setup, **{name: value}).scheduling, name), getattr(recorded, name)
            if asked != was:
                shown = [f"{each:g}" if isinstance(each, float) else str(each) or "none" for each in (asked, was)]
                what = f"`{name}` is {shown[0]}, but the run was recorded with {shown[1]}: a replay has its settings"
                raise self.source.error(what, name, hint="leave it out, or give the value of the run")

    def _case(self, point: Point, task: Task, recorded: Mapping[str, Run]) -> SuiteCase:
        """Return a case with what the experiment file says about its workload."""
        spec, name = self.experiment.workloads[point.workload], self.experiment.case_name(point)
        workload = self.experiment.workload_name(point)
        return SuiteCase(name, task, workload, spec.calibration, spec.cluster, recorded)

    @contextmanager
    def _at(self, *place: int | str, what: str = "") -> Iterator[None]:
        """Add the line of `place` in the experiment file to an error, and the text `what`."""
        try:
            yield
        except InputError as error:
            if error.where and error.where.startswith(f"{self.source.where}:"):
                raise
            where = f"{error.where}: " if error.where else ""
            raise self.source.error(f"{what}{where}{error.what}", *place, hint=error.hint) from error
