"""Judges predictions of whole workloads by the recordings of `record_slurm_mixed.py`, which no rule was fitted to.

    python -m tests.oracles.slurm_mixed [--seeds 16] [--drawn] [FILE...]
    python -m tests.oracles.slurm_mixed --passes [FILE...]

Each workload is predicted as an ensemble. Errors compare the mean over the ensemble with the mean over the real runs.
The noise ratio is the distance of members from real runs over that of real runs from each other (RMS of the waits).
The members have the phases of the loops of slurmctld that a run had, but for `JITTER_S`. With `--drawn`, phases are
drawn, and the recordings are those whose runs had random phases.
The second form repeats the passes of the first runs, each in the recorded state.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import pickle
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd

from tests.oracles.slurm_simulation import backfill as slurm_plan
from tests.oracles.slurm_simulation.simulator import Simulation
from tests.recorders.record_slurm_mixed import USERS
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.host_lists import host_names
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.node_masks import mask_of
from tracebed.orchestrator.scheduling.policies.registry import resolve
from tracebed.orchestrator.scheduling.policies.slurm import Slurm
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.slurm.conf import read
from tracebed.slurm.machine import SlurmMachine
from tracebed.slurm.simulation import prediction
from tracebed.slurm.simulation.inputs import Inputs

FOLDER = Path(__file__).parents[1] / "slurm_recordings" / "mixed"
LATENCIES = Overheads(launch_s=0.035, end_s=0.018)
"""Those of the documented recordings (`slurm_accuracy.LATENCIES`)."""
FIGURES = ("makespan", "wait", "response")
JITTER_S = 0.05
"""Standard deviation of the phases in an ensemble: the loops drift on a busy machine."""
COMPLETING_S = 0.05
"""A pass so soon after the end of a job is not compared: the nodes of the job may not be free yet."""
LOOPS_S = (Slurm.bf_loop_s, Slurm.sched_loop_s)


def recorded(path: Path) -> dict[str, Any]:
    """Return a recording."""
    content: dict[str, Any] = json.loads(lzma.decompress(path.read_bytes()))
    return content


def workload_of(recording: dict[str, Any], asked: Sequence[float]) -> Workload:
    """Return the jobs as they were submitted in a run. The zero of time is the first submission."""
    rows: list[dict[str, Any]] = []
    for number, (job, at) in enumerate(zip(recording["jobs"], asked, strict=True), 1):
        per_node = job["per_node"]
        row = {
            "submit_time": at - asked[0],
            "time_limit": 60.0 * job["limit"],
            "nodes": job["cores"] // (per_node or 1),
            "cores_per_node": per_node or 1,
            "spread": int(not per_node),
            "fewest_nodes": 1,
            "memory_mib": job["memory"] or math.nan,
            "features": job["feature"],
            "gres": f"acc:{job['acc']}" if job["acc"] else "",
            "user": job["user"],
            "group": USERS[job["user"]],
            "partition": job["partition"],
            "queue": job["qos"],
            "dependency": f"{job['how']}:{job['after'] + 1}" if job["after"] >= 0 else "",
            "array": f"{number}%{job['at_once']}" if job["at_once"] else str(number) if job["tasks"] else "",
        }
        ids = [f"{number}_{task}" for task in range(job["tasks"])] or [str(number)]
        rows += [{"job_id": name, **row} for name in ids]
    return Workload(pd.DataFrame(rows).assign(run_time=recording["run_s"]), Provenance(system=System(8, 8)))


def machine_of(recording: dict[str, Any]) -> SlurmMachine:
    """Return the machine."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("slurm.conf", "dump.cfg", "qos.txt")]
        for file, name in zip(files, ("conf", "dump", "qos"), strict=True):
            file.write_text(recording[name])
        machine = read(*files).machine
    assert machine is not None
    return machine


def simulated(workload: Workload, machine: SlurmMachine, zero: float, seed: int, phases: Sequence[float]) -> Any:
    """Return the starts and ends of a member, s since the first submission. `phases`: empty: they are drawn."""
    settings, draws = {"seed": seed, "epoch_s": zero}, prediction._drawn
    if phases:
        jitter = np.random.default_rng(seed).normal(0.0, JITTER_S, 2)
        loops = [max(1e-3, at % loop + by) for at, loop, by in zip(phases, LOOPS_S, jitter, strict=False)]
        settings |= {"bf_phase_s": loops[0], "sched_phase_s": loops[1]}

    def drawn(policy: Slurm, inputs: Inputs, seed: int) -> tuple[Slurm, Inputs]:
        policy, inputs = draws(policy, inputs, seed)
        return policy, replace(inputs, first_period_s=phases[2]) if phases else inputs

    with mock.patch.object(prediction, "_drawn", drawn):
        run = predict(
            workload, machine, "slurm", over_limit=OverLimit.KILL, policy_parameters=settings, overheads=LATENCIES
        )
    end = run.jobs["end"].to_numpy()
    return end - workload.floats("run_time"), end


def judged(recording: dict[str, Any], seeds: int, *, known: bool = True) -> dict[str, float]:
    """Return the relative errors of a recording, its noise ratio, and the spread of the real runs."""
    machine, real, members = machine_of(recording), [], []
    for run in recording["runs"]:
        workload, zero = workload_of(recording, run["asked"]), run["asked"][0]
        submit = workload.floats("submit_time")
        real.append(_run(np.array(run["start"]) - zero, np.array(run["end"]) - zero, submit))
        phases = run["phases"] if known else ()
        members += [_run(*simulated(workload, machine, zero, seed, phases), submit) for seed in range(seeds)]
    found = {}
    for at, name in enumerate(FIGURES):
        mean, real_mean = (float(np.mean([each[at] for each in runs])) for runs in (members, real))
        found[name] = mean / real_mean - 1.0
        found[f"{name} of runs"] = real_mean
        found[f"{name} cv"] = float(np.std([each[at] for each in real], ddof=1)) / real_mean
    noise = np.mean([_distance(a, b) for a, b in combinations(real, 2)])
    found["noise ratio"] = float(np.mean([_distance(a, b) for a in members for b in real]) / noise)
    return found


def _run(start: Any, end: Any, submit: Any) -> tuple[float, float, float, Any]:
    return float(end.max()), float((start - submit).mean()), float((end - submit).mean()), start - submit


def _distance(a: tuple[float, float, float, Any], b: tuple[float, float, float, Any]) -> float:
    return float(np.sqrt(((a[3] - b[3]) ** 2).mean()))


class Forced(Simulation):
    """A simulation whose events are those of a recorded run: each pass is compared, and then made as it was.

    A pass that plans the same jobs in another order differs. `counts` are the passes of each kind, those that are
    equal, and computed priorities of waiting jobs; `differ` is the instant of each pass that differs, and its kind.
    """

    def __init__(self, recording: dict[str, Any]) -> None:
        run = recording["runs"][0]
        workload, whole = workload_of(recording, run["asked"]), machine_of(recording)
        policy = resolve("slurm", whole.parameters)[1]
        assert isinstance(policy, Slurm)
        machine, jobs = whole.cluster, Jobs.of(workload, over_limit=OverLimit.KILL)
        setup = Setup.of("slurm", over_limit=OverLimit.KILL)
        inputs, _ = prediction._inputs(workload, jobs, prediction.IdleCluster.of(machine), setup, ScheduleRecord(jobs))
        super().__init__(inputs, replace(policy, epoch_s=run["asked"][0]))
        self.counts, self.differ = Counter[str](), list[tuple[float, str]]()
        self._events_of, self._zero = run["events"], run["asked"][0]
        self._pass_at = self._ended_at = -math.inf
        self._number = {name: at for at, (name, _) in enumerate(machine.nodes)}
        self._rows: dict[str, list[int]] = {}
        row = 0
        for job, own in zip(recording["jobs"], run["ids"], strict=True):
            count = job["tasks"] or 1
            self._rows[own] = [*range(row, row + count)]
            self._rows |= {f"{own}_{task}": [row + task] for task in range(job["tasks"])}
            row += count

    def repeat(self) -> Forced:
        """Go through the recorded events."""
        for at, (instant, kind, *more) in enumerate(self._events_of):
            self.now = instant - self._zero
            if kind == "submit":
                for job in self._rows[more[0]]:
                    self._submit(job)
            elif kind == "end":
                self._end(self._rows[more[0]][0])
                self._ended_at = self.now
            elif kind == "compute":
                self._compute()
            elif kind == "pass":
                self._pass(more[0])
            elif kind == "main":
                self._main_pass(at)
                self._pass_at = self.now
            else:
                self.now = self._pass_at  # the clock is read at the beginning of the pass
                self._start_on(*more)
        return self

    def _start_on(self, token: str, nodes: str) -> None:
        self._refresh()
        job = self._rows[token][0]
        parts = self._free.choose(self._in.requests[job], mask_of(self._nodes(nodes)))
        assert parts is not None, token
        self._start(job, parts)

    def _nodes(self, text: str) -> list[int]:
        return sorted(self._number[name] for name in host_names(text))

    def _count_pass(self, kind: str, equal: bool) -> None:
        if self.now - self._ended_at < COMPLETING_S:
            self.counts[f"{kind} left out"] += 1
            return
        self.counts[kind] += 1
        self.counts[f"{kind} equal"] += equal
        if not equal:
            self.differ.append((self.now, kind))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the recording, which no pass needs."""
        return {name: value for name, value in vars(self).items() if name != "_events_of"}

    def _copied(self) -> Forced:
        """Return a copy for a pass. A deep copy would take ten times as long."""
        copied: Forced = pickle.loads(pickle.dumps(self))
        return copied

    def _main_pass(self, at: int) -> None:
        """Compare a pass of the main loop."""
        real = []
        for instant, kind, *more in self._events_of[at + 1 :]:
            if kind in ("main", "pass") or instant - self._zero > self.now + 0.2:
                break
            if kind == "start":
                real.append((self._rows[more[0]][0], self._nodes(more[1])))
        self._refresh()
        other, found = self._copied(), list[tuple[int, list[int]]]()

        def start(job: int, parts: Any) -> None:
            found.append((job, sorted(parts)))
            Simulation._start(other, job, parts)

        other._start = start  # type: ignore[method-assign]
        for _ in other.main(other._policy, self.now):
            pass
        self._count_pass("main", found == real)

    def _pass(self, tests: list[Any]) -> None:
        """Compare a backfill pass, and start its jobs."""
        self._refresh()
        other, found, plan = self._copied(), list[tuple[int, Any]](), slurm_plan._plan

        def planned(job: Any, now: int, *more: Any) -> Any:
            own = plan(job, now, *more)
            found.append((job.job, own and (0 if own.start <= now else own.start, sorted(own.parts))))
            return own

        with mock.patch.object(slurm_plan, "_plan", planned):
            for _ in other.backfill(other._policy, self.now):
                pass
        real, priorities, taken = list[tuple[int, Any]](), list[bool](), set[int]()
        for token, priority, start, nodes in tests:
            tasks = self._rows[token.removesuffix("_*")]
            job = next(each for each in tasks if each in self.queue and each not in taken)
            taken.add(job)
            if start < 0 and (self._exceeds(job, None) or other._counters.held(job) >= 0):
                continue  # Slurm tests a job that a limit holds, also one reached in this pass, and does nothing
            priorities.append(self._priority[job] == priority)
            real.append((job, None if start < 0 else (start, self._nodes(nodes))))
        self._count_pass("backfill", found == real)
        self.counts["priorities"] += len(priorities)
        self.counts["priorities equal"] += sum(priorities)
        for token, _, start, nodes in tests:
            if start == 0:
                self._start_on(token, nodes)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--drawn", action="store_true", help="draw the phases of the loops of slurmctld")
    parser.add_argument("--passes", action="store_true", help="compare single passes")
    given = parser.parse_args()
    if given.passes:
        for path in given.files or sorted(FOLDER.glob("*.json.xz")):
            forced = Forced(recorded(path)).repeat()
            sys.stdout.write(f"{path.name}: {dict(forced.counts)} differ: {forced.differ}\n")
        return
    write, every = sys.stdout.write, []
    write("| workload | makespan | wait | response | noise ratio | real makespan | real wait | real response |\n")
    write("|---|---|---|---|---|---|---|---|\n")
    for path in given.files or sorted(FOLDER.glob("*.json.xz")):
        recording = recorded(path)
        if given.drawn and not recording.get("random_phases"):
            continue
        found = judged(recording, given.seeds, known=not given.drawn)
        every.append(found)
        real = [f"{found[f'{name} of runs']:.1f} s ± {found[f'{name} cv']:.1%}" for name in FIGURES]
        _row(path.name.partition(".")[0], found, real)
    _row("mean", {name: float(np.mean([found[name] for found in every])) for name in every[0]}, ["", "", ""])


def _row(name: str, found: dict[str, float], real: list[str]) -> None:
    errors = [f"{100 * found[figure]:+.2f} %" for figure in FIGURES]
    sys.stdout.write(f"| {name} | {' | '.join([*errors, format(found['noise ratio'], '.2f'), *real])} |\n")


if __name__ == "__main__":
    main()
