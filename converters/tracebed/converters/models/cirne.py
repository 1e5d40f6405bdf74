"""The comprehensive model of rigid jobs: W. Cirne and F. Berman, "A comprehensive model of the supercomputer
workload", WWC 2001.

Sizes, requested times and cancellation lags are uniform-log: their distribution function is
slope * log2(x) + offset. Run times are requested times multiplied by an accuracy. Arrivals follow a daily
cycle fitted to each site.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from tracebed.converters.models import require, require_sizes
from tracebed.converters.models.randlib import Randlib
from tracebed.converters.workload import FloatArray, IntArray, Provenance, Step, System, Workload
from tracebed.states import JobState

DAY = 86_400
JOB = 2.0
"""What the rate must add up to for one arrival: the published rates are jobs per two minutes, per second."""


class Site(NamedTuple):
    """A site of the model: its machine and the polynomial of its arrival rate.

    The rate is over the time of day x, from -0.5 (midnight) over 0 (noon) to 0.5; highest power first.
    """

    nodes: int
    rate: tuple[float, ...]


SITES = {
    "anl": Site(
        120,
        (
            *(0.0, 119.4417, 1069.567, 14.43500, -755.2833, -48.71500, 196.0167),
            *(14.91917, -22.48333, -1.554433, 1.041417, 0.03766833, -0.01102533, 0.002865167),
        ),
    ),
    "ctc": Site(
        430,
        (
            *(0.0, 0.0, 0.0, 0.0, 0.0, 4.234000, -0.4303333),
            *(-4.308500, 0.1407367, 1.360200, -0.06104667, -0.1605150, 0.01274250, 0.009416833),
        ),
    ),
    "kth": Site(
        100,
        (
            *(-544.7167, -1024.067, 542.5500, 823.4333, -210.1833, -251.8833, 39.68167),
            *(35.90000, -3.694167, -2.247000, 0.1383983, 0.03195833, 0.0003734333, 0.001618433),
        ),
    ),
    "sdsc": Site(
        128,
        (
            *(0.0, 0.0, 0.0, -91.66000, 25.45000, 50.26500, -15.86583),
            *(-9.551333, 3.322000, 0.8097167, -0.2601833, -0.04313167, 0.006112500, 0.003543667),
        ),
    ),
}


@dataclass(frozen=True)
class Parameters:
    """The constants of the model, the published ones by default."""

    size_slope: float = 0.12
    """Of the uniform-log law of sizes (nodes), which end at 2^((1 - offset) / slope) = 102."""
    size_offset: float = 0.20
    power_of_two: float = 0.75
    """Probability that a size is rounded to a power of two."""
    limit_slope: float = 0.10
    """Of the uniform-log law of requested times (s)."""
    limit_offset: float = -0.75
    accuracy_shape: float = 0.6
    """Of the gamma law of run time / requested time, clipped to [`accuracy_min`, 1]."""
    accuracy_scale: float = 0.6
    accuracy_min: float = 1e-5
    cancelled: float = 0.15
    """Probability that a job is cancelled; 0: no job is."""
    lag_slope: float = 0.065
    """Of the uniform-log law of the time from submission to cancellation (s)."""
    lag_offset: float = -0.32
    load: float = 1.0
    """Multiplies the arrival rate and the requested times: the offered load grows with its square."""
    reduction: int = 1
    """1, or 2: twice the arrivals of half the size, at the same load."""

    def __post_init__(self) -> None:
        """Raise InputError where a constant is out of its range."""
        for name in ("power_of_two", "cancelled"):
            require(0.0 <= getattr(self, name) <= 1.0, f"{name} {getattr(self, name)}", "a probability")
        for name in ("size_slope", "limit_slope", "lag_slope", "accuracy_scale", "accuracy_min"):
            require(getattr(self, name) > 0.0, f"{name} {getattr(self, name)}", "above 0")
        for name in ("size", "limit", "lag"):
            slope, offset = getattr(self, f"{name}_slope"), getattr(self, f"{name}_offset")
            require((1.0 - offset) / slope <= 40.0, f"{name}_slope {slope} with {name}_offset {offset}", MOST)
        require(1e-6 <= self.load <= 1e6, f"load {self.load}", "from 10^-6 to 10^6")
        require(self.accuracy_shape > 0.0, f"accuracy_shape {self.accuracy_shape}", "above 0")
        require(self.accuracy_min <= 1.0, f"accuracy_min {self.accuracy_min}", "at most 1")
        require(self.reduction in (1, 2), f"reduction {self.reduction}", "1 or 2")


MOST = "such that 2^((1 - offset) / slope) is at most 2^40"
"""What sizes and times end at, in tasks and s: a thousand times what any machine or user can mean."""


class Draws(NamedTuple):
    """What the model draws, a value a job: times in s, `lag` 0 where the job is not cancelled."""

    submit: IntArray
    nodes: IntArray
    limit: IntArray
    accuracy: FloatArray
    cancelled: np.ndarray[tuple[int], np.dtype[np.bool_]]
    lag: IntArray

    @property
    def run(self) -> IntArray:
        """Run times, were no job cancelled (s)."""
        return np.maximum(1, np.ceil(self.limit * self.accuracy)).astype(np.int64)


def cirne(
    jobs: int,
    *,
    nodes: int | None = None,
    cores_per_node: int = 1,
    seed: int = 0,
    parameters: Parameters | None = None,
    site: Literal["anl", "ctc", "kth", "sdsc"] = "anl",
    poisson: bool = False,
    exact: bool = False,
) -> Workload:
    """Draw rigid jobs of a supercomputer: sizes, limits, cancellations (Cirne and Berman 2001).

    A cancelled job has the status `cancelled`, the time from its submission to its withdrawal in
    `extra_cancel_lag` (s), and half its requested time as its run time should it run all the same, as in the
    reference simulator. Time 0 is midnight before the first submission.

    Args:
        jobs: how many.
        nodes: of the machine, the site's own by default; arrivals grow in proportion, sizes end there.
        cores_per_node: of the machine; every job uses all cores of its nodes.
        seed: of the numpy Generator, or of RANDLIB.
        parameters: the model's constants.
        site: whose daily cycle of arrivals.
        poisson: draw arrivals from a Poisson process of the same rate; the reference's are regular.
        exact: draw from RANDLIB in the order of the reference program, to verify the model; slow.

    Raises:
        InputError: an argument is out of its range.
    """
    parameters = parameters or Parameters()
    require_sizes(jobs, nodes, cores_per_node)
    require(site in SITES, f"site {site!r}", f"one of {', '.join(SITES)}")
    require(not (poisson and exact), "poisson with exact", "one of them: the reference has no such arrivals")
    machine = nodes or SITES[site].nodes
    if exact:
        draws = draw_exactly(jobs, SITES[site], machine, seed, parameters)
    else:
        draws = draw_fast(jobs, SITES[site], machine, seed, parameters, poisson)
    columns = {
        "job_id": pd.Series(np.arange(1, jobs + 1)).astype("str"),
        "submit_time": draws.submit.astype(np.float64),
        "run_time": np.where(draws.cancelled, np.maximum(1, draws.limit // 2), draws.run).astype(np.float64),
        "time_limit": draws.limit.astype(np.float64),
        "nodes": draws.nodes,
        "cores_per_node": np.full(jobs, cores_per_node),
    }
    if draws.cancelled.any():
        status = pd.Series(draws.cancelled).map({True: JobState.CANCELLED.value, False: ""})
        columns["status"] = status.astype("str")
        columns["extra_cancel_lag"] = np.where(draws.cancelled, draws.lag, np.nan)
    step = Step(
        "cirne",
        {"jobs": jobs, "site": site, "nodes": machine, "poisson": poisson, "exact": exact, **asdict(parameters)},
        {"jobs": jobs, "jobs cancelled": int(draws.cancelled.sum())},
        seed,
    )
    system = System(machine, cores_per_node, f"Cirne and Berman {site}")
    return Workload(pd.DataFrame(columns), Provenance(system=system, steps=(step,)))


def draw_fast(jobs: int, site: Site, machine: int, seed: int, p: Parameters, poisson: bool = False) -> Draws:
    """Draw all jobs at once from a numpy Generator."""
    rng = np.random.default_rng(seed)
    begin = rng.random() - 0.5
    nodes = np.maximum(1.0, np.ceil(_uniform_log(rng.random(jobs), p.size_slope, p.size_offset)))
    nodes = np.where(rng.random(jobs) <= p.power_of_two, _power_of_two(nodes), nodes)
    nodes = np.minimum(nodes, machine).astype(np.int64)
    if p.reduction == 2:
        nodes = np.where(nodes > 1, nodes // 2 + (nodes % 2) * rng.integers(0, 2, jobs), nodes)
    limit = p.load * _uniform_log(rng.random(jobs), p.limit_slope, p.limit_offset)
    accuracy = rng.gamma(p.accuracy_shape, p.accuracy_scale, jobs)
    cancelled = rng.random(jobs) < p.cancelled
    lag = np.maximum(1.0, np.ceil(_uniform_log(rng.random(jobs), p.lag_slope, p.lag_offset)))
    return Draws(
        arrivals(jobs, site, machine, begin, p, rng if poisson else None),
        nodes,
        np.maximum(1.0, np.ceil(limit)).astype(np.int64),
        np.clip(accuracy, p.accuracy_min, 1.0),
        cancelled,
        np.where(cancelled, lag, 0).astype(np.int64),
    )


def draw_exactly(jobs: int, site: Site, machine: int, seed: int, p: Parameters) -> Draws:
    """Draw job after job from RANDLIB, each number in the place where the reference program draws it."""
    require(p.accuracy_shape < 1.0, f"accuracy_shape {p.accuracy_shape}", "below 1 in exact mode")
    random = Randlib(7919 * seed + 12345, 104729 * seed + 54321)  # as the reference samples were drawn
    begin = random.uniform() - 0.5
    rows = []
    for _ in range(jobs):
        nodes = max(1, math.ceil(2 ** ((random.uniform() - p.size_offset) / p.size_slope)))
        if random.uniform() <= p.power_of_two:
            nodes = int(_power_of_two(np.float64(nodes)))
        nodes = min(nodes, machine)
        if p.reduction == 2 and nodes > 1:
            nodes = nodes // 2 + (nodes % 2 and random.uniform() > 0.5)
        limit = max(1, math.ceil(p.load * 2 ** ((random.uniform() - p.limit_offset) / p.limit_slope)))
        accuracy = min(1.0, max(p.accuracy_min, random.gamma(p.accuracy_shape, p.accuracy_scale)))
        cancelled, lag = p.cancelled > 0 and random.uniform() <= p.cancelled, 0
        if cancelled:
            lag = max(1, math.ceil(2 ** ((random.uniform() - p.lag_offset) / p.lag_slope)))
        rows.append((nodes, limit, accuracy, cancelled, lag))
    return Draws(arrivals(jobs, site, machine, begin, p), *map(np.array, zip(*rows, strict=True)))


def arrivals(
    jobs: int, site: Site, machine: int, begin: float, p: Parameters, rng: np.random.Generator | None = None
) -> IntArray:
    """Return the submit times (s since midnight) of the first `jobs` jobs after time of day `begin`.

    Second by second the rate is added up, and a job arrives when the sum has grown by `JOB`. The reference
    does not clip the rate of kth, which is negative before dawn; hence the running maximum. All days being
    alike, one day's sums tell every arrival: the j-th is on the first day whose greatest sum reaches j * JOB.

    Args:
        jobs: how many.
        site: whose rate.
        machine: nodes; the rate is in proportion to them.
        begin: time of day, -0.5 (midnight) to 0.5.
        p: the model's constants (`load`, `reduction`).
        rng: where the growth for each job is drawn from, exponential of mean `JOB`: a Poisson process.
    """
    x = begin + np.arange(1, DAY + 1) / DAY
    rate = np.polyval(site.rate, np.where(x > 0.5, x - 1.0, x))
    sums = np.cumsum(rate * (p.load * p.reduction * machine / site.nodes))
    highest = np.maximum.accumulate(sums)
    wanted = JOB * (np.arange(1, jobs + 1) if rng is None else np.cumsum(rng.exponential(size=jobs)))
    day = np.maximum(0.0, np.ceil((wanted - highest[-1]) / sums[-1]))
    second = np.searchsorted(highest, wanted - day * sums[-1])
    seconds: FloatArray = np.ceil((begin + 0.5) * DAY + day * DAY + second + 1)
    return seconds.astype(np.int64)


def _uniform_log(u: FloatArray, slope: float, offset: float) -> FloatArray:
    """Return the values where the distribution function slope * log2(x) + offset is `u`."""
    return np.exp2((u - offset) / slope)


def _power_of_two(nodes: FloatArray | np.float64) -> FloatArray:
    """Return the nearest powers of two on the logarithmic scale, the smaller of two equally near."""
    return np.exp2(np.ceil(np.log2(nodes) - 0.5))
