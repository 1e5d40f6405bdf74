"""Which jobs of a log become malleable, at which sizes and speeds, and what a resize costs.

The sizes are those of `converters.malleability` (Amdahl's law and thresholds of efficiency, the rule of current
studies). That a job is efficient at its requested size is an assumption, and so is its speedup at other sizes. So there
are two models with the same sizes, and an answer is a range over both:

- `amdahl`: the smallest parallel fraction with an efficiency above 0.8 at the requested size;
- `downey`: Downey (1997) without variance of the parallelism: linear up to A, constant beyond. A is such that the
  speedup ends to grow, at 2 A - 1, where Amdahl's efficiency falls to 0.5: both are half efficient at the same size.

With a variance of 1 or more, Downey's model is Amdahl's law until the speedup ends to grow. With a variance between 0
and 1, the speed of a job at another size, relative to its requested one, lies between those of the two models.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from tracebed.converters.malleability import Thresholds, largest_efficient_size, malleable_sizes
from tracebed.converters.workload import BoolArray, FloatArray, IntArray, Kind, Step, Workload
from tracebed.ground import bounds
from tracebed.ground.errors import InputError
from tracebed.ground.registry import one_of
from tracebed.operators.whatif.conditions import jobs_where
from tracebed.orchestrator.scheduling.names import RESIZE_POLICIES
from tracebed.orchestrator.scheduling.policies.slurm import RELEASES
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.slurm.machine import SlurmCluster
from tracebed.slurm.resize_layer import LOSES, SHRINKS
from tracebed.slurm.simulation.start_conditions import HET_JOB
from tracebed.validation.significance import LEAST

Model = Literal["amdahl", "downey"]
MODELS: tuple[Model, ...] = get_args(Model)
SEEDS = tuple(range(LEAST))
"""As many as an interval needs."""
MOST_CELLS = 200
INTERVAL_S = 10
"""Time between two passes of the layer, s."""
MEASURED = Overheads(expand_s=0.416, reconfiguration_s=0.047, release_s=0.376)
"""Medians of 3,560 resizes on Slurm 22.05.8 (`docs/testbeds/slurm-policies.md`, Stages of the resizes): grant and merge
of an expander; start of the steps; decision of a shrink until the nodes are idle."""
MEASURED_WORDS = "measured on Slurm 22.05.8 with emulated jobs, which move no state"
COSTS = ("expand_s", "expand_rank_s", "reconfiguration_s", "release_s")
"""The overheads that are costs of resizes. Those of launches and ends would change the cluster as it was."""
HINT = "write share=0.3,policy=dmr,seed=1..6; lists are 0.1+0.3, 1..6 and 0..1/0.25"
RANGE = re.compile(r"(.+?)\.\.([^/]+)(?:/(.+))?")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Malleable:
    """What becomes malleable. Several shares or policies are a sweep."""

    shares: tuple[float, ...]
    """Shares of the jobs that can be malleable."""
    policies: tuple[str, ...] = ("dmr",)
    """Policies of the layer."""
    seeds: tuple[int, ...] = SEEDS
    """Each draws the jobs that become malleable."""
    where: str = ""
    """Conditions that the jobs satisfy; empty: all."""
    interval_s: int = INTERVAL_S
    release: float = RELEASES[0]
    """Release of Slurm, also of the cluster as it was: what Slurm lets a layer do depends on it."""

    def __post_init__(self) -> None:
        """Raise InputError if a value is out of range, or appears twice."""
        lists: dict[str, tuple[Any, ...]] = {"share": self.shares, "policy": self.policies, "seed": self.seeds}
        for name, values in lists.items():
            if not values or len(set(values)) < len(values):
                raise InputError(f"malleable: {name} has {'a value twice' if values else 'no value'}", hint=HINT)
        for share in self.shares:
            bounds.check("malleable share", share, 0.0, 1.0)
        if not any(self.shares):
            raise InputError("malleable: no share is above 0", hint=HINT)
        for policy in self.policies:
            one_of("malleable policy", policy, RESIZE_POLICIES)
        for seed in self.seeds:
            bounds.check("malleable seed", seed, 0, 2**32 - 1)
        bounds.check("malleable interval", self.interval_s, 1, int(bounds.MAX_SECONDS), whole=True)
        if self.release not in RELEASES:
            known = ", ".join(f"{release:.2f}" for release in RELEASES)
            raise InputError(
                f"malleable: the rules of release {self.release:g} are unknown", hint=f"use one of {known}"
            )
        if len(self.shares) * len(self.policies) > MOST_CELLS:
            raise InputError(f"malleable: more than {MOST_CELLS} shares x policies", hint="give fewer values")

    @classmethod
    def parse(cls, text: str) -> Malleable:
        """Return what a text such as `share=0..1/0.25,policy=dmr+pref,seed=1..6,where=nodes>=4` describes.

        Raises:
            InputError: the text has another form, or a value is out of range.
        """
        given: dict[str, Any] = {}
        for part in text.split(","):
            name, equals, value = (each.strip() for each in part.partition("="))
            if name not in PARTS or not (equals and value):
                raise InputError(f"malleable: {part!r} is not one of {', '.join(PARTS)} with a value", hint=HINT)
            key, parse = PARTS[name]
            if key in given:
                raise InputError(f"malleable: {name} is given twice", hint=HINT)
            given[key] = parse(value)
        if "shares" not in given:
            raise InputError("malleable: the share is missing", hint=HINT)
        return cls(**given)

    @property
    def cells(self) -> list[tuple[str, float]]:
        """The policies and the shares above 0, without which there is nothing to simulate."""
        return [(policy, share) for policy in self.policies for share in self.shares if share]

    def simulations(self, members: int) -> int:
        """Return the number of simulations beside the first `members` of the log as it was."""
        cells = len(self.cells) if self.sweep else 2  # a single one without the costs of resizes, too
        return cells * len(MODELS) * len(self.pairs) + sum(draw >= members for _, draw in self.pairs)

    @property
    def draws(self) -> int:
        """The number of draws of each seed: together as many as an interval needs."""
        return max(1, -(-LEAST // len(self.seeds)))

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Each seed with each of its draws, which are the numbers of members of the ensemble.

        The first draw of a seed is the seed. No draw appears twice.
        """
        unused = (draw for draw in itertools.count() if draw not in self.seeds)
        return [(seed, draw) for seed in self.seeds for draw in (seed, *itertools.islice(unused, self.draws - 1))]

    @property
    def sweep(self) -> bool:
        """Whether there are several shares or policies."""
        return len(self.shares) * len(self.policies) > 1


def _values(text: str, number: Callable[[str], Value], step: Callable[[str, str, str], list[Value]]) -> list[Value]:
    """Return the values of a list such as `1+3`, `1..6` or `0..1/0.25`."""
    found = list[Value]()
    for part in text.split("+"):
        between = RANGE.fullmatch(part)
        found += step(*between.groups("")) if between else [number(part)]
    return found


def _shares(text: str) -> tuple[float, ...]:
    def between(first: str, last: str, step: str) -> list[float]:
        if not step:
            raise InputError(f"malleable: {first}..{last} has no step", hint="write share=0..1/0.25")
        low, high, by = _number(first), _number(last), _number(step)
        if not (by > 0 and (high - low) / by <= MOST_CELLS):
            raise InputError(f"malleable: {first}..{last}/{step} has too small a step", hint="write share=0..1/0.25")
        return [round(low + at * by, 9) for at in range(int((high - low) / by + 1e-9) + 1)]

    return tuple(_values(text, _number, between))


def _seeds(text: str) -> tuple[int, ...]:
    def between(first: str, last: str, step: str) -> list[int]:
        low, high, by = _whole(first), _whole(last), _whole(step or "1")
        if by < 1 or high - low > 10_000:
            raise InputError(f"malleable: {first}..{last} is no range of seeds", hint="write seed=1..6")
        return [*range(low, high + 1, by)]

    return tuple(_values(text, _whole, between))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"malleable: {text!r} is not a number", hint=HINT) from None


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise InputError(f"malleable: {text!r} is not a whole number", hint=HINT)
    return int(text)


PARTS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "share": ("shares", _shares),
    "policy": ("policies", lambda text: tuple(text.split("+"))),
    "seed": ("seeds", _seeds),
    "where": ("where", str),
    "interval": ("interval_s", _whole),
    "release": ("release", _number),
}
"""Name in a text -> field, and the function that parses its value."""


@dataclass(frozen=True)
class Candidates:
    """The jobs that can be malleable, and their sizes.

    Attributes:
        rows: their rows in the workload, shape (candidates,).
        least: smallest number of nodes, shape (candidates,).
        most: largest number of nodes.
        fraction: parallel fraction of Amdahl's law.
        parallelism: average parallelism A of Downey's model.
        notes: how many jobs cannot be malleable, and why, a sentence each.
    """

    rows: IntArray
    least: IntArray
    most: IntArray
    fraction: FloatArray
    parallelism: FloatArray
    notes: tuple[str, ...]

    def check(self, shares: Sequence[float]) -> None:
        """Raise InputError if a share above 0 is no job."""
        for share in shares:
            if share and not self.count(share):
                what = f"the share {share:g} of {len(self.rows):,} jobs that can be malleable is no job"
                raise InputError(what, hint="give a larger share")

    def count(self, share: float) -> int:
        """Return the number of jobs in a share."""
        return int(share * len(self.rows) + 0.5)

    def drawn(self, share: float, seed: int) -> IntArray:
        """Return the places of a share of the candidates, of a permutation drawn with `seed`."""
        return np.random.default_rng(seed).permutation(len(self.rows))[: self.count(share)]

    def speedups(self, model: Model) -> list[str]:
        """Return the parameters of the speedup model of each candidate."""
        if model == "amdahl":
            return [f"{fraction:g}" for fraction in self.fraction]
        return [f"{average:g} 0" for average in self.parallelism]


@dataclass(frozen=True)
class Malleability:
    """A share of the candidates that is malleable, the seed that draws it, the speedup model, and the layer."""

    candidates: Candidates
    share: float
    seed: int
    model: Model
    policy: str
    interval_s: int

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the policy `slurm` for this layer."""
        return {"resizes": self.policy, "resize_interval": self.interval_s}

    def marked(self, jobs: int) -> BoolArray:
        """Return which of the jobs of the workload are malleable, shape (jobs,)."""
        mask = np.zeros(jobs, dtype=bool)
        mask[self.candidates.rows[self.candidates.drawn(self.share, self.seed)]] = True
        return mask

    def applied(self, workload: Workload) -> Workload:
        """Return the workload with these jobs malleable."""
        own, places = self.candidates, self.candidates.drawn(self.share, self.seed)
        rows = own.rows[places]
        speedups = np.array(own.speedups(self.model), dtype=object)
        changes: dict[str, Any] = {
            "kind": Kind.MALLEABLE.value,
            "nodes_min": own.least[places],
            "nodes_max": own.most[places],
            "nodes_pref": workload.ints("nodes")[rows],
            "speedup": self.model,
            "speedup_parameters": speedups[places],
        }
        columns = {name: workload.column(name).copy() for name in changes}
        for name, values in changes.items():
            columns[name] = columns[name].astype(object) if name in TEXTS else columns[name]
            columns[name][rows] = values
        step = Step("malleable", {"share": self.share, "model": self.model}, {"jobs": len(rows)}, self.seed)
        return workload.with_step(step, workload.columns.assign(**columns))


TEXTS = ("kind", "speedup", "speedup_parameters")
"""Columns of texts that `Malleability.applied` changes."""


def candidates_of(
    workload: Workload,
    cluster: SlurmCluster,
    where: str = "",
    release: float = RELEASES[0],
    starts: BoolArray | None = None,
) -> Candidates:
    """Return the jobs of a log that can be malleable beside a release of Slurm.

    The rules are those of the model of the layer (`slurm.simulation.resizing`). `starts`: which jobs start in the
    backtest, shape (jobs,); None: all.

    Raises:
        InputError: `where` is not a list of conditions, or no job can be malleable.
    """
    chosen, nodes = jobs_where(workload, where), workload.ints("nodes")
    names = workload.partitions().to_numpy()
    number = {name: cluster.partition(name) for name in dict.fromkeys(names)}
    size = {name: 1 if at is None else max(1, len(cluster.members(at))) for name, at in number.items()}
    exclusive = {
        name: at is not None and (cluster.partitions[at].exclusive or not cluster.shared) for name, at in number.items()
    }
    whole = np.array([exclusive[name] for name in names], dtype=bool)
    capacity = np.array([size[name] for name in names], dtype=np.int64)
    thresholds = Thresholds()
    fraction, least, most = malleable_sizes(nodes, capacity, thresholds)
    gres = workload.texts("gres").ne("").to_numpy()
    grows, shrinks = (
        whole & ~gres & (most > nodes) & (not cluster.gives_gres),
        (least < nodes) & (~whole | (release >= SHRINKS)),
    )
    most = np.where(grows, most, nodes)
    het = workload.texts(HET_JOB).ne("").to_numpy() if HET_JOB in workload.columns else np.zeros(len(nodes), dtype=bool)
    stays = "one node" + (
        "" if release >= SHRINKS else f", or whole nodes, which Slurm before {SHRINKS:.2f} loses when a job leaves them"
    )
    reasons = {
        "do not start in the backtest": np.zeros(len(nodes), dtype=bool) if starts is None else ~starts,
        "are not rigid in the log": workload.texts("kind").ne(Kind.RIGID.value).to_numpy(),
        "have a deadline": np.isfinite(workload.floats("deadline")),
        "are components of heterogeneous jobs": het,
        "have cores that may lie on any number of nodes (no --ntasks-per-node)": workload.ints("spread") > 0,
        "run in an advance reservation": workload.texts("reservation").ne("").to_numpy(),
        f"can neither shrink ({stays}) nor grow (nodes that jobs share, GRES, no other node)": ~grows & ~shrinks,
    }
    notes, able = [], chosen
    if where:
        notes.append(f"{int(chosen.sum()):,} of {len(nodes):,} jobs satisfy `{where}`")
    for reason, mask in reasons.items():
        if count := int((able & mask).sum()):
            notes.append(f"{count:,} of {int(chosen.sum()):,} jobs cannot be malleable: they {reason}")
        able = able & ~mask
    rows = np.flatnonzero(able)
    if not len(rows):
        why = "; ".join(notes) or "the log has no job"
        raise InputError(f"no job can be malleable: {why}", hint="choose other jobs by where=, see whatif.md")
    again = "beyond their requested size" if release < LOSES else "again"
    for what, mask in (
        (f"shrink, but do not grow {again} (nodes that jobs share, GRES)", ~grows),
        (f"grow, but do not shrink ({stays})", ~shrinks),
    ):
        if count := int(mask[rows].sum()):
            notes.append(f"{count:,} of {len(rows):,} jobs that can be malleable {what}")
    limit = {part: largest_efficient_size(part, thresholds.most) for part in np.unique(fraction).tolist()}
    useful = np.maximum([limit[part] for part in fraction[rows].tolist()], nodes[rows])
    return Candidates(rows, least[rows], most[rows], fraction[rows], (useful + 1) / 2, tuple(notes))


def resize_costs(constants: Mapping[str, float]) -> Overheads:
    """Return the costs of resizes among the overheads of a calibration."""
    return Overheads(**{name: constants.get(name, 0.0) for name in COSTS})
