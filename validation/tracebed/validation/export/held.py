"""The allocations of a run, for exports: times after the first submission, ends known."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import origin


def export_allocations(run: Run) -> pd.DataFrame:
    """Return the allocations of a run that last for any time, by start.

    An allocation without an end lasts until the last instant of the run.

    Returns:
        A row per allocation: job_id, node, count, cores, cpus as in the run; start and end, s after the first
        submission.
    """
    rows = run.allocations
    zero = origin(run)
    last = max(float(rows[["start", "end"]].max().max()), float(run.jobs[["submit", "start", "end"]].max().max()))
    end = rows["end"].to_numpy(dtype=np.float64)
    table = rows.assign(start=rows["start"] - zero, end=np.where(np.isfinite(end), end, last) - zero)
    table = table[table["end"] > table["start"]]
    return table.sort_values(["start", "node"], kind="stable", ignore_index=True)


def unknown_nodes(run: Run) -> list[str]:
    """Return a note if the run does not have the nodes of its jobs."""
    reason = run.info.unknown.get("allocations")
    return [] if reason is None else [f"which nodes the jobs held is unknown: {reason}"]


def intervals(nodes: pd.Series[int], counts: pd.Series[int]) -> str:
    """Return blocks of nodes as an interval set: `0-3 7`."""
    blocks: list[list[int]] = []
    for node, count in sorted(zip(nodes.tolist(), counts.tolist(), strict=True)):
        if blocks and node <= blocks[-1][1] + 1:
            blocks[-1][1] = max(blocks[-1][1], node + count - 1)
        else:
            blocks.append([node, node + count - 1])
    return " ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in blocks)
