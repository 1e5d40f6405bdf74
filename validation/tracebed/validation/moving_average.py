"""Error of the moving average of the wait: the figure of a production log, which has one repetition for ever.

The wait is averaged over the jobs submitted in a window, in the real run and in the prediction. The window is moved
over the log, and the figure is the mean over its positions of |predicted - real| / real. FastSim is validated by this
figure, with windows of two weeks that move by an hour: Wilkinson, Jones, Richardson, Dykes and Haus, A Fast Simulator
to Enable HPC Scheduling Strategy Comparisons, ISC High Performance 2023 Workshops.

The figure is advisory. One log says nothing of the noise of the real system, so the interval here has another source:
batch means over time, which show how much the figure varies along the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tracebed.converters.workload import FloatArray
from tracebed.validation.statistics import LEVEL, Interval, batch_means

WINDOW_S = 14 * 86400.0  # default length of a window, s
PART = 10  # a window is at most this part of the time between the first and the last submission: a tenth
POSITIONS = 336  # positions of a window in its own length: a window of two weeks moves by an hour
FEWEST_JOBS = 100  # fewest jobs for which the figure is computed: ten in a window, in the mean


@dataclass(frozen=True)
class MovingAverage:
    """Difference of the moving averages of the wait in two runs. NaN: undefined."""

    window_s: float  # length of a window, s
    windows: int  # number of positions of the window in which the real mean wait is above 0
    # Number of positions without a job, or in which no job waited in the real run: no relative error is defined.
    left_out: int
    jobs: float  # mean number of jobs in a window
    error: float  # mean of |predicted - real| / real over the windows
    low: float  # lower end of the interval of `error`, by batch means; NaN if there are too few windows
    high: float

    @property
    def sentence(self) -> str:
        """The figure in words: `mean absolute percentage error 7.3 % [5.1, 9.5], 29 windows of 14 d, 310 jobs each`."""
        interval = "" if np.isnan(self.low) else f" [{_percent(self.low)}, {_percent(self.high)}]"
        dropped = f", {self.left_out:,} left out without a real wait" if self.left_out else ""
        return (
            f"mean absolute percentage error {_percent(self.error)} %{interval}, {self.windows:,} windows of "
            f"{_duration(self.window_s)}, {self.jobs:,.0f} jobs each{dropped}"
        )


def moving_average(jobs: pd.DataFrame, *, window_s: float = WINDOW_S, level: float = LEVEL) -> MovingAverage | None:
    """Return the difference of the moving averages of the wait; None if too few jobs, or all submitted at once."""
    # The window, s, is a `PART` of a short log.
    submit, real, predicted = (
        jobs[name].to_numpy(dtype=np.float64) for name in ("submit_real", "wait_real", "wait_predicted")
    )
    if len(submit) < FEWEST_JOBS or np.ptp(submit) <= 0:
        return None
    window = window_length(submit, window_s)
    starts = window_starts(submit, window)
    means, counts = moving_means(submit, np.stack((real, predicted)), starts, window)
    errors = relative_errors(*means)
    interval = batch_means(errors, level=level) or Interval(float("nan"), float("nan"))
    error = float(errors.mean()) if len(errors) else float("nan")
    return MovingAverage(
        window_s=window,
        windows=len(errors),
        left_out=len(starts) - len(errors),
        jobs=float(counts.mean()),
        error=error,
        low=float(np.maximum(0.0, interval.low)),  # a relative error is not negative; NaN stays
        high=interval.high,
    )


def window_length(submit: FloatArray, most: float) -> float:
    """Return the length of a window: `most`, but at most a `PART` of the time between the first and last submission."""
    return float(min(most, np.ptp(submit) / PART))


def window_starts(submit: FloatArray, window: float) -> FloatArray:
    """Return the positions of the window: `POSITIONS` in its length, from the first submission, as long as it fits."""
    step = window / POSITIONS
    last = int(np.floor((np.ptp(submit) - window) / step + 1e-9))  # a rounding error must not lose the last position
    return np.asarray(submit.min() + step * np.arange(last + 1))


def moving_means(
    submit: FloatArray, values: FloatArray, starts: FloatArray, window: float
) -> tuple[FloatArray, FloatArray]:
    """Return the means of values over the jobs submitted in windows, and the numbers of these jobs.

    Shapes: `submit` (jobs,) in any order, `values` (sides, jobs), `starts` (windows,). A window has its beginning, not
    its end. Returns means (sides, windows), NaN in windows without a job, and counts (windows,).
    """
    order = np.argsort(submit, kind="stable")
    sums = np.concatenate((np.zeros((len(values), 1)), np.cumsum(values[:, order], axis=1)), axis=1)
    low, high = (np.searchsorted(submit[order], at, side="left") for at in (starts, starts + window))
    counts = (high - low).astype(np.float64)
    total = sums[:, high] - sums[:, low]
    return np.divide(total, counts, out=np.full(total.shape, np.nan), where=counts > 0), counts


def relative_errors(real: FloatArray, predicted: FloatArray) -> FloatArray:
    """Return |predicted - real| / real where the real value is above 0; other values are left out."""
    defined = real > 0
    return np.asarray(np.abs(predicted[defined] - real[defined]) / real[defined])


def in_words(figures: Mapping[str, MovingAverage]) -> list[str]:
    """Return the figures of cases with one real run as sentences: the case, or the mean and the worst of several."""
    known = {case: each for case, each in figures.items() if not np.isnan(each.error)}
    if not known:
        return []
    what = "moving average of the wait (advisory, one real run)"
    if len(known) == 1:
        (each,) = known.values()
        return [f"{what}: {each.sentence}"]
    mean = float(np.mean([each.error for each in known.values()]))
    worst = max(known, key=lambda case: known[case].error)
    return [
        f"{what}, {len(known)} cases: mean absolute percentage error {_percent(mean)} % in the mean of the cases; "
        f"worst case {worst}: {known[worst].sentence}"
    ]


def _percent(share: float) -> str:
    """Return a share in percent with three significant digits, at most two decimals."""
    percent = 100 * share
    return f"{percent:,.0f}" if percent >= 99.95 else f"{percent:.3g}" if percent >= 1 else f"{percent:.2f}"


def _duration(seconds: float) -> str:
    """Return a length of time in its largest fitting unit: `14 d`, `2.5 h`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
