"""Compares predictions with the published runs of another program of the Kassel strategies, on the KNL log.

    tracebed clean cori-knl/ --recipe cori-knl --set missing_limits.rounding=next-hour -o knl.parquet
    python -m tests.oracles.kassel_published knl.parquet

The log is that of the study kassel-knl. Schäfer et al. (EESP at SC26, "Saving Energy Costs and Time on
Supercomputers") ran the strategy Min in their branch of ElastiSim, and published the means of each run, which are part
of the study `nights`. The runs without shutdown of nodes (F0) are predicted. The inputs are theirs: the same 41,524
jobs, the kind of each job drawn by their generator from the seed and the number of the job, limits rounded up to the
next full hour, and run times divided by the efficiency at the requested size, as their application model has them. The
rules are those of the public strategies (`THEIRS` of test_kassel.py), chosen with other jobs before these runs were
known, and calls each second.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tracebed.converters.formats.reading import read_workload
from tracebed.converters.malleability import to_malleable
from tracebed.converters.speedup import amdahl_speedup
from tracebed.converters.workload import Workload
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.studies.nights.study import KEY, published

RULES = {"promise": "steal", "count_idle": "head", "expected_end": "limit", "narrow": True, "ties": "id"}
CALLS = {"calls": "tick", "backfill": "firstfit", "narrow": False}


class Published(NamedTuple):
    """Means of a run, over the jobs submitted from `after_s` on: the first that waits for more than 2 s in that run."""

    share: int
    """Malleable jobs, %."""
    seed: str
    after_s: float
    wait_s: float
    run_s: float


RUNS = published().set_index(KEY).loc["cori_knl"].xs("F0", level="policy")


def _published(scheduler: str, share: int, seed: str) -> Published:
    row = RUNS.loc[share, seed, scheduler]
    return Published(share, seed, row["window_start_s"], row["wait_mean_s"], row["runtime_mean_s"])


RIGID = _published("rigid_easy_backfill", 0, "S0")
"""Their `rigid_easy_backfill`, in which the head of the queue has no protection."""
MIN = tuple(
    _published("min_steal_agreement", share, seed)
    for share, seeds in ((25, "S0 S3 S7"), (50, "S0 S3 S7"), (75, "S0 S3"), (100, "S0"))
    for seed in seeds.split()
)
"""Their `min_steal_agreement`. Of the two other seeds at 100 %, the means are the same."""


def slowed(cleaned: Workload) -> Workload:
    """Return the cleaned log with the run times of their application model."""
    every = to_malleable(cleaned, 1.0)
    fractions = np.array([float(text) for text in every.column("speedup_parameters")])
    nodes = cleaned.ints("nodes")
    run_time = cleaned.floats("run_time") / (amdahl_speedup(nodes, fractions) / nodes)
    return Workload(cleaned.columns.assign(run_time=run_time), cleaned.provenance)


def drawn(jobs: Workload, share: int, seed: str) -> Workload:
    """Return the workload whose malleable jobs are those of their generator for the seed."""
    every = to_malleable(jobs, 1.0)
    weights = (100 - share, 0, share)
    kinds = [random.Random(f"{seed}{job}").choices("RMm", weights)[0] for job in jobs.column("job_id")]
    rigid = np.array(kinds) == "R"
    columns = {name: every.column(name).copy() for name in ("kind", "nodes_min", "nodes_max", "nodes_pref")}
    for name in columns:
        columns[name][rigid] = "rigid" if name == "kind" else jobs.ints("nodes")[rigid]
    return Workload(every.columns.assign(**columns), every.provenance)


def means(workload: Workload, after_s: float, policy: str, **options: Any) -> tuple[float, float]:
    """Return the mean wait and the mean run time of the jobs submitted from `after_s` on, s."""
    jobs = predict(workload, None, policy, **options).jobs
    since = jobs["submit"] - jobs["submit"].min() >= after_s
    counted = jobs[since]
    return float((counted["start"] - counted["submit"]).mean()), float((counted["end"] - counted["start"]).mean())


def compared(jobs: Workload, rows: tuple[Published, ...] = (RIGID, *MIN)) -> Iterator[tuple[Published, float, float]]:
    """Yield the published means with the predicted wait and run time, s."""
    ticks = {"interval_s": 1.0, "malleability_interval_s": 1.0}
    for row in rows:
        if row.share:
            found = means(
                drawn(jobs, row.share, row.seed), row.after_s, "min", policy_parameters=RULES | CALLS, **ticks
            )
        else:
            found = means(jobs, row.after_s, "firstfit", interval_s=1.0)
        yield row, *found


def main() -> None:
    """Print a row of a Markdown table for each run."""
    sys.stdout.write("| malleable | seed | wait, s | published | run time, s | published | turnaround |\n")
    sys.stdout.write("|---|---|---|---|---|---|---|\n")
    for row, wait, run in compared(slowed(read_workload(Path(sys.argv[1])))):
        change = (wait + run) / (row.wait_s + row.run_s) - 1
        sys.stdout.write(
            f"| {row.share} % | {row.seed} | {wait:,.1f} | {row.wait_s:,.1f} | {run:,.1f} | {row.run_s:,.1f} "
            f"| {change:+.1%} |\n".replace("%|", " %|")
        )


if __name__ == "__main__":
    main()
