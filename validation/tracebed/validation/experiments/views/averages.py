"""The table of a grid averaged over seeds, with intervals, and the differences and ratios of its policies.

The ratio of a figure to that of a baseline is that of the means over the seeds: r = mean(x) / mean(b). Its interval is
that of the paired ratios x_i / b_i of the runs with the same seed and perturbation, each weighted with its b_i:
Student's t over (x_i - r b_i) / mean(b). A run that equals its baseline for each seed has the ratio 1, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from tracebed.ground.errors import InputError
from tracebed.validation.experiments.experiment import KEYS, Experiment, Point
from tracebed.validation.experiments.experiment_schema import Plot
from tracebed.validation.metrics import all_metrics
from tracebed.validation.significance import INPUT, Difference, differences
from tracebed.validation.statistics import half_width

Row = TypeVar("Row", bound=Mapping[str, Any])
REPLICATE = ["seed", "perturbation"]  # key columns of which each pair of values is one random input
GROUP = [key for key in KEYS if key not in (*REPLICATE, "testbed")]  # key columns of the means over random inputs


def chosen(table: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows that match `where`: column -> value, or list of accepted values."""
    for key, wanted in where.items():
        table = table[table[key].isin(wanted if isinstance(wanted, list) else [wanted])]
    return table


def means(table: pd.DataFrame) -> pd.DataFrame:
    """Return the means over seeds and changes: a row per window and point without these, in the order of the table."""
    figures = [column for column in table if column in all_metrics() or str(column).endswith(("_p25", "_p75"))]
    return table.groupby([*GROUP, "window"], sort=False, dropna=False)[figures].mean().reset_index()


def intervals(table: pd.DataFrame, figures: list[str]) -> pd.DataFrame:
    """Return the middle 95 % of figures over seeds and changes: columns FIGURE_low and FIGURE_high, rows as `means`."""
    groups = table.groupby([*GROUP, "window"], sort=False, dropna=False)[figures]
    low, high = (groups.quantile(share).reset_index() for share in (0.025, 0.975))
    return low.merge(high, on=[*GROUP, "window"], suffixes=("_low", "_high"))


def base_of(point: Mapping[str, Any], base: Sequence[Row], keys: Iterable[str]) -> list[Row]:
    """Return the rows of a baseline that a point is compared with: those with the same values of `keys`."""
    # A key of which the baseline has one value stands for every value, since the others were excluded: a rigid baseline
    # has one share of malleable jobs. Another workload is no baseline.
    rows = list(base)
    for key in keys:
        same = [row for row in rows if row[key] == point[key]]
        if same or key == "workload" or len({row[key] for row in rows}) > 1:
            rows = same
    return rows


def named(where: Mapping[str, Any]) -> str:
    """Return the name of a series or a baseline: its policy alone, other values after their key."""
    return ", ".join(
        str(value) if key == "policy" else f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in where.items()
    )


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table; a missing value, NaN, as None."""
    rows = table.to_dict("records")
    return [{str(key): None if value != value else value for key, value in row.items()} for row in rows]


@dataclass(frozen=True)
class Against:
    """The differences of a point from the point of the first policy that it is compared with."""

    base: dict[str, Any]
    """Keys of that point besides the policy whose values are others: those that `exclude` left out."""
    differences: dict[str, Difference]
    """Metric -> difference."""


def against_first(experiment: Experiment, table: pd.DataFrame) -> dict[tuple[Any, ...], Against]:
    """Return the differences of each policy from the first one of the experiment, over the same seeds and changes.

    Returns:
        (values of `GROUP`, window) of each point of the other policies that has a baseline -> its differences.
    """
    keys = [*GROUP, "window"]
    grouped = table.groupby(keys, sort=False, dropna=False)
    groups = {tuple(None if key != key else key for key in at): rows for at, rows in grouped}  # NaN is no key
    first, compared = experiment.policies[0].name, {}
    points: list[dict[str, Any]] = [dict(zip(keys, at, strict=True)) for at in groups]
    bases = [point for point in points if point["policy"] == first]
    for point, rows in zip(points, groups.values(), strict=True):
        base = base_of(point, bases, [key for key in keys if key != "policy"]) if point["policy"] != first else []
        if len(base) != 1:
            continue
        other = {key: base[0][key] for key in GROUP if key != "policy" and base[0][key] != point[key]}
        below = groups[tuple(base[0].values())]
        if below["seed"].nunique() == 1 and experiment.workloads[point["workload"]].model is None:
            # Seeds of the baseline were excluded, too: its jobs are the same for each seed.
            below = pd.concat([below.assign(seed=seed) for seed in rows["seed"].unique()])
        compared[tuple(point.values())] = Against(other, differences(with_inputs(below), with_inputs(rows)))
    return compared


def best_points(experiment: Experiment, points: Sequence[Point], table: pd.DataFrame, figure: str) -> list[Point]:
    """Return the points of the first policy and of another one where the mean of `figure` falls most, of one input.

    Raises:
        InputError: no other policy lowers the mean.
    """
    first, averaged = experiment.policies[0].name, means(table)
    averaged = averaged[averaged["window"] == averaged["window"].iloc[0]]
    group = {tuple(None if pd.isna(row[key]) else row[key] for key in GROUP): row[figure] for row in records(averaged)}
    place, best, least = GROUP.index("policy"), None, 1.0
    for at, value in group.items():
        base = group.get((*at[:place], first, *at[place + 1 :]), math.nan)
        if base and value / base < least:
            best, least = at, value / base
    if best is None:
        raise InputError(f"no policy has a lower {figure} than {first}", hint="replay cells of your choice: a testbed")
    wanted = [(*best[:place], policy, *best[place + 1 :]) for policy in (first, best[place])]
    found = [[point for point in points if tuple(getattr(point, key) for key in GROUP) == each] for each in wanted]
    return [each[0] for each in found]


def with_inputs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the name of their random input."""
    return rows.assign(**{INPUT: rows["seed"].astype(str) + " " + rows["perturbation"].astype(str)})


def is_perturbed(table: pd.DataFrame) -> bool:
    """Return whether the rows of a table have several random changes of the workload."""
    return bool(table["perturbation"].nunique() > 1)


LEVEL = 0.95  # nominal coverage of the intervals of means and ratios
PAIRED = "_base"
"""Suffix of the column of the baseline of the same seed and perturbation, as a share of the mean of the baseline."""


def normalized(rows: pd.DataFrame, figures: Sequence[str], relative_to: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows except the baseline, with figures divided by the mean of the baseline at the same point."""
    # Each figure has a column more, with the suffix `PAIRED`; NaN where the baseline has no run of the same input.
    same = [key for key in GROUP if key not in relative_to]
    base = chosen(rows, relative_to)
    bases = records(base[[*GROUP, *REPLICATE, *figures]])
    others: pd.DataFrame = rows.drop(index=base.index).copy()
    points = {tuple(at.values()): base_of(at, bases, same) for at in records(others[GROUP])}
    inputs = others[REPLICATE].itertuples(index=False, name=None)
    keys = [(tuple(at.values()), replicate) for at, replicate in zip(records(others[GROUP]), inputs, strict=True)]
    for name in figures:
        by_input = {point: _of_inputs(below, name) for point, below in points.items()}
        middle = {point: _mean([row[name] for row in below]) for point, below in points.items()}
        divisors = np.array([middle[point] or np.nan for point, _ in keys])
        paired = np.array([_paired(by_input[point], replicate) for point, replicate in keys])
        others[name] = others[name].to_numpy(dtype=np.float64) / divisors
        others[f"{name}{PAIRED}"] = paired / divisors
    known: pd.DataFrame = others[others[list(figures)].notna().any(axis=1)]
    return known


def _of_inputs(below: Sequence[Mapping[str, Any]], name: str) -> dict[tuple[Any, ...], float]:
    """Return (seed, perturbation) -> mean of the baseline."""
    values: dict[tuple[Any, ...], list[float]] = {}
    for row in below:
        values.setdefault(tuple(row[key] for key in REPLICATE), []).append(row[name])
    return {each: _mean(sample) for each, sample in values.items()}


def _paired(of_inputs: Mapping[tuple[Any, ...], float], replicate: tuple[Any, ...]) -> float:
    """Return the baseline of an input. A baseline of one input, such as a log without seeds, is that of each input."""
    return next(iter(of_inputs.values())) if len(of_inputs) == 1 else of_inputs.get(replicate, np.nan)


def _mean(sample: Sequence[float | None]) -> float:
    known = [value for value in sample if value is not None]
    return fmean(known) if known else np.nan


def interval(rows: pd.DataFrame, name: str) -> tuple[float, int]:
    """Return the half-width of the 95 % interval of the mean of a figure of one point, and the number of values."""
    values = rows[name].to_numpy(dtype=np.float64)
    # From `normalized`, the interval is that of the ratio, over the pairs.
    if f"{name}{PAIRED}" in rows and not np.isnan(values).all():
        values = values - np.nanmean(values) * rows[f"{name}{PAIRED}"].to_numpy(dtype=np.float64)
    known = values[~np.isnan(values)]
    return half_width(known, LEVEL) if len(known) > 1 else np.nan, len(known)


def interval_text(sizes: Iterable[int], replicated: str, plot: Plot) -> str:
    """Return what a value and its interval are, for a legend; `replicated` differs between the runs of a point."""
    numbers = "-".join(dict.fromkeys(f"{each:,}" for each in (min(sizes), max(sizes))))
    if plot.relative_to is None:
        over = f"{numbers} {'seeds' if replicated == 'seed' else 'seeds and perturbations'}"
        return f"mean and its 95 % interval over {over} (Student's t)"
    return f"ratio of the means and its 95 % interval over {numbers} pairs of the same {replicated} (Student's t)"


def reference(base: Sequence[Mapping[Any, Any]], point: Mapping[Any, Any], keys: Iterable[str], figure: str) -> float:
    """Return the mean of the baseline of a point (`base_of`), NaN if there is no baseline."""
    rows = base_of(point, base, keys)
    return fmean(row[figure] for row in rows) if rows else math.nan
