"""Divergences: the jobs at which a prediction and a real run first differ, and the decisions at which they do.

The decisions of the scheduler of a run come from its tables, so those of a replay, of a log, and of another simulator
suffice. A decision (a start or a resize) is compared with the same decision in the other run. The runs diverge at the
decision if

- the decision is `missing` in the other run,
- its number of `nodes` differs,
- its `time` differs, for a start: the delay after the trigger differs by more than the tolerance. The trigger is the
  latest event before the start: a submission, the end of a job, or the end of a resize. If only the trigger is later,
  the decision is the same. If the runs have different triggers, the later one counts in both runs.
- its `order` differs: it comes before a second decision in one run and after it in the other run, by more than the
  tolerance in both. Decisions that diverge for another reason do not count for the order. If two decisions have
  exchanged their order, only one of them diverges: the one outside a longest sequence that is common to both runs. A
  start whose delay and order both differ counts as `order`.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracebed.converters.workload import BoolArray, FloatArray, IntArray
from tracebed.ground.states import JobState
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import origin

ROUNDING_S = 1e-6  # rounding error of times, s
DECISION_COLUMNS = ["job_id", "number", "time", "kind", "nodes_from", "nodes_to"]

LISTED = 10  # number of jobs in the table
SIDES = ("real", "predicted")
SUFFIXES = ("_real", "_predicted")
COLUMNS = ["job_id", "parting", "time", "first", "real", "predicted", "delay"]


class Decisions:
    """Decisions, events that may trigger them, idle nodes and waiting jobs over time, s after the first submission."""

    def __init__(self, run: Run) -> None:
        """Read the decisions of `run`."""
        self.run = run
        self._zero = origin(run)

    def table(self, *, from_allocations: bool = False) -> pd.DataFrame:
        """Return a row per decision: job_id, number, time, kind (start, expand, shrink), nodes_from, nodes_to.

        Number 0 is the start; k is the k-th resize of the job. `from_allocations`: the resizes are the changes of
        allocations, not the reconfigurations.
        """
        resizes = self.steps[self.steps["number"] > 0] if from_allocations else self._reconfigured()
        return pd.concat([self._starts(resizes), resizes], ignore_index=True)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Changes of the number of nodes of each job, except its end, with the columns of `table`."""
        rows = self.run.table("allocations").without("node", "cores", "cpus").frame()
        ends = rows[rows["end"].notna()]
        changes = pd.DataFrame(
            {
                "job_id": pd.concat([rows["job_id"], ends["job_id"]], ignore_index=True),
                "time": np.concatenate((rows["start"], ends["end"])) - self._zero,
                "change": np.concatenate((rows["count"], -ends["count"])),
            }
        )
        changes = changes.groupby(["job_id", "time"], sort=True)["change"].sum().reset_index()
        changes = changes[changes["change"] != 0]
        held = changes.groupby("job_id", sort=False)["change"].cumsum()
        changes = changes.assign(nodes_to=held, nodes_from=held - changes["change"])[held > 0]
        changes["number"] = changes.groupby("job_id", sort=False).cumcount()
        changes["kind"] = np.where(changes["change"] > 0, "expand", "shrink")
        return changes[DECISION_COLUMNS]

    def _starts(self, resizes: pd.DataFrame) -> pd.DataFrame:
        """Return the starts. A job may be resized in the instant of its start, so its first resize names the nodes."""
        jobs = self.run.jobs[self.run.jobs["start"].notna()]
        before = resizes[resizes["number"] == 1].set_index("job_id")["nodes_from"]
        first = self.steps[self.steps["number"] == 0].set_index("job_id")["nodes_to"]
        known = jobs["job_id"].map(before).fillna(jobs["job_id"].map(first))
        nodes = known.fillna(jobs["nodes"]).astype("int64")
        facts = {"job_id": jobs["job_id"], "number": 0, "time": jobs["start"] - self._zero, "kind": "start"}
        return pd.DataFrame(facts | {"nodes_from": 0, "nodes_to": nodes})

    def _reconfigured(self) -> pd.DataFrame:
        rows = self.run.resizes.sort_values("asked", kind="stable")
        number = rows.groupby("job_id", sort=False).cumcount() + 1
        return rows.assign(number=number, time=rows["asked"] - self._zero)[DECISION_COLUMNS]

    @cached_property
    def events(self) -> pd.DataFrame:
        """Events that may trigger a decision: job_id, what (`submit`, `end`, or the k-th resize that ended), time."""
        jobs, resized = self.run.jobs, self._reconfigured()
        tables = [jobs[["job_id"]].assign(what=what, time=jobs[what] - self._zero) for what in ("submit", "end")]
        ended = self.run.reconfigurations["ended"].reindex(resized.index) - self._zero
        tables.append(resized[["job_id"]].assign(what="resize " + resized["number"].astype(str), time=ended))
        return pd.concat(tables, ignore_index=True).dropna(subset="time")

    def idle_nodes(self, instant: float) -> float:
        """Return the idle nodes before the decisions at an instant; a node with busy cores counts as a fraction."""
        rows = self.run.table("allocations")
        start, end = (rows[name] - self._zero for name in ("start", "end"))
        held = rows.take((start < instant - ROUNDING_S) & ~(end <= instant + ROUNDING_S))
        busy = (held["cores"] * held["count"]).astype(np.float64) / self._cores_of_nodes[held["node"]]
        return float(len(self.run.info.nodes) - busy.sum())

    def waiting_jobs(self, instant: float) -> int:
        """Return the number of waiting jobs at an instant, before the decisions of that instant."""
        jobs = self.run.jobs[self.run.jobs["state"] != JobState.REJECTED]
        submit, start, end = (jobs[name].to_numpy(dtype=np.float64) - self._zero for name in ("submit", "start", "end"))
        gone = (start < instant - ROUNDING_S) | (np.isnan(start) & (end <= instant + ROUNDING_S))
        return int(((submit <= instant + ROUNDING_S) & ~gone).sum())

    def status(self, job_id: str, instant: float) -> str:
        """Return what a job did at an instant, before the decisions of that instant: `still waiting`, `on 4 nodes`."""
        jobs = self.run.jobs[self.run.jobs["job_id"] == job_id]
        if not len(jobs):
            return "not submitted"
        job = jobs.iloc[0]
        if not job["submit"] - self._zero <= instant + ROUNDING_S:
            return "not submitted yet"
        if job["end"] - self._zero <= instant + ROUNDING_S:
            return "ended"
        if not job["start"] - self._zero < instant - ROUNDING_S:
            return "still waiting"
        steps = self.steps[(self.steps["job_id"] == job_id) & (self.steps["time"] <= instant + ROUNDING_S)]
        nodes = int(steps["nodes_to"].iloc[-1]) if len(steps) else int(job["nodes"])
        return f"still on {nodes} node{'' if nodes == 1 else 's'}"

    @cached_property
    def _cores_of_nodes(self) -> FloatArray:
        return np.array([node.cores for node in self.run.info.nodes], dtype=np.float64)


COLUMNS += [f"{what}{side}" for what in ("idle", "waiting") for side in SUFFIXES]


@dataclass(frozen=True)
class Divergences:
    """The comparison of the decisions of two runs."""

    table: pd.DataFrame
    """The jobs at which the runs first diverge, by time:

    - `job_id`; `parting`: missing, nodes, order or time (see the module); `first`: which run decided first, real or
      predicted; `time`: of its decision, s after the first submission
    - `real`, `predicted`: what each run decided at that instant
    - `delay`: time of the decision in the prediction - time in the real run, s; NaN if missing
    - `idle_real`, `idle_predicted`, `waiting_real`, `waiting_predicted`: idle nodes and waiting jobs of each run just
      before the decision
    """
    decisions: int
    """Number of decisions that either run made."""
    jobs: int
    """Number of jobs with a divergent decision."""
    tolerance_s: float
    """Largest difference of times that counts as explained, s."""
    unapplied: tuple[int, int]
    """Resizes that were decided and not applied, since the job ended first: in the real run, in the prediction."""


def default_tolerance(real: Run, predicted: Run) -> float:
    """Return the difference of times that needs no further explanation, s."""
    # The sum of the resolutions of both runs, the largest lateness of a submission in the real run, and the larger
    # scheduling interval.
    late = real.info.lateness_ms.get("max", 0.0) * real.info.speed / 1000
    intervals = [run.info.setup.scheduling.interval_s for run in (real, predicted)]
    interval = max(each for each in [0.0, *intervals] if isinstance(each, (int, float)))
    return max(real.info.resolution_s + predicted.info.resolution_s + late + interval, ROUNDING_S)


def divergences(real: Run, predicted: Run, *, tolerance_s: float | None = None, count: int = LISTED) -> Divergences:
    """Compare the decisions of two runs of one workload. Differences of up to `tolerance_s` count as explained."""
    tolerance = default_tolerance(real, predicted) if tolerance_s is None else max(tolerance_s, ROUNDING_S)
    both = _PairedDecisions(Decisions(real), Decisions(predicted), tolerance)
    parted = both.decisions.assign(parting=both.partings())
    parted = parted[parted["parting"] != ""].sort_values(["number", "earlier"], kind="stable")
    parted = parted.drop_duplicates("job_id").sort_values("earlier", kind="stable")
    rows = [both.describe(row) for row in parted.head(count).to_dict("records")]
    ours, theirs = (int((run.resizes["state"] != "applied").sum()) for run in (real, predicted))
    table = pd.DataFrame(rows, columns=COLUMNS)
    return Divergences(table, len(both.decisions), len(parted), tolerance, (ours, theirs))


@dataclass(frozen=True)
class _PairedDecisions:
    """The decisions and events of both runs, side by side."""

    real: Decisions
    predicted: Decisions
    tolerance: float

    @cached_property
    def decisions(self) -> pd.DataFrame:
        """A row per decision of either run, with the columns of `Decisions.table` of each and the `earlier` time."""
        # The resizes are changes of allocations if one of the runs has such changes, and no reconfigurations.
        unrecorded = any(
            not len(side.run.resizes) and bool(side.steps["number"].gt(0).any()) for side in (self.real, self.predicted)
        )
        tables = [side.table(from_allocations=unrecorded) for side in (self.real, self.predicted)]
        pairs = tables[0].merge(tables[1], on=["job_id", "number"], how="outer", suffixes=SUFFIXES)
        return pairs.assign(earlier=pairs[["time_real", "time_predicted"]].min(axis=1))

    @cached_property
    def triggers(self) -> Triggers:
        """The events that occur in both runs."""
        events = self.real.events.merge(self.predicted.events, on=["job_id", "what"], suffixes=SUFFIXES)
        return Triggers(*(events[f"time{side}"].to_numpy(dtype=np.float64) for side in SUFFIXES))

    def partings(self) -> npt.NDArray[np.str_]:
        """Return how the runs diverge at each decision; an empty text if they do not."""
        pairs = self.decisions
        real, predicted = (pairs[f"time{side}"].to_numpy(dtype=np.float64) for side in SUFFIXES)
        both = np.isfinite(real) & np.isfinite(predicted)
        nodes = np.zeros(len(pairs), dtype=bool)
        for what in ("kind", "nodes_from", "nodes_to"):
            nodes |= both & (pairs[f"{what}_real"] != pairs[f"{what}_predicted"]).to_numpy()
        late = both & (pairs["number"] == 0).to_numpy()
        late[late] = self.triggers.unexplained(real[late], predicted[late]) > self.tolerance
        same, order = both & ~nodes & ~late, np.zeros(len(pairs), dtype=bool)
        order[same] = _displaced(real[same], predicted[same], self.tolerance)
        order[both] |= late[both] & _inverted(real[both], predicted[both], self.tolerance)
        return np.select([~both, nodes, order, late], ["missing", "nodes", "order", "time"], "")

    def describe(self, row: dict[Any, Any]) -> dict[str, Any]:
        """Return the row of `Divergences.table` for a divergent decision, a row of `decisions`."""
        first = self._first(row)
        (other,) = {*SIDES} - {first}
        instants = {first: row[f"time_{first}"], other: self.triggers.translated(row[f"time_{first}"], first)}
        description = {"job_id": row["job_id"], "parting": row["parting"], "time": instants[first], "first": first}
        description |= {first: _text(row, first), other: self._instead(row, other, instants[other])}
        description["delay"] = row["time_predicted"] - row["time_real"]
        for side in SIDES:
            description[f"idle_{side}"] = self._of(side).idle_nodes(instants[side])
            description[f"waiting_{side}"] = self._of(side).waiting_jobs(instants[side])
        return description

    def _of(self, side: str) -> Decisions:
        return self.real if side == "real" else self.predicted

    def _first(self, row: dict[Any, Any]) -> str:
        """Return which run decided first."""
        if row["parting"] == "order":
            return "real" if self._overtaking(row, "predicted") else "predicted"
        real, predicted = row["time_real"], row["time_predicted"]
        if real != real or predicted != predicted:
            return "real" if real == real else "predicted"
        return "real" if self.triggers.later(real, predicted) >= 0 else "predicted"

    def _overtaking(self, row: dict[Any, Any], side: str) -> str:
        """Return the earliest decision of `side` that precedes that of `row` there only; empty without one."""
        (other,) = {*SIDES} - {side}
        pairs = self.decisions
        earlier = pairs[
            (pairs[f"time_{side}"] < row[f"time_{side}"] - self.tolerance)
            & (pairs[f"time_{other}"] > row[f"time_{other}"] + self.tolerance)
        ]
        if not len(earlier):
            return ""
        taken = earlier.loc[earlier[f"time_{side}"].idxmin()].to_dict()
        return f"{_text(taken, side)} of job {taken['job_id']}"

    def _instead(self, row: dict[Any, Any], side: str, instant: float) -> str:
        """Return what the run `side` decided at an instant at which the other run made the decision in `row`."""
        if row["parting"] == "nodes":
            return _text(row, side)
        text = f"nothing: {self._of(side).status(row['job_id'], instant)}"
        if row["parting"] == "missing":
            return text
        after = self._overtaking(row, side)
        return f"{text}; {_text(row, side)} later{', after ' if after else ''}{after}"


class Triggers:
    """The events of two runs that may trigger decisions: time in the real run and in the prediction."""

    def __init__(self, real: FloatArray, predicted: FloatArray) -> None:
        """Take the times of the events, s, each of shape (events,). The first submission, at 0, is added."""
        self._times = {"real": np.append(0.0, real), "predicted": np.append(0.0, predicted)}
        self._orders = {side: np.argsort(times, kind="stable") for side, times in self._times.items()}

    def _latest(self, times: FloatArray, side: str) -> IntArray:
        """Return the latest event at or before each of `times` in the run `side`, as index."""
        order = self._orders[side]
        place = np.searchsorted(self._times[side][order], times + ROUNDING_S, side="right") - 1
        return np.asarray(order[np.maximum(place, 0)])

    def _after_both(self, real: FloatArray, predicted: FloatArray) -> FloatArray:
        """Return the difference between the delays of decisions after the later of the triggers of both runs, s."""
        both = self._latest(real, "real"), self._latest(predicted, "predicted")
        least = [np.maximum(times[both[0]], times[both[1]]) for times in self._times.values()]
        return np.asarray((predicted - least[1]) - (real - least[0]))

    def later(self, real: float, predicted: float) -> float:
        """Return how much later the prediction decides than the real run, measured from its triggers, s."""
        return float(self._after_both(np.array([real]), np.array([predicted]))[0])

    def unexplained(self, real: FloatArray, predicted: FloatArray) -> FloatArray:
        """Return the difference between the delays of decisions after their triggers, s."""
        # The smallest difference counts: without a trigger, after the trigger in either run (simultaneous events of one
        # run may come one after another in the other run), and after the later of both.
        difference = predicted - real
        least = np.minimum(np.abs(difference), np.abs(self._after_both(real, predicted)))
        for times, side in ((real, "real"), (predicted, "predicted")):
            trigger = self._latest(times, side)
            drift = self._times["predicted"][trigger] - self._times["real"][trigger]
            least = np.minimum(least, np.abs(difference - drift))
        return least

    def translated(self, time: float, side: str) -> float:
        """Return the instant in the other run with the same delay after the same event."""
        trigger = self._latest(np.array([time]), side)[0]
        drift = float(self._times["predicted"][trigger] - self._times["real"][trigger])
        return time + (drift if side == "real" else -drift)


def _text(row: dict[Any, Any], side: str) -> str:
    """Return the decision of one run as text: `start on 4 nodes`, `expand from 2 to 4 nodes`."""
    kind, before, after = (row[f"{what}_{side}"] for what in ("kind", "nodes_from", "nodes_to"))
    source = "on" if kind == "start" else f"from {before:.0f} to"
    return f"{kind} {source} {after:.0f} node{'' if after == 1 else 's'}"


def _displaced(real: FloatArray, predicted: FloatArray, tolerance: float) -> BoolArray:
    """Return which decisions, with these times in both runs, have another place in the order of the other run."""
    place = np.floor(predicted / tolerance)
    order = np.lexsort((predicted, np.floor(real / tolerance)))
    common = np.zeros(len(real), dtype=bool)
    common[order[_longest_ascent(place[order])]] = True
    return ~common & _inverted(real, predicted, tolerance)


def _longest_ascent(values: FloatArray) -> list[int]:
    """Return the indices of a longest non-descending subsequence (Fredman 1975), in descending order."""
    ends: list[float] = []
    at: list[int] = []
    before = [-1] * len(values)
    for index, value in enumerate(values.tolist()):
        length = bisect_right(ends, value)
        before[index] = at[length - 1] if length else -1
        ends[length : length + 1], at[length : length + 1] = [value], [index]
    ascent = []
    index = at[-1] if at else -1
    while index >= 0:
        ascent.append(index)
        index = before[index]
    return ascent


def _inverted(real: FloatArray, predicted: FloatArray, tolerance: float) -> BoolArray:
    """Return which decisions have exchanged their order with some other decision."""
    return _overtaken(real, predicted, tolerance) | _overtaken(-real, -predicted, tolerance)


def _overtaken(real: FloatArray, predicted: FloatArray, tolerance: float) -> BoolArray:
    """Return which decisions precede, in the prediction, a decision that precedes them in the real run."""
    order = np.argsort(real, kind="stable")
    latest = np.concatenate(([-np.inf], np.maximum.accumulate(predicted[order])))
    earlier = np.searchsorted(real[order], real - tolerance, side="left")
    return latest[earlier] > predicted + tolerance
