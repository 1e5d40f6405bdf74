"""Starts that wait for an event, against recordings of a real Slurm 22.05.8 (`record_slurm_events.py`)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from slurm_scenarios import SCENARIOS, Submitted
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.slurm.conf import read

FOLDER = Path(__file__).parent / "slurm_recordings" / "events"
TOLERANCE_S = 4.0
"""A pass each second, and the whole seconds of Slurm: a chain of some jobs may start this much earlier or later."""
SCRIPT_S = 0.1
"""Time that the start and the end of a job take."""
LATE_S = {"dependency-after-limit": 30.0}
"""Tolerance where a job exceeds its limit: slurmctld notices this within half a minute."""


@cache
def recorded(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return content


def rows_of(job: Submitted, number: int, submit: float) -> list[dict[str, Any]]:
    """Return the rows of a job, or of the tasks of an array."""
    row = {"job_id": str(number), "submit_time": submit, "run_time": job.run + SCRIPT_S, "time_limit": 60.0 * job.limit}
    row |= {"nodes": job.cores, "cores_per_node": 1, "spread": 1, "fewest_nodes": 1}
    row |= {"status": "failed" if job.fails else "completed", **job.columns}
    if not job.tasks:
        return [row]
    listed, _, most = job.tasks.partition("%")
    first, last = listed.split("-")
    array = f"{number}%{most}" if most else str(number)
    return [{**row, "job_id": f"{number}_{task}", "array": array} for task in range(int(first), int(last) + 1)]


def workload_of(name: str) -> Workload:
    """Return the jobs of a recording as they were submitted."""
    rows: list[dict[str, Any]] = []
    jobs = sorted(SCENARIOS[name].jobs, key=lambda job: job.at)
    ids = sorted({int(job.partition("_")[0]) for job in recorded(name)["found"]})
    for job, number, submit in zip(jobs, ids, recorded(name)["asked"], strict=True):
        rows += rows_of(job, number, submit)
    table = pd.DataFrame(rows).fillna({column: "" for job in jobs for column in job.columns if column in TEXTS})
    return Workload(table, Provenance(system=System(SCENARIOS[name].nodes, 4)))


TEXTS = ("dependency", "application", "licenses", "reservation", "partition", "queue")


def predicted(name: str, folder: Path) -> pd.DataFrame:
    """Return the table of the jobs of a prediction, by id."""
    path = folder / "slurm.conf"
    path.write_text(recorded(name)["conf"])
    given = {**read(path).parameters, "epoch_s": recorded(name)["zero"]}
    jobs = predict(workload_of(name), None, "slurm", over_limit=OverLimit.KILL, policy_parameters=given).jobs
    return jobs.set_index("job_id")


def differences(name: str, folder: Path) -> list[str]:
    """Return the jobs that Slurm started at another instant, or that only one of both started."""
    jobs, found = predicted(name, folder), []
    for job, (start, _, state, nodes, *_) in recorded(name)["found"].items():
        real = start if nodes and state != "PENDING" else None
        own = jobs["start"].get(job)
        own = None if own is None or pd.isna(own) else round(float(own), 1)
        if (own is None) != (real is None) or (
            own is not None and abs(own - real - 0.5) > LATE_S.get(name, TOLERANCE_S)
        ):
            found.append(f"{name}: job {job} starts at {own}, in Slurm at {real}")
    return found


STARTS = (
    *("begin", "begin-main-loop", "begin-age"),
    *("dependency", "dependency-killed", "dependency-delay", "dependency-after-limit"),
    *("singleton", "dependency-no-reservation", "dependency-age"),
    *("array-limit", "array-of-different-jobs", "array-depth", "array-bf-max-job-test", "array-limit-reservation"),
    *("array-reserved", "bf_max_job_array_resv", "array-dependency", "array-aftercorr"),
)


@pytest.mark.parametrize("name", STARTS)
def test_jobs_start_when_slurm_starts_them(name: str, tmp_path: Path) -> None:
    assert differences(name, tmp_path) == []
