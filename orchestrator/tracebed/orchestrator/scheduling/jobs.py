"""The workload as the scheduler reads it: a list per column, indexed by job number (0 is submitted first)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tracebed.converters.speedup import SpeedupFunction, speedup_function
from tracebed.converters.workload import BoolArray, FloatArray, IntArray, Kind, Workload
from tracebed.errors import InputError
from tracebed.orchestrator.scheduling.limits import OverLimit

SHORTEST_S = 1.0
"""A shorter time limit counts as this long in slowdowns and in plans."""


class JobArrays(NamedTuple):
    """Columns of `Jobs`, each an array of length `len(jobs)`."""

    submit: FloatArray
    limit: FloatArray
    nodes: IntArray
    cores: IntArray


@dataclass
class Jobs:
    """The columns of a workload, each of length `len(jobs)`. Read-only.

    The columns are lists, not arrays: the scheduler reads single values, several times faster from a list.
    """

    ids: list[str]
    submit: list[float]
    run_time: list[float]
    """Static run time on `nodes`, s."""
    limit: list[float]
    """Time limit, s; of a job without one its run time. With `OverLimit.EXTEND` at least the run time."""
    nodes: list[int]
    low: list[int]
    """The fewest nodes; for any but a malleable job `nodes`, like `high` and `pref`."""
    high: list[int]
    pref: list[int]
    workload_pref: list[int]
    """The preferred nodes by the workload; a policy's view may change `pref`."""
    cores: list[int]
    """Requested cores on each node."""
    kind: list[str]
    malleable: list[bool]
    user: list[str] = field(repr=False)
    speedup: list[SpeedupFunction | None] = field(repr=False)
    """S(n) of a malleable job; None for all others, which run on the requested nodes."""
    over_limit: OverLimit = OverLimit.EXTEND
    """What happens to jobs that outlive their limit."""
    counts: dict[str, int] = field(default_factory=dict)
    """What was assumed or left out, and how often, for the warnings of the run."""

    @cached_property
    def arrays(self) -> JobArrays:
        """The columns of which policies read many values at once, as arrays."""
        return JobArrays(*(np.array(values) for values in (self.submit, self.limit, self.nodes, self.cores)))

    @cached_property
    def work(self) -> list[float]:
        """Seconds of static run time after which each job ends by itself or is killed at its limit."""
        return [*map(min, self.run_time, self.limit)] if self.over_limit is OverLimit.KILL else self.run_time

    @cached_property
    def adaptable(self) -> bool:
        """Whether some job may start on fewer nodes than it prefers."""
        return self.low != self.pref

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self.ids)

    def rate(self, job: int, nodes: int) -> float:
        """Return r = S(nodes) / S(requested nodes), the speed of `job` on whole nodes of the requested kind."""
        if nodes == self.nodes[job]:
            return 1.0
        speedup = self.speedup[job]
        if speedup is None:
            raise ValueError(f"job {self.ids[job]} is not malleable")
        return speedup(nodes) / speedup(self.nodes[job])

    def shortest_limit(self, job: int) -> float:
        """Return the shortest limit of `job` on any number of nodes on which it may start, s."""
        speedup = self.speedup[job]
        if speedup is None:
            return self.limit[job]
        best = max(map(speedup, range(self.low[job], self.pref[job] + 1)))  # a measured curve may fall again
        return self.limit[job] * speedup(self.nodes[job]) / best

    def as_rigid(self) -> Jobs:
        """Return the jobs with every size as requested: the view of a policy that does not decide sizes."""
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

    @classmethod
    def of(
        cls, workload: Workload, *, cores_per_node: int | None = None, over_limit: OverLimit = OverLimit.EXTEND
    ) -> Jobs:
        """Read `workload`.

        Jobs without a run time or a size are left out, more cores a node than `cores_per_node` are clipped, and jobs
        that outlive their limit are treated as `over_limit` says; `counts` says how many.

        Raises:
            InputError: no job can be run, or a speedup model is not known.
        """
        runnable, counts = workload.runnable()
        if not len(runnable):
            raise InputError(
                f"none of the {len(workload):,} jobs has a run time and a size",
                hint="`tracebed describe` shows what it has",
            )
        run_time = runnable.floats("run_time")
        limit = runnable.floats("time_limit")
        no_limit = np.isnan(limit)
        counts["jobs without a time limit: their run time taken"] = int(no_limit.sum())
        counts[f"jobs outlive their limit: {over_limit.consequence}"] = int((limit < run_time).sum())
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
            counts["jobs requesting more cores per node than there are: clipped"] = int((cores > cores_per_node).sum())
            cores = np.minimum(cores, cores_per_node)
        counts["jobs that depend on another: submitted at their own time"] = int((runnable.column("after") != "").sum())
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
            speedup=_speedups(runnable, is_malleable),
            over_limit=over_limit,
            counts={what: count for what, count in counts.items() if count},
        )


def _speedups(workload: Workload, malleable: BoolArray) -> list[SpeedupFunction | None]:
    """Return the speedup function of each malleable job; equal models share one function and its memory."""
    names, parameters = workload.column("speedup"), workload.column("speedup_parameters")
    ids = workload.column("job_id")
    functions: dict[tuple[str, str], SpeedupFunction] = {}
    result: list[SpeedupFunction | None] = [None] * len(workload)
    for job in np.flatnonzero(malleable).tolist():
        key = (str(names[job]), str(parameters[job]))
        if key not in functions:
            functions[key] = speedup_function(*key, where=f"job {ids[job]}")
        result[job] = functions[key]
    return result
