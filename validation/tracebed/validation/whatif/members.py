"""Members of an ensemble: predictions of a log under one slurm.conf, each with draws and a perturbed input of its own.

Member k draws from the seed k what a slurm.conf leaves open, and, but for member 0, its input is perturbed with the
seed k. Members k of two clusters are a pair: they share draws and input.
"""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.perturbation import Perturbation, perturbed
from tracebed.converters.workload import FloatArray, Workload
from tracebed.errors import TracebedError
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.states import JobState
from tracebed.validation.experiments.simulated.pools import LocalPool
from tracebed.validation.metrics import busy_cores, origin, waiting

ALONE = 20_000
"""Jobs to simulate, in all members, up to which other processes would take longer to start than to compute."""


@dataclass(frozen=True)
class Member:
    """The input of a member: file of the workload, parameters of the policy, seed, and edges of bins of time, s."""

    path: Path
    parameters: Mapping[str, Any]
    seed: int
    perturbation: Perturbation
    edges: FloatArray

    def setup(self) -> Setup:
        """Return the setup: Slurm on the cluster, which kills jobs at their limits."""
        return Setup.of("slurm", over_limit=OverLimit.KILL, policy_parameters={**self.parameters, "seed": self.seed})


@dataclass(frozen=True)
class Predicted:
    """What a member predicts.

    Attributes:
        wait: wait of each job of the workload, s, shape (jobs,); NaN: it does not start.
        cores: cores of each job, shape (jobs,).
        waiting: mean number of waiting jobs in each bin, shape (bins,).
        busy: mean number of busy cores in each bin, shape (bins,).
        rejected: (partition, reason) of rejected jobs -> their number.
    """

    wait: FloatArray
    cores: FloatArray
    waiting: FloatArray
    busy: FloatArray
    rejected: Counter[tuple[str, str]]


def ensembles(
    workload: Workload,
    clusters: Sequence[Mapping[str, Any]],
    members: int,
    perturbation: Perturbation,
    edges: FloatArray,
    *,
    workers: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> list[list[Predicted]]:
    """Predict a workload on clusters; return the members of each cluster, by seed.

    Args:
        clusters: parameters of the policy `slurm` for each cluster.
        members: number of members of each ensemble.
        perturbation: the largest changes of the input.
        edges: edges of bins of time, s.
        workers: number of processes; None: that of the available cores.
        on_progress: called with the number of finished members.

    Raises:
        InputError: no job can run on a cluster, or a parameter is invalid.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        write_workload(workload, path)
        todo = [
            (number, Member(path, parameters, seed, perturbation, edges))
            for seed in range(members)
            for number, parameters in enumerate(clusters)
        ]
        few = len(workload) * len(todo) <= ALONE
        found: dict[tuple[int, int], Predicted] = {}
        with LocalPool(1 if few else workers) as pool:
            for (number, member), result in pool.map(_of_cluster, todo):
                if isinstance(result, TracebedError):
                    raise result
                found[number, member.seed] = result
                if on_progress:
                    on_progress(len(found))
    return [[found[number, seed] for seed in range(members)] for number in range(len(clusters))]


def _of_cluster(item: tuple[int, Member]) -> Predicted:
    return predicted(item[1])


def predicted(member: Member) -> Predicted:
    """Simulate a member."""
    workload = _workload(member.path)
    given = perturbed(workload, member.seed, member.perturbation) if member.seed else workload
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = predict(given, None, member.setup())
    edges = member.edges - origin(run)
    jobs, held = run.table("jobs"), run.table("allocations")
    ids = workload.column("job_id")
    rows = pd.Index(jobs["job_id"]).get_indexer(pd.Index(ids))
    rejected = jobs.equal("state", JobState.REJECTED)[rows]
    reasons = zip(workload.partitions()[rejected], jobs["reason"][rows][rejected], strict=True)
    cores = pd.Series(held["cores"] * held["count"]).groupby(held["job_id"]).sum()
    return Predicted(
        wait=(jobs["start"] - jobs["submit"])[rows],
        cores=cores.reindex(ids, fill_value=0).to_numpy(dtype=np.float64),
        waiting=waiting(run).means(edges),
        busy=busy_cores(run).means(edges),
        rejected=Counter(reasons),
    )


@lru_cache(maxsize=1)
def _workload(path: Path) -> Workload:
    """Return a workload. Each process reads it once."""
    return read_workload(path, equal_nodes=False)


def mean_of(members: Iterable[FloatArray]) -> FloatArray:
    """Return the mean over members, element by element; NaN where an element is NaN in one of them."""
    return np.asarray(np.mean([*members], axis=0))
