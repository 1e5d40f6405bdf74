"""The table of a grid averaged over seeds, with intervals, and the differences of its policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from tracebed.validation.experiments.experiment import KEYS, Experiment
from tracebed.validation.metrics import all_metrics
from tracebed.validation.significance import INPUT, Difference, differences

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
