"""How well Slurm's power saving is predicted: starts of jobs and boots of nodes, on a real Slurm whose nodes sleep.

The nodes are switched off by a program that stops their slurmd, and on by one that starts it some seconds later. All
nodes are off when a replay begins. The power saving of the prediction is that of the slurm.conf; the time of a boot is
given beside it, and the time from the start of a job to its processes is that of another replay.

It starts Slurms of 12 nodes on this machine, which needs root and Debian's slurmctld, slurmd, slurm-client and munge. A
replay takes about 7 minutes. A command that was interrupted continues with the replays that are missing.

    python slurm_power.py [--repetitions 5] [--seed 51] [--clusters 2]
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pandas as pd

import tracebed.api as tb
from tracebed.converters.workload import Provenance, System

sys.path.append(str(Path(__file__).parents[3]))  # the servers of the tests

from tests.servers.sleeping_slurm import SleepingSlurm

NODES, CORES, JOBS, GAP_S = 12, 2, 60, 6.5
SUSPEND_S, BOOT_S = 15, 6
CALIBRATION_SEED = 52
MEMBERS = 24
SETTINGS = {"SchedulerParameters": "bf_interval=5,bf_resolution=1,batch_sched_delay=1"}
BASE = Path("slurm-power")


def drawn(seed: int) -> tb.Workload:
    """Return a workload with gaps in which nodes fall asleep."""
    draw = np.random.default_rng(seed)
    rows, submit = [], 0.0
    for number in range(JOBS):
        row = {"job_id": f"j{number}", "submit_time": submit, "run_time": float(draw.uniform(4.0, 24.0))}
        row |= {"nodes": int(draw.choice([1, 2, 3, 4, 6])), "cores_per_node": CORES}
        rows.append(row | {"time_limit": 60.0 * int(draw.integers(1, 4))})
        submit += float(draw.exponential(GAP_S))
    return tb.Workload(pd.DataFrame(rows), Provenance(system=System(NODES, CORES)))


def run(*command: str) -> None:
    """Run a command, and show it."""
    sys.stdout.write(f"$ {' '.join(command)}\n")
    sys.stdout.flush()
    subprocess.run(command, check=True)


def replay(cluster: SleepingSlurm, workload: Path, output: Path) -> None:
    """Replay a workload from the instant at which all nodes are off, unless the run exists; write down the boots."""
    if (output / "boots.json").exists():
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    cluster.until(cluster.asleep, "the nodes do not sleep")
    before = len(cluster.notes())
    run("tracebed", "replay", str(workload), "--scheduler", "slurm", "-S", f"conf={cluster.conf}", "-o", str(output))
    (output / "boots.json").write_text(json.dumps([note._asdict() for note in cluster.notes()[before:]]))


def describe(cluster: SleepingSlurm) -> list[str]:
    """Write the slurm.conf, with nodes that begin off, and the power of the nodes. Return the options for both."""
    text = cluster.conf.read_text().replace("State=UNKNOWN", "State=CLOUD")
    (BASE / "slurm.conf").write_text(text)
    watts = f"{{busy_w: 300, idle_w: 150, off_w: 10, boot_s: {BOOT_S}}}"
    (BASE / "power.yaml").write_text(f"power:\n  n[1-{NODES}]: {watts}\n")
    return ["-P", f"@{BASE}/slurm.conf", "-P", f"@{BASE}/power.yaml"]


def main() -> None:
    """Draw, start Slurms, calibrate, replay, predict, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seed", type=int, default=51)
    parser.add_argument("--clusters", type=int, default=2, help="number of Slurms side by side")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    BASE.mkdir(exist_ok=True)
    for seed in (given.seed, CALIBRATION_SEED):
        if not (path := BASE / f"{seed}.csv").exists():
            tb.write(drawn(seed), path)
    probe = BASE / f"{CALIBRATION_SEED}-real" / "rep-01"
    real = [BASE / f"{given.seed}-real" / f"rep-{number:02}" for number in range(1, given.repetitions + 1)]
    cells = [(CALIBRATION_SEED, probe), *((given.seed, output) for output in real)]
    with tempfile.TemporaryDirectory(prefix="tracebed-slurm-") as folder:
        Path(folder).chmod(0o755)
        clusters = [
            SleepingSlurm(Path(folder) / f"slurm{k}", NODES, suspend_s=SUSPEND_S, boot_s=BOOT_S, settings=SETTINGS)
            for k in range(given.clusters)
        ]
        free = SimpleQueue[SleepingSlurm]()
        try:
            for cluster in clusters:
                cluster.up()
                free.put(cluster)
            options = describe(clusters[0])

            def one(cell: tuple[int, Path]) -> None:
                cluster = free.get()
                try:
                    replay(cluster, BASE / f"{cell[0]}.csv", cell[1])
                finally:
                    free.put(cluster)

            with ThreadPoolExecutor(len(clusters)) as pool:
                for done in [pool.submit(one, cell) for cell in cells]:
                    done.result()
        finally:
            for cluster in clusters:
                cluster.down()
    if not (cost := BASE / "calibration.yaml").exists():
        run("tracebed", "nodes", "calibrate", str(probe), "-o", str(cost))
    compare(given.seed, real, cost, options)


def compare(seed: int, real: Sequence[Path], cost: Path, options: Sequence[str]) -> None:
    """Predict, and print the starts and the boots of the real and the predicted runs, and the verdict."""
    members = [BASE / f"{seed}-predicted" / f"member-{member:02}" for member in range(1, MEMBERS + 1)]
    for member, output in enumerate(members, 1):
        setup = ["--over-limit", "kill", "--calibration", str(cost), "-o", str(output), "--replace"]
        command = ["tracebed", "simulate", str(BASE / f"{seed}.csv"), "--policy", "slurm", *options, *setup]
        subprocess.run([*command, "-P", f"seed={member}"], check=True, capture_output=True)
    starts = {folder: tb.Run.load(folder).jobs.set_index("job_id")["start"] for folder in (*real, *members)}
    of_real = pd.DataFrame([starts[folder] for folder in real])
    of_members = pd.DataFrame([starts[folder] for folder in members])
    boots = [sum(note["what"] == "boot" for note in json.loads((folder / "boots.json").read_text())) for folder in real]
    tables = [tb.Run.load(folder).nodes["power_state"] for folder in members]
    predicted = [int((table == "boot").sum()) for table in tables]
    error = (of_members.mean() - of_real.mean()).abs()
    noise = (of_real - of_real.mean()).abs().stack()
    write = sys.stdout.write
    write(
        f"starts: mean prediction beside mean real start, median {error.median():.2f} s, largest {error.max():.2f} s\n"
    )
    write(
        f"starts: a real run beside the mean real start, median {noise.median():.2f} s, largest {noise.max():.2f} s\n"
    )
    write(f"boots: real {boots}, mean {statistics.mean(boots):.1f}; predicted {statistics.mean(predicted):.1f}")
    write(f" ({min(predicted)} to {max(predicted)})\n")
    runs = [text for folder in real for text in ("--real", str(folder))]
    runs += [text for folder in members for text in ("--predicted", str(folder))]
    subprocess.run(["tracebed", "compare", *runs], check=False)


if __name__ == "__main__":
    main()
