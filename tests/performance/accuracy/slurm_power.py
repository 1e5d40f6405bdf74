"""How well Slurm's power saving is predicted: starts of jobs and boots of nodes, on a real Slurm whose nodes sleep.

The nodes are switched off by a program that stops their slurmd, and on by one that starts it some seconds later. All
nodes are off when a replay begins. The power saving of the prediction is that of the slurm.conf; the time of a boot is
given beside it. Nothing is calibrated.

slurmctld looks for booted nodes every 30 s. When it does so is random, and decides about most starts. So there are two
ensembles: one with drawn phases, as for a run of the future, and for each replay one with the phase of this replay.

It starts Slurms of 12 nodes on this machine, which needs root and Debian's slurmctld, slurmd, slurm-client and munge. A
replay takes about 15 minutes. A command that was interrupted continues with the replays that are missing.

    python slurm_power.py [--repetitions 5] [--seed 53] [--clusters 5]
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import tracebed.api as tb
from tracebed.converters.workload import Provenance, System
from tracebed.slurm.simulation.inputs import CHECK_S
from tracebed.slurm.simulation.prediction import draws

sys.path.append(str(Path(__file__).parents[3]))  # the servers of the tests

from tests.performance.accuracy.clusters import run, side_by_side
from tests.servers.sleeping_slurm import SleepingSlurm

NODES, CORES, JOBS, GAP_S = 12, 2, 60, 14.0
SUSPEND_S, BOOT_S = 15, 6
MEMBERS = 24
SAME_PHASE, PHASE_S = 8, 0.3
"""Members with the phase of a replay, and by how much it may differ, s."""
SETTINGS = {"SchedulerParameters": "bf_interval=5,bf_resolution=1,batch_sched_delay=1"}
BASE = Path("slurm-power")


CONFIGURED = "job_time_limit: Configuration for"
"""What the log of slurmctld says of a job whose nodes have booted."""


def drawn(seed: int) -> tb.Workload:
    """Return a workload with gaps in which nodes fall asleep."""
    draw = np.random.default_rng(seed)
    rows, submit = [], 0.0
    for number in range(JOBS):
        row = {"job_id": f"j{number}", "submit_time": submit, "run_time": float(draw.uniform(10.0, 50.0))}
        row |= {"nodes": int(draw.choice([1, 1, 2, 3, 4])), "cores_per_node": CORES}
        rows.append(row | {"time_limit": 60.0 * int(draw.integers(1, 4))})
        submit += float(draw.exponential(GAP_S))
    return tb.Workload(pd.DataFrame(rows), Provenance(system=System(NODES, CORES)))


def replay(cluster: SleepingSlurm, workload: Path, output: Path) -> None:
    """Replay a workload from the instant at which all nodes are off, unless the run exists; write down the boots."""
    if (output / "boots.json").exists():
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    cluster.until(cluster.asleep, "the nodes do not sleep")
    log = cluster.folder / "slurmctld.log"
    before, line = len(cluster.notes()), len(log.read_text().splitlines())
    run("tracebed", "replay", str(workload), "--scheduler", "slurm", "-S", f"conf={cluster.conf}", "-o", str(output))
    begins = [text.partition("]")[0][1:] for text in log.read_text().splitlines()[line:] if CONFIGURED in text]
    facts = {"notes": [note._asdict() for note in cluster.notes()[before:]], "looks": begins}
    (output / "boots.json").write_text(json.dumps(facts))


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
    parser.add_argument("--seed", type=int, default=53)
    parser.add_argument("--clusters", type=int, default=5, help="number of Slurms side by side")
    given = parser.parse_args()
    BASE.mkdir(exist_ok=True)
    if not (workload := BASE / f"{given.seed}.csv").exists():
        tb.write(drawn(given.seed), workload)
    real = [BASE / f"{given.seed}-real" / f"rep-{number:02}" for number in range(1, given.repetitions + 1)]

    def make(folder: Path) -> SleepingSlurm:
        return SleepingSlurm(folder, NODES, suspend_s=SUSPEND_S, boot_s=BOOT_S, settings=SETTINGS)

    with side_by_side(make, given.clusters) as clusters:
        options = describe(clusters.all[0])
        clusters.each(lambda cluster, output: replay(cluster, workload, output), real)
    compare(given.seed, real, options)


def phase_of(folder: Path) -> float:
    """Return when slurmctld looks for booted nodes in a replay: the trace time of a look, modulo 30 s."""
    epoch = tb.Run.load(folder).info.batch["epoch_s"]
    looks = [datetime.fromisoformat(text).replace(tzinfo=UTC) for text in facts_of(folder)["looks"]]
    angles = np.array([look.timestamp() - epoch for look in looks]) * 2 * np.pi / CHECK_S
    return float(np.angle(np.exp(1j * angles).mean()) * CHECK_S / (2 * np.pi) % CHECK_S)


def facts_of(folder: Path) -> dict[str, Any]:
    """Return what the programs and slurmctld have noted in a replay."""
    found: dict[str, Any] = json.loads((folder / "boots.json").read_text())
    return found


def predicted(seed: int, member: int, options: Sequence[str]) -> Path:
    """Predict one member, unless it exists; return its folder."""
    output = BASE / f"{seed}-predicted" / f"member-{member:05}"
    if not output.exists():
        command = ["tracebed", "simulate", str(BASE / f"{seed}.csv"), "--policy", "slurm", *options]
        command += ["--over-limit", "kill", "-P", f"seed={member}", "-o", str(output)]
        subprocess.run(command, check=True, capture_output=True)
    return output


def starts_of(folder: Path) -> pd.Series:
    """Return the start of each job, s."""
    return tb.Run.load(folder).jobs.set_index("job_id")["start"]


def boots_of(folder: Path) -> int:
    """Return the number of boots of a prediction."""
    return int((tb.Run.load(folder).nodes["power_state"] == "boot").sum())


def compare(seed: int, real: Sequence[Path], options: Sequence[str]) -> None:
    """Predict, and print the starts and the boots of the real and the predicted runs, and the verdicts."""
    write = sys.stdout.write
    write("| replay | phase, s | start: median error | within 2 s | mean wait | predicted | boots | predicted |\n")
    write("|---|---|---|---|---|---|---|---|\n")
    errors, same_phase = [], []
    for folder in real:
        phase = phase_of(folder)
        close = (each for each in itertools.count(1) if abs((draws(each)[1] - phase + 15) % CHECK_S - 15) < PHASE_S)
        members = [predicted(seed, member, options) for member in itertools.islice(close, SAME_PHASE)]
        same_phase += members
        start, mean = starts_of(folder), pd.DataFrame([starts_of(member) for member in members]).mean()
        error = (mean - start).abs()
        errors.append(error)
        submit = tb.Run.load(folder).jobs.set_index("job_id")["submit"]
        boots = sum(note["what"] == "boot" for note in facts_of(folder)["notes"])
        cells = [f"{phase:.1f}", f"{error.median():.2f} s", f"{(error <= 2.0).mean():.0%}"]
        cells += [f"{(start - submit).mean():.2f} s", f"{(mean - submit).mean():.2f} s"]
        cells += [str(boots), f"{statistics.mean(map(boots_of, members)):.1f}"]
        write(f"| {folder.name} | {' | '.join(cells)} |\n")
    every = pd.concat(errors)
    write(f"all starts: error, median {every.median():.2f} s, within 2 s {(every <= 2.0).mean():.0%}\n")
    drawn_phase = [predicted(seed, member, options) for member in range(1, MEMBERS + 1)]
    boots = [boots_of(member) for member in drawn_phase]
    write(f"boots with drawn phases: {statistics.mean(boots):.1f}, from {min(boots)} to {max(boots)}\n")
    for name, members in (("with the phases of the replays", same_phase), ("with drawn phases", drawn_phase)):
        write(f"verdict {name}\n")
        sys.stdout.flush()
        runs = [text for folder in real for text in ("--real", str(folder))]
        runs += [text for folder in members for text in ("--predicted", str(folder))]
        subprocess.run(["tracebed", "compare", *runs], check=False)


if __name__ == "__main__":
    main()
