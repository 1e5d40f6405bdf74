"""Forecasts of the starts of waiting jobs of a Slurm cluster."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracebed.api.workloads import read
from tracebed.converters import workload as converters
from tracebed.ground.errors import InputError
from tracebed.ground.outputs import FORECAST
from tracebed.slurm.live_state import ask
from tracebed.slurm.simulation.forecast import Starts
from tracebed.slurm.simulation.forecast import forecast as simulate
from tracebed.slurm.state import read_folder, state_of, waits_for

INTERVAL = (0.05, 0.95)
"""Quantiles of the ensemble between which 80 % of the starts lie. Members differ less than the future of a cluster: on
recorded runs of Slurm, 82 % of the starts are where 90 % of further members would be (`docs/how-to/forecast.md`)."""
MEMBERS = 16


@dataclass(frozen=True)
class Forecast:
    """The forecast starts of the waiting jobs.

    Attributes:
        instant: the instant of the state, on the clock of the cluster.
        members: number of simulations.
        table: a row for each waiting job, the earliest start first: `job_id`, `user`, `account`, `partition`, `nodes`
            (smallest number), `cores`, `limit_s`, `priority`; `start` (median), `earliest` and `latest` (80 %
            interval) and `slurm` (Slurm's own estimate), times on the clock of the cluster; `waits`, why the job waits
            in the words of squeue, and for what; and `reason`, why there is no forecast.
        notes: what the state has that is not modeled, and what the log lacks, one sentence each.
    """

    instant: datetime
    members: int
    table: pd.DataFrame
    notes: tuple[str, ...]

    def to_csv(self, path: Path | str, *, replace: bool = False) -> None:
        """Write the table to a file.

        Raises:
            InputError: `path` exists and may not be replaced, or it cannot be written.
        """
        with FORECAST.file(Path(path), replace=replace) as file:
            self.table.to_csv(file, index=False, date_format="%Y-%m-%dT%H:%M:%S", lineterminator="\n")

    def to_json(self) -> dict[str, Any]:
        """Return plain values: times as text, missing ones as None."""
        table = self.table.copy()
        for name in ("start", "earliest", "latest", "slurm"):
            table[name] = table[name].dt.strftime("%Y-%m-%dT%H:%M:%S")
        rows = table.astype(object).where(table.notna(), None).to_dict("records")
        facts = {"instant": self.instant.isoformat(), "members": self.members, "interval": 0.8}
        return {**facts, "notes": self.notes, "jobs": rows}


def forecast(
    state: Path | str | None,
    log: converters.Workload | Path | str,
    *,
    repetitions: int = MEMBERS,
    seed: int = 0,
    arrivals: bool = True,
) -> Forecast:
    """Forecast when the waiting jobs of a Slurm cluster start.

    Each member of an ensemble simulates the cluster from its present state. Run times (as shares of time limits) and
    the jobs that will be submitted are drawn from the log.

    Args:
        state: folder with the output of Slurm's commands (config.txt, partition.txt, node.txt, job.txt, and if possible
            sprio.txt and sshare.txt); None: the commands are run now.
        log: the accounting of the cluster, with the names of users: a workload, or the path of one.
        repetitions: number of simulations.
        seed: seed of all draws.
        arrivals: whether jobs are submitted later, as in a window of the log.

    Raises:
        InputError: a file is missing or is not the output of its command, or the log has no limits.
        TestbedError: Slurm does not answer.

    Example:
        >>> tb.forecast("state", "january.parquet").table.columns[:2].tolist()  # doctest: +SKIP
        ['job_id', 'user']
    """
    if repetitions < 2:
        raise InputError(f"{repetitions} repetitions have no interval", hint="use 2 or more")
    folder = Path("slurm" if state is None else state)
    found = state_of(ask() if state is None else read_folder(folder), folder)
    history = read(log, equal_nodes=False) if isinstance(log, str | Path) else log
    starts = simulate(found, history, repetitions, seed, arrivals=arrivals)
    return Forecast(_instant(found.instant), repetitions, _table(starts), starts.notes)


def _table(starts: Starts) -> pd.DataFrame:
    every = np.where(np.isnan(starts.starts), np.inf, starts.starts)  # a job that a simulation does not start is late
    with np.errstate(invalid="ignore"):  # by "weibull", a further member lies inside as often, however few there are
        low, middle, high = np.quantile(every, (INTERVAL[0], 0.5, INTERVAL[1]), axis=1, method="weibull")
    jobs = starts.jobs
    table = pd.DataFrame(
        {
            "job_id": [job.id for job in jobs],
            "user": [job.user for job in jobs],
            "account": [job.account for job in jobs],
            "partition": [job.partition for job in jobs],
            "nodes": [job.fewest for job in jobs],
            "cores": [job.cores for job in jobs],
            "limit_s": [job.limit_s for job in jobs],
            "priority": [job.priority for job in jobs],
            "start": _times(middle),
            "earliest": _times(low),
            "latest": _times(high),
            "slurm": _times([job.estimate if job.estimate else np.nan for job in jobs]),
            "waits": waits_for(jobs),
            "reason": list(starts.reasons),
        }
    )
    return table.sort_values("start", kind="stable", ignore_index=True)


def _times(seconds: Any) -> pd.Series[Any]:
    instants = np.asarray(seconds, dtype=np.float64)
    return pd.Series(pd.to_datetime(np.round(np.where(np.isfinite(instants), instants, np.nan)), unit="s"))


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
