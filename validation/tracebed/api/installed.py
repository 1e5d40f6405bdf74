"""The installed models and inventories by name. No function imports more than `--help` can wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracebed.converters.models.tsafrir05 import Tsafrir05Parameters
    from tracebed.converters.workload import Workload


def inventories() -> list[str]:
    """Return the names of the inventories that tracebed provides.

    Example:
        >>> "emulated-4" in inventories()
        True
    """
    from tracebed.orchestrator.testbeds.nodes import shipped

    return shipped()


def models() -> dict[str, str]:
    """Return the name of each installed model of workloads, with a line about it. The models are not imported.

    Example:
        >>> "cirne" in models()
        True
    """
    from tracebed.converters.models.registry import MODELS

    return {name: MODELS.summary(name) for name in MODELS.names()}


def model(name: str) -> Callable[..., Workload]:
    """Return the function of a model: `model(jobs, *, nodes, cores_per_node, seed, parameters, ...)`.

    Raises:
        InputError: there is no such model, or it cannot be imported.
    """
    from tracebed.converters.models.registry import MODELS

    return MODELS.load(name)


def estimate_constants() -> Tsafrir05Parameters:
    """Return the constants of the model of users' estimates, with their defaults."""
    from tracebed.converters.models.tsafrir05 import Tsafrir05Parameters

    return Tsafrir05Parameters()
