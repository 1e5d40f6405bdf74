"""What the simulation of a cluster leaves out of the database of Slurm, and what that does to the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracebed.ground.display import listed
from tracebed.slurm.machine import Machine

MOST_SHOWN = 12
EQUAL_SHARES = (
    "the shares of accounts and users are not in a slurm.conf; all of a level are assumed to be equal "
    "(give the output of `sacctmgr dump CLUSTER`, too)"
)
FLAGS = frozenset(
    (
        *("max_tres", "no_fair_tree", "no_normal_all", "no_normal_assoc", "no_normal_part", "no_normal_qos"),
        *("no_normal_tres", "small_relative_to_time"),
    )
)
"""`PriorityFlags` that are modeled."""


SHARING = ("mps", "shard")
"""Generic resources that are shares of GPUs."""


def _of_cores(machine: Machine) -> Iterator[str]:
    """Yield a sentence for each assumption about the cores that a job gets."""
    threads = sorted({kind.threads for kind in machine.kinds})
    if len(threads) > 1:
        values = listed([str(each) for each in threads], MOST_SHOWN)
        yield f"ThreadsPerCore={values}: the cores of the run are CPUs, and a job holds all CPUs of its cores"
    if machine.exact_cpus and threads[-1] > 1:
        yield "CR_CPU: memory for each CPU and billing are those of all CPUs of a core; Slurm's are those asked for"
    by_socket = {
        node for number, each in enumerate(machine.partitions) if each.sockets for node in machine.members(number)
    }
    others = [
        each.name
        for number, each in enumerate(machine.partitions)
        if not (each.sockets or each.exclusive) and by_socket.intersection(machine.members(number))
    ]
    if others:
        names = listed(others, MOST_SHOWN)
        yield f"CR_Socket: jobs of the partitions {names} share sockets; on which socket a job runs is not modeled"


def unmodeled_of(machine: Machine, ignored: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each group of settings of the database that is missing or not modeled.

    Args:
        machine: the cluster.
        ignored: settings of the database that its readers do not model.
    """
    database, weights = machine.database, machine.weights
    if weights.fairshare and not database.associations:
        yield EQUAL_SHARES
    limited = "limits" in machine.enforced
    lacking = [
        *(["accounts and users (`sacctmgr dump CLUSTER`)"] if not database.associations else []),
        *(["QOS (`sacctmgr -P show qos`)"] if not database.qos else []),
    ]
    if limited and lacking:
        yield f"limits of {' and '.join(lacking)} are not in a slurm.conf: jobs that they hold start"
    if weights.qos and not database.qos:
        which = "priorities of QOS (`sacctmgr -P show qos`) are not in a slurm.conf"
        yield f"PriorityWeightQOS={weights.qos} has no effect: {which}"
    named = [partition.qos for partition in machine.partitions if partition.qos]
    named += [each.default_qos for each in database.associations if each.default_qos]
    lost = [name for name in dict.fromkeys(named) if name not in {qos.name for qos in database.qos}]
    if database.qos and lost:
        names = listed(lost, MOST_SHOWN)
        yield f"the QOS {names} are not in the table of QOS: their priority is 0, and they have no limits"
    if limited and ignored:
        count = f"{len(ignored)} settings" if len(ignored) > 1 else "1 setting"
        names = listed(ignored, MOST_SHOWN)
        yield f"{count} of QOS and accounts not modeled, so that jobs that Slurm holds start: {names}"
    yield from _of_cores(machine)
    shared = [name for name in SHARING if any(name in kind.gres for kind in machine.kinds)]
    if shared:
        yield f"the generic resources {' and '.join(shared)} are counted beside the GPUs that they share"
    flags = [flag.upper() for flag in weights.flags if flag not in FLAGS]
    if flags:
        yield f"PriorityFlags={listed(flags, MOST_SHOWN)} not modeled; jobs may have another order"
