"""Comparison of a grid with published figures, and the table of means over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tracebed.validation.experiments.experiment import KEYS, Experiment
from tracebed.validation.experiments.parts import Published, as_list
from tracebed.validation.metrics import all_metrics
from tracebed.validation.significance import INPUT, Difference, apart, differences

REPLICATE = ["seed", "perturbation"]
"""Key columns of which each pair of values is one random input."""
GROUP = [key for key in KEYS if key not in (*REPLICATE, "testbed")]
"""Key columns of the means over seeds and random changes."""
SETTINGS = ["priority", "runtime_model", "interval_s", "malleability_interval_s", "processes"]
"""Columns with a row per value for each published figure, unless `at` contains the column. So do windows."""
COLUMNS = ["figure", "at", "window", "published", "ours", "difference", "low", "high", "differ", "note"]


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


def against_first(experiment: Experiment, table: pd.DataFrame) -> dict[tuple[Any, ...], dict[str, Difference]]:
    """Return the differences of each policy from the first one of the experiment, over the same seeds and changes.

    Returns:
        (values of `GROUP`, window) of each point of the other policies -> metric -> difference.
    """
    keys = [*GROUP, "window"]
    named = table.assign(**{INPUT: table["seed"].astype(str) + " " + table["perturbation"].astype(str)})
    grouped = named.groupby(keys, sort=False, dropna=False)
    groups = {tuple(None if key != key else key for key in at): rows for at, rows in grouped}  # NaN is no key
    first, place = experiment.policies[0].name, keys.index("policy")
    found = {}
    for at, rows in groups.items():
        base = groups.get((*at[:place], first, *at[place + 1 :]))
        if base is not None and at[place] != first:
            found[at] = differences(base, rows)
    return found


def is_perturbed(table: pd.DataFrame) -> bool:
    """Return whether the rows of a table have several random changes of the workload."""
    return bool(table["perturbation"].nunique() > 1)


def compared(experiment: Experiment, table: pd.DataFrame) -> pd.DataFrame:
    """Return the published figures and those of the table: a row per figure and window.

    `difference` is ours / published - 1, or ours - published for a relative change. A change relative to 0 is NaN. `at`
    lists only computed values. If others are missing, the `note` contains a remark. If the workload was perturbed,
    `low` to `high` is the interval of ours over seeds and changes, and `differ` is whether the printed value is
    outside; else these are missing.
    """
    averaged = means(table)
    single = [rows for _, rows in table.groupby(REPLICATE, sort=False)] if is_perturbed(table) else []
    varying = [key for key in SETTINGS if averaged[key].nunique() > 1]
    rows = []
    for published in experiment.published:
        each = [key for key in varying if key not in published.at]
        for values in dict.fromkeys(tuple(row[key] for key in each) for row in averaged.to_dict("records")):
            settings = dict(zip(each, values, strict=True))
            for window in experiment.windows:
                found = _computed_figure(published, averaged[averaged["window"] == window], settings)
                if found is None:
                    continue
                each_of = [_computed_figure(published, rows[rows["window"] == window], settings) for rows in single]
                difference = apart(np.array([published.value]), np.array([one.value for one in each_of if one]))
                rows.append(_row(published, found, window, difference))
    return pd.DataFrame(rows, columns=COLUMNS)


class _ComputedFigure(NamedTuple):
    """Our figure beside a published one."""

    value: float
    at: str
    note: str


def _row(published: Published, found: _ComputedFigure, window: str, difference: Difference | None) -> list[Any]:
    if published.relative_to is not None:
        error = found.value - published.value
    else:
        error = found.value / published.value - 1.0 if published.value else math.nan
    low, high, differ = math.nan, math.nan, None
    if difference is not None and difference.differ is not None:
        low, high = published.value + difference.low, published.value + difference.high
        differ = difference.differ
    about = [published.figure, found.at, window, published.value, found.value, error]
    return [*about, low, high, differ, found.note]


def _computed_figure(
    published: Published, averaged: pd.DataFrame, settings: Mapping[str, Any]
) -> _ComputedFigure | None:
    """Return our figure for the settings, or None if no such point was computed."""
    rows = chosen(averaged, {**settings, **published.at}).dropna(subset=published.figure)
    if not len(rows):
        return None
    figures = rows[published.figure]
    ours = float({"mean": figures.mean, "least": figures.min, "greatest": figures.max}[published.take]())
    at, whole = _label({**published.at, **settings}, rows)
    at = f"{published.take} of {at}" if published.take != "mean" else at
    if published.relative_to is not None:
        base = chosen(averaged, {**settings, **published.relative_to}).dropna(subset=published.figure)
        if not len(base):
            return None
        reference = float(base[published.figure].mean())
        ours = ours / reference - 1.0 if reference else math.nan
        label, whole_base = _label(published.relative_to, base)
        at, whole = f"{at} against {label}", whole and whole_base
    notes = [published.note] if whole else ["only some of these points were computed", published.note]
    return _ComputedFigure(ours, at, "; ".join(filter(None, notes)))


def _label(where: Mapping[str, Any], rows: pd.DataFrame) -> tuple[str, bool]:
    """Return the values of `where` that occur in `rows`, as text, and whether all values occur."""
    there = {key: [value for value in as_list(wanted) if (rows[key] == value).any()] for key, wanted in where.items()}
    words = ", ".join(f"{key} {'/'.join(map(_value_text, values))}" for key, values in there.items())
    return words, all(len(values) == len(as_list(where[key])) for key, values in there.items())


def _value_text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
