"""Classes of jobs: what a model got wrong in each, what a change does to each, and the sentence about it.

**Error of the model.** The members of the ensemble predict the mean wait of a class. The error is the mean of
|ln(predicted / logged)| over the members: by which factor one prediction of the log is off (`shares`). The moving
average of the wait (`verdict.moving_average`) is beside it, since errors at different times cancel in a mean.

**Effect.** Member by member, the mean wait of the class in the changed cluster against that in the cluster as it was,
with its interval over the members (the middle 95 %, as in `significance.paired`), over the jobs that start in both. It
is conclusive if the interval does not contain 0, and its ratio is larger than the error of the model, as factors. If
the change refuses much work (`refused.MOST`), there is no answer.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.workload import BoolArray, FloatArray, IntArray
from tracebed.ground.display import effect
from tracebed.operators.whatif.refused import MOST as MOST_LOST
from tracebed.operators.whatif.shares import log_error, percent, size, spread
from tracebed.validation.metrics.classes import SIZES, most_frequent, numbered, size_label
from tracebed.validation.moving_average import MovingAverage, moving_average
from tracebed.validation.significance import PERCENTS, ROUNDING, Difference, paired

BY = {"partition": "partition", "node_class": "class", "queue": "QOS", "group": "account", "cores": "size"}
"""Column of the table of jobs -> name of its classification."""
ALL = "all jobs"
KIND = "kind"
"""Classification whose classes have other jobs in each member: the malleable ones, and the others."""
MOST = 6
"""Most partitions, besides those that were changed, whose answers are printed as sentences."""


class Answer(enum.StrEnum):
    """Answer to the question what a change does to the waits of a class."""

    FALL = "fall"
    """The waits fall, by more than the error of the model."""
    RISE = "rise"
    """The waits rise, by more than the error of the model."""
    EQUAL = "equal"
    """No wait changes."""
    CHANCE = "chance"
    """Inconclusive: another random input may turn the effect round."""
    ERROR = "error"
    """Inconclusive: the error of the model exceeds the effect."""
    UNKNOWN = "unknown"
    """Inconclusive: the error of the model, or the chance, is unknown."""
    REFUSED = "refused"
    """No statement: the changed cluster does not do more than a small share of the work."""


@dataclass(frozen=True)
class Changed:
    """What the members predict with the change, for each of the judged jobs.

    Attributes:
        before: waits in the cluster as it was, without the jobs that the change refuses, s, shape (members, jobs).
        after: waits in the changed cluster, s, shape (members, jobs); NaN: refused.
        lost: core seconds that each job lacks in the changed cluster, shape (jobs,).
        held: core seconds of each job, shape (jobs,).
        much: whether the change refuses so much work of all jobs that there is no statement about waits.
    """

    before: FloatArray
    after: FloatArray
    lost: FloatArray
    held: FloatArray
    much: bool = False

    @property
    def compared(self) -> BoolArray:
        """Whether a job starts in both clusters in all members, shape (jobs,)."""
        return np.asarray(np.isfinite(self.before + self.after).all(axis=0))

    def of(self, rows: BoolArray) -> Changed:
        """Return the same for some of the jobs."""
        return Changed(self.before[:, rows], self.after[:, rows], self.lost[rows], self.held[rows], self.much)


@dataclass(frozen=True)
class JobClass:
    """A class of judged jobs. Waits are means over its jobs, s."""

    by: str
    """Name of the classification: `all`, or a value of `BY`."""
    name: str
    jobs: int
    logged_s: float
    predicted_s: float
    """Mean over the members of the ensemble."""
    low_s: float
    """Lower end of the middle 95 % of the members."""
    high_s: float
    error: float
    """Mean of |ln(predicted / logged)| over the members; NaN if no job waited."""
    moving: MovingAverage | None
    """Error of the moving average; None if there are too few jobs."""
    compared: int = 0
    """Number of jobs that start in both clusters, whose waits are compared; 0 without a change."""
    lost: float = math.nan
    """Share of the core hours that the changed cluster does not do; NaN without a change."""
    much: bool = False
    """Whether this share is so large, of the class or of all jobs, that there is no statement about waits."""
    changed_s: float = math.nan
    """Mean over the members in the changed cluster; NaN without a change, or without a compared job."""
    effect: Difference | None = None
    """The change of the mean wait of the compared jobs, s; None if there are none."""
    shares: tuple[float, float, float] = (math.nan, math.nan, math.nan)
    """The effect as a share of the mean wait in the cluster as it was, and its interval: of the ratio of each pair."""
    most_error: float = math.inf
    """Largest error with which there is an answer, |ln(predicted / logged)|."""
    figure: str = "waits"
    """What the times are, in words."""

    @property
    def answer(self) -> Answer:
        """What the change does to the waits."""
        if self.much:
            return Answer.REFUSED
        if self.effect is None:
            return Answer.UNKNOWN
        if self.effect.low == self.effect.high == 0:
            return Answer.EQUAL
        if self.effect.differ is None or math.isnan(self.error) or not self.effect.base:
            return Answer.UNKNOWN
        if not self.effect.differ:
            return Answer.CHANCE
        if self.unfit or size(self.shares[0]) <= self.error:
            return Answer.ERROR
        return Answer.FALL if self.effect.change < 0 else Answer.RISE

    @property
    def unfit(self) -> bool:
        """Whether the error is so large that there is no answer, whatever the effect."""
        return self.error > self.most_error

    @property
    def title(self) -> str:
        """The class in words: `partition gpu`, or `all jobs`."""
        if self.by in ("all", KIND):
            return self.name
        cores = " core" if self.name == "1" else " cores"
        return f"{self.by} {self.name}" + (cores if self.by == "size" else "")

    @property
    def effect_text(self) -> str:
        """The effect with its interval in percent; a dash without a change or an interval."""
        if self.effect is None or self.much or math.isnan(self.shares[0]):
            return "-"
        change, low, high = self.shares
        return "equal" if self.answer is Answer.EQUAL else effect(change, low, high, 1.0)

    @property
    def errors(self) -> tuple[str, str]:
        """The errors of the mean wait and of the moving average, in percent; a dash if unknown."""
        return spread(self.error), "-" if self.moving is None else f"{percent(self.moving.error)} %"

    @property
    def doubt(self) -> str:
        """Why the effect is inconclusive, in a word or two; empty if it is conclusive."""
        doubts = {Answer.CHANCE: "chance", Answer.ERROR: "error of the model", Answer.UNKNOWN: "unknown"}
        doubts |= {Answer.REFUSED: "work refused"}
        return doubts.get(self.answer, "")

    @property
    def sentence(self) -> str:
        """The answer in words; empty without a change."""
        waits, own = f"{self.figure} of {self.title}", f"the model's own error on this log is {spread(self.error)}"
        if self.much:
            work = (
                f"{percent(self.lost)} % of its core hours" if self.lost > MOST_LOST else "too much work of other jobs"
            )
            return f"{waits}: no statement: the change refuses or cuts off {work}"
        if self.effect is None:
            return ""
        change, low, high = map(percent, self.shares)
        between = " to ".join(percent(abs(share)) for share in sorted(self.shares[1:], key=abs))
        match self.answer:
            case Answer.FALL | Answer.RISE as answer:
                return f"{waits} {answer} by {percent(abs(self.shares[0]))} % ({between} %); {own}"
            case Answer.EQUAL:
                return f"{waits} do not change"
            case Answer.CHANCE:
                return f"{waits}: inconclusive: chance exceeds the effect ({change} %, {low} to {high} %); {own}"
            case Answer.ERROR:
                what = "the model does not fit this log" if self.unfit else "the error of the model exceeds the effect"
                return f"{waits}: inconclusive: {what} ({change} %, {low} to {high} %); {own}"
        if self.effect.differ is None:
            return f"{waits}: inconclusive: too few members for an interval ({self.effect.pairs})"
        what = "no job waits as the cluster was" if not self.effect.base else "no job of it waited in the log"
        return f"{waits}: inconclusive: {what}, so that an error or an effect in percent is not defined"

    def to_json(self) -> dict[str, Any]:
        """Return the class as JSON values."""
        moving = None if self.moving is None else {**vars(self.moving), "sentence": self.moving.sentence}
        effect = (
            None
            if self.effect is None
            else {
                **self.effect.to_json(),
                **dict(zip(("relative", "relative_low", "relative_high"), self.shares, strict=True)),
                "answer": self.answer.value,
            }
        )
        own = {"by": self.by, "class": self.name, "jobs": self.jobs, "logged_wait_s": self.logged_s}
        own |= {"predicted_wait_s": self.predicted_s, "predicted_low_s": self.low_s, "predicted_high_s": self.high_s}
        own |= {"error": math.expm1(self.error), "error_low": math.expm1(-self.error), "moving_average": moving}
        own |= {"compared_jobs": self.compared, "lost_share": self.lost}
        return own | {"changed_wait_s": self.changed_s, "effect": effect, "sentence": self.sentence}


def classes_of(jobs: pd.DataFrame, base: FloatArray, changed: Changed | None) -> list[JobClass]:
    """Return the classes of jobs: all jobs, then by partition, class of nodes, QOS, account and size.

    `base`: waits in the cluster as it was, s, shape (members, jobs).
    """
    return [
        _class(by, name, jobs[rows], base[:, rows], None if changed is None else changed.of(rows))
        for by, name, rows in _selections(jobs)
    ]


def _selections(jobs: pd.DataFrame) -> Iterator[tuple[str, str, Any]]:
    """Yield classification, class, and mask of its jobs. A classification with one class is left out."""
    yield "all", ALL, np.ones(len(jobs), dtype=bool)
    for column, by in BY.items():
        codes, labels = _codes(column, jobs[column])
        if len(labels) > 1:
            yield from ((by, label, codes == code) for code, label in enumerate(labels))


def _codes(column: str, values: pd.Series[Any]) -> tuple[IntArray, list[str]]:
    if column == "cores":
        return numbered(np.searchsorted(SIZES, values.to_numpy(), side="left"), size_label)
    return most_frequent(values)


def _class(by: str, name: str, jobs: pd.DataFrame, base: FloatArray, changed: Changed | None) -> JobClass:
    logged, means = float(jobs["logged"].mean()), base.mean(axis=1)
    low, high = np.percentile(means, PERCENTS)
    matched = pd.DataFrame(
        {"submit_real": jobs["submit"], "wait_real": jobs["logged"], "wait_predicted": base.mean(axis=0)}
    )
    backtest = JobClass(
        by,
        name,
        len(jobs),
        logged,
        float(means.mean()),
        float(low),
        float(high),
        log_error(means, logged),
        moving_average(matched),
    )
    if changed is None:
        return backtest
    lost, compared = float(changed.lost.sum() / changed.held.sum()), changed.compared
    with_lost = replace(backtest, compared=int(compared.sum()), lost=lost, much=changed.much or lost > MOST_LOST)
    if not compared.any():
        return with_lost
    before, after = (side[:, compared].mean(axis=1) for side in (changed.before, changed.after))
    return replace(
        with_lost, changed_s=float(after.mean()), effect=paired(before, after), shares=shares_of(before, after)
    )


def shares_of(before: FloatArray, after: FloatArray) -> tuple[float, float, float]:
    """Return the change as a share, of the means and at the ends of the interval over the pairs; NaN: no job waits.

    As in `significance`, a share below `ROUNDING` is 0.
    """
    known = before > 0
    if not known.any():
        return (math.nan,) * 3
    low, high = np.percentile(after[known] / before[known] - 1, PERCENTS)
    change, low, high = (
        0.0 if abs(share) <= ROUNDING else float(share) for share in (after.mean() / before.mean() - 1, low, high)
    )
    return change, low, high


def headlines(classes: Sequence[JobClass], changed: Collection[str] = (), most: int = MOST) -> list[JobClass]:
    """Return the classes whose answers come first: the `changed` partitions, all jobs, `most` with large effects."""
    every, *others = [each for each in classes if each.by in ("all", BY["partition"])]
    first = [each for each in others if each.name in changed]
    rest = [each for each in others if each not in first]
    largest = sorted(rest, key=lambda each: -np.nan_to_num(abs(each.shares[0])))[:most]
    return [*first, every, *(each for each in rest if each in largest)]
