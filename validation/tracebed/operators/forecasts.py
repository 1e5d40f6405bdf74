"""The forecast starts of the waiting jobs of a cluster, their intervals, and the answers in words."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from tracebed.converters.workload import FloatArray
from tracebed.ground.display import counted, listed, time_text
from tracebed.ground.outputs import FORECAST
from tracebed.ground.registry import one_of

INTERVAL = (0.05, 0.95)
"""Quantiles of the ensemble between which 80 % of the starts lie. Members differ less than the future of a cluster: on
recorded runs of Slurm, 82 % of the starts are where 90 % of further members would be (`docs/how-to/forecast.md`)."""


@dataclass(frozen=True)
class Forecast:
    """The forecast starts of the waiting jobs.

    Attributes:
        instant: the instant of the state, on the clock of the cluster.
        members: number of simulations.
        table: a row for each waiting job, the earliest start first: `job_id`, `user`, `account`, `partition`, `nodes`
            (smallest number), `cores`, `limit_s`, `priority`; `start` (median), `earliest` and `latest` (80 %
            interval) and `slurm` (Slurm's own estimate), times on the clock of the cluster; `waits`, why the job waits
            in the words of squeue, and for what; `reason`, why there is no forecast; and `gpus`, on all nodes.
        notes: what the state has that is not modeled, and what the log lacks, one sentence each.
        starts: the start of each row of the table in each simulation, s on the clock of the cluster since 1970, shape
            (rows, members); NaN: the job does not start.
        reservations: the advance reservations until the last start: `name`, `begin`, `end`, `nodes`.
        selected: whether the table has only some of the waiting jobs.
    """

    instant: datetime
    members: int
    table: pd.DataFrame
    notes: tuple[str, ...]
    starts: FloatArray
    reservations: pd.DataFrame
    selected: bool = False

    def only(self, wanted: Mapping[str, Collection[str]]) -> Self:
        """Return the forecast of some of the jobs, which all others still delay. A note names values without a job.

        Args:
            wanted: `job`, `user`, `account` or `partition` -> accepted values. The id of an array means all its tasks.

        Raises:
            InputError: a key is unknown.
        """
        if not wanted:
            return self
        chosen = np.ones(len(self.table), dtype=bool)
        notes = []
        for key, values in wanted.items():
            one_of("key of a job", key, ("job", "user", "account", "partition"))
            own = self.table["job_id" if key == "job" else key].astype(str)
            array = own.str.partition("_")[0] if key == "job" else own
            chosen &= (own.isin([*values]) | array.isin([*values])).to_numpy()
            if lost := [value for value in values if value not in {*own, *array}]:
                known = listed(sorted({*own}), 8) or "none"
                notes.append(f"no waiting job has the {key} {', '.join(lost)} (those of the waiting jobs: {known})")
        table = self.table[chosen].reset_index(drop=True)
        return replace(self, table=table, starts=self.starts[chosen], notes=(*self.notes, *notes), selected=True)

    @property
    def sentence(self) -> str:
        """When the last of the jobs that wait now starts, with the interval of 80 %."""
        known = (self.table["reason"] == "").to_numpy()
        jobs = counted(int(known.sum()), "job")
        if not known.any():
            return "no job with a forecast" if len(known) else "no job"
        every = np.where(np.isnan(self.starts[known]), np.inf, self.starts[known]).max(axis=0)
        low, middle, high = (times_of(each)[0] for each in interval_of(every[np.newaxis]))
        text = f"{_when(middle, self.instant, day=True)} ({_when(low, middle)} to {_when(high, middle)})"
        without = "" if known.all() else f"; {counted(int((~known).sum()), 'job')} without a forecast"
        if self.selected:
            subject = "the job" if len(known) == 1 else f"the last of these {jobs}"
            return f"{subject} starts {text}{without}"
        return f"the queue drains {text}: the last of {jobs} starts{without}"

    def row(self, row: Mapping[Hashable, Any]) -> list[str]:
        """Return a row of the table as texts: job, user, partition, request, times, and why it waits."""
        gpus = [counted(row["gpus"], "GPU")] if row["gpus"] else []
        asked = ", ".join([counted(row["cores"], "core"), *gpus, time_text(row["limit_s"])])
        times = [_clock(row[name], self.instant) for name in ("start", "earliest", "latest", "slurm")]
        return [row["job_id"], row["user"], row["partition"], asked, *times, row["waits"], row["reason"]]

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
        return {**facts, "sentence": self.sentence, "notes": self.notes, "jobs": rows}


def interval_of(every: FloatArray) -> Any:
    """Return the ends and the middle of the intervals of starts, s, of which those that do not happen are infinite."""
    with np.errstate(invalid="ignore"):  # by "weibull", a further member lies inside as often, however few there are
        low, middle, high = np.quantile(every, (INTERVAL[0], 0.5, INTERVAL[1]), axis=1, method="weibull")
    return low, middle, high


def times_of(seconds: Any) -> pd.Series[Any]:
    """Return seconds on the clock of the cluster as times; those that are not finite are missing."""
    instants = np.asarray(seconds, dtype=np.float64)
    return pd.Series(pd.to_datetime(np.round(np.where(np.isfinite(instants), instants, np.nan)), unit="s"))


def _when(time: datetime, beside: datetime, *, day: bool = False) -> str:
    """Return a time in words: with its day if this is not that of `beside`; `day`: in any case, after a preposition.

    Within a week, the day has its name.
    """
    if time != time:  # NaT
        return f"{'at ' * day}an unknown time"
    days = abs((time.date() - beside.date()).days)
    clock = f"{time:%H:%M}"
    return f"{'on ' * day}{time:{'%A' if days < 7 else '%Y-%m-%d'}} at {clock}" if days or day else clock


def _clock(time: datetime, instant: datetime) -> str:
    """Return a time, with the date if it is not that of the state."""
    if time != time:  # NaT
        return ""
    return f"{time:%H:%M:%S}" if time.date() == instant.date() else f"{time:%Y-%m-%d %H:%M:%S}"
