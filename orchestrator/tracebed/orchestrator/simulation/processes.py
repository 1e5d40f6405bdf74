"""Runs whose jobs are simulated as processes and messages, on the allocation of an earlier simulation.

The simulation of jobs (`prediction`) takes run times from the workload. Here, the same jobs start at the same instants
on the same nodes, but each job is a program: its run time follows from its processes and messages. Under the policy
`leak`, cores are searched process by process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.ground.parameters import with_parameters
from tracebed.ground.states import JobState
from tracebed.ground.table import expanded
from tracebed.ground.topology import Grid
from tracebed.orchestrator.evolving.behaviours import BehaviourParameters
from tracebed.orchestrator.evolving.machine import AllocationPlan, LeakVariant, Machine, ProgramOutcome
from tracebed.orchestrator.evolving.programs import Communication, FloatArray, Programs
from tracebed.orchestrator.evolving.simulation import leaking, programs_of, reserved, simulate
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.jobs import SHORTEST_S
from tracebed.orchestrator.scheduling.placement import grid_of

LEAK = "leak"
"""Policy under which cores are searched process by process."""
DEADLINE = "deadline"
"""Policy under which nodes are reserved."""
ROUNDING = 1e-6
"""Part of its run time by which a job may be late for the next reservation: times of processes are rounded."""


@dataclass(frozen=True)
class Processes(BehaviourParameters):
    """Options of the simulation of jobs as processes: communication, and what the deadline study leaves open."""

    communication: Communication = "asynchronous"
    """Whether sends wait for their receivers."""
    waits: bool = False
    """`leak`: whether a job without an idle core at its earliest start waits for one until its deadline; else it is
    rejected."""
    release: Literal["end", "join"] = "end"
    """`leak`: whether a forked process releases its core when it ends, or when its parent joins it."""
    search: Literal["cores", "nodes"] = "cores"
    """`leak`: whether a process searches an idle core, or a node without processes, where its threads run, too."""
    cancel: Literal["taken", "reserved"] = "taken"
    """`deadline`: a job that lasts longer than reserved is cancelled when another job starts on one of its nodes, or
    at the end of its reservation."""

    @classmethod
    def of(cls, communication: Communication | None, options: Mapping[str, Any] | None = None) -> Processes:
        """Return the choices with this communication and `options`: name -> value, which may be a string.

        Raises:
            InputError: the communication is missing, or an option is unknown or invalid.
        """
        made: Processes = with_parameters(
            "option", "processes", cls, {**(options or {}), "communication": communication}
        )
        return made

    @property
    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults, without the communication."""
        usual = asdict(Processes(communication=self.communication))
        return {name: value for name, value in asdict(self).items() if value != usual[name]}


def machine_of(run: Run) -> Machine:
    """Return the machine of a run: its nodes are a line if the placement of the run has no grid.

    Raises:
        InputError: the nodes differ.
    """
    total = run.total_nodes
    known = grid_of(run.info.setup.scheduling.placed, total)
    cores = {node.cores for node in run.info.nodes}
    if len(cores) != 1:
        raise InputError("processes are simulated on nodes that are alike only", hint="give --nodes in place of them")
    return Machine(known or Grid.parse(str(total), total), cores.pop())


def as_processes(run: Run, workload: Workload, processes: Processes | None = None, *, seed: int = 0) -> Run:
    """Return the run in which the jobs of `run` are programs of their behavior, drawn by `seed`.

    Args:
        run: a simulation of the workload.
        workload: the workload, with the column `behaviour`.
        processes: the choices; None: the defaults.

    Raises:
        InputError: as `machine_of`, `programs_of` and `carried_out`.
    """
    machine, chosen = machine_of(run), processes or Processes()
    programs = programs_of(workload, machine, communication=chosen.communication, seed=seed, parameters=chosen)
    return carried_out(run, workload, programs, machine, chosen, seed=seed)


def carried_out(
    run: Run, workload: Workload, programs: Programs, machine: Machine, processes: Processes, *, seed: int = 0
) -> Run:
    """Return the run in which the jobs of `run` are programs on its nodes.

    A job starts at the start and on the nodes of `run`. It ends when its processes have ended, or is cancelled at its
    deadline. Under the policy `deadline`, a job that lasts longer than planned is cancelled as soon as another job
    starts on one of its nodes, or at the end of its reservation (`processes.cancel`); under others, both then share the
    cores. Under the policy `leak`, only the earliest starts count, or with `reserve` the starts of the accepted jobs.
    The cores that a job holds are not recorded.

    Args:
        run: a simulation of the workload.
        programs: a program for each job of the workload.
        processes: the choices, which the run records, with which `programs` were drawn.
        seed: seed of the programs, which the run records.

    Raises:
        InputError: the run lacks jobs of the workload, or resizes jobs.
    """
    if run.jobs["job_id"].tolist() != workload.column("job_id").tolist():
        raise InputError(
            "jobs without a size or a run time cannot be simulated as processes", hint="clean the workload"
        )
    if len(run.reconfigurations):
        hint = "use a policy that does not resize jobs"
        raise InputError(
            f"policy {run.info.policy} resizes jobs, whose programs have a fixed number of nodes", hint=hint
        )
    if run.info.policy == LEAK:
        contiguous = run.info.policy_parameters["contiguous"]
        plan = leaking(
            workload,
            LeakVariant.CONTIGUOUS if contiguous else LeakVariant.NONCONTIGUOUS,
            waits=processes.waits,
            joins_release=processes.release == "join",
            by_nodes=processes.search == "nodes",
        )
        if run.info.policy_parameters.get("reserve"):
            plan = replace(plan, start=run.jobs["start"].to_numpy(dtype=np.float64))
    else:
        starts = run.jobs["start"].to_numpy(dtype=np.float64)
        until = workload.floats("deadline")
        if run.info.policy == DEADLINE:
            ends = _taken(run) if processes.cancel == "taken" else _reserved(run, workload)
            until = np.fmin(until, ends + ROUNDING * workload.floats("run_time"))
        plan = reserved(programs, starts, _nodes(run), until)
    made = _run_of(run, plan, simulate(programs, machine, plan))
    made.info.parameters |= {"processes": programs.communication, "processes_seed": seed}
    if processes.options:
        made.info.parameters["processes_options"] = processes.options
    return made


def _nodes(run: Run) -> list[list[int]]:
    """Return the nodes of each job, empty for jobs that did not start."""
    held = run.allocations
    number = {job: place for place, job in enumerate(run.jobs["job_id"].tolist())}
    nodes: list[list[int]] = [[] for _ in number]
    columns = (held[name].tolist() for name in ("job_id", "node", "count"))
    for job, first, count in zip(*columns, strict=True):
        nodes[number[job]] += range(first, first + count)
    return nodes


def _reserved(run: Run, workload: Workload) -> FloatArray:
    """Return the end of the reservation of each job, s, shape (jobs,); NaN: rejected."""
    run_time, margin_s = workload.floats("run_time"), float(run.info.policy_parameters["margin_s"])
    length = np.fmax(run_time, workload.floats("time_limit")) + margin_s
    ends: FloatArray = run.jobs["start"].to_numpy(dtype=np.float64) + np.maximum(length, SHORTEST_S)
    return ends


def _taken(run: Run) -> FloatArray:
    """Return the time at which another job first starts on a node of each job, s, shape (jobs,); infinity: never."""
    held = run.allocations
    row, node = expanded(held["node"].to_numpy(), held["count"].to_numpy())
    start = held["start"].to_numpy(dtype=np.float64)[row]
    order = np.lexsort((start, node))
    follows = node[order][1:] == node[order][:-1]
    until = np.full(len(row), np.inf)
    until[order[:-1][follows]] = start[order[1:][follows]]
    first = pd.Series(until).groupby(held["job_id"].to_numpy()[row]).min()
    return first.reindex(run.jobs["job_id"]).fillna(np.inf).to_numpy(dtype=np.float64)


def _run_of(run: Run, plan: AllocationPlan, outcome: ProgramOutcome) -> Run:
    """Return the run with the times and states of an outcome."""
    states = run.jobs["state"].astype(object).to_numpy(copy=True)
    reasons = run.jobs["reason"].astype(object).to_numpy(copy=True)
    ran = ~np.isnan(outcome.start)
    cancelled, deadline = ran & ~outcome.completed, run.jobs["deadline"].to_numpy(dtype=np.float64)
    not_begun = ~ran & ~np.isnan(plan.start)
    no_core = f"no core is idle {'until its deadline' if plan.waits else 'at its start'}"
    full = (JobState.CANCELLED, "deadline") if plan.leak is None else (JobState.REJECTED, no_core)
    for chosen, state, reason in (
        (outcome.completed, JobState.COMPLETED, ""),
        (cancelled & (outcome.end >= deadline), JobState.CANCELLED, "deadline"),
        (cancelled & ~(outcome.end >= deadline), JobState.CANCELLED, "its reservation ended"),
        (not_begun, *full),
    ):
        states[chosen], reasons[chosen] = str(state), reason
    times = {"start": outcome.start, "launched": outcome.start, "end": np.where(ran, outcome.end, np.nan)}
    jobs = run.jobs.assign(**times, state=states, reason=reasons)
    info = replace(
        run.info,
        parameters=dict(run.info.parameters),
        counts={"jobs": len(jobs), **Counter(states.tolist())},
        unknown={"allocations": "the cores of processes are not recorded"},
        warnings=[text for text in run.info.warnings if "rejected" not in text],
    )
    return Run(info, jobs)
