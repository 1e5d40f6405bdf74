"""Workload models, one module each. `registry` lists them."""

from tracebed.ground.bounds import MAX_SIZE
from tracebed.ground.errors import InputError


def require(met: bool, what: str, hint: str) -> None:
    """Raise InputError unless `met`. `what` names the argument and its value, `hint` says what it must be."""
    if not met:
        raise InputError(f"{what} is out of range", hint=f"must be {hint}")


def require_sizes(jobs: int, nodes: int | None, cores_per_node: int) -> None:
    """Raise InputError unless the number of jobs and the size of the machine are from 1 to `MAX_SIZE`."""
    for size, what in ((jobs, "jobs"), (nodes, "nodes"), (cores_per_node, "cores per node")):
        require(size is None or 1 <= size <= MAX_SIZE, f"{size} {what}", f"from 1 to {MAX_SIZE:,}")
