"""What a workload says about the starts of its jobs beyond their resources: begin times and dependencies."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tracebed.converters.workload import Workload
from tracebed.orchestrator.scheduling.slurm.conditions import Arrays, Conditions, arrays_of, dependencies_of

SUCCESSFUL = ("", "completed", "unknown")
"""Final states in a log with which a job has not failed."""


def conditions_of(workload: Workload, numbers: Sequence[int], *, kill_invalid: bool) -> Conditions | None:
    """Return the conditions of the jobs `numbers` of a workload; None: there are none.

    The name of a job, for `singleton`, is its application.

    Raises:
        InputError: a dependency is invalid.
    """
    earliest = workload.floats("earliest_start")[list(numbers)]
    texts = _of(workload, "dependency", numbers)
    if not any(texts) and all(math.isnan(each) for each in earliest):
        return None
    names = [*zip(_of(workload, "user", numbers), _of(workload, "application", numbers), strict=True)]
    waiting = {name for name, text in zip(names, texts, strict=True) if "singleton" in text.lower()}
    group = {name: number for number, name in enumerate(dict.fromkeys(name for name in names if name in waiting))}
    groups = [group.get(name, -1) for name in names]
    arrays = [text.partition("%")[0] for text in _of(workload, "array", numbers)]
    dependencies, any_of = dependencies_of(texts, _of(workload, "job_id", numbers), arrays, groups)
    return Conditions(
        [-math.inf if math.isnan(each) else each for each in earliest.tolist()],
        dependencies,
        any_of,
        groups,
        [state not in SUCCESSFUL for state in _of(workload, "status", numbers)],
        kill_invalid,
    )


def arrays_in(workload: Workload, numbers: Sequence[int]) -> Arrays | None:
    """Return the arrays of the jobs `numbers` of a workload; None: there are none.

    Raises:
        InputError: the array of a job is invalid.
    """
    texts = _of(workload, "array", numbers)
    return arrays_of(texts, _of(workload, "job_id", numbers)) if any(texts) else None


def _of(workload: Workload, name: str, numbers: Sequence[int]) -> list[str]:
    """Return the texts of a column for the jobs `numbers`."""
    column = workload.texts(name).tolist()
    return [column[job] for job in numbers]
