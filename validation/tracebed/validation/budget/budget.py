"""The error budget: the share of each cause in the error of each metric."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from tracebed.converters.workload import Workload
from tracebed.ground.display import cell, rows_html
from tracebed.ground.errors import InputError
from tracebed.orchestrator.configurations import predicted_setup
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.orchestrator.scheduling.state import Policy
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.interference import Interference
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel
from tracebed.validation.budget.steps import REMAINDER, STEPS, RealRun, Repeated, repeat
from tracebed.validation.metrics import TAU, Margin, Metric, all_metrics, metrics
from tracebed.validation.verdict.comparison import time_compression

SCHEMA = "tracebed-error-budget/1"
LABELS = {step.name: step.label for step in STEPS} | {REMAINDER: REMAINDER}


@dataclass(frozen=True, repr=False)
class ErrorBudget:
    """The share of each cause in the error of a prediction, for one real run or for several repetitions.

    Attributes:
        runs: each real run with its repeated predictions.
        tables: for each real run, a row per metric (index `metric`, its name); columns `real`, `predicted` (the nominal
            prediction), `error` (predicted - real), a column for each cause with its share, and `remainder`. The shares
            and the remainder add up to the error. All values have the unit of the metric.
        margins: the margin of each metric, in its unit, for the mean of the real runs.
        tau: threshold of the bounded slowdown, s.
        notes: facts that limit the budget, a sentence each.
    """

    runs: list[Repeated]
    tables: list[pd.DataFrame]
    margins: dict[str, float]
    tau: float
    notes: list[str]

    @property
    def causes(self) -> list[str]:
        """The names of the causes, in the order of the steps, and the remainder."""
        return list(self.tables[0].columns[3:])

    @property
    def frame(self) -> pd.DataFrame:
        """The mean of `tables`, with the additional columns `margin` and `gate`."""
        mean = pd.concat(self.tables).groupby(level=0, sort=False).mean()
        known = all_metrics()
        return mean.assign(margin=pd.Series(self.margins), gate=[_margin(known[name]).gate for name in mean.index])

    @property
    def spread(self) -> pd.DataFrame | None:
        """The standard deviation of `tables` over the real runs; None for a single real run."""
        if len(self.tables) < 2:
            return None
        return pd.concat(self.tables).groupby(level=0, sort=False).std(ddof=1)

    @property
    def decisions(self) -> int:
        """Number of decisions that differ in the last step, in all real runs. It should be 0."""
        return sum(run.remainder.decisions for run in self.runs)

    @property
    def headline(self) -> str:
        """The decisions that differ after the last step, and the first; the remainder of a run of a batch system."""
        if self.runs[0].real.info.batch:
            who = f"{self.runs[0].real.info.policy} decided in the real run"
            return f"{who}: the remainder is the effect of decisions that were not predicted."
        of = sum(run.remainder.of for run in self.runs)
        if not self.decisions:
            same = f"all {of:,} calls of the policy and decisions are those of the real run"
            return f"With all causes, {same}: no error is left."
        remainder = next(run.remainder for run in self.runs if run.remainder.decisions)
        return (
            f"With all causes, {self.decisions:,} of {of:,} calls of the policy and decisions still differ from those "
            "of the real run. "
            f"First difference: {remainder.first}. {remainder.cause}"
        )

    def rows(self, *, gated: bool = False) -> list[list[Any]]:
        """Return a row per metric for tables: title, real and predicted value, error and shares as text.

        The error and the shares are percentages of the real value, or amounts if the real value is 0. Shares of
        opposite sign offset each other, so that a share can exceed the error.

        Args:
            gated: leave out advisory metrics.
        """
        known, spread = all_metrics(), {} if self.spread is None else records(self.spread)
        rows = []
        for name, row in records(self.frame).items():
            texts = [_relative(row[column], row["real"]) for column in ("error", *self.causes)]
            if name in spread:
                either = (_relative(spread[name][column], row["real"], sign="") for column in ("error", *self.causes))
                texts = [f"{text} ± {deviation}" for text, deviation in zip(texts, either, strict=True)]
            if row["gate"] or not gated:
                rows.append([known[name].title, row["real"], row["predicted"], *texts])
        return rows

    @property
    def columns(self) -> list[str]:
        """The column titles of `rows`."""
        return ["metric", "real", "predicted", "error", *self.causes]

    def to_json(self) -> dict[str, Any]:
        """Return the budget as JSON values."""
        known, spread = all_metrics(), {} if self.spread is None else records(self.spread)
        rows = [
            {
                "name": name,
                "unit": known[name].unit,
                "gate": bool(row["gate"]),
                **{key: row[key] for key in ("real", "predicted", "error", "margin")},
                "shares": {cause: row[cause] for cause in self.causes},
                "spread": spread.get(name),
            }
            for name, row in records(self.frame).items()
        ]
        return {
            "schema": SCHEMA,
            "headline": self.headline,
            "tau": self.tau,
            "causes": [{"name": name, "label": LABELS[name]} for name in self.causes],
            "metrics": rows,
            "runs": [_run_json(run, table) for run, table in zip(self.runs, self.tables, strict=True)],
            "notes": self.notes,
        }

    def __repr__(self) -> str:
        name = self.runs[0].real.info.workload.get("name") or "a workload"
        return (
            f"<ErrorBudget of {name}, {self.runs[0].real.info.policy}: {len(self.runs)} real runs, "
            f"{len(self.tables[0])} metrics, {self.decisions:,} decisions differ after the last step>"
        )

    def _repr_html_(self) -> str:
        """Return a small table for notebooks."""
        titles = (LABELS.get(name, name) for name in self.columns)
        notes = "".join(f"<p>{html.escape(text)}</p>\n" for text in (self.headline, *self.notes))
        return notes + rows_html(titles, [[cell(value) for value in row] for row in self.rows()])


def error_budget(
    workload: Workload,
    real: Path | Sequence[Path],
    *,
    overheads: Overheads | None = None,
    interference: Interference | None = None,
    make_policy: Callable[[], Policy] | None = None,
    policy_file: str = "",
    runtime_model: RuntimeModel = RuntimeModel.IDEAL,
    tau: float = TAU,
) -> ErrorBudget:
    """Return the error budget of the prediction of a real run, or of its repetitions, in folders of replays.

    The prediction is repeated with one cause after another taken from the real run. The share of a cause is the part of
    the error that disappears when the cause is added. Overheads are in wall seconds. Without overheads or interference,
    as in a run whose policy shares no nodes, their step is left out. `policy_file` is `FILE.py:CLASS` of a policy that
    is not installed.
    """
    folders = [real] if isinstance(real, Path) else list(real)
    if not folders:
        raise InputError("no real run is given", hint="give the folder of a replay")
    repeated: list[Repeated] = []
    for folder in folders:
        chosen = RealRun.load(folder)
        info = chosen.run.info
        _check_alike(chosen.run, repeated[0].real if repeated else chosen.run, folder)
        make = partial(_policy_of, info, make_policy, policy_file)
        repeated.append(
            repeat(
                workload,
                chosen,
                make,
                overheads=overheads,
                interference=interference,
                runtime_model=runtime_model,
            )
        )
    return budget_of(repeated, tau)


def _policy_of(info: RunInfo, make_policy: Callable[[], Policy] | None, policy_file: str) -> Policy:
    """Return the policy of a real run, with its parameters and its speed; a policy file must be that of the run."""
    if make_policy is not None:
        return Setup.of(make_policy(), speed=info.speed).policy()
    setup = predicted_setup(info, **({"policy": policy_file} if policy_file else {}))
    if setup.scheduling.policy != info.policy:
        what = f"the run was made under the policy {info.policy}, not under {setup.scheduling.policy}"
        raise InputError(what, where=policy_file, hint="give the file of the policy as it was")
    return setup.policy()


def budget_of(runs: list[Repeated], tau: float = TAU) -> ErrorBudget:
    """Return the error budget of real runs from their repeated predictions, of the metrics with margin and values."""
    chosen = {name: metric for name, metric in all_metrics().items() if metric.margin is not None}
    tables = []
    for run in runs:
        real = metrics(run.real, tau)
        figures = {name: metrics(step, tau) for name, step in run.steps.items()}
        chosen = {
            name: metric
            for name, metric in chosen.items()
            if not any(math.isnan(values[name]) for values in (real, *figures.values()))
        }
        tables.append(pd.DataFrame({name: _shares(name, real, figures) for name in chosen}).T.rename_axis("metric"))
    order = sorted(chosen, key=lambda name: not _margin(chosen[name]).gate)  # stable: gated metrics first
    tables = [table.loc[order] for table in tables]
    compression = time_compression(runs[0].real.info)
    margins = {}
    for name in order:
        margin = _margin(chosen[name])
        if chosen[name].unit == "s":
            margin = replace(margin, absolute=margin.absolute * compression)
        margins[name] = margin.at(fmean(records(table)[name]["real"] for table in tables))
    return ErrorBudget(runs, tables, margins, tau, _notes(runs))


def _shares(name: str, real: dict[str, Any], figures: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return the row of a metric in `ErrorBudget.tables`."""
    steps = list(figures)
    values = [float(figures[step][name]) for step in steps]
    truth = float(real[name])
    row = {"real": truth, "predicted": values[0], "error": values[0] - truth}
    row |= {step: before - after for step, before, after in zip(steps[1:], values, values[1:], strict=False)}
    return row | {REMAINDER: values[-1] - truth}


def _notes(runs: list[Repeated]) -> list[str]:
    cut = sum(run.real.info.state == "interrupted" for run in runs)
    if not cut:
        return []
    what = "the real run was" if len(runs) == 1 else f"{cut} of {len(runs)} real runs were"
    return [f"{what} interrupted: the predictions also end at the time of the interruption"]


def _margin(metric: Metric) -> Margin:
    assert metric.margin is not None  # `budget_of` leaves out metrics without a margin
    return metric.margin


def _check_alike(run: Run, first: Run, folder: Path) -> None:
    """Raise InputError if `run` is not a repetition of `first`."""
    ours, theirs = run.info, first.info
    scheduling = ours.setup.as_dict()["scheduling"]
    for what, here, there in (
        ("nodes", [node.cores for node in ours.nodes], [node.cores for node in theirs.nodes]),
        *((name, value, theirs.setup.as_dict()["scheduling"][name]) for name, value in scheduling.items()),
        ("speed", ours.speed, theirs.speed),
        ("balance", ours.parameters.get("balance"), theirs.parameters.get("balance")),
    ):
        if here != there:
            hint = "give repetitions of one run"
            raise InputError(f"the run has another {what} than the first real run", where=str(folder), hint=hint)


def _relative(value: float, real: float, *, sign: str = "+") -> str:
    """Return `value` as a percentage of `real`, or as an amount if `real` is 0."""
    if not real:
        return f"{value:{sign}.3g}"
    percent = 100 * value / abs(real)
    return "0 %" if abs(percent) < 5e-3 else f"{percent:{sign}.2f} %"


def records(table: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return a table of numbers as a dictionary: row -> column -> value."""
    return {str(name): {str(key): float(value) for key, value in row.items()} for name, row in table.iterrows()}


def _run_json(run: Repeated, table: pd.DataFrame) -> dict[str, Any]:
    remainder = run.remainder
    return {
        "workload": {key: run.real.info.workload.get(key) for key in ("name", "sha256", "jobs")},
        "policy": run.real.info.policy,
        "created": run.real.info.created,
        "state": run.real.info.state,
        "remainder": {
            "decisions": remainder.decisions,
            "of": remainder.of,
            "first": remainder.first or None,
            "cause": remainder.cause or None,
        },
        "metrics": records(table),
    }
