"""The application that runs as each job of a workload: the application mix of the SD-Policy paper (table 2).

The shares are exact, and each application keeps its size and time classes. The paper does not define the classes
"small", "med" and "high". By default, they are the thirds of the sizes and run times of the workload.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from tracebed.converters.workload import FloatArray, IntArray, Step, Workload
from tracebed.ground.errors import InputError, tolerate

CLASSES = ("small", "medium", "high")
UP_TO_MEDIUM, ALL = CLASSES[:2], CLASSES


@dataclass(frozen=True)
class ApplicationMix:
    """An application: its share of the jobs, and the size and run time classes of its jobs."""

    name: str
    share: float
    sizes: tuple[str, ...] = ALL
    times: tuple[str, ...] = ALL


APPLICATIONS = (
    ApplicationMix("pils", 0.305, ALL, UP_TO_MEDIUM),
    ApplicationMix("stream", 0.308, ALL, UP_TO_MEDIUM),
    ApplicationMix("coreneuron", 0.355),
    ApplicationMix("nest", 0.026),
    ApplicationMix("alya", 0.006, ("small",), ("high",)),
)
"""Table 2 of the SD-Policy paper."""


PARALLEL_SHARES: Mapping[str, float] = {
    "pils": 1.0,
    "stream": 0.0,
    **dict.fromkeys(("coreneuron", "nest", "alya"), 0.9),
}
"""Share of the run time on whole nodes in which more cores help (`with_parallel_shares`).

PILS computes in the cache. STREAM is as fast on two cores of a node as on all (DROM paper, section 6). The share of the
simulations is fitted: with it, two of them that share the nodes of the DROM paper end 2.5 % earlier (section 6.2).
"""


@dataclass(frozen=True)
class Bounds:
    """Upper bounds of the classes `small` and `medium`. Greater values are in the class `high`."""

    small: float
    medium: float

    def __post_init__(self) -> None:
        if not self.small <= self.medium:
            raise InputError(
                f"class bounds {self.small} and {self.medium} are invalid", hint="give them in ascending order"
            )

    @classmethod
    def thirds(cls, values: FloatArray) -> Bounds:
        """Return the bounds of the thirds of `values` without NaN. Equal values share a class."""
        known = values[np.isfinite(values)]
        if not len(known):
            raise InputError("no job has a known size and run time", hint="give the bounds of the classes")
        small, medium = np.quantile(known, [1 / 3, 2 / 3], method="inverted_cdf")
        return cls(float(small), float(medium))

    def of(self, values: FloatArray) -> IntArray:
        """Return the class of each value as an index into `CLASSES`, or -1 for NaN."""
        classes = np.searchsorted([self.small, self.medium], values)
        return np.where(np.isfinite(values), classes, -1)


def with_applications(
    workload: Workload,
    *,
    seed: int = 0,
    applications: Sequence[ApplicationMix] = APPLICATIONS,
    sizes: Bounds | None = None,
    times: Bounds | None = None,
) -> Workload:
    """Set `application` of each job, without parameters.

    Each application gets its share of the jobs (relative to the sum of the shares), rounded by largest remainders. Its
    jobs are drawn at random from its classes of sizes (nodes) and run times (s), by default the thirds of the workload.
    The application with the fewest classes draws first. If the classes have too few jobs, the application also gets
    jobs of other classes, and a warning counts them. Raises InputError if the shares are invalid, or thirds are
    undefined because no job has a known size and run time.
    """
    nodes, run = workload.floats("nodes"), workload.floats("run_time")
    nodes = np.where(nodes > 0, nodes, np.nan)
    sizes, times = sizes or Bounds.thirds(nodes), times or Bounds.thirds(run)
    size, time = sizes.of(nodes), times.of(run)
    counts = exact_counts(len(workload), [application.share for application in applications])
    chosen, misfits = _assigned(size, time, applications, counts, np.random.default_rng(seed))
    tolerate(
        {"jobs with an application of another class, because the application's classes have too few jobs": misfits}
    )
    names = np.array([application.name for application in applications], dtype=object)
    table = workload.table.assign(application=pd.Series(names[chosen]).astype("str"), application_parameters="")
    step = Step(
        "applications",
        {"sizes": asdict(sizes), "times": asdict(times), "shares": {a.name: a.share for a in applications}},
        {f"jobs of {a.name}": count for a, count in zip(applications, counts, strict=True)}
        | {"jobs out of class": misfits},
        seed,
    )
    return workload.with_step(step, table)


def with_parallel_shares(workload: Workload, shares: Mapping[str, float]) -> Workload:
    """Set the speedup of jobs by Amdahl's law, such that more cores of a node help in a share of the run time only.

    In the rest of the run time on the requested nodes, more cores do not help: one core works, or the memory of the
    node is as fast as it can be. On half of the cores, a job with the share p is 1 / (1 + p) as fast. `shares` maps
    applications to shares from 0 to 1; jobs of other applications do not change.
    """
    for name, share in shares.items():
        if not 0.0 <= share <= 1.0:
            raise InputError(f"the share of {name} is {share}", hint="0 to 1")
    applications, nodes = workload.texts("application"), workload.ints("nodes")
    chosen = applications.isin(list(shares)).to_numpy() & (nodes > 0)
    own = applications[chosen].map(shares).to_numpy(dtype=np.float64)
    parallel = own * nodes[chosen]
    fractions = parallel / (1.0 - own + parallel)
    columns = {name: workload.column(name).astype(object) for name in ("speedup", "speedup_parameters")}
    columns["speedup"][chosen] = "amdahl"
    columns["speedup_parameters"][chosen] = [repr(float(fraction)) for fraction in fractions]
    step = Step("parallel-shares", {"shares": dict(shares)}, {"jobs": int(chosen.sum())})
    return workload.with_step(step, workload.table.assign(**{k: v.astype("str") for k, v in columns.items()}))


def exact_counts(jobs: int, shares: Sequence[float]) -> list[int]:
    """Split `jobs` in proportion to `shares`, rounded by largest remainders. Raises InputError if one is invalid."""
    total = sum(shares)
    if not shares or not all(0 <= share < math.inf for share in shares) or total == 0:
        raise InputError(
            f"shares {', '.join(map(str, shares))} are invalid", hint="give shares of at least 0 and a positive sum"
        )
    wanted = np.array(shares) / total * jobs
    counts = np.floor(wanted + 1e-9).astype(np.int64)
    largest = np.argsort(counts - wanted, kind="stable")[: jobs - counts.sum()]
    counts[largest] += 1
    return [int(count) for count in counts]


def _assigned(
    size: IntArray,
    time: IntArray,
    applications: Sequence[ApplicationMix],
    counts: Sequence[int],
    rng: np.random.Generator,
) -> tuple[IntArray, int]:
    """Return the index of each job's application, and the number of jobs outside the application's classes."""
    chosen = np.full(len(size), -1)
    short: list[int] = []
    demanding = sorted(range(len(counts)), key=lambda i: len(applications[i].sizes) * len(applications[i].times))
    for index in demanding:
        application = applications[index]
        fits = np.isin(size, [CLASSES.index(name) for name in application.sizes])
        fits &= np.isin(time, [CLASSES.index(name) for name in application.times])
        candidates = np.flatnonzero(fits & (chosen < 0))
        taken = rng.permutation(candidates)[: counts[index]]
        chosen[taken] = index
        short += [index] * (counts[index] - len(taken))
    chosen[rng.permutation(np.flatnonzero(chosen < 0))] = short
    return chosen, len(short)
