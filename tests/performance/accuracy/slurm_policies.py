"""Malleable jobs on a real Slurm under policies of tracebed, beside the same jobs under Slurm's own backfill: draw the
workloads, calibrate, replay in random order, compare the nodes and times of each run with `sacct`, and the metrics with
predictions (`slurm-policies.yaml`).

It starts a Slurm of 16 nodes on this machine, which needs root and Debian's slurmctld, slurmd, slurm-client, munge,
slurmdbd and mariadb-server. A replay takes 5 to 6 minutes; the whole, with five repetitions, 95 minutes on an otherwise
idle machine. A command that was interrupted continues with the replays that are missing.

    python slurm_policies.py [--repetitions 5]
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

import tracebed.api as tb
from tracebed.converters.workload import Provenance, System

sys.path.append(str(Path(__file__).parents[3]))  # the servers of the tests

from tests.oracles.accounting import agreement
from tests.performance.accuracy.clusters import run, side_by_side
from tests.servers.slurmd import SETTINGS, Slurm

NODES, JOBS, MEAN_S, GAP_S = 16, 100, 12.0, 2.7
SEEDS = {"held-out": 31, "calibration": 32}
POLICIES = ("pref", "dmr")
RUNS = Path("slurm-policies")
CALIBRATION = Path("slurm-policies.calibration.yaml")
RESIZABLE = {
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CPU",
    "SchedulerParameters": f"{SETTINGS['SchedulerParameters']},permit_job_expansion",
}


def drawn(seed: int) -> tb.Workload:
    """Return a workload in which every other job is malleable, from a quarter to four times its size.

    The constants were chosen by simulations, before any replay: under `dmr` too, the jobs expand and shrink at least 50
    times. Rigid jobs are larger and shorter than malleable ones, so that malleable jobs make room.
    """
    draw = np.random.default_rng(seed)
    rows, submit = [], 0.0
    for number in range(JOBS):
        malleable = number % 2 == 0
        nodes = int(draw.integers(2, 5 if malleable else 8))
        run_time = MEAN_S * draw.uniform(0.6, 1.6) * (1.5 if malleable else 0.5)
        least, most = (max(1, nodes // 4), min(NODES, 4 * nodes)) if malleable else (nodes, nodes)
        preferred = max(least, nodes // 2) if malleable else nodes
        row = {"job_id": f"j{number}", "submit_time": submit, "run_time": run_time, "nodes": nodes, "cores_per_node": 2}
        row |= {"nodes_min": least, "nodes_max": most, "nodes_pref": preferred, "time_limit": 600.0}
        row |= (
            {"kind": "malleable", "speedup": "amdahl", "speedup_parameters": "0.95"} if malleable else {"kind": "rigid"}
        )
        rows.append(row)
        submit += draw.exponential(GAP_S)
    return tb.Workload(pd.DataFrame(rows), Provenance(system=System(NODES, 2)))


def folder_of(workload: str, policy: str, repetition: int) -> Path:
    """Return the folder of a run."""
    return RUNS / f"{workload}-{policy}" / f"rep-{repetition:02}"


def replay(cluster: Slurm, workload: str, policy: str, repetition: int) -> Path:
    """Replay a workload under a policy, or under `slurm`, unless the run exists. Return the run."""
    output = folder_of(workload, policy, repetition)
    if not (output / "run.json").exists():
        output.parent.mkdir(parents=True, exist_ok=True)
        deciding = [] if policy == "slurm" else ["--policy", policy]
        command = ["replay", f"slurm-policies-{workload}.csv", "--scheduler", "slurm", *deciding]
        run("tracebed", *command, "-S", f"conf={cluster.conf}", "-o", str(output), "--resume")
    return output


def check(cluster: Slurm, folder: Path) -> None:
    """Print how the nodes and times of a run, made on this cluster, agree with those of `sacct`."""
    found = agreement(cluster, tb.Run.load(folder))
    sys.stdout.write("".join(f"{line}\n" for line in (f"sacct beside {folder}: {found}", *found.defects)))


def main() -> None:
    """Draw, start Slurm, calibrate, replay, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5)
    given = parser.parse_args()
    for name, seed in SEEDS.items():
        path = Path(f"slurm-policies-{name}.csv")
        if not path.exists():
            tb.write(drawn(seed), path)
    cells = [(policy, number) for policy in (*POLICIES, "slurm") for number in range(1, given.repetitions + 1)]
    random.Random(1).shuffle(cells)
    with side_by_side(lambda folder: Slurm(folder, NODES, accounting=True, settings=RESIZABLE), 1) as clusters:
        (cluster,) = clusters.all
        probes = [replay(cluster, "calibration", policy, 1) for policy in POLICIES]
        if not CALIBRATION.exists():
            run("tracebed", "nodes", "calibrate", *map(str, probes), "-o", str(CALIBRATION))
        missing = [cell for cell in cells if not (folder_of("held-out", *cell) / "run.json").exists()]
        for policy, number in missing:
            replay(cluster, "held-out", policy, number)
        for policy, number in missing:
            check(cluster, folder_of("held-out", policy, number))
    command = ["tracebed", "validate", "slurm-policies.yaml", "-o", "slurm-policies-verdict"]
    sys.stdout.write(f"$ {' '.join(command)}\n")
    sys.stdout.flush()
    raise SystemExit(subprocess.run(command, check=False).returncode)  # that of the verdict


if __name__ == "__main__":
    main()
