"""Error budgets: the causes of the difference of a prediction from a real run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tracebed.api.arguments import AnyCalibration, loaded_calibration
from tracebed.api.results import figure_png
from tracebed.converters.workload import Workload
from tracebed.ground.display import WIDTH
from tracebed.ground.errors import InputError
from tracebed.ground.registry import one_of
from tracebed.orchestrator import run as orchestrator
from tracebed.orchestrator.run import RunInfo
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.setup import AnyPolicy, calibrated
from tracebed.orchestrator.simulation.interference import Interference
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.runtime_models import RuntimeModel
from tracebed.orchestrator.testbeds.calibration import Calibration
from tracebed.validation import budget as budgets
from tracebed.validation import verdict
from tracebed.validation.experiments.store import run_folders

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PICTURES = (".png", ".svg", ".pdf", ".csv")
"""File types of the waterfall, and of its data."""


class ErrorBudget(budgets.ErrorBudget):
    """The share of each cause in the error of a prediction, metric by metric: `frame`, `spread`, `decisions`."""

    @classmethod
    def of(cls, budget: budgets.ErrorBudget) -> Self:
        """Return `budget` as an instance of this class."""
        return cls(**{field.name: getattr(budget, field.name) for field in fields(budget)})

    @property
    def labels(self) -> dict[str, str]:
        """What each cause of the budget is, by the name of the cause."""
        return {name: budgets.LABELS[name] for name in self.causes}

    def comparison(self) -> verdict.Comparison:
        """Return the comparison of the prediction, as calibrated if there is a calibration, with the real run.

        Of several real runs, it is the first one.
        """
        first = self.runs[0]
        calibrated_steps = (budgets.INTERFERENCE, budgets.OVERHEADS, budgets.NOMINAL)
        predicted = next(first.steps[name] for name in calibrated_steps if name in first.steps)
        return verdict.compare(first.real, predicted, self.tau)

    def plot(self, *, width: float = WIDTH) -> Figure:
        """Return the waterfall as a matplotlib figure, one panel for each gated metric.

        Args:
            width: of the figure, inches.
        """
        from tracebed.validation.budget.figure import picture

        figure = picture(self).figure(width)
        vars(figure)["_repr_png_"] = partial(figure_png, figure)
        return figure

    def save(self, path: Path | str) -> Path:
        """Write the report of the comparison (.html), or the waterfall only (.png, .svg, .pdf) or its data (.csv).

        Raises:
            InputError: the name has another ending, or the file cannot be written.
        """
        from tracebed.validation.budget.figure import picture, section
        from tracebed.validation.report import html
        from tracebed.validation.verdict.cases import Case
        from tracebed.validation.verdict.validate import validate

        path = Path(path)
        check_name(path)
        if path.suffix.lower() not in PICTURES:
            pair = self.comparison()
            validation = validate([Case.of([pair.real], [pair.predicted])], tau=self.tau)
            return html.write(validation, path, {"budget": section(self)})
        return picture(self).save(path)


def check_name(path: Path) -> None:
    """Raise InputError if `ErrorBudget.save` cannot write a file of this name."""
    endings = (".html", ".htm", *PICTURES)
    if path.suffix.lower() not in endings:
        hint = f"let the name end in {', '.join(endings)}"
        raise InputError("the name does not end like that of a report or picture", where=str(path), hint=hint)


def error_budget(
    workload: Workload,
    real: Path | str | Sequence[Path | str],
    *,
    calibration: AnyCalibration | None = None,
    predicted: orchestrator.Run | None = None,
    policy: AnyPolicy | None = None,
    policy_parameters: Mapping[str, Any] | None = None,
    runtime_model: RuntimeModel | str = "ideal",
    tau: float = 10.0,
) -> ErrorBudget:
    """Explain the error of a prediction: repeat it with one cause after another taken from the real run.

    The share of a cause is the part of the error (predicted - real) that disappears when the cause is added to those
    before it. With all causes, every decision must be that of the real run.

    Args:
        workload: the workload that was replayed.
        real: the folder of a replay, or the folders of several repetitions. They contain the journal.
        calibration: calibration of the testbed, or its file. Without it, the overheads and the interference between
            applications have no share of their own.
        predicted: prediction of `simulate` whose overheads and interference enter the budget, instead of a calibration,
            and whose run-time model is used.
        policy: the policy of the real run, if it is not installed: `FILE.py:CLASS`, a class or an instance.
        policy_parameters: parameters of a policy that is given by class.
        runtime_model: run time of jobs that hold fewer cores than requested.
        tau: threshold of the bounded slowdown, s.

    Returns:
        the budget. `frame` has a row per metric and a column per cause, in the unit of the metric; `plot()` is the
        waterfall.

    Raises:
        InputError: a run is not a replay, its journal is missing, or it has another workload; or both a calibration and
            a prediction are given.

    Example:
        >>> import tracebed.api as tb
        >>> w = tb.scale(tb.generate("cirne", jobs=5, nodes=16, seed=3), nodes=4)
        >>> _ = tb.replay(w, "easy", "emulated-4", speed=1e6, output="real")
        >>> tb.error_budget(w, "real").decisions
        0
    """
    chosen = loaded_calibration(calibration)
    if chosen is not None and predicted is not None:
        raise InputError("both a calibration and a prediction are given", hint="give one of them")
    overheads, facts = calibrated(chosen) if chosen else None, chosen.facts() if chosen else {}
    if predicted is not None:
        timing = predicted.info.setup.timing
        overheads, facts = timing.overheads if timing.overheads != Overheads() else None, predicted.info.calibration
        runtime_model = timing.runtime_model.value
    one_of("runtime_model", runtime_model, RuntimeModel)
    found = budgets.error_budget(
        workload,
        [Path(real)] if isinstance(real, Path | str) else [*map(Path, real)],
        overheads=overheads,
        interference=Interference.of(facts),
        make_policy=None
        if policy is None or isinstance(policy, str)
        else lambda: registry.resolve(policy, policy_parameters)[1],
        policy_file=policy if isinstance(policy, str) else "",
        runtime_model=RuntimeModel(runtime_model),
        tau=tau,
    )
    notes = [*found.notes, *_notes(chosen, found.runs[0].real.info)] if chosen else found.notes
    return ErrorBudget.of(replace(found, notes=notes))


def budget_of_case(validation: verdict.Validation, workload: Workload, real: Sequence[Path | str]) -> ErrorBudget:
    """Return the error budget of the predictions of a case, over the repetitions that its verdict includes.

    Args:
        validation: the verdict on one case.
        workload: the workload that was replayed.
        real: the folders of the real runs or of repetitions, as they were given for the verdict.

    Raises:
        InputError: as for `error_budget`.
    """
    folders = [folder for given in real for folder in run_folders(Path(given))]
    repetitions = validation.cases[0].repetitions
    included = [folder for folder, item in zip(folders, repetitions, strict=True) if not item.excluded]
    return error_budget(workload, included or folders, predicted=validation.pair.predicted, tau=validation.tau)


def _notes(calibration: Calibration, info: RunInfo) -> list[str]:
    """Return the reasons why a calibration may not fit a real run."""
    found = []
    if info.workload.get("sha256") in calibration.workloads:
        found.append("the calibration was made from this workload: the share of the overheads is a fit, not a test")
    made = (calibration.inventory, calibration.execution)
    given = (info.parameters.get("inventory"), info.execution)
    if made != given:
        found.append(f"the calibration is of {made[0]} ({made[1]}), the real run used {given[0]} ({given[1]})")
    return found
