"""The courses of an ensemble: groups of runs with nearly equal metrics, and their frequencies.

Where milliseconds decide which job starts first, the runs of one workload may take different courses. Two runs are on
one course if no gated metric differs by more than `STEP` margins between them, or if other runs connect them by such
steps (single linkage). Courses that the metrics cannot tell apart are therefore one course.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tracebed.converters.workload import BoolArray, FloatArray
from tracebed.validation.metrics import Margin, all_metrics

STEP = 0.5  # largest difference of neighboring runs of one course in each gated metric, in margins
REACH = 1.0  # largest difference of a real run from the nearest prediction of its course in a gated metric, margins
RARE = 0.1  # smallest share of a course that is described by itself
Figures = Mapping[str, Any]  # the dictionary of `metrics` of a run


@dataclass(frozen=True)
class Course:
    """One course of an ensemble."""

    predictions: tuple[int, ...]
    """Positions of its predictions in the ensemble."""
    real: tuple[int, ...]
    """Positions of the repetitions of the real run that took this course."""
    share: float
    """Share of the predictions."""
    metrics: dict[str, float]
    """Gated metric -> mean over its predictions."""

    def to_json(self) -> dict[str, Any]:
        """Return the course as JSON values."""
        return asdict(self)


def courses(predicted: Sequence[Figures], real: Sequence[Figures], margins: Mapping[str, Margin]) -> list[Course]:
    """Return the courses of an ensemble, the most frequent one first, by the gated metrics defined for all runs."""
    # Each repetition belongs to the course of the nearest prediction, or to none if that one is farther than `REACH`
    # margins.
    runs = [*predicted, *real]
    gated = [name for name, margin in margins.items() if margin.gate and name in all_metrics()]
    values = {name: np.array([run[name] for run in runs], dtype=np.float64) for name in gated}
    known = {name: each for name, each in values.items() if np.isfinite(each).all()}
    if not known:
        return []
    scales = [max(margins[name].at(float(each[: len(predicted)].mean())), 1e-12) for name, each in known.items()]
    points = np.column_stack([*known.values()]) / np.array(scales)
    members, others = points[: len(predicted)], points[len(predicted) :]
    near = _distances(members, members) <= STEP
    groups = _connected(near)
    of_real: list[int | None] = [None] * len(others)
    for index, distances in enumerate(_distances(others, members)):
        if distances.min() <= REACH:
            of_real[index] = groups[int(distances.argmin())]
    found = []
    for group in dict.fromkeys(groups):
        own = [index for index, each in enumerate(groups) if each == group]
        means = {name: float(each[own].mean()) for name, each in known.items()}
        taken = tuple(index for index, each in enumerate(of_real) if each == group)
        found.append(Course(tuple(own), taken, len(own) / len(members), means))
    return sorted(found, key=lambda course: -len(course.predictions))


def sentence(name: str, found: Sequence[Course], repetitions: int) -> str:
    """Return the courses of a case as text: `pref: course A 68 % (7 of 10 real runs), makespan 7,260 s; ...`."""

    # Courses with less than `RARE` of the predictions are counted together.
    def taken(of: Sequence[Course]) -> str:
        number = sum(len(course.real) for course in of)
        share = f"{100 * sum(course.share for course in of):.0f} %"
        return f"{share} ({number} of {repetitions} real runs)" if repetitions else share

    frequent = [course for course in found[:26] if course.share >= RARE]
    rare = found[len(frequent) :]
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    parts = [
        ", ".join([f"course {letter} {taken([course])}", *_values(course)])
        for letter, course in zip(letters, frequent, strict=False)
    ]
    if rare:
        parts.append(f"{len(rare)} {'further ' if parts else ''}courses {taken(rare)}")
    if repetitions and (lost := repetitions - sum(len(course.real) for course in found)):
        parts.append(f"{lost} of {repetitions} real runs on no predicted course")
    return f"{name}: {'; '.join(parts)}"


def _values(course: Course) -> list[str]:
    """Return makespan and mean wait of a course as text, as far as they are known."""
    metrics = {name: each for name, each in all_metrics().items() if name in course.metrics and each.unit == "s"}
    return [f"{each.short or each.label} {course.metrics[name]:,.0f} s" for name, each in list(metrics.items())[:2]]


def _distances(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return the largest difference of a metric between each two points, shape (first, second)."""
    return np.asarray(np.abs(first[:, None, :] - second[None, :, :]).max(axis=-1))


def _connected(near: BoolArray) -> list[int]:
    """Return the number of the connected component of each point, given which points are neighbors."""
    from scipy.sparse.csgraph import connected_components

    labels = connected_components(near, directed=False)[1]
    return [int(label) for label in labels]
