"""The speedup model of A. Downey, "A model for speedup of parallel programs", UC Berkeley CSD-97-933, 1997.

A job runs S(n) times as fast on n nodes as on one. S depends on the job's average parallelism A and on the variance
sigma of its parallelism. With sigma = 0 the parallelism is always A; with sigma = 1 it is uniform from 1 to 2A - 1.
"""

from __future__ import annotations

import numpy as np

from tracebed.converters.workload import FloatArray, IntArray

Numbers = FloatArray | IntArray | float


def speedup(nodes: Numbers, average: Numbers, sigma: Numbers) -> FloatArray:
    """Return S(n; A, sigma) elementwise, from 1 on one node to A on many.

    For sigma <= 1 the paper has two pieces, which meet where their denominators are equal. The piece with the greater
    denominator applies. The result is clipped to A.

    Args:
        nodes: number of nodes n, at least 1.
        average: average parallelism A, at least 1.
        sigma: variance of the parallelism, at least 0.
    """
    n, a, s = nodes, average, sigma
    even = a * n / np.maximum(a + s / 2 * (n - 1), s * (a - 0.5) + n * (1 - s / 2))
    uneven = n * a * (s + 1) / (s * (n + a - 1) + a)
    found: FloatArray = np.minimum(a, np.where(np.less_equal(s, 1.0), even, uneven))
    return found


def useful(average: Numbers, sigma: Numbers) -> FloatArray:
    """Return the number of nodes beyond which the speedup no longer grows, as whole numbers."""
    a, s = average, sigma
    most: FloatArray = np.ceil(np.where(np.less_equal(s, 1.0), 2 * a - 1, a + a * s - s))
    return most
