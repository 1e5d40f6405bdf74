"""Stages of launches and reconfigurations, from task_times.csv and the application models of the jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.workload import FloatArray
from tracebed.drivers.elastisim import outputs
from tracebed.ground.errors import InputError
from tracebed.ground.input_files import MAX_RUN_JSON, read_json

LAUNCH = ("on_init",)
RECONFIGURATION = ("on_reconfiguration", "on_expansion")
"""Phases of an application model."""


class Stages:
    """The ends of the tasks before the work of each job, and of the tasks of its reconfigurations.

    Tasks are recognized by their names. A name that the phases of the work have, too, is not used.
    """

    def __init__(self, folder: Path) -> None:
        """Read task_times.csv and the application models in `folder`. Without them, nothing is known."""
        work, launch, resize = (set[str](), set[str](), set[str]())
        for model in _models(folder):
            launch |= _names(model, LAUNCH)
            resize |= _names(model, RECONFIGURATION)
            work |= _names(model, ("phases",))
        path = folder / outputs.TASKS
        self._tasks = outputs.tasks(path) if path.is_file() and launch | resize else None
        self._launch, self._resize = launch - work, resize - work

    def launched(self, count: int, offset: float) -> FloatArray:
        """Return the end of the last task before the work of each job, s, shape (count,); NaN: unknown."""
        found = np.full(count, np.nan)
        for job, time in self._of(self._launch).groupby("id")["time"].max().items():
            if 0 <= int(str(job)) < count:
                found[int(str(job))] = time + offset
        return found

    def applied(self, resizes: pd.DataFrame, offset: float) -> FloatArray:
        """Return the end of the tasks of each reconfiguration, s; without tasks the time of the node change.

        Args:
            resizes: the reconfigurations by job and time (`staircase.resizes`).
            offset: exact time of the printed time 0, s.
        """
        tasks = self._of(self._resize)
        of_job = {int(str(job)): np.sort(times.to_numpy()) + offset for job, times in tasks.groupby("id")["time"]}
        found = resizes["time"].to_numpy(dtype=np.float64).copy()
        rows = resizes["row"].tolist()
        for at, (job, time) in enumerate(zip(rows, found.tolist(), strict=True)):
            following = found[at + 1] if at + 1 < len(rows) and rows[at + 1] == job else np.inf
            ends = of_job.get(job, np.empty(0))
            ends = ends[(ends >= time) & (ends <= following)]
            found[at] = ends.max(initial=time)
        return found

    def _of(self, names: set[str]) -> pd.DataFrame:
        if self._tasks is None:
            return pd.DataFrame({"id": np.empty(0, np.int64), "time": np.empty(0)})
        return self._tasks[self._tasks["task"].isin(names)]


def _models(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the application models of jobs.json in `folder`."""
    jobs = _dicts(_json(folder / "jobs.json").get("jobs"))
    names = {str(job.get("application_model")) for job in jobs}
    for name in sorted(names):
        yield _json(folder / name)


def _json(path: Path) -> dict[str, Any]:
    """Return the object in a file; empty if there is no such file."""
    try:
        content = read_json(path, "file of ElastiSim", most=MAX_RUN_JSON)
    except InputError:
        return {}
    return content if isinstance(content, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list; empty if the value is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _names(model: dict[str, Any], phases: tuple[str, ...]) -> set[str]:
    """Return the names of the tasks in phases of an application model."""
    found = set()
    for name in phases:
        value = model.get(name)
        for phase in _dicts(value if isinstance(value, list) else [value]):
            found |= {str(task.get("name")) for task in _dicts(phase.get("tasks"))}
    return found
