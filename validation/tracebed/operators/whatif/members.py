"""Members of an ensemble: predictions of a log under one slurm.conf, each with draws and a perturbed input of its own.

Member k draws from the seed k what a slurm.conf leaves open. But for member 0, its input is perturbed with the seed k.
Members k of two clusters are a pair: they share draws and input.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracebed.converters.perturbation import Perturbation, perturbed
from tracebed.converters.workload import BoolArray, FloatArray, IntArray, Workload
from tracebed.ground.errors import TracebedError
from tracebed.ground.states import JobState
from tracebed.ground.table import rows_of, strings, take
from tracebed.machine.calendar import Calendar
from tracebed.operators.whatif.malleable import Malleability
from tracebed.operators.whatif.refused import Remedy, adapted
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.steps import full
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.slurm.machine import SlurmMachine
from tracebed.validation.experiments.pools import LocalPool
from tracebed.validation.metrics import busy_cores, origin, waiting
from tracebed.validation.metrics.classes import names_of
from tracebed.validation.metrics.measured import MeasuredRun, Undefined
from tracebed.validation.metrics.power import KWH_J, PARTS
from tracebed.validation.metrics.power_states import energy_by_state

ALONE = 20_000
"""Jobs to simulate, in all members, up to which other processes may take longer to start than to compute."""

BOUNDED = " malleable jobs not "
"""Part of the warnings of a run about jobs that the layer does not resize, or not expand."""


@dataclass(frozen=True)
class Side:
    """A machine, further parameters of the policy, the remedy for jobs beyond the longest limits, and the outages.

    `longest`: the longest time limit with which each job may start on it, s, shape (jobs,); infinity: any.
    `malleable`: the jobs that are malleable, and the layer that resizes them. `costs`: what a resize costs.
    """

    machine: SlurmMachine
    parameters: Mapping[str, Any]
    longest: FloatArray
    remedy: Remedy = Remedy.LEAVE_OUT
    outages: Calendar | None = None
    malleable: Malleability | None = None
    costs: Overheads = field(default_factory=Overheads)

    def of(self, rows: BoolArray) -> Side:
        """Return the same for some of the jobs."""
        return replace(self, longest=self.longest[rows])


@dataclass(frozen=True)
class Member:
    """The input of a member: workload, cluster, seed, and edges of bins of time, s."""

    workload: Workload
    side: Side
    seed: int
    perturbation: Perturbation
    edges: FloatArray

    def setup(self) -> Setup:
        """Return the setup: Slurm on the cluster, which kills jobs at their limits."""
        layer = {} if self.side.malleable is None else self.side.malleable.parameters
        parameters = {**self.side.parameters, **layer, "seed": self.seed}
        return Setup.of("slurm", over_limit=OverLimit.KILL, policy_parameters=parameters, overheads=self.side.costs)


class Held(NamedTuple):
    """What jobs held: a row for each range of nodes of a job and each time, shape (rows,)."""

    job: IntArray
    """Row of the job in the workload."""
    start: FloatArray
    """Time of the log, s."""
    end: FloatArray
    nodes: IntArray
    cores: IntArray
    """Cores on all these nodes."""


@dataclass(frozen=True)
class Predicted:
    """What a member predicts.

    Attributes:
        wait: wait of each job of the workload, s, shape (jobs,); NaN: it does not start. Of a job in pieces, the sum.
        run_time: run time of each job, s, shape (jobs,); of a job in pieces, the sum.
        waiting: mean number of waiting jobs in each bin, shape (bins,).
        busy: mean number of busy cores in each bin, shape (bins,).
        rejected: (partition, reason) of rejected jobs -> their number.
        reasons: row of a job that does not start -> the reason.
        node_class: the class of nodes of each job (`metrics.classes`), shape (jobs,); empty: it does not start.
        hit: number of jobs that lost a node at least once; 0 without outages.
        killed: whether each job reached its time limit, shape (jobs,).
        held: what the jobs held.
        resizes: numbers of expansions and of shrinks that took effect.
        energy_kwh: modelled energy of the nodes from the first submission to the last end; NaN: no file has the watts.
        bounded: how many malleable jobs the layer does not resize, or not expand, and why.
    """

    wait: FloatArray
    run_time: FloatArray
    cores: FloatArray
    waiting: FloatArray
    busy: FloatArray
    rejected: Counter[tuple[str, str]]
    reasons: Mapping[int, str]
    node_class: npt.NDArray[np.object_]
    killed: BoolArray
    held: Held
    hit: int = 0
    resizes: tuple[int, int] = (0, 0)
    energy_kwh: float = math.nan
    bounded: tuple[str, ...] = ()


def ensemble(
    workload: Workload,
    side: Side,
    seeds: range,
    perturbation: Perturbation,
    edges: FloatArray,
    *,
    workers: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> list[Predicted]:
    """Predict a workload on a cluster; return the members by seed. `edges` of bins of time are in s."""
    todo = [(side, seed) for seed in seeds]
    return predictions(workload, todo, perturbation, edges, workers=workers, on_progress=on_progress)


def predictions(
    workload: Workload,
    todo: Sequence[tuple[Side, int]],
    perturbation: Perturbation,
    edges: FloatArray,
    *,
    workers: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> list[Predicted]:
    """Predict a workload on each of the clusters with its seed; return the members in this order."""
    workload = Workload(workload.columns, workload.provenance)  # without a frame, which each member would convert
    members = [Member(workload, side, seed, perturbation, edges) for side, seed in todo]
    few = len(members) == 1 or len(workload) * len(members) <= ALONE
    done: dict[int, Predicted] = {}
    with LocalPool(1 if few else workers) as pool:
        for at, result in pool.map(partial(_predicted, members), range(len(members))):
            if isinstance(result, TracebedError):
                raise result
            done[at] = result
            if on_progress:
                on_progress(len(done))
    return [done[at] for at in range(len(members))]


def _predicted(members: Sequence[Member], at: int) -> Predicted:
    return predicted(members[at])


def predicted(member: Member) -> Predicted:
    """Simulate a member."""
    workload, side = member.workload, member.side
    if side.malleable is not None:
        workload = side.malleable.applied(workload)
    given, rows = _perturbed(workload, member)
    given, own = adapted(given, side.longest[rows], side.remedy)
    own = rows[own]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = predict(given, member.side.machine, member.setup(), outages=side.outages)
    edges = member.edges - origin(run)
    jobs, held = run.table("jobs"), run.table("allocations")
    ids = given.arrow("job_id")
    places = rows_of(ids, jobs.raw("job_id"))
    submit, start, end = (jobs[name][places] for name in ("submit", "start", "end"))
    ready = np.where(np.append(False, own[1:] == own[:-1]), np.roll(end, 1), submit)  # a piece follows the previous
    wait, run_time = (np.zeros(len(workload)) for _ in range(2))
    for sums, times in ((wait, start - ready), (run_time, end - start)):
        np.add.at(sums, own, times)
    row, begun = rows_of(held.raw("job_id"), ids), np.full(len(given), -np.inf)
    np.maximum.at(begun, row, held["start"])
    last = held["start"] == begun[row]  # of several runs of a job
    cores = np.bincount(row[last], (held["cores"] * held["count"])[last], len(given))
    at = rows_of(workload.arrow("job_id"), ids)
    failed = jobs.equal("state", JobState.FAILED)  # only those that lost a node
    killed = np.zeros(len(workload), dtype=bool)
    killed[own[jobs.equal("state", JobState.KILLED)[places]]] = True
    codes, names = names_of(run, "class")
    node_class = np.array([*names, ""], dtype=object)[np.append(codes, len(names))]
    reasons, refused = jobs.raw("reason"), jobs.equal("state", JobState.REJECTED)[places]
    partitions = strings(take(workload.arrow("partition"), own[refused]))
    never = np.flatnonzero(np.isnan(start))[::-1]
    return Predicted(
        wait=wait,
        run_time=run_time,
        cores=np.append(cores, 0.0)[at],
        waiting=waiting(run).means(edges),
        busy=busy_cores(run).means(edges),
        rejected=Counter(
            (names.partition(",")[0], reason)
            for names, reason in zip(partitions, strings(take(reasons, places[refused])), strict=True)
        ),
        reasons=dict(zip(own[never].tolist(), strings(take(reasons, places[never])), strict=True)),
        node_class=node_class[np.append(places, -1)[at]],
        killed=killed,
        held=Held(own[row], held["start"], held["end"], held["count"], held["cores"] * held["count"]),
        hit=int(((jobs["restarts"] > 0) | failed).sum()) if run.info.outages else 0,
        resizes=_resizes(run),
        energy_kwh=_energy_kwh(run),
        bounded=tuple(text for text in run.info.warnings if BOUNDED in text),
    )


def _resizes(run: Run) -> tuple[int, int]:
    """Return the numbers of expansions and of shrinks that took effect."""
    rows = run.table("reconfigurations")
    if not len(rows):
        return 0, 0
    applied = np.isfinite(rows["applied"])
    more = rows["nodes_to"] > rows["nodes_from"]
    return int((applied & more).sum()), int((applied & ~more).sum())


def _energy_kwh(run: Run) -> float:
    measured = MeasuredRun(run)
    try:
        return energy_by_state(measured, *PARTS, window=full(measured.last_end_s)) / KWH_J
    except Undefined:  # the power of a node is unknown
        return math.nan


def _perturbed(workload: Workload, member: Member) -> tuple[Workload, IntArray]:
    """Return the perturbed workload, and the row of each of its jobs in the workload, shape (jobs,).

    A time limit that is rounded up stays within the longest one of the cluster.
    """
    if not member.seed:
        return workload, np.arange(len(workload))
    given = perturbed(workload, member.seed, member.perturbation)
    rows = rows_of(given.arrow("job_id"), workload.arrow("job_id"))
    limit, longest = workload.floats("time_limit")[rows], member.side.longest[rows]
    rounded = given.floats("time_limit")
    within = np.where(limit <= longest, np.minimum(rounded, longest), rounded)
    if np.array_equal(within, rounded, equal_nan=True):
        return given, rows
    return Workload(given.columns.assign(time_limit=within), given.provenance), rows


def mean_of(members: Iterable[FloatArray]) -> FloatArray:
    """Return the mean over members, element by element; NaN where an element is NaN in one of them."""
    return np.asarray(np.mean([*members], axis=0))
