"""The workload of a run: what was submitted, as CSV in tracebed's own format."""

from __future__ import annotations

from typing import BinaryIO

from tracebed.converters.formats import csv
from tracebed.orchestrator.run import Run
from tracebed.outputs import WORKLOAD
from tracebed.validation.export.exporter import Exporter
from tracebed.validation.simulators.assembly import workload_of


def write(run: Run, file: BinaryIO) -> list[str]:
    """Write the workload of a run.

    Raises:
        InputError: the run does not have all properties of its jobs.
    """
    csv.write(workload_of(run), file)
    if run.info.imported.get("matched_by") == "itself":
        return ["the run times are those observed in the imported file"]
    return []


EXPORTER = Exporter("workload of the run: what was submitted, as CSV", write, WORKLOAD.mark)
