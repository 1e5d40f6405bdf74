"""The files of a run: its tables, and their checksums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tracebed.ground.errors import InputError, tolerate
from tracebed.ground.files import sha256_of
from tracebed.ground.table import Table
from tracebed.orchestrator.runs.schema import TABLES


def table_file(folder: Path, name: str) -> Path:
    """Return the file of a table in the folder of a run."""
    return folder / f"{name}.parquet"


def write_table(table: Table, path: Path) -> str:
    """Write a table, and return the SHA-256 of the file.

    Only texts have a dictionary: times and ids have too many values, and trying takes time.
    """
    words = [name for name, column in TABLES[path.stem].items() if column.dtype == "str" and name != "job_id"]
    pq.write_table(table.arrow(), path, use_dictionary=words)
    return sha256_of(path)


def check_sums(sums: Any, folder: Path) -> None:
    """Check the tables against the checksums in `run.json`. Warn if there are none, as in runs of earlier versions.

    Raises:
        InputError: a table does not match its checksum.
    """
    known = sums if isinstance(sums, dict) else {}
    for name in TABLES:
        if name in known and known[name] != sha256_of(table_file(folder, name)):
            what = "does not match its checksum in run.json: the file was changed after the run"
            raise InputError(what, where=str(table_file(folder, name)), hint="repeat the run")
    missing = len(TABLES.keys() - known.keys())
    tolerate({"tables without a checksum in run.json: changes cannot be detected": missing}, where=str(folder))
