"""Remarks: how margins and health were found, where this is not the usual way. They are no warnings.

Nothing about them can be mended where the verdict is made: a recorded suite has no journals, and a compressed workload
has smaller margins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracebed.ground.display import counted
from tracebed.validation.verdict.rejudging import NO_JOURNAL


def remarks(notes: Sequence[Iterable[str]], factors: Sequence[float]) -> list[str]:
    """Return the remarks about the real runs of a verdict, a sentence each.

    Args:
        notes: the notes of the health of each real run.
        factors: for each case, the factor on margins in seconds.
    """
    return [*_journals(notes), *_amounts(factors)]


def _journals(notes: Sequence[Iterable[str]]) -> Iterable[str]:
    """Yield how many runs have no journal, by the notes of each run."""
    without = sum(NO_JOURNAL in each for each in notes)
    if without:
        runs = f"{without:,} of {counted(len(notes), 'real run')}"
        yield f"health without a journal ({runs}): judged by the figures in run.json and by the tables"


def _amounts(factors: Sequence[float]) -> Iterable[str]:
    """Yield the factors on margins in seconds, if the run times of a workload are compressed."""
    if min(factors) < 1:
        shown = " to ".join(f"{factor:.3g}" for factor in sorted({min(factors), max(factors)}))
        yield f"margins in seconds are multiplied by {shown}, the compression of the run times of the workload"
