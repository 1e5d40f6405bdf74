"""Exporters: a registry, fed by entry points of the group `tracebed.exporters`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pandas as pd

from tracebed.ground.extension_errors import checked
from tracebed.ground.outputs import OutputKind
from tracebed.ground.registry import Registry
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import origin

NO_MARK = rb"(?!)"  # regular expression that no file has


@dataclass(frozen=True)
class Exporter:
    """A format to which runs are exported. A package adds a format by an entry point that names such an object."""

    summary: str
    """What the format is for, in a line."""
    write: Callable[[Run, BinaryIO], list[str]]
    """Write the run to an open file, and return what the file lacks, a sentence each."""
    mark: bytes = NO_MARK
    """Regular expression of the beginning or the end of each file that `write` writes. An existing file is replaced
    only if it has this mark; without a mark, no file is replaced."""


EXPORTERS: Registry[Exporter] = Registry("tracebed.exporters", "export format", Exporter)


def kind_of(to: str) -> OutputKind:
    """Return the kind of the files in the format `to`. Raises InputError if the format is unknown."""
    return OutputKind(f"an export to {to}", EXPORTERS.load(to).mark)


def export(run: Run, to: str, path: Path | str, *, replace: bool = False) -> list[str]:
    """Write a run for another program, compressed by the suffix, and return what the file lacks, a sentence each."""
    with kind_of(to).file(Path(path), replace=replace) as file:
        write = EXPORTERS.load(to).write
        lacks: list[str] = checked(write(run, file), list, f"export format {to}", write)
        return lacks


def export_allocations(run: Run) -> pd.DataFrame:
    """Return the allocations of a run that last for any time, by start.

    A row per allocation: job_id, node, count, cores, cpus as in the run; start and end, s after the first submission.
    An allocation without an end lasts until the last instant of the run.
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
