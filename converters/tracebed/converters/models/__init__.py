"""Workload models: one module a model, all of them known to `registry`."""

from tracebed.errors import InputError


def require(met: bool, what: str, hint: str) -> None:
    """Raise InputError unless `met`: `what` (the argument and its value) is out of range, and must be `hint`."""
    if not met:
        raise InputError(f"{what} is out of range", hint=f"must be {hint}")


def require_sizes(jobs: int, nodes: int | None, cores_per_node: int) -> None:
    """Raise InputError unless all that every model takes is at least 1."""
    require(jobs >= 1, f"{jobs} jobs", "at least 1")
    require(nodes is None or nodes >= 1, f"{nodes} nodes", "at least 1")
    require(cores_per_node >= 1, f"{cores_per_node} cores per node", "at least 1")
