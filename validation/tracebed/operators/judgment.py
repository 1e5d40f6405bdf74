"""Collected states of a live Slurm cluster, and how good the forecasts and Slurm's own estimates were on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.workload import FloatArray, Workload
from tracebed.ground.errors import InputError
from tracebed.ground.files import replacing_folder
from tracebed.ground.outputs import FORECAST
from tracebed.slurm.scontrol import configuration
from tracebed.slurm.state import COMMANDS, ClusterState, read_folder, state_of

TIMES = ("start", "earliest", "latest", "slurm", "instant", "real")
TOLERANCE_S = 1.0
"""Slurm prints whole seconds."""


def collect(folder: Path, texts: Mapping[str, str]) -> Path:
    """Write the output of `COMMANDS` to a new folder below `folder`, named by its instant, and return this folder.

    Raises:
        InputError: there is a state of this instant, or the folder cannot be written.
    """
    instant, _ = configuration(texts["config"], " ".join(COMMANDS["config"]))
    path = folder / f"{datetime.fromtimestamp(instant, UTC):%Y-%m-%dT%H-%M-%S}"
    if path.exists():
        raise InputError("exists: a state of this second", where=str(path), hint="collect the next one later")
    with replacing_folder(path, ()) as scratch:
        for name, text in texts.items():
            (scratch / f"{name}.txt").write_text(text, encoding="utf-8")
    return path


def collected(folder: Path) -> list[ClusterState]:
    """Return the states in the folders below `folder`, the earliest first. Raises InputError if there are none."""
    places = sorted(path.parent for path in folder.glob("*/config.txt") if not path.parent.name.startswith("."))
    if len(places) < 2:
        what = f"has {len(places)} of the 2 states that show what happened, each in a folder with config.txt"
        raise InputError(what, where=str(folder), hint="collect states: tracebed forecast --collect FOLDER")
    return sorted((state_of(read_folder(place), place) for place in places), key=lambda state: state.instant)


def clock(log: Workload, column: str) -> FloatArray:
    """Return the times of a column on the clock of the cluster, s since 1970. Raises InputError without a date."""
    origin, zone = log.provenance.unix_start, log.provenance.time_zone
    if origin is None:
        raise InputError("the log has no date, so that it says nothing about states", hint="give the export of sacct")
    instants = pd.to_datetime(pd.Series(log.floats(column) + origin), unit="s", utc=True)
    local = instants.dt.tz_convert(zone or "UTC").dt.tz_localize(None)
    return np.asarray((local - pd.Timestamp(0)) / pd.Timedelta(seconds=1), dtype=np.float64)


def ends_of(log: Workload) -> FloatArray:
    """Return the ends of the jobs of a log on the clock of the cluster, s since 1970."""
    ended = clock(log, "logged_end")
    return np.where(np.isnan(ended), clock(log, "submit_time") + log.floats("run_time"), ended)


def before(log: Workload, ended: FloatArray, instant: float) -> Workload:
    """Return the jobs of a log whose ends (`ends_of`) are not after an instant: what was known then."""
    return Workload(log.table[ended <= instant].reset_index(drop=True), log.provenance)


class Happened:
    """The starts of jobs, from a log and from later states."""

    def __init__(self, log: Workload, states: list[ClusterState]) -> None:
        """Take the starts of the log, and those of the jobs that run in a state."""
        self._starts: dict[str, set[float]] = defaultdict(set)
        for job, start in zip(log.table["job_id"].astype(str), clock(log, "logged_start").tolist(), strict=True):
            self._starts[job].add(start)
        for job, start in ((job.id, job.start) for state in states for job in state.jobs if job.start is not None):
            self._starts[job].add(start)

    def after(self, instant: float, job: str) -> float:
        """Return the first start of a job after an instant, s; NaN: it is unknown, or the job never started."""
        return min((start for start in self._starts.get(job, ()) if start >= instant - TOLERANCE_S), default=np.nan)


@dataclass(frozen=True)
class Judgment:
    """Forecasts of collected states, beside what happened.

    Attributes:
        table: a row for each waiting job of each state: the columns of a forecast, `instant` (of the state) and `real`
            (when the job started; missing: it did not, or the start is unknown), on the clock of the cluster.
        states: number of states with a forecast.
        notes: what is not modeled, and what the log lacks, one sentence each.
    """

    table: pd.DataFrame
    states: int
    notes: tuple[str, ...]

    def figures(self) -> list[dict[str, Any]]:
        """Return the errors of all forecasts, and those of each partition.

        Each has the `partition` (empty: all), `forecasts` (of jobs whose start is known), `inside` (share of the
        starts in their interval) and `wait_s` (mean time from the state to the start). `compared` is the number of
        forecasts with an estimate of Slurm, to which the other figures belong: `error_s` and `slurm_error_s` (means of
        the absolute errors), `bias_s` and `slurm_bias_s` (means of the errors; positive: the forecast is too late).
        """
        parts = self.table["partition"].unique().tolist()
        return [_figures("", self.table)] + [
            _figures(part, self.table[self.table["partition"] == part]) for part in (parts if len(parts) > 1 else ())
        ]

    def to_csv(self, path: Path | str, *, replace: bool = False) -> None:
        """Write the table to a file. Raises InputError if it exists and may not be replaced, or cannot be written."""
        with FORECAST.file(Path(path), replace=replace) as file:
            self.table.to_csv(file, index=False, date_format="%Y-%m-%dT%H:%M:%S", lineterminator="\n")

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        unknown = int(self.table["real"].isna().sum())
        facts = {"states": self.states, "interval": 0.8, "without_start": unknown}
        return {**facts, "notes": self.notes, "figures": self.figures()}


def _figures(partition: str, table: pd.DataFrame) -> dict[str, Any]:
    known = table[table["real"].notna() & table["start"].notna()]
    times = {name: (known[name] - known["instant"]).dt.total_seconds() for name in TIMES}
    real, both = times["real"], known["slurm"].notna()
    latest = times["latest"].fillna(np.inf)  # in more than 5 % of the simulations, the job does not start
    inside = (real >= times["earliest"] - TOLERANCE_S) & (real <= latest + TOLERANCE_S)
    error, of_slurm = ((times[name] - real)[both] for name in ("start", "slurm"))
    return {
        "partition": partition,
        "forecasts": len(known),
        "wait_s": float(real.mean()),
        "inside": float(inside.mean()),
        "compared": int(both.sum()),
        "error_s": float(error.abs().mean()),
        "slurm_error_s": float(of_slurm.abs().mean()),
        "bias_s": float(error.mean()),
        "slurm_bias_s": float(of_slurm.mean()),
    }
