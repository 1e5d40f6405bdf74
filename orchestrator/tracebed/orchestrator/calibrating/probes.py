"""The probes of a calibration: small workloads, and a policy that resizes a job through a ladder of sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd

from tracebed.converters import scaling
from tracebed.converters.malleability import to_malleable
from tracebed.converters.models.cirne import CirneParameters, cirne
from tracebed.converters.provenance import Provenance, System
from tracebed.converters.workload import Workload
from tracebed.orchestrator.scheduling.state import Decision, Resize, Start, State, Wake
from tracebed.orchestrator.testbeds.nodes import Inventory

RIGID_S = 0.1
"""Run time of the rigid jobs of the ladder, wall s."""
RIGID_JOBS = 5
"""Number of rigid jobs of each size."""
MALLEABLE_S = 5.0
"""Run time of the malleable job of the ladder on all nodes, wall s. With its resizes it takes up to twice as long."""
MIX_JOBS = 60
LONGEST_S = 2.0
"""Longest run time in the mix, wall s."""
MIX_LOAD = 0.9
WORK_S = 1.0
"""Run time of the jobs of the speedup probe on one core, wall s."""
STEPS = 0.6180339887498949
"""Golden ratio minus 1. Its multiples modulo 1 are evenly spread, so pauses do not synchronize with iterations."""


@dataclass(frozen=True)
class Ladder:
    """A policy that runs one job at a time. It doubles a malleable job up to its maximum, then shrinks the job.

    Nodes that are lost leave out steps of the ladder, and a job that needs them waits.
    """

    pause_s: float = 1.0
    """Longest pause between two resizes, trace s."""

    malleable: ClassVar[bool] = True

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield the start of the next job, the next resize of the running job, or the time of the next resize."""
        head = state.queue.head
        if not state.size and head is not None and state.jobs.pref[head] <= state.idle:
            yield Start(head, state.jobs.pref[head])
        for job in state.resizable:
            if job in state.resizing:
                continue
            nodes = state.size[job]
            most = min(state.jobs.high[job], nodes + state.idle)
            if state.woken and most > state.jobs.low[job]:
                yield Resize(job, _next_size(nodes, state.jobs.low[job], most))
            else:
                yield Wake(state.now + self.pause_s * (state.now * STEPS % 1.0))


def _next_size(nodes: int, low: int, high: int) -> int:
    """Return the next size of the ladder: twice `nodes`, at most `high`; after `high` follows `low`."""
    return low if nodes == high else min(2 * nodes, high)


def sizes(nodes: int) -> list[int]:
    """Return the numbers of nodes that are measured: powers of two, and all nodes."""
    return sorted({*(2**power for power in range(nodes.bit_length())), nodes})


def ladder(inventory: Inventory, speed: float, seconds: float = 1.0) -> Workload:
    """Return the sequential probe: rigid jobs of every size, then a malleable job.

    Args:
        inventory: the nodes.
        speed: trace seconds per wall second.
        seconds: factor on all run times.
    """
    total, cores = len(inventory.nodes), min(node.cores for node in inventory.nodes)
    rigid = [(RIGID_S, nodes, nodes, "rigid") for nodes in sizes(total) for _ in range(RIGID_JOBS)]
    rows = rigid + ([(MALLEABLE_S, total, 1, "malleable")] if total > 1 else [])
    table = pd.DataFrame(rows, columns=["run_time", "nodes", "nodes_min", "kind"])
    table["run_time"] *= speed * seconds
    table["job_id"] = [f"ladder-{number}" for number in range(len(rows))]
    table["submit_time"] = 0.0
    table["cores_per_node"] = cores
    table["speedup"], table["speedup_parameters"] = "amdahl", "0.5"  # an iteration takes at most twice the grain
    return Workload(table, Provenance(System(total, cores, inventory.name)))


def mix(inventory: Inventory, speed: float, seconds: float = 1.0) -> Workload:
    """Return the busy probe: jobs drawn from Cirne and Berman's model, half of them malleable.

    The arguments are those of `ladder`.
    """
    total, cores = len(inventory.nodes), min(node.cores for node in inventory.nodes)
    drawn = cirne(
        MIX_JOBS, nodes=max(total, 4), cores_per_node=cores, seed=1, parameters=CirneParameters(cancelled=0.0)
    )
    scaled = scaling.scale(drawn, total, cores, longest=LONGEST_S * speed * seconds)
    return scaling.to_load(to_malleable(scaled, 0.5, seed=1), MIX_LOAD)


def speedup_probe(inventory: Inventory, speed: float, seconds: float = 1.0) -> Workload:
    """Return jobs with the same work on 1, 2, 4, ... cores of a node, then on all cores of 1, 2, 4, ... nodes.

    The arguments are those of `ladder`.
    """
    total, cores = len(inventory.nodes), min(node.cores for node in inventory.nodes)
    shapes = [(1, used) for used in sizes(cores)] + [(nodes, cores) for nodes in sizes(total)[1:]]
    table = pd.DataFrame(shapes, columns=["nodes", "cores_per_node"])
    table["job_id"] = [f"speedup-{nodes}-{used}" for nodes, used in shapes]
    table["submit_time"] = 0.0
    table["run_time"] = [WORK_S * speed * seconds / (nodes * used) for nodes, used in shapes]
    return Workload(table, Provenance(System(total, cores, inventory.name)))
