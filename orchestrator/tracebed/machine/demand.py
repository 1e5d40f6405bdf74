"""The demand of a workload by class of a machine: which nodes can serve a job, and what its jobs need of them.

A class can serve a job if it has nodes in a partition of the job (the default one, if the job names none), and each of
its nodes has the cores, the memory, the generic resources and the features that the job demands. A job may hold nodes
of several classes. On a machine without partitions, a job may have any node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracebed.converters.description import ALL_PARTITIONS, HOUR, Capacity, gpus_of
from tracebed.converters.formats.tools.gres import gres_items
from tracebed.converters.workload import BoolArray, FloatArray, IntArray, Workload
from tracebed.ground.errors import InputError
from tracebed.ground.ranges import as_ranges
from tracebed.ground.table import codes_of, grouped
from tracebed.machine.features import satisfies
from tracebed.machine.machine import Machine, NodeClass, Partition, expanded

UNSET_MIB = 1
"""Memory of a node in a slurm.conf that does not say it."""


def cpus_of(kind: NodeClass) -> int:
    """Return the CPUs of each node, as a log of Slurm counts them: hardware threads."""
    return kind.cores * kind.threads


def memory_of(kind: NodeClass) -> float:
    """Return the memory of each node, MiB; infinity: unknown."""
    memory = kind.memory_mib or UNSET_MIB
    return float(memory) if memory > UNSET_MIB else np.inf


def gres_of(kind: NodeClass) -> dict[str, int]:
    """Return the generic resources of each node: name in lower case, and name with type -> number."""
    gres = {name.lower(): count for name, count in kind.gres.items()}
    for name in [name for name in gres if ":" in name]:
        plain = name.partition(":")[0]
        gres.setdefault(plain, sum(count for other, count in gres.items() if other.startswith(f"{plain}:")))
    return gres


def capacities(machine: Machine) -> dict[str, Capacity]:
    """Return what each partition has, and the whole machine (`ALL_PARTITIONS`)."""
    cpus = [cpus_of(kind) for kind in machine.classes]
    gpus = [gres_of(kind).get("gpu", 0) for kind in machine.classes]
    names = names_by_class(machine)
    counts = {part.name: _counts(machine, [part], names) for part in machine.partitions}
    counts[ALL_PARTITIONS] = _counts(machine, [], names)
    return {name: Capacity(int(own.sum()), int(own @ cpus), int(own @ gpus)) for name, own in counts.items()}


def class_demand(workload: Workload, machine: Machine) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a row for each class of nodes with the demand of its jobs, and the reasons why other jobs cannot run.

    The demand of a job that several classes can serve is spread over the nodes of these classes evenly. A job of a
    shared partition needs the largest of its shares of the cores, the memory and the GPUs of a node, any other job
    whole nodes.

    Returns:
        The classes: `names`, `nodes`, `cpus`, `memory_mib` (None: unknown), `gres`, `features` and `partitions` of the
        class; `jobs` that it can serve, `jobs_only` that no other class can serve; `node_hours`, `gpu_hours`; and
        `node_demand`, `gpu_demand` and `memory_demand`, shares of what the class has between the first and the last
        submission. None: unknown, or the class has none.
        The reasons, most jobs first: `reason`, number of `jobs`, id of the `first`.
    """
    names = names_by_class(machine)
    service = Service(workload, machine, names)
    wanted, run = workload.ints("nodes"), np.nan_to_num(workload.floats("run_time"))
    gpus, memory = gpus_of(workload), np.nan_to_num(workload.floats("memory_mib"))
    total = np.maximum((service.can * service.nodes).sum(axis=1), 1)
    several = service.can.sum(axis=1)
    on_node = np.divide(gpus, wanted, out=np.zeros(len(gpus)), where=wanted > 0)
    members = {part.name: _counts(machine, [part], names) for part in machine.partitions}
    span = workload.span / HOUR
    rows = []
    for number, kind in enumerate(machine.classes):
        can = service.can[:, number]
        seconds = np.where(can, run * service.nodes[:, number] / total, 0.0)
        count, has_gpus = len(names[number]), gres_of(kind).get("gpu", 0)
        largest = np.maximum(workload.ints("cores_per_node") / cpus_of(kind), memory / memory_of(kind))
        largest = np.maximum(largest, on_node / has_gpus) if has_gpus else largest
        share = np.where(service.shared, np.minimum(largest, 1.0), 1.0)
        hours = {
            "node": float(seconds @ (wanted * share)) / HOUR,
            "gpu": float(seconds @ gpus) / HOUR,
            "memory": float(seconds @ (wanted * memory)) / HOUR,
        }
        has = {"node": count, "gpu": count * has_gpus, "memory": count * memory_of(kind)}
        rows.append(
            {
                "names": as_ranges(names[number]),
                "nodes": count,
                "cpus": cpus_of(kind),
                "memory_mib": kind.memory_mib if np.isfinite(memory_of(kind)) else None,
                "gres": {name: count for name, count in gres_of(kind).items() if ":" not in name},
                "features": list(kind.features),
                "partitions": [name for name, counts in members.items() if counts[number]],
                "jobs": int(can.sum()),
                "jobs_only": int((can & (several == 1)).sum()),
                "node_hours": hours["node"],
                "gpu_hours": hours["gpu"],
                **{
                    f"{what}_demand": amount / (has[what] * span) if 0 < has[what] < np.inf and span > 0 else None
                    for what, amount in hours.items()
                },
            }
        )
    return rows, service.unserved()


class Service:
    """Which classes of a machine can serve which jobs.

    Attributes:
        can: whether a class can serve a job, also together with others, shape (jobs, classes).
        nodes: nodes of each class in the partitions of a job, shape (jobs, classes).
        shared: whether a job may share nodes, shape (jobs,).
        most_nodes: the most nodes that the partitions of a job allow it, shape (jobs,); infinity: any number.
        of: the jobs, by number, of the same partitions, and these partitions; none: the machine has no partitions.
    """

    can: BoolArray
    nodes: IntArray
    shared: BoolArray
    most_nodes: FloatArray
    of: list[tuple[IntArray, Sequence[Partition]]]

    def __init__(
        self,
        workload: Workload,
        machine: Machine,
        names: Sequence[Sequence[str]],
        wanted: IntArray | None = None,
    ) -> None:
        """Decide for each job. Jobs alike in partition, generic resources and features are decided together.

        `wanted`: the nodes that each job needs at least, shape (jobs,); None: those that it requests.
        """
        shape = (len(workload), len(machine.classes))
        self.can, self.nodes = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=np.int64)
        self.shared = np.zeros(len(workload), dtype=bool)
        self.most_nodes, self.of = np.full(len(workload), np.inf), []
        self._workload = workload
        self._wanted = workload.ints("nodes") if wanted is None else wanted
        self._cores = workload.ints("cores_per_node")
        self._memory, self._limit = workload.floats("memory_mib"), workload.floats("time_limit")
        self._refused: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
        texts = [codes_of(workload.arrow(name)) for name in ("partition", "gres", "features")]
        group = grouped(*(codes for codes, _ in texts))
        order = np.argsort(group.astype(np.uint16) if group.max(initial=0) < 2**16 else group, kind="stable")
        counts: dict[str, IntArray] = {}
        for rows in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
            partition, gres, features = (str(words[codes[rows[0]]]) for codes, words in texts)
            own = _partitions(machine, partition)
            if own is None:
                self._refuse(rows, f"partition {partition} is not on the machine", "")
            else:
                if partition not in counts:
                    counts[partition] = _counts(machine, own, names)
                self.nodes[rows] = counts[partition]
                self.shared[rows] = any(part.shared for part in own)
                self.most_nodes[rows] = _most([part.most_nodes for part in own])
                self.of.append((rows, own))
                self._decide(rows, machine, own, gres, features)

    def _decide(self, rows: IntArray, machine: Machine, own: Sequence[Partition], gres: str, features: str) -> None:
        """Decide for the jobs in `rows`, of the partitions `own`."""
        where = f"partition {','.join(part.name for part in own)}" if own else "the machine"
        kinds, wanted, cores = machine.classes, self._wanted[rows], self._cores[rows]
        memory, limit = self._memory[rows], self._limit[rows]
        most_nodes, most_s = self.most_nodes[rows[0]], _most([part.limit_s for part in own])
        can = self.nodes[rows] > 0
        left = np.ones(len(rows), dtype=bool)
        size = "nodes: {most}"

        def narrow(ok: Any, what: str, has: str, amounts: Any = ()) -> None:
            """Keep the classes that are `ok`, shape (rows, classes) or (classes,); refuse jobs that lack nodes then."""
            nonlocal can
            if what != size and np.all(ok):
                return  # the same classes as before
            can = can & ok
            fitting = (can * self.nodes[rows]).sum(axis=1)
            lacking = left & (fitting < np.maximum(wanted, 1))
            none = (fitting == 0) | (what == size)
            for mask, says in ((lacking & none, f"has {has}"), (lacking & ~none, "has too few such nodes")):
                self._refuse(rows[mask], what, f"{where} {says}", np.asarray(amounts)[mask] if len(amounts) else ())
            left[lacking] = False

        there = [kind for kind, count in zip(kinds, self.nodes[rows[0]].tolist(), strict=True) if count]
        narrow(True, size, f"{self.nodes[rows[0]].sum():,}", wanted)
        fits = cores[:, None] <= [cpus_of(kind) for kind in kinds]
        narrow(fits, "cores of a node: {most}", _largest([float(cpus_of(kind)) for kind in there]), cores)
        fits = ~(memory[:, None] > [memory_of(kind) for kind in kinds])
        narrow(fits, "MiB of a node: {most}", _largest([memory_of(kind) for kind in there]), memory)
        demand = [(f"{name}:{type}" if type else name, count) for name, type, count in gres_items(gres.lower())]
        offers = "; ".join(dict.fromkeys(_text(kind) for kind in there))
        narrow([_has(gres_of(kind), demand) for kind in kinds], f"gres of a node: {gres}", offers)
        offers = ", ".join(dict.fromkeys(name for kind in there for name in kind.features)) or "none"
        narrow([has_features(kind.features, features) for kind in kinds], f"features: {features}", offers)
        over = left & (wanted > most_nodes)
        self._refuse(rows[over], "nodes of a job: {most}", f"{where} allows {most_nodes:,.0f}", wanted[over])
        late = left & ~over & (limit > most_s)
        self._refuse(rows[late], "time limit: {most} s", f"{where} allows {most_s:,.0f} s", limit[late])
        self.can[rows] = can & (left & ~over & ~late)[:, None]

    def _refuse(self, rows: IntArray, what: str, has: str, amounts: Any = ()) -> None:
        if len(rows):
            jobs, all_amounts = self._refused.setdefault((what, has), ([], []))
            jobs.extend(rows.tolist())
            all_amounts.extend(np.asarray(amounts, dtype=np.float64).tolist())

    def unserved(self) -> list[dict[str, Any]]:
        """Return the reasons why jobs cannot run, most jobs first: `reason`, number of `jobs`, id of the `first`."""
        reasons, ids = [], self._workload.arrow("job_id")
        for (what, has), (rows, amounts) in self._refused.items():
            reason = _reason(what, f"up to {max(amounts):,.0f}" if amounts else "", has)
            reasons.append({"reason": reason, "jobs": len(rows), "first": str(ids[min(rows)])})
        return sorted(reasons, key=lambda row: -int(row["jobs"]))

    def reasons(self) -> dict[int, str]:
        """Return the number of each job that cannot run, with the reason."""
        return {
            row: _reason(what, f"{amounts[at]:,.0f}" if amounts else "", has)
            for (what, has), (rows, amounts) in self._refused.items()
            for at, row in enumerate(rows)
        }


def _reason(what: str, amount: str, has: str) -> str:
    demand = what.replace("{most}", amount)
    return f"{demand}, {has}" if has else demand


def has_features(features: Sequence[str], demand: str) -> bool:
    """Return whether a node with `features` meets a demand, see `satisfies`. No node meets an invalid demand."""
    try:
        return satisfies(features, demand)
    except InputError:
        return False


def _has(gres: Mapping[str, int], demand: Sequence[tuple[str, int]]) -> bool:
    return all(gres.get(name, 0) >= count for name, count in demand)


def _text(kind: NodeClass) -> str:
    return ",".join(f"{name}:{count}" for name, count in kind.gres.items()) or "none"


def _largest(amounts: Sequence[float]) -> str:
    return f"{max(amounts, default=0.0):,.0f}"


def _most(limits: Sequence[float]) -> float:
    """Return the largest limit of some partitions; infinity: unlimited."""
    return max(limits) if limits and all(limits) else np.inf


def names_by_class(machine: Machine) -> list[list[str]]:
    """Return the names of the nodes of each class."""
    names, first = [], 0
    for kind in machine.classes:
        names.append([node.name for node in machine.nodes[first : first + kind.size]])
        first += len(names[-1])
    return names


def _partitions(machine: Machine, text: str) -> list[Partition] | None:
    """Return the partitions of a job by their names (`cpu,gpu`); None: the machine has none of them."""
    if not machine.partitions:
        return []
    if not text:
        return [part for part in machine.partitions if part.default] or [machine.partitions[0]]
    return [part for part in machine.partitions if part.name in text.split(",")] or None


def _counts(machine: Machine, own: Sequence[Partition], names: Sequence[Sequence[str]]) -> npt.NDArray[np.int64]:
    """Return the nodes of each class in some partitions, shape (classes,); in none: all nodes."""
    if all(part.nodes for part in own) and own:
        members = {name for part in own for name in expanded(part.nodes)}
        return np.array([sum(name in members for name in of_class) for of_class in names])
    return np.array([len(of_class) for of_class in names])
