"""The jobs of a workload for the scheduler: one list per column, indexed by job number (in submit order from 0)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tracebed.converters.speedup import Speedup, SpeedupFunction, speedup_function
from tracebed.converters.workload import BoolArray, FloatArray, IntArray, Kind, Workload
from tracebed.errors import InputError
from tracebed.orchestrator.scheduling.limits import OverLimit

SHORTEST_S = 1.0
"""Lower bound of time limits in slowdowns and reservations, s."""


class JobArrays(NamedTuple):
    """Columns of `Jobs`, each an array of length `len(jobs)`."""

    submit: FloatArray
    limit: FloatArray
    nodes: IntArray
    cores: IntArray


@dataclass
class Jobs:
    """The columns of a workload, each of length `len(jobs)`. Read-only.

    The columns are lists because the scheduler reads single values, which is several times faster than from arrays.
    """

    ids: list[str]
    submit: list[float]
    run_time: list[float]
    """Static run time on `nodes`, s."""
    limit: list[float]
    """Time limit, s; the run time if the limit is missing. With `OverLimit.EXTEND` at least the run time."""
    nodes: list[int]
    """Requested nodes."""
    low: list[int]
    """Minimum number of nodes. If the job is not malleable, `low`, `high` and `pref` are equal to `nodes`."""
    high: list[int]
    """Maximum number of nodes."""
    pref: list[int]
    """Preferred number of nodes."""
    workload_pref: list[int]
    """Preferred number of nodes in the workload. The view of a policy may change `pref`."""
    cores: list[int]
    """Requested cores per node."""
    kind: list[str]
    malleable: list[bool]
    user: list[str] = field(repr=False)
    speedup: list[SpeedupFunction | None] = field(repr=False)
    """S(n) of a malleable job; None for all others, which run on the requested nodes."""
    parallel: list[float] = field(repr=False)
    """Share of the run time on the requested nodes in which all cores work. In the rest of the time, one core works."""
    deadline: list[float] = field(default_factory=list, repr=False)
    """Deadline, s; NaN: none. Empty if no job has a deadline."""
    application: list[str] = field(default_factory=list, repr=False)
    """Application of each job."""
    parameters: list[str] = field(default_factory=list, repr=False)
    """Parameters of the applications: `name=value`, separated by spaces."""
    memory_mib: list[float] = field(default_factory=list, repr=False)
    """Memory of each job per node, MiB; NaN: unknown. Empty if it is unknown for all jobs."""
    state_mib: list[float] = field(default_factory=list, repr=False)
    """Data of each job that a reconfiguration redistributes, MiB."""
    over_limit: OverLimit = OverLimit.EXTEND
    """Treatment of jobs that exceed their time limit."""
    counts: dict[str, int] = field(default_factory=dict)
    """Assumption or omission -> number of jobs, for the warnings of the run."""

    @cached_property
    def arrays(self) -> JobArrays:
        """Columns as arrays, for policies that read many values at once."""
        return JobArrays(*(np.array(values) for values in (self.submit, self.limit, self.nodes, self.cores)))

    @cached_property
    def work(self) -> list[float]:
        """Static run time at which each job ends or is killed at its limit, s."""
        return [*map(min, self.run_time, self.limit)] if self.over_limit is OverLimit.KILL else self.run_time

    @cached_property
    def adaptable(self) -> bool:
        """Whether some job may start on fewer nodes than it prefers."""
        return self.low != self.pref

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self.ids)

    def rate(self, job: int, nodes: int, share: float = 1.0) -> float:
        """Return the rate of `job` on `nodes` nodes with the given share of the requested cores.

        With all requested cores, the rate is S(nodes) / S(requested nodes). Fewer cores slow down the parallel part
        only: with the share s of the cores, and the share p of the run time on whole nodes in which all cores work, the
        run time is (1 - p) + p / s times as long.
        """
        whole = 1.0 if nodes == self.nodes[job] else self._speedup(job, nodes) / self._speedup(job, self.nodes[job])
        if share == 1.0:
            return whole
        parallel = self.parallel[job] * self.nodes[job] / nodes * whole
        return whole * share / (share + parallel * (1.0 - share))

    def _speedup(self, job: int, nodes: int) -> float:
        speedup = self.speedup[job]
        if speedup is None:
            raise ValueError(f"job {self.ids[job]} is not malleable")
        return speedup(nodes)

    def shortest_limit(self, job: int) -> float:
        """Return the minimum time limit of `job` over all numbers of nodes on which it may start, s."""
        speedup = self.speedup[job]
        if speedup is None:
            return self.limit[job]
        best = max(map(speedup, range(self.low[job], self.pref[job] + 1)))  # a measured curve need not be monotonic
        return self.limit[job] * speedup(self.nodes[job]) / best

    def as_rigid(self) -> Jobs:
        """Return all jobs as rigid jobs with the requested size, for a policy that does not decide sizes."""
        count, nodes = len(self), self.nodes
        return replace(
            self,
            low=nodes,
            high=nodes,
            pref=nodes,
            workload_pref=nodes,
            malleable=[False] * count,
            speedup=[None] * count,
        )

    def with_equal_rates(self) -> Jobs:
        """Return the jobs with the rate 1 on any number of nodes."""
        return replace(self, speedup=[speedup and _equal_rates for speedup in self.speedup])

    @classmethod
    def of(
        cls, workload: Workload, *, cores_per_node: int | None = None, over_limit: OverLimit = OverLimit.EXTEND
    ) -> Jobs:
        """Return the jobs of `workload` with a known run time and size.

        Requests of more cores per node than `cores_per_node` are clipped, and jobs that exceed their limit are treated
        according to `over_limit`. The attribute `counts` has the numbers of these jobs and of those left out.

        Raises:
            InputError: no job has a run time and a size, or a speedup model is unknown.
        """
        runnable, counts = workload.runnable()
        if not len(runnable):
            raise InputError(
                f"none of the {len(workload):,} jobs has a run time and a size",
                hint="`tracebed describe` shows the columns of the workload",
            )
        run_time = runnable.floats("run_time")
        limit = runnable.floats("time_limit")
        no_limit = np.isnan(limit)
        counts["jobs without a time limit: run time used as limit"] = int(no_limit.sum())
        counts[f"jobs exceed their limit: {over_limit.consequence}"] = int((limit < run_time).sum())
        limit = np.where(no_limit, run_time, limit)
        if over_limit is OverLimit.EXTEND:
            limit = np.maximum(limit, run_time)
        kind = [str(value) for value in runnable.column("kind")]
        is_malleable = np.array([value == Kind.MALLEABLE for value in kind], dtype=bool)
        nodes = runnable.ints("nodes")
        bounds = {
            name: np.where(is_malleable, runnable.ints(f"nodes_{name}"), nodes) for name in ("min", "max", "pref")
        }
        cores = runnable.ints("cores_per_node")
        if cores_per_node is not None:
            counts["jobs requesting more cores per node than available: clipped"] = int((cores > cores_per_node).sum())
            cores = np.minimum(cores, cores_per_node)
        speedups, parallel = _speedups(runnable, is_malleable)
        dependent = runnable.column("after") != ""
        counts["jobs that depend on another job: dependency ignored"] = int(dependent.sum())
        return cls(
            ids=[str(value) for value in runnable.column("job_id")],
            submit=runnable.floats("submit_time").tolist(),
            run_time=run_time.tolist(),
            limit=limit.tolist(),
            nodes=nodes.tolist(),
            low=bounds["min"].tolist(),
            high=bounds["max"].tolist(),
            pref=bounds["pref"].tolist(),
            workload_pref=bounds["pref"].tolist(),
            cores=cores.tolist(),
            kind=kind,
            malleable=is_malleable.tolist(),
            user=[str(value) for value in runnable.column("user")],
            speedup=speedups,
            parallel=parallel,
            deadline=_if_known(runnable.floats("deadline")),
            application=[str(value) for value in runnable.column("application")],
            parameters=[str(value) for value in runnable.column("application_parameters")],
            memory_mib=_if_known(runnable.floats("memory_mib")),
            state_mib=runnable.floats("state_mib").tolist(),
            over_limit=over_limit,
            counts={what: count for what, count in counts.items() if count},
        )


def _equal_rates(nodes: int) -> float:
    return 1.0


def _if_known(values: FloatArray) -> list[float]:
    return [] if np.isnan(values).all() else values.tolist()


def _speedups(workload: Workload, malleable: BoolArray) -> tuple[list[SpeedupFunction | None], list[float]]:
    """Return the speedup function of each malleable job, and the share of the run time in which all cores work.

    Jobs with equal models share one function. The second result is for the requested nodes; it is 1 for other jobs.
    """
    names, parameters = workload.column("speedup"), workload.column("speedup_parameters")
    ids, nodes = workload.column("job_id"), workload.ints("nodes")
    functions: dict[tuple[str, str], SpeedupFunction] = {}
    models: dict[tuple[str, str], Speedup] = {}
    result: list[SpeedupFunction | None] = [None] * len(workload)
    parallel = [1.0] * len(workload)
    for job in np.flatnonzero(malleable).tolist():
        key = (str(names[job]), str(parameters[job]))
        if key not in functions:
            functions[key] = speedup_function(*key, where=f"job {ids[job]}")
            models[key] = Speedup.parse(*key)
        result[job] = functions[key]
        if key[0] != "linear":
            parallel[job] = models[key].parallel_share(int(nodes[job]))
    return result, parallel
