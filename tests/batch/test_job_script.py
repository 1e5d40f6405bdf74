"""The script of a malleable job on a batch system, with `srun` and `sleep` replaced."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.patience import GUARD_S
from tracebed.orchestrator.replay.batch.records import JobRecords

SRUN = """#!/bin/sh
for option; do case $option in --nodelist=*) node=${option#*=} ;; esac; done
echo "$node" >>FOLDER/calls
if [ "$node" = n2 ] && [ "$(grep -c n2 FOLDER/calls)" -le REFUSALS ]; then
    echo "srun: error: Task launch for StepId=7.1 failed on node n2: REASON" >&2
    echo "srun: error: Application launch failed: REASON" >&2
    exit 168
fi
echo up
exec /bin/sleep 600
"""


def test_a_program_has_the_application_and_the_state_of_its_job(tmp_path: Path) -> None:
    records = JobRecords(tmp_path / "jobs")
    program = (f"sh -c 'echo $TRACEBED_APPLICATION $TRACEBED_STATE_MIB >{tmp_path}/told'", "solver", "2.5")
    request = records.request("t-0", 1, 0.05, None, grain_s=0.02, program=program)
    subprocess.run(
        [request.script, *request.arguments], env={**os.environ, "SLURM_JOB_ID": "7"}, timeout=GUARD_S, check=True
    )
    assert (tmp_path / "told").read_text() == "solver 2.5\n"
    own = records.read("t-0", "7")
    assert own is not None and own.completed


@pytest.mark.parametrize(
    ("reason", "refusals", "status", "calls"),
    [
        ("Job credential revoked", 2, 0, ["n1", "n2", "n2", "n2", "n3"]),
        ("Invalid job credential", 2, 0, ["n1", "n2", "n2", "n2", "n3"]),  # Slurm 26.05
        ("Invalid job credential", 99, 1, ["n1", *["n2"] * 30, "n3"]),
        ("Node failure", 1, 1, ["n1", "n2", "n3"]),
    ],
)
def test_a_rank_on_a_node_that_the_job_has_just_left_is_launched_again(
    tmp_path: Path, reason: str, refusals: int, status: int, calls: list[str]
) -> None:
    """Within a second, slurmd refuses steps on a node that has returned to the job."""
    programs = tmp_path / "bin"
    programs.mkdir()
    srun = SRUN.replace("FOLDER", str(tmp_path)).replace("REFUSALS", str(refusals)).replace("REASON", reason)
    for name, text in {"srun": srun, "sleep": "#!/bin/sh\nexec /bin/sleep 0.001\n"}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o700)
    records = JobRecords(tmp_path / "jobs")
    records.write_size("t-0", 1, 1.0, ["n1", "n2", "n3"])
    request = records.request("t-0", 3, 0.05, None, grain_s=0.02)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    done = subprocess.run([request.script, *request.arguments], env=environment, timeout=GUARD_S, check=False)
    assert done.returncode == status
    assert sorted((tmp_path / "calls").read_text().split()) == calls
    own = records.read("t-0", "7")
    assert own is not None
    assert own.completed is (status == 0)
