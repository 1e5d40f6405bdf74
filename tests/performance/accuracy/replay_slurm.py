"""Replay a workload several times at once, each time on a real Slurm of its own: 16 nodes on this machine.

The jobs sleep, and the servers of five clusters together need a few percent of a core, so the replays hardly disturb
each other. It needs root and Debian's slurmctld, slurmd, slurm-client and munge.

    python replay_slurm.py slurm-held-out.csv slurm-real/held-out-slurm --repetitions 5
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))  # the servers of the tests

from tests.servers.slurmd import Slurm


def main() -> None:
    """Start the clusters, replay, and end the clusters."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workload", type=Path)
    parser.add_argument("output", type=Path, help="folder for the runs rep-01, rep-02, ...")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--first", type=int, default=1, help="number of the first repetition")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    given.output.mkdir(parents=True, exist_ok=True)
    numbers = range(given.first, given.first + given.repetitions)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tracebed-slurm-")))
        clusters = [Slurm(folder / f"{number:02}", 16) for number in numbers]
        for cluster in clusters:
            stack.callback(cluster.down)
            cluster.up()
        replays = []
        for cluster in clusters:
            output = given.output / f"rep-{cluster.folder.name}"
            command = ["tracebed", "replay", str(given.workload), "--scheduler", "slurm", "-o", str(output)]
            environment = {**os.environ, "SLURM_CONF": str(cluster.conf)}
            with Path(f"{output}.log").open("wb") as log:
                replays.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        failed = [number for number, replay in zip(numbers, replays, strict=True) if replay.wait()]
    if failed:
        raise SystemExit(f"replays {failed} failed: see the logs in {given.output}")


if __name__ == "__main__":
    main()
