"""Which sizes a job could run on: W. Cirne and F. Berman, "A model for moldable supercomputer jobs", IPDPS 2001,
over the speedup of Downey 1997.

The laws are the published ones. How a rigid job becomes a moldable one (`with_moldability`) is inferred from them:
the authors' program for that was not to be had.
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
from tracebed.converters.models.downey import useful
from tracebed.converters.workload import FloatArray, IntArray, Kind, Step, Workload

TRIES = 100
"""How often a job is drawn before it stays rigid."""


class Constraint(enum.IntEnum):
    """Which sizes a job's program can take."""

    RIGID = 0
    """One alone."""
    POWER_OF_TWO = 1
    SQUARE = 2
    EVEN = 3
    MULTIPLE_OF_4 = 4
    NONE = 5


@dataclass(frozen=True)
class Parameters:
    """The constants of the model, the published ones by default; uniform-log laws are those of `cirne`."""

    least_slope: float = 0.0692
    """Of the uniform-log law of the smallest size, at least 1."""
    least_offset: float = 0.6279
    rigid: float = 0.02
    """Probabilities of the constraints; what is left to 1 has none."""
    power_of_two: float = 0.10
    square: float = 0.02
    even: float = 0.08
    multiple_of_4: float = 0.08
    requests_slope: float = 0.1918
    """Of the uniform-log law of how many sizes a user names, at least 2."""
    requests_offset: float = 0.1876
    sigma_mean: float = 1.209
    """Of the normal law of the variance of parallelism, at least 0."""
    sigma_deviation: float = 1.132
    average_slope: float = 0.07468
    """Of the uniform-log law of the average parallelism, at least 1, where the smallest size is 1."""
    average_slope_rise: float = 0.009548
    """What the slope gains with each doubling of the smallest size; so too the offset."""
    average_offset: float = -0.009198
    average_offset_rise: float = -0.01877

    def __post_init__(self) -> None:
        """Raise InputError where a constant is out of its range."""
        for name in ("least_slope", "requests_slope", "average_slope"):
            require(getattr(self, name) > 0.0, f"{name} {getattr(self, name)}", "above 0")
        require(self.average_slope_rise >= 0.0, f"average_slope_rise {self.average_slope_rise}", "at least 0")
        require(self.sigma_deviation >= 0.0, f"sigma_deviation {self.sigma_deviation}", "at least 0")
        shares = self.constraints
        require(min(shares) >= 0.0 and sum(shares) <= 1.0, f"constraints {shares}", "probabilities of sum 1 at most")

    @property
    def constraints(self) -> tuple[float, ...]:
        """Probabilities of the constraints but the last, in their order."""
        return self.rigid, self.power_of_two, self.square, self.even, self.multiple_of_4


class Draws(NamedTuple):
    """What the model draws, a value a job."""

    least: IntArray
    """The smallest size (nodes)."""
    constraint: IntArray
    requests: IntArray
    """How many sizes the user names."""
    sigma: FloatArray
    average: FloatArray

    @property
    def most(self) -> FloatArray:
        """The most nodes that are of use."""
        return useful(self.average, self.sigma)


def with_moldability(
    workload: Workload,
    seed: int = 0,
    *,
    kind: Kind = Kind.MOLDABLE,
    share: float = 1.0,
    nodes: int | None = None,
    parameters: Parameters | None = None,
) -> Workload:
    """Turn a share of the rigid jobs into moldable or malleable ones, with the speedup of Downey.

    For each job the model is drawn until the job's size n lies between the smallest and the most useful size (at
    most the machine) and meets the constraint; after 100 times the job stays rigid, as it does where the model
    says so. A moldable job names n and other sizes by the model, in `extra_sizes`, and its range is theirs; a
    malleable one takes every size from the smallest to the most useful one. Run times and limits stay.

    Args:
        workload: any workload; jobs that are not rigid, or whose size is not known, stay as they are.
        seed: of the numpy Generator, whose draws are none of those of a model with the same seed.
        kind: MOLDABLE or MALLEABLE.
        share: of the rigid jobs, 0 to 1; chosen as `malleability.to_malleable` does.
        nodes: of the machine; the workload's system by default.
        parameters: the model's constants.

    Raises:
        InputError: an argument is out of its range, or the size of the machine is not known.
    """
    require(kind in (Kind.MOLDABLE, Kind.MALLEABLE), f"kind {kind!r}", "moldable or malleable")
    p, machine = parameters or Parameters(), machine_of(workload, nodes)
    rng = np.random.default_rng([*b"moldability", seed])
    taken = rigid_share(workload, share, seed)
    size = workload.ints("nodes")[taken]
    draws, suits = draw_suitable(size, machine, rng, p)
    fit = suits & (draws.constraint != Constraint.RIGID)
    rows, size, draws = taken[fit], size[fit], Draws(*(values[fit] for values in draws))
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
        changes["extra_sizes"] = _spelt(named)
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


def draw(jobs: int, rng: np.random.Generator, p: Parameters) -> Draws:
    """Draw the model for `jobs` jobs."""
    u, v, w, x = rng.random((4, jobs))
    least = np.maximum(1.0, np.ceil(np.exp2((u - p.least_offset) / p.least_slope)))
    constraint = np.searchsorted(np.cumsum(p.constraints), v, side="right")
    requests = np.maximum(2.0, np.ceil(np.exp2((w - p.requests_offset) / p.requests_slope)))
    slope = p.average_slope + p.average_slope_rise * np.log2(least)
    offset = p.average_offset + p.average_offset_rise * np.log2(least)
    return Draws(
        least.astype(np.int64),
        constraint,
        np.where(constraint == Constraint.RIGID, 1, requests).astype(np.int64),
        np.maximum(0.0, rng.normal(p.sigma_mean, p.sigma_deviation, jobs)),
        np.maximum(1.0, np.exp2((x - offset) / slope)),
    )


def draw_suitable(
    sizes: IntArray, machine: int, rng: np.random.Generator, p: Parameters
) -> tuple[Draws, npt.NDArray[np.bool_]]:
    """Draw until the model allows each job its size, at most `TRIES` times; return which it allows, too."""
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


def _allows(draws: Draws, sizes: IntArray, machine: int) -> npt.NDArray[np.bool_]:
    place = places(sizes, draws.constraint)
    within = (draws.least <= sizes) & (sizes <= np.minimum(draws.most, machine))
    return np.asarray(within & (place == np.floor(place)))


# -- the sizes that a user names


def places(sizes: npt.ArrayLike, constraint: IntArray) -> FloatArray:
    """Return where sizes stand in the row of those that a constraint allows; a size between them, in between."""
    n = np.asarray(sizes, dtype=np.float64)
    return _choose(constraint, np.log2(n), np.sqrt(n), n / 2, n / 4, n)


def sizes_at(places: IntArray, constraint: IntArray) -> IntArray:
    """Return the sizes at places of such rows: the inverse of `places`."""
    i = places.astype(np.float64)
    return _choose(constraint, np.exp2(np.minimum(i, 62)), i * i, 2 * i, 4 * i, i).astype(np.int64)


def _choose(constraint: IntArray, powers: Any, squares: Any, even: Any, fours: Any, all_: Any) -> FloatArray:
    return np.asarray(np.choose(constraint, [all_, powers, squares, even, fours, all_]))


def candidates(draws: Draws, most: IntArray) -> tuple[IntArray, IntArray]:
    """Return the first place, and the number, of the sizes from `draws.least` to `most`; at least one, beyond it."""
    first = np.ceil(places(draws.least, draws.constraint))
    last = np.maximum(first, np.floor(places(most, draws.constraint)))
    return first.astype(np.int64), (last - first + 1).astype(np.int64)


def sizes_with(sizes: IntArray, draws: Draws, most: IntArray, rng: np.random.Generator) -> IntArray:
    """Return the sizes that users name, their own among them: shape (jobs, most requests), 0 beyond the last."""
    first, count = candidates(draws, most)
    own = places(sizes, draws.constraint).astype(np.int64) - first
    others = subsets(count - 1, np.minimum(draws.requests, count) - 1, rng)
    row, column = np.nonzero(others >= 0)
    place = others[row, column]
    named = np.zeros_like(others)
    named[row, column] = sizes_at(first[row] + place + (place >= own[row]), draws.constraint[row])
    return np.column_stack([sizes, named])


def _spelt(named: IntArray) -> npt.NDArray[np.object_]:
    """Return the sizes of each row that are not 0, ascending, separated by spaces."""
    named = np.sort(named, axis=1)
    ends = np.cumsum((named > 0).sum(axis=1))
    lists = pa.ListArray.from_arrays(np.append(0, ends), pa.array(named[named > 0]).cast(pa.string()))
    return np.asarray(pc.binary_join(lists, " ").to_numpy(zero_copy_only=False))


def subsets(counts: IntArray, wanted: IntArray, rng: np.random.Generator) -> IntArray:
    """Draw `wanted` of the numbers 0 ... `counts` - 1 for each row, all subsets alike (Floyd's algorithm).

    Returns:
        Shape (rows, greatest wanted), -1 beyond the last.
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
