"""Sensitivity of an experiment to its free choices: one choice at a time is changed about a base.

The base and each change are simulated with the same perturbed inputs, with the seeds of the experiment in turn, so that
the effect of a choice is the mean of differences between pairs (`significance.differences`). The band is the interval
of the base: the effect of the perturbations alone on its figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracebed.ground.errors import InputError
from tracebed.ground.files import replacing
from tracebed.validation.experiments.choices import Choice, SinglePoint, changed_points, single_point, value_text
from tracebed.validation.experiments.claims import Rule
from tracebed.validation.experiments.experiment import Experiment
from tracebed.validation.experiments.file import ExperimentFile
from tracebed.validation.experiments.simulated.grid import GridPlan, Progress, compute, gathered, plan, union
from tracebed.validation.experiments.simulated.pools import Pool
from tracebed.validation.experiments.views.averages import REPLICATE
from tracebed.validation.metrics import all_metrics
from tracebed.validation.significance import INPUT, PERCENTS, Difference, differences

COLUMNS = ["figure", "choice", "base_value", "value", "base", "band_low", "band_high", "changed", "change", "relative"]
COLUMNS += ["low", "high", "pairs", "differ", "found"]
NOT_SIGNIFICANT = "not significant"
"""The interval of the effect contains zero: another random input may turn its sign."""
INSIDE = "inside the band"
"""The effect has one sign, but is smaller than the effect of random perturbations on the base."""
OUTSIDE = "outside the band"
UNKNOWN = "unknown"
"""Fewer runs than a decision needs."""


@dataclass(frozen=True)
class Analysis:
    """The simulations of a sensitivity analysis, kept or to be computed."""

    file: ExperimentFile
    runs: int
    base: SinglePoint
    base_plan: GridPlan
    changed: list[tuple[Choice, SinglePoint, GridPlan]]
    refused: dict[str, str]
    """Label of a choice that cannot be simulated -> reason."""

    @property
    def settings(self) -> dict[str, Any]:
        """The values of the axes at the base, and the window. Axes that are not in the experiment are omitted."""
        point = {key: value for key, value in asdict(self.base.point).items() if key not in (*REPLICATE, "testbed")}
        return {key: value for key, value in point.items() if value is not None} | {"window": self.base.window}

    @property
    def about(self) -> str:
        """The axes at the base as text, without default values."""
        fields = Experiment.model_fields
        plain = {key: fields[key].default for key in self.settings if key in fields}
        return ", ".join(
            f"{key} {value_text(value)}" for key, value in self.settings.items() if [value] != plain.get(key)
        )

    def printed(self, figure: str) -> list[float]:
        """Return the published values of a figure at points like the base."""
        found = [each for each in self.file.experiment.published if each.figure == figure and not each.is_change]
        values = [each.value for each in found if each.rule is Rule.NUMBER and self.base.point.fits(each.at)]
        return list(dict.fromkeys(value for value in values if value is not None))

    @property
    def plan(self) -> GridPlan:
        """The distinct simulations to be computed."""
        return union([self.base_plan, *(plan for _, _, plan in self.changed)])


@dataclass(frozen=True)
class Sensitivity:
    """The effects of the choices."""

    table: pd.DataFrame
    """A row per figure and changed choice, largest effect first; `COLUMNS`, in the unit of the metric."""
    failed: dict[str, str]
    """Label of a choice -> why there is no row."""
    warnings: dict[str, int]
    """Warning -> number of cells, of all simulations."""


def analysis(
    file: ExperimentFile,
    base: Mapping[str, Any],
    wanted: Mapping[str, Sequence[Any]],
    runs: int,
    folder: Path,
    logs: Mapping[str, Path],
) -> Analysis:
    """Prepare the workloads of the base and of each changed choice, and return what is to be computed.

    Args:
        base: choice -> value at the base.
        wanted: choice -> values.
        runs: number of perturbed inputs.
        folder: the output folder.
        logs: paths of logs by name of the workload.

    Raises:
        InputError: a choice is unknown, or the base cannot be simulated. A change that cannot be simulated is in
            `Analysis.refused`.
    """
    middle = single_point(file, base)

    def planned(each: SinglePoint) -> GridPlan:
        return plan(each.file, each.replicates(runs), folder, logs)

    base_plan, changed, refused = planned(middle), [], {}
    for choice, each in changed_points(file, base, wanted):
        try:
            changed.append((choice, each, planned(each)))
        except InputError as error:
            refused[choice.label] = str(error)
    return Analysis(file, runs, middle, base_plan, changed, refused)


def measure(asked: Analysis, folder: Path, pool: Pool, on_progress: Progress | None = None) -> Sensitivity:
    """Compute the cells that are not kept, write `sensitivity.csv`, and return the effects.

    Args:
        asked: the analysis, made for this folder.
        folder: the output folder, locked by `files.locked_folder`.
        pool: the workers.
        on_progress: called after each cell with the numbers of computed cells and of cells to compute.
    """
    errors = compute(asked.plan, folder, pool, on_progress)
    warnings: dict[str, int] = {}
    failed = dict(asked.refused)

    def runs_of(each: SinglePoint, made: GridPlan, label: str) -> pd.DataFrame | None:
        reasons = [errors[cell.identity] for cell in made.cells.values() if cell.identity in errors]
        if reasons:
            failed[label] = reasons[0]
            return None
        table, said = gathered(made, folder, ())
        for warning, count in said.items():
            warnings[warning] = warnings.get(warning, 0) + count
        rows = table[table["window"] == each.window]
        return rows.assign(**{INPUT: rows["seed"].astype(str) + " " + rows["perturbation"].astype(str)})

    base = runs_of(asked.base, asked.base_plan, "base")
    rows: list[list[Any]] = []
    for choice, each, made in asked.changed:
        found = runs_of(each, made, choice.label)
        if base is None or found is None:
            continue
        for name, difference in differences(base, found).items():
            rows.append(_row(choice, name, difference, base[name].to_numpy(dtype=np.float64)))
    table = pd.DataFrame(rows, columns=COLUMNS)
    order = {name: place for place, name in enumerate(all_metrics())}
    by = table.assign(place=table["figure"].map(order), size=-table["change"].abs())
    table = table.loc[by.sort_values(["place", "size"], kind="stable").index].reset_index(drop=True)
    own = folder / asked.file.name
    own.mkdir(exist_ok=True)
    with replacing(own / "sensitivity.csv") as stream:
        table.to_csv(stream, index=False)
    return Sensitivity(table, failed, warnings)


def _row(choice: Choice, name: str, found: Difference, base: np.typing.NDArray[np.float64]) -> list[Any]:
    low, high = np.percentile(base[~np.isnan(base)], PERCENTS)
    changed = found.base + found.change
    if found.differ is None:
        verdict = UNKNOWN
    elif not found.differ:
        verdict = NOT_SIGNIFICANT
    else:
        verdict = INSIDE if low <= changed <= high else OUTSIDE
    about = [name, choice.name, value_text(choice.base), value_text(choice.value), found.base, low, high]
    effect = [changed, found.change, found.relative(found.change), found.low, found.high]
    return [*about, *effect, found.pairs, found.differ, verdict]
