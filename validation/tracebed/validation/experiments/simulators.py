"""The simulators of an experiment: their inputs, their calibrations, and their predictions of a case."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from warnings import warn

import numpy as np
from pydantic import Field

from tracebed.converters.workload import Workload
from tracebed.ground.display import time_text
from tracebed.ground.errors import InputError
from tracebed.ground.files import sha256_of
from tracebed.ground.registry import one_of
from tracebed.ground.stored import Part, StoredFile
from tracebed.ground.version import version
from tracebed.orchestrator import scheduling, simulation
from tracebed.orchestrator.configurations import CONFIGURATIONS, Configured
from tracebed.orchestrator.run import Run, workload_facts
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel
from tracebed.orchestrator.testbeds.calibration import Calibration, Instant, Loss, Number, Sha256
from tracebed.validation.experiments import store
from tracebed.validation.experiments.background_command import BackgroundCommand
from tracebed.validation.experiments.cell import RealCell, maker_of, maker_of_policy
from tracebed.validation.experiments.experiment_schema import COMMAND_PLACEHOLDERS, READING, TRACEBED, SimulatorSpec
from tracebed.validation.experiments.recorded_runs import paths_at, read_run
from tracebed.validation.experiments.workloads import code_of
from tracebed.validation.simulators.messages import output_of, reason_in, status_text
from tracebed.validation.simulators.simulator import SIMULATORS, SimulateOptions, simulate

Count = Annotated[int, Field(ge=0)]


class ParameterEstimate(Part):
    """A fitted parameter."""

    value: Number
    median: Number  # median over the cloud
    low: Number  # smallest value of the cloud
    high: Number  # largest value of the cloud
    range: list[Number]  # ends of the range of the search
    scale: Literal["log", "linear"]
    integer: bool
    # Whether the real runs determine the parameter: within a factor of 2, or a tenth of a linear range.
    identified: bool
    at_end: Literal["", "lower", "upper"]  # end of the range at which the value is


class TiedParameters(Part):
    """Two parameters that cannot be told apart."""

    parameters: list[str]
    correlation: Number  # correlation over the cloud


class CalibrationCase(Part):
    """Real runs that the parameters were fitted to."""

    case: str
    workload: str
    sha256: Sha256
    policy: str
    runs: list[str]


class CalibrationFold(Part):
    """A fit without the runs of one workload, applied to that workload. A loss is null if the simulator fails."""

    workload: str
    parameters: dict[str, Number]
    loss_in: Loss  # loss for the workloads of the fit
    loss_in_random: Loss | None  # loss for the workloads of the fit, of the best set of the random search
    loss_out: Loss | None  # loss for the workload left out
    loss_out_random: Loss | None  # loss for the workload left out, of the same set


class Failures(Part):
    """Simulations that failed."""

    simulations: Count
    first: str  # message of one of them; empty without failures


class SimulatorCalibration(StoredFile):
    """Parameters of a simulator fitted to real runs."""

    KIND: ClassVar[str] = "calibration of a simulator"
    HINT: ClassVar[str] = "`tracebed validate --fit` writes calibrations of simulators"

    file_schema: Annotated[Literal["tracebed-simulator-calibration/1"], Field(alias="schema")] = (
        "tracebed-simulator-calibration/1"
    )
    name: str
    """Name of the simulator in the experiment."""
    created: Instant
    """ISO 8601, with the time zone."""
    tracebed: str
    """Version of tracebed."""
    command: str
    """The command, with placeholders."""
    fitted: str
    """The command with the fitted values."""
    version: str
    """Version of the simulator, as in the experiment."""
    parameters: dict[str, ParameterEstimate]
    """The parameters that were searched."""
    known: dict[str, Number]
    """Parameters that were given."""
    without_effect: dict[str, Number]
    """Parameters that change nothing in these runs. They are at the lower ends of their ranges."""
    tied: list[TiedParameters]
    loss: Literal["metrics", "jobs"]
    """Mean relative error of the gated metrics, or of wait and response of each job."""
    value: Loss
    """Loss of the fitted parameters: the smaller one of the following two."""
    search_value: Loss
    """Loss of the best set of the search."""
    random_value: Loss | None
    """Loss of the best set of a random search with the same budget; null if the simulator fails with all of them."""
    tolerance: Loss
    """Largest additional loss of a set of the cloud."""
    budget: Annotated[int, Field(ge=1)]
    seed: Annotated[int, Field(ge=0)]
    sets: Annotated[int, Field(ge=1)]
    """Number of parameter sets tried by the search."""
    simulations: Annotated[int, Field(ge=1)]
    """Number of simulations, those of the random search and the cross-validation included."""
    failures: Failures
    workloads: list[Sha256]
    """SHA-256 of the workloads of the fit. No verdict may be based on them."""
    cases: list[CalibrationCase]
    cross_validation: list[CalibrationFold]
    """A fold per workload; empty with a single workload."""
    cloud_sets: Annotated[int, Field(ge=1)]
    """Number of sets that fit equally well."""
    cloud: list[dict[str, Number]]
    """At most 50 of them, far from each other; the first is the best."""

    @property
    def values(self) -> dict[str, float]:
        """The value of each parameter."""
        fitted = {name: each.value for name, each in self.parameters.items()}
        return {**fitted, **self.known, **self.without_effect}

    def facts(self) -> dict[str, Any]:
        """Return the facts of the calibration in `run.json`."""
        facts = {"name": self.name, "sha256": self.sha256, "created": self.created, "workloads": list(self.workloads)}
        return facts | {"parameters": self.values}


@dataclass(frozen=True)
class SuiteSimulator(ABC):
    """A simulator of an experiment."""

    name: str
    spec: SimulatorSpec
    folder: Path  # the folder of the experiment file

    needs_workload: ClassVar[bool] = True  # whether the simulator needs the file of the workload

    @abstractmethod
    def missing(self, cell: RealCell, output: Path) -> int:
        """Return the number of predictions of a cell that are still to be made. `output`: as for `predictions`."""

    @abstractmethod
    def predictions(self, cell: RealCell, output: Path) -> tuple[Run, ...]:
        """Return the predictions of a cell. Missing ones are made and kept in the folder `output`."""


class ExecutedSimulator(SuiteSimulator):
    """A simulator that is run. Its predictions are kept, and repeated if one of their inputs changes."""

    @cached_property
    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """All inputs of the predictions, besides the cell and the seed, as JSON values."""

    def facts_for(self, cell: RealCell) -> list[Any]:
        """Return the inputs of the predictions of a cell that are not part of `facts`, as JSON values."""
        return []

    @abstractmethod
    def predict(self, cell: RealCell, seed: int, log: Path) -> Run:
        """Return a prediction with a seed. The output of a program is written to `log`."""

    def missing(self, cell: RealCell, output: Path) -> int:
        """Return the number of predictions that are missing, or whose inputs have changed."""
        places = self._places(cell, output)
        return sum(not store.has_prediction(path, partial(self._inputs, cell, seed)) for seed, path in places)

    def predictions(self, cell: RealCell, output: Path) -> tuple[Run, ...]:
        """Return the kept predictions and make the others."""
        runs = []
        for seed, path in self._places(cell, output):
            inputs = partial(self._inputs, cell, seed)
            if not store.has_prediction(path, inputs):
                log = path.with_name(f"{path.name}.log")
                store.write_prediction(path, inputs, partial(self.predict, cell, seed, log))
            runs.append(Run.load(path))
        return tuple(runs)

    def _places(self, cell: RealCell, output: Path) -> Iterable[tuple[int, Path]]:
        """Return the seeds and the folders of the predictions."""
        return enumerate(store.prediction_folders(output, self.name, cell.name, self.spec.seeds))

    def _inputs(self, cell: RealCell, seed: int) -> dict[str, Any]:
        """Return all inputs of a prediction."""
        return {"simulator": self.facts, "own": self.facts_for(cell), "task": cell.facts, "seed": seed}


class CalibratedSimulator(ExecutedSimulator):
    """A simulator that predicts with the policies of tracebed and the overheads of a calibration."""

    @cached_property
    def calibrations(self) -> dict[str, Calibration]:
        """Name of the testbed -> its calibration; a calibration of all testbeds has an empty name."""
        given = self.spec.calibration
        files = given if isinstance(given, dict) else {"": given} if isinstance(given, str) else {}
        return {name: Calibration.load(self.folder / file) for name, file in files.items()}

    def calibration(self, cell: RealCell) -> Calibration | None:
        """Return the calibration of the testbed of a cell."""
        return self.calibrations.get(cell.names["testbed"], self.calibrations.get(""))

    @cached_property
    def configuration(self) -> Configured | None:
        """The configuration of the own policy of the simulator; None without `conf`."""
        names = (self.spec.conf,) if isinstance(self.spec.conf, str) else self.spec.conf
        if not names:
            return None
        conf = CONFIGURATIONS.load(str(self.spec.policy)).read(*(self.folder / name for name in names))
        for difference in conf.differences:
            warn(f"{', '.join(Path(name).name for name in names)}: {difference}", stacklevel=2)
        return conf

    def parameters(self, cell: RealCell | None = None) -> dict[str, Any]:
        """Return the parameters of the own policy of the simulator, with their defaults; empty without a policy.

        Those that the simulator does not set are those of its configuration, or of a cell with the same policy.
        """
        if self.spec.policy is None:
            return {}
        base: Mapping[str, Any] = self.configuration.parameters if self.configuration is not None else {}
        if self.configuration is None and cell is not None and self._has_policy_of(cell):
            base = cell.setup.scheduling.policy_parameters
        return registry.parameters(registry.resolve(self.spec.policy, {**base, **self.spec.policy_parameters})[1])

    def _has_policy_of(self, cell: RealCell) -> bool:
        return self.spec.policy == (cell.setup.scheduling.file or cell.setup.scheduling.policy)

    @property
    def policy_facts(self) -> dict[str, Any]:
        """Own policy of the simulator, its parameters, interval and machine; empty without a policy."""
        if self.spec.policy is None:
            return {}
        interval = {"interval_s": self.spec.interval_s} if self.spec.interval_s is not None else {}
        conf = self.configuration
        machine = {"machine": conf.machine.digest} if conf is not None and conf.machine is not None else {}
        return {"policy": [self.spec.policy, self.parameters()], **interval, **machine}

    def own_task(self, cell: RealCell) -> RealCell:
        """Return the cell with the own policy of the simulator, if any."""
        if self.spec.policy is None:
            return cell
        own: dict[str, Any] = {"policy": self.spec.policy, "policy_parameters": self.parameters(cell)}
        if self.spec.interval_s is not None:
            own["interval_s"] = self.spec.interval_s
        # The machine of a slurm.conf belongs to its policy, unless nothing else has the nodes.
        machine = cell.machine if self._has_policy_of(cell) or not cell.nodes else None
        if self.configuration is not None and self.configuration.machine is not None:
            machine = self.configuration.machine
            if cell.nodes:
                machine.check_size(len(cell.nodes))
        return replace(cell, machine=machine, setup=Setup.of(cell.setup, **own))

    def facts_for(self, cell: RealCell) -> list[Any]:
        """Return the hashes of the calibration and of the scheduler, and package and code of the policy."""
        cell, calibration = self.own_task(cell), self.calibration(cell)
        return [
            calibration.sha256 if calibration else None,
            code_of(Path(scheduling.__path__[0])),
            maker_of_policy(cell.setup.scheduling),
        ]


class BuiltInSimulator(CalibratedSimulator):
    """The simulator of tracebed."""

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Version, code and run-time model."""
        return {
            "version": [version(), code_of(Path(simulation.__path__[0]))],
            "runtime_model": self.spec.runtime_model,
            **self.spec.model_dump(include={"overheads", "run_time_sd_s"}, exclude_defaults=True),
            **self.policy_facts,
        }

    def predict(self, cell: RealCell, seed: int, log: Path) -> Run:
        """Simulate the workload of the cell; with several seeds, each is a member of an ensemble."""
        cell = self.own_task(cell)
        assert cell.workload is not None
        overheads, workload = self._drawn(cell.workload, seed)
        setup = Setup.of(
            cell.setup,
            calibration=self.calibration(cell),
            overheads=overheads,
            runtime_model=self.spec.runtime_model,
        )
        # Draws of the simulator's own replace those of a calibration.
        own = overheads is not None or workload is not cell.workload
        member = seed if self.spec.seeds > 1 and not own else None
        machine = cell.predicted_machine or cell.nodes or None
        run = predict(workload, machine, setup, name=cell.title, member=member)
        if own:
            run.info.parameters["member"] = seed
            run.info.workload = workload_facts(cell.workload, cell.title)
        return run

    def _drawn(self, workload: Workload, seed: int) -> tuple[Overheads | None, Workload]:
        """Return the overheads of a member of an ensemble (None: not given), and the workload with its run times."""
        spec, rng = self.spec, np.random.default_rng(seed)
        drawn = {name: float(rng.uniform(ends[0], ends[-1])) for name, ends in sorted(spec.overheads.items())}
        if spec.run_time_sd_s:
            run = workload.floats("run_time")
            noisy = np.maximum(run + rng.normal(0.0, spec.run_time_sd_s, len(run)), 0.0)
            workload = Workload(workload.table.assign(run_time=noisy), workload.provenance)
        return Overheads(**drawn) if drawn else None, workload


class DrivenSimulator(CalibratedSimulator):
    """A simulator of another project, run by its driver in the registry."""

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Code of the driver, version of the program, options, and the version in the experiment file."""
        assert self.spec.driver is not None
        of_program = SIMULATORS.load(self.spec.driver).version
        return {
            "driver": maker_of(SIMULATORS.entries[self.spec.driver]),
            "program": of_program(self.spec.options) if of_program is not None else "",
            "version": self.spec.version,
            "options": self.spec.options,
            **self.policy_facts,
        }

    def predict(self, cell: RealCell, seed: int, log: Path) -> Run:
        """Run the simulator."""
        cell = self.own_task(cell)
        assert self.spec.driver is not None and cell.workload is not None
        if cell.machine_of_testbed is not None:
            what = f"the testbed has partitions or resources, which {self.spec.driver} does not simulate"
            raise InputError(what, hint="leave the simulator out, or replay on an inventory without them")
        setup = Setup.of(cell.setup, calibration=self.calibration(cell))
        options = SimulateOptions(
            timeout_s=self.spec.timeout_s, seed=seed, name=cell.title, simulator_options=self.spec.options
        )
        return simulate(self.spec.driver, cell.workload, cell.nodes, setup, options)


class CommandSimulator(ExecutedSimulator):
    """A simulator that a command line runs."""

    @cached_property
    def calibration(self) -> SimulatorCalibration | None:
        """The calibration with the values of the parameters, if there is one; it must be this simulator's."""
        if not isinstance(self.spec.calibration, str):
            return None
        path = self.folder / self.spec.calibration
        calibration = SimulatorCalibration.load(path)
        if calibration.command != self.spec.command:
            hint = "calibrate again: `tracebed validate --fit`"
            raise InputError(
                f"is the calibration of another command: {calibration.command}", where=str(path), hint=hint
            )
        return calibration

    @cached_property
    def parameters(self) -> dict[str, float]:
        """Values of the parameters of the command; a range without a value is an InputError."""
        known = {name: each.low for name, each in self.spec.parameters.items() if each.known}
        values = {**(self.calibration.values if self.calibration else {}), **known}
        if missing := [name for name in self.spec.parameters if name not in values]:
            hint = (
                f"fit it: `tracebed validate --fit --only simulator={self.name}`; then name the file as `calibration`"
            )
            raise InputError(f"parameter {missing[0]} of {self.name} has a range, but no value", hint=hint)
        return values

    @property
    def digest(self) -> str:
        """Return the hash of the facts and of the version of tracebed, on which the results of a command depend."""
        return hashlib.sha256(json.dumps([self.facts, version()], sort_keys=True).encode()).hexdigest()

    def missing(self, cell: RealCell, output: Path) -> int:
        """Return the number of predictions that are missing. Raises InputError if a parameter has no value."""
        _ = self.parameters
        return super().missing(cell, output)

    def facts_for(self, cell: RealCell) -> list[Any]:
        """Return the values of the parameters, and the hash of the calibration."""
        return [self.parameters, self.calibration.sha256 if self.calibration else None] if self.spec.parameters else []

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The command, the content of the files that it names, and the version in the experiment file."""
        assert self.spec.command is not None
        words = [word.split("{")[0] for word in shlex.split(self.spec.command)]
        programs = {word: shutil.which(word, path=None) or str(self.folder / word) for word in words if word}
        return {
            "command": self.spec.command,
            "files": {word: sha256_of(Path(path)) for word, path in programs.items() if Path(path).is_file()},
            "version": self.spec.version,
            **self.spec.model_dump(include={"importer", *READING} - ({"speed"} if self.spec.speed == 1 else set())),
        }

    def predict(self, cell: RealCell, seed: int, log: Path) -> Run:
        """Run the command with the values of its parameters."""
        run = self.run(cell, seed, log, self.parameters)
        if self.calibration is not None:
            run.info.calibration = self.calibration.facts()
        return run

    def filled(self, parameters: Mapping[str, float]) -> str:
        """Return the command with the values of some parameters; other placeholders remain."""
        values = {name: self._text(value) for name, value in parameters.items()}
        assert self.spec.command is not None
        return self.spec.command.format_map({**{name: f"{{{name}}}" for name in COMMAND_PLACEHOLDERS}, **values})

    @staticmethod
    def _text(value: float) -> str:
        """Return the value of a parameter as text, without an exponent, which not all programs read."""
        return np.format_float_positional(value, trim="-")

    def run(self, cell: RealCell, seed: int, log: Path, parameters: Mapping[str, float]) -> Run:
        """Run the command in the folder of the experiment file, messages to `log`, and read its output."""
        assert self.spec.command is not None and cell.workload is not None
        with tempfile.TemporaryDirectory(prefix="tracebed-") as room:
            file, scratch = cell.file or Path(room, f"{cell.names['workload']}.csv"), Path(room, "written")
            if cell.file is None:
                plan = cell.workload.table.drop(columns=["logged_start", "logged_end"], errors="ignore")
                plan.to_csv(file, index=False)  # without provenance, which not all programs skip
            scratch.mkdir()
            output = scratch / "output"
            values = {
                "workload": str(file.absolute()),
                "policy": cell.names["policy"],
                "nodes": str(len(cell.nodes)),
                "seed": str(seed),
                "output": str(output),
                **{name: self._text(value) for name, value in parameters.items()},
            }
            command = self.spec.command.format_map({key: shlex.quote(value) for key, value in values.items()})
            with BackgroundCommand(command, log, self.folder) as program:
                status = program.wait(self.spec.timeout_s)
            if status != 0:
                said = output_of(log)
                if status is None:
                    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "")
                    why = f"took longer than {time_text(self.spec.timeout_s)}" + (
                        f"; its last line: {last}" if last else ""
                    )
                else:
                    why = ": ".join(filter(None, (f"ended with {status_text(status)}", reason_in(said))))
                what = f"`{self.filled(parameters)}` {why}"
                raise InputError(what, where=str(log), hint="the file has its output")
            written = sorted(scratch.iterdir())
            if len(written) != 1:
                names = ", ".join(path.name for path in written) or "nothing"
                said = reason_in(output_of(log)) if not written else ""
                what = f"`{self.spec.command}` ended with status 0 and wrote {names}" + (f": {said}" if said else "")
                raise InputError(what, where=str(log), hint="write one file or folder {output}, or {output}.SUFFIX")
            try:
                return read_run(written[0], self.spec, "predicted", folder=self.folder, **cell.reading)
            except InputError as error:
                place = (error.where or written[0].name).replace(f"{scratch}/", "")  # the file is temporary
                raise InputError(f"{place}: {error.what}", where=str(log), hint=error.hint) from error


class RecordedSimulator(SuiteSimulator):
    """A simulator whose predictions are recorded."""

    needs_workload = False

    def missing(self, cell: RealCell, output: Path) -> int:
        """Return 0."""
        return 0

    def predictions(self, cell: RealCell, output: Path) -> tuple[Run, ...]:
        """Return the recorded runs of a cell."""
        assert self.spec.runs is not None
        return tuple(
            read_run(path, self.spec, "predicted", folder=self.folder, **cell.reading)
            for path in paths_at(self.spec.runs, cell.names, self.folder, of_runs=self.spec.importer is None)
        )


def simulator_of(name: str, spec: SimulatorSpec, folder: Path) -> SuiteSimulator:
    """Return a simulator of an experiment whose file is in `folder`."""
    kinds: dict[str, type[SuiteSimulator]] = {
        TRACEBED: BuiltInSimulator,
        "with": DrivenSimulator,
        "command": CommandSimulator,
        "runs": RecordedSimulator,
    }
    made = kinds[spec.kind](name, spec, folder)
    if isinstance(made, BuiltInSimulator):
        one_of("runtime_model", spec.runtime_model, RuntimeModel)
        _ = made.parameters()  # checks the policy
        if name in SIMULATORS.names() and name != TRACEBED and spec.driver is None:
            raise InputError(f"{name} is an installed simulator", hint=f"add `with: {name}`, or rename the simulator")
    if isinstance(made, CalibratedSimulator):
        _ = made.calibrations  # reads the files
    if isinstance(made, CommandSimulator):
        _ = made.calibration
    if isinstance(made, DrivenSimulator) and SIMULATORS.load(str(spec.driver)).simulate is None:
        hint = "give its output with `runs` and `from`, or run it with `command` and `from`"
        raise InputError(f"tracebed cannot run {spec.driver}, only read its output", hint=hint)
    return made
