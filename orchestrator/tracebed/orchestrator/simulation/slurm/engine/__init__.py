"""Binding of the compiled engine, slurm.c. It returns the same numbers as `simulator.py`, many times faster."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tracebed.orchestrator.scheduling.policies.slurm import CLOCKS, Slurm
from tracebed.orchestrator.scheduling.slurm.limits import Limits
from tracebed.orchestrator.scheduling.slurm.multifactor import Associations
from tracebed.orchestrator.simulation.engine.library import fields_of, structure
from tracebed.orchestrator.simulation.slurm.simulator import Inputs, Outcome

LIBRARY = Path(__file__).with_name("libtracebed_slurm.so")
WORD = 64
"""Nodes in a word of a mask."""
FROM_POLICY = (
    *("sched_interval", "batch_sched_delay", "default_queue_depth", "sched_max_job_start", "bf_interval"),
    *("bf_resolution", "bf_window", "bf_max_job_test", "bf_max_job_start", "bf_max_job_user", "bf_node_space_size"),
    *("bf_min_age_reserve", "bf_job_part_count_reserve"),
    *(name for name in CLOCKS if name != "speed"),
)
FROM_INPUTS = (
    *("submit", "run_time", "limit", "launch_s", "overrun_s", "end_s", "partition", "user", "fixed", "tier"),
    *("association", "usage_factor", "billing", "billing_most", "age", "max_age_s", "fairshare", "period_s"),
    *("first_period_s", "kill_wait_s", "most_idle"),
)


@cache
def _functions() -> tuple[Any, dict[str, tuple[str, bool]], type[ctypes.Structure]]:
    """Return the library, the fields of `struct setup`, and the structure.

    Raises:
        OSError: the library is missing, or belongs to another version.
    """
    library = ctypes.CDLL(str(LIBRARY))
    try:
        library.tracebed_slurm_description.restype = ctypes.c_char_p
        library.tracebed_slurm_setup_size.restype = ctypes.c_int64
        description = library.tracebed_slurm_description().decode().strip().partition(":")[2]
        fields = fields_of([item.strip() for item in description.split(";")[:-1]])
        kind = structure("SlurmSetup", fields)
        if library.tracebed_slurm_setup_size() != ctypes.sizeof(kind):
            raise OSError(f"{LIBRARY.name} was built for another platform")
    except (AttributeError, KeyError, ValueError) as error:
        raise OSError(f"{LIBRARY.name} belongs to another version of tracebed: {error}") from error
    library.tracebed_slurm_simulate.argtypes = [ctypes.POINTER(kind), ctypes.c_void_p, ctypes.c_int64]
    library.tracebed_slurm_simulate.restype = ctypes.c_int64
    return library, fields, kind


def available() -> bool:
    """Return whether the compiled engine can be used."""
    try:
        _functions()
    except OSError:
        return False
    return True


def simulate(inputs: Inputs, policy: Slurm) -> Outcome:
    """Simulate as `simulator.Simulation(inputs, policy).run()` does.

    Raises:
        OSError: the library is missing, or belongs to another version.
        MemoryError: the memory does not suffice.
    """
    library, fields, kind = _functions()
    free, requests = inputs.free, inputs.requests
    jobs, nodes = len(requests), len(free.total)
    times: dict[str, Any] = {name: np.full(jobs, np.nan) for name in ("start", "launched", "end")}
    times["refused"] = np.full(jobs, -1, dtype=np.int32)
    values: dict[str, Any] = {
        **{name: getattr(policy, name) for name in FROM_POLICY},
        **{name: getattr(inputs, name) for name in FROM_INPUTS},
        **times,
        **{"jobs": jobs, "nodes": nodes, "kinds": len(free.gres[0]), "partitions": len(inputs.tier)},
        **{"users": max(inputs.user, default=0) + 1, "reserves": inputs.reserve},
        **_of_associations(inputs.associations),
        **_of_limits(inputs.limits),
        **{"cores": free.total, "memory": free.total_memory, "gres": free.gres},
        **{"groups": free.groups, "weights": free.weights},
        "wanted_cores": [request.cores for request in requests],
        "per_node": [request.per_node for request in requests],
        "fewest": [request.fewest for request in requests],
        "whole": [request.whole for request in requests],
        "wanted_memory": [request.memory for request in requests],
        "by_core": [request.by_core for request in requests],
        "wanted_gres": [request.gres for request in requests],
        "eligible": _masks([request.eligible for request in requests], nodes),
    }
    arrays = {
        name: times.get(name, np.ascontiguousarray(values[name], dtype=code))
        for name, (code, is_array) in fields.items()
        if is_array and values[name] is not None
    }
    setup = kind(**{**values, **{name: array.ctypes.data for name, array in arrays.items()}})
    room = max(1, sum(max(request.fewest, 1) for request in requests) * 2)
    while True:
        parts = np.empty((room, 3), dtype=np.int32)
        count = library.tracebed_slurm_simulate(ctypes.byref(setup), parts.ctypes.data, room)
        if count < 0:
            raise MemoryError("the simulation of Slurm needs more memory")
        if count <= room:
            break
        room = count
    held: list[dict[int, int]] = [{} for _ in range(jobs)]
    for job, node, cores in parts[:count].tolist():
        held[job][node] = cores
    return Outcome(
        times["start"].tolist(), times["launched"].tolist(), times["end"].tolist(), [*held], times["refused"].tolist()
    )


def _of_associations(tree: Associations) -> dict[str, Any]:
    """Return the fields of the tree of fair shares."""
    return {
        **{"associations": len(tree.parent), "parent": tree.parent, "share": tree.shares, "is_user": tree.is_user},
        **{"resets": tree.resets, "reset_count": len(tree.resets)},
        **{"half_life_s": tree.half_life_s, "dampening": tree.dampening},
    }


def _of_limits(limits: Limits) -> dict[str, Any]:
    """Return the fields of the limits: those of all groups, one after the other, and where each group begins."""
    rules = [limit for own in limits.limits for limit in own]
    counted = [each for own in limits.counted for each in own]
    return {
        **{"counters": limits.counters, "group": limits.group},
        "first_limit": np.cumsum([0, *map(len, limits.limits)]),
        "limit_counter": [limit.counter for limit in rules],
        "limit_kind": [limit.kind for limit in rules],
        "limit_most": [limit.most for limit in rules],
        "first_counted": np.cumsum([0, *map(len, limits.counted)]),
        "counted": [counter for counter, _ in counted],
        "counted_kind": [kind for _, kind in counted],
    }


def _masks(masks: list[int], nodes: int) -> Any:
    """Return masks of nodes as words, shape (masks, words)."""
    size = -(-nodes // WORD) * WORD // 8
    everything = (1 << nodes) - 1
    octets = b"".join((mask & everything).to_bytes(size, "little") for mask in masks)
    return np.frombuffer(octets, dtype="<u8").reshape(len(masks), -1)
