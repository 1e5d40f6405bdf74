"""Judges forecasts on the states of `slurm_recordings/states`, beside Slurm's own estimates of the same instants.

    python -m tests.oracles.slurm_forecasts [--repetitions 16] [FILE...]

The run times and later jobs of a recording are learnt from the other recordings.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

import tracebed.api as tb
from tracebed.ground.errors import Tolerated
from tracebed.operators.judgment import Judgment
from tracebed.slurm.scontrol import instant
from tracebed.slurm.state import COMMANDS

FOLDER = Path(__file__).parents[1] / "slurm_recordings" / "states"

BEGIN_S = 120.0
"""The jobs of this time, in which the queue of a recording begins, are not learnt from."""


def recorded(path: Path) -> dict[str, Any]:
    """Return a recording of `record_slurm_states.py`."""
    content: dict[str, Any] = json.loads(lzma.decompress(path.read_bytes()))
    return content


def log_of(recordings: Sequence[dict[str, Any]]) -> tb.Workload:
    """Return the accounting of recordings as one log, one recording after the other."""
    tables, since = [], 0.0
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", Tolerated)
        for number, content in enumerate(recordings):
            file = Path(folder) / f"{number}.txt"
            file.write_text(content["sacct"])
            table = tb.read(file, keep_names=True, time_zone="UTC").table
            table = table[table["submit_time"] >= table["submit_time"].min() + BEGIN_S]
            shift = since - float(table["submit_time"].min())
            tables.append(table.assign(job_id=f"{number}-" + table["job_id"], submit_time=table["submit_time"] + shift))
            since = float(tables[-1]["submit_time"].max()) + 1.0
    return tb.Workload(pd.concat(tables, ignore_index=True).drop(columns=["logged_start", "logged_end"]))


def forecasts(content: dict[str, Any], log: tb.Workload, repetitions: int, every: int = 1, **options: Any) -> Any:
    """Return a row for each waiting job of every n-th state: its real start, the forecast and Slurm's estimate."""
    real = {}
    for line in content["sacct"].splitlines()[1:]:
        fields = dict(zip(content["sacct"].splitlines()[0].split("|"), line.split("|"), strict=True))
        if fields["Start"] != "Unknown":  # submitted late, and not in any state
            real[fields["JobID"]] = instant(fields["Start"], "sacct")
    tables = []
    with tempfile.TemporaryDirectory() as name:
        for number, state in enumerate(content["states"][::every]):
            folder = Path(name) / str(number)
            folder.mkdir()
            for part in COMMANDS.keys() & state.keys():
                (folder / f"{part}.txt").write_text(state[part])
            found = tb.forecast(folder, log, repetitions=repetitions, seed=number, **options)
            table = found.table.assign(state=number, instant=pd.Timestamp(found.instant))
            table["real"] = pd.to_datetime(table["job_id"].map(real), unit="s")
            tables.append(table)
    return pd.concat(tables, ignore_index=True)


def figures(table: pd.DataFrame) -> dict[str, float]:
    """Return the figures of all partitions, as `tracebed forecast --judge` computes them."""
    return {key: value for key, value in Judgment(table, 0, ()).figures()[0].items() if key != "partition"}


def main() -> None:
    """Print the figures of each recording."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--repetitions", type=int, default=16)
    given = parser.parse_args()
    recordings = {path: recorded(path) for path in given.files or sorted(FOLDER.glob("*.json.xz"))}
    tables: list[pd.DataFrame] = []
    for path, content in recordings.items():
        log = log_of([other for place, other in recordings.items() if place != path])
        tables.append(forecasts(content, log, given.repetitions))
        _show(path.name, tables[-1])
    _show("all", pd.concat(tables))


def _show(name: str, table: pd.DataFrame) -> None:
    sys.stdout.write(f"{name}: {', '.join(f'{key} {value:.3g}' for key, value in figures(table).items())}\n")


if __name__ == "__main__":
    main()
