"""Estimates of overheads from samples: least squares within a repetition, the median over repetitions.

The metrics of a run depend on sums of delays, so a constant must be the mean of the delays, not their median. A stall
of the machine distorts the mean of one repetition. Therefore the constant is the median over the repetitions of their
means. With fewer than three repetitions, each repetition is divided into blocks of consecutive samples, and the
constant is the median of the means of the blocks (Nemirovsky and Yudin 1983), so that one stall distorts one block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tracebed.orchestrator.testbeds.calibration import OverheadEstimate, SizeEstimate

FloatArray = npt.NDArray[np.float64]
# A function of the samples of a repetition, shape (samples, columns), that returns estimates, shape (quantities,).
Statistic = Callable[[FloatArray], FloatArray]
RESAMPLES, FEW_RESAMPLES = 400, 100  # resamples of an interval, and those of a statistic that takes milliseconds
CONFIDENCE = 0.95
BLOCKS = 3  # least number of means for a median
MOST = 200  # largest number of factors of a distribution
LEAST = 5  # least number of samples of a block
POINTS, ROUNDS = 200, 300  # points of a distribution that is estimated from intervals, and rounds of this estimation


def estimates(
    repetitions: Sequence[FloatArray],
    statistic: Statistic,
    *,
    seed: int = 0,
    blocks: int = BLOCKS,
    resamples: int = RESAMPLES,
) -> list[OverheadEstimate]:
    """Return one estimate for each quantity of `statistic`. Repetitions without samples are left out.

    Fewer repetitions than `blocks` are divided into blocks. The interval is a percentile bootstrap of two stages
    (Davison and Hinkley 1997, section 3.8): repetitions are resampled, then samples within each of them. Samples of one
    repetition share the state of the machine, so resampling within the repetitions alone would give an interval that is
    too short.
    """
    used = [samples for samples in repetitions if len(samples)]
    if len(used) < blocks:
        used = [block for samples in used for block in _blocks(samples)]
    if not used:
        return []
    rng = np.random.default_rng(seed)
    each = np.array([statistic(samples) for samples in used])

    def redrawn() -> list[FloatArray]:
        chosen = [used[index] for index in rng.integers(0, len(used), len(used))]
        return [samples[rng.integers(0, len(samples), len(samples))] for samples in chosen]

    drawn = np.array([np.median([statistic(samples) for samples in redrawn()], axis=0) for _ in range(resamples)])
    low, high = np.quantile(drawn, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2), axis=0)
    value, count = np.median(each, axis=0), sum(map(len, used))
    pooled = np.concatenate(used)
    medians = np.full(len(value), np.median(pooled[:, -1])) if len(value) == 1 else value
    return [
        OverheadEstimate(
            value=_rounded(value[k]),
            median=_rounded(medians[k]),
            low=_rounded(low[k]),
            high=_rounded(high[k]),
            count=count,
            repetitions=[_rounded(one) for one in each[:, k]],
        )
        for k in range(len(value))
    ]


def _blocks(samples: FloatArray) -> list[FloatArray]:
    """Divide the samples of a repetition into blocks of consecutive samples; a few samples remain one block."""
    return np.array_split(samples, BLOCKS) if len(samples) >= BLOCKS * LEAST else [samples]


def mean(samples: FloatArray) -> FloatArray:
    """Return the mean of the last column, shape (1,)."""
    return np.array([samples[:, -1].mean()])


def mean_of(repetitions: Sequence[FloatArray]) -> OverheadEstimate | None:
    """Return the estimate of the mean of samples, each shape (samples,); None without samples."""
    found = estimates([samples[:, None] for samples in repetitions], mean)
    return found[0] if found else None


def linear(samples: FloatArray) -> FloatArray:
    """Fit seconds = a + b (ranks - 1) to samples (ranks, seconds); return (a, b), both at least 0."""
    return least_squares(samples, of_ranks(samples[:, 0]))


def of_ranks(ranks: FloatArray) -> FloatArray:
    """Return the columns of `linear`, shape (samples, 2)."""
    return np.column_stack([np.ones(len(ranks)), ranks - 1])


def with_step(samples: FloatArray) -> FloatArray:
    """Fit seconds = a + b [ranks > 1] + c max(0, ranks - 2) to samples (ranks, seconds); return (a, b, c), at least 0.

    The second rank is launched when the first one is listening, and all further ranks together with the second.
    """
    return least_squares(samples, of_joining_ranks(samples[:, 0]))


def of_joining_ranks(ranks: FloatArray) -> FloatArray:
    """Return the columns of `with_step`, shape (samples, 3)."""
    return np.column_stack([np.ones(len(ranks)), ranks > 1, np.maximum(0, ranks - 2)])


def of_all(ranks: FloatArray) -> FloatArray:
    """Return the column of a constant, shape (samples, 1)."""
    return np.ones((len(ranks), 1))


def factors(repetitions: Sequence[FloatArray], columns: Callable[[FloatArray], FloatArray]) -> list[float]:
    """Return the samples (ranks, seconds) as multiples of the fit of their repetition, ascending, with mean 1.

    Of more than `MOST` samples, the factors are the means of consecutive groups, which keeps the mean. `columns`
    returns the columns of the fit, given the ranks.
    """
    found = []
    for samples in repetitions:
        terms = columns(samples[:, 0])
        fitted = terms @ least_squares(samples, terms) if len(samples) else np.zeros(0)
        ratio = np.maximum(samples[fitted > 0, -1], 0.0) / fitted[fitted > 0]
        if ratio.sum() > 0:
            found.append(ratio / ratio.mean())
    pooled = np.sort(np.concatenate(found)) if found else np.zeros(0)
    groups = np.array_split(pooled, min(len(pooled), MOST)) if len(pooled) else []
    means = np.array([group.mean() for group in groups])
    return [_rounded(each) for each in means / means.mean()] if len(means) else []


def by_size(repetitions: Sequence[FloatArray]) -> list[SizeEstimate]:
    """Return the mean for each number of ranks of samples (ranks, seconds)."""
    ranks = sorted({int(one) for samples in repetitions for one in samples[:, 0]})
    sizes = []
    for number in ranks:
        [estimate] = estimates([samples[samples[:, 0] == number] for samples in repetitions], mean)
        sizes.append(SizeEstimate(ranks=number, estimate=estimate))
    return sizes


def joins(samples: FloatArray) -> FloatArray:
    """Fit as `linear` to samples (ranks, end of an iteration, its duration): the ranks joined within the iteration.

    A number of ranks with few samples is estimated with the distribution of all samples in view.
    """
    ranks, high = samples[:, 0], samples[:, 1]
    low = high - samples[:, 2]
    if not len(high) or high.max() <= 0:
        return np.zeros(2)
    points = (np.arange(POINTS) + 0.5) / POINTS * high.max()
    all_shares = shares(points, low, high, np.full(POINTS, 1 / POINTS))
    seconds = np.zeros(len(ranks))
    for number in np.unique(ranks):
        rows = ranks == number
        seconds[rows] = shares(points, low[rows], high[rows], all_shares) @ points
    return linear(np.column_stack([ranks, seconds]))


def shares(points: FloatArray, low: FloatArray, high: FloatArray, start: FloatArray) -> FloatArray:
    """Return the probabilities of `points`, of which samples are known that lie above `low` and not above `high`.

    They have the maximum likelihood, without assumptions on the form of the distribution (Turnbull 1976). Intervals of
    different position narrow each other down, so that the mean of the distribution has a half to a fifth of the noise
    of the mean of their centers. Where the likelihood does not decide, the probabilities are as in `start`.
    """
    inside = ((points > low[:, None]) & (points <= high[:, None])).astype(np.float64)
    centers = np.abs(points - (low + high)[:, None] / 2).argmin(axis=1)
    inside[np.arange(len(high)), centers] = 1.0  # an interval may be shorter than the distance of the points
    share = start + 1e-9
    for _ in range(ROUNDS):
        share = share * ((1 / (inside @ share)) @ inside) / len(high)
    found: FloatArray = share / share.sum()
    return found


def least_squares(samples: FloatArray, columns: FloatArray) -> FloatArray:
    """Return the coefficients of a least-squares fit without negative coefficients (Lawson and Hanson 1974)."""
    from scipy.optimize import nnls

    coefficients: FloatArray = nnls(columns.astype(np.float64), samples[:, -1])[0]
    return coefficients


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
