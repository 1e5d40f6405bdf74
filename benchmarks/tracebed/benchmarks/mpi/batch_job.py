"""`python -m tracebed.benchmarks.mpi.batch_job`: the malleable MPI program as a job of a replay on a batch system.

It follows the size that the replay writes for the job (`orchestrator/replay/batch/job.sh`). The processes run on the
first node of the job, one for each of its nodes. An iteration lasts as long as the work of the job takes on its nodes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tracebed.benchmarks.dmr import Answer, SizeRange
from tracebed.benchmarks.dmr_manager import ResourceManager
from tracebed.benchmarks.mpi.launch import LOOPBACK, ROOT, mpiexec
from tracebed.benchmarks.mpi.program import ITEM, MODULE, ProgramParameters

STATE_MIB = 1.0  # size of the state if that of the job is 0, MiB
# Settings of MPICH's mpiexec, which otherwise starts processes by `srun`.
LAUNCHER = {"HYDRA_LAUNCHER": "fork", "HYDRA_RMK": "user"}


class WantedSize(NamedTuple):
    """The size that the replay requests."""

    request: int
    rate: float
    nodes: int


class BatchJob:
    """The files of this job, and its decisions at the malleability points of its program.

    Args:
        size: the file with the requested size.
        record: the beginning of the names of the records of the job.
        iteration_s: duration of an iteration at the rate 1.
    """

    def __init__(self, size: Path, record: Path, iteration_s: float) -> None:
        self._size, self._record, self._iteration_s = size, record, iteration_s
        self._seen: tuple[WantedSize, int] | None = None  # the size that the program adopts, and since when
        self._current: WantedSize | None = None

    def wanted(self) -> WantedSize:
        """Return the requested size."""
        request, rate, *nodes = self._size.read_text(encoding="ascii").split()
        return WantedSize(int(request), int(rate) * 1e-6, len(nodes))

    def __call__(self, pid: int, size: int, sizes: SizeRange) -> Answer:
        """Return the decision on a malleability point, at the end of an iteration."""
        if self._seen is not None:
            self._adopt(*self._seen)
        if self._current is not None:
            time.sleep(self._iteration_s / self._current.rate)
        wanted = self.wanted()
        if self._current is None or wanted.request != self._current.request:
            self._seen = wanted, time.time_ns()
        return Answer.between(size, wanted.nodes)

    def _adopt(self, wanted: WantedSize, seen: int) -> None:
        """Record that the program has completed its first iteration on a size."""
        now = time.time_ns()
        if self._current is None:
            self._write("launched", f"{now}\n")
        self._write("resized", f"request={wanted.request}\nseen={seen}\napplied={now}\n")
        self._current, self._seen = wanted, None

    def _write(self, kind: str, text: str) -> None:
        new = self._record.with_name(f".{self._record.name}.{kind}")
        new.write_text(text, encoding="ascii")
        new.replace(self._record.with_name(f"{self._record.name}.{kind}"))


def main() -> int:
    """Run the program in the environment of `job.sh`, and return the exit status."""
    work_s, grain_s = (int(os.environ[f"TRACEBED_{name}"]) * 1e-9 for name in ("WORK", "GRAIN"))
    iterations = max(1, round(work_s / grain_s))
    state_mib = float(os.environ["TRACEBED_STATE_MIB"]) or STATE_MIB
    job = BatchJob(Path(os.environ["TRACEBED_SIZE"]), Path(os.environ["TRACEBED_RECORD"]), work_s / iterations)
    given = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "PMI", "PMIX"))}
    with tempfile.TemporaryDirectory(prefix="tracebed-mpi-") as name, ResourceManager(job) as manager:
        report = Path(name) / "report.json"
        # The first check only launches the processes.
        parameters = ProgramParameters(
            [1], round(state_mib * 2**20 / ITEM), iterations + 1, False, str(report), apart=True
        )
        command = [*mpiexec(), sys.executable, "-m", MODULE, json.dumps(parameters._asdict())]
        status = subprocess.run(
            command, env={**given, **LOOPBACK, **ROOT, **LAUNCHER, **manager.variables}, check=False
        ).returncode
        if status != 0:
            return status
        result = json.loads(report.read_text(encoding="utf-8"))
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if result["valid"] else 1


if __name__ == "__main__":
    sys.exit(main())
