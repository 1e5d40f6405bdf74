"""Conversion of rigid jobs to malleable or evolving jobs: by Amdahl's law and efficiency thresholds, or by doubling.

The rule is that of current studies on malleable scheduling (ElastiSim's malleable variants of public logs). It assumes
that a job is efficient at its requested size. The smallest parallel fraction with this efficiency is the job's
fraction, from which its largest useful size follows.

Comparisons are exact: an efficiency that equals a threshold is not above the threshold.

The older rule of Eberius et al. (PMBS 2023) has no efficiencies: a job runs on half or twice its nodes, in half or
twice the time (`doublings`).

An evolving job has these sizes too, but asks for them itself (`drawn_requests`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracebed.converters.requests import Request, format_requests
from tracebed.converters.workload import FloatArray, IntArray, Kind, Step, Workload
from tracebed.ground.errors import InputError, tolerate

FRACTIONS = (0.95, 0.955, 0.96, 0.965, 0.97, 0.975, 0.98, 0.985, 0.99, 0.995, 0.999)
"""Possible parallel fractions of jobs, ascending."""


PHASES = 3
"""Phases of an evolving job."""
MOST_PHASES = 1000
"""Largest number of phases of an evolving job."""
MOST_DOUBLINGS = 30
"""Largest number of doublings of a malleable job."""


@dataclass(frozen=True)
class Thresholds:
    """Thresholds that determine the sizes of a malleable job, or the number of doublings in their place."""

    preferred: float = 0.8
    """The parallel fraction is the smallest with an efficiency above this threshold at the preferred size."""
    most: float = 0.5
    """The largest size is the last with an efficiency above this threshold, at least the preferred size."""
    least: float = 0.2
    """The smallest size is this share of the preferred one, rounded down, at least 1."""
    doublings: int = 0
    """Above 0, the preferred size is halved this many times (rounded down, at least 1) and doubled this many times (at
    most the machine), the speedup is linear, and the thresholds do not apply."""

    def __post_init__(self) -> None:
        for name in ("preferred", "most", "least"):
            if not 0.0 < getattr(self, name) <= 1.0:
                what = f"threshold {name} {getattr(self, name)} is out of range"
                raise InputError(what, hint="above 0, at most 1")
        if not 0 <= self.doublings <= MOST_DOUBLINGS:
            raise InputError(f"{self.doublings} doublings are out of range", hint=f"0 to {MOST_DOUBLINGS}")


def largest_efficient_size(fraction: float, threshold: float) -> int:
    """Return the largest number of nodes with an efficiency above `threshold` by Amdahl's law, or 0.

    1 / (n (1 - f) + f) > t holds for n < (1/t - f) / (1 - f), computed exactly from the decimal digits of f and t.
    """
    f, t = Fraction(str(fraction)), Fraction(str(threshold))
    return max(0, math.ceil((1 / t - f) / (1 - f)) - 1)


def malleable_sizes(
    preferred: IntArray, machine: int | IntArray, thresholds: Thresholds
) -> tuple[FloatArray, IntArray, IntArray]:
    """Return the parallel fractions, smallest and largest sizes of jobs that prefer `preferred` nodes, shape (jobs,).

    A largest size exceeds the nodes of the machine, or of the part of it for each job, only if the preferred size does.
    """
    if thresholds.doublings:
        factor = 2**thresholds.doublings
        most = np.maximum(preferred, np.minimum(preferred * factor, machine))
        return np.ones(len(preferred)), np.maximum(1, preferred // factor), most  # Amdahl's f = 1 is linear
    suits_up_to = np.array([largest_efficient_size(fraction, thresholds.preferred) for fraction in FRACTIONS])
    useful_up_to = np.array([largest_efficient_size(fraction, thresholds.most) for fraction in FRACTIONS])
    chosen = np.minimum(np.searchsorted(suits_up_to, preferred), len(FRACTIONS) - 1)
    least = np.maximum(1, np.floor(thresholds.least * preferred + 1e-9)).astype(np.int64)
    most = np.maximum(preferred, np.minimum(useful_up_to[chosen], machine))
    return np.array(FRACTIONS)[chosen], least, most


def drawn_requests(least: IntArray, preferred: IntArray, most: IntArray, phases: int, seed: int) -> list[str]:
    """Return the requests of evolving jobs, as texts for the column `requests`; sizes are in nodes, shape (jobs,).

    After a quarter of each of the equal phases, a job forks: it asks for a number of nodes that is uniform from its
    preferred to its largest size. After three quarters it joins: uniform from its smallest to its preferred size. These
    rules are tracebed's own; no study prints such a distribution. The requests of a job depend on its number and `seed`
    only.
    """
    texts = []
    for job, sizes in enumerate(zip(least.tolist(), preferred.tolist(), most.tolist(), strict=True)):
        low, middle, high = sizes
        rng = np.random.default_rng([seed, 3, job])
        forks = rng.integers(middle, high, phases, endpoint=True).tolist()
        joins = rng.integers(low, middle, phases, endpoint=True).tolist()
        wanted = [nodes for pair in zip(forks, joins, strict=True) for nodes in pair]
        shares = [(quarter + 0.5) / (2 * phases) for quarter in range(2 * phases)]
        texts.append(format_requests(tuple(map(Request, (round(share, 6) for share in shares), wanted))))
    return texts


def machine_of(workload: Workload, nodes: int | None = None) -> int:
    """Return `nodes` or the nodes of the workload's system. Raise InputError if neither is known."""
    machine = nodes or workload.provenance.system.nodes
    if machine is None:
        raise InputError("the size of the workload's system is unknown", hint="set it with --nodes N")
    return machine


def rigid_share(workload: Workload, share: float, seed: int = 0) -> IntArray:
    """Return the rows of a share of the rigid jobs of known size: the first of a permutation drawn with `seed`."""
    if not 0.0 <= share <= 1.0:
        raise InputError(f"share {share} is out of range", hint="0 to 1")
    kind, size = workload.column("kind").astype(object), workload.ints("nodes")
    rigid = np.flatnonzero((kind == Kind.RIGID) & (size > 0))
    count = math.floor(share * len(rigid) + 0.5)
    return np.random.default_rng(seed).permutation(rigid)[:count]


def to_malleable(
    workload: Workload,
    share: float,
    seed: int = 0,
    *,
    nodes: int | None = None,
    thresholds: Thresholds | None = None,
    kind: Kind = Kind.MALLEABLE,
    phases: int = PHASES,
) -> Workload:
    """Convert a share of the rigid jobs to malleable jobs, or to evolving jobs that ask for nodes in each of `phases`.

    Exactly round(share * n) of the n rigid jobs of known size are converted: the first of a permutation drawn with
    `seed`. With the same seed, a larger share converts the same jobs and more. Raises InputError if `share` or `phases`
    is out of range, or the nodes of the machine are neither given nor known.
    """
    if not 1 <= phases <= MOST_PHASES:
        raise InputError(f"{phases} phases are out of range", hint=f"1 to {MOST_PHASES}")
    thresholds = thresholds or Thresholds()
    machine, size = machine_of(workload, nodes), workload.ints("nodes")
    taken = rigid_share(workload, share, seed)
    tolerate(
        {f"malleable jobs that request more than the machine's {machine:,} nodes": int((size[taken] > machine).sum())}
    )
    fractions, least, most = malleable_sizes(size[taken], machine, thresholds)
    changes: dict[str, object] = {
        "kind": kind.value,
        "nodes_min": least,
        "nodes_max": most,
        "nodes_pref": size[taken],
        "speedup": "amdahl",
        "speedup_parameters": [f"{fraction:g}" for fraction in fractions],
    }
    evolving = kind is Kind.EVOLVING
    if evolving:
        changes["requests"] = drawn_requests(least, size[taken], most, phases, seed)
    columns = {name: workload.column(name).copy() for name in changes}
    for name, values in changes.items():
        columns[name][taken] = values
    step = Step(
        "evolving" if evolving else "malleable",
        {"share": share, "nodes": machine, **asdict(thresholds), **({"phases": phases} if evolving else {})},
        {"rigid jobs": len(rigid_share(workload, 1.0)), f"jobs made {kind.value}": len(taken)},
        seed,
    )
    return workload.with_step(step, workload.columns.assign(**columns))


def with_application(workload: Workload, rows: IntArray, application: str) -> Workload:
    """Return the workload with another application of the jobs `rows`, without parameters."""
    if not application or len(application.split()) != 1:
        raise InputError(f"the application {application!r} is not a name", hint="give a name without spaces")
    names, parameters = (workload.column(name).astype(object) for name in ("application", "application_parameters"))
    names[rows], parameters[rows] = application, ""
    step = Step("application", {"application": application}, {"jobs": len(rows)})
    return workload.with_step(step, workload.columns.assign(application=names, application_parameters=parameters))


class Sizes(NamedTuple):
    """The sizes of a malleable job, nodes."""

    least: int
    preferred: int
    most: int


def gain_slopes(times: Mapping[int, float]) -> dict[int, float]:
    """Return the gain slope (t_(i-1) - t_i) / t_0 of each size except the smallest, for measured times, nodes -> s."""
    if not times or min(times) < 1 or not all(0 < time < float("inf") for time in times.values()):
        raise InputError(f"measured times {dict(times)} are invalid", hint="give nodes -> seconds, all above 0")
    sizes = sorted(times)
    first = times[sizes[0]]
    return {large: (times[small] - times[large]) / first for small, large in pairwise(sizes)}


def sizes_by_gain_slope(times: Mapping[int, float], *, least: float = 0.75, preferred: float = 0.25) -> Sizes:
    """Return the sizes of a job from its measured run times, nodes -> s.

    The least size is the first with a gain slope above `least`. The preferred size is the last with a gain slope above
    `preferred`. The largest size is the last with a gain slope above 0. A size without such a slope is the smallest
    measured size; the preferred and the largest size are at least the least size.
    """
    slopes = gain_slopes(times)
    smallest = min(times)
    low = next((size for size, slope in slopes.items() if slope > least), smallest)
    pref, high = (max([low, *(size for size, slope in slopes.items() if slope > bound)]) for bound in (preferred, 0.0))
    return Sizes(low, min(pref, high), high)
