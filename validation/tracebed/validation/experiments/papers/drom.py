"""The use cases of the DROM paper (sections 6.1 and 6.2), replayed: one job after the other against sharing by DROM."""

from __future__ import annotations

import os
from collections.abc import Iterator
from statistics import mean
from typing import NamedTuple

import pandas as pd

from tracebed.converters.provenance import Provenance, System
from tracebed.converters.workload import Workload
from tracebed.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.testbeds.nodes import Inventory, Node
from tracebed.validation.experiments.papers.base import Findings, FindingsTable, Settings, percent
from tracebed.validation.experiments.papers.replays import inventory_of, replayed

SPEED = 100.0
SIMULATION_S = 2000.0
"""Run time of a simulation on all cores, trace s."""
ANALYTICS_S = 80.0
ANALYTICS_AT_S = 200.0
"""With these two the response of the analytics job falls by up to 96 %, as in the paper."""
PRIORITY_AT_S = 1000.0
GRAIN_S = 0.02
COLUMNS = ("workload", "total", "simulation", "second job", "average response", "paper: total", "paper: average")


class Job(NamedTuple):
    """A job of a use case, on all nodes."""

    name: str
    application: str
    submit_s: float
    run_time_s: float
    cores: int
    parameters: str = ""


class Outcome(NamedTuple):
    """Figures of a scenario, means over its repetitions, s."""

    total: float
    responses: tuple[float, float]

    @property
    def average(self) -> float:
        """Average response of the two jobs, s."""
        return mean(self.responses)


def in_situ(settings: Settings) -> Findings:
    """A simulation, then an analytics job: one after the other against DROM (DROM paper, section 6.1)."""
    inventory = _inventory(settings)
    cores = min(node.cores for node in inventory.nodes)
    rows = []
    for simulation in ("nest", "coreneuron"):
        for label, application, asked in _analytics(cores):
            pair = (
                Job("simulation", simulation, 0.0, SIMULATION_S, cores, "data=static"),
                Job("analytics", application, ANALYTICS_AT_S, ANALYTICS_S, asked),
            )
            name = f"{simulation} + {label}"
            total, average = PAPER[simulation, application, asked == cores]
            rows.append([*_compared(settings, inventory, name, pair, "asked"), total, average])
    notes = (
        *_notes(inventory),
        "Conf. 2 of the simulations has two ranks on a node. Jobs of tracebed have one, as in Conf. 1.",
        "Data of the simulations are divided by the first cores, as in figure 5 of the paper: with few cores on a node,"
        " one core less costs the simulation more than with the paper's 16.",
    )
    return Findings("In situ analytics", [FindingsTable("DROM against serial", COLUMNS, rows)], notes)


def high_priority(settings: Settings) -> Findings:
    """Two long simulations, equipartition: one after the other against DROM (DROM paper, section 6.2)."""
    inventory = _inventory(settings)
    cores = min(node.cores for node in inventory.nodes)
    pair = (
        Job("nest", "nest", 0.0, SIMULATION_S, cores),
        Job("coreneuron", "coreneuron", PRIORITY_AT_S, SIMULATION_S, cores),
    )
    row = [*_compared(settings, inventory, "nest + coreneuron", pair, "even"), "-2.5 %", "-10 %"]
    notes = (
        *_notes(inventory),
        "With equal efficiency on fewer cores, equipartition delays the first job by the rest of its work and ends the"
        " second job when it ends serially: the average response grows. The paper's gain comes from a better"
        " efficiency of its applications on fewer threads, which the applications here do not have.",
    )
    return Findings("High-priority job", [FindingsTable("DROM against serial", COLUMNS, [row])], notes)


PAPER = {
    ("nest", "pils", True): ("+0.6 % on average", "-37 to -48 %"),
    ("nest", "pils", False): ("-5.9 % on average", "-37 to -48 %"),
    ("nest", "stream", False): ("-1.84 % on average, -3.5 % at best", "-37 to -48 %"),
    ("coreneuron", "pils", True): ("+5 % at worst", "-46.5 % on average"),
    ("coreneuron", "pils", False): ("better", "-46.5 % on average"),
    ("coreneuron", "stream", False): ("-5.3 % on average, -8 % at best", "-46.5 % on average"),
}
"""(simulation, analytics, all cores) -> published change of the total run time, and of the average response."""


def _analytics(cores: int) -> Iterator[tuple[str, str, int]]:
    """Yield label, application and cores of the analytics jobs of table 1, scaled from 16 cores a node to `cores`."""
    shares = (("Conf. 1", "pils", 1.0), ("Conf. 2", "pils", 1 / 16), ("Conf. 3", "pils", 4 / 16))
    seen = set()
    for label, application, share in (*shares, ("2 x 2", "stream", 2 / 16)):
        asked = max(1, round(share * cores))
        if (application, asked) not in seen:  # on few cores, two configurations are the same
            seen.add((application, asked))
            yield f"{application} {label}, {asked} of {cores} cores", application, asked


def _compared(settings: Settings, inventory: Inventory, name: str, pair: tuple[Job, Job], split: str) -> list[str]:
    """Return the row of a pair of jobs: the changes by DROM against one job after the other."""
    runs: dict[str, list[Run]] = {"serial": [], "share": []}
    for repetition in range(1, settings.repetitions + 1):
        for mode in runs:
            settings.on_step(f"{name}: {mode}, {repetition} of {settings.repetitions}")
            slug = "".join(char if char.isalnum() else "-" for char in name)
            run = replayed(
                settings,
                f"{slug}-{mode}-{repetition}",
                _workload(pair, inventory),
                inventory,
                "drom-share",
                {"mode": mode, "split": split},
                name=name,
                speed=settings.speed or SPEED,
            )
            runs[mode].append(run)
    serial, shared = (_outcome(found, name) for found in runs.values())
    changes = [
        (serial.total, shared.total),
        *zip(serial.responses, shared.responses, strict=True),
        (serial.average, shared.average),
    ]
    return [name, *(percent(*change) for change in changes)]


def _workload(pair: tuple[Job, Job], inventory: Inventory) -> Workload:
    nodes = len(inventory.nodes)
    table = pd.DataFrame(
        {
            "job_id": [job.name for job in pair],
            "submit_time": [job.submit_s for job in pair],
            "run_time": [job.run_time_s for job in pair],
            "time_limit": [10 * job.run_time_s for job in pair],
            "nodes": nodes,
            "cores_per_node": [job.cores for job in pair],
            "kind": "malleable",
            "nodes_min": nodes,
            "nodes_max": nodes,
            "application": [job.application for job in pair],
            "application_parameters": [job.parameters for job in pair],
        }
    )
    return Workload(table, Provenance(System(nodes, max(job.cores for job in pair), inventory.name)))


def _outcome(runs: list[Run], name: str) -> Outcome:
    """Return the means over the repetitions. Raises InputError if a job has not completed."""
    totals, responses = [], []
    for run in runs:
        if set(run.jobs["state"]) != {"completed"}:
            what = "a job has not completed"
            raise InputError(what, where=name, hint="remove its runs, and start the experiment again")
        jobs = run.jobs.set_index("job_id")
        totals.append(float(jobs["end"].max() - jobs["submit"].min()))
        responses.append((jobs["end"] - jobs["submit"]).tolist())
    first, second = (mean(column) for column in zip(*responses, strict=True))
    return Outcome(mean(totals), (first, second))


def _inventory(settings: Settings) -> Inventory:
    """Return the inventory of the settings, or one node of all cores of this machine.

    Raises:
        InputError: the nodes have one core, which no job can share.
    """
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    own = Inventory("this machine", "agents", (Node("n1", len(cpus), 1, cpus),), grain_s=GRAIN_S)
    inventory = inventory_of(settings, lambda: own)
    if min(node.cores for node in inventory.nodes) < 2:
        what = "a node has one core, which two jobs cannot share"
        raise InputError(what, where=inventory.where, hint="give --inventory with larger nodes, or emulated nodes")
    return inventory


def _notes(inventory: Inventory) -> tuple[str, ...]:
    cores = min(node.cores for node in inventory.nodes)
    size = f"{len(inventory.nodes)} x {cores} cores, {inventory.execution}"
    note = f"Measured on {inventory.name} ({size}). The paper measured on two nodes of 16 cores of MareNostrum 3."
    if inventory.execution == "emulated":
        return (note, "Emulated cores have no memory bandwidth: memory-bound phases gain nothing from a second job.")
    return (note,)
