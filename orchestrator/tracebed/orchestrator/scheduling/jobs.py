"""The jobs of a workload for the scheduler: one list per column, indexed by job number (in submit order from 0)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from tracebed.converters.requests import Request, parse_requests
from tracebed.converters.speedup import Speedup, SpeedupFunction, speedup_function
from tracebed.converters.workload import BoolArray, FloatArray, IntArray, Kind, Workload
from tracebed.ground.errors import InputError
from tracebed.ground.table import Packed, codes_of, distinct, equal, packed, repeated, strings, take
from tracebed.orchestrator.scheduling.dependencies import Waits, waits_of
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.names import DependencyRule

SHORTEST_S = 1.0
"""Lower bound of time limits in slowdowns and reservations, s."""
IGNORED = "jobs that depend on another job: dependency ignored"
"""The warning that counts the jobs whose dependencies and think times are ignored."""


class JobArrays(NamedTuple):
    """Columns of `Jobs`, each an array of length `len(jobs)`."""

    submit: FloatArray
    limit: FloatArray
    nodes: IntArray
    cores: IntArray
    ranks: IntArray


@dataclass
class Jobs:
    """The columns of a workload, each of length `len(jobs)`. Read-only.

    The columns are lists because the scheduler reads single values, which is several times faster than from arrays.
    The list of a column is made when it is first read: the compiled engine and the tables of a run read `column`.
    """

    _columns: ClassVar[Mapping[str, Any]] = {}
    """Columns as arrays, `Texts` or `Packed`, by name. The attribute of an instance replaces this one."""

    ids: list[str]
    submit: list[float]
    """Submit time, s. A policy reads the actual one of a job whose submission follows from the end of another job."""
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
    """Whether the size of the job may change while it runs, also by requests of an evolving job."""
    user: list[str] = field(repr=False)
    speedup: list[SpeedupFunction | None] = field(repr=False)
    """S(n) of a malleable job; None for other jobs: they run on the requested nodes."""
    parallel: list[float] = field(repr=False)
    """Share of the run time on the requested nodes in which all cores work. In the rest of the time, one core works."""
    deadline: list[float] = field(default_factory=list, repr=False)
    """Deadline, s; NaN: none. Empty if no job has a deadline."""
    earliest_start: list[float] = field(default_factory=list, repr=False)
    """Earliest start, s; NaN: the submission. Empty if no job has one."""
    application: list[str] = field(default_factory=list, repr=False)
    """Application of each job."""
    parameters: list[str] = field(default_factory=list, repr=False)
    """Parameters of the applications: `name=value`, separated by spaces."""
    priority: list[float] = field(default_factory=list, repr=False)
    """Priority of each job, above 0. Empty if all jobs have the default, 1, and in journals of earlier versions."""
    requests: list[tuple[Request, ...]] = field(default_factory=list, repr=False)
    """Requests of each job for nodes. Empty if no job has one, or the policy handles no requests."""
    group: list[str] = field(default_factory=list, repr=False)
    """Group or account of each job; empty texts: unknown. Empty in journals of earlier versions."""
    partition: list[str] = field(default_factory=list, repr=False)
    """Partition of each job, or several (cpu,gpu); empty texts: unknown. Empty in journals of earlier versions."""
    behaviour: list[str] = field(default_factory=list, repr=False)
    """Run-time behavior of the processes of each job; empty texts: unknown."""
    memory_mib: list[float] = field(default_factory=list, repr=False)
    """Memory of each job per node, MiB; NaN: unknown. Empty if it is unknown for all jobs."""
    state_mib: list[float] = field(default_factory=list, repr=False)
    """Data of each job that a reconfiguration redistributes, MiB."""
    ranks: list[int] = field(default_factory=list, repr=False)
    """Ranks of each job on each node, at most `cores`: the fewest cores to which a policy may shrink it there."""
    waits: Waits | None = field(default=None, repr=False)
    """What the jobs wait for; None: no job depends on another one, or dependencies are ignored."""
    over_limit: OverLimit = OverLimit.EXTEND
    """Treatment of jobs that exceed their time limit."""
    counts: dict[str, int] = field(default_factory=dict)
    """Assumption or omission -> number of jobs, for the warnings of the run."""

    def column(self, name: str) -> Any:
        """Return a column as an array, or as `Texts`; as a list if these jobs were made of lists."""
        values = self.kept(name)
        return values.values if isinstance(values, Packed) else values

    def kept(self, name: str) -> Any:
        """Return a column as in `column`, or `Packed`."""
        return self._columns[name] if name in self._columns else getattr(self, name)

    def with_columns(self, **columns: Any) -> Jobs:
        """Return the jobs with other columns: lists, or arrays of which lists are made when they are first read."""
        changed = _LazyJobs.__new__(_LazyJobs)
        vars(changed).update(vars(self))
        for name in (*columns, "arrays", "work", "work_s", "adaptable", "speedups"):
            vars(changed).pop(name, None)
        lists = {name: values for name, values in columns.items() if isinstance(values, list)}
        vars(changed).update(lists)
        vars(changed)["_columns"] = {
            **{name: values for name, values in self._columns.items() if name not in columns},
            **{name: values for name, values in columns.items() if name not in lists},
        }
        return changed

    def listed(self) -> Jobs:
        """Return these jobs with all lists made: a class without `__getattr__` has faster attributes."""
        if type(self) is Jobs:
            return self
        jobs = Jobs.__new__(Jobs)
        vars(jobs).update({column.name: getattr(self, column.name) for column in fields(self)} | vars(self))
        return jobs

    def take(self, rows: IntArray) -> Jobs:
        """Return some of the jobs, by their numbers, ascending. None of the jobs waits for another one."""
        part = _LazyJobs.__new__(_LazyJobs)
        columns: dict[str, Any] = {}
        lists: dict[str, Any] = {"over_limit": self.over_limit, "counts": self.counts, "waits": None}
        for name in [column.name for column in fields(self) if column.name not in lists]:
            values = self.kept(name)
            if isinstance(values, np.ndarray | Packed):
                columns[name] = values[rows] if len(values) else values
            elif isinstance(values, list):
                lists[name] = [values[row] for row in rows.tolist()] if values else []
            else:
                columns[name] = take(values, rows)
        functions, number = self.speedups
        used = np.unique(number[rows])
        used = used[used >= 0]
        place = np.full(len(functions) + 1, -1)  # the last one: of jobs without a function, whose number is -1
        place[used] = np.arange(len(used))
        speedups = tuple(functions[own] for own in used.tolist()), place[number[rows]]
        vars(part).update(lists, _columns=columns, speedups=speedups, work_s=self.work_s[rows])
        return part

    @cached_property
    def speedups(self) -> tuple[tuple[SpeedupFunction, ...], IntArray]:
        """The different speedup functions, and the number of the one of each job, shape (jobs,); -1: none."""
        numbers: dict[SpeedupFunction, int] = {}
        number = [-1 if speedup is None else numbers.setdefault(speedup, len(numbers)) for speedup in self.speedup]
        return tuple(numbers), np.array(number, dtype=np.int64)

    @cached_property
    def arrays(self) -> JobArrays:
        """Columns as arrays, for policies that read many values at once."""
        return JobArrays(*(np.asarray(self.column(name)) for name in JobArrays._fields))

    @cached_property
    def work_s(self) -> FloatArray:
        """Static run time at which each job ends or is killed at its limit, s, shape (jobs,)."""
        run_time = np.asarray(self.column("run_time"), dtype=np.float64)
        return np.minimum(run_time, self.column("limit")) if self.over_limit is OverLimit.KILL else run_time

    @cached_property
    def work(self) -> list[float]:
        """The same as `work_s` as a list."""
        return list(self.work_s.tolist())

    @cached_property
    def adaptable(self) -> bool:
        """Whether some job may start on fewer nodes than it prefers."""
        return self.low != self.pref

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self.column("submit"))

    def rate(self, job: int, nodes: int, share: float = 1.0) -> float:
        """Return the rate of `job` on `nodes` nodes with the given share of the requested cores.

        With all requested cores, the rate is S(nodes) / S(requested nodes). Fewer cores slow down the parallel part
        only: with the share s of the cores, and the share p of the run time on whole nodes in which all cores work, the
        run time is (1 - p) + p / s times as long.
        """
        requested, speedup = self.nodes[job], self.speedup[job]
        if nodes == requested:
            if share == 1.0:
                return 1.0
            whole = 1.0
        elif speedup is None:
            raise ValueError(f"job {self.ids[job]} is not malleable")
        else:
            whole = speedup(nodes) / speedup(requested)
        if share == 1.0:
            return whole
        parallel = self.parallel[job] * requested / nodes * whole
        return whole * share / (share + parallel * (1.0 - share))

    def deadline_of(self, job: int) -> float:
        """Return the deadline of `job`, s; infinite: none."""
        deadline = self.deadline[job] if self.deadline else math.inf
        return math.inf if math.isnan(deadline) else deadline

    def priority_of(self, job: int) -> float:
        """Return the priority of `job`, above 0."""
        return self.priority[job] if self.priority else 1.0

    def requests_of(self, job: int) -> tuple[Request, ...]:
        """Return the requests for nodes of `job`; empty if the policy handles no requests."""
        return self.requests[job] if self.requests else ()

    def earliest_of(self, job: int) -> float:
        """Return the earliest start of `job`, s, at least its planned submission."""
        earliest = self.earliest_start[job] if self.earliest_start else math.nan
        return max(self.submit[job], earliest)  # of a missing time, the submission

    def shortest_limit(self, job: int) -> float:
        """Return the minimum time limit of `job` over all its possible start sizes, s."""
        speedup = self.speedup[job]
        if speedup is None:
            return self.limit[job]
        best = max(map(speedup, range(self.low[job], self.pref[job] + 1)))  # a measured curve need not be monotonic
        return self.limit[job] * speedup(self.nodes[job]) / best

    def as_rigid(self) -> Jobs:
        """Return all jobs as rigid jobs with the requested size, for a policy that does not decide sizes."""
        count, nodes = len(self), self.column("nodes")
        rigid = self.with_columns(
            **dict.fromkeys(("low", "high", "pref", "workload_pref"), nodes),
            malleable=repeated(False, count),
            speedup=np.broadcast_to(np.array(None, dtype=object), count),
        )
        rigid.speedups = ((), repeated(-1, count))
        return rigid

    def with_equal_rates(self) -> Jobs:
        """Return the jobs with the rate 1 on any number of nodes."""
        return self.with_columns(speedup=[speedup and _equal_rates for speedup in self.speedup])

    def killed_as_logged(self, killed: BoolArray) -> Jobs:
        """Return the jobs of which those `killed` at their limit, by the log, run as long as there.

        Slurm kills a job some time after its limit. Without this, the time limit is the end of each job under `kill`.
        """
        run_time = np.array(self.column("run_time"), dtype=np.float64)
        late = killed & (run_time > np.asarray(self.column("limit")))
        if not late.any():
            return self
        work_s = np.where(late, run_time, self.work_s)
        run_time[late] = np.nextafter(run_time[late], np.inf)  # longer than its work, or the job would be completed
        jobs = self.with_columns(run_time=run_time)
        vars(jobs)["work_s"] = work_s
        return jobs

    @classmethod
    def of_facts(cls, columns: Mapping[str, Any]) -> Jobs:
        """Return the jobs of a journal, which lack the speedup functions."""
        columns = {**columns, "waits": Waits.of_json(columns.get("waits"))}
        return cls(**columns, speedup=[None] * len(columns["ids"]))

    @classmethod
    def of(
        cls,
        workload: Workload,
        *,
        cores_per_node: int | None = None,
        over_limit: OverLimit = OverLimit.EXTEND,
        evolving: bool = False,
        dependencies: DependencyRule = DependencyRule.HONOR,
    ) -> Jobs:
        """Return the jobs of `workload` with a known run time and size.

        Requests of more cores per node than `cores_per_node` are clipped, and jobs that exceed their limit are treated
        according to `over_limit`. Evolving jobs with requests for nodes are rigid unless `evolving`: whether the policy
        handles the requests. The attribute `counts` has the numbers of these jobs and of the omitted jobs.

        Raises:
            InputError: no job has a run time and a size; a speedup model is unknown; or a dependency is invalid, or
                jobs wait for each other.
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
        kind, requests = runnable.arrow("kind"), runnable.arrow("requests")
        is_malleable = equal(kind, Kind.MALLEABLE.value)
        has_requests = equal(kind, Kind.EVOLVING.value) & ~equal(requests, "")
        if evolving:
            is_malleable = is_malleable | has_requests
        else:
            counts["evolving jobs run as rigid: the policy handles no requests"] = int(has_requests.sum())
        nodes = runnable.ints("nodes")
        bounds = dict.fromkeys(("min", "max", "pref"), nodes)
        if is_malleable.any():
            bounds = {name: np.where(is_malleable, runnable.ints(f"nodes_{name}"), nodes) for name in bounds}
        cores = runnable.ints("cores_per_node")
        if cores_per_node is not None:
            counts["jobs requesting more cores per node than available: clipped"] = int((cores > cores_per_node).sum())
            cores = np.minimum(cores, cores_per_node)
        speedups, parallel = _speedups(runnable, is_malleable)
        waits, counts_of_waits = waits_in(runnable, dependencies)
        counts |= counts_of_waits
        known = {name: runnable.floats(name) for name in ("deadline", "earliest_start", "memory_mib")}
        priority = runnable.floats("priority")
        functions, function = speedups
        jobs = _LazyJobs.__new__(_LazyJobs)
        vars(jobs).update(
            speedups=speedups,
            waits=waits,
            over_limit=over_limit,
            counts={what: count for what, count in counts.items() if count},
            requests=[
                parse_requests(text) if requested else ()
                for text, requested in zip(strings(requests), has_requests.tolist(), strict=True)
            ]
            if evolving and has_requests.any()
            else [],
            _columns={
                "ids": runnable.arrow("job_id"),
                "submit": runnable.kept("submit_time"),
                "run_time": runnable.kept("run_time"),
                "limit": packed(limit),
                "nodes": nodes,
                "low": bounds["min"],
                "high": bounds["max"],
                "pref": bounds["pref"],
                "workload_pref": bounds["pref"],
                "cores": packed(cores),
                "ranks": packed(np.minimum(runnable.ints("ranks_per_node"), cores)),
                "malleable": is_malleable,
                **{name: runnable.kept(name) for name in ("kind", "user", "group", "partition")},
                "speedup": np.array([*functions, None], dtype=object)[function]
                if functions
                else np.broadcast_to(np.array(None, dtype=object), len(nodes)),
                "parallel": parallel,
                "application": runnable.kept("application"),
                "behaviour": runnable.kept("behaviour"),
                "parameters": runnable.kept("application_parameters"),
                "state_mib": runnable.kept("state_mib"),
                "priority": np.empty(0) if (priority == 1.0).all() else priority,
                **{name: np.empty(0) if np.isnan(values).all() else packed(values) for name, values in known.items()},
            },
        )
        return jobs


class _LazyJobs(Jobs):
    """Jobs whose lists are made when they are first read."""

    if not TYPE_CHECKING:  # an attribute that does not exist remains an error for mypy

        def __getattr__(self, name: str) -> Any:
            """Make and keep the list of a column."""
            if name not in vars(self).get("_columns", ()):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            column = self.column(name)
            values = vars(self)[name] = column.tolist() if isinstance(column, np.ndarray) else strings(column)
            return values


def program_of(application: str, parameters: str) -> str:
    """Return the name under which a calibration has the resizes of a job: its application, or that of its command."""
    words = parameters.split() if application == "command" else []
    return next((word.removeprefix("name=") for word in words if word.startswith("name=")), application)


def waits_in(runnable: Workload, rule: DependencyRule) -> tuple[Waits | None, dict[str, int]]:
    """Return what jobs wait for, and the counts of a run about it. InputError as for `waits_of`."""
    if rule is DependencyRule.HONOR:
        waits, unknown = waits_of(runnable)
        return waits, {"jobs whose previous job is not in the workload: submitted at their own time": unknown}
    dependent = ~equal(runnable.arrow("after"), "") | ~equal(runnable.arrow("dependency"), "")
    return None, {IGNORED: int(dependent.sum())}


def _equal_rates(nodes: int) -> float:
    return 1.0


def _speedups(
    workload: Workload, malleable: BoolArray
) -> tuple[tuple[tuple[SpeedupFunction, ...], IntArray], FloatArray]:
    """Return `Jobs.speedups`, and the share of the run time in which all cores work, shape (jobs,).

    Jobs with equal models share one function. The second result is for the requested nodes; it is 1 for other jobs.
    """
    jobs = np.flatnonzero(malleable)
    if not len(jobs):
        return ((), repeated(-1, len(workload))), repeated(1.0, len(workload))
    function, parallel = np.full(len(workload), -1, dtype=np.int64), np.ones(len(workload))
    nodes = workload.ints("nodes")
    name, known_names = codes_of(take(workload.arrow("speedup"), jobs))
    parameter, known_parameters = codes_of(take(workload.arrow("speedup_parameters"), jobs))
    pair, first, function[jobs] = distinct(name * len(known_parameters) + parameter)
    functions, models = [], []
    for number, at in zip(pair.tolist(), first.tolist(), strict=True):
        key = known_names[number // len(known_parameters)], known_parameters[number % len(known_parameters)]
        functions.append(speedup_function(*key, where=f"job {workload.arrow('job_id')[int(jobs[at])]}"))
        models.append(Speedup.parse(*key))
    most = int(nodes[jobs].max()) + 1
    sized, _, size = distinct(function[jobs] * most + nodes[jobs])
    shares = [models[number // most].parallel_share(number % most) for number in sized.tolist()]
    parallel[jobs] = np.array(shares)[size]
    return (tuple(functions), function), parallel
