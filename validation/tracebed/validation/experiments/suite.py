"""Suites: the real cells of an experiment, their replays or recorded runs, and the simulators to validate."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from warnings import warn

from tracebed.converters.formats.reading import read_workload
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.ground.registry import one_of
from tracebed.machine.nodes import NodeFacts, nodes_of
from tracebed.orchestrator.configurations import predicted_setup
from tracebed.orchestrator.replay.options import Options
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.testbeds.nodes import Inventory, Node
from tracebed.validation.experiments import store
from tracebed.validation.experiments.cell import Campaign, RealCell, ReplayConditions
from tracebed.validation.experiments.experiment import Point
from tracebed.validation.experiments.experiment_schema import RecordedSpec
from tracebed.validation.experiments.file import ExperimentFile, place_of
from tracebed.validation.experiments.recorded_runs import path_at, paths_at, read_run
from tracebed.validation.experiments.simulators import SuiteSimulator, simulator_of
from tracebed.validation.experiments.workloads import Bases, is_kept, make, variant_of
from tracebed.validation.simulators.assembly import observed_run_times, workload_of
from tracebed.validation.verdict import Validation, validate
from tracebed.validation.verdict.cases import Case
from tracebed.validation.verdict.noise import NoiseProfile
from tracebed.validation.verdict.tolerances import Tolerances


@dataclass(frozen=True)
class Suite:
    """The real side of an experiment, and its simulators."""

    file: ExperimentFile
    cases: dict[str, RealCell]
    """The chosen cells."""
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


Predictions = dict[str, dict[str, tuple[Run, ...]]]
"""Simulator -> case -> its predictions."""


class _SuiteLoader:
    """Reader of the files that an experiment names."""

    def __init__(self, file: ExperimentFile, output: Path, logs: Mapping[str, Path]) -> None:
        self.file, self.experiment, self.source, self.folder = file, file.experiment, file.source, file.folder
        self.bases, self.output = Bases(file, logs, output), output
        self.read: dict[Path, Workload] = {}

    def suite(self, points: Sequence[Point], only: Sequence[str]) -> Suite:
        """Return the suite with some of its simulators."""
        experiment = self.experiment
        simulators = {}
        for name in only:
            with self._at("simulators", name):
                simulators[name] = simulator_of(name, experiment.simulators[name], self.folder)
        needed = bool(experiment.beds) or any(simulator.needs_workload for simulator in simulators.values())
        cells: dict[str, RealCell] = {}
        for point in experiment.points() if experiment.beds else points:
            path, workload = self._workload(point, needed)
            if experiment.beds:
                assert workload is not None
                cell = self._replayed(point, path, workload)
            else:
                cell = self._recorded(point, path, workload, needed)
            cells[cell.name] = cell
        chosen = {experiment.case_name(point) for point in points}
        with self._at("tolerances"):
            file = experiment.tolerances
            tolerances = Tolerances.load(self.folder / file) if file else Tolerances.default()
        with self._at("noise"):
            noise = NoiseProfile.load(self.folder / experiment.noise) if experiment.noise else None
        return Suite(
            self.file,
            {name: cell for name, cell in cells.items() if name in chosen},
            Campaign(self.file, cells, frozenset(chosen), store.added(self.output / store.REAL))
            if experiment.beds
            else None,
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

    def _replayed(self, point: Point, path: Path | None, workload: Workload) -> RealCell:
        """Return the cell of the replays of a point."""
        # Recorded runs need no testbed and no batch system.
        from tracebed.orchestrator.replay.batch.base import BatchSettings
        from tracebed.orchestrator.replay.batch.session import BatchOptions
        from tracebed.orchestrator.testbeds.calibration import Calibration

        bed, place = self.experiment.beds[point.testbed], place_of(point.testbed)
        with self._at(*place):
            inventory = self._inventory(point.testbed, workload)
            if self.experiment.simulators:
                inventory.check_real()
            elif inventory.execution == "virtual":
                warn(
                    f"the nodes of {inventory.name} are virtual: its runs are not real, and equal in all repetitions",
                    stacklevel=2,
                )
        with self._at(*place, what=f"case {self.experiment.case_name(point)}: "):
            setup = self.experiment.setup(point)
            inventory.check_here()
            work_rate = Calibration.load(self.folder / bed.work_rate) if bed.work_rate is not None else None
            scheduler = None
            if bed.scheduler is not None:
                conf = self.folder / bed.scheduler_conf if bed.scheduler_conf is not None else None
                settings = BatchSettings(bed.partition, tuple(bed.scheduler_options), configuration=conf)
                rule = setup.scheduling.dependencies
                scheduler = BatchOptions(setup.timing.speed, bed.scheduler, settings, dependencies=rule)
                scheduler.system()  # checks the options
                setup = Setup.of(setup, over_limit=OverLimit.KILL)
            setup = setup.on(inventory.grid).resolved(len(inventory.nodes))[0]
            options = Options(balance=bed.balance, clock=bed.clock)
            repetitions = self.experiment.repetitions_on(point.testbed)
            conditions = ReplayConditions(inventory, options, work_rate, bed.beside, scheduler, repetitions)
            cell = self._cell(point, path, workload, inventory.facts, setup, replay=conditions)
            if not 0 <= cell.shortest_s < float("inf"):  # computing it checks that the workload can be replayed
                raise InputError("no job of the workload can be replayed")
        return cell

    def _inventory(self, bed: str, workload: Workload) -> Inventory:
        """Return the nodes of a testbed: of its inventory, or the workload's system if a batch system decides."""
        from tracebed.orchestrator.testbeds.inventory import FIELDS, inventory_of, load_inventory  # as in `_replayed`

        spec, place = self.experiment.beds[bed], place_of(bed)
        if spec.inventory is None and spec.scheduler is None:
            raise self.source.error("required key inventory is missing", *place)
        if spec.inventory is None:
            facts = nodes_of(workload.provenance.system)
            nodes = tuple(Node(node.name, node.cores, node.sockets, emulated=True) for node in facts)
            return Inventory(str(spec.scheduler), str(spec.scheduler), nodes)
        if isinstance(spec.inventory, str):
            path = self.folder / spec.inventory
            return load_inventory(path if path.is_file() else spec.inventory)
        return inventory_of(self.source.part(*place, "inventory", hint=FIELDS), bed or "testbed")

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

    def _recorded(self, point: Point, path: Path | None, workload: Workload | None, needed: bool) -> RealCell:
        """Return a case with its recorded runs. The first run provides the parameters that are not set."""
        # Without a source, the workload that a simulator needs is that of the planned run times or of the first run.
        spec, name = self.experiment.recorded, self.experiment.case_name(point)
        assert spec is not None
        names, policy, title = self._names(point), self.experiment.policy(point).policy, self._title(point, path)
        with self._at("recorded", what=f"case {name}: "):
            paths = paths_at(spec.runs, names, self.folder, of_runs=spec.importer is None)
            machine = {"nodes": spec.nodes_of(point.workload), "cores_per_node": spec.cores_per_node}
            reading: Any = {"policy": policy, "title": title, "names": names, "folder": self.folder, **machine}
            if workload is None and spec.planned is not None:
                hint = "let the pattern `planned` match one file of each case"
                planned = path_at(spec.planned, names, self.folder, "have planned run times", hint)
                workload = workload_of(read_run(planned, spec, "real", workload=None, **reading))
            runs, workload = self._runs(paths, spec, workload, reading)
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
        distinct = len({each.name for each in paths}) == len(paths)
        shown = [each.name if distinct else os.path.relpath(each, self.folder) for each in paths]
        return self._cell(point, path, workload, info.nodes, setup, recorded=dict(zip(shown, runs, strict=True)))

    def _runs(
        self, paths: Sequence[Path], spec: RecordedSpec, workload: Workload | None, reading: Any
    ) -> tuple[list[Run], Workload | None]:
        """Return the runs at `paths`, and their workload, with the observed run times if these are asked for."""

        def read(path: Path, whose: Workload | Run | None) -> Run:
            return read_run(path, spec, "real", workload=whose, **reading)

        first = read(paths[0], workload)
        runs = [first, *(read(path, workload or (first if spec.importer else None)) for path in paths[1:])]
        # A run that lacks jobs is neither the workload of the others, nor the origin of their run times.
        fullest = max(range(len(runs)), key=lambda index: runs[index].info.imported.get("rows", 0))
        if workload is None and fullest:
            whose = read(paths[fullest], None)
            runs = [read(path, whose) for path in paths]
        elif workload is not None and spec.run_times == "observed":
            workload = observed_run_times(workload, runs[fullest])
            runs = [read(path, workload) for path in paths]
        return runs, workload

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

    def _cell(
        self,
        point: Point,
        path: Path | None,
        workload: Workload | None,
        nodes: list[NodeFacts],
        setup: Setup,
        **real: Any,
    ) -> RealCell:
        """Return the cell of a point with what the experiment file says about its workload. `real`: its real runs."""
        spec = self.experiment.workloads[point.workload]
        return RealCell(
            self.experiment.case_name(point),
            self._names(point),
            path,
            self._title(point, path),
            workload,
            nodes,
            self.experiment.machine(point, len(nodes) or None),
            setup,
            self.experiment.workload_name(point),
            spec.calibration,
            spec.cluster,
            **real,
        )

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


def validate_suite(
    suite: Suite, predictions: Predictions, folder: Path
) -> tuple[dict[str, Validation], dict[str, str]]:
    """Return simulator -> validation over the cases of the suite; and simulator -> why its runs cannot be compared."""
    validations: dict[str, Validation] = {}
    failed: dict[str, str] = {}
    tau = suite.file.experiment.tau
    for name, cases in cases_of(suite, predictions, folder).items():
        if suite.noise is not None:
            for case in cases:
                suite.noise.require(case.real[0].info, tau)
        try:
            made = validate(cases, suite.tolerances, profile=suite.noise, tau=tau)
        except InputError as error:
            failed[name] = f"its predictions cannot be compared: {error}"
            continue
        version = suite.simulators[name].spec.version or made.simulator.version
        validations[name] = replace(made, simulator=replace(made.simulator, name=name, version=version))
    return validations, failed


def cases_of(suite: Suite, predictions: Predictions, folder: Path) -> dict[str, list[Case]]:
    """Return simulator -> the cases of the suite, each with at least one run, with the predictions of the simulator."""
    real = {name: case.recorded or replayed(suite, name, folder) for name, case in suite.cases.items()}
    return {
        name: [
            Case(
                case.name,
                case.label,
                case.names["policy"],
                tuple(real[case.name].values()),
                predicted[case.name],
                case.calibration,
                tuple(real[case.name]),
                case.cluster,
            )
            for case in suite.cases.values()
        ]
        for name, predicted in predictions.items()
    }


def replayed(suite: Suite, case: str, folder: Path) -> dict[str, Run]:
    """Return name -> run of the repetitions of a case that are done, in the order of execution."""
    assert suite.campaign is not None
    order = store.read_plan(folder / store.REAL)["order"] if store.has_replays(folder) else ()
    slots = [slot for slot in order if slot.cell == case]
    runs = {Path(slot.folder).name: store.run_of(slot, folder / store.REAL) for slot in slots}
    return {name: run for name, run in runs.items() if run is not None}
