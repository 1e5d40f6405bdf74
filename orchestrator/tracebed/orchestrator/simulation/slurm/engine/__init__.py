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
from tracebed.orchestrator.simulation.slurm.held import Held
from tracebed.orchestrator.simulation.slurm.simulator import Inputs, Outcome

LIBRARY = Path(__file__).with_name("libtracebed_slurm.so")
WORD = 64
"""Nodes in a word of a mask."""
NUMBER = 4
"""Bytes of each of the three numbers of a range of nodes."""
FROM_POLICY = (
    *("sched_interval", "batch_sched_delay", "default_queue_depth", "sched_max_job_start", "bf_interval"),
    *("bf_resolution", "bf_window", "bf_max_job_test", "bf_max_job_start", "bf_max_job_user", "bf_node_space_size"),
    *("bf_min_age_reserve", "bf_job_part_count_reserve"),
    *(name for name in CLOCKS if name != "speed"),
)
FROM_INPUTS = (
    *("submit", "run_time", "limit", "launch_s", "overrun_s", "end_s", "partition", "user", "fixed", "tier"),
    *("association", "usage_factor", "billing", "billing_most", "age", "max_age_s", "fairshare", "period_s"),
    *("first_period_s", "kill_wait_s", "most_idle", "begin_s", "watched"),
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
    library.tracebed_slurm_simulate.argtypes = [ctypes.POINTER(kind), ctypes.POINTER(ctypes.c_void_p)]
    library.tracebed_slurm_simulate.restype = ctypes.c_int64
    library.tracebed_slurm_free.argtypes, library.tracebed_slurm_free.restype = [ctypes.c_void_p], None
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
    held_parts = [(job, *part) for job, parts in enumerate(inputs.held) for part in parts.items()]
    times = {name: np.full(jobs, np.nan) for name in ("start", "launched", "end")}
    results = {
        **times,
        "refused": np.full(jobs, -1, np.int32),
        "range_first": np.zeros(jobs, np.int64),
        "range_size": np.zeros(jobs, np.int32),
    }
    masks, sets = _numbered([request.eligible for request in requests])
    classes, numbers = _numbered([request._replace(cores=0, fewest=0) for request in requests])
    values: dict[str, Any] = {
        **{name: getattr(policy, name) for name in FROM_POLICY},
        **{name: getattr(inputs, name) for name in FROM_INPUTS},
        **results,
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
        **{"sets": len(masks), "eligible": _masks(masks, nodes), "set": sets},
        **{"classes": len(classes), "class": numbers},
        **{name: getattr(inputs, name) or None for name in ("since", "usage", "factors")},
        "held": held_parts or None,
        "held_count": len(held_parts),
    }
    arrays = {
        name: results[name] if name in results else np.ascontiguousarray(values[name], dtype=code)
        for name, (code, is_array) in fields.items()
        if is_array and values[name] is not None
    }
    setup = kind(**{**values, **{name: array.ctypes.data for name, array in arrays.items()}})
    pointer = ctypes.c_void_p()
    count = library.tracebed_slurm_simulate(ctypes.byref(setup), ctypes.byref(pointer))
    try:
        if count < 0:
            raise MemoryError("the simulation of Slurm needs more memory")
        ranges = np.frombuffer(ctypes.string_at(pointer, 3 * NUMBER * count), np.int32).reshape(count, 3)
    finally:
        library.tracebed_slurm_free(pointer)
    held = Held(*ranges.T, results["range_first"], results["range_size"])
    start, launched, end = (times[name].tolist() for name in ("start", "launched", "end"))
    return Outcome(start, launched, end, held, results["refused"].tolist())


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


def _numbered(values: list[Any]) -> tuple[list[Any], list[int]]:
    """Return the different values, and the number of each."""
    numbers: dict[Any, int] = {}
    found = [numbers.setdefault(value, len(numbers)) for value in values]
    return [*numbers], found


def _masks(masks: list[int], nodes: int) -> Any:
    """Return masks of nodes as words, shape (masks, words)."""
    size = -(-nodes // WORD) * WORD // 8
    everything = (1 << nodes) - 1
    octets = b"".join((mask & everything).to_bytes(size, "little") for mask in masks)
    return np.frombuffer(octets, dtype="<u8").reshape(len(masks), -1)
