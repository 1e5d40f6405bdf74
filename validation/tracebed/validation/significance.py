"""Significance of figures: the metrics of runs with perturbed input, their intervals, and differences between them.

A difference is significant if its interval, the middle 95 % over the perturbed inputs, does not contain zero:

- paired: if both runs were simulated with the same perturbed inputs, the difference is taken input by input, so that
  an effect of the input that is the same in both runs cancels;
- else, the interval reaches from the lowest to the highest difference of a value in one interval and a value in the
  other, so that the difference is significant if the intervals do not overlap.

The decision is whether another random input may turn the order round. The mean difference of many runs would become
significant for any effect, if only there are enough runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tracebed.converters.workload import FloatArray, IntArray
from tracebed.ground.display import cell, effect
from tracebed.ground.errors import InputError
from tracebed.ground.files import replacing
from tracebed.ground.input_files import read_text
from tracebed.orchestrator.run import PERTURBED, Run
from tracebed.validation.metrics import all_metrics, metrics
from tracebed.validation.metrics.jobs import TAU
from tracebed.validation.statistics import percentile

if TYPE_CHECKING:
    import pandas as pd

PERCENTS = (2.5, 97.5)
INPUT = "input"  # Column that names the perturbed input of a run. Runs with the same one are pairs.
LEAST = 6  # fewest runs or pairs for a decision: of five differences without a cause, all have one sign in 6 %

ROUNDING = 1e-9  # differences below this share are those of sums of floating-point numbers in different orders


@dataclass(frozen=True)
class Difference:
    """The difference of a metric between two groups of runs, second - first."""

    change: float
    """Difference of the means, in the unit of the metric."""
    low: float
    """Lower end of the interval of the difference, in the unit of the metric."""
    high: float
    base: float
    """Mean of the first group, in the unit of the metric."""
    pairs: int
    """Number of pairs of runs with the same perturbed input; 0 if the runs are not paired."""
    differ: bool | None
    """Whether the interval does not contain zero; None if that is unknown."""

    def relative(self, value: float) -> float:
        """Return a value in the unit of the metric as a share of the first mean; NaN if this mean is 0."""
        return value / abs(self.base) if self.base else math.nan

    @property
    def text(self) -> str:
        """The difference as text, marked if it is not significant; a dash if that is unknown."""
        if self.differ is None:
            return "-"
        text = effect(self.change, self.low, self.high, self.base)
        return text if self.differ or text == "equal" else f"not significant: {text}"

    def to_json(self) -> dict[str, Any]:
        """Return the difference as JSON values, with `relative`, the change as a share of the first mean."""
        return asdict(self) | {"relative": self.relative(self.change)}


def figures(runs: Iterable[Run], tau: float = TAU) -> pd.DataFrame:
    """Return the metrics of runs: a row per run, a column per metric, NaN where a metric is undefined."""
    import pandas as pd

    return pd.DataFrame(
        [{name: found[name] for name in all_metrics()} for found in (metrics(run, tau) for run in runs)]
    )


def differences(first: pd.DataFrame, second: pd.DataFrame) -> dict[str, Difference]:
    """Return the difference of each metric that is defined in both groups of runs.

    A row per run, as from `figures`; `INPUT` names the perturbed inputs, if there are any. The interval of a group of
    one run is its figure.
    """
    pairs = _pairs(first, second)
    by_metric = {}
    for name in all_metrics():
        if name not in first or name not in second:
            continue
        if pairs is not None:
            difference = paired(
                *(frame[name].to_numpy()[rows] for frame, rows in zip((first, second), pairs, strict=True))
            )
        else:
            difference = apart(first[name].to_numpy(), second[name].to_numpy())
        if difference is not None:
            by_metric[name] = difference
    return by_metric


def _pairs(first: pd.DataFrame, second: pd.DataFrame) -> tuple[IntArray, IntArray] | None:
    """Return the rows of both groups that are pairs, shapes (pairs,); None if there are too few."""
    # An input may be drawn several times. The k-th run with an input in one group is the pair of the k-th in the other.
    import pandas as pd

    if INPUT not in first or INPUT not in second:
        return None
    sides = [
        pd.DataFrame(
            {INPUT: each[INPUT].to_numpy(), "k": each.groupby(INPUT).cumcount().to_numpy(), side: range(len(each))}
        )
        for side, each in (("first", first), ("second", second))
    ]
    pairs = sides[0].merge(sides[1], on=[INPUT, "k"])
    return (pairs["first"].to_numpy(), pairs["second"].to_numpy()) if len(pairs) >= LEAST else None


def paired(first: FloatArray, second: FloatArray) -> Difference | None:
    """Return the difference of a metric over pairs of runs, shape (pairs,); None if it is undefined in each pair."""
    known = ~np.isnan(first) & ~np.isnan(second)
    if not known.any():
        return None
    each = (second - first)[known]
    low, high = np.percentile(each, PERCENTS)
    return _difference(each.mean(), low, high, first[known].mean(), len(each), known=len(each) >= LEAST)


def apart(first: FloatArray, second: FloatArray) -> Difference | None:
    """Return the difference of a metric between runs that are not pairs; None if one group has no value."""
    one, two = (values[~np.isnan(values)] for values in (first, second))
    if not len(one) or not len(two):
        return None
    (low_1, high_1), (low_2, high_2) = (np.percentile(values, PERCENTS) for values in (one, two))
    enough = max(len(one), len(two)) >= LEAST
    return _difference(two.mean() - one.mean(), low_2 - high_1, high_2 - low_1, one.mean(), 0, known=enough)


def _difference(change: float, low: float, high: float, base: float, pairs: int, *, known: bool) -> Difference:
    small = ROUNDING * abs(base)
    change, low, high = (0.0 if abs(value) <= small else float(value) for value in (change, low, high))
    return Difference(change, low, high, float(base), pairs, low > 0.0 or high < 0.0 if known else None)


def intervals(perturbed: pd.DataFrame) -> pd.DataFrame:
    """Return `median`, `low` and `high` of each metric that is defined: the middle 95 % of the runs, interpolated.

    Args:
        perturbed: the metrics, as from `figures`.
    """
    import pandas as pd

    rows = {
        name: [percentile(perturbed[name], percent) for percent in (50.0, *PERCENTS)]
        for name in all_metrics()
        if name in perturbed and not perturbed[name].isna().all()
    }
    return pd.DataFrame.from_dict(rows, orient="index", columns=["median", "low", "high"])


def with_interval(value: Any, found: Mapping[str, float] | None) -> Any:
    """Return a figure as text with its interval, a row of `intervals`; the figure itself if there is no interval."""
    if found is None or found["low"] == found["high"] == value:
        return value
    return f"{cell(value)} ({cell(found['low'])} to {cell(found['high'])})"


def write_figures(perturbed: pd.DataFrame, folder: Path) -> None:
    """Write the metrics into the folder of the run whose input was perturbed."""
    with replacing(folder / PERTURBED) as stream:
        perturbed.to_csv(stream, index=False)


def figures_of(folder: Path, own: Mapping[str, Any]) -> pd.DataFrame:
    """Return the metrics of the runs with perturbed input in the folder of a run, else of the run alone (`own`)."""
    import pandas as pd

    perturbed = read_figures(folder)
    return pd.DataFrame([{name: own[name] for name in all_metrics()}]) if perturbed is None else perturbed


def read_figures(folder: Path) -> pd.DataFrame | None:
    """Return the metrics in the folder of a run, with the names of the inputs, or None if there are none."""
    import pandas as pd

    path = folder / PERTURBED
    if not path.exists():
        return None
    try:
        table = pd.read_csv(StringIO(read_text(path, "table of metrics", hint="simulate again")), dtype={INPUT: str})
        table = table.astype({name: np.float64 for name in table if name != INPUT})
    except ValueError as error:
        raise InputError(f"not a table of metrics: {error}", where=str(path), hint="simulate again") from error
    if table.columns.isin(list(all_metrics())).any():
        return table
    raise InputError("has no metric", where=str(path), hint="simulate again")
