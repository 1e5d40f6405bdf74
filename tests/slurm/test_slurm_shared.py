"""Slurm on nodes that jobs share against recordings of a real Slurm 22.05.8 and 24.11.5 (`record_slurm_shared.py`)."""

from __future__ import annotations

import json
import math
from bisect import insort
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.oracles import slurm_mixed
from tests.oracles.slurm_simulation.backfill import PlannedSlots, Waiting, _plan
from tests.oracles.slurm_simulation.nodes import Nodes, Running
from tests.recorders import record_slurm_shared
from tracebed.converters.workload import Provenance, Step, System, Workload
from tracebed.ground.host_lists import host_names
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.node_masks import mask_of
from tracebed.orchestrator.scheduling.policies.slurm import NEWER
from tracebed.orchestrator.scheduling.policies.slurm_backfill import Rules
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.slurm.conf import read
from tracebed.slurm.machine import SlurmMachine
from tracebed.slurm.simulation import prediction

FOLDER = Path(__file__).parents[1] / "slurm_recordings" / "shared"
RECORDINGS = sorted(path.stem for path in FOLDER.glob("shared-*.json"))
PASSES = {
    "shared-1": {"equal": 46, "decisions": 447},
    "shared-2": {"equal": 61, "decisions": 745},
    "unlike-1": {"equal": 54, "decisions": 565},  # CR_LLN, and nodes whose cores have one or two threads
    "sockets-1": {"equal": 71, "other": 1, "decisions": 1998},  # CR_Socket_Memory
    "newer-1": {"equal": 44, "other": 1, "decisions": 486},
    "newer-2": {"equal": 62, "other": 1, "decisions": 719},
}
"""Recording -> its passes, which are equal, and their decisions."""


@cache
def recorded(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return content


def workload_of(recording: dict[str, Any]) -> Workload:
    """Return the jobs as they were submitted. The zero of time is the first submission."""
    jobs, asked = recording["jobs"], recording["runs"][0]["asked"]
    per_node = [job["per_node"] for job in jobs]
    table = pd.DataFrame({"job_id": [str(number) for number in range(1, len(jobs) + 1)]})
    table["submit_time"] = np.array(asked) - asked[0]
    table["run_time"] = [job["run"] for job in jobs]
    table["time_limit"] = [60.0 * job["limit"] for job in jobs]
    table["nodes"] = [job["cores"] // (each or 1) for job, each in zip(jobs, per_node, strict=True)]
    table["cores_per_node"] = [each or 1 for each in per_node]
    table["spread"] = [int(not each) for each in per_node]
    table["fewest_nodes"] = 1
    table["memory_mib"] = [job["memory"] or math.nan for job in jobs]
    table["features"] = [job["feature"] for job in jobs]
    table["gres"] = [f"lic:{job['lic']}" if job["lic"] else "" for job in jobs]
    table["user"] = [job["user"] for job in jobs]
    table["group"] = [record_slurm_shared.USERS[job["user"]] for job in jobs]
    table["partition"] = [job["partition"] for job in jobs]
    cpus = (Step("read", {"format": "sacct"}),) if "ThreadsPerCore" in recording["conf"] else ()
    return Workload(table, Provenance(system=System(8, 8), steps=cpus))


def machine_of(recording: dict[str, Any], folder: Path) -> SlurmMachine:
    path = folder / "slurm.conf"
    path.write_text(recording["conf"])
    machine = read(path).machine
    assert machine is not None
    return machine


def compared(recording: dict[str, Any], folder: Path) -> Counter[str]:
    """Repeat the passes in the recorded states. A pass is compared up to its first difference."""
    machine = machine_of(recording, folder).cluster
    jobs = Jobs.of(workload_of(recording), cores_per_node=8, over_limit=OverLimit.KILL)
    setup = Setup.of("slurm", over_limit=OverLimit.KILL)
    inputs, _ = prediction._inputs(
        workload_of(recording), jobs, prediction.IdleCluster.of(machine), setup, ScheduleRecord(jobs)
    )
    number = {name: at for at, (name, _) in enumerate(machine.nodes)}
    rules = Rules(10, newer=float(recording["slurm"][:5]) >= NEWER)
    free, running = replace(Nodes.of(inputs.free), newer=rules.newer), dict[int, Running]()
    started = recording["runs"][0]["start"]  # the log tells some starts in the next second
    done, counts = 0, Counter[str]()
    for now, before, tests in recording["runs"][0]["passes"]:
        for at, job, nodes in recording["runs"][0]["events"][done:before]:
            request = inputs.requests[job - 1]
            if nodes:
                parts = free.choose(request, mask_of([number[name] for name in host_names(nodes)]))
                assert parts is not None
                free.take(request, parts)
                begun = started[job - 1] if rules.newer else at
                running[job] = Running(begun + inputs.limit[job - 1], job, request, parts, mask_of(parts.keys()))
            elif job in running:
                free.release(request, running.pop(job).parts)
        done = before
        here, expected = free.copy(), sorted(running.values())
        slots = PlannedSlots(now, now + 86400, (1 << len(machine.nodes)) - 1, newer=rules.newer)
        equal = True
        for job, start, nodes in tests:
            among = mask_of(machine.members(inputs.partition[job - 1]))
            waiting = Waiting(job, inputs.requests[job - 1], inputs.limit[job - 1], among=among)
            planned = _plan(waiting, now, now, here, expected, slots, rules, 86400, machine.kill_wait_s)
            found = None if planned is None else (0 if planned[0] <= now else planned[0], sorted(planned[1]))
            real = None if start < 0 else (start, sorted(number[name] for name in host_names(nodes)))
            equal = found == real
            counts["decisions"] += equal
            if not equal:
                break
            if planned is None:
                continue
            begin, parts, _ = planned
            if begin > now:
                slots.reserve(*rules.span(begin, waiting.limit), mask_of(parts.keys()))
                continue
            here.take(waiting.request, parts)
            insort(expected, Running(now + waiting.limit, job, waiting.request, parts, mask_of(parts.keys())))
        counts["equal" if equal else "other"] += 1
    return counts


@pytest.mark.parametrize("name", PASSES)
def test_all_backfill_passes_are_those_of_slurm(name: str, tmp_path: Path) -> None:
    assert compared(recorded(name), tmp_path) == PASSES[name]


@pytest.mark.parametrize("name", RECORDINGS)
def test_an_ensemble_is_as_close_to_real_runs_as_they_are_to_each_other(name: str, tmp_path: Path) -> None:
    recording = recorded(name)
    workload, machine = workload_of(recording), machine_of(recording, tmp_path)
    zero = recording["runs"][0]["asked"][0]
    waits, ends = [], []
    for seed in range(16):
        run = predict(
            workload,
            machine,
            "slurm",
            over_limit=OverLimit.KILL,
            policy_parameters={"seed": seed, "epoch_s": zero},
        )
        waits.append((run.jobs["start"] - run.jobs["submit"]).to_numpy())
        ends.append(run.jobs["end"].max())
    real = [np.array(run["start"]) - np.array(run["asked"]) for run in recording["runs"]]
    real_ends = [max(run["end"]) - run["asked"][0] for run in recording["runs"]]

    def distance(pairs: list[tuple[Any, Any]]) -> float:
        return float(np.mean([np.sqrt(((a - b) ** 2).mean()) for a, b in pairs]))

    noise = distance([(a, b) for at, a in enumerate(real) for b in real[:at]])
    assert distance([(wait, own) for wait in waits for own in real]) < 1.2 * noise
    assert np.mean(ends) == pytest.approx(np.mean(real_ends), rel=0.05)


# -- Slurm as operators run it -----------------------------------------------------------------------------------------

MIXED = sorted(slurm_mixed.FOLDER.glob("*.json.xz"))


@pytest.mark.slow
@pytest.mark.parametrize("path", MIXED, ids=lambda path: path.name.partition(".")[0])
def test_passes_and_orders_are_those_of_slurm(path: slurm_mixed.Path) -> None:
    forced = slurm_mixed.Forced(slurm_mixed.recorded(path)).repeat()
    assert forced.counts["backfill"] > 100
    assert not [kind for _, kind in forced.differ if kind == "main"]
    assert len(forced.differ) <= 2
