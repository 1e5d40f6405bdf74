"""A job of a replay on a batch system that trains with torchrun: started again on each new number of workers.

It follows the size that the replay writes for the job (`batch/job.sh`), and continues from the last saved step.

    python elastic_job.py FOLDER
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tracebed.benchmarks.mpi.batch_job import BatchJob

DEBIAN = "/usr/bin/python3"
"""The Python of Debian's package python3-torch."""


def workers(folder: Path) -> int:
    """Return the number of workers of the last step; 0: no step."""
    lines = (folder / "losses").read_text().splitlines() if (folder / "losses").exists() else []
    return int(lines[-1].split()[1]) if lines else 0


def main() -> None:
    """Train until the work is done."""
    folder = Path(sys.argv[1])
    folder.mkdir()
    work_s, grain_s = (int(os.environ[f"TRACEBED_{name}"]) * 1e-9 for name in ("WORK", "GRAIN"))
    job = BatchJob(Path(os.environ["TRACEBED_SIZE"]), Path(os.environ["TRACEBED_RECORD"]), grain_s)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "PMI", "PYTHON"))}
    training = str(Path(__file__).with_name("elastic_training.py"))
    process, size = None, 0
    for _ in range(1 + round(work_s / grain_s)):  # the first decision takes no time
        answer = job(0, size, None)  # type: ignore[arg-type]
        if answer.size == size:
            continue
        if process is not None:
            process.terminate()
            process.wait()
        size = answer.size
        # Two trainings on one machine would share the port of --standalone, and the second fails when the first ends.
        place = ["--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"]
        torchrun = [DEBIAN, "-m", "torch.distributed.run", "-r1", "-t1", *place, f"--nproc_per_node={size}"]
        environment = {**kept, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        process = subprocess.Popen([*torchrun, training, str(folder)], env=environment)
        while workers(folder) != size:
            if process.poll() is not None:
                raise SystemExit(f"torchrun ended with status {process.returncode}")
            time.sleep(0.05)
    (folder / "end").touch()
    assert process is not None
    raise SystemExit(process.wait())


if __name__ == "__main__":
    main()
