"""Calibration of a simulator of an experiment: its parameters, fitted to the real runs of the cases.

    OUTPUT/calibrated/SIMULATOR.yaml               the calibration, which `tracebed validate` uses
    OUTPUT/calibrated/SIMULATOR.evaluations.jsonl  a line per simulation: its parameters and its figures, or its failure
    OUTPUT/calibrated/SIMULATOR.logs/              the messages of the simulations that failed

Simulations that are done are not repeated; failed ones are, since their cause may be gone.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.ground.errors import InputError, TracebedError
from tracebed.ground.registry import one_of
from tracebed.ground.version import version
from tracebed.orchestrator.run import Run
from tracebed.validation.experiments.cell import RealCell
from tracebed.validation.experiments.file import ExperimentFile
from tracebed.validation.experiments.pools import Pool
from tracebed.validation.experiments.simulators import (
    CalibrationCase,
    CalibrationFold,
    CommandSimulator,
    Failures,
    ParameterEstimate,
    SimulatorCalibration,
    TiedParameters,
)
from tracebed.validation.experiments.suite import Suite, replayed
from tracebed.validation.fitting import Fit, FitCase, LossName
from tracebed.validation.fitting.cases import check_usable
from tracebed.validation.fitting.evaluation import Evaluator, Key, Parameter, Parameters, Space
from tracebed.validation.fitting.fit import fit_parameters, folds_of, random_sets
from tracebed.validation.fitting.loss import Target
from tracebed.validation.metrics import MeasuredRun

CALIBRATED = "calibrated"


def to_fit(file: ExperimentFile, names: Sequence[str] = ()) -> tuple[ExperimentFile, str]:
    """Return an experiment without the calibration of the simulator to fit (the named or only one), and its name."""
    specs = file.experiment.simulators
    for name in names:
        one_of("simulator of the experiment", name, specs)
    searched = [name for name in names or specs if any(not each.known for each in specs[name].parameters.values())]
    hint = "write a `command` with a placeholder {NAME}, and `parameters: {NAME: [LOW, HIGH]}`"
    if not searched:
        place = ("simulators", names[0]) if names else ()
        raise file.source.error("no simulator has a parameter with a range", *place, hint=hint)
    if len(searched) > 1:
        hint = f"choose one: --only simulator={searched[0]}"
        raise InputError(f"several simulators have parameters: {', '.join(searched)}", where=file.name, hint=hint)
    spec = specs[searched[0]].model_copy(update={"calibration": None})
    simulators = {**specs, searched[0]: spec}
    return replace(file, experiment=file.experiment.model_copy(update={"simulators": simulators})), searched[0]


def fit_suite(
    suite: Suite,
    name: str,
    folder: Path,
    pool: Pool,
    *,
    loss: LossName,
    budget: int,
    seed: int,
    workers: int,
    on_progress: Callable[[float], None] | None = None,
) -> SimulatorCalibration:
    """Fit the parameters of a simulator to real runs, and write its calibration.

    The cases are those of the workloads that are marked as calibration workloads, or else all cases. The output folder
    is locked by the caller. The result does not depend on the number of workers. `on_progress` is called with the share
    of the simulations that is done.
    """
    simulator = suite.simulators[name]
    assert isinstance(simulator, CommandSimulator)
    chosen = [case for case in suite.cases.values() if case.calibration] or list(suite.cases.values())
    cases = [_fit_case(case, suite, folder) for case in chosen]
    place = folder / CALIBRATED
    place.mkdir(exist_ok=True)
    targets = [Target.of(case, loss) for case in cases]
    space = _space(simulator)
    jobs = [
        _Job(replace(case, recorded={}, replay=None), target, _ended(fit_case.runs), place / f"{name}.logs")
        for case, fit_case, target in zip(chosen, cases, targets, strict=True)
    ]
    with _Evaluations(place / f"{name}.evaluations.jsonl", simulator, space, jobs, pool) as kept:
        in_folds = sum(len(cases) - len(out) for out in folds_of(cases).values())
        most = budget * (2 * len(cases) + in_folds)
        evaluator = Evaluator(targets, kept.compute, on_progress and (lambda done: on_progress(done / most)))
        beside = random_sets(space, budget, seed)
        fitted = fit_parameters(
            cases, evaluator, space, beside, loss=loss, budget=budget, seed=seed, tolerance=None, workers=workers
        )
    made = _calibration(simulator, space, fitted, chosen)
    made.save(place / f"{name}.yaml", replace=True)
    return made


def _fit_case(case: RealCell, suite: Suite, folder: Path) -> FitCase:
    """Return the case of a fit with the real runs of a case. Raises InputError if they cannot be used."""
    runs = case.recorded or replayed(suite, case.name, folder)
    if not runs:
        hint = "`tracebed experiment FILE -o FOLDER` replays it; give the same folder"
        raise InputError(f"case {case.name} has no real run", where=str(folder), hint=hint)
    for name, run in runs.items():
        if not run.info.is_real:
            raise InputError(f"the run is {run.info.kind}", where=name, hint="parameters are fitted to real runs")
        check_usable(f"{case.name}: {name}", run)
    assert case.workload is not None
    return FitCase(case.label, case.workload, runs)


def _ended(runs: Mapping[str, Run]) -> frozenset[str]:
    """Return the ids of the jobs that ended in all runs."""
    return frozenset.intersection(*(frozenset(MeasuredRun(run).finished["job_id"]) for run in runs.values()))


def _space(simulator: CommandSimulator) -> Space:
    """Return the space of the parameters of a simulator."""
    return Space(
        tuple(
            Parameter(name, each.low, each.high, log=each.scale == "log", integer=each.integer)
            for name, each in simulator.spec.parameters.items()
        )
    )


# -- simulations


@dataclass(frozen=True)
class _Job:
    """Simulations of a case."""

    cell: RealCell
    target: Target
    # Ids of the jobs that ended in all real runs. A prediction in which one does not end is a failure: the figures of
    # the other jobs would be those of another workload.
    ended: frozenset[str]
    logs: Path

    def log(self, digest: str) -> Path:
        """Return the file of the messages of a simulation."""
        return self.logs / f"{self.cell.name}-{digest[:12]}.log"


@dataclass(frozen=True)
class _Item:
    """A simulation to make."""

    key: Key
    job: _Job
    values: Mapping[str, float]
    digest: str


def _simulated(simulator: CommandSimulator, item: _Item) -> FloatArray:
    """Return the quantities of a case, means over the seeds. Missing jobs are an InputError."""
    job, log = item.job, item.job.log(item.digest)
    quantities = []
    for seed in range(simulator.spec.seeds):
        run = MeasuredRun(simulator.run(job.cell, seed, log, item.values))
        if missing := job.ended - frozenset(run.finished["job_id"]):
            what = f"{len(missing):,} of {len(job.ended):,} jobs do not end, such as {min(missing)}"
            raise InputError(what, where=str(log), hint="the output must have all jobs")
        quantities.append(job.target.measure(run))
    log.unlink(missing_ok=True)
    return np.asarray(np.mean(quantities, axis=0))


class _Evaluations:
    """The file of the simulations, as a context manager: makes those that it does not have."""

    def __init__(self, path: Path, simulator: CommandSimulator, space: Space, jobs: Sequence[_Job], pool: Pool) -> None:
        self.simulator, self.space, self.jobs, self.pool = simulator, space, jobs, pool
        inputs = [
            [simulator.digest, job.cell.facts, job.target.kind, job.target.names, job.target.jobs] for job in jobs
        ]
        self.digests = [hashlib.sha256(json.dumps(each, sort_keys=True).encode()).hexdigest() for each in inputs]
        self.known = dict(_read(path))
        self.path, self.lock = path, threading.Lock()

    def __enter__(self) -> _Evaluations:
        self.file = self.path.open("a+", encoding="utf-8")
        self.file.seek(0, 2)
        if self.file.tell():
            self.file.write("\n")  # the last line may be torn; empty lines are skipped
        for job in self.jobs:
            job.logs.mkdir(exist_ok=True)
        return self

    def __exit__(self, *exception: object) -> None:
        self.file.close()

    def compute(self, keys: Sequence[Key]) -> Iterator[tuple[Key, FloatArray | TracebedError]]:
        """Yield each key with its quantities or failure: those of the file, then others in the order of completion."""
        items = []
        for key in keys:
            number, values = key
            named = dict(zip(self.space.names, values, strict=True))
            digest = _digest(self.digests[number], values)
            if digest in self.known:
                yield key, self.known[digest]
            else:
                items.append(_Item(key, self.jobs[number], named, digest))
        for item, found in self.pool.map(partial(_simulated, self.simulator), items) if items else ():
            self._add(item, found)
            yield item.key, found

    def _add(self, item: _Item, found: FloatArray | TracebedError) -> None:
        """Append a line."""
        line: dict[str, Any] = {"id": item.digest, "case": item.job.cell.name, "parameters": dict(item.values)}
        if isinstance(found, TracebedError):
            line |= {"quantities": None, "failure": str(found)}
        else:
            line |= {"quantities": [None if math.isnan(value) else value for value in found.tolist()]}
        with self.lock:
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()


def _digest(inputs: str, values: Parameters) -> str:
    """Return the identity of a simulation: all inputs, and the parameters."""
    return hashlib.sha256(json.dumps([inputs, values]).encode()).hexdigest()


def _read(path: Path) -> Iterator[tuple[str, FloatArray]]:
    """Yield identity and quantities of each successful simulation in a file, which may be missing, or end in a line."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            found = json.loads(line)
            if found["quantities"] is not None:
                yield found["id"], np.array(found["quantities"], dtype=np.float64)  # None becomes NaN
        except (ValueError, TypeError, KeyError):
            continue  # the line at which an earlier process was killed


# -- the file


def _calibration(
    simulator: CommandSimulator, space: Space, found: Fit, chosen: Sequence[RealCell]
) -> SimulatorCalibration:
    """Return the calibration of a fit."""
    best, failures = found.best.values, found.failures
    by_name = {each.name: each for each in space.parameters}
    return SimulatorCalibration(
        name=simulator.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tracebed=version(),
        command=str(simulator.spec.command),
        fitted=simulator.filled(best),
        version=simulator.spec.version,
        parameters={
            name: ParameterEstimate(
                value=best[name],
                median=each.median,
                low=each.low,
                high=each.high,
                range=[by_name[name].low, by_name[name].high],
                scale="log" if by_name[name].log else "linear",
                integer=by_name[name].integer,
                identified=each.identified,
                at_end=each.at_end,
            )
            for name, each in found.ranges.items()
        },
        known=dict(found.known),
        without_effect={name: best[name] for name in found.without_effect},
        tied=[TiedParameters(parameters=[one, other], correlation=value) for one, other, value in found.tied],
        loss=found.loss_name,
        value=found.best.loss,
        search_value=found.searched,
        random_value=_finite(found.beside.loss),
        tolerance=found.tolerance,
        budget=found.budget,
        seed=found.seed,
        sets=found.sets,
        simulations=found.simulations,
        failures=Failures(simulations=len(failures), first=failures[min(failures)] if failures else ""),
        workloads=sorted({case.workload.sha256 for case in found.cases}),
        cases=[
            CalibrationCase(
                case=case.name,
                workload=fitted.name,
                sha256=fitted.workload.sha256,
                policy=case.names["policy"],
                runs=list(fitted.runs),
            )
            for case, fitted in zip(chosen, found.cases, strict=True)
        ],
        cross_validation=[
            CalibrationFold(
                workload=fold.workload,
                parameters=dict(fold.values),
                loss_in=fold.loss_in,
                loss_in_random=_finite(fold.loss_in_beside),
                loss_out=_finite(fold.loss_out),
                loss_out_random=_finite(fold.loss_out_beside),
            )
            for fold in found.folds
        ],
        cloud_sets=found.cloud_sets,
        cloud=[dict(member.values) for member in found.cloud],
    )


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None
