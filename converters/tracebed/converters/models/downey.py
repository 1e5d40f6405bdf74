"""The speedup of A. Downey, "A model for speedup of parallel programs", UC Berkeley CSD-97-933, 1997.

A job of average parallelism A whose parallelism varies by sigma (0: always A; 1: from 1 to 2A - 1, evenly) runs
S(n) times as fast on n nodes as on one.
"""

from __future__ import annotations

import numpy as np

from tracebed.converters.workload import FloatArray, IntArray

Numbers = FloatArray | IntArray | float


def speedup(nodes: Numbers, average: Numbers, sigma: Numbers) -> FloatArray:
    """Return S(n; A, sigma), element by element: 1 on one node, A in the end.

    The paper's two pieces for sigma <= 1 meet where their denominators are equal, so the greater denominator says
    which of them holds; and what exceeds A is A.

    Args:
        nodes: n, at least 1.
        average: A, at least 1.
        sigma: at least 0.
    """
    n, a, s = nodes, average, sigma
    even = a * n / np.maximum(a + s / 2 * (n - 1), s * (a - 0.5) + n * (1 - s / 2))
    uneven = n * a * (s + 1) / (s * (n + a - 1) + a)
    found: FloatArray = np.minimum(a, np.where(np.less_equal(s, 1.0), even, uneven))
    return found


def useful(average: Numbers, sigma: Numbers) -> FloatArray:
    """Return the most nodes that are of use, whole numbers: more do not add to the speedup."""
    a, s = average, sigma
    most: FloatArray = np.ceil(np.where(np.less_equal(s, 1.0), 2 * a - 1, a + a * s - s))
    return most
