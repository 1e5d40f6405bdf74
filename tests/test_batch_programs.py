"""A mix of jobs on a real Slurm in which malleable jobs run a program over MPI, and a policy resizes them."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import tracebed.api as tb
from slurmd import Slurm, reason_to_skip
from test_batch_resizes import RESIZABLE, check_nothing_is_left, mixed

REASON = reason_to_skip(accounting=True) or (None if find_spec("mpi4py") else "no mpi4py: pip install '.[mpi]'")
pytestmark = [pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.slow]

JOBS, NODES = 20, 6


def test_programs_over_mpi_are_resized_by_slurm_and_keep_their_state(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    program = f"{sys.executable} -m tracebed.benchmarks.mpi.batch_job >$(mktemp -p {kept})"
    if path := os.environ.get("PYTHONPATH"):
        program = f"PYTHONPATH={path} {program}"
    slurm = Slurm(tmp_path / "slurm", nodes=NODES, accounting=True, settings=RESIZABLE)
    try:
        slurm.up()
        workload = mixed(JOBS, 2, gap_s=2.0, mean_s=5.0, machine=NODES)
        run = tb.replay_on(
            workload,
            "slurm",
            "pref",
            output=tmp_path / "run",
            configuration=slurm.conf,
            options=[f"program=sh -c '{program}'"],
        )
        check_nothing_is_left(slurm, run)
    finally:
        slurm.down()
    assert run.jobs["state"].tolist() == ["completed"] * JOBS
    results = [json.loads(path.read_text()) for path in kept.iterdir()]
    assert len(results) == JOBS // 2
    assert all(result["valid"] for result in results)
    done = run.reconfigurations[run.reconfigurations["state"] == "applied"]
    assert {*done["kind"]} == {"expand", "shrink"}
    changes = sum(len(result["stages"]) for result in results)  # with the launches of more than one process
    assert changes >= len(done)
