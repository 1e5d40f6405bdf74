"""Compare simulations with recorded runs of a real Slurm.

    python -m tests.oracles.slurm_accuracy FILE.csv...
    python -m tests.oracles.slurm_accuracy --noise RUN-1.csv RUN-2.csv
    python -m tests.oracles.slurm_accuracy --passes FILE.json...

Columns of a file: job_id, submit_time, run_time, nodes, time_limit, logged_start and logged_end, as written by
record_slurm.py. For each file and policy: the share of the jobs that start within 1.5 s of their recorded start, and
the errors of the makespan, the mean wait and the mean response time. The second form compares two
recorded runs of a workload, and divides the error of the simulation (RMS of the starts) by their difference. The third
form compares single decisions, made in the recorded state of Slurm.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tests.oracles.slurm_replayed import Agreement, Recording
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict

NODES = 8
NEAR_S = 1.5
POLICIES: dict[str, dict[str, Any]] = {
    "slurm": {"bf_interval": 1, "bf_resolution": 1, "bf_max_job_test": 1000, "batch_sched_delay": 0},
    "easy": {},
    "conservative": {},
}
"""Policy -> its parameters: those of slurm.conf of the recorded runs."""
LATENCIES = Overheads(launch_s=0.035, end_s=0.018)
"""Medians of workloads 1 to 4: decision to first instruction, and last instruction to idle nodes."""


class Errors(NamedTuple):
    """Errors of a simulation: relative, except `placed`."""

    placed: float
    makespan: float
    wait: float
    response: float

    def __str__(self) -> str:
        """Return the errors as cells of a table."""
        return f"{self.placed:.0%} | " + " | ".join(f"{100 * each:+.2f} %" for each in self[1:])


def read(path: Path) -> pd.DataFrame:
    """Return the recorded run of a file."""
    return pd.read_csv(path, dtype={"job_id": str})


def compare(recorded: pd.DataFrame, start: Any, end: Any) -> Errors:
    """Return the errors of starts and ends, s, against a recorded run."""
    submit = recorded["submit_time"].to_numpy()
    real_start, real_end = recorded["logged_start"].to_numpy(), recorded["logged_end"].to_numpy()
    return Errors(
        float((np.abs(start - real_start) <= NEAR_S).mean()),
        float((end.max() - submit[0]) / (real_end.max() - submit[0]) - 1.0),
        float((start - submit).mean() / (real_start - submit).mean() - 1.0),
        float((end - submit).mean() / (real_end - submit).mean() - 1.0),
    )


def simulated(recorded: pd.DataFrame, policy: str, parameters: dict[str, Any] | None = None) -> tuple[Any, Any]:
    """Return the starts and ends of the simulation of a recorded run under `policy`, s."""
    submission = recorded.drop(columns=["logged_start", "logged_end"]).assign(cores_per_node=1)
    workload = Workload(submission, Provenance(system=System(NODES, 1)))
    given = POLICIES[policy] if parameters is None else parameters
    run = predict(workload, None, policy, policy_parameters=given, overheads=LATENCIES)
    return run.jobs["launched"].to_numpy(), run.jobs["end"].to_numpy()


def errors(path: Path, policy: str, parameters: dict[str, Any] | None = None) -> Errors:
    """Return the errors of the simulation of a recorded run under `policy`."""
    recorded = read(path)
    return compare(recorded, *simulated(recorded, policy, parameters))


def noise(first: Path, second: Path) -> tuple[Errors, float]:
    """Return the differences of the second recorded run to the first, and the noise ratio of the simulation."""
    a, b = read(first), read(second)
    starts = [run["logged_start"].to_numpy() for run in (a, b)]
    start, _ = simulated(a, "slurm")
    own, *ours = (float(np.sqrt(((x - y) ** 2).mean())) for x, y in (starts, (start, starts[0]), (start, starts[1])))
    return compare(a, starts[1], b["logged_end"].to_numpy()), sum(ours) / 2.0 / own


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--defaults", action="store_true", help="recorded with Slurm's default SchedulerParameters")
    parser.add_argument("--noise", action="store_true", help="compare two recorded runs of a workload")
    parser.add_argument("--passes", action="store_true", help="compare single decisions; files of record_slurm.py")
    given = parser.parse_args()
    if given.noise:
        found_noise, ratio = noise(*given.files)
        sys.stdout.write(f"| {given.files[0].stem} | {found_noise} | {ratio:.2f} |\n")
        return
    if given.passes:
        found = [Recording.load(path.name.partition(".json")[0], path.parent).agreement() for path in given.files]
        total = Agreement(*map(sum, zip(*found, strict=True)))
        sys.stdout.write("".join(f"{name}: {count:,}\n" for name, count in total._asdict().items()))
        return
    sys.stdout.write("| recorded run | policy | placed | makespan | wait | response |\n|---|---|---|---|---|---|\n")
    for path in given.files:
        for policy in POLICIES:
            found_errors = errors(path, policy, {} if given.defaults else None)
            sys.stdout.write(f"| {path.stem} | {policy} | {found_errors} |\n")


if __name__ == "__main__":
    main()
