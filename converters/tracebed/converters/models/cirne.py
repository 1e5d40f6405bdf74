"""A model of rigid jobs: W. Cirne and F. Berman, "A comprehensive model of the supercomputer
workload", WWC 2001.

Sizes, requested times and cancellation lags are uniform-log: their distribution function is
slope * log2(x) + offset. Run times are requested times multiplied by an accuracy. Arrivals follow a daily
cycle that is fitted to each site.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from tracebed.converters.models import require, require_sizes
from tracebed.converters.workload import FloatArray, IntArray, Provenance, Step, System, Workload
from tracebed.ground.states import JobState

M1, A1, Q1, R1 = 2147483563, 40014, 53668, 12211
M2, A2, Q2, R2 = 2147483399, 40692, 52774, 3791
SA = (0.6931472, 0.9333737, 0.9888778, 0.9984589, 0.9998293, 0.9999833, 0.9999986, 0.9999999)
"""Partial sums of ln(2)^k / k!, with the digits of RANDLIB."""


class Randlib:
    """A generator that starts in the state set by RANDLIB's `setall`."""

    def __init__(self, s1: int, s2: int) -> None:
        """Set the two seeds, each modulo the modulus of its generator."""
        self.s1, self.s2 = s1 % M1 or 1, s2 % M2 or 1

    def integer(self) -> int:
        """Draw an integer from 1 to 2147483562."""
        k = self.s1 // Q1
        self.s1 = A1 * (self.s1 - k * Q1) - k * R1
        if self.s1 < 0:
            self.s1 += M1
        k = self.s2 // Q2
        self.s2 = A2 * (self.s2 - k * Q2) - k * R2
        if self.s2 < 0:
            self.s2 += M2
        z = self.s1 - self.s2
        return z + M1 - 1 if z < 1 else z

    def uniform(self) -> float:
        """Draw from [0, 1], both ends included."""
        return (self.integer() - 1) / 2147483561

    def ranf(self) -> float:
        """Draw from (0, 1), as the distributions below require."""
        return self.integer() * 4.656613057e-10

    def exponential(self) -> float:
        """Draw from the exponential distribution with mean 1."""
        offset, u = 0.0, 2.0 * self.ranf()
        while u <= 1.0:
            offset += SA[0]
            u += u
        u -= 1.0
        if u <= SA[0]:
            return offset + u
        smallest = self.ranf()
        for q in SA[1:]:
            smallest = min(smallest, self.ranf())
            if u <= q:
                break
        return offset + smallest * SA[0]

    def gamma(self, shape: float, scale: float) -> float:
        """Draw from the gamma distribution with `shape`, 0 < shape < 1, and `scale`."""
        b = 1.0 + 0.3678794 * shape
        while True:
            p = b * self.ranf()
            if p < 1.0:
                x = math.exp(math.log(p) / shape)
                if self.exponential() >= x:
                    break
            else:
                x = -math.log((b - p) / shape)
                if self.exponential() >= (1.0 - shape) * math.log(x):
                    break
        return x / (1.0 / scale)


DAY = 86_400
JOB = 2.0
"""Growth of the summed rate per arrival: the published rates are jobs per two minutes, `SITES` has a 60th."""


class CirneSite(NamedTuple):
    """A site of the model: the size of its machine and the polynomial of its arrival rate.

    The polynomial is in the time of day x, from -0.5 (midnight) through 0 (noon) to 0.5. The coefficient of the
    highest power comes first.
    """

    nodes: int
    rate: tuple[float, ...]


SITES = {
    "anl": CirneSite(
        120,
        (
            *(0.0, 119.4417, 1069.567, 14.43500, -755.2833, -48.71500, 196.0167),
            *(14.91917, -22.48333, -1.554433, 1.041417, 0.03766833, -0.01102533, 0.002865167),
        ),
    ),
    "ctc": CirneSite(
        430,
        (
            *(0.0, 0.0, 0.0, 0.0, 0.0, 4.234000, -0.4303333),
            *(-4.308500, 0.1407367, 1.360200, -0.06104667, -0.1605150, 0.01274250, 0.009416833),
        ),
    ),
    "kth": CirneSite(
        100,
        (
            *(-544.7167, -1024.067, 542.5500, 823.4333, -210.1833, -251.8833, 39.68167),
            *(35.90000, -3.694167, -2.247000, 0.1383983, 0.03195833, 0.0003734333, 0.001618433),
        ),
    ),
    "sdsc": CirneSite(
        128,
        (
            *(0.0, 0.0, 0.0, -91.66000, 25.45000, 50.26500, -15.86583),
            *(-9.551333, 3.322000, 0.8097167, -0.2601833, -0.04313167, 0.006112500, 0.003543667),
        ),
    ),
}


@dataclass(frozen=True)
class CirneParameters:
    """Constants of the model. The defaults are the published values."""

    size_slope: float = 0.12
    """Uniform-log distribution of the sizes (nodes). The largest size is 2^((1 - offset) / slope) = 102."""
    size_offset: float = 0.20
    power_of_two: float = 0.75
    """Probability that a size is rounded to a power of two."""
    limit_slope: float = 0.10
    """Uniform-log distribution of the requested times (s)."""
    limit_offset: float = -0.75
    accuracy_shape: float = 0.6
    """Gamma distribution of run time / requested time, clipped to [`accuracy_min`, 1]."""
    accuracy_scale: float = 0.6
    accuracy_min: float = 1e-5
    cancelled: float = 0.15
    """Probability that a job is cancelled."""
    lag_slope: float = 0.065
    """Uniform-log distribution of the time from submission to cancellation (s)."""
    lag_offset: float = -0.32
    load: float = 1.0
    """Factor on the arrival rate and on the requested times. The offered load grows with its square."""
    reduction: int = 1
    """1 or 2. With 2, twice as many jobs of half the size arrive, at the same load."""

    def __post_init__(self) -> None:
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
"""Upper bound of sizes (nodes) and times (s), far beyond any machine or request."""


class CirneDraws(NamedTuple):
    """Draws of the model, one value per job. Times are in s; `lag` is 0 for jobs that are not cancelled."""

    submit: IntArray
    nodes: IntArray
    limit: IntArray
    accuracy: FloatArray
    cancelled: np.ndarray[tuple[int], np.dtype[np.bool_]]
    lag: IntArray

    @property
    def run(self) -> IntArray:
        """Run times if no job is cancelled (s)."""
        return np.maximum(1, np.ceil(self.limit * self.accuracy)).astype(np.int64)


def cirne(
    jobs: int,
    *,
    nodes: int | None = None,
    cores_per_node: int = 1,
    seed: int = 0,
    parameters: CirneParameters | None = None,
    site: Literal["anl", "ctc", "kth", "sdsc"] = "anl",
    poisson: bool = False,
    exact: bool = False,
) -> Workload:
    """Draw rigid jobs of a supercomputer with time limits and cancellations (Cirne and Berman 2001).

    A cancelled job has the status `cancelled` and, in `extra_cancel_lag`, the time from its submission to its
    cancellation (s). Its run time, if it starts before the cancellation, is half its requested time, as in the
    reference simulator. Time 0 is midnight before the first submission.

    Args:
        nodes: nodes of the machine, by default those of the site. The arrival rate is proportional to them, and no
            job is larger.
        site: site whose daily cycle of arrivals is used.
        poisson: draw arrivals from a Poisson process of the same rate, in place of the reference's regular arrivals.
        exact: draw from RANDLIB in the order of the reference program, to verify the model (slow).
    """
    parameters = parameters or CirneParameters()
    require_sizes(jobs, nodes, cores_per_node)
    require(site in SITES, f"site {site!r}", f"one of {', '.join(SITES)}")
    require(not (poisson and exact), "poisson with exact", "only one of them: the reference has no Poisson arrivals")
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


def draw_fast(
    jobs: int, site: CirneSite, machine: int, seed: int, p: CirneParameters, poisson: bool = False
) -> CirneDraws:
    """Draw all jobs in array operations from a numpy Generator."""
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
    return CirneDraws(
        arrivals(jobs, site, machine, begin, p, rng if poisson else None),
        nodes,
        np.maximum(1.0, np.ceil(limit)).astype(np.int64),
        np.clip(accuracy, p.accuracy_min, 1.0),
        cancelled,
        np.where(cancelled, lag, 0).astype(np.int64),
    )


def draw_exactly(jobs: int, site: CirneSite, machine: int, seed: int, p: CirneParameters) -> CirneDraws:
    """Draw the jobs one by one from RANDLIB, each number in the order of the reference program."""
    require(p.accuracy_shape < 1.0, f"accuracy_shape {p.accuracy_shape}", "below 1 in exact mode")
    random = Randlib(7919 * seed + 12345, 104729 * seed + 54321)  # the seeds of the reference samples
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
    return CirneDraws(arrivals(jobs, site, machine, begin, p), *map(np.array, zip(*rows, strict=True)))


def arrivals(
    jobs: int, site: CirneSite, machine: int, begin: float, p: CirneParameters, rng: np.random.Generator | None = None
) -> IntArray:
    """Return the submit times (s since midnight) of the first `jobs` jobs after time of day `begin`, -0.5 to 0.5.

    The rate, in proportion to the nodes of the machine, is summed over the seconds, and a job arrives each time the sum
    has grown by `JOB`, or with `rng` (a Poisson process) by an exponential of this mean. All days are alike, so the
    sums of one day give every arrival: job j arrives on the first day whose greatest sum reaches j * JOB. The sums need
    a running maximum, because the reference does not clip the rate of kth, which is negative before dawn.
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
    """Return the values x at which the distribution function slope * log2(x) + offset equals `u`."""
    return np.exp2((u - offset) / slope)


def _power_of_two(nodes: FloatArray | np.float64) -> FloatArray:
    """Return the nearest powers of two on the logarithmic scale; of two equally near, the smaller."""
    return np.exp2(np.ceil(np.log2(nodes) - 0.5))
