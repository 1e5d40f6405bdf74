"""Workload models: one module a model, all of them known to `registry`."""

from tracebed.converters.limits import MAX_SIZE
from tracebed.errors import InputError


def require(met: bool, what: str, hint: str) -> None:
    """Raise InputError unless `met`: `what` (the argument and its value) is out of range, and must be `hint`."""
    if not met:
        raise InputError(f"{what} is out of range", hint=f"must be {hint}")


def require_sizes(jobs: int, nodes: int | None, cores_per_node: int) -> None:
    """Raise InputError unless the sizes that every model takes are from 1 to `MAX_SIZE`."""
    for size, what in ((jobs, "jobs"), (nodes, "nodes"), (cores_per_node, "cores per node")):
        require(size is None or 1 <= size <= MAX_SIZE, f"{size} {what}", f"from 1 to {MAX_SIZE:,}")
