"""Validations with the methods that users of `tracebed.api` expect, as in `results`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

import pandas as pd

from tracebed.ground.outputs import JUNIT, SUMMARY, OutputKind
from tracebed.ground.registry import one_of
from tracebed.validation import verdict

if TYPE_CHECKING:
    from tracebed.validation.budget import ErrorBudget

OnInconclusiveName: TypeAlias = Literal["fail", "warn", "pass"]


class Validation(verdict.Validation):
    """The verdict on a simulator, over the cases of a suite or for one case.

    `verdict`, `headline` and `metrics` have the result; `cases` has the repetitions, and a typical pair of runs.
    """

    @classmethod
    def of(cls, validation: verdict.Validation) -> Self:
        """Return `validation` as an instance of this class."""
        return cls(**{field.name: getattr(validation, field.name) for field in fields(validation)})

    def to_frame(self) -> pd.DataFrame:
        """Return a row per metric and case.

        Returns:
            index `metric` (its name, which ends in the unit: `_s` for seconds) and `case`; columns `real` (mean over
            the repetitions), `noise` (its coefficient of variation), `predicted`, `error` (relative), `margin` (in the
            unit of the metric), `z` (error in margins), `gate` (whether the verdict depends on the metric), and
            `verdict` (of the metric over all cases).
        """
        columns = ["metric", "case", "real", "noise", "predicted", "error", "margin", "z", "gate", "verdict"]
        rows = [
            (
                item.name,
                case.case,
                case.real_mean,
                case.noise_cv,
                case.predicted,
                case.relative_error,
                case.margin,
                case.z,
                item.gate,
                item.verdict.value,
            )
            for item in self.metrics
            for case in item.cases
        ]
        return pd.DataFrame(rows, columns=columns).set_index(["metric", "case"])

    def breakdown(self) -> pd.DataFrame:
        """Return `Comparison.breakdown` of the pair of the first case."""
        return self.pair.breakdown()

    def divergences(self, count: int = 10, *, tolerance_s: float | None = None) -> pd.DataFrame:
        """Return `Comparison.divergences` of the pair of the first case."""
        return self.pair.divergences(count, tolerance_s=tolerance_s)

    def to_html(self, path: Path | str | None = None, budget: ErrorBudget | None = None, *, outcome: str = "") -> str:
        """Return the report as the text of one HTML document: that of the file, if a `path` is given.

        Args:
            path: the file. The pages of several cases are written to a folder of the same name beside it.
            budget: error budget of the predictions, for a section of its own.
            outcome: the result of a gate, as the title of a file; empty: the verdict.

        Raises:
            InputError: the file cannot be written, or its name does not end in .html.
        """
        from tracebed.validation.report import html as report

        more = {}
        if budget is not None:
            from tracebed.validation.budget.figure import section

            more["budget"] = section(budget)
        if path is None:
            return report.render(self, more)
        return report.write(self, path, more, outcome=outcome).read_text(encoding="utf-8")

    def to_markdown(self, path: Path | str | None = None) -> str:
        """Return a summary in Markdown, as for the page of a CI job, after it was written to `path`, if one is given.

        Raises:
            InputError: the file cannot be written.
        """
        from tracebed.validation.report.markdown import markdown

        return _written(markdown([self]), path, SUMMARY)

    def to_junit(self, path: Path | str | None = None, *, inconclusive: OnInconclusiveName = "fail") -> str:
        """Return the verdict as JUnit XML, a test case per metric and case, after it was written to `path`, if given.

        Args:
            path: the file.
            inconclusive: `fail`: a gated metric without a decision is a failure; `warn`, `pass`: it is skipped.

        Raises:
            InputError: the file cannot be written, or `inconclusive` is unknown.
        """
        from tracebed.validation.report.ci import junit
        from tracebed.validation.verdict.gate import OnInconclusive

        one_of("inconclusive", inconclusive, OnInconclusive)
        return _written(junit([self], OnInconclusive(inconclusive)).decode(), path, JUNIT)


def _written(text: str, path: Path | str | None, kind: OutputKind) -> str:
    """Return `text`, after it was written to `path`, if one is given."""
    if path is not None:
        with kind.file(Path(path)) as stream:
            stream.write(text.encode())
    return text
