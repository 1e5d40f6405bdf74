"""Which application stands for which job: the mix of the SD-Policy paper (its table 2).

The shares are met exactly and the classes of size and time are kept, but where the paper prints "small", "med" and
"high" it does not say what they are: by default, the thirds of the workload's own sizes and run times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from tracebed.converters.workload import FloatArray, IntArray, Step, Workload
from tracebed.errors import InputError, tolerate

CLASSES = ("small", "medium", "high")
UP_TO_MEDIUM, ALL = CLASSES[:2], CLASSES


@dataclass(frozen=True)
class Application:
    """One application: its share of the jobs, and the classes of size and run time that it comes in."""

    name: str
    share: float
    sizes: tuple[str, ...] = ALL
    times: tuple[str, ...] = ALL


APPLICATIONS = (
    Application("pils", 0.305, ALL, UP_TO_MEDIUM),
    Application("stream", 0.308, ALL, UP_TO_MEDIUM),
    Application("coreneuron", 0.355),
    Application("nest", 0.026),
    Application("alya", 0.006, ("small",), ("high",)),
)
"""Table 2 of the SD-Policy paper."""


@dataclass(frozen=True)
class Bounds:
    """Where the classes end: values up to `small` are small, up to `medium` medium, above high."""

    small: float
    medium: float

    def __post_init__(self) -> None:
        """Raise InputError where the bounds are not in order."""
        if not self.small <= self.medium:
            raise InputError(f"classes end at {self.small} and {self.medium}", hint="the first must not be above")

    @classmethod
    def thirds(cls, values: FloatArray) -> Bounds:
        """Return the bounds of the lower, middle and upper third of `values`, NaN aside; equal ones stay together."""
        known = values[np.isfinite(values)]
        if not len(known):
            raise InputError("no job has a known size and run time", hint="give the bounds of the classes")
        small, medium = np.quantile(known, [1 / 3, 2 / 3], method="inverted_cdf")
        return cls(float(small), float(medium))

    def of(self, values: FloatArray) -> IntArray:
        """Return the class of each value, an index into `CLASSES`; -1 for NaN."""
        found = np.searchsorted([self.small, self.medium], values)
        return np.where(np.isfinite(values), found, -1)


def with_applications(
    workload: Workload,
    *,
    seed: int = 0,
    applications: Sequence[Application] = APPLICATIONS,
    sizes: Bounds | None = None,
    times: Bounds | None = None,
) -> Workload:
    """Give each job an application: `application` its name, `application_parameters` `size=CLASS time=CLASS`.

    Of n jobs each application gets n times its share, rounded by largest remainders. The most demanding draws its
    jobs first, at random from those of its classes; where they are too few it takes what the others leave, and a
    warning counts these.

    Args:
        workload: any workload.
        seed: of the numpy Generator.
        applications: which, with their shares (of their sum) and classes.
        sizes: bounds of the size classes, nodes; thirds of the workload by default.
        times: bounds of the time classes, s of run time; thirds of the workload by default.

    Raises:
        InputError: there is no application, a share is below 0 or all are 0, or there is nothing to take thirds of.
    """
    nodes, run = workload.floats("nodes"), workload.floats("run_time")
    nodes = np.where(nodes > 0, nodes, np.nan)
    sizes, times = sizes or Bounds.thirds(nodes), times or Bounds.thirds(run)
    size, time = sizes.of(nodes), times.of(run)
    counts = exact_counts(len(workload), [application.share for application in applications])
    chosen, misfits = _dealt(size, time, applications, counts, np.random.default_rng(seed))
    tolerate({"jobs that got an application of another class, for want of jobs of its own": misfits})
    words = np.array([*CLASSES, "unknown"], dtype=object)
    names = np.array([application.name for application in applications], dtype=object)
    table = workload.table.assign(
        application=pd.Series(names[chosen]).astype("str"),
        application_parameters=pd.Series("size=" + words[size] + " time=" + words[time]).astype("str"),
    )
    step = Step(
        "applications",
        {"sizes": asdict(sizes), "times": asdict(times), "shares": {a.name: a.share for a in applications}},
        {f"jobs of {a.name}": count for a, count in zip(applications, counts, strict=True)}
        | {"jobs out of class": misfits},
        seed,
    )
    return workload.with_step(step, table)


def exact_counts(jobs: int, shares: Sequence[float]) -> list[int]:
    """Split `jobs` in proportion to `shares`: rounded down, then one more for each of the largest remainders.

    Raises:
        InputError: there is no share, one is below 0, or their sum is 0.
    """
    total = sum(shares)
    if not shares or not all(0 <= share < math.inf for share in shares) or total == 0:
        raise InputError(f"shares {', '.join(map(str, shares))}", hint="give shares of at least 0, not all of them 0")
    wanted = np.array(shares) / total * jobs
    counts = np.floor(wanted + 1e-9).astype(np.int64)
    largest = np.argsort(counts - wanted, kind="stable")[: jobs - counts.sum()]
    counts[largest] += 1
    return [int(count) for count in counts]


def _dealt(
    size: IntArray,
    time: IntArray,
    applications: Sequence[Application],
    counts: Sequence[int],
    rng: np.random.Generator,
) -> tuple[IntArray, int]:
    """Return the index of each job's application, and how many jobs are not of its classes."""
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
