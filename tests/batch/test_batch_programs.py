"""A mix of jobs on a real Slurm: malleable jobs run programs with MPI and torchrun, and a policy resizes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

import tracebed.api as tb
from tests.batch.test_batch_resizes import RESIZABLE, check_nothing_is_left, mixed
from tests.servers.elastic_job import DEBIAN
from tests.servers.slurmd import Slurm, reason_to_skip
from tracebed.converters.workload import Workload
from tracebed.orchestrator.calibrating.batch import resizes_of
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.run import JOURNAL

REASON = reason_to_skip(accounting=True) or (None if find_spec("mpi4py") else "no mpi4py: pip install '.[mpi]'")
pytestmark = [pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.slow]

JOBS, NODES = 20, 6
TRAININGS = (4, 12)
"""The jobs that train with torchrun, if it is installed. The other malleable jobs run a program with MPI."""
STATES_MIB = (1.0, 16.0, 64.0)
"""States of the jobs with MPI, in turn."""
PROGRAM = """export PYTHONPATH={path}
case $TRACEBED_APPLICATION in
train) exec {python} {job} $(mktemp -u -p {folder} training-XXXXXX) ;;
mpi) exec {python} -m tracebed.benchmarks.mpi.batch_job >$(mktemp -p {folder} mpi-XXXXXX) ;;
esac
"""


def with_programs(workload: Workload, trainings: Sequence[int]) -> Workload:
    """Return the workload with programs: `trainings` are numbers of jobs that train."""
    numbers = range(len(workload))
    columns = {
        "application": ["train" if number in trainings else "mpi" for number in numbers],
        "state_mib": [STATES_MIB[number // 2 % len(STATES_MIB)] for number in numbers],
    }
    return Workload(workload.table.assign(**columns), workload.provenance)


def test_programs_are_resized_by_slurm_and_keep_their_state(tmp_path: Path) -> None:
    kept, script = tmp_path / "kept", tmp_path / "program.sh"
    kept.mkdir()
    has_torch = subprocess.run([DEBIAN, "-c", "import torch"], env={}, capture_output=True, check=False).returncode == 0
    trainings, job = TRAININGS if has_torch else (), Path(__file__).parents[1] / "servers" / "elastic_job.py"
    path = os.environ.get("PYTHONPATH", "")
    script.write_text(PROGRAM.format(path=path, job=job, python=sys.executable, folder=kept), encoding="utf-8")
    slurm = Slurm(tmp_path / "slurm", nodes=NODES, accounting=True, settings=RESIZABLE)
    try:
        slurm.up()
        workload = with_programs(mixed(JOBS, 2, gap_s=2.0, mean_s=5.0, machine=NODES), trainings)
        output, options = tmp_path / "run", [f"program=sh {script}"]
        run = tb.replay_on(workload, "slurm", "pref", output=output, configuration=slurm.conf, options=options)
        check_nothing_is_left(slurm, run)
    finally:
        slurm.down()
    assert run.jobs["state"].tolist() == ["completed"] * JOBS
    done = run.reconfigurations[run.reconfigurations["state"] == "applied"]
    assert {*done["kind"]} == {"expand", "shrink"}
    results = [json.loads(path.read_text()) for path in kept.glob("mpi-*")]
    assert len(results) == JOBS // 2 - len(trainings)
    assert all(result["valid"] for result in results)
    losses = [folder / "losses" for folder in kept.glob("training-*")]
    assert len(losses) == len(trainings)
    check_losses(losses)
    assert run.folder is not None
    programs = resizes_of(run, journal.read(run.folder / JOURNAL)[0]["plan"])
    assert len(programs) == len(done)
    assert {*programs["application"]} <= {"mpi", "train"}
    assert {*programs["mib"]} <= {*STATES_MIB}


def check_losses(files: list[Path]) -> None:
    """Raise AssertionError if the losses of trainings depend on their numbers of workers."""
    losses = []
    for file in files:
        rows = [line.split() for line in file.read_text().splitlines()]
        losses.append({int(step): float(loss) for step, _, loss in rows})
    for step in set.intersection(*map(set, losses)) if losses else ():
        assert losses[0][step] == pytest.approx(losses[-1][step], rel=1e-9, abs=1e-9)
