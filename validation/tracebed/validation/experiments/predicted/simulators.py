"""The simulators of an experiment: their inputs, and their predictions of a case."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tracebed.ground.display import time_text
from tracebed.ground.errors import InputError
from tracebed.ground.files import replacing, sha256_of
from tracebed.ground.input_files import read_json
from tracebed.ground.registry import one_of
from tracebed.ground.version import version
from tracebed.orchestrator import scheduling, simulation
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel
from tracebed.orchestrator.testbeds.calibration import Calibration
from tracebed.validation.experiments.predicted.calibration import SimulatorCalibration
from tracebed.validation.experiments.predicted.recorded import paths_at, read_run
from tracebed.validation.experiments.predicted.specs import COMMAND_PLACEHOLDERS, TRACEBED, SimulatorSpec
from tracebed.validation.experiments.predicted.task import Task
from tracebed.validation.experiments.real.beside import BackgroundCommand
from tracebed.validation.experiments.simulated.cells import maker_of, maker_of_policy
from tracebed.validation.experiments.workloads import code_of
from tracebed.validation.simulators.messages import output_of, reason_in, status_text
from tracebed.validation.simulators.simulator import SIMULATORS, SimulateOptions, simulate, simulator


@dataclass(frozen=True)
class SuiteSimulator(ABC):
    """A simulator of an experiment."""

    name: str
    spec: SimulatorSpec
    folder: Path
    """The folder of the experiment file."""

    needs_workload: ClassVar[bool] = True
    """Whether the simulator needs the file of the workload."""

    @abstractmethod
    def missing(self, task: Task, output: Path) -> int:
        """Return the number of predictions of a task that are still to be made."""

    @abstractmethod
    def predictions(self, task: Task, output: Path) -> tuple[Run, ...]:
        """Return the predictions of a task, and make the missing ones before.

        Args:
            task: what to predict.
            output: folder of the prediction, or of the predictions with several seeds.

        Raises:
            InputError: the simulator fails, or a prediction cannot be read.
        """


class ExecutedSimulator(SuiteSimulator):
    """A simulator that is run. Its predictions are kept, and repeated if one of their inputs changes."""

    @cached_property
    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """All inputs of the predictions, besides the task and the seed, as JSON values."""

    def facts_for(self, task: Task) -> list[Any]:
        """Return the inputs of the predictions of a task that are not part of `facts`, as JSON values."""
        return []

    @abstractmethod
    def predict(self, task: Task, seed: int, log: Path) -> Run:
        """Return a prediction with a seed. The output of a program is written to `log`."""

    def missing(self, task: Task, output: Path) -> int:
        """Return the number of predictions that are missing, or whose inputs have changed."""
        return sum(not self._is_kept(path, task, seed) for seed, path in self._places(output))

    def predictions(self, task: Task, output: Path) -> tuple[Run, ...]:
        """Return the kept predictions and make the others."""
        found = []
        for seed, path in self._places(output):
            if not self._is_kept(path, task, seed):
                _record(path).unlink(missing_ok=True)
                path.parent.mkdir(parents=True, exist_ok=True)
                self.predict(task, seed, path.with_name(f"{path.name}.log")).save(path, replace=True)
                with replacing(_record(path)) as stream:
                    stream.write(json.dumps(self._inputs(task, seed), indent=1).encode() + b"\n")
            found.append(Run.load(path))
        return tuple(found)

    def _places(self, output: Path) -> list[tuple[int, Path]]:
        """Return the seeds and the folders of the predictions."""
        if self.spec.seeds == 1:
            return [(0, output)]
        return [(seed, output / f"run-{seed + 1:02d}") for seed in range(self.spec.seeds)]

    def _inputs(self, task: Task, seed: int) -> dict[str, Any]:
        """Return all inputs of a prediction, with their hash."""
        inputs = {"simulator": self.facts, "own": self.facts_for(task), "task": task.facts, "seed": seed}
        return {"sha256": hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest(), **inputs}

    def _is_kept(self, path: Path, task: Task, seed: int) -> bool:
        """Return whether a prediction is kept and complete, and all its inputs are the same."""
        try:
            kept = read_json(_record(path), "record of a prediction")["sha256"]
        except (InputError, TypeError, KeyError):
            return False
        return bool(kept == self._inputs(task, seed)["sha256"]) and (path / "run.json").is_file()


def _record(path: Path) -> Path:
    """Return the file of the inputs of the prediction in the folder `path`."""
    return path.with_name(f"{path.name}.json")


class CalibratedSimulator(ExecutedSimulator):
    """A simulator that predicts with the policies of tracebed and the overheads of a calibration."""

    @cached_property
    def calibrations(self) -> dict[str, Calibration]:
        """Name of the testbed -> its calibration; a calibration of all testbeds has an empty name."""
        given = self.spec.calibration
        files = given if isinstance(given, dict) else {"": given} if isinstance(given, str) else {}
        return {name: Calibration.load(self.folder / file) for name, file in files.items()}

    def calibration(self, task: Task) -> Calibration | None:
        """Return the calibration of the testbed of a task."""
        return self.calibrations.get(task.names["testbed"], self.calibrations.get(""))

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the own policy of the simulator, with their defaults; empty if the simulator has no policy."""
        if self.spec.policy is None:
            return {}
        return registry.parameters(registry.resolve(self.spec.policy, self.spec.policy_parameters)[1])

    @property
    def policy_facts(self) -> dict[str, Any]:
        """Own policy of the simulator, its parameters and its interval; empty without a policy."""
        if self.spec.policy is None:
            return {}
        interval = {"interval_s": self.spec.interval_s} if self.spec.interval_s is not None else {}
        return {"policy": [self.spec.policy, self.parameters], **interval}

    def own_task(self, task: Task) -> Task:
        """Return the task with the own policy of the simulator, if any."""
        if self.spec.policy is None:
            return task
        own: dict[str, Any] = {"policy": self.spec.policy, "policy_parameters": self.parameters}
        if self.spec.interval_s is not None:
            own["interval_s"] = self.spec.interval_s
        return replace(task, setup=Setup.of(task.setup, **own))

    def facts_for(self, task: Task) -> list[Any]:
        """Return the hashes of the calibration and of the scheduler, and package and code of the policy."""
        task, calibration = self.own_task(task), self.calibration(task)
        return [
            calibration.sha256 if calibration else None,
            code_of(Path(scheduling.__path__[0])),
            maker_of_policy(task.setup.scheduling),
        ]


class BuiltInSimulator(CalibratedSimulator):
    """The simulator of tracebed."""

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Version, code and run-time model."""
        return {
            "version": [version(), code_of(Path(simulation.__path__[0]))],
            "runtime_model": self.spec.runtime_model,
            **self.policy_facts,
        }

    def predict(self, task: Task, seed: int, log: Path) -> Run:
        """Simulate the workload of the task; with several seeds, each is a member of an ensemble."""
        task = self.own_task(task)
        assert task.workload is not None
        setup = Setup.of(task.setup, calibration=self.calibration(task), runtime_model=self.spec.runtime_model)
        member = seed if self.spec.seeds > 1 else None
        return predict(task.workload, task.nodes or None, setup, name=task.title, member=member)


class DrivenSimulator(CalibratedSimulator):
    """A simulator of another project, run by its driver in the registry."""

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Code of the driver, version of the program, options, and the version in the experiment file."""
        assert self.spec.driver is not None
        of_program = simulator(self.spec.driver).version
        return {
            "driver": maker_of(SIMULATORS.entries[self.spec.driver]),
            "program": of_program(self.spec.options) if of_program is not None else "",
            "version": self.spec.version,
            "options": self.spec.options,
            **self.policy_facts,
        }

    def predict(self, task: Task, seed: int, log: Path) -> Run:
        """Run the simulator."""
        task = self.own_task(task)
        assert self.spec.driver is not None and task.workload is not None
        setup = Setup.of(task.setup, calibration=self.calibration(task))
        options = SimulateOptions(
            timeout_s=self.spec.timeout_s, seed=seed, name=task.title, simulator_options=self.spec.options
        )
        return simulate(self.spec.driver, task.workload, task.nodes, setup, options)


class CommandSimulator(ExecutedSimulator):
    """A simulator that a command line runs."""

    @cached_property
    def calibration(self) -> SimulatorCalibration | None:
        """The calibration with the values of the parameters, if there is one.

        Raises:
            InputError: it cannot be read, or is of another simulator.
        """
        if not isinstance(self.spec.calibration, str):
            return None
        path = self.folder / self.spec.calibration
        found = SimulatorCalibration.load(path)
        if found.command != self.spec.command:
            hint = "calibrate again: `tracebed validate --fit`"
            raise InputError(f"is the calibration of another command: {found.command}", where=str(path), hint=hint)
        return found

    @cached_property
    def parameters(self) -> dict[str, float]:
        """Values of the parameters of the command.

        Raises:
            InputError: a parameter has a range and no value.
        """
        known = {name: each.low for name, each in self.spec.parameters.items() if each.known}
        found = {**(self.calibration.values if self.calibration else {}), **known}
        if missing := [name for name in self.spec.parameters if name not in found]:
            hint = (
                f"fit it: `tracebed validate --fit --only simulator={self.name}`; then name the file as `calibration`"
            )
            raise InputError(f"parameter {missing[0]} of {self.name} has a range, but no value", hint=hint)
        return found

    @property
    def digest(self) -> str:
        """Return the hash of the facts and of the version of tracebed, on which the results of a command depend."""
        return hashlib.sha256(json.dumps([self.facts, version()], sort_keys=True).encode()).hexdigest()

    def missing(self, task: Task, output: Path) -> int:
        """Return the number of predictions that are missing. Raises InputError if a parameter has no value."""
        _ = self.parameters
        return super().missing(task, output)

    def facts_for(self, task: Task) -> list[Any]:
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
            **self.spec.model_dump(include={"importer", "columns", "unit", "time_zone", "match"}),
        }

    def predict(self, task: Task, seed: int, log: Path) -> Run:
        """Run the command with the values of its parameters."""
        run = self.run(task, seed, log, self.parameters)
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

    def run(self, task: Task, seed: int, log: Path, parameters: Mapping[str, float]) -> Run:
        """Run the command in the folder of the experiment file, and read its output.

        Args:
            task: what to predict.
            log: file of the messages of the command.
            parameters: values of all parameters of the command.

        Raises:
            InputError: the command fails or takes too long, or its output cannot be read.
        """
        assert self.spec.command is not None and task.workload is not None
        with tempfile.TemporaryDirectory(prefix="tracebed-") as room:
            file, scratch = task.file or Path(room, f"{task.names['workload']}.csv"), Path(room, "written")
            if task.file is None:
                plan = task.workload.table.drop(columns=["logged_start", "logged_end"], errors="ignore")
                plan.to_csv(file, index=False)  # without provenance, which not all programs skip
            scratch.mkdir()
            output = scratch / "output"
            values = {
                "workload": str(file.absolute()),
                "policy": task.names["policy"],
                "nodes": str(len(task.nodes)),
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
                return read_run(written[0], self.spec, "predicted", **task.reading)
            except InputError as error:
                place = (error.where or written[0].name).replace(f"{scratch}/", "")  # the file is temporary
                raise InputError(f"{place}: {error.what}", where=str(log), hint=error.hint) from error


class RecordedSimulator(SuiteSimulator):
    """A simulator whose predictions are recorded."""

    needs_workload = False

    def missing(self, task: Task, output: Path) -> int:
        """Return 0."""
        return 0

    def predictions(self, task: Task, output: Path) -> tuple[Run, ...]:
        """Return the recorded runs of a task."""
        assert self.spec.runs is not None
        return tuple(
            read_run(path, self.spec, "predicted", **task.reading)
            for path in paths_at(self.spec.runs, task.names, self.folder, of_runs=self.spec.importer is None)
        )


def simulator_of(name: str, spec: SimulatorSpec, folder: Path) -> SuiteSimulator:
    """Return a simulator of an experiment.

    Args:
        spec: its keys.
        folder: folder of the experiment file.

    Raises:
        InputError: a calibration, a run-time model or a driver is invalid.
    """
    kinds: dict[str, type[SuiteSimulator]] = {
        TRACEBED: BuiltInSimulator,
        "with": DrivenSimulator,
        "command": CommandSimulator,
        "runs": RecordedSimulator,
    }
    found = kinds[spec.kind](name, spec, folder)
    if isinstance(found, BuiltInSimulator):
        one_of("runtime_model", spec.runtime_model, RuntimeModel)
        _ = found.parameters  # checks the policy
        if name in SIMULATORS.names() and name != TRACEBED and spec.driver is None:
            raise InputError(f"{name} is an installed simulator", hint=f"add `with: {name}`, or rename the simulator")
    if isinstance(found, CalibratedSimulator):
        _ = found.calibrations  # reads the files
    if isinstance(found, CommandSimulator):
        _ = found.calibration
    if isinstance(found, DrivenSimulator) and simulator(str(spec.driver)).simulate is None:
        hint = "give its output with `runs` and `from`, or run it with `command` and `from`"
        raise InputError(f"tracebed cannot run {spec.driver}, only read its output", hint=hint)
    return found
