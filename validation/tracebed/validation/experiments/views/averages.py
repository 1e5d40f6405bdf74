"""The table of a grid averaged over seeds, with intervals, and the differences of its policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pandas as pd

from tracebed.validation.experiments.experiment import KEYS, Experiment
from tracebed.validation.metrics import all_metrics
from tracebed.validation.significance import INPUT, Difference, differences

Row = TypeVar("Row", bound=Mapping[str, Any])
REPLICATE = ["seed", "perturbation"]
"""Key columns of which each pair of values is one random input."""
GROUP = [key for key in KEYS if key not in (*REPLICATE, "testbed")]
"""Key columns of the means over seeds and random changes."""


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
    """Return the rows of a baseline that a point is compared with: those with the same values of `keys`.

    A key of which the baseline has one value stands for every value, since the others were excluded: a rigid baseline
    has one share of malleable jobs. Another workload is no baseline.
    """
    found = list(base)
    for key in keys:
        same = [row for row in found if row[key] == point[key]]
        if same or key == "workload" or len({row[key] for row in found}) > 1:
            found = same
    return found


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
    first, found = experiment.policies[0].name, {}
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
        found[tuple(point.values())] = Against(other, differences(_with_inputs(below), _with_inputs(rows)))
    return found


def _with_inputs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the name of their random input."""
    return rows.assign(**{INPUT: rows["seed"].astype(str) + " " + rows["perturbation"].astype(str)})


def is_perturbed(table: pd.DataFrame) -> bool:
    """Return whether the rows of a table have several random changes of the workload."""
    return bool(table["perturbation"].nunique() > 1)
