"""Binding of slurm.c, the simulation of Slurm on a cluster whose jobs share nodes.

The reference of slurm.c is `tests/oracles/slurm_simulation`, which returns the same numbers, to the bit.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tracebed.ground.errors import InputError
from tracebed.orchestrator.scheduling.names import RESIZE_POLICIES
from tracebed.orchestrator.scheduling.policies.slurm import OF_CONF, OF_SLURMCTLD, Slurm
from tracebed.orchestrator.simulation.engine.library import fields_of, structure
from tracebed.slurm.simulation.allocated_ranges import AllocatedRanges
from tracebed.slurm.simulation.inputs import (
    GRES,
    Arrays,
    Associations,
    Availability,
    Bookings,
    Conditions,
    Entries,
    Inputs,
    Licenses,
    Limits,
    Outcome,
    PowerSaving,
    Preemption,
    Resized,
    Resizing,
    Stint,
    Switched,
)
from tracebed.slurm.simulation.resources import Request, Resources, Switches

LIBRARY = Path(__file__).with_name("libtracebed_slurm.so")
INSTALL = "install a C compiler (apt-get install gcc libc6-dev), then tracebed again; or a wheel of `tox -e release`"
WORD = 64
"""Nodes in a word of a mask."""
STINT = np.dtype([("start", "f8"), ("end", "f8"), ("range_first", "i8"), ("range_size", "i4"), ("job", "i4")])
TIMES = ("asked", "decided", "applied", "ended")
RESIZED = np.dtype(
    [*((name, "f8") for name in TIMES), *((name, "i4") for name in ("job", "before", "after"))], align=True
)
SWITCHED = np.dtype([("at", "f8"), ("node", "i4"), ("on", "i4")])
NUMBER = 4
"""Bytes of each of the three numbers of a range of nodes."""
FROM_POLICY = tuple(name for name in (*sorted(OF_CONF), *OF_SLURMCTLD) if name != "speed")
FROM_INPUTS = (
    *("submit", "run_time", "limit", "launch_s", "overrun_s", "over_limit_s", "end_s", "partition", "user", "fixed"),
    *("tier", "association", "usage_factor", "reserve", "billing", "billing_most", "age", "max_age_s", "fairshare"),
    "period_s",
    *("first_period_s", "kill_wait_s", "check_s", "begin_s", "watched", "array_reservations"),
    *("job_depth", "part_test", "user_part_test", "complete_wait_s"),
)

RENAMED = {"cores": "wanted_cores", "memory": "wanted_memory", "gres": "wanted_gres", "sockets": "by_socket"}
"""Fields of `Request` -> their names in the structure, where those of the nodes have the name."""
OPTIONAL = ("shortest", "deadline", "het_job")
"""Fields of `Inputs` that are null in the structure if they are empty."""


class _Results(ctypes.Structure):
    """The results whose sizes the simulation finds out, `struct results`."""

    _fields_ = (
        *(("ranges", ctypes.c_void_p), ("stints", ctypes.c_void_p), ("stint_count", ctypes.c_int64)),
        *(("resizes", ctypes.c_void_p), ("resize_count", ctypes.c_int64)),
        *(("switched", ctypes.c_void_p), ("switched_count", ctypes.c_int64)),
    )


@cache
def _functions() -> tuple[Any, dict[str, tuple[str, bool]], type[ctypes.Structure]]:
    """Return the library, the fields of `struct setup`, and the structure."""
    if not LIBRARY.exists():
        what = "Slurm on a cluster is simulated in C, and there was no C compiler when tracebed was installed"
        raise InputError(what, hint=INSTALL)
    try:
        library = ctypes.CDLL(str(LIBRARY))
        library.tracebed_slurm_description.restype = ctypes.c_char_p
        library.tracebed_slurm_setup_size.restype = ctypes.c_int64
        description = library.tracebed_slurm_description().decode().strip().partition(":")[2]
        fields = fields_of([item.strip() for item in description.split(";")[:-1]])
        kind = structure("SlurmSetup", fields)
        if library.tracebed_slurm_setup_size() != ctypes.sizeof(kind):
            raise OSError("it was built for another platform")
    except (OSError, AttributeError, KeyError, ValueError) as error:
        what = f"{LIBRARY.name} belongs to another machine or version of tracebed: {error}"
        raise InputError(what, hint="install tracebed again") from error
    library.tracebed_slurm_simulate.argtypes = [ctypes.POINTER(kind), ctypes.POINTER(_Results)]
    library.tracebed_slurm_simulate.restype = ctypes.c_int64
    library.tracebed_slurm_free.argtypes, library.tracebed_slurm_free.restype = [ctypes.c_void_p], None
    return library, fields, kind


def simulate(inputs: Inputs, policy: Slurm) -> Outcome:
    """Simulate the jobs on the cluster. Raise InputError if the library is missing, or belongs to another version."""
    return _run(inputs, policy, trial=False)


def fits(empty: Resources, request: Request) -> bool:
    """Return whether a job that requests these resources fits on the empty cluster. Errors: those of `simulate`."""
    amounts = GRES + len(request.gres)
    of_job: dict[str, Any] = {name: [0] for name in ("submit", "run_time", "launch_s", "overrun_s", "over_limit_s")}
    of_job |= {name: [0] for name in ("end_s", "partition", "user", "fixed", "tier", "usage_factor", "reserve")}
    weights: dict[str, Any] = dict.fromkeys(("age", "max_age_s", "fairshare", "period_s", "first_period_s"), 0.0)
    no_association: dict[str, Any] = {"associations": Associations([0], [1.0], [False]), "association": [-1]}
    inputs = Inputs(
        **of_job, **weights, **no_association, limit=[60], requests=[request], free=empty, billing=[[0.0] * amounts]
    )
    return bool(_run(inputs, Slurm(), trial=True).fate[0])


def _run(inputs: Inputs, policy: Slurm, *, trial: bool) -> Outcome:
    """Simulate, or with `trial` find only, as the fate of each job, whether the job fits on the empty cluster."""
    library, fields, kind = _functions()
    free, requests = inputs.free, inputs.requests
    jobs, nodes = len(requests), len(free.total)
    tasks = inputs.arrays or Arrays.none(jobs)
    held_parts = [(job, *part) for job, parts in enumerate(inputs.held) for part in parts.items()]
    times: dict[str, Any] = {name: np.full(jobs, np.nan) for name in ("start", "launched", "end", "active")}
    times |= {name: np.zeros(jobs, dtype=np.int32) for name in ("fate", "restarts")}
    times["refused"] = np.full(jobs, -1, dtype=np.int32)
    results = {**times, "range_first": np.zeros(jobs, np.int64), "range_size": np.zeros(jobs, np.int32)}
    different = {id(request): request for request in requests}  # jobs that request the same often share the object
    number = {key: at for at, key in enumerate(different)}
    which = np.array([number[id(request)] for request in requests], dtype=np.int64)
    wanted = [np.array(column)[which] for column in zip(*different.values(), strict=True)]
    masks, sets = _numbered([request.eligible for request in different.values()])
    classes, numbers = _numbered([request._replace(cores=0, fewest=0) for request in different.values()])
    values: dict[str, Any] = {
        **{name: getattr(policy, name) for name in FROM_POLICY},
        **{name: getattr(inputs, name) for name in FROM_INPUTS},
        **results,
        **{"jobs": jobs, "nodes": nodes, "kinds": len(free.gres[0]), "partitions": len(inputs.tier)},
        "users": int(np.max(inputs.user, initial=0)) + 1,
        "trial": trial,
        **_of_associations(inputs.associations),
        **_of_limits(inputs.limits),
        **{"cores": free.total, "memory": free.total_memory, "gres": free.gres},
        "weights": free.weights,
        **_of_switches(free.switches, nodes),
        **{RENAMED.get(name, name): column for name, column in zip(Request._fields, wanted, strict=True)},
        **{name: getattr(free, name) or None for name in ("threads", "sockets", "kept")},
        **{"sets": len(masks), "eligible": _masks(masks, nodes), "set": np.array(sets)[which]},
        **{"classes": len(classes), "class": np.array(numbers)[which]},
        **{name: getattr(inputs, name) or None for name in ("since", "usage", "factors", *OPTIONAL)},
        "held": held_parts or None,
        "held_count": len(held_parts),
        **_of_conditions(inputs.conditions or Conditions.none(jobs)),
        **{"array": tasks.of, "array_most": tasks.most, "arrays": len(tasks.most)},
        **_of_entries(inputs.entries or Entries.of(range(jobs))),
        **_of_licenses(inputs.licenses or Licenses.none(jobs)),
        **_of_bookings(inputs.bookings or Bookings.none(jobs), nodes, policy.epoch_s),
        **_of_preemption(inputs.preemption or Preemption.none(jobs)),
        **_of_availability(inputs.availability or Availability()),
        **_of_resizing(inputs.resizing),
        **_of_saving(inputs.saving, nodes),
    }
    arrays = {
        name: results[name] if name in results else np.ascontiguousarray(values[name], dtype=code)
        for name, (code, is_array) in fields.items()
        if is_array and values[name] is not None
    }
    setup = kind(**{**values, **{name: array.ctypes.data for name, array in arrays.items()}})
    found = _Results()
    count = library.tracebed_slurm_simulate(ctypes.byref(setup), ctypes.byref(found))
    try:
        if count < 0:
            raise MemoryError("the simulation of Slurm needs more memory")
        ranges = np.frombuffer(ctypes.string_at(found.ranges, 3 * NUMBER * count), np.int32).reshape(count, 3)
        stints = np.frombuffer(ctypes.string_at(found.stints, STINT.itemsize * found.stint_count), STINT)
        resizes = np.frombuffer(ctypes.string_at(found.resizes, RESIZED.itemsize * found.resize_count), RESIZED)
        switched = np.frombuffer(ctypes.string_at(found.switched, SWITCHED.itemsize * found.switched_count), SWITCHED)
    finally:
        for pointer in (found.ranges, found.stints, found.resizes, found.switched):
            library.tracebed_slurm_free(pointer)
    own = slice(jobs - (inputs.resizing.expanders if inputs.resizing else 0))  # without the expanders
    held = AllocatedRanges(ranges, results["range_first"][own], results["range_size"][own])
    before = AllocatedRanges(ranges, stints["range_first"], stints["range_size"])
    rows = zip(*(stints[name].tolist() for name in ("job", "start", "end")), before, strict=True)
    start, launched, end, active, fate, restarts, refused = (array[own].tolist() for array in times.values())
    resized = zip(*(resizes[name].tolist() for name in Resized._fields), strict=True)
    return Outcome(
        *(start, launched, end, active, fate, restarts, refused, held),
        [Stint(*row) for row in rows],
        [Resized(*row) for row in resized],
        [Switched(node, at, bool(on)) for at, node, on in switched.tolist()],
    )


def _of_switches(switches: Switches | None, nodes: int) -> dict[str, Any]:
    """Return the fields of the structure for the switches."""
    if switches is None:
        empty = dict.fromkeys(("switch_nodes", "switch_level", "switch_parent", "switch_distance"))
        return {"switches": 0, "select_rules": 0, **empty}
    return {
        **{"switches": len(switches.nodes), "select_rules": switches.rules},
        "switch_nodes": _masks([*switches.nodes], nodes),
        **{f"switch_{name}": getattr(switches, name) for name in ("level", "parent", "distance")},
    }


def _of_associations(tree: Associations) -> dict[str, Any]:
    """Return the fields of the structure for the tree of fair shares."""
    return {
        **{name: getattr(tree, name) for name in ("parent", "shares", "is_user", "half_life_s", "resets", "dampening")},
        **{"associations": len(tree.parent), "reset_count": len(tree.resets)},
    }


def _of_limits(limits: Limits) -> dict[str, Any]:
    """Return the fields of the structure for limits: those of all groups, and where each group begins."""
    rules = [limit for own in limits.limits for limit in own]
    counted = [each for own in limits.counted for each in own]
    return {
        **{"counters": limits.counters, "limit_group": limits.group},
        "first_limit": np.cumsum([0, *map(len, limits.limits)]),
        "limit_counter": [limit.counter for limit in rules],
        "limit_kind": [limit.kind for limit in rules],
        "limit_most": [limit.most for limit in rules],
        "first_counted": np.cumsum([0, *map(len, limits.counted)]),
        "counted": [counter for counter, _ in counted],
        "counted_kind": [kind for _, kind in counted],
    }


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


def _of_entries(entries: Entries) -> dict[str, Any]:
    """Return the fields of the structure for the entries of jobs in several partitions."""
    return {
        **{"first_entry": entries.first, "following": entries.following},
        **{"several": entries.several, "one_reservation": entries.one_reservation},
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
        **{f"booked_{name}": [getattr(each, name) for each in booked] for name in ("begin", "end", "kill", "flexible")},
        "booked_nodes": _masks([each.nodes for each in booked], nodes) if booked else [0],
        **{"notices": bookings.notices, "notice_count": len(bookings.notices)},
        **{"changes": ends, "change_count": len(ends)},
    }


def _of_preemption(preemption: Preemption) -> dict[str, Any]:
    """Return the fields of the structure for preemption."""
    strata = range(len(preemption.may))
    return {
        **{name: getattr(preemption, name) for name in ("rank", "mode", "youngest", "again")},
        **{"stratum": preemption.of, "strata": len(strata), "preempts": any(preemption.may)},
        **{"grace": preemption.grace_s, "exempt": preemption.exempt_s},
        "may": [[may >> other & 1 for other in strata] for may in preemption.may],
    }


def _of_availability(availability: Availability) -> dict[str, Any]:
    """Return the fields of the structure for the outages of nodes."""
    changes = availability.changes
    of = {f"out_{name}": [getattr(each, name) for each in changes] or None for name in ("at", "node", "kind")}
    return {**of, "out_count": len(changes), "requeues": availability.requeues}


def _of_resizing(resizing: Resizing | None) -> dict[str, Any]:
    """Return the fields of the structure for the layer that resizes running jobs."""
    costs = ("pause_s", "release_s", "merge_s", "merge_rank_s")
    arrays = ("least", "preferred", "most", "expander", "shrinks", "grows")
    if resizing is None:
        nothing = dict.fromkeys((*arrays, "rate_first", "rates"))
        numbers = dict.fromkeys((*costs, "resize_interval_s", "resize_phase_s", "expanders", "merged_counted"), 0)
        return {"resize_policy": -1, **nothing, **numbers}
    return {
        **{name: getattr(resizing, name) for name in (*costs, *arrays, "expanders")},
        "resize_policy": RESIZE_POLICIES.index(resizing.policy),
        **{"resize_interval_s": resizing.interval_s, "resize_phase_s": resizing.phase_s},
        "rate_first": np.cumsum([0, *map(len, resizing.rates)])[:-1],
        "rates": [rate for rates in resizing.rates for rate in rates],
        "merged_counted": resizing.counted,
    }


def _of_saving(saving: PowerSaving | None, nodes: int) -> dict[str, Any]:
    """Return the fields of the structure for the power saving."""
    arrays = ("suspend_s", "suspend_timeout_s", "boot_s", "begins_off", "spared", "kept_nodes", "kept_least")
    rates = (
        "suspend_rate",
        "resume_rate",
        "kept_count",
        "power_interval_s",
        "power_least_s",
        "power_phase_s",
        "power_linear",
    )
    if saving is None:
        return {**dict.fromkeys(arrays), **dict.fromkeys(rates, 0)}
    return {
        **{name: getattr(saving, name) for name in ("suspend_s", "suspend_timeout_s", "boot_s", *rates[:2])},
        **{"begins_off": saving.off, "spared": _masks([saving.spared], nodes), "kept_count": len(saving.kept)},
        "kept_nodes": _masks([mask for mask, _ in saving.kept], nodes) if saving.kept else [0],
        "kept_least": [least for _, least in saving.kept],
        **{"power_interval_s": saving.interval_s, "power_least_s": saving.least_interval_s},
        **{"power_phase_s": saving.phase_s, "power_linear": saving.linear},
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
