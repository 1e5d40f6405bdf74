"""Metrics of runs in folders, with their intervals over runs with perturbed input, and differences between runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracebed.api.results import Run
from tracebed.converters import workload as converters
from tracebed.converters.perturbation import input_hash
from tracebed.orchestrator import run as orchestrator
from tracebed.validation import significance
from tracebed.validation.metrics.jobs import TAU
from tracebed.validation.significance import Difference, intervals

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class FolderMetrics:
    """The metrics of a run in a folder."""

    metrics: dict[str, Any]
    """The metrics by name, as from `Run.metrics`."""
    workload: str | None
    """SHA-256 of the workload."""
    perturbed: pd.DataFrame | None
    """The metrics of the runs with perturbed input, a row each, or those of the run alone. None: not comparable, since
    the options of the metrics are not the defaults."""
    virtual: bool = False
    """Whether the run is a replay on virtual nodes."""

    @property
    def intervals(self) -> dict[str, dict[str, float]]:
        """Interval of each metric over the runs with perturbed input (`median`, `low`, `high`); empty without them."""
        if self.perturbed is None or len(self.perturbed) < 2:
            return {}
        return {str(name): dict(row) for name, row in intervals(self.perturbed).iterrows()}


def measured(folder: Path | str, **options: Any) -> FolderMetrics:
    """Return the metrics of the run in a folder.

    Args:
        folder: folder of the run.
        options: the options of `Run.metrics`.

    Raises:
        InputError: the run cannot be read, or an option is out of its range.
    """
    run = Run.load(folder)
    found = run.metrics(**options)
    usual = {"tau": TAU, "window": "arrivals", "after": 0.0, "ended": False}  # as the runs with perturbed input
    by_default = all(options.get(name, value) == value for name, value in usual.items())
    group = significance.figures_of(Path(folder), found)
    virtual = run.info.source == orchestrator.VIRTUAL
    return FolderMetrics(found, run.info.workload.get("sha256"), group if by_default else None, virtual)


def differences(first: FolderMetrics, second: FolderMetrics) -> dict[str, Difference]:
    """Return the difference second - first of each metric. It is empty if the options are not the defaults.

    Args:
        first: the metrics of a run.
        second: the metrics of another run, with the same options.
    """
    if first.perturbed is None or second.perturbed is None:
        return {}
    return significance.differences(first.perturbed, second.perturbed)


def courses_of(name: str, members: Sequence[Mapping[str, Any]]) -> str:
    """Return the courses of an ensemble with their frequencies as text.

    Args:
        name: what the ensemble predicts.
        members: the metrics of each run of the ensemble.
    """
    from tracebed.validation.verdict import courses
    from tracebed.validation.verdict.tolerances import Tolerances

    return courses.sentence(name, courses.courses(members, [], Tolerances.default().margins), 0)


def keep_perturbed(folder: Path, runs: Iterable[tuple[converters.Workload, orchestrator.Run]]) -> pd.DataFrame:
    """Write the metrics of runs with perturbed input to the folder of a run, and return them, a row for each run.

    Args:
        folder: folder of the run whose input was perturbed.
        runs: the perturbed workloads and their runs. One run is in memory at a time.
    """
    names: list[str] = []

    def named() -> Iterable[orchestrator.Run]:
        for workload, run in runs:
            names.append(input_hash(workload))
            yield run

    found = significance.figures(named())
    found.insert(0, significance.INPUT, names)
    significance.write_figures(found, folder)
    return found
