"""Suites: the cases of a suite file, its simulators, and the campaign or the recorded runs of its real side.

    workloads: {cirne: w/cirne.csv, lublin: {file: w/lublin.csv, calibration: true}}
    policies: [easy, pref]
    testbed: {inventory: emulated-4, speed: 500, calibration: emulated.calibration.yaml}
    repetitions: 5
    simulators:
      tracebed: {calibration: emulated.calibration.yaml}
      mine: {runs: "mine/{workload}-{policy}"}

docs/reference/suite.md describes every key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracebed.converters.formats.reading import read_workload
from tracebed.converters.workload import Workload
from tracebed.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.slurm.conf import predicted_setup
from tracebed.registry import one_of
from tracebed.validation.experiments.predicted.recorded import paths_at, read_run
from tracebed.validation.experiments.predicted.simulators import SuiteSimulator, simulator_of
from tracebed.validation.experiments.predicted.specs import SuiteSpec
from tracebed.validation.experiments.predicted.task import Task
from tracebed.validation.experiments.real.campaign import Campaign, Cell, CellSpec, cell_of, inventory_at, machine_of
from tracebed.validation.verdict.noise import NoiseProfile
from tracebed.validation.verdict.tolerances import Tolerances
from tracebed.yaml_file import YamlFile

HINT = "keys: workloads, policies, testbed or recorded, repetitions, simulators, tolerances, noise, baseline, tau"


@dataclass(frozen=True)
class SuiteCase:
    """A workload under a policy, and its recorded runs."""

    name: str
    task: Task
    """The task of the simulators."""
    calibration: bool
    """Whether a simulator was calibrated with the workload."""
    cluster: str
    """Name of the cluster of dependent workloads; empty: found from the runs."""
    recorded: Mapping[str, Run]
    """Name -> recorded run; empty with a testbed."""


@dataclass(frozen=True)
class Suite:
    """A validated suite file."""

    spec: SuiteSpec
    source: YamlFile
    cases: dict[str, SuiteCase]
    campaign: Campaign | None
    """The replays; None with recorded runs."""
    simulators: dict[str, SuiteSimulator]
    tolerances: Tolerances
    noise: NoiseProfile | None

    @property
    def name(self) -> str:
        """The name of the file."""
        return Path(self.source.where).stem

    @property
    def folder(self) -> Path:
        """The folder of the file: paths in the file are relative to it."""
        return Path(self.source.where).parent


def load_suite(path: Path | str, only: Sequence[str] = ()) -> Suite:
    """Read a suite file, and the workloads, inventory, calibrations and recorded runs that it names.

    Args:
        path: the file.
        only: names of the simulators to validate; empty for all.

    Raises:
        InputError: the file, or a file that it names, is invalid. The error names the line of the suite file.
    """
    source = YamlFile.read(Path(path), "suite", hint=HINT, unreadable="give the path of a YAML file")
    spec = source.checked(SuiteSpec)
    for name in only:
        one_of("simulator of the suite", name, spec.simulators)
    return _Loader(spec, source).suite(only or list(spec.simulators))


class _Loader:
    """Reader of the files that a suite file names."""

    def __init__(self, spec: SuiteSpec, source: YamlFile) -> None:
        self.spec, self.source, self.folder = spec, source, Path(source.where).parent

    def suite(self, only: Sequence[str]) -> Suite:
        """Return the suite with some of its simulators."""
        spec, folder = self.spec, self.folder
        simulators = {}
        for name in only:
            with self._at("simulators", name):
                simulators[name] = simulator_of(name, spec.simulators[name], folder)
        needed = spec.testbed is not None or any(simulator.needs_workload for simulator in simulators.values())
        workloads = {name: self._workload(name, needed) for name in spec.workloads}
        parameters = {name: self._parameters(name) for name in spec.policies}
        with self._at("tolerances"):
            tolerances = Tolerances.load(folder / spec.tolerances) if spec.tolerances else Tolerances.default()
        with self._at("noise"):
            noise = NoiseProfile.load(folder / spec.noise) if spec.noise else None
        cases, cells = {}, {}
        for name, (workload, policy) in spec.cases.items():
            if spec.testbed is not None:
                cells[name] = self._cell(name, workloads[workload], parameters[policy])
                task = Task.of_cell(cells[name], self._names(name), self._file(workload))
                cases[name] = self._case(name, task, {})
            else:
                cases[name] = self._recorded(name, workloads[workload])
        campaign = Campaign(spec, self.source, cells) if cells else None
        return Suite(spec, self.source, cases, campaign, simulators, tolerances, noise)

    def _names(self, case: str) -> dict[str, str]:
        """Return the values of the placeholders in patterns of paths."""
        workload, policy = self.spec.cases[case]
        return {"workload": workload, "policy": policy}

    def _file(self, workload: str) -> Path | None:
        """Return the file of a workload."""
        file = self.spec.workloads[workload].file
        return self.folder / file if file is not None else None

    def _workload(self, name: str, needed: bool) -> Workload | None:
        """Read a workload, if it has a file. `needed`: a workload without a file is an error."""
        with self._at("workloads", name):
            file = self._file(name)
            if file is None and needed:
                raise InputError("the file of the workload is missing", hint=f"write {name}: FILE")
            return read_workload(file) if file is not None else None

    def _parameters(self, name: str, defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return all parameters of a policy; `defaults` are those that the suite does not set."""
        given = {**(defaults or {}), **self.spec.policies[name].parameters}
        with self._at("policies", name):
            return registry.parameters(registry.resolve(self._policy(name), given)[1])

    def _policy(self, name: str) -> str:
        return self.spec.policies[name].policy or name

    def _cell(self, name: str, workload: Workload | None, parameters: dict[str, Any]) -> Cell:
        """Return the cell of the replays of a case."""
        workload_name, policy = self.spec.cases[name]
        options = self.spec.testbed
        assert options is not None and workload is not None
        if options.inventory is None and options.scheduler is None:
            raise self.source.error("required key inventory is missing", "testbed")
        with self._at("testbed"):
            inventory = (
                inventory_at(options.inventory, self.source, "testbed", "inventory", name="testbed")
                if options.inventory is not None
                else machine_of(workload, options)
            )
        spec = CellSpec(
            **options.model_dump(exclude_unset=True),
            workload=self.spec.workloads[workload_name].file,
            policy=self._policy(policy),
            policy_parameters=parameters,
        )
        with self._at("testbed", what=f"case {name}: "):
            return cell_of(name, spec, workload, inventory, self.source)

    def _recorded(self, name: str, workload: Workload | None) -> SuiteCase:
        """Return a case with its recorded runs. The first run has the parameters that the suite does not set."""
        spec, (workload_name, policy) = self.spec.recorded, self.spec.cases[name]
        assert spec is not None
        names, file = self._names(name), self._file(workload_name)
        title = file.name if file else workload_name
        with self._at("recorded", what=f"case {name}: "):
            paths = paths_at(spec.runs, names, self.folder, of_runs=spec.importer is None)
            runs = [
                read_run(path, spec, "real", workload=workload, policy=self._policy(policy), title=title)
                for path in paths
            ]
            info = runs[0].info
            same = info.policy == self._policy(policy)
            own = predicted_setup(info).scheduling.policy_parameters if same else {}
            parameters = self._parameters(policy, own)
            task = Task.of_run(
                runs[0], names, file, workload, policy=self._policy(policy), policy_parameters=parameters
            )
        distinct = len({path.name for path in paths}) == len(paths)
        shown = [path.name if distinct else os.path.relpath(path, self.folder) for path in paths]
        recorded = dict(zip(shown, runs, strict=True))
        return self._case(name, task, recorded)

    def _case(self, name: str, task: Task, recorded: Mapping[str, Run]) -> SuiteCase:
        """Return a case with what the suite file says about its workload."""
        workload = self.spec.workloads[self.spec.cases[name][0]]
        return SuiteCase(name, task, workload.calibration, workload.cluster, recorded)

    @contextmanager
    def _at(self, *place: str, what: str = "") -> Iterator[None]:
        """Add the line of `place` in the suite file to an error, and the text `what`."""
        try:
            yield
        except InputError as error:
            if error.where and error.where.startswith(f"{self.source.where}:"):
                raise
            where = f"{error.where}: " if error.where else ""
            raise self.source.error(f"{what}{where}{error.what}", *place, hint=error.hint) from error
