"""How much of a figure is accident: the metrics of runs whose input was shaken, and the interval of each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from tracebed.errors import InputError
from tracebed.files import replacing
from tracebed.orchestrator.run import SHAKEN, Run
from tracebed.validation.metrics import all_metrics, metrics
from tracebed.validation.metrics.jobs import TAU
from tracebed.validation.statistics import percentile

PERCENTS = (2.5, 97.5)


def figures(runs: Iterable[Run], tau: float = TAU) -> pd.DataFrame:
    """Return the metrics of runs: a row per run, a column per metric, NaN where a metric is undefined."""
    return pd.DataFrame(
        [{name: found[name] for name in all_metrics()} for found in (metrics(run, tau) for run in runs)]
    )


def intervals(shaken: pd.DataFrame) -> pd.DataFrame:
    """Return `median`, `low` and `high` of each metric that is defined: the middle 95 % of the runs, interpolated.

    Args:
        shaken: the metrics, as from `figures`.
    """
    rows = {
        name: [percentile(shaken[name], percent) for percent in (50.0, *PERCENTS)]
        for name in all_metrics()
        if name in shaken and not shaken[name].isna().all()
    }
    return pd.DataFrame.from_dict(rows, orient="index", columns=["median", "low", "high"])


def keep(shaken: pd.DataFrame, folder: Path) -> None:
    """Write the metrics into the folder of the run whose input was shaken."""
    with replacing(folder / SHAKEN) as stream:
        shaken.to_csv(stream, index=False)


def kept(folder: Path) -> pd.DataFrame | None:
    """Return the metrics in the folder of a run, or None if there are none.

    Raises:
        InputError: the file is not a table of numbers.
    """
    path = folder / SHAKEN
    if not path.exists():
        return None
    try:
        return pd.read_csv(path).astype(np.float64)
    except ValueError as error:
        raise InputError(f"not a table of metrics: {error}", where=str(path), hint="simulate again") from error
