"""Draw the workloads of `slurm.yaml`: two windows of the log NASA-iPSC-1993-3.1-cln for Slurm on 16 nodes.

    python draw_slurm.py NASA-iPSC-1993-3.1-cln.swf.gz

Jobs shorter than a minute are left out. The log has no time limits: they come from the model tsafrir05. Of the windows
of 320 jobs that begin at each 640th job, the one with the largest offered load is for calibrations, and the second is
predicted. Times are compressed to 13 minutes at an offered load of 0.9. Limits are whole minutes, as in Slurm.
"""

from __future__ import annotations

import sys

import numpy as np

import tracebed.api as tb
from tracebed.converters.models.tsafrir05 import with_estimates

JOBS, STEP, SPAN_S, LOAD, NODES, SHORTEST_S = 320, 640, 780.0, 0.9, 16, 60.0

log = tb.read(sys.argv[1])
kept = tb.Workload(log.table[log.floats("run_time") >= SHORTEST_S].reset_index(drop=True), log.provenance)
scaled = tb.scale(with_estimates(kept, seed=1), nodes=NODES, cores_per_node=2)
parts = [
    tb.Workload(scaled.table.iloc[first : first + JOBS].reset_index(drop=True), scaled.provenance)
    for first in range(0, len(scaled) - JOBS, STEP)
]
parts.sort(key=lambda part: part.offered_load or 0.0, reverse=True)
for name, part in zip(("calibration", "held-out"), parts[:2], strict=True):
    run_time = LOAD * NODES * SPAN_S / part.work.sum()
    window = tb.scale(part, start=part.floats("submit_time")[0], run_time=run_time, arrivals=SPAN_S / part.span)
    limit = 60.0 * np.maximum(1.0, np.ceil(window.floats("time_limit") / 60.0))
    tb.write(tb.Workload(window.table.assign(time_limit=limit), window.provenance), f"slurm-{name}.csv")
