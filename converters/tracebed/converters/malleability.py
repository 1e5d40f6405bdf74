"""From rigid jobs to malleable ones, by Amdahl's law and thresholds of efficiency.

The rule of current studies on malleable scheduling (ElastiSim's malleable variants of public logs): a job was
submitted at a size that suits it, so its parallel fraction is the one with which it is still efficient there.
From the fraction follow the sizes up to which more nodes are of use.

Comparisons are exact: a size at which the efficiency equals a threshold is not above it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from fractions import Fraction

import numpy as np
import pandas as pd

from tracebed.converters.workload import FloatArray, IntArray, Kind, Step, Workload
from tracebed.errors import InputError, tolerate

FRACTIONS = (0.95, 0.955, 0.96, 0.965, 0.97, 0.975, 0.98, 0.985, 0.99, 0.995, 0.999)
"""Parallel fractions that a job may have, in rising order."""


@dataclass(frozen=True)
class Thresholds:
    """Which sizes a malleable job takes."""

    preferred: float = 0.8
    """The parallel fraction is the smallest with an efficiency above this at the preferred size."""
    most: float = 0.5
    """The greatest size is the last with an efficiency above this, at least the preferred size."""
    least: float = 0.2
    """The smallest size is this share of the preferred one, rounded down, at least 1."""

    def __post_init__(self) -> None:
        """Raise InputError where a threshold is none."""
        for name, value in asdict(self).items():
            if not 0.0 < value <= 1.0:
                raise InputError(f"threshold {name} {value} is out of range", hint="above 0, at most 1")


def amdahl_speedup(nodes: FloatArray | float, fraction: FloatArray | float) -> FloatArray | float:
    """Return S(n) = 1 / ((1 - f) + f / n) for a parallel fraction f (Amdahl 1967)."""
    return 1.0 / ((1.0 - fraction) + fraction / nodes)


def efficiency(nodes: FloatArray | float, fraction: FloatArray | float) -> FloatArray | float:
    """Return S(n) / n by Amdahl's law."""
    return amdahl_speedup(nodes, fraction) / nodes


def reach(fraction: float, threshold: float) -> int:
    """Return the most nodes on which the efficiency by Amdahl's law is above `threshold`; 0 if on none.

    1 / (n (1 - f) + f) > t where n < (1/t - f) / (1 - f), computed in the decimal digits of f and t.
    """
    f, t = Fraction(str(fraction)), Fraction(str(threshold))
    return max(0, math.ceil((1 / t - f) / (1 - f)) - 1)


def malleable_sizes(preferred: IntArray, machine: int, thresholds: Thresholds) -> tuple[FloatArray, IntArray, IntArray]:
    """Return parallel fractions, smallest and greatest sizes of jobs that prefer `preferred` nodes.

    Args:
        preferred: nodes, at least 1, shape (jobs,).
        machine: nodes of the machine, which no greatest size exceeds unless the preferred one does.
        thresholds: of efficiency.
    """
    suits_up_to = np.array([reach(fraction, thresholds.preferred) for fraction in FRACTIONS])
    useful_up_to = np.array([reach(fraction, thresholds.most) for fraction in FRACTIONS])
    chosen = np.minimum(np.searchsorted(suits_up_to, preferred), len(FRACTIONS) - 1)
    least = np.maximum(1, np.floor(thresholds.least * preferred + 1e-9)).astype(np.int64)
    most = np.maximum(preferred, np.minimum(useful_up_to[chosen], machine))
    return np.array(FRACTIONS)[chosen], least, most


def machine_of(workload: Workload, nodes: int | None = None) -> int:
    """Return `nodes`, or those of the workload's system. Raises InputError where neither is known."""
    machine = nodes or workload.provenance.system.nodes
    if machine is None:
        raise InputError("the size of the workload's system is not known", hint="say it: --nodes N")
    return machine


def rigid_share(workload: Workload, share: float, seed: int = 0) -> IntArray:
    """Return the rows of a share of the rigid jobs of known size: the first of a permutation drawn by `seed`.

    Raises:
        InputError: `share` is no share.
    """
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
) -> Workload:
    """Turn a share of the rigid jobs into malleable ones.

    Exactly round(share * n) of the n rigid jobs of known size are taken, the first of a permutation drawn by
    `seed`: with the same seed, a greater share adds jobs and removes none.

    Args:
        workload: any workload; jobs that are not rigid, or whose size is not known, stay as they are.
        share: of the rigid jobs, 0 to 1.
        seed: of the numpy Generator.
        nodes: of the machine; the workload's system by default.
        thresholds: of efficiency.

    Raises:
        InputError: `share` is no share, or the size of the machine is not known.
    """
    thresholds = thresholds or Thresholds()
    machine, size = machine_of(workload, nodes), workload.ints("nodes")
    taken = rigid_share(workload, share, seed)
    tolerate(
        {f"malleable jobs that ask for more than the machine's {machine:,} nodes": int((size[taken] > machine).sum())}
    )
    fractions, least, most = malleable_sizes(size[taken], machine, thresholds)
    changes: dict[str, object] = {
        "kind": Kind.MALLEABLE.value,
        "nodes_min": least,
        "nodes_max": most,
        "nodes_pref": size[taken],
        "speedup": "amdahl",
        "speedup_parameters": [f"{fraction:g}" for fraction in fractions],
    }
    columns = {name: workload.column(name).copy() for name in changes}
    for name, values in changes.items():
        columns[name][taken] = values
    step = Step(
        "malleable",
        {"share": share, "nodes": machine, **asdict(thresholds)},
        {"rigid jobs": len(rigid_share(workload, 1.0)), "jobs made malleable": len(taken)},
        seed,
    )
    return workload.with_step(step, workload.table.assign(**{k: pd.Series(v) for k, v in columns.items()}))
