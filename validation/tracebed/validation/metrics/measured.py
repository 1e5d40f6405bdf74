"""A measured run: the quantities from which metrics are computed, such as the use of the machine over time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tracebed.converters.workload import BoolArray, FloatArray
from tracebed.ground.errors import InputError
from tracebed.ground.states import ChangeCause, JobState
from tracebed.ground.table import IntArray, Packed, Table
from tracebed.ground.topology import Grid
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.runs.schema import TABLES
from tracebed.orchestrator.runs.steps import Steps, Window, arrivals, full, held_together
from tracebed.orchestrator.scheduling.placement import grid_of
from tracebed.validation.metrics.jobs import TAU, guests_and_mates, measures, origin
from tracebed.validation.metrics.power import HeldNodes, PowerUse, SleepPeriods, has_states, node_powers, power_use
from tracebed.validation.statistics import percentiles, sum_of_products

if TYPE_CHECKING:
    import pandas as pd


STAGES = {
    "decision": ("asked", "decided"),
    "adaptation": ("decided", "applied"),
    "total": ("asked", "applied"),
    "release": ("applied", "ended"),
}
"""Stage of a reconfiguration -> its first and last instant. `total` ends when the new size is effective."""

PARTS = {
    "scheduling": ("decision_s", "grant_s", "merge_s"),
    "grant": ("grant_s",),
    "merge": ("merge_s",),
    "resizing": ("spawn_s", "redistribution_s", "termination_s"),
    "spawn": ("spawn_s",),
    "redistribution": ("redistribution_s",),
    "termination": ("termination_s",),
}
"""Measured stage of a reconfiguration -> the columns of `reconfigurations` (wall s) whose sum is its duration."""

PERCENTILES = (25.0, 50.0, 75.0, 95.0)  # the percentiles of the jobs in tables and metrics
NO_SLEEP = "no node was switched off"
NO_FIGURES = "the machine of the run does not say the power of its nodes"
WindowName = str | tuple[float, float]
T = TypeVar("T")


def total_cores(run: Run) -> int:
    """Return the total number of cores of all nodes."""
    return sum(node.cores for node in run.info.nodes)


def busy_cores(run: Run) -> Steps:
    """Return the number of cores held by jobs, over s after the first submission."""
    return _held(run, run.table("allocations"))


def computing_cores(run: Run) -> Steps:
    """Return the number of cores on which jobs compute, over s after the first submission."""
    # These are the cores held by jobs, more or less by those that an operator gave to a job or took from it: such a job
    # holds the same cores. A change of an operator lasts until the next change of the cores of the job on the node.
    return _held(run, _computing(run))


def _computing(run: Run) -> pd.DataFrame:
    """Return the rows of allocations, and those of the changes of cores by operators."""
    import pandas as pd

    return pd.concat([run.allocations, _operated(run)])


def _held(run: Run, rows: Table | pd.DataFrame) -> Steps:
    """Return the sum of the cores of `rows`, a table with the columns of allocations."""
    zero, parts = origin(run), []
    start = rows.kept("start") if isinstance(rows, Table) else None
    if isinstance(start, Packed) and start.words is not None and isinstance(rows, Table) and zero >= 0:
        assert start.words is rows.kept("end").words  # the instants of a simulation
        return Steps.between(start.words - zero, map(_held_between, rows.blocks()))
    for block in rows.blocks() if isinstance(rows, Table) else [rows]:
        held = _held_nodes(run, block, zero)
        parts.append(held_together(held.start, held.end, (held.cores * held.count).astype(np.float64)))
    return Steps.count(*map(np.concatenate, zip(*parts, strict=True)))


def _held_between(rows: Table) -> tuple[IntArray, IntArray, FloatArray]:
    """Return the rows of the instants since and until which jobs hold cores, and the number of the cores."""
    return held_together(rows.kept("start").numbers, rows.kept("end").numbers, rows["cores"] * rows["count"])


def _held_nodes(run: Run, rows: Table | pd.DataFrame, zero: float) -> HeldNodes:
    """Return what jobs hold by `rows`, a table with the columns of allocations. `zero`: the `origin` of the run, s."""
    node, count, starts, ends, cores = (np.asarray(rows[name]) for name in ("node", "count", "start", "end", "cores"))
    starts, ends = starts - zero, ends - zero
    if not np.isfinite(ends).all():
        ends = np.where(np.isfinite(ends), ends, last_instant(run))  # it lasted until the run was interrupted
    return HeldNodes(node, count, starts, ends, cores.astype(np.int64))


def _operated(run: Run) -> pd.DataFrame:
    """Return the changes of cores by operators as rows of allocations; `cores` is the difference, above or below 0."""
    import pandas as pd

    changes = run.core_changes[(run.core_changes["state"] == "applied").to_numpy()].sort_values("applied")
    rank = ["job_id", "node"]
    operated = changes["cause"] == ChangeCause.OPERATOR
    difference = (changes["cores_to"] - changes["cores_from"]).where(operated, 0)
    decided = (~operated).groupby([changes[name] for name in rank]).cumsum()  # a decision of the policy ends the others
    rows = pd.DataFrame(
        {
            **{name: changes[name] for name in rank},
            "count": 1,
            "start": changes["applied"],
            "end": changes.groupby(rank)["applied"].shift(-1),
            "cores": difference.groupby([*(changes[name] for name in rank), decided]).cumsum(),
        }
    )[operated]
    held = run.allocations[run.allocations["job_id"].isin(rows["job_id"]).to_numpy()]
    for row in rows[rows["end"].isna()].itertuples():
        on = (held["job_id"] == row.job_id) & (held["node"] <= row.node) & (row.node < held["node"] + held["count"])
        rows.loc[row.Index, "end"] = held.loc[on, "end"].max(skipna=False)
    return rows


def waiting(run: Run, *, cores: bool = False) -> Steps:
    """Return the number of waiting jobs, or of the cores that they request, over s after the first submission."""
    jobs, zero = run.table("jobs"), origin(run)
    submit, start, end = (jobs[name] - zero for name in ("submit", "start", "end"))
    # A job that never starts waits until it is canceled or the run ends. A rejected job never waits.
    until = np.where(np.isfinite(start), start, np.where(np.isfinite(end), end, last_instant(run)))
    queued = np.isfinite(submit) & ~jobs.equal("state", JobState.REJECTED)
    nodes = jobs["nodes"].astype(np.float64)
    weights = nodes[queued] * total_cores(run) / max(run.total_nodes, 1) if cores else None
    return Steps.count(submit[queued], until[queued], weights)


def lost_capacity(busy: Steps, demand: Steps, capacity: int, start: float, end: float) -> float:
    """Return the share of the capacity that was idle while waiting jobs requested cores; NaN for an empty window."""
    if not end > start:
        return float("nan")
    inside = np.concatenate((busy.times, demand.times))
    edges = np.unique(np.concatenate(([start], inside[(inside > start) & (inside < end)], [end])))
    idle = np.maximum(capacity - busy.at(edges[:-1]), 0.0)
    return sum_of_products(np.minimum(idle, demand.at(edges[:-1])), np.diff(edges)) / (capacity * (end - start))


def last_instant(run: Run) -> float:
    """Return the last instant recorded in the run, s after the first submission."""
    columns = {"jobs": ("submit", "start", "end"), "allocations": ("start", "end")}
    times = (block[name] for table, names in columns.items() for block in run.table(table).blocks() for name in names)
    last = max((float(np.nanmax(t)) for t in times if not np.isnan(t).all()), default=0.0)
    return last - origin(run)


class Undefined(Exception):
    """A metric is undefined for a run; the message is the reason."""


@dataclass(frozen=True)
class PowerModel:
    """Parameters of the modelled energy, for runs whose power was not recorded."""

    idle_w: float = 100.0
    """Power of a node without jobs, W: about that of a server with two sockets."""
    busy_core_w: float = 5.0
    """Power that a busy core adds, W."""

    def __post_init__(self) -> None:
        if not (0 <= self.idle_w < np.inf and 0 <= self.busy_core_w < np.inf):
            what = f"the powers {self.idle_w:g} W a node and {self.busy_core_w:g} W a core are invalid"
            raise InputError(what, hint="use finite numbers of at least 0")


class MeasuredRun:
    """A run, the measures of its jobs, and its window. Arguments and errors are those of `metrics`.

    Attributes:
        given: the run.
        run: the run with its tables as columns.
        tau: threshold of the bounded slowdown, s.
        power_model: parameters of the modelled energy.
        grid: the grid of the nodes; None if it is unknown.
        rows: rows of the jobs that are not excluded, in the order of the run.
        jobs: the columns of `measures` of these jobs: `jobs["wait"]` is an array.
        finished: the finished jobs of `jobs`; means are over these jobs.
        last_end_s: last end of a finished job, s after the first submission; NaN if no job finished.
        window: time window of utilization, throughput and loss of capacity.
    """

    def __init__(
        self,
        run: Run,
        tau: float = TAU,
        window: WindowName = "arrivals",
        *,
        after: float = 0.0,
        ended: bool = False,
        power: PowerModel | None = None,
        grid: str | None = None,
    ) -> None:
        self.given, self.run = run, as_columns(run)
        self.tau = tau
        self.power_model = power or PowerModel()
        self.grid = Grid.parse(grid, run.total_nodes) if grid else _grid(run)
        self._everything = measures(run, tau)
        self._window = window
        self._durations: dict[tuple[str, str | None], FloatArray] = {}
        self._shared: dict[Hashable, Any] = {}
        self._select(after, ended)

    def _select(self, after: float, ended: bool) -> None:
        """Select the jobs, and set what depends on them."""
        self.rows = _sample(self._everything, after, ended)
        everything = self._everything
        self.jobs = everything if len(self.rows) == len(everything) else everything.take(self.rows)
        self.finished = self.jobs.take(self.jobs["finished"])
        self._percentiles: dict[str, dict[float, float]] = {}
        ends = self.ends_s
        self.last_end_s = float(ends.max()) if len(ends) else float("nan")
        self.window = _window(self._everything, self.last_end_s, self._window, after)

    def of_jobs(self, *, after: float = 0.0, ended: bool = False) -> MeasuredRun:
        """Return the same run with other jobs excluded; arguments and errors as of the class."""
        # Both share what was computed of the whole run, such as the busy cores and the durations of reconfigurations.
        other = copy(self)
        vars(other).pop("malleable", None)
        other._select(after, ended)
        return other

    @property
    def ends_s(self) -> FloatArray:
        """Ends of the finished jobs, s after the first submission."""
        return np.asarray(self.finished["submit"] + self.finished["response"])

    def percentile(self, column: str, percent: float) -> float:
        """Return one of `PERCENTILES` of a column of the finished jobs. They are computed together, from one pass."""
        if column not in self._percentiles:
            values = percentiles(self.finished[column], PERCENTILES)
            self._percentiles[column] = dict(zip(PERCENTILES, values, strict=True))
        return self._percentiles[column][percent]

    @cached_property
    def malleable(self) -> Table:
        """The finished malleable jobs."""
        return self.finished.take(self.finished.equal("kind", "malleable"))

    @cached_property
    def busy(self) -> Steps:
        """Cores held by jobs over s after the first submission. Raises Undefined without nodes or allocations."""
        self.require("nodes")
        self.require("allocations")
        if not self.cores:
            raise Undefined("the nodes of the run are unknown")
        if not len(self.run.table("allocations")) and not np.isnan(self.run.table("jobs")["start"]).all():
            raise Undefined("the run does not record which jobs held which nodes")
        return busy_cores(self.run)

    @cached_property
    def used_share(self) -> Steps:
        """The share of the cores that jobs hold, over s after the first submission. Raises Undefined as `busy`."""
        return Steps(self.busy.times, self.busy.values / self.cores)

    @property
    def loss_of_capacity(self) -> float:
        """Share of the capacity in the window that was idle while waiting jobs requested cores."""
        start, end = self.window.start_s, self.window.end_s
        return self.of_window(
            "loss", self.window, lambda: lost_capacity(self.busy, self.demand, self.cores, start, end)
        )

    def over_time(self, name: str, steps: Steps, shares: Sequence[float]) -> list[float]:
        """Return quantiles, over the time of the window, of `steps`, the function of the metric `name`."""
        start, end = self.window.start_s, self.window.end_s
        return self.of_window(f"quantiles of {name}", self.window, lambda: steps.quantiles(shares, start, end))

    def of_window(self, what: str, window: Window, compute: Callable[[], T]) -> T:
        """Return what depends on a window but not on the choice of jobs. Several choices may have one window."""
        return self.shared((what, window), compute)

    def shared(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return what all choices of jobs of the run share: it is computed once."""
        if key not in self._shared:
            self._shared[key] = compute()
        value: T = self._shared[key]
        return value

    @cached_property
    def computing(self) -> Steps:
        """Cores on which jobs compute over s after the first submission. Raises Undefined as `busy`."""
        held = self.busy
        return computing_cores(self.run) if self._is_operated else held

    @property
    def _is_operated(self) -> bool:
        """Whether an operator gave cores to a job or took some from it."""
        changes = self.run.table("reconfigurations")
        return bool(((changes["node"] != -1) & changes.equal("cause", ChangeCause.OPERATOR)).any())

    @cached_property
    def sleep(self) -> SleepPeriods:
        """The periods in which nodes are not on. Raises Undefined if no node can be switched off."""
        sleeps = self.run.info.machine is not None and self.run.info.machine.sleep is not None
        if not sleeps and not has_states(self.run):
            raise Undefined(NO_SLEEP)
        return self._sleep

    @cached_property
    def _sleep(self) -> SleepPeriods:
        """The periods in which nodes are not on: none if no node can be switched off."""
        return SleepPeriods.of(self.run, origin(self.run))

    @cached_property
    def horizon_s(self) -> float:
        """The last instant of the run or of the window, s after the first submission."""
        return max(last_instant(self.run), self.window.end_s, 0.0)

    @cached_property
    def power(self) -> PowerUse:
        """The power of the machine by state. Raises Undefined as `busy`, and if the power of a node is unknown."""
        powers = node_powers(self.run.info)
        if powers is None:
            raise Undefined(NO_FIGURES)
        _ = self.busy  # raises Undefined
        rows = _computing(self.run) if self._is_operated else self.run.table("allocations")
        held = _held_nodes(self.run, rows, origin(self.run))
        cores = np.array([node.cores for node in self.run.info.nodes], dtype=np.int64)
        return power_use(held, self._sleep, powers, cores, self.horizon_s)

    def require(self, fact: str) -> None:
        """Raise Undefined if the source of the run does not record `fact`, a key of `RunInfo.unknown`."""
        if reason := self.run.info.unknown.get(fact):
            raise Undefined(reason)

    @cached_property
    def demand(self) -> Steps:
        """Cores requested by waiting jobs over s after the first submission."""
        return waiting(self.run, cores=True)

    @cached_property
    def applied(self) -> Table:
        """The applied reconfigurations in nodes; empty if they are not recorded."""
        table = self.run.table("reconfigurations")
        return table.take(self.run.are_resizes & table.equal("state", "applied"))

    @cached_property
    def cores(self) -> int:
        """Total number of cores of all nodes."""
        return total_cores(self.run)

    @cached_property
    def guests_and_mates(self) -> tuple[BoolArray, BoolArray]:
        """Whether each job of the run was a guest, and whether it was a mate. Raises Undefined without allocations."""
        self.require("allocations")
        return guests_and_mates(self.run)

    def reconfiguration_s(self, stage: str = "total", kind: str | None = None) -> FloatArray:
        """Return the durations, s, of a stage (`STAGES`, `PARTS`) of the applied reconfigurations, if recorded."""
        self.require("reconfigurations")
        if (stage, kind) not in self._durations:
            if kind is None:
                times = self._durations_of(stage)
            else:
                times = self._durations_of(stage)[self.applied.equal("kind", kind)]
            self._durations[stage, kind] = times[~np.isnan(times)]
        return self._durations[stage, kind]

    def _durations_of(self, stage: str) -> FloatArray:
        """Return the duration of a stage of each applied reconfiguration, s; NaN: not recorded."""
        names = PARTS.get(stage) or STAGES[stage]
        times = [self.applied[name] for name in names]
        if stage in STAGES:
            lasted: FloatArray = times[1] - times[0]
            return lasted
        known = ~np.isnan(times)
        sums = np.where(known.any(axis=0), np.where(known, times, 0.0).sum(axis=0), np.nan)
        return np.asarray(sums * self.run.info.speed, dtype=np.float64)


def as_columns(run: Run) -> Run:
    """Return the run without its frames: each use of a table with a frame converts it, and metrics use it often."""
    converted = copy(run)
    converted.tables, converted.frames = {name: run.table(name) for name in TABLES}, {}
    return converted


def _grid(run: Run) -> Grid | None:
    """Return the grid of a replay or prediction, or that of the system of a log."""
    if "placement" in run.info.stated["scheduling"]:
        return grid_of(run.info.setup.scheduling.placed, run.total_nodes)
    system = (run.info.workload.get("provenance") or {}).get("system") or {}
    own = run.info.source == "log" and system.get("grid")
    return Grid.parse(own, run.total_nodes) if own else None


def _sample(table: Table, after: float, ended: bool) -> IntArray:
    """Return the rows of the jobs submitted from `after` s on that, if `ended`, ended by the last submission."""
    if not after and not ended:
        return np.arange(len(table))
    kept = table["submit"] >= after
    if not kept.any():
        hint = "use a shorter warm-up or a longer workload"
        raise InputError(f"no job is submitted after a warm-up of {after:g} s", hint=hint)
    if ended:
        kept &= table["submit"] + table["response"] <= np.nanmax(table["submit"])
    return np.flatnonzero(kept)


def _window(table: Table, last_end: float, window: WindowName, after: float) -> Window:
    """Return the window with this name or these bounds."""
    if isinstance(window, tuple):
        start, end = window
        if not 0 <= start < end:
            hint = "use START:END in seconds after the first submission, 0 <= START < END"
            raise InputError(f"the window {start:g}:{end:g} is invalid", hint=hint)
        return Window(f"{start:g}:{end:g}", float(start), float(end))
    if window not in ("arrivals", "full"):
        raise InputError(f"unknown window {window!r}", hint="use arrivals, full or START:END in seconds")
    return full(last_end) if window == "full" else arrivals(table["submit"], last_end, after)
