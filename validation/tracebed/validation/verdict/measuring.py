"""Measured cases: the metrics of all runs of a case, its screened repetitions, and its matched jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.ground.errors import InputError
from tracebed.validation.metrics import MeasuredRun, summarize
from tracebed.validation.verdict.cases import Case
from tracebed.validation.verdict.clusters import Membership, memberships
from tracebed.validation.verdict.comparison import check_sides, time_compression
from tracebed.validation.verdict.evidence import copied_run_times
from tracebed.validation.verdict.matching import match
from tracebed.validation.verdict.screening import Repetition, different_states, screen
from tracebed.validation.verdict.tolerances import Tolerances

Figures = dict[str, Any]
"""The dictionary of `metrics` of a run."""


@dataclass(frozen=True)
class MeasuredCase:
    """A case with the figures of its runs."""

    case: Case
    real: tuple[MeasuredRun, ...]
    predicted: tuple[MeasuredRun, ...]
    figures: tuple[Figures, ...]
    """Metrics of each repetition."""
    predicted_figures: tuple[Figures, ...]
    """Metrics of each prediction."""
    repetitions: tuple[Repetition, ...]
    unmatched: float
    """Largest share of the jobs of a pair of runs without a counterpart."""
    unmatched_limit: float
    """Largest accepted share: that of the tolerances or, if it is larger, that of two runs of the ensemble."""
    copied: bool
    """Whether the run times of each prediction are copies of those that a repetition observed."""
    compression: float
    """Factor on absolute margins in seconds: the compression of the run times of the workload."""
    calibration: bool
    """Whether the predictions use a calibration that was made from the workload of this case."""
    member: Membership
    """The real run and the workload of the case, which other cases may share."""

    @classmethod
    def of_all(
        cls, cases: Sequence[Case], tolerances: Tolerances, tau: float, allow_different_workloads: bool
    ) -> list[MeasuredCase]:
        """Measure the runs of `cases`, and find what the cases share. Raises InputError as `of`."""
        found = [cls.of(case, tolerances, tau, allow_different_workloads) for case in cases]
        logs = [[each.repetitions[index].sha256 for index in each.selected()] for each in found]
        members = memberships(cases, logs)
        return [replace(each, member=member) for each, member in zip(found, members, strict=True)]

    @classmethod
    def of(cls, case: Case, tolerances: Tolerances, tau: float, allow_different_workloads: bool) -> MeasuredCase:
        """Measure the runs of `case`. Raises InputError if its runs do not belong together."""
        _check(case, allow_different_workloads)
        real, predicted = (tuple(MeasuredRun(run, tau) for run in side) for side in (case.real, case.predicted))
        figures = tuple(map(summarize, real))
        names = [case.name_of(index) for index in range(len(real))]
        repetitions = screen(case.real, names, figures, max(tolerances.unmatched, *different_states(case.predicted)))
        included = [side for side, each in zip(real, repetitions, strict=True) if not each.excluded] or real
        pairs = [[_paired(a, b) for a in included] for b in predicted]
        calibrated = {sha for run in case.predicted for sha in run.info.calibration.get("workloads", [])}
        hashes = {run.info.workload.get("sha256") for run in (*case.real, *case.predicted)}
        return cls(
            case=case,
            real=real,
            predicted=predicted,
            figures=figures,
            predicted_figures=tuple(map(summarize, predicted)),
            repetitions=repetitions,
            unmatched_limit=max([tolerances.unmatched, *(_paired(a, b)[0] for a, b in pairwise(predicted))]),
            unmatched=max(unmatched for row in pairs for unmatched, _ in row),
            copied=all(any(copied for _, copied in row) for row in pairs),
            compression=time_compression(case.real[0].info),
            calibration=case.calibration or not calibrated.isdisjoint(hashes),
            member=Membership(case.name, case.cluster or case.workload),
        )

    def by_own_limits(self) -> MeasuredCase:
        """Return the case with the repetitions that are excluded by the default limits of health only."""
        included = tuple(replace(each, excluded="") if each.lenient else each for each in self.repetitions)
        return replace(self, repetitions=included)

    @property
    def healthy(self) -> int:
        """Number of repetitions that are not excluded."""
        return sum(not each.excluded for each in self.repetitions)

    @property
    def unfit(self) -> int:
        """Number of repetitions that are excluded for their health."""
        return sum(each.unfit for each in self.repetitions)

    def selected(self, *, flagged: bool = True) -> list[int]:
        """Return the positions of the included repetitions; of all if all are excluded.

        Args:
            flagged: whether repetitions with the signals H4 and H5 are included.
        """
        found = [i for i, each in enumerate(self.repetitions) if not each.excluded and (flagged or not each.flags)]
        return found or list(range(len(self.repetitions)))

    def values(self, metric: str, *, flagged: bool = True) -> tuple[FloatArray, FloatArray]:
        """Return a metric of the selected repetitions and of the predictions; NaN where it is undefined."""
        real = [self.figures[index][metric] for index in self.selected(flagged=flagged)]
        return np.array(real, dtype=float), np.array([each[metric] for each in self.predicted_figures], dtype=float)

    @property
    def resolution_s(self) -> float:
        """Resolution of the times of the real runs, s; 0 for exact times."""
        return max(run.info.resolution_s for run in self.case.real)

    def central(self, metrics: Iterable[str]) -> tuple[int, int]:
        """Return the positions of the selected repetition and of the prediction nearest to the medians of `metrics`."""
        names, chosen = list(metrics), self.selected()
        real = _nearest([[self.figures[index][name] for name in names] for index in chosen])
        return chosen[real], _nearest([[each[name] for name in names] for each in self.predicted_figures])


def _nearest(table: list[list[float]]) -> int:
    """Return the row of a table nearest to the medians of the columns, relative to these medians."""
    values = np.array(table, dtype=float)
    values[:, ~np.isfinite(values).all(axis=0)] = 0.0
    middle = np.median(values, axis=0)
    return int(np.argmin((np.abs(values - middle) / np.where(middle, np.abs(middle), 1.0)).sum(axis=1)))


def _paired(real: MeasuredRun, predicted: MeasuredRun) -> tuple[float, bool]:
    """Return the share of jobs without a counterpart, and whether the predicted run times are copies."""
    jobs, matching = match(real.jobs, predicted.jobs)
    resolution_s = max(side.run.info.resolution_s for side in (real, predicted))
    return matching.unmatched_share, copied_run_times(jobs, resolution_s)


def _check(case: Case, allow_different_workloads: bool) -> None:
    """Raise InputError if the runs of a case do not belong together."""
    for real in case.real:
        check_sides(real, case.predicted[0], allow_different_workloads)
    for predicted in case.predicted[1:]:
        check_sides(case.real[0], predicted, allow_different_workloads)
    for what, values in (
        ("repetitions of the case {} have different policies", [run.info.policy for run in case.real]),
        ("predictions of the case {} come from different simulators", [run.info.source for run in case.predicted]),
    ):
        if len(found := _distinct(values)) > 1:
            raise InputError(f"{what.format(case.name)}: {', '.join(found)}", hint="make a case of each")


def _distinct(values: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(values))
