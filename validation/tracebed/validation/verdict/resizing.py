"""Malleable jobs of predictions beside those of real runs: resizes, staircases, starts and responses. For diagnosis.

- **Resizes** are changes of the number of nodes (or cores, if a job holds a part of a node) of a job while it runs. A
  predicted resize is paired with at most one real resize of the same job in the same direction, and each real resize
  with at most one predicted one, so that as many as possible are paired: at any time (`right_job`), or at most `NEAR_S`
  apart (`near`).
- **Staircases** are the nodes held over time. The area between two staircases, in node seconds, is divided by the real
  node seconds. It counts for each malleable job, and for the machine, where the jobs of a run are summed first.

The same figures between the real runs are the noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tracebed.converters.workload import BoolArray, FloatArray, IntArray, Kind
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import origin

NEAR_S = 15.0  # largest difference of the times of two resizes that are paired as near, s, as that of placed jobs
ROUNDED = 6  # decimals of a second: changes of a job within a microsecond are one change


@dataclass(frozen=True)
class Paired:
    """Numbers of resizes in one direction; means over several pairs of runs."""

    real: float
    predicted: float
    right_job: float
    """Resizes paired by job and direction."""
    near: float
    """Resizes paired by job, direction and time."""


@dataclass(frozen=True)
class ResizeFigures:
    """A prediction beside a real run, or the means over several pairs of runs. NaN: undefined."""

    jobs: float
    """Malleable jobs that ended in both runs."""
    shrinks: Paired
    expansions: Paired
    time_s: float
    """|difference| of the times of near resizes, mean, s."""
    area: float
    """Area between the staircases of malleable jobs / their real node seconds."""
    machine_area: float
    """Area between the allocated nodes of all jobs / real node seconds of all jobs."""
    start_s: float
    """|difference| of the starts of malleable jobs, mean, s after the first submission."""
    response_s: float
    """|difference| of the responses of malleable jobs, mean, s."""

    def precision(self, *, near: bool) -> float:
        """Return the share of the predicted resizes that are paired, with or without their time."""
        return self._share("predicted", near)

    def recall(self, *, near: bool) -> float:
        """Return the share of the real resizes that are paired, with or without their time."""
        return self._share("real", near)

    def _share(self, of: str, near: bool) -> float:
        found = sum(each.near if near else each.right_job for each in (self.shrinks, self.expansions))
        whole = sum(getattr(each, of) for each in (self.shrinks, self.expansions))
        return found / whole if whole else math.nan


@dataclass(frozen=True)
class Resizing:
    """Figures of the malleable jobs of a case."""

    predicted: ResizeFigures
    """Mean over the pairs of a prediction and a real run."""
    sides: tuple[_Side, ...] = field(repr=False, compare=False)
    """What is compared of the real runs."""
    malleable: BoolArray = field(repr=False, compare=False)
    """Whether each job of `sides` is malleable, shape (jobs,)."""

    @cached_property  # often unread, of many pairs
    def real(self) -> ResizeFigures | None:
        """Mean over the pairs of real runs; None for one real run."""
        pairs = [figures(first, second, self.malleable) for first, second in combinations(self.sides, 2)]
        return _mean(pairs) if pairs else None

    @property
    def sentence(self) -> str:
        """The figures in words, beside those between real runs."""
        own, noise = self.predicted, self.real
        counts = " and ".join(
            f"{each.right_job:,.3g} of {each.real:,.3g} {name} at the right job ({each.predicted:,.3g} predicted, "
            f"{each.near:,.3g} within {NEAR_S:g} s)"
            for name, each in (("shrinks", own.shrinks), ("expansions", own.expansions))
        )
        shares = [("per job", "area"), ("of the machine", "machine_area")]
        areas = ", ".join(f"{_percent(own, name)} {what}{_beside(noise, name)}" for what, name in shares)
        times = ", ".join(
            f"{what} {getattr(own, name):.3g} s{_beside(noise, name)}"
            for what, name in (("starts", "start_s"), ("responses", "response_s"))
        )
        between = f"; between real runs {100 * noise.recall(near=True):.3g} % within {NEAR_S:g} s" if noise else ""
        return f"{counts}{between}; area between the allocations {areas}; malleable jobs off by: {times}"

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {"predicted": asdict(self.predicted), "real": asdict(self.real) if self.real else None}


def _percent(figures: ResizeFigures, name: str) -> str:
    return f"{100 * getattr(figures, name):.3g} %"


def _beside(noise: ResizeFigures | None, name: str) -> str:
    if noise is None:
        return ""
    return f" (real runs {_percent(noise, name) if 'area' in name else f'{getattr(noise, name):.3g} s'})"


def resizing(real: Sequence[Run], predicted: Sequence[Run]) -> Resizing | None:
    """Return the figures of the malleable jobs; None if no run resizes a job, or a run lacks its allocations."""
    runs = (*real, *predicted)
    if any({"allocations", "reconfigurations"} & run.info.unknown.keys() for run in runs):
        return None
    kinds = [run.table("jobs").among("kind", (Kind.MALLEABLE, Kind.EVOLVING)) for run in runs]
    if not any(each.any() for each in kinds):
        return None
    ids = pd.Index(pd.unique(np.concatenate([run.jobs["job_id"].to_numpy() for run in runs])))
    malleable = np.zeros(len(ids), dtype=bool)
    for run, kind in zip(runs, kinds, strict=True):
        malleable[ids.get_indexer(pd.Index(run.jobs["job_id"][kind]))] = True
    cores = not all(whole_nodes(run, ids) for run in runs)
    sides = [_Side.of(run, ids, cores=cores) for run in runs]
    if not any(len(side.resizes.job) for side in sides):
        return None
    ours, theirs = sides[: len(real)], sides[len(real) :]
    predictions = [figures(one, other, malleable) for one, other in product(ours, theirs)]
    return Resizing(_mean(predictions), tuple(ours), malleable)


class Resizes(NamedTuple):
    """Resizes in the order of their jobs and times. Shapes (resizes,)."""

    job: IntArray  # position of the job in the ids
    time: FloatArray  # s after the first submission
    expands: BoolArray

    def towards(self, *, expands: bool) -> Resizes:
        """Return the resizes in one direction."""
        rows = self.expands == expands
        return Resizes(self.job[rows], self.time[rows], self.expands[rows])


class _Side(NamedTuple):
    """What is compared of a run: times of shape (jobs,), NaN for jobs that did not end."""

    held: pd.DataFrame  # `allocations_of_jobs`
    resizes: Resizes
    start: FloatArray
    response: FloatArray

    @classmethod
    def of(cls, run: Run, ids: pd.Index[Any], *, cores: bool) -> _Side:
        held, jobs = allocations_of_jobs(run, ids, cores=cores), run.jobs
        row = pd.Index(jobs["job_id"]).get_indexer(ids)
        submit, start, end = (
            np.where(row < 0, np.nan, jobs[name].to_numpy(dtype=np.float64)[row]) for name in ("submit", "start", "end")
        )
        return cls(held, resizes_of(held), start - origin(run), end - submit)


def figures(real: _Side, predicted: _Side, malleable: BoolArray) -> ResizeFigures:
    """Return the figures of a prediction beside a real run; `malleable` has shape (jobs,)."""
    paired, differences = {}, []
    for expands in (False, True):
        ours, theirs = (side.resizes.towards(expands=expands) for side in (real, predicted))
        right_job = np.minimum(*(np.bincount(side.job, minlength=len(malleable)) for side in (ours, theirs)))
        differences.append(near_pairs(ours, theirs))
        counts = (len(ours.job), len(theirs.job), right_job.sum(), len(differences[-1]))
        paired[expands] = Paired(*(float(count) for count in counts))
    apart = np.concatenate(differences)
    areas = areas_between(real.held, predicted.held, len(malleable))
    of_jobs = np.bincount(real.held["job"], _node_seconds(real.held), minlength=len(malleable))
    machine = areas_between(real.held.assign(job=0), predicted.held.assign(job=0), 1)
    both = malleable & np.isfinite(real.start + real.response + predicted.start + predicted.response)
    return ResizeFigures(
        jobs=float(both.sum()),
        shrinks=paired[False],
        expansions=paired[True],
        time_s=_average(apart),
        area=_share(areas[malleable].sum(), of_jobs[malleable].sum()),
        machine_area=_share(machine[0], of_jobs.sum()),
        start_s=_average(np.abs(predicted.start - real.start)[both]),
        response_s=_average(np.abs(predicted.response - real.response)[both]),
    )


def _average(values: FloatArray) -> float:
    return float(values.mean()) if len(values) else math.nan


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else math.nan


def _node_seconds(held: pd.DataFrame) -> FloatArray:
    return (held["held"] * (held["end"] - held["start"])).to_numpy(dtype=np.float64)


def _mean(pairs: Sequence[ResizeFigures]) -> ResizeFigures:
    """Return the means of the figures, each over the pairs in which it is defined."""
    table = pd.json_normalize([asdict(pair) for pair in pairs]).mean()
    shrinks, expansions = (
        Paired(*(float(table[f"{way}.{name}"]) for name in Paired.__annotations__)) for way in ("shrinks", "expansions")
    )
    others = [name for name in ResizeFigures.__annotations__ if name not in ("shrinks", "expansions")]
    return ResizeFigures(shrinks=shrinks, expansions=expansions, **{name: float(table[name]) for name in others})


def near_pairs(real: Resizes, predicted: Resizes, near_s: float = NEAR_S) -> FloatArray:
    """Return |difference| of the times of as many pairs of resizes of one job as possible, s, shape (pairs,).

    The resizes have one direction and are sorted by job and time. The two earliest unpaired resizes of a job are a pair
    if they are at most `near_s` apart. Otherwise the earlier of them has no partner.
    """
    ours, theirs = (list(zip(side.job.tolist(), side.time.tolist(), strict=True)) for side in (real, predicted))
    pairs, i, k = [], 0, 0
    while i < len(ours) and k < len(theirs):
        (job, time), (other, later) = ours[i], theirs[k]
        if job == other and abs(later - time) <= near_s:
            pairs.append(abs(later - time))
            i, k = i + 1, k + 1
        elif (job, time) < (other, later):
            i += 1
        else:
            k += 1
    return np.array(pairs)


def resizes_of(held: pd.DataFrame) -> Resizes:
    """Return the resizes in a table of `allocations_of_jobs`. Starts, ends and requeues are none."""
    job = np.tile(held["job"].to_numpy(), 2)
    time = np.concatenate([held["start"], held["end"]]).round(ROUNDED)
    change = np.concatenate([held["held"], -held["held"]])
    order = np.lexsort((time, job))
    job, time, change = job[order], time[order], change[order]
    first = np.flatnonzero(np.append(True, (job[1:] != job[:-1]) | (time[1:] != time[:-1]))[: len(job)])
    if not len(first):
        return Resizes(job, time, np.empty(0, dtype=bool))
    change = np.add.reduceat(change, first)
    after = np.cumsum(change)  # 0 between two jobs: each allocation that starts also ends
    inside = (change != 0) & (after > 0) & (after - change > 0)
    return Resizes(job[first][inside], time[first][inside], change[inside] > 0)


def allocations_of_jobs(run: Run, ids: pd.Index[Any], *, cores: bool = False) -> pd.DataFrame:
    """Return the allocations of some jobs: job (position in `ids`), start, end, held (nodes, or `cores`)."""
    # Times are s after the first submission. Allocations without an end last until the last time of the run.
    rows = run.allocations
    end = rows["end"].to_numpy(dtype=np.float64)
    until = np.fmax.reduce(np.concatenate([rows["start"], end, run.jobs["end"]]), initial=origin(run))
    job = ids.get_indexer(pd.Index(rows["job_id"]))
    table = pd.DataFrame(
        {
            "job": job,
            "start": rows["start"].to_numpy(dtype=np.float64) - origin(run),
            "end": np.where(np.isnan(end), until, end) - origin(run),
            "held": (rows["count"] * (rows["cores"] if cores else 1)).to_numpy(dtype=np.float64),
        }
    )
    return table[(job >= 0) & (table["end"] > table["start"])]


def sizes_of(table: pd.DataFrame, jobs: int) -> tuple[FloatArray, FloatArray]:
    """Return least and greatest size of each job while it runs, shapes (jobs,); the greatest is 0 if unknown."""
    job: IntArray = np.tile(table["job"].to_numpy(), 2)
    time: FloatArray = np.concatenate([table["start"], table["end"]])
    held: FloatArray = np.concatenate([table["held"], -table["held"]])
    order = np.lexsort((time, job))
    job, time, level = job[order], time[order], np.cumsum(held[order])
    lasts = np.append((job[1:] != job[:-1]) | (time[1:] > time[:-1]), True)[: len(job)] & (level > 0)
    least, most = np.full(jobs, np.inf), np.zeros(jobs)
    np.minimum.at(least, job[lasts], level[lasts])
    np.maximum.at(most, job[lasts], level[lasts])
    return least, most


def areas_between(real: pd.DataFrame, predicted: pd.DataFrame, jobs: int) -> FloatArray:
    """Return the area between the staircases of each job, node-seconds (or core-seconds), shape (jobs,)."""
    sides = ((real, 1.0), (predicted, -1.0))
    job: IntArray = np.concatenate([np.tile(table["job"], 2) for table, _ in sides])
    time: FloatArray = np.concatenate([table[name] for table, _ in sides for name in ("start", "end")])
    change: FloatArray = np.concatenate([sign * way * table["held"] for table, sign in sides for way in (1.0, -1.0)])
    order = np.lexsort((time, job))
    job, time = job[order], time[order]
    apart = np.abs(np.cumsum(change[order]))[:-1]  # 0 between two jobs: each allocation that starts also ends
    same = job[1:] == job[:-1]
    areas = np.bincount(job[:-1][same], weights=(apart * np.diff(time))[same], minlength=jobs)
    return areas.astype(np.float64)


def whole_nodes(run: Run, ids: pd.Index[Any]) -> bool:
    """Return whether every allocation of the jobs has all cores of its nodes."""
    rows = run.allocations[run.allocations["job_id"].isin(ids).to_numpy()]
    cores = np.array([node.cores for node in run.info.nodes], dtype=np.int64)
    return not len(rows) or bool((rows["cores"].to_numpy() == cores[rows["node"].to_numpy()]).all())
