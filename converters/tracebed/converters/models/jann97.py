"""J. Jann et al., "Modeling of workload in MPPs", JSSPP 1997: rigid jobs fitted to a log.

The log is split into size classes. Within a class, the times between arrivals and the run times each follow a
hyper-Erlang distribution of common order, whose first three moments equal those of the log. The paper's parameter
tables were not available, so the model needs a log. Two details are not from the paper: small classes are merged, and
sizes within a class are drawn from the log.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from tracebed.converters.formats.reading import read_workload
from tracebed.converters.models import require, require_sizes
from tracebed.converters.workload import FloatArray, IntArray, Provenance, Step, System, Workload
from tracebed.ground.errors import InputError, tolerate


@dataclass(frozen=True)
class Jann97Parameters:
    """Constants of the fit."""

    order_max: int = 100
    """Largest order of a hyper-Erlang distribution. Orders up to 7 occur in the paper."""
    fewest: int = 50
    """Fewest jobs of a size class. Smaller classes are merged, because three moments of a few values are unreliable."""

    def __post_init__(self) -> None:
        require(1 <= self.order_max <= 100_000, f"order_max {self.order_max}", "from 1 to 100,000")
        require(self.fewest >= 4, f"fewest {self.fewest}", "at least 4")


class HyperErlang(NamedTuple):
    """Mixture of two Erlang distributions: mean `order * scale1` (s) with probability `p`, else `order * scale2`."""

    order: int
    p: float
    scale1: float
    scale2: float

    def moment(self, k: int) -> float:
        """Return E[t^k] = n (n + 1) ... (n + k - 1) (p scale1^k + (1 - p) scale2^k), where n is the order."""
        rising = float(np.prod(self.order + np.arange(k, dtype=np.float64)))
        return rising * (self.p * self.scale1**k + (1.0 - self.p) * self.scale2**k)

    def draw(self, rng: np.random.Generator, size: int) -> FloatArray:
        """Draw `size` values."""
        scale = np.where(rng.random(size) < self.p, self.scale1, self.scale2)
        return rng.gamma(self.order, scale)


class SizeClass(NamedTuple):
    """The jobs of a log with `low` to `high` cores: their number, distributions, and sizes with the share of each."""

    low: int
    high: int
    jobs: int
    gap: HyperErlang
    run: HyperErlang
    nodes: IntArray
    cores_per_node: IntArray
    shares: FloatArray


def jann97(
    jobs: int,
    *,
    log: Path,
    nodes: int | None = None,
    cores_per_node: int | None = None,
    seed: int = 0,
    parameters: Jann97Parameters | None = None,
) -> Workload:
    """Draw rigid jobs from a model that is fitted to a log (Jann et al. 1997).

    Args:
        log: log or workload to fit, in any format.
        nodes: nodes of the machine, by default those of the log; no job is larger.
        cores_per_node: cores of each node, by default those of the log. Jobs request as many cores per node as in the
            log, at most these.

    Raises:
        InputError: an argument is out of range, or the log cannot be read or fitted.
    """
    parameters = parameters or Jann97Parameters()
    require_sizes(jobs, nodes, 1 if cores_per_node is None else cores_per_node)
    source = read_workload(log)
    known = source.provenance.system
    system = System(nodes or known.nodes, cores_per_node or known.cores_per_node, f"Jann et al. 1997, {log.name}")
    classes = fit(source, parameters, where=str(log))
    table = draw(jobs, classes, seed)
    for name, most in (("nodes", system.nodes), ("cores_per_node", system.cores_per_node)):
        table[name] = table[name].clip(upper=most)
    step = Step(
        "jann97",
        {"jobs": jobs, "log": log.name, "nodes": system.nodes, **asdict(parameters)},
        {"jobs": jobs, "size classes": len(classes), "jobs fitted": sum(c.jobs for c in classes)},
        seed,
    )
    return Workload(table, Provenance(system=system, sources=source.provenance.sources, steps=(step,)))


def fit(
    log: Workload, parameters: Jann97Parameters | None = None, *, where: str | None = None
) -> tuple[SizeClass, ...]:
    """Return the size classes of a log, smallest first, with distributions that have the moments of the log.

    The classes are 1, 2, 3-4, 5-8, 9-16, ... cores. Jobs without a run time or a size are ignored. Raises InputError if
    there are too few jobs, or all jobs of a class have the same submit time.
    """
    p = parameters or Jann97Parameters()
    runnable, counts = log.runnable()
    tolerate(counts, where=where)
    if len(runnable) < p.fewest:
        raise InputError(
            f"{len(runnable)} jobs to fit are too few", where=where, hint=f"at least {p.fewest}, or lower `fewest`"
        )
    nodes, cores = runnable.ints("nodes"), runnable.ints("cores_per_node")
    submit, run = runnable.floats("submit_time"), runnable.floats("run_time")
    which = _joined(np.ceil(np.log2(nodes * cores)).astype(np.int64), p.fewest)
    classes, misfits = [], 0
    for index in range(which.max() + 1):
        members = np.flatnonzero(which == index)
        size = nodes[members] * cores[members]
        if np.ptp(submit[members]) == 0.0:
            what = f"all {len(members):,} jobs of {size.min()} to {size.max()} cores have the same submit time"
            raise InputError(
                what, where=where, hint="times between arrivals cannot be fitted; remove these jobs from the log"
            )
        gap, gap_fits = _fitted(moments(np.diff(submit[members])), p.order_max)
        law, law_fits = _fitted(moments(run[members]), p.order_max)
        misfits += (not gap_fits) + (not law_fits)
        shapes, times = np.unique(np.stack([nodes[members], cores[members]]), axis=1, return_counts=True)
        share: FloatArray = times / len(members)
        classes.append(SizeClass(int(size.min()), int(size.max()), len(members), gap, law, shapes[0], shapes[1], share))
    tolerate({f"distributions of order above {p.order_max}, where only the mean was fitted": misfits}, where=where)
    return tuple(classes)


def draw(jobs: int, classes: Sequence[SizeClass], seed: int) -> pd.DataFrame:
    """Return the table of the first `jobs` jobs of all classes, each a separate renewal process from time 0."""
    rng = np.random.default_rng(seed)
    submit, which = _merged(jobs, [c.gap for c in classes], rng)
    run, nodes, cores = np.empty(jobs), np.empty(jobs, dtype=np.int64), np.empty(jobs, dtype=np.int64)
    for index, c in enumerate(classes):
        members = np.flatnonzero(which == index)
        shape = rng.choice(len(c.shares), len(members), p=c.shares)
        run[members] = c.run.draw(rng, len(members))
        nodes[members], cores[members] = c.nodes[shape], c.cores_per_node[shape]
    return pd.DataFrame(
        {
            "job_id": pd.Series(np.arange(1, jobs + 1)).astype("str"),
            "submit_time": submit,
            "run_time": run,
            "nodes": nodes,
            "cores_per_node": cores,
        }
    )


def moments(values: FloatArray) -> tuple[float, float, float]:
    """Return the first three moments about zero."""
    m1, m2, m3 = (float(np.mean(values**k)) for k in (1, 2, 3))
    return m1, m2, m3


LEAST_MEAN = 1e-90
"""Smallest mean to fit. The third moment of smaller values underflows."""


def hyper_erlang(m1: float, m2: float, m3: float, order_max: int) -> HyperErlang | None:
    """Return the hyper-Erlang distribution of lowest common order with these moments, or None above `order_max`.

    Jann et al. use the inversion of Johnson and Taaffe (1989). In units of the mean, order n is sufficient if
    x = m3 - (n+2)/(n+1) m2^2 and y = m2 - (n+1)/n are positive. The two scales are the roots of a s^2 + b s + c.
    """
    if m1 < LEAST_MEAN:
        return None
    m2, m3 = m2 / m1**2, m3 / m1**3
    order = np.arange(1.0, order_max + 1)
    enough = np.flatnonzero((m3 - (order + 2) / (order + 1) * m2**2 > 1e-9) & (m2 - (order + 1) / order > 1e-9))
    if not len(enough):
        return None
    n = float(order[enough[0]])
    x, y = m3 - (n + 2) / (n + 1) * m2**2, m2 - (n + 1) / n
    a, b, c = n * (n + 2) * y, -(n * x + n * (n + 2) / (n + 1) * y**2 + (n + 2) * y), x
    large = (-b + math.sqrt(max(0.0, b * b - 4 * a * c))) / (2 * a)
    small = c / (a * large)  # the other root; -b - sqrt(...) would cancel
    return HyperErlang(int(n), (1 / n - small) / (large - small), large * m1, small * m1)


def _fitted(m: tuple[float, float, float], order_max: int) -> tuple[HyperErlang, bool]:
    """Return the distribution with the moments `m` and True, or an Erlang distribution with their mean and False."""
    law = hyper_erlang(*m, order_max) if m[0] > 0.0 else None
    if law is not None:
        return law, True
    variance = m[1] - m[0] ** 2
    order = order_max if variance * order_max <= m[0] ** 2 else max(1, round(m[0] ** 2 / variance))
    return HyperErlang(order, 1.0, m[0] / order, 0.0), False


def _joined(band: IntArray, fewest: int) -> IntArray:
    """Return the class of each job, 0, 1, ...; bands with fewer than `fewest` jobs are merged with a neighbor."""
    names, counts = np.unique(band, return_counts=True)
    classes: list[int] = []
    current, held = -1, 0
    for count in counts.tolist():
        if current < 0 or min(held, count) >= fewest:
            current, held = current + 1, 0
        held += count
        classes.append(current)
    return np.array(classes)[np.searchsorted(names, band)]


def _merged(jobs: int, gaps: Sequence[HyperErlang], rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Return the first `jobs` arrivals of several renewal processes, sorted, and the process of each arrival."""
    rate = np.array([1.0 / gap.moment(1) for gap in gaps])
    share = rate / rate.sum()
    arrivals = [np.cumsum(g.draw(rng, int(1.1 * jobs * s) + 10)) for g, s in zip(gaps, share, strict=True)]
    while True:
        until = np.partition(np.concatenate(arrivals), jobs - 1)[jobs - 1]
        early = [i for i, times in enumerate(arrivals) if times[-1] < until]
        if not early:
            break
        for i in early:
            more = np.cumsum(gaps[i].draw(rng, len(arrivals[i])))
            arrivals[i] = np.concatenate([arrivals[i], arrivals[i][-1] + more])
    submit = np.concatenate(arrivals)
    which = np.repeat(np.arange(len(gaps)), [len(times) for times in arrivals])
    first = np.argsort(submit, kind="stable")[:jobs]
    return submit[first], which[first]
