"""Output of CQSim: lines `id;processors;processors;requested time;run time;wait;submit;start;end` without a header."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from tracebed.converters.formats.tools.files import Input
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.validation.simulators.assembly import run_of
from tracebed.validation.simulators.observed import Observed
from tracebed.validation.simulators.simulator import ExternalSimulator, ReadOptions

FIELDS = ("job_id", "cores", "", "time_limit", "run", "wait", "submit", "start", "end")


def recognizes(path: Path) -> bool:
    """Return whether a file has lines of nine numbers separated by semicolons."""
    return path.is_file() and path.stat().st_size > 0 and _numbers(Input.at(path).header) is not None


def _numbers(line: str) -> list[float] | None:
    """Return the nine numbers of a line, or None if the line is of another form."""
    words = line.strip().rstrip(";").split(";")
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        return None
    return numbers if len(numbers) == len(FIELDS) and np.isfinite(numbers).all() else None


def read(path: Path, workload: Workload | None, options: ReadOptions) -> Run:
    """Read a `.rst` file, nine numbers a line, as a run."""
    file = Input.at(path)
    rows, places = [], []
    for number, line in file.lines():
        if not line.strip():
            continue
        numbers = _numbers(line)
        if numbers is None:
            hint = "give the file .rst of CQSim, or use import --from csv"
            raise InputError(f"does not have {len(FIELDS)} numbers", where=f"{file.where}:{number}", hint=hint)
        rows.append(numbers)
        places.append(number)
    columns = dict(zip(FIELDS, np.array(rows).T, strict=True))
    jobs = pd.DataFrame({name: values for name, values in columns.items() if name})
    jobs["job_id"] = [f"{number:g}" if number % 1 else f"{number:.0f}" for number in jobs["job_id"]]
    observed = Observed(
        jobs=jobs,
        source=file.source,
        where=file.where,
        place=lambda row: f"{file.where}:{places[row]}",
        format="cqsim",
        program="cqsim",
        unix=float(jobs["submit"].min()) > 5e8,
    )
    return run_of(observed, workload, options)


SIMULATOR = ExternalSimulator(name="cqsim", title="output of CQSim: .rst", read=read, recognizes=recognizes)
"""Output of CQSim: the file .rst."""
