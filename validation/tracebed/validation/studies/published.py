"""Comparison of a sweep with published figures, and the table of means over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from tracebed.validation.metrics import all_metrics
from tracebed.validation.studies.specs import Published, as_list
from tracebed.validation.studies.study import KEYS, Study

GROUP = [key for key in KEYS if key not in ("seed", "shake")]
"""Key columns of the means over seeds and random changes."""
SETTINGS = ["priority", "runtime_model", "interval_s", "malleability_interval_s"]
"""Columns with a row per value for each published figure, unless `at` contains the column. So do windows."""
COLUMNS = ["figure", "at", "window", "published", "ours", "difference", "note"]


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


def beside(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return the published figures and those of the table: a row per figure and window.

    `difference` is ours / published - 1, or ours - published for a relative change. `at` lists only computed values. If
    others are missing, the `note` contains a remark.
    """
    averaged = means(table)
    varying = [key for key in SETTINGS if averaged[key].nunique() > 1]
    rows = []
    for published in study.published:
        each = [key for key in varying if key not in published.at]
        for values in dict.fromkeys(tuple(row[key] for key in each) for row in averaged.to_dict("records")):
            settings = dict(zip(each, values, strict=True))
            for window in study.windows:
                row = _beside(published, averaged[averaged["window"] == window], settings, window)
                rows += [] if row is None else [row]
    return pd.DataFrame(rows, columns=COLUMNS)


def _beside(published: Published, averaged: pd.DataFrame, settings: Mapping[str, Any], window: str) -> list[Any] | None:
    """Return the row of a published figure for the settings and the window, or None if no such point was computed."""
    rows = chosen(averaged, {**settings, **published.at}).dropna(subset=published.figure)
    if not len(rows):
        return None
    found = rows[published.figure]
    ours = float({"mean": found.mean, "least": found.min, "greatest": found.max}[published.take]())
    if published.relative_to is None:
        difference = ours / published.value - 1.0 if published.value else float("nan")
    else:
        base = chosen(averaged, {**settings, **published.relative_to}).dropna(subset=published.figure)
        if not len(base):
            return None
        ours = ours / float(base[published.figure].mean()) - 1.0
        difference = ours - published.value
    at, whole = _label({**published.at, **settings}, rows)
    at = f"{published.take} of {at}" if published.take != "mean" else at
    if published.relative_to is not None:
        label, whole_base = _label(published.relative_to, base)
        at, whole = f"{at} against {label}", whole and whole_base
    notes = [published.note] if whole else ["only some of these points were computed", published.note]
    note = "; ".join(filter(None, notes))
    return [published.figure, at, window, published.value, ours, difference, note]


def _label(where: Mapping[str, Any], rows: pd.DataFrame) -> tuple[str, bool]:
    """Return the values of `where` that occur in `rows`, as text, and whether all values occur."""
    there = {key: [value for value in as_list(wanted) if (rows[key] == value).any()] for key, wanted in where.items()}
    words = ", ".join(f"{key} {'/'.join(map(_spelt, values))}" for key, values in there.items())
    return words, all(len(values) == len(as_list(where[key])) for key, values in there.items())


def _spelt(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
