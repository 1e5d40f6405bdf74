"""What the papers print, beside what the sweep gave; and the table of means over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from tracebed.validation.metrics import all_metrics
from tracebed.validation.studies.study import KEYS, Published, Study

GROUP = [key for key in KEYS if key != "seed"]
"""What a mean over seeds is taken of."""
SETTINGS = ["priority", "runtime_model", "interval_s", "malleability_interval_s"]
"""What published figures get a row for each of, where `at` does not name it; as for windows."""
COLUMNS = ["figure", "at", "window", "published", "ours", "difference", "note"]


def chosen(table: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows that have the values of `where`, each a value or several to choose from."""
    for key, wanted in where.items():
        table = table[table[key].isin(wanted if isinstance(wanted, list) else [wanted])]
    return table


def means(table: pd.DataFrame) -> pd.DataFrame:
    """Return the means over seeds: a row a point but for its seed, and window, in the table's order."""
    figures = [column for column in table if column in all_metrics() or str(column).endswith(("_p25", "_p75"))]
    return table.groupby([*GROUP, "window"], sort=False, dropna=False)[figures].mean().reset_index()


def beside(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return the published figures that the table can be held against, beside ours, a row each and window.

    `difference` is ours / published - 1; of figures that are changes themselves, ours - published.
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
    """Return the row of a published figure under some settings and in a window; None where there is no such point."""
    where = {**settings, **published.at}
    found = chosen(averaged, where)[published.figure].dropna()
    if not len(found):
        return None
    ours = float({"mean": found.mean, "least": found.min, "greatest": found.max}[published.take]())
    if published.relative_to is None:
        difference = ours / published.value - 1.0 if published.value else float("nan")
    else:
        base = chosen(averaged, {**settings, **published.relative_to})[published.figure].dropna()
        if not len(base):
            return None
        ours = ours / float(base.mean()) - 1.0
        difference = ours - published.value
    at = ", ".join(f"{key} {_spelt(value)}" for key, value in {**published.at, **settings}.items())
    at = f"{published.take} of {at}" if published.take != "mean" else at
    if published.relative_to is not None:
        at += " against " + ", ".join(f"{key} {_spelt(value)}" for key, value in published.relative_to.items())
    return [published.figure, at, window, published.value, ours, difference, published.note]


def _spelt(value: Any) -> str:
    if isinstance(value, list):
        return "/".join(map(_spelt, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
