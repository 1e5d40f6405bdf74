"""The jobs at which a prediction and a real run first part, and the decisions at which they do.

A decision (a start, or a resize) is compared with the same decision in the other run. The runs part at the decision if

- it is `missing` in the other run,
- its number of `nodes` differs,
- its `time` differs, for a start: the delay after its trigger differs by more than the tolerance. The trigger is the
  latest event before the start: a submission, the end of a job, or the end of a resize. If only the trigger comes
  later, the decision is the same.
- its `order` differs: it comes before a decision in one run and after it in the other run, by more than the tolerance
  in both. Decisions that part for another reason have no part in the order. Of two decisions in the other order, only
  one is to blame: the order is that of a longest sequence of decisions that is common to both runs.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracebed.converters.workload import BoolArray, FloatArray
from tracebed.orchestrator.run import Run
from tracebed.validation.verdict.decisions import ROUNDING_S, Decisions

LISTED = 10
"""Number of jobs in the table."""
SIDES = ("real", "predicted")
SUFFIXES = ("_real", "_predicted")
COLUMNS = ["job_id", "parting", "time", "first", "real", "predicted", "delay"]
COLUMNS += [f"{what}{side}" for what in ("idle", "waiting") for side in SUFFIXES]


@dataclass(frozen=True)
class Divergences:
    """The comparison of the decisions of two runs."""

    table: pd.DataFrame
    """The jobs at which the runs first part, by time:

    - `job_id`; `parting`: missing, nodes, order or time (see the module); `time`: of the earlier of both decisions, s
      after the first submission of its run; `first`: which run decided first, real or predicted
    - `real`, `predicted`: what each run decided at that instant
    - `delay`: time of the decision in the prediction - time in the real run, s; NaN if missing
    - `idle_real`, `idle_predicted`, `waiting_real`, `waiting_predicted`: idle nodes and waiting jobs of each run just
      before the decision
    """
    decisions: int
    """Number of decisions of either run."""
    jobs: int
    """Number of jobs with a decision that parts the runs."""
    tolerance_s: float
    """Differences of times up to this one are explained, s."""


def default_tolerance(real: Run, predicted: Run) -> float:
    """Return the difference of times that needs no further explanation, s.

    The tolerance is the sum of the resolutions of both runs, the largest lateness of a submission in the real run, and
    the larger scheduling interval.
    """
    late = real.info.lateness_ms.get("max", 0.0) * real.info.speed / 1000
    intervals = [run.info.parameters.get("interval", 0.0) for run in (real, predicted)]
    interval = max(each for each in [0.0, *intervals] if isinstance(each, (int, float)))
    return max(real.info.resolution_s + predicted.info.resolution_s + late + interval, ROUNDING_S)


def divergences(real: Run, predicted: Run, *, tolerance_s: float | None = None, count: int = LISTED) -> Divergences:
    """Compare the decisions of two runs of one workload.

    Args:
        real, predicted: the runs.
        tolerance_s: differences of times up to this one are explained, s; by default `default_tolerance`.
        count: number of jobs to list.
    """
    tolerance = default_tolerance(real, predicted) if tolerance_s is None else max(tolerance_s, ROUNDING_S)
    both = _Both(Decisions(real), Decisions(predicted), tolerance)
    parted = both.decisions.assign(parting=both.partings())
    parted = parted[parted["parting"] != ""].sort_values(["number", "earlier"], kind="stable")
    parted = parted.drop_duplicates("job_id").sort_values("earlier", kind="stable")
    rows = [both.describe(row) for row in parted.head(count).to_dict("records")]
    return Divergences(pd.DataFrame(rows, columns=COLUMNS), len(both.decisions), len(parted), tolerance)


@dataclass(frozen=True)
class _Both:
    """The decisions and events of both runs, side by side."""

    real: Decisions
    predicted: Decisions
    tolerance: float

    @cached_property
    def decisions(self) -> pd.DataFrame:
        """A row per decision of either run: job_id, number; time, kind, nodes_from and nodes_to of each run; `earlier`,
        the earlier time.

        The resizes are changes of allocations if one of the runs has such changes, and no reconfigurations.
        """
        unrecorded = any(
            not len(side.run.reconfigurations) and bool(side.steps["number"].gt(0).any())
            for side in (self.real, self.predicted)
        )
        tables = [side.table(from_allocations=unrecorded) for side in (self.real, self.predicted)]
        pairs = tables[0].merge(tables[1], on=["job_id", "number"], how="outer", suffixes=SUFFIXES)
        return pairs.assign(earlier=pairs[["time_real", "time_predicted"]].min(axis=1))

    @cached_property
    def events(self) -> pd.DataFrame:
        """The times of the events that both runs have: time_real, time_predicted."""
        return self.real.events.merge(self.predicted.events, on=["job_id", "what"], suffixes=SUFFIXES)

    def partings(self) -> npt.NDArray[np.str_]:
        """Return why each decision parts the runs; an empty text if it does not."""
        pairs = self.decisions
        real, predicted = (pairs[f"time{side}"].to_numpy(dtype=np.float64) for side in SUFFIXES)
        both = np.isfinite(real) & np.isfinite(predicted)
        nodes = np.zeros(len(pairs), dtype=bool)
        for what in ("kind", "nodes_from", "nodes_to"):
            nodes |= both & (pairs[f"{what}_real"] != pairs[f"{what}_predicted"]).to_numpy()
        late = both & (pairs["number"] == 0).to_numpy()
        late[late] = self._unexplained(real[late], predicted[late]) > self.tolerance
        same, order = both & ~nodes & ~late, np.zeros(len(pairs), dtype=bool)
        order[same] = _displaced(real[same], predicted[same], self.tolerance)
        order[both] |= late[both] & _inverted(real[both], predicted[both], self.tolerance)
        return np.select([~both, nodes, order, late], ["missing", "nodes", "order", "time"], "")

    def _unexplained(self, real: FloatArray, predicted: FloatArray) -> FloatArray:
        """Return the difference between the delays of decisions after their triggers in both runs, s.

        The smallest difference counts, by the trigger in either run and without a trigger: simultaneous events of one
        run may come one after another in the other run.
        """
        difference = predicted - real
        least = np.abs(difference)
        for times, name in ((real, "time_real"), (predicted, "time_predicted")):
            least = np.minimum(least, np.abs(difference - self._drift(times, name)))
        return least

    def _drift(self, times: FloatArray, name: str) -> FloatArray:
        """Return predicted - real time of the latest event at or before each of `times` in the run of column `name`."""
        events = self._sorted_events[name]
        drift = np.concatenate(([0.0], (events["time_predicted"] - events["time_real"]).to_numpy()))
        return np.asarray(drift[np.searchsorted(events[name].to_numpy(), times + ROUNDING_S, side="right")])

    @cached_property
    def _sorted_events(self) -> dict[str, pd.DataFrame]:
        return {name: self.events.sort_values(name, kind="stable") for name in ("time_real", "time_predicted")}

    def describe(self, row: dict[Any, Any]) -> dict[str, Any]:
        """Return the row of the table for a decision that parts the runs, a row of `decisions`."""
        first, other, instants = self._instants(row)
        decided = {first: _text(row, first), other: self._instead(row, other, instants)}
        found = {"job_id": row["job_id"], "parting": row["parting"], "time": row["earlier"], "first": first} | decided
        found["delay"] = row["time_predicted"] - row["time_real"]
        for side, decisions in (("real", self.real), ("predicted", self.predicted)):
            found[f"idle_{side}"] = decisions.idle_nodes(instants[side])
            found[f"waiting_{side}"] = decisions.waiting_jobs(instants[side])
        return found

    def _instants(self, row: dict[Any, Any]) -> tuple[str, str, dict[str, float]]:
        """Return the run that decided first, the other run, and the instant of that decision in the time of each run.

        The instant in the other run follows the event that triggered the decision by the same time.
        """
        drift = {side: float(self._drift(np.array([row[f"time_{side}"]]), f"time_{side}")[0]) for side in SIDES}
        real, predicted = row["time_real"], row["time_predicted"]
        if predicted != predicted or predicted - real >= drift["real"]:
            return "real", "predicted", {"real": real, "predicted": real + drift["real"]}
        return "predicted", "real", {"real": predicted - drift["predicted"], "predicted": predicted}

    def _instead(self, row: dict[Any, Any], other: str, instants: dict[str, float]) -> str:
        """Return what the run `other` decided at the instant of the decision in `row` by the run that decided first."""
        if row["parting"] == "nodes":
            return _text(row, other)
        later = row[f"time_{other}"]
        waiting = "still waiting" if row["number"] == 0 else "no resize"
        text = f"nothing: {waiting}; {'never' if later != later else _text(row, other) + ' later'}"
        (first,) = {*SIDES} - {other}
        pairs = self.decisions
        before = True if later != later else pairs[f"time_{other}"] < later
        instead = pairs[before & (pairs[f"time_{first}"] > instants[first] + self.tolerance)]
        instead = instead[instead[f"time_{other}"].notna() & (instead["job_id"] != row["job_id"])]
        if len(instead):
            taken = instead.loc[instead[f"time_{other}"].idxmin()].to_dict()
            text += f", after {_text(taken, other)} of job {taken['job_id']}"
        return text


def _text(row: dict[Any, Any], side: str) -> str:
    """Return the decision of one run as text: `start on 4 nodes`, `expand from 2 to 4 nodes`."""
    kind, before, after = (row[f"{what}_{side}"] for what in ("kind", "nodes_from", "nodes_to"))
    source = "on" if kind == "start" else f"from {before:.0f} to"
    return f"{kind} {source} {after:.0f} node{'' if after == 1 else 's'}"


def _displaced(real: FloatArray, predicted: FloatArray, tolerance: float) -> BoolArray:
    """Return which decisions, made at these times in both runs, have another place in the order of the other run."""
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
    found = []
    index = at[-1] if at else -1
    while index >= 0:
        found.append(index)
        index = before[index]
    return found


def _inverted(real: FloatArray, predicted: FloatArray, tolerance: float) -> BoolArray:
    """Return which decisions come before and after the same decision in the one and the other run."""
    return _overtaken(real, predicted, tolerance) | _overtaken(-real, -predicted, tolerance)


def _overtaken(real: FloatArray, predicted: FloatArray, tolerance: float) -> BoolArray:
    """Return which decisions come before an earlier decision of the real run in the prediction."""
    order = np.argsort(real, kind="stable")
    latest = np.concatenate(([-np.inf], np.maximum.accumulate(predicted[order])))
    earlier = np.searchsorted(real[order], real - tolerance, side="left")
    return latest[earlier] > predicted + tolerance
