"""The workload of a run: what was submitted, as CSV in tracebed's own format."""

from __future__ import annotations

from typing import BinaryIO

from tracebed.converters.formats import csv
from tracebed.ground.outputs import WORKLOAD
from tracebed.orchestrator.run import Run
from tracebed.validation.export.exporter import Exporter
from tracebed.validation.simulators.assembly import derived_workload


def write(run: Run, file: BinaryIO) -> list[str]:
    """Write the workload of a run."""
    workload, is_whole = derived_workload(run)
    csv.write(workload, file)
    notes = []
    if not is_whole:
        notes.append(
            "the run lacks properties of its jobs, such as the cores of a node and the sizes of malleable jobs: this "
            "file is another workload than that of the run, whose predictions match by id only (compare --match id). "
            "Use the file of the workload, or convert the log"
        )
    if run.info.imported.get("matched_by") == "itself":
        notes.append("the run times are those observed in the imported file")
    return notes


EXPORTER = Exporter("workload of the run: what was submitted, as CSV", write, WORKLOAD.mark)
