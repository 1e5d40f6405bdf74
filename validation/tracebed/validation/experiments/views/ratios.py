"""Ratios of the figures of an experiment to those of a baseline, and their intervals over pairs of runs.

The ratio is that of the means over the seeds, as in the ledger: r = mean(x) / mean(b). Its interval is that of the
paired ratios x_i / b_i of the runs with the same seed and perturbation, each weighted with its b_i: Student's t over
(x_i - r b_i) / mean(b). A run that equals its baseline for each seed has the ratio 1, exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from tracebed.validation.experiments.parts import Plot
from tracebed.validation.experiments.views.averages import GROUP, REPLICATE, base_of, chosen, records
from tracebed.validation.statistics import half_width

LEVEL = 0.95
"""Nominal coverage of the intervals of means and ratios."""
PAIRED = "_base"
"""Suffix of the column of the baseline of the same seed and perturbation, as a share of the mean of the baseline."""


def normalized(rows: pd.DataFrame, figures: Sequence[str], relative_to: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows except the baseline, with figures divided by the mean of the baseline at the same point.

    Each figure has a column more, with the suffix `PAIRED`; NaN where the baseline has no run of the same input.
    """
    same = [key for key in GROUP if key not in relative_to]
    base = chosen(rows, relative_to)
    bases = records(base[[*GROUP, *REPLICATE, *figures]])
    others: pd.DataFrame = rows.drop(index=base.index).copy()
    points = {tuple(at.values()): base_of(at, bases, same) for at in records(others[GROUP])}
    inputs = others[REPLICATE].itertuples(index=False, name=None)
    keys = [(tuple(at.values()), replicate) for at, replicate in zip(records(others[GROUP]), inputs, strict=True)]
    for name in figures:
        found = {point: _of_inputs(below, name) for point, below in points.items()}
        middle = {point: _mean([row[name] for row in below]) for point, below in points.items()}
        divisors = np.array([middle[point] or np.nan for point, _ in keys])
        paired = np.array([_paired(found[point], replicate) for point, replicate in keys])
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
    """Return the half-width of the 95 % interval of the mean of a figure of one point, and the number of its values.

    Args:
        rows: the runs of the point; from `normalized`, the interval is that of the ratio, over the pairs.
        name: the figure.

    Returns:
        The half-width, NaN for fewer than two values; and the number of runs or pairs.
    """
    values = rows[name].to_numpy(dtype=np.float64)
    if f"{name}{PAIRED}" in rows and not np.isnan(values).all():
        values = values - np.nanmean(values) * rows[f"{name}{PAIRED}"].to_numpy(dtype=np.float64)
    known = values[~np.isnan(values)]
    return half_width(known, LEVEL) if len(known) > 1 else np.nan, len(known)


def interval_text(sizes: Iterable[int], replicated: str, plot: Plot) -> str:
    """Return what a value and its interval are, for a legend.

    Args:
        sizes: numbers of runs or pairs behind the intervals.
        replicated: what differs between the runs of a point.
        plot: the plot; with a baseline, its values are ratios.
    """
    numbers = "-".join(dict.fromkeys(f"{each:,}" for each in (min(sizes), max(sizes))))
    if plot.relative_to is None:
        over = f"{numbers} {'seeds' if replicated == 'seed' else 'seeds and perturbations'}"
        return f"mean and its 95 % interval over {over} (Student's t)"
    return f"ratio of the means and its 95 % interval over {numbers} pairs of the same {replicated} (Student's t)"
