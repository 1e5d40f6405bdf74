"""Signals of an unusual outcome: differences of a repetition from the others of its cell.

The signals judge a run by its result. Excluding runs by these signals would bias the sample, so they are warnings only.
docs/how-to/repeat.md describes the signals H4 and H5.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from tracebed.converters.workload import FloatArray

RUN_TIME = 0.03
"""H4: largest accepted relative difference of the mean run time from the median of the other repetitions."""
SHARE = 0.05
"""H5: accepted deviation of the logarithm of the makespan, and of the loss of capacity, from the median."""
SPREADS = 6 * 1.4826
"""H5: accepted deviation in median absolute deviations (MAD). 1.4826 MAD estimate a standard deviation."""
LEAST = 3
"""Smallest number of repetitions of a cell for which the signals are computed."""


def signals(runs: pd.DataFrame) -> list[str]:
    """Return the signals of each repetition of one cell as text, or an empty text if there are none.

    Args:
        runs: columns `mean_run_s`, `makespan_s` and `loss_of_capacity`.
    """
    found: list[list[str]] = [[] for _ in range(len(runs))]
    if len(runs) < LEAST:
        return [""] * len(runs)
    times = runs["mean_run_s"].to_numpy()
    for index, own in enumerate(times):
        others = float(np.median(np.delete(times, index)))
        if abs(own - others) > RUN_TIME * others:
            found[index].append(f"H4: mean run time {own / others - 1:+.1%} from the median of the others")
    for name, values in (
        ("makespan", np.log(runs["makespan_s"].to_numpy())),
        ("loss of capacity", runs["loss_of_capacity"].to_numpy()),
    ):
        limit, differences = _limit(values)
        for row in np.flatnonzero(np.abs(differences) > limit):
            relative = math.expm1(differences[row]) if name == "makespan" else differences[row]
            found[row].append(f"H5: {name} {relative:+.1%} from the median")
    return ["; ".join(texts) for texts in found]


def _limit(values: FloatArray) -> tuple[float, FloatArray]:
    """Return the largest accepted deviation from the median, and the deviations."""
    differences = values - np.median(values)
    return max(SHARE, SPREADS * float(np.median(np.abs(differences)))), differences
