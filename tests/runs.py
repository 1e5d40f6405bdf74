"""A small builder of synthetic runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracebed.ground.table import Table, texts
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.replay.options import Options
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.setup import SETTINGS, Setup

NAN = float("nan")
COMPLETED_REASON = r"(ran \S+ s, but its plan is \S+ s)?"
"""Regular expression of the reasons of completed jobs of a replay: beside other load a job may be off its plan."""


def replaying(speed: float = 1.0, **named: Any) -> dict[str, Any]:
    """Return the keywords of `replay`: settings of the setup, and the options that only a replay has."""
    own = {field.name: named.pop(field.name) for field in fields(Options) if field.name in named}
    return {"speed": speed, **named, "options": Options(**own)}


Staircase = Sequence[tuple[float, float, int]]


def make_run(
    jobs: Sequence[tuple[float, float, float, int]],
    *,
    machine: int = 4,
    cores: int = 1,
    real: bool = True,
    staircases: Mapping[str, Staircase] | None = None,
    states: Mapping[str, str] | None = None,
    reconfigurations: Sequence[tuple[Any, ...]] = (),
    ids: Sequence[str] | None = None,
    run_times: Mapping[str, float] | None = None,
    sha256: str = "a" * 64,
    **info: Any,
) -> Run:
    """Return a run of `jobs`, each (submit, start, end, nodes), named "1", "2", ...; NaN is an event that never came.

    A job in `staircases` is malleable and holds (from, to, nodes) in turn; it gains and loses nodes at the high
    end. Nodes are allocated first fit. `reconfigurations` are rows of the run's table.
    """
    names = list(ids or [str(n + 1) for n in range(len(jobs))])
    stairs = dict(staircases or {})
    free_from = [-np.inf] * machine
    held: dict[str, list[int]] = {name: [] for name in names}
    allocations = []
    steps = {
        name: stairs.get(name, [(start, end, nodes)])
        for name, (_, start, end, nodes) in zip(names, jobs, strict=True)
        if not np.isnan(start)
    }
    # Among allocations that begin together, those of zero length come first and leave their nodes to the others.
    moments = sorted(
        (step[0], step[1] != step[0], name, index) for name, own in steps.items() for index, step in enumerate(own)
    )
    for begin, _, name, index in moments:
        _, until, count = steps[name][index]
        kept = held[name][:count]
        idle = [node for node in range(machine) if free_from[node] <= begin]
        held[name] = kept + idle[: count - len(kept)]
        assert len(held[name]) == count, f"job {name} does not fit at {begin}"
        for place, node in enumerate(held[name]):
            later = itertools.takewhile(lambda step, place=place: step[2] > place, steps[name][index:])
            free_from[node] = max(step[1] if not np.isnan(step[1]) else np.inf for step in later)
            allocations.append((name, node, begin, until))
    submit, start, end, nodes = (np.array([job[at] for job in jobs], dtype=np.float64) for at in range(4))
    known = run_times or {}
    table = Table(  # tables of columns, since frames would take most of the time of a small run
        {
            "job_id": texts(names),
            "kind": texts(["malleable" if name in stairs else "rigid" for name in names]),
            "submit_planned": submit,
            "submit": submit,
            "start": start,
            "launched": start,
            "end": end,
            "state": texts([(states or {}).get(name, "completed") for name in names]),
            "nodes": nodes.astype(np.int64),
            "run_time": np.array([known.get(n, job[2] - job[1]) for n, job in zip(names, jobs, strict=True)], float),
            "time_limit": np.full(len(names), NAN),
        }
    )
    facts: dict[str, Any] = {
        "source": "replay" if real else "simulator",
        "execution": "emulated" if real else "simulated",
        "nodes": [NodeFacts(f"n{index}", cores) for index in range(machine)],
        "workload": {"name": "tiny", "sha256": sha256, "jobs": len(jobs), "provenance": {}},
        "health": {"state": "healthy", "causes": [], "signals": {}, "thresholds": "0" * 64} if real else {},
    }
    used = Table(
        {
            "job_id": texts([row[0] for row in allocations]),
            "node": np.array([row[1] for row in allocations], dtype=np.int64),
            "count": np.ones(len(allocations), dtype=np.int64),
            "start": np.array([row[2] for row in allocations], dtype=np.float64),
            "end": np.array([row[3] for row in allocations], dtype=np.float64),
            "cores": np.full(len(allocations), cores, dtype=np.int64),
        }
    )
    asked = pd.DataFrame(
        list(reconfigurations),
        columns=["job_id", "kind", "nodes_from", "nodes_to", "asked", "decided", "applied", "ended", "state"],
    )
    return Run(RunInfo(**(facts | with_setup(info))), table, used, asked if len(asked) else None)


def with_setup(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `RunInfo`, with the settings among them and among `parameters` in the setup."""
    parameters = dict(info.get("parameters", {}))
    settings = {name: info[name] for name in SETTINGS if name in info and name != "calibration"}
    settings |= {name: parameters.pop(name) for name in SETTINGS if name in parameters}
    setup = Setup.of(settings.get("policy", "fcfs"), **{name: settings[name] for name in settings if name != "policy"})
    others = {name: value for name, value in info.items() if name not in settings}
    return others | {"setup": setup, "parameters": parameters}


def lending_run(*, real: bool = True, **info: Any) -> Run:
    """Return a run of 100 s on two of five nodes with 4 cores. Job 1 lends one core of each to job 2.

    At 80 s, an operator takes two cores of the second node from job 1.
    """
    run = make_run([(0, 0, 100, 2), (10, 20, 60, 2)], machine=5, cores=4, real=real, **info)
    lent = [("1", 0.0, 20.0, 4), ("1", 20.0, 60.0, 3), ("2", 20.0, 60.0, 1), ("1", 60.0, 100.0, 4)]
    held = pd.DataFrame(lent, columns=["job_id", "start", "end", "cores"]).assign(node=0, count=2)
    changes = [
        ("1", node, 2, before, after, cause, asked, applied)
        for before, after, cause, asked, applied in (
            (4, 3, "lend", 20.0, 22.0),
            (3, 4, "return", 60.0, 61.0),
            (4, 2, "operator", NAN, 80.0),
        )
        for node in ((1,) if cause == "operator" else (0, 1))
    ]
    names = ["job_id", "node", "nodes_from", "cores_from", "cores_to", "cause", "asked", "applied"]
    table = pd.DataFrame(changes, columns=names)
    table = table.assign(nodes_to=2, kind=np.where(table["cores_to"] < table["cores_from"], "shrink", "expand"))
    table = table.assign(state="applied", decided=table["applied"], ended=table["applied"])
    return Run(run.info, run.jobs.assign(kind="malleable"), held, table)


def resize_rows(record: ScheduleRecord) -> list[tuple[Any, ...]]:
    """Return the reconfigurations of a record: (job, nodes from, nodes to, requested, decided, applied, ended)."""
    return list(zip(*vars(record.resizes).values(), strict=True))


def by_node(run: Run) -> pd.DataFrame:
    """Return the allocations with one row per node, in order."""
    rows = run.allocations
    each = rows.loc[np.repeat(rows.index, rows["count"])].reset_index(drop=True)
    return each.assign(
        node=[n for first, count in zip(rows["node"], rows["count"], strict=True) for n in range(first, first + count)]
    )


def fcfs_run(count: int, *, machine: int = 16, seed: int = 0, stretch: float = 1.0, **options: Any) -> Run:
    """Return an FCFS run of `count` random rigid jobs, with run times multiplied by `stretch`."""
    generator = np.random.default_rng(seed)
    submits = np.cumsum(generator.exponential(40.0, count))
    sizes = generator.integers(1, machine // 2 + 1, count)
    times = generator.lognormal(4.0, 1.0, count)
    free = np.zeros(machine)
    earliest, jobs = 0.0, []
    for submit, size, time in zip(submits, sizes, times * stretch, strict=True):
        order = np.argsort(free, kind="stable")
        earliest = max(earliest, submit, free[order[size - 1]])
        free[np.flatnonzero(free <= earliest)[:size]] = earliest + time  # the same nodes as in make_run
        jobs.append((float(submit), float(earliest), float(earliest + time), int(size)))
    plain = {str(n + 1): float(t) for n, t in enumerate(times)}
    return make_run(jobs, machine=machine, run_times=plain, **options)


def campaign(folder: Path, fast: float = 0.9) -> Path:
    """Write five repetitions and a prediction of the policies slow and fast, as an experiment does.

    `fast` is the factor of its predicted run times; the real one is 0.9.
    """
    noise = 0.001 * np.random.default_rng(1).standard_normal((2, 5))
    for policy, real, predicted, own in (("slow", 1.0, 1.0, noise[0]), ("fast", 0.9, fast, noise[1])):
        for number, share in enumerate(own, 1):
            run = fcfs_run(30, seed=1, stretch=real * (1 + float(share)), policy=policy)
            run.save(folder / "real" / f"tiny-{policy}" / f"rep-{number:02d}")
        made = fcfs_run(30, seed=1, stretch=predicted, real=False, policy=policy)
        made.save(folder / "predicted" / "tracebed" / f"tiny-{policy}")
    return folder


def large_run(count: int, *, real: bool, noise: float = 0.0, machine: int = 1024, cores: int = 8) -> Run:
    """Return a run of `count` jobs of one to five nodes; nodes are drawn, so some are allocated twice."""
    generator = np.random.default_rng(0)
    submit = np.sort(generator.uniform(0, 30.0 * count, count))
    start = submit + generator.exponential(500.0, count) * (generator.random(count) < 0.5)
    end = start + generator.lognormal(6.0, 1.5, count) * (1 + noise)
    nodes = generator.integers(1, 6, count)
    ids = np.arange(count).astype(str)
    jobs = pd.DataFrame(
        {
            "job_id": ids,
            "kind": "rigid",
            "submit_planned": submit,
            "submit": submit,
            "start": start,
            "launched": start,
            "end": end,
            "state": "completed",
            "reason": "",
            "nodes": nodes,
            "run_time": end - start,
            "time_limit": 2 * (end - start),
            "user": "",
        }
    )
    row = np.repeat(np.arange(count), nodes)
    held = pd.DataFrame(
        {
            "job_id": ids[row],
            "node": generator.integers(0, machine, len(row)),
            "count": 1,
            "start": start[row],
            "end": end[row],
            "cores": cores,
            "cpus": "",
        }
    )
    info = RunInfo(
        "replay" if real else "simulator",
        "emulated" if real else "simulated",
        [NodeFacts(f"n{index}", cores) for index in range(machine)],
        {"name": "large", "sha256": "a", "jobs": count},
        Setup.of("easy"),
    )
    return Run(info, jobs, held)
