"""The check of executors."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import numpy as np

from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.machine.machine import Machine
from tracebed.orchestrator.executors import EXECUTORS, Executor, Options
from tracebed.orchestrator.run import PARTS, Run
from tracebed.orchestrator.setup import Setup

WRONG = "no-such-name"
"""Name that no policy, no placement and no parameter has."""


def check_executor(
    executor: str | Executor, workload: Workload, machine: Machine, setup: Setup, options: Options | None = None
) -> None:
    """Check the invariants of an executor on a workload.

    The invariants are:

    * The executor accepts the machine with the setup, and returns a run.
    * The jobs of the run are those of the workload that have a run time and a size, with their submit times. The run
      names the workload, the nodes of the machine, and the policy.
    * The run can be saved and read again: its times, nodes and cores agree.
    * The same input gives the same bytes a second time, if the executor predicts.
    * An unknown policy, parameter or placement is an InputError: `setup.resolved` raises it.

    Args:
        executor: name of an installed executor, or an executor.
        workload: the submission list, of a few jobs: it is executed up to five times.
        machine: a machine that the executor accepts.
        setup: the setup, `Setup.of(POLICY)`.
        options: an instance of the `options` of the executor; None: the defaults.

    Raises:
        AssertionError: an invariant is violated; the message has the invariant.
        InputError: `executor` is not an executor, or the workload cannot be executed.

    Example:
        >>> from tracebed.machine.machine import Machine, NodeClass
        >>> from tracebed.orchestrator.setup import Setup
        >>> from tracebed.testing import check_executor, workloads
        >>> machine = Machine(classes=(NodeClass(count=16, cores=4),))
        >>> check_executor("simulator", workloads.draw(1), machine, Setup.of("easy"))
    """
    name = executor if isinstance(executor, str) else type(executor).__name__
    chosen = EXECUTORS.load(executor) if isinstance(executor, str) else executor
    if isinstance(chosen, type) or not isinstance(chosen, Executor):
        hint = "an executor is an instance with options, predicts, accepts and execute"
        raise InputError(f"{name} is not an executor", hint=hint)
    case = _Case(name, chosen, workload, machine, options or chosen.options(name="checked"))
    with tempfile.TemporaryDirectory(prefix="tracebed-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case.require(chosen.accepts(machine, setup), "does not accept the machine with the setup")
        run = case.execute(setup)
        case.check_jobs(run)
        case.check_facts(run, setup)
        files = case.saved(run, Path(folder, "one"))
        if chosen.predicts:
            again = case.saved(case.execute(setup), Path(folder, "two"))
            differing = ", ".join(part for part in files if again.get(part) != files[part])
            case.require(not differing, f"the same input gives another {differing} a second time")
        for what, wrong in wrong_setups(setup):
            case.check_refused(what, wrong)


@dataclass(frozen=True)
class _Case:
    name: str
    executor: Executor
    workload: Workload
    machine: Machine
    options: Options

    def fail(self, text: str) -> NoReturn:
        raise AssertionError(f"executor {self.name}: {text}")

    def require(self, holds: object, text: str) -> None:
        if not holds:
            self.fail(text)

    def execute(self, setup: Setup) -> Run:
        run = self.executor.execute(self.workload, self.machine, setup, self.options)
        self.require(isinstance(run, Run), f"`execute` returns {type(run).__name__}, not a Run")
        return run

    def check_jobs(self, run: Run) -> None:
        """Check that the jobs of the run are those of the workload."""
        submit = dict(zip(self.workload.column("job_id"), self.workload.floats("submit_time"), strict=True))
        ran = dict(zip(run.jobs["job_id"], run.jobs["submit_planned"], strict=True))
        for job in ran:
            self.require(job in submit, f"job {job} is not a job of the workload")
            self.require(np.isclose(ran[job], submit[job]), f"job {job} has the submit time of another job")
        for job in self.workload.runnable()[0].column("job_id"):
            self.require(job in ran, f"job {job} is missing in the run")

    def check_facts(self, run: Run, setup: Setup) -> None:
        """Check that the run names its workload, its machine and its policy."""
        told, own = run.info.workload, {"sha256": self.workload.sha256, "jobs": len(self.workload)}
        right = all(told.get(key) == value for key, value in ({"name": self.options.name} | own).items())
        self.require(right, "`RunInfo.workload` is not `workload_facts(workload, options.name)`")
        self.require(run.info.nodes == list(self.machine.nodes), "`RunInfo.nodes` are not the nodes of the machine")
        policy = setup.scheduling.policy
        self.require(run.info.policy == policy, f"the policy of the run is {run.info.policy}, not {policy}")
        self.require(run.info.counts.get("jobs") == len(run.jobs), "`RunInfo.counts` lacks the number of `jobs`")

    def saved(self, run: Run, folder: Path) -> dict[str, bytes]:
        """Save the run, and check that it can be read. Return the content of its files by name."""
        try:
            Run.load(run.save(folder))
        except (InputError, TypeError, ValueError) as error:  # json cannot write each type of value
            self.fail(f"the run cannot be saved and read again: {error}")
        return {part: (folder / part).read_bytes() for part in ("run.json", *PARTS) if (folder / part).is_file()}

    def check_refused(self, what: str, wrong: Setup) -> None:
        """Check that a setup with a wrong setting is refused."""
        try:
            if not self.executor.accepts(self.machine, wrong):
                return
            self.executor.execute(self.workload, self.machine, wrong, self.options)
        except InputError:
            return
        except Exception as error:
            raise AssertionError(
                f"executor {self.name}: {what} raises {type(error).__name__}, not InputError: {error}"
            ) from error
        self.fail(f"{what} is not refused: call `setup.resolved(len(machine.nodes))`")


def wrong_setups(setup: Setup) -> Iterator[tuple[str, Setup]]:
    """Yield setups with a wrong setting each, and what is wrong."""
    scheduling = setup.scheduling
    yield "an unknown policy", Setup(replace(scheduling, policy=WRONG, instance=None), setup.timing)
    yield "an unknown placement", Setup(replace(scheduling, placement=WRONG), setup.timing)
    if scheduling.instance is None:
        parameters = {**scheduling.policy_parameters, WRONG: 1}
        yield "an unknown parameter", Setup(replace(scheduling, policy_parameters=parameters), setup.timing)
