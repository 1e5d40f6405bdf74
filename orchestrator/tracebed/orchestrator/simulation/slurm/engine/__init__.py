"""Binding of the compiled engine, slurm.c. It returns the same numbers as `simulator.py`, many times faster."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tracebed.orchestrator.scheduling.policies.slurm import CLOCKS, Slurm
from tracebed.orchestrator.scheduling.slurm.conditions import Arrays, Conditions
from tracebed.orchestrator.scheduling.slurm.licenses import Licenses
from tracebed.orchestrator.scheduling.slurm.outlook import Bookings
from tracebed.orchestrator.scheduling.slurm.preemption import Preemption
from tracebed.orchestrator.simulation.engine.library import fields_of, structure
from tracebed.orchestrator.simulation.slurm.inputs import Inputs, Outcome, Stint

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
    *("account", "user_share", "account_share", "age", "max_age_s", "fairshare", "half_life_s", "period_s"),
    *("first_period_s", "kill_wait_s", "begin_s", "watched", "array_reservations"),
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
    tasks = inputs.arrays or Arrays.none(jobs)
    held_parts = [(job, *part) for job, parts in enumerate(inputs.held) for part in parts.items()]
    times: dict[str, Any] = {name: np.full(jobs, np.nan) for name in ("start", "launched", "end", "active")}
    times |= {name: np.zeros(jobs, dtype=np.int32) for name in ("fate", "restarts")}
    values: dict[str, Any] = {
        **{name: getattr(policy, name) for name in FROM_POLICY},
        **{name: getattr(inputs, name) for name in FROM_INPUTS},
        **times,
        **{"jobs": jobs, "nodes": nodes, "kinds": len(free.gres[0]), "partitions": len(inputs.tier)},
        **{"users": len(inputs.account), "accounts": len(inputs.account_share)},
        **{"cores": free.total, "memory": free.total_memory, "gres": free.gres},
        **{"groups": free.groups, "weights": free.weights},
        "wanted_cores": [request.cores for request in requests],
        "per_node": [request.per_node for request in requests],
        "fewest": [request.fewest for request in requests],
        "whole": [request.whole for request in requests],
        "wanted_memory": [request.memory for request in requests],
        "by_core": [request.by_core for request in requests],
        "wanted_gres": [request.gres for request in requests],
        **{name: getattr(inputs, name) or None for name in ("since", "usage", "factors")},
        "held": held_parts or None,
        "held_count": len(held_parts),
        "eligible": _masks([request.eligible for request in requests], nodes),
        **_of_conditions(inputs.conditions or Conditions.none(jobs)),
        **{"array": tasks.of, "array_most": tasks.most, "arrays": len(tasks.most)},
        **_of_licenses(inputs.licenses or Licenses.none(jobs)),
        **_of_bookings(inputs.bookings or Bookings.none(jobs), nodes, policy.epoch_s),
        **_of_preemption(inputs.preemption or Preemption.none(jobs)),
        **{"stint_count": np.zeros(1, dtype=np.int64), "stint_room": 0, "stints": None},
    }
    arrays = {
        name: times[name] if name in times else np.ascontiguousarray(values[name], dtype=code)
        for name, (code, is_array) in fields.items()
        if is_array and name != "stints" and values[name] is not None
    }
    setup = kind(**{**values, **{name: array.ctypes.data for name, array in arrays.items()}})
    room, setup.stint_room = max(1, sum(max(request.fewest, 1) for request in requests) * 2), jobs
    while True:
        parts, stints = np.empty((room, 3), dtype=np.int32), np.empty((setup.stint_room, 3))
        setup.stints = stints.ctypes.data
        count = library.tracebed_slurm_simulate(ctypes.byref(setup), parts.ctypes.data, room)
        if count < 0:
            raise MemoryError("the simulation of Slurm needs more memory")
        stint_count = int(arrays["stint_count"][0])
        if count <= room and stint_count <= setup.stint_room:
            break
        room, setup.stint_room = max(room, count), max(setup.stint_room, stint_count)
    held: list[dict[int, int]] = [{} for _ in range(jobs + stint_count)]
    for owner, node, cores in parts[:count].tolist():
        held[owner][node] = cores
    start, launched, end, active, fate, restarts = (array.tolist() for array in times.values())
    before = [
        Stint(int(job), begin, until, held[jobs + at])
        for at, (job, begin, until) in enumerate(stints[:stint_count].tolist())
    ]
    return Outcome(start, launched, end, active, fate, restarts, [*held[:jobs]], before)


def _of_conditions(conditions: Conditions) -> dict[str, Any]:
    """Return the fields of the structure for the conditions of the starts."""
    every = [condition for own in conditions.dependencies for condition in own]
    return {
        **{name: getattr(conditions, name) for name in ("earliest", "any_of", "group", "fails")},
        "kill_invalid": conditions.kill_invalid,
        "condition_first": np.cumsum([0, *map(len, conditions.dependencies)]),
        "condition_kind": [condition.kind for condition in every],
        "condition_of": [condition.of for condition in every],
        "condition_delay": [condition.delay_s for condition in every],
    }


def _of_licenses(licenses: Licenses) -> dict[str, Any]:
    """Return the fields of the structure for licences."""
    kinds = len(licenses.total)
    wanted = {"licenses": licenses.total, "wanted_licenses": licenses.wanted if kinds else [0]}
    return {**wanted, "license_kinds": kinds, "plan_licenses": licenses.planned and kinds > 0}


def _of_bookings(bookings: Bookings, nodes: int, epoch_s: float) -> dict[str, Any]:
    """Return the fields of the structure for advance reservations."""
    booked = bookings.booked
    ends = sorted({float(each.end) - epoch_s for each in booked})
    return {
        "inside": bookings.inside,
        "bookings": len(booked),
        **{f"booked_{name}": [getattr(each, name) for each in booked] for name in ("begin", "end", "kill")},
        "booked_nodes": _masks([each.nodes for each in booked], nodes) if booked else [0],
        **{"notices": bookings.notices, "notice_count": len(bookings.notices)},
        **{"changes": ends, "change_count": len(ends)},
    }


def _of_preemption(preemption: Preemption) -> dict[str, Any]:
    """Return the fields of the structure for preemption."""
    classes = range(len(preemption.may))
    return {
        **{name: getattr(preemption, name) for name in ("rank", "mode", "youngest", "again")},
        **{"class_of": preemption.of, "classes": len(classes), "preempts": any(preemption.may)},
        **{"grace": preemption.grace_s, "exempt": preemption.exempt_s},
        "may": [[may >> other & 1 for other in classes] for may in preemption.may],
    }


def _masks(masks: list[int], nodes: int) -> Any:
    """Return masks of nodes as words, shape (masks, words)."""
    size = -(-nodes // WORD) * WORD // 8
    everything = (1 << nodes) - 1
    octets = b"".join((mask & everything).to_bytes(size, "little") for mask in masks)
    return np.frombuffer(octets, dtype="<u8").reshape(len(masks), -1)
