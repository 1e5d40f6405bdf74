"""The workloads on which peers are compared, their machines, and the schedules that programs compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from tracebed.converters.cleaning.audit import clean
from tracebed.converters.cleaning.recipes import load_recipe
from tracebed.converters.formats.reading import read_raw
from tracebed.converters.models import registry
from tracebed.converters.scaling import scale
from tracebed.converters.workload import Workload


class Machine(NamedTuple):
    nodes: int
    cores: int


class Schedule(NamedTuple):
    """The start of each job by id, in s, and the CPU time from file to schedule, in s, the best of all rounds."""

    starts: Mapping[str, float]
    seconds: float
    unit_s: float = 1e-6
    """Unit of the last digit of the starts, s."""

    def apart(self, peer: Schedule) -> int:
        """Return the number of jobs that start at another time than in the schedule of a peer."""
        return int((self._distances(peer) > max(self.unit_s, peer.unit_s)).sum())

    def _distances(self, peer: Schedule) -> pd.Series:
        assert self.starts.keys() == peer.starts.keys()
        return (pd.Series(self.starts) - pd.Series(peer.starts)).abs()

    def line(self, workload: str, policy: str, name: str, submits: pd.Series, peer: Schedule) -> str:
        """Return the line of the table in which this schedule is compared with that of a peer."""
        assert len(self.starts) == len(submits)
        wait, distance = (pd.Series(self.starts) - submits).mean(), self._distances(peer).mean()
        return (
            f"{workload:10}{policy:10}{name:11}{self.seconds:8.3f}{len(submits) / self.seconds:10,.0f}"
            f"{peer.seconds / self.seconds:8.1f}{wait:13,.2f}{self.apart(peer):13,}{distance:10,.1f}"
        )


HEADER = "workload  policy    program       CPU s    jobs/s   times  mean wait s  other starts   apart s"


def cirne(_: Callable[[str], Path]) -> tuple[Workload, Machine]:
    """Return 1,000 jobs at a load of 0.9."""
    drawn = registry.draw("cirne", 1_000, site="anl", nodes=128, seed=1)
    load = float((drawn.floats("run_time") * drawn.ints("nodes")).sum() / 128 / np.ptp(drawn.floats("submit_time")))
    return scale(drawn, arrivals=load / 0.9), Machine(128, 1)


def ricc(reference_data: Callable[[str], Path]) -> tuple[Workload, Machine]:
    """Return the recipe's 10,000 jobs, by core: sizes are not rounded up to whole nodes."""
    log = read_raw([reference_data("logs/RICC-2010-2.swf.gz")], by="core")
    return clean(log, load_recipe("ricc-sept").steps).workload, Machine(1_024, 8)
