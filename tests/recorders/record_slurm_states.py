"""Records the state of a real Slurm at many instants of a run, with Slurm's own forecasts of the waiting jobs.

    python -m tests.recorders.record_slurm_states tests/slurm_recordings/states/states-1.json.xz --seed 1

needs root, Slurm with accounting, and the users of `USERS`, which the script adds. A run takes 25 minutes. The cluster
is that of `record_slurm_shared.py`: three partitions, three kinds of nodes, shared nodes, memory, a generic resource
and fair shares. Users repeat programs: a program has a size, a limit and run times around a share of the limit. The
programs are the same for every seed, and a seed draws which jobs arrive when.

The file has the accounting of the run (`sacct`), and for every instant the output of the commands of `STATE` and of
`squeue --start`.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.recorders.record_slurm_shared import CONF, SharedSlurm, command
from tests.servers.slurmd import make_users, settings_of
from tracebed.converters.formats.sacct import COMMAND

USERS = {f"tracebed{number}": f"account{(number - 1) % 3 + 1}" for number in range(1, 9)}
"""User -> account."""
CORES = 44
STATE = {
    "config": ("scontrol", "show", "config"),
    "partition": ("scontrol", "-o", "show", "partition"),
    "node": ("scontrol", "-o", "show", "node"),
    "job": ("scontrol", "-d", "-o", "show", "job"),
    "sprio": ("sprio", "-l"),
    "sshare": ("sshare", "-a", "-l", "-P"),
}
"""File of a state -> the command whose output it has."""
START = ("squeue", "--start", "-h", "-o", "%i|%S")
FIRST_S, LAST_S, STEP_S = 90, 690, 30
"""The instants of the states."""
SUBMIT_S = 1400
"""Jobs are submitted until then."""
LOAD = 0.82
"""Offered load. Shared nodes and backfill use some 85 % of the cores."""
QUEUE_S = 75
"""Until then, three times as many jobs arrive: a queue begins."""


def programs(user: int) -> list[dict[str, Any]]:
    """Return the programs of a user: what they request, their limits, and the run times as shares of the limit."""
    draw = random.Random(f"programs of {user}")
    found = []
    for _ in range(4):
        part = draw.choices(("main", "short", "lic"), (8, 3, 1))[0]
        sizes = (1, 2, 4) if part != "main" else (1, 2, 3, 4, 8, 12, 16)
        cores = draw.choices(sizes, (5, 5, 2, 4, 3, 1, 0.5)[: len(sizes)])[0]
        limit = draw.choice((1, 2)) if part == "short" else draw.choices((1, 2, 3, 5, 10), (1, 3, 3, 4, 2))[0]
        found.append(
            {
                "partition": part,
                "cores": cores,
                "per_node": 4 if cores >= 4 and draw.random() < 0.4 else 0,
                "limit": limit,
                "share": draw.choice((0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.9)),
                "sigma": draw.choice((0.1, 0.2, 0.4, 0.7)),
                "feature": "b" if part == "main" and draw.random() < 0.15 else "",
                "lic": draw.choice((0, 1, 2)) if part == "lic" else 0,
                "memory": 3000 if part == "main" and cores <= 4 and draw.random() < 0.1 else 0,
            }
        )
    return found


def drawn(seed: int) -> list[dict[str, Any]]:
    """Draw the jobs: submission (s), run time (s), limit (minutes) and what each requests."""
    draw = random.Random(seed)
    known = {user: programs(user) for user in range(1, len(USERS) + 1)}
    sessions = []
    for _ in range(1000):  # a session: a user submits a program once or several times
        user = draw.choices(range(1, len(USERS) + 1), (6, 4, 4, 3, 2, 2, 1, 1))[0]
        program = dict(draw.choice(known[user]))
        if draw.random() < 0.1:  # a program that the user has not run before
            program |= {"share": draw.uniform(0.02, 1.0), "limit": draw.choice((2, 5, 10))} | (
                {"limit": 2} if program["partition"] == "short" else {}
            )
        jobs = []
        times = draw.choices((1, 2, 4, 6), (6, 3, 2, 1))[0]
        for _ in range(times if program["cores"] < 8 else 1):
            run = program["limit"] * 60 * program["share"] * draw.lognormvariate(0, program["sigma"])
            if draw.random() < 0.05:  # a failure soon after the start
                run = draw.uniform(1, 6)
            jobs.append({"user": f"tracebed{user}", "run": round(max(1.0, run), 1), **program})
        sessions.append(jobs)
    now, found = 0.0, []
    for jobs in sessions:
        at = now
        for job in jobs:
            found.append(job | {"submit": round(at, 2)})
            at += draw.uniform(0.2, 3.0)
        work = sum(job["cores"] * min(job["run"], job["limit"] * 60) for job in jobs)
        now += work / CORES / (LOAD if now > QUEUE_S else 3.0) * draw.uniform(0.3, 1.7)
    return sorted((job for job in found if job["submit"] < SUBMIT_S), key=lambda job: job["submit"])


def run(folder: Path, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Run the jobs. Return the accounting and the states."""
    own = {"AccountingStorageEnforce": "associations", "MinJobAge": "60"}
    slurm = SharedSlurm(folder, nodes=8, cores=4, accounting=True, settings=settings_of(CONF) | own)
    states = []
    try:
        slurm.up()
        slurm.add_users(USERS)
        zero = time.time()
        due = [(job["submit"], command(job, USERS[job["user"]])) for job in jobs]
        due += [(float(at), []) for at in range(FIRST_S, LAST_S + 1, STEP_S)]
        for at, submit in sorted(due):
            time.sleep(max(0.0, zero + at - time.time()))
            if submit:
                slurm(*submit)
            else:
                state = {name: slurm(*words) for name, words in STATE.items()}
                states.append({"at": round(time.time(), 2), **state, "start": slurm(*START)})
        waited = {line.split("|")[0] for state in states for line in state["start"].splitlines()}
        while waited & {*slurm("squeue", "-h", "-t", "PD", "-o", "%i").split()}:
            time.sleep(1)
        words = COMMAND.split()
        words[words.index("DATE")] = "now-2hours"
        sacct = slurm(*words[:1], "-X", *words[1:])
    finally:
        slurm.down()
    return {"sacct": sacct, "states": states}


def main() -> None:
    """Record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    make_users(USERS)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # the users read their scripts there
        recorded = run(Path(folder), drawn(given.seed))
    content = json.dumps({"slurm": "22.05.8", **recorded}, separators=(",", ":"))
    given.file.write_bytes(lzma.compress(content.encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
