"""The part of the priority of a job that does not change while the job waits, and how its usage is billed.

Source: slurm.conf(5) of Slurm 22.05 (PriorityWeightTRES, TRESBillingWeights, PriorityFlags), and `sprio` and `sshare`
of Slurm 22.05.8 (`record_slurm_accounts.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, time, timedelta

from tracebed.slurm.machine import MINUTE_S, SlurmCluster
from tracebed.slurm.simulation.accounts import TRES
from tracebed.slurm.simulation.inputs import GRES
from tracebed.slurm.simulation.resources import Request


def size_factor(
    nodes: int, cores: int, all_nodes: int, all_cores: int, *, favor_small: bool = False, minutes: int = 0
) -> float:
    """Return the factor of the job size, from 0 to 1, of a job that accepts `nodes` nodes or more.

    `minutes` is the time limit of the job with `PriorityFlags=SMALL_RELATIVE_TO_TIME`, and 0 otherwise.
    """
    if minutes:
        size = max(nodes * all_cores / all_nodes, cores) / minutes / all_cores
        return 1.0 - size if favor_small else size
    if favor_small:
        return ((all_nodes - nodes) / all_nodes + (all_cores - cores) / all_cores) / 2
    return (nodes / all_nodes + cores / all_cores) / 2


class Factors:
    """The factors of priorities, and the weights of a job's amounts in its usage, of each partition."""

    def __init__(self, cluster: SlurmCluster, kinds: Sequence[str]) -> None:
        """Prepare for the jobs of a cluster. `kinds` are the generic resources in the order of the amounts."""
        self._weights = cluster.weights
        self._nodes, self._cores = len(cluster.nodes), sum(cluster.cores_of(kind) for _, kind in cluster.nodes)
        self._partitions = cluster.partitions
        largest = max(partition.factor for partition in cluster.partitions) or 1
        self._largest = largest if cluster.weights.normal("part") else 1
        self._totals = [_totals(cluster, number, kinds) for number in range(len(cluster.partitions))]
        self._tres = _by_kind(cluster.weights.tres, kinds)
        self.billing = [_by_kind(partition.billing or {"cpu": 1.0}, kinds) for partition in cluster.partitions]
        self.most = "max_tres" in cluster.weights.flags

    def fixed(self, request: Request, amounts: Sequence[int], partition: int, of_owner: float, limit: int) -> float:
        """Return the part of the priority of a job that does not change. `of_owner`: see `Accounting.priority`."""
        weights = self._weights
        minutes = limit // MINUTE_S if "small_relative_to_time" in weights.flags else 0
        size = size_factor(
            request.fewest,
            request.cores,
            self._nodes,
            self._cores,
            favor_small=weights.favor_small,
            minutes=minutes,
        )
        found = weights.partition * self._partitions[partition].factor / self._largest + weights.job_size * size
        found += of_owner
        normal = weights.normal("tres")
        for weight, amount, total in zip(self._tres, amounts, self._totals[partition], strict=True):
            if weight and total:
                found += weight * (amount / total if normal else amount)
        return found


def _by_kind(values: Mapping[str, float], kinds: Sequence[str]) -> list[float]:
    """Return values of trackable resources in the order of the amounts of a job."""
    found = [0.0] * (GRES + len(kinds))
    for name, number in TRES.items():
        found[number] = values.get(name, 0.0)
    for number, kind in enumerate(kinds):
        found[GRES + number] = values.get(f"gres/{kind}", 0.0)
    return found


def _totals(cluster: SlurmCluster, partition: int, kinds: Sequence[str]) -> list[float]:
    """Return the trackable resources of a partition in the order of the amounts of a job."""
    nodes = [cluster.nodes[number][1] for number in cluster.members(partition)]
    values: dict[str, float] = {
        "cpu": sum(cluster.cores_of(node) for node in nodes),
        "mem": sum(node.memory_mib for node in nodes),
        "node": len(nodes),
    }
    values |= {f"gres/{kind}": sum(node.gres.get(kind, 0) for node in nodes) for kind in kinds}
    return _by_kind(values, kinds)


def resets(period: str, begin: float) -> list[int]:
    """Return the instants of 20 years at which usage is set to zero, Unix time: midnights in UTC, weekly on Sundays."""
    day = datetime.fromtimestamp(begin, UTC).date()
    found = []
    for number in range(1, 20 * 366):
        date = day + timedelta(days=number)
        due = {
            "daily": True,
            "weekly": date.isoweekday() == 7,
            "monthly": date.day == 1,
            "quarterly": date.day == 1 and date.month in (1, 4, 7, 10),
            "yearly": date.day == 1 and date.month == 1,
        }[period]
        if due:
            found.append(int(datetime.combine(date, time(), UTC).timestamp()))
    return found
