"""The possible sizes of jobs: W. Cirne and F. Berman, "A model for moldable supercomputer jobs", IPDPS 2001, with the
speedup model of Downey 1997.

The distributions are the published ones. The conversion of a rigid job to a moldable job (`with_moldability`) is
inferred from them, because the authors' conversion program was not available.
"""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracebed.converters.malleability import machine_of, rigid_share
from tracebed.converters.models import require
from tracebed.converters.speedup import downey_useful_nodes
from tracebed.converters.workload import FloatArray, IntArray, Kind, Step, Workload

TRIES = 100
"""Largest number of draws for a job. After these draws the job stays rigid."""


class Constraint(enum.IntEnum):
    """Constraint on the sizes of a job."""

    RIGID = 0
    """Only the requested size."""
    POWER_OF_TWO = 1
    SQUARE = 2
    EVEN = 3
    MULTIPLE_OF_4 = 4
    NONE = 5


@dataclass(frozen=True)
class MoldabilityParameters:
    """Constants of the model. The defaults are the published values. `cirne` defines the uniform-log distribution."""

    least_slope: float = 0.0692
    """Uniform-log distribution of the smallest size (nodes), at least 1."""
    least_offset: float = 0.6279
    rigid: float = 0.02
    """Probabilities of the constraints. The remaining jobs have no constraint."""
    power_of_two: float = 0.10
    square: float = 0.02
    even: float = 0.08
    multiple_of_4: float = 0.08
    requests_slope: float = 0.1918
    """Uniform-log distribution of the number of sizes in a request, at least 2."""
    requests_offset: float = 0.1876
    sigma_mean: float = 1.209
    """Normal distribution of the variance of parallelism, at least 0."""
    sigma_deviation: float = 1.132
    average_slope: float = 0.07468
    """Uniform-log distribution of the average parallelism, at least 1, for jobs with a smallest size of 1."""
    average_slope_rise: float = 0.009548
    """Increase of the slope (`average_offset_rise`: of the offset) per doubling of the smallest size."""
    average_offset: float = -0.009198
    average_offset_rise: float = -0.01877

    def __post_init__(self) -> None:
        for name in ("least_slope", "requests_slope", "average_slope"):
            require(getattr(self, name) > 0.0, f"{name} {getattr(self, name)}", "above 0")
        require(self.average_slope_rise >= 0.0, f"average_slope_rise {self.average_slope_rise}", "at least 0")
        require(self.sigma_deviation >= 0.0, f"sigma_deviation {self.sigma_deviation}", "at least 0")
        shares = self.constraints
        require(
            min(shares) >= 0.0 and sum(shares) <= 1.0, f"constraints {shares}", "probabilities with a sum of at most 1"
        )

    @property
    def constraints(self) -> tuple[float, ...]:
        """Probabilities of the constraints except `NONE`, in the order of `Constraint`."""
        return self.rigid, self.power_of_two, self.square, self.even, self.multiple_of_4


class MoldabilityDraws(NamedTuple):
    """Draws of the model, one value per job."""

    least: IntArray
    """Smallest size, nodes."""
    constraint: IntArray
    requests: IntArray
    """Number of sizes in the request."""
    sigma: FloatArray
    average: FloatArray

    @property
    def most(self) -> FloatArray:
        """Number of nodes beyond which the speedup no longer grows."""
        return downey_useful_nodes(self.average, self.sigma)


def with_moldability(
    workload: Workload,
    seed: int = 0,
    *,
    kind: Kind = Kind.MOLDABLE,
    share: float = 1.0,
    nodes: int | None = None,
    parameters: MoldabilityParameters | None = None,
) -> Workload:
    """Convert a share of the rigid jobs to moldable or malleable jobs with Downey's speedup.

    The model is drawn for each job until the job's size n satisfies the constraint and lies between the smallest and
    the largest useful size (at most the machine). After 100 draws, or if the model draws a rigid job, the job stays
    rigid. A moldable job requests n and other sizes drawn from the model; `extra_sizes` lists these sizes, and
    `nodes_min` and `nodes_max` are their range. A malleable job can run on every size from the smallest to the largest
    useful one. Run times and time limits do not change. The share is selected as by `malleability.to_malleable`; the
    draws are independent of those of a model with the same seed.
    """
    require(kind in (Kind.MOLDABLE, Kind.MALLEABLE), f"kind {kind!r}", "moldable or malleable")
    p, machine = parameters or MoldabilityParameters(), machine_of(workload, nodes)
    rng = np.random.default_rng([*b"moldability", seed])
    taken = rigid_share(workload, share, seed)
    size = workload.ints("nodes")[taken]
    draws, suits = draw_suitable(size, machine, rng, p)
    fit = suits & (draws.constraint != Constraint.RIGID)
    rows, size, draws = taken[fit], size[fit], MoldabilityDraws(*(values[fit] for values in draws))
    most = np.minimum(draws.most, machine).astype(np.int64)
    pairs = zip(draws.average.tolist(), draws.sigma.tolist(), strict=True)
    changes: dict[str, Any] = {
        "kind": kind.value,
        "nodes_min": draws.least,
        "nodes_max": most,
        "nodes_pref": size,
        "speedup": "downey",
        "speedup_parameters": [f"{average:.9g} {sigma:.9g}" for average, sigma in pairs],
    }
    columns = {name: workload.column(name).copy() for name in changes}
    if kind is Kind.MOLDABLE:
        named = sizes_with(size, draws, most, rng)
        changes |= {"nodes_min": np.where(named > 0, named, machine).min(axis=1), "nodes_max": named.max(axis=1)}
        changes["extra_sizes"] = _sizes_text(named)
        columns["extra_sizes"] = np.full(len(workload), "", dtype=object)
    for name, values in changes.items():
        columns[name][rows] = values
    step = Step(
        "moldability",
        {"kind": kind.value, "share": share, "nodes": machine, **asdict(p)},
        {
            f"jobs made {kind.value}": len(rows),
            "rigid by nature": int((suits & ~fit).sum()),
            f"rigid after {TRIES} draws": int((~suits).sum()),
        },
        seed,
    )
    return workload.with_step(step, workload.table.assign(**columns))


def draw(jobs: int, rng: np.random.Generator, p: MoldabilityParameters) -> MoldabilityDraws:
    """Draw constraints, sizes and speedups for `jobs` jobs."""
    u, v, w, x = rng.random((4, jobs))
    least = np.maximum(1.0, np.ceil(np.exp2((u - p.least_offset) / p.least_slope)))
    constraint = np.searchsorted(np.cumsum(p.constraints), v, side="right")
    requests = np.maximum(2.0, np.ceil(np.exp2((w - p.requests_offset) / p.requests_slope)))
    slope = p.average_slope + p.average_slope_rise * np.log2(least)
    offset = p.average_offset + p.average_offset_rise * np.log2(least)
    return MoldabilityDraws(
        least.astype(np.int64),
        constraint,
        np.where(constraint == Constraint.RIGID, 1, requests).astype(np.int64),
        np.maximum(0.0, rng.normal(p.sigma_mean, p.sigma_deviation, jobs)),
        np.maximum(1.0, np.exp2((x - offset) / slope)),
    )


def draw_suitable(
    sizes: IntArray, machine: int, rng: np.random.Generator, p: MoldabilityParameters
) -> tuple[MoldabilityDraws, npt.NDArray[np.bool_]]:
    """Draw until the draws of each job allow its size, at most `TRIES` times. Return the draws and the jobs allowed."""
    draws = draw(len(sizes), rng, p)
    suits = _allows(draws, sizes, machine)
    for _ in range(TRIES - 1):
        again = np.flatnonzero(~suits)
        if not len(again):
            break
        new = draw(len(again), rng, p)
        for values, fresh in zip(draws, new, strict=True):
            values[again] = fresh
        suits[again] = _allows(new, sizes[again], machine)
    return draws, suits


def _allows(draws: MoldabilityDraws, sizes: IntArray, machine: int) -> npt.NDArray[np.bool_]:
    place = positions(sizes, draws.constraint)
    within = (draws.least <= sizes) & (sizes <= np.minimum(draws.most, machine))
    return np.asarray(within & (place == np.floor(place)))


# -- the sizes of a moldable request


def positions(sizes: npt.ArrayLike, constraint: IntArray) -> FloatArray:
    """Return the positions of sizes in the sequence of sizes allowed by a constraint; other sizes get a fraction."""
    n = np.asarray(sizes, dtype=np.float64)
    return _choose(constraint, np.log2(n), np.sqrt(n), n / 2, n / 4, n)


def sizes_at(places: IntArray, constraint: IntArray) -> IntArray:
    """Return the sizes at these positions, the inverse of `positions`."""
    i = places.astype(np.float64)
    return _choose(constraint, np.exp2(np.minimum(i, 62)), i * i, 2 * i, 4 * i, i).astype(np.int64)


def _choose(constraint: IntArray, powers: Any, squares: Any, even: Any, fours: Any, all_: Any) -> FloatArray:
    return np.asarray(np.choose(constraint, [all_, powers, squares, even, fours, all_]))


def candidates(draws: MoldabilityDraws, most: IntArray) -> tuple[IntArray, IntArray]:
    """Return the first position and the number of the allowed sizes from `draws.least` to `most`, at least one size."""
    first = np.ceil(positions(draws.least, draws.constraint))
    last = np.maximum(first, np.floor(positions(most, draws.constraint)))
    return first.astype(np.int64), (last - first + 1).astype(np.int64)


def sizes_with(sizes: IntArray, draws: MoldabilityDraws, most: IntArray, rng: np.random.Generator) -> IntArray:
    """Draw the sizes of each request, including its own size: shape (jobs, most sizes), padded with 0."""
    first, count = candidates(draws, most)
    own = positions(sizes, draws.constraint).astype(np.int64) - first
    others = subsets(count - 1, np.minimum(draws.requests, count) - 1, rng)
    row, column = np.nonzero(others >= 0)
    place = others[row, column]
    named = np.zeros_like(others)
    named[row, column] = sizes_at(first[row] + place + (place >= own[row]), draws.constraint[row])
    return np.column_stack([sizes, named])


def _sizes_text(named: IntArray) -> npt.NDArray[np.object_]:
    """Return the nonzero sizes of each row as text, ascending and separated by spaces."""
    named = np.sort(named, axis=1)
    ends = np.cumsum((named > 0).sum(axis=1))
    lists = pa.ListArray.from_arrays(np.append(0, ends), pa.array(named[named > 0]).cast(pa.string()))
    return np.asarray(pc.binary_join(lists, " ").to_numpy(zero_copy_only=False))


def subsets(counts: IntArray, wanted: IntArray, rng: np.random.Generator) -> IntArray:
    """Draw for each row `wanted` of the numbers 0 ... `counts` - 1, all subsets equally likely (Floyd's algorithm).

    The result has shape (rows, largest `wanted`) and is padded with -1.
    """
    width = int(wanted.max(initial=0))
    chosen = np.full((len(counts), width), -1, dtype=np.int64)
    for i in range(width):
        row = np.flatnonzero(i < wanted)
        top = counts[row] - wanted[row] + i
        drawn = np.floor(rng.random(len(row)) * (top + 1)).astype(np.int64)
        again = (chosen[row, :i] == drawn[:, None]).any(axis=1)
        chosen[row, i] = np.where(again, top, drawn)
    return chosen
