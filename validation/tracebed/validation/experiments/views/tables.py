"""The tables of an experiment that the console prints, and that papers show: means, differences, repetitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from tracebed.ground.display import cell, listed
from tracebed.validation.experiments.experiment import Experiment
from tracebed.validation.experiments.views.averages import (
    GROUP,
    Against,
    interval,
    intervals,
    is_perturbed,
    means,
)
from tracebed.validation.experiments.views.statistics import METRICS, Statistics
from tracebed.validation.latex import PaperTable, with_half_width
from tracebed.validation.metrics import all_metrics

SHOWN = ("mean_response_s", "mean_run_s", "mean_wait_s", "mean_slowdown_ref", "makespan_s", "utilization")
"""Figures of the tables; the CSV files have all."""
RATES = ("acceptance_rate", "accepted_cancel_rate", "in_time_rate")
"""Shown in place of them if jobs have deadlines."""
MOST_SEEDS = 10
"""Seeds that a caption names."""


def value_text(value: Any) -> str:
    """Return the value of a key of a point as text."""
    return f"{value:g}" if isinstance(value, float) else "-" if value is None else str(value)


def means_table(table: pd.DataFrame, *, spread: bool = True) -> PaperTable:
    """Return the means over seeds and changes, a row per point and window, without keys of a single value.

    Args:
        table: a row per point and window, as from a grid.
        spread: whether means over seeds have the half-width of their 95 % interval (Student's t). Means over
            perturbed inputs have the middle 95 % of the runs.
    """
    averaged = means(table)
    every = [*GROUP, "window"]
    keys = [key for key in every if key == "policy" or averaged[key].nunique(dropna=False) > 1]
    figures = [*(RATES if averaged[[*RATES]].notna().any(axis=None) else SHOWN)]
    groups = [rows for _, rows in table.groupby(every, sort=False, dropna=False)]
    shown = averaged[[*keys, *figures]].astype(object)
    ranges = intervals(table, figures) if is_perturbed(table) else None
    for name in figures:
        if ranges is not None:
            sides = zip(shown[name], ranges[f"{name}_low"], ranges[f"{name}_high"], strict=True)
            shown[name] = [f"{cell(value)} ({cell(low)} to {cell(high)})" for value, low, high in sides]
        elif spread:
            halves = [interval(rows, name)[0] for rows in groups]
            shown[name] = [with_half_width(value, half) for value, half in zip(shown[name], halves, strict=True)]
    numbers = [len(rows) for rows in groups]
    rows = [[*row, n] for row, n in zip(shown.to_numpy(dtype=object).tolist(), numbers, strict=True)]
    heads = [*keys, *(all_metrics()[name].title for name in figures), "n"]
    return PaperTable(heads, rows, _caption(table, averaged, keys, spread=spread), len(keys))


def _caption(table: pd.DataFrame, averaged: pd.DataFrame, keys: Sequence[str], *, spread: bool) -> str:
    """Return what a table of means shows: the keys of a single value, n, the interval, and the seeds."""
    fixed = {key: value_text(averaged[key].iloc[0]) for key in [*GROUP, "window"] if key not in keys}
    values = ", ".join(f"{key} {value}" for key, value in fixed.items() if value not in ("-", "0", "none"))
    what = "In parentheses: the middle 95 % of the runs." if is_perturbed(table) else ""
    if not what and spread and table.groupby([*GROUP, "window"], dropna=False).size().max() > 1:
        what = "After ±: the half-width of the 95 % interval of the mean (Student's t)."
    return f"Means over n simulations ({_inputs(table)}; {values}). {what}".rstrip()


def _inputs(table: pd.DataFrame) -> str:
    """Return the seeds of a table, and how many perturbed inputs there are."""
    seeds = listed([str(seed) for seed in sorted(table["seed"].unique())], MOST_SEEDS)
    perturbed = f", {table['perturbation'].nunique()} perturbed inputs of each" if is_perturbed(table) else ""
    return f"seeds: {seeds}{perturbed}"


def base_text(experiment: Experiment, found: Against) -> str:
    """Return the point that is compared with: the first policy, and values that differ: `easy, share 0`."""
    return ", ".join(
        [experiment.policies[0].name, *(f"{key} {value_text(value)}" for key, value in found.base.items())]
    )


def differences_table(
    experiment: Experiment, table: pd.DataFrame, against: Mapping[tuple[Any, ...], Against]
) -> PaperTable:
    """Return the differences of the policies from the first one in the table of a grid, a row per point and window."""
    keys = [*GROUP, "window"]
    places = [place for place, key in enumerate(keys) if key == "policy" or len({at[place] for at in against}) > 1]
    several = any(found.base for found in against.values())
    rows = [
        [
            *(value_text(at[place]) for place in places),
            *([base_text(experiment, found)] if several else []),
            *("-" if (each := found.differences.get(name)) is None else each.text for name in SHOWN),
            max((each.pairs for each in found.differences.values()), default=0),
        ]
        for at, found in against.items()
    ]
    heads = [*(keys[place] for place in places), *(["against"] if several else [])]
    caption = (
        f"Differences of the means from {experiment.policies[0].name}, in percent of its mean, over n pairs of "
        f"simulations of the same input ({_inputs(table)}). In parentheses: the middle 95 % of the pairs; a difference "
        "is significant if they do not contain zero."
    )
    titles = [all_metrics()[name].title for name in SHOWN]
    return PaperTable([*heads, *titles, "n"], rows, caption, len(heads))


def differences_frame(experiment: Experiment, against: Mapping[tuple[Any, ...], Against]) -> pd.DataFrame:
    """Return the differences of the policies from the first one: a row per point, window and metric."""
    return pd.DataFrame(
        [
            {
                **dict(zip([*GROUP, "window"], at, strict=True)),
                "against": base_text(experiment, found),
                "figure": name,
                **difference.to_json(),
            }
            for at, found in against.items()
            for name, difference in found.differences.items()
        ]
    )


def statistics_table(found: Statistics) -> PaperTable:
    """Return mean and coefficient of variation of the repetitions of each cell, and the errors of the predictions."""
    titles = [all_metrics()[name].title for name in METRICS]
    rows = []
    for item in found.figures:
        about = [item.cell, item.selection]
        spread = [f"{cell(f.mean)}" + (f" ± {f.cv:.2%}" if f.cv == f.cv else "") for f in item.metrics.values()]
        rows.append([*about, "real", *spread, item.n])
        errors = [*next(iter(item.metrics.values())).errors] if item.n else []
        rows += [
            [*about, f"error of {name}", *(f"{f.errors[name]:+.2%}" for f in item.metrics.values()), item.n]
            for name in errors
        ]
    caption = (
        "Means of n repetitions on the testbed, after ± their coefficient of variation, and the relative errors of the "
        "predictions from these means. No interval: the verdict has those of the errors. The seed of the order of the "
        "repetitions is that of the experiment."
    )
    return PaperTable(["cell", "repetitions", "what", *titles, "n"], rows, caption, 3)


def statistics_frame(found: Statistics) -> pd.DataFrame:
    """Return the figures of the repetitions: a row per cell, selection and metric, and a column per simulator."""
    return pd.DataFrame(
        [
            {
                **{"cell": item.cell, "selection": item.selection, "n": item.n, "figure": name},
                **{"mean": figure.mean, "sd": figure.sd, "cv": figure.cv},
                **{f"error_{simulator}": error for simulator, error in figure.errors.items()},
            }
            for item in found.figures
            for name, figure in item.metrics.items()
        ]
    )
