"""Cases: the runs of one workload under one policy, on both sides; and clusters of cases, which are independent units.

Two cases with the same real run are one observation of the real system, and two cases with the same jobs are one
observation of the workloads. The contents of the runs decide, not the names of the cases:

- a real run is identified by the hash of its log (`screening.log_sha256`);
- a workload is identified by its hash, by its name, and by the requests of its jobs. A log that is its own workload has
  another hash after each execution, since the observed times differ; the requests stay the same.

A case that names its cluster (`Case.cluster`) belongs to this cluster, whatever its contents.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.ground.errors import InputError
from tracebed.ground.table import BLOCK, ascending, strings, take
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.orchestrator.setup import UNKNOWN_POLICY

LEAST_BITS = 64.0  # least information in the requests of a workload, bits, for which equality is no coincidence


@dataclass(frozen=True)
class Case:
    """A workload under a policy on a testbed: the repetitions of the real run, and the runs of one simulator."""

    name: str
    """Name, unique among the cases of a validation: `cirne-easy`."""
    workload: str
    policy: str
    real: tuple[Run, ...]
    """All repetitions of the real run, healthy or not, in the order of their execution."""
    predicted: tuple[Run, ...]
    """One run of a deterministic simulator, or several runs of a stochastic one (with different seeds)."""
    calibration: bool = False
    """Whether the simulator was calibrated on this workload. Such a case is shown, but not part of the verdict."""
    names: tuple[str, ...] = ()
    """Names of the repetitions, in messages and reports; by default `rep-01`, `rep-02`, ..."""
    cluster: str = ""
    """Name of the cluster of dependent workloads; empty: found from the contents of the runs (`memberships`)."""

    def __post_init__(self) -> None:
        for side, runs in (("real", self.real), ("predicted", self.predicted)):
            if not runs:
                raise InputError(f"the case {self.name} has no {side} run", hint="a case needs runs on both sides")

    @classmethod
    def of(
        cls,
        real: Sequence[Run],
        predicted: Sequence[Run],
        *,
        calibration: bool = False,
        names: Sequence[str] = (),
    ) -> Case:
        """Return the case of these runs, named by `case_name` after the first real run."""
        if not real:
            raise InputError("the real run is missing")
        info = real[0].info
        workload = str(info.workload.get("name") or "workload")
        return cls(case_name(info), workload, info.policy, tuple(real), tuple(predicted), calibration, tuple(names))

    def name_of(self, index: int) -> str:
        """Return the name of the repetition at position `index`."""
        return self.names[index] if self.names else f"rep-{index + 1:02d}"


def case_name(info: RunInfo) -> str:
    """Return the name of the case of a real run: workload and policy, without a policy that is unknown."""
    workload = Path(str(info.workload.get("name") or "workload")).stem
    return workload if info.policy == UNKNOWN_POLICY else f"{workload}-{info.policy}"


@dataclass(frozen=True)
class Membership:
    """The independent units to which a case belongs."""

    real_run: str  # name of the first case with these real runs
    workload: str  # name of the cluster: the name that the case gives, or the workload of the first case of the cluster


@dataclass(frozen=True)
class Level:
    """Intervals of the mean error over independent units of one kind."""

    unit: str
    """`cases`, `real runs` or `workloads`."""
    numbers: dict[str, int]
    """Metric -> number of units in which the metric is defined."""
    intervals: dict[str, tuple[float, float]]
    """Metric -> interval of the error in margins (Student's t over the units)."""

    @property
    def number(self) -> int:
        """Number of units."""
        return max(self.numbers.values())


def memberships(cases: Sequence[Case], logs: Sequence[Collection[str]]) -> list[Membership]:
    """Return the membership of each case, from the hashes of the logs of its included repetitions."""
    by_run = _joined(logs)
    by_workload = _joined([_identities(case, own) for case, own in zip(cases, logs, strict=True)])
    return [
        Membership(cases[run].name, cases[workload].cluster or cases[workload].workload)
        for run, workload in zip(by_run, by_workload, strict=True)
    ]


def interval(errors: FloatArray, units: Sequence[str], alpha: float) -> tuple[float, float]:
    """Return the interval of the mean error, in margins, by Student's t over the means of independent units."""
    import pandas as pd
    from scipy import special

    means = pd.Series(errors).groupby(list(units), sort=False).mean().to_numpy(dtype=np.float64)
    number = len(means)
    half = float(-special.stdtrit(number - 1, alpha) * means.std(ddof=1) / np.sqrt(number))
    return float(means.mean()) - half, float(means.mean()) + half


def _identities(case: Case, logs: Collection[str]) -> set[Hashable]:
    """Return what identifies the workload of a case: cases with a common identity are one cluster."""
    if case.cluster:
        return {("cluster", case.cluster)}
    hashes = {("workload", run.info.workload.get("sha256")) for run in case.real}
    requests = {("requests", found) for run in case.real if (found := requests_sha256(run))}
    return {("name", case.workload), *(("log", log) for log in logs), *hashes, *requests}


def requests_sha256(run: Run) -> str:
    """Return a hash of the requests of the jobs: id, nodes and time limit of each; empty if they tell too little."""
    # Requests of few jobs, or of jobs that all request the same, may be equal in different workloads: such requests
    # have less information than `LEAST_BITS`.
    jobs = run.table("jobs")
    ids, order = jobs.raw("job_id"), ascending(jobs.raw("job_id"))
    columns = [jobs["nodes"], np.nan_to_num(jobs["time_limit"], nan=-1.0)]
    counted: Counter[tuple[int, float]] = Counter()
    found = hashlib.sha256(b"[")
    for first in range(0, len(order), BLOCK):  # bounds the memory
        rows = order[first : first + BLOCK]
        requests = list(zip(*(column[rows].tolist() for column in columns), strict=True))
        counted.update(requests)
        text = repr(list(zip(strings(take(ids, rows)), requests, strict=True)))
        found.update((", " * (first > 0) + text[1:-1]).encode())
    found.update(b"]")
    counts = np.array([*counted.values()], dtype=np.float64)
    informs = float((counts * np.log2(counts.sum() / counts)).sum()) >= LEAST_BITS
    return found.hexdigest() if informs else ""


def _joined(identities: Sequence[Collection[Hashable]]) -> list[int]:
    """Return the position of the first case of the group of each case: cases with a common identity are one group."""
    first = list(range(len(identities)))
    owner: dict[Hashable, int] = {}

    def root(index: int) -> int:
        while first[index] != index:
            index = first[index]
        return index

    for index, own in enumerate(identities):
        for identity in own:
            low, high = sorted((root(owner.setdefault(identity, index)), root(index)))
            first[high] = low
    return [root(index) for index in range(len(identities))]
