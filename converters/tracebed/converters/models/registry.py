"""The workload models that tracebed knows. To add one, write its module and add its line to `MODELS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracebed.converters.models.cirne import cirne
from tracebed.converters.workload import Workload
from tracebed.errors import InputError

MODELS: dict[str, Callable[..., Workload]] = {
    "cirne": cirne,
}


def draw(model: str, jobs: int, **options: Any) -> Workload:
    """Draw a workload of `jobs` jobs from a model.

    Args:
        model: one of `MODELS`.
        jobs: how many.
        options: the model's own; see its function.

    Raises:
        InputError: there is no such model, or an option is out of its range.
    """
    if model not in MODELS:
        raise InputError(f"no model {model!r}", mend=f"one of {', '.join(MODELS)}")
    return MODELS[model](jobs, **options)
