"""The model of rigid jobs of U. Lublin and D. Feitelson, "The workload on parallel supercomputers: modeling the
characteristics of rigid jobs", JPDC 63(11), 2003 (the program m_lublin99 is from 1999).

The logarithms of the sizes are two-stage uniform. The logarithms of the run times follow a mixture of two gamma
distributions that depends on the size. The logarithms of the times between arrivals (gaps) follow a gamma
distribution; the daily cycle stretches and compresses the gaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import gammainc

from tracebed.converters.models import require, require_sizes
from tracebed.converters.workload import FloatArray, IntArray, Provenance, Step, System, Workload

MULTIPLIER, INCREMENT, MODULUS = 0x5DEECE66D, 0xB, 1 << 48


class Drand48:
    """A generator that is equivalent to srand48 and drand48."""

    def __init__(self, seed: int) -> None:
        """Set the state as srand48(`seed`) does, from the low 32 bits of the seed."""
        self._state = ((seed & 0xFFFF_FFFF) << 16) + 0x330E

    def uniform(self) -> float:
        """Draw a number from [0, 1)."""
        self._state = (self._state * MULTIPLIER + INCREMENT) % MODULUS
        return self._state / MODULUS

    def gamma(self, shape: float, scale: float) -> float:
        """Draw a gamma variate: Erlang for the integer part of `shape`, Jöhnk's method for the fraction."""
        whole = math.floor(shape)
        logs = 0.0
        for _ in range(whole):
            logs += math.log(self.uniform())
        value, rest = -scale * logs, shape - whole
        if rest > 0.0:
            x, y = 1.0, 1.0
            while x + y > 1.0:
                x, y = self.uniform() ** (1.0 / rest), self.uniform() ** (1.0 / (1.0 - rest))
            value += scale * x / (x + y) * -math.log(self.uniform())
        return value


BUCKETS, BUCKET = 48, 1800.0
"""Number and length (s) of the buckets of the daily cycle: half hours."""
CYCLE_BEGINS = 10
"""Bucket in which the gamma distribution of the daily cycle begins: 05:00."""
PUBLISHED_NODES = 128
"""Nodes of the machine to which the published sizes refer."""
QUEUES = ("interactive", "batch")


@dataclass(frozen=True)
class JobType:
    """Constants of one job type. Gamma distributions are given by shape and scale."""

    serial: float
    """Probability of a serial job, on one node."""
    power_of_two: float
    """Probability of a parallel job whose size is a power of two."""
    size_low: float
    """log2 of the smallest parallel job."""
    size_middle: float
    """log2 of the size at which the two stages meet, on 128 nodes."""
    size_high: float
    """log2 of the largest job, on 128 nodes."""
    small: float
    """Probability of the lower stage."""
    short_shape: float
    short_scale: float
    """First gamma distribution of ln(run time / s)."""
    long_shape: float
    long_scale: float
    """Second gamma distribution of ln(run time / s)."""
    short_slope: float
    short_offset: float
    """The probability of the first distribution is slope * nodes + offset, clipped to [0, 1]."""
    gap_shape: float
    gap_scale: float
    """Gamma distribution of ln(gap / s) at rush hour."""
    gap_factor: float
    """Factor on `gap_shape`."""
    cycle_shape: float
    cycle_scale: float
    """Gamma distribution of the daily cycle, in half hours since 05:00."""

    def __post_init__(self) -> None:
        for name in ("serial", "power_of_two", "small"):
            require(0.0 <= getattr(self, name) <= 1.0, f"{name} {getattr(self, name)}", "a probability")
        above_0 = ("short", "long", "gap", "cycle")
        for name in (*(f"{law}_{part}" for law in above_0 for part in ("shape", "scale")), "gap_factor"):
            require(getattr(self, name) > 0.0, f"{name} {getattr(self, name)}", "above 0")
        sizes = self.size_low, self.size_middle, self.size_high
        require(0.0 <= sizes[0] <= sizes[1] <= sizes[2] <= 24.0, f"sizes 2^{sizes}", "0 <= low <= middle <= high <= 24")

    def on(self, nodes: int) -> JobType:
        """Return the job type for a machine of `nodes`: `size_middle` and `size_high` shift by log2(nodes / 128)."""
        shift = math.log2(nodes / PUBLISHED_NODES)
        middle = max(self.size_low, self.size_middle + shift)
        return replace(self, size_middle=middle, size_high=max(middle, self.size_high + shift))


@dataclass(frozen=True)
class Lublin99Parameters:
    """Constants of the model. The defaults are the published values."""

    interactive: JobType = JobType(
        *(0.1541, 0.625, 1.0, 3.0, 5.5, 0.705, 3.8351, 0.6605, 7.073, 0.6856, -0.0118, 0.9156),
        *(6.5510, 0.6621, 0.9797, 8.9186, 3.6680),
    )
    batch: JobType = JobType(
        *(0.2927, 0.6686, 1.2, 5.0, 7.0, 0.875, 6.57, 0.823, 639.1, 0.0156, -0.003, 0.6986),
        *(6.0415, 0.8531, 1.0519, 6.1271, 5.2740),
    )
    untyped: JobType = JobType(
        *(0.244, 0.576, 0.8, 4.5, 7.0, 0.86, 4.2, 0.94, 312.0, 0.03, -0.0054, 0.78),
        *(10.2303, 0.4871, 1.0225, 8.1737, 3.9631),
    )
    longest_run: float = 12.0
    """Largest ln(run time / s): 45 hours."""
    longest_gap: float = 13.0
    """Largest ln(gap / s) at rush hour."""

    def __post_init__(self) -> None:
        """Raise InputError if the mean of a distribution exceeds its cut, because rejection sampling would not end."""
        for name, jobs in (("interactive", self.interactive), ("batch", self.batch), ("untyped", self.untyped)):
            run = max(jobs.short_shape * jobs.short_scale, jobs.long_shape * jobs.long_scale)
            gap = jobs.gap_shape * jobs.gap_factor * jobs.gap_scale
            require(run <= self.longest_run <= 25.0, f"longest_run {self.longest_run}", f"{run:.3g} ({name}) to 25")
            require(gap <= self.longest_gap <= 25.0, f"longest_gap {self.longest_gap}", f"{gap:.3g} ({name}) to 25")


class Lublin99Draws(NamedTuple):
    """Draws of the model, one value per job. Times are in s; `kind` is 1 for batch jobs, else 0."""

    submit: IntArray
    nodes: IntArray
    run: IntArray
    kind: IntArray


def lublin99(
    jobs: int,
    *,
    nodes: int | None = None,
    cores_per_node: int = 1,
    seed: int = 0,
    parameters: Lublin99Parameters | None = None,
    untyped: bool = False,
    exact: bool = False,
) -> Workload:
    """Draw rigid interactive and batch jobs (Lublin and Feitelson 2003).

    The jobs have no time limits; `tsafrir05.with_estimates` adds them.

    Jobs are interactive or batch, as `queue` states, or all of one type. Each type has its own constants and arrival
    process. Time 0 is a midnight. The published sizes are for 128 nodes. On a machine of P nodes, `size_middle` and
    `size_high` shift by log2(P / 128). The authors define this rule for untyped and batch jobs; tracebed also applies
    it to interactive jobs. Sizes are at most P, which matters if P is not a power of two.

    Args:
        untyped: draw jobs of one type, in place of interactive and batch jobs.
        exact: draw from drand48 in the order of the reference program, to verify the model (slow).
    """
    require_sizes(jobs, nodes, cores_per_node)
    p, machine = parameters or Lublin99Parameters(), nodes or PUBLISHED_NODES
    types = {"untyped": p.untyped} if untyped else {"interactive": p.interactive, "batch": p.batch}
    draw = draw_exactly if exact else draw_fast
    draws = draw(jobs, [of.on(machine) for of in types.values()], seed, p)
    columns = {
        "job_id": pd.Series(np.arange(1, jobs + 1)).astype("str"),
        "submit_time": draws.submit.astype(np.float64),
        "run_time": draws.run.astype(np.float64),
        "nodes": np.minimum(draws.nodes, machine),
        "cores_per_node": np.full(jobs, cores_per_node),
    }
    counts = {"jobs": jobs}
    if not untyped:
        columns["queue"] = pd.Series(np.array(QUEUES)[draws.kind]).astype("str")
        counts |= {f"{name} jobs": int((draws.kind == kind).sum()) for kind, name in enumerate(QUEUES)}
    constants = {f"{name}.{key}": value for name, of in types.items() for key, value in asdict(of).items()}
    cuts = {"longest_run": p.longest_run, "longest_gap": p.longest_gap}
    step = Step(
        "lublin99",
        {"jobs": jobs, "nodes": machine, "untyped": untyped, "exact": exact, **constants, **cuts},
        counts,
        seed,
    )
    system = System(machine, cores_per_node, "Lublin and Feitelson")
    return Workload(pd.DataFrame(columns), Provenance(system=system, steps=(step,)))


def cycle(of: JobType) -> FloatArray:
    """Return the weights of the half hours of the day from midnight, shape (48,), with mean 1."""
    edges = np.arange(CYCLE_BEGINS + 0.5, CYCLE_BEGINS + BUCKETS + 1)
    mass = np.diff(gammainc(of.cycle_shape, edges / of.cycle_scale))
    require(
        mass.min() > 0.0, f"a daily cycle of gamma({of.cycle_shape}, {of.cycle_scale})", "above 0 in each half hour"
    )
    return np.roll(mass / mass.mean(), CYCLE_BEGINS)


# -- array operations


def draw_fast(jobs: int, types: list[JobType], seed: int, p: Lublin99Parameters) -> Lublin99Draws:
    """Draw all jobs in array operations from a numpy Generator.

    The types arrive independently. The jobs are the earliest arrivals of all types; interactive jobs precede batch
    jobs of the same second.
    """
    rng = np.random.default_rng(seed)
    clocks = np.concatenate([arrivals(jobs, of, rng, p) for of in types])
    first = np.argsort(clocks, kind="stable")[:jobs]
    kind = first // jobs
    nodes, run = np.empty(jobs, dtype=np.int64), np.empty(jobs, dtype=np.int64)
    for number, of in enumerate(types):
        mine = kind == number
        nodes[mine] = sizes(int(mine.sum()), of, rng)
        run[mine] = run_times(nodes[mine], of, rng, p)
    return Lublin99Draws(clocks[first], nodes, run, kind)


def arrivals(jobs: int, of: JobType, rng: np.random.Generator, p: Lublin99Parameters) -> IntArray:
    """Return the submit times (s since midnight) of the first `jobs` jobs of a type.

    As in the reference, submit times advance in whole seconds while the position in the daily cycle is exact. The
    cycle therefore gets ahead of the submit times by half a second per job on average.
    """
    gaps = np.exp(_below(p.longest_gap, of.gap_shape * of.gap_factor, of.gap_scale, rng, jobs))
    passed = np.diff(instants(gaps, cycle(of)), prepend=0.0)
    return np.cumsum(np.floor(passed).astype(np.int64))


def instants(gaps: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the arrival times (s since midnight) of jobs whose gaps at rush hour are `gaps` (s).

    A gap ends when the weights of the buckets since the previous arrival sum up to its length.
    """
    ends = np.cumsum(weights)
    day, points = np.divmod(np.cumsum(gaps / BUCKET), ends[-1])
    bucket = np.minimum(np.searchsorted(ends, points), BUCKETS - 1)
    part = (points - ends[bucket]) / weights[bucket] + 1.0
    times: FloatArray = BUCKET * (BUCKETS * day + bucket + part)
    return times


def sizes(jobs: int, of: JobType, rng: np.random.Generator) -> IntArray:
    """Draw the sizes (nodes) of `jobs` jobs."""
    u, v, w = rng.random((3, jobs))
    low = np.where(v <= of.small, of.size_low, of.size_middle)
    high = np.where(v <= of.small, of.size_middle, of.size_high)
    x = low + w * (high - low)
    x = np.where(u <= of.serial + of.power_of_two, np.floor(x + 0.5), x)
    return np.where(u <= of.serial, 1.0, np.floor(np.exp2(x) + 0.5)).astype(np.int64)


def run_times(nodes: IntArray, of: JobType, rng: np.random.Generator, p: Lublin99Parameters) -> IntArray:
    """Draw the run times (s) of jobs of these sizes."""
    short = np.clip(of.short_slope * nodes + of.short_offset, 0.0, 1.0)
    logs = np.full(len(nodes), np.inf)
    while len(again := np.flatnonzero(logs > p.longest_run)):
        first = rng.random(len(again)) <= short[again]
        shape = np.where(first, of.short_shape, of.long_shape)
        scale = np.where(first, of.short_scale, of.long_scale)
        logs[again] = rng.gamma(shape, scale)
    run: IntArray = np.floor(np.exp(logs)).astype(np.int64)
    return run


def _below(limit: float, shape: float, scale: float, rng: np.random.Generator, count: int) -> FloatArray:
    """Draw `count` gamma variates of at most `limit`, by rejection."""
    values = rng.gamma(shape, scale, count)
    while len(again := np.flatnonzero(values > limit)):
        values[again] = rng.gamma(shape, scale, len(again))
    return values


# -- the order of the reference program


def draw_exactly(jobs: int, types: list[JobType], seed: int, p: Lublin99Parameters) -> Lublin99Draws:
    """Draw the jobs one by one from drand48, each number in the order of the reference program."""
    random = Drand48(seed)
    clocks = [_clock(random, of, p) for of in (types[0], types[-1])]
    batch, interactive = next(clocks[1]), next(clocks[0])
    rows = []
    for _ in range(jobs):
        kind = int(len(types) > 1 and batch < interactive)
        of = types[kind]
        submit = batch if kind else interactive
        if kind:
            batch = next(clocks[1])
        else:
            interactive = next(clocks[0])
        nodes = _size(random, of)
        rows.append((submit, nodes, _run_time(random, nodes, of, p), kind))
    return Lublin99Draws(*map(np.array, zip(*rows, strict=True)))


def _clock(random: Drand48, of: JobType, p: Lublin99Parameters) -> Iterator[int]:
    """Yield the submit times of a type, each drawn only when needed, as in the reference program."""
    weights = cycle(of).tolist()
    bucket, points, part, clock = 0, 0.0, 0.0, 0
    while True:
        gap = math.inf
        while gap > p.longest_gap:
            gap = random.gamma(of.gap_shape * of.gap_factor, of.gap_scale)
        points += math.exp(gap) / BUCKET
        passed = 0.0
        while points > weights[bucket]:
            points -= weights[bucket]
            bucket = (bucket + 1) % BUCKETS
            passed += BUCKET
        before, part = part, points / weights[bucket]
        clock = math.floor(clock + passed + BUCKET * (part - before))
        yield clock


def _size(random: Drand48, of: JobType) -> int:
    u = random.uniform()
    if u <= of.serial:
        return 1
    small = random.uniform() <= of.small
    low, high = (of.size_low, of.size_middle) if small else (of.size_middle, of.size_high)
    x = low + random.uniform() * (high - low)
    if u <= of.serial + of.power_of_two:
        x = math.floor(x + 0.5)
    return math.floor(math.pow(2.0, x) + 0.5)


def _run_time(random: Drand48, nodes: int, of: JobType, p: Lublin99Parameters) -> int:
    short = min(1.0, max(0.0, of.short_slope * nodes + of.short_offset))
    log = math.inf
    while log > p.longest_run:
        if random.uniform() <= short:
            log = random.gamma(of.short_shape, of.short_scale)
        else:
            log = random.gamma(of.long_shape, of.long_scale)
    return math.floor(math.exp(log))
