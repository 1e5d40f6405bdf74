"""Remarks: how margins and health were found, where this is not the usual way. They are no warnings.

Nothing about them can be mended where the verdict is made: a recorded suite has no journals, and a compressed workload
has smaller margins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tracebed.display import counted
from tracebed.validation.verdict.rejudging import NO_JOURNAL

if TYPE_CHECKING:
    from tracebed.validation.verdict.validation import CaseResult


def remarks(cases: Sequence[CaseResult]) -> list[str]:
    """Return the remarks about the cases of a verdict, a sentence each."""
    notes = [each.notes for case in cases for each in case.repetitions]
    return [*_journals(notes), *_amounts([case.pair.compression for case in cases])]


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
