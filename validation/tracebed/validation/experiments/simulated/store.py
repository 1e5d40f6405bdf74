"""Storage of the results of cells in the output folder: one JSON file per cell, with a checksum of its content.

A truncated or modified file, or a file of another cell, is ignored with a warning, and the cell is computed again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tracebed.ground.errors import InputError, tolerate
from tracebed.ground.files import replacing, sha256_of
from tracebed.ground.input_files import MAX_RUN_JSON, read_file
from tracebed.ground.parquet_file import read_frame
from tracebed.validation.experiments.experiment import Point
from tracebed.validation.experiments.simulated.cells import Cell, CellResult

SCHEMA = "tracebed-cell/1"


@dataclass(frozen=True)
class StoredCell:
    """The stored result of a cell."""

    rows: list[dict[str, Any]]
    """A row per window."""
    seconds: float
    """Computation time, s."""
    warnings: list[str]
    jobs_sha256: str | None
    """Checksum of the table of jobs; None if the table was not kept."""


def write(cell: Cell, result: CellResult, folder: Path) -> None:
    """Write the files of a cell. The JSON file marks the cell as complete and is written last."""
    jobs = _jobs_path(cell, folder)
    jobs.parent.mkdir(exist_ok=True)
    if result.jobs is not None:
        with replacing(jobs) as stream:
            result.jobs.to_parquet(stream, index=False)
    facts = {key: value for key, value in asdict(cell).items() if key not in ("jobs", "windows")}
    content = {
        "schema": SCHEMA,
        "cell": facts | {"workload": cell.workload.name},
        "seconds": result.seconds,
        "warnings": result.warnings,
        "rows": result.rows,
        "jobs_sha256": sha256_of(jobs) if result.jobs is not None else None,
    }
    with replacing(_path(cell, folder)) as stream:
        stream.write(json.dumps(content | {"sha256": _checksum(content)}, indent=1).encode() + b"\n")


def is_kept(cell: Cell, folder: Path) -> bool:
    """Return whether the result of a cell is kept, with its jobs if required. Warn about a damaged result."""
    if not _path(cell, folder).exists():
        return False
    try:
        kept = read(cell, folder)
        if not cell.jobs:
            return True
        if kept.jobs_sha256 is None or not has_jobs(cell, folder):
            return False
        if sha256_of(_jobs_path(cell, folder)) != kept.jobs_sha256:
            raise InputError("does not match its checksum", where=str(_jobs_path(cell, folder)))
    except InputError as error:
        tolerate({f"damaged: {error.what}; the cell is computed again": 1}, where=error.where)
        return False
    return True


def read(cell: Cell, folder: Path) -> StoredCell:
    """Return the kept result of a cell.

    Raises:
        InputError: the file cannot be read, is not JSON, lacks a key, does not match its checksum, or belongs to
            another cell.
    """
    path = _path(cell, folder)

    def damaged(what: str) -> InputError:
        return InputError(what, where=str(path), hint="run the experiment again to compute the cell again")

    data = read_file(path, "cell", hint="run the experiment again to compute the cell again", most=MAX_RUN_JSON)
    try:
        content = json.loads(data)  # undefined figures are NaN
        expected = content.pop("sha256")
        kept = StoredCell(content["rows"], content["seconds"], content["warnings"], content["jobs_sha256"])
        identity = content["cell"]["identity"]
    except KeyError as error:
        raise damaged(f"the key {error} is missing") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(f"not the JSON of a cell: {error}") from error
    if _checksum(content) != expected:
        raise damaged("does not match its checksum")
    if identity != cell.identity:
        raise damaged(f"belongs to the cell {identity}")
    return kept


def has_jobs(cell: Cell, folder: Path) -> bool:
    """Return whether the jobs of a cell were kept."""
    return _jobs_path(cell, folder).exists()


class KeptJobs:
    """The kept jobs of the points of a grid, for workers that draw.

    Args:
        cells: the cells of the points.
        folder: the output folder.
    """

    def __init__(self, cells: Mapping[Point, Cell], folder: Path) -> None:
        """Find the cells with kept jobs."""
        self._kept = {
            point: (_jobs_path(cell, folder), cell.system.nodes)
            for point, cell in cells.items()
            if has_jobs(cell, folder)
        }

    def __call__(self, point: Point) -> pd.DataFrame | None:
        """Return the jobs of a point and the nodes of the `machine`, or None. Raises InputError for a damaged file."""
        if point not in self._kept:
            return None
        path, nodes = self._kept[point]
        return read_frame(path, hint="run the experiment again").assign(machine=nodes)


def _path(cell: Cell, folder: Path) -> Path:
    return folder / "cells" / f"{cell.identity}.json"


def _jobs_path(cell: Cell, folder: Path) -> Path:
    return folder / "cells" / f"{cell.identity}.jobs.parquet"


def _checksum(content: dict[str, Any]) -> str:
    """Return the SHA-256 of the content of a cell as canonical JSON, without the checksum."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
