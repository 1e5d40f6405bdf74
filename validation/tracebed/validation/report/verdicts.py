"""Report sections with the verdict on each metric, and with the evidence for the verdict."""

from __future__ import annotations

from markupsafe import Markup

from tracebed.ground.display import cell
from tracebed.validation.report.sections import Section
from tracebed.validation.report.templates import fill
from tracebed.validation.report.words import error, reason_text, signed
from tracebed.validation.verdict.rule import REASONS, Reason
from tracebed.validation.verdict.validation import Validation

FACTORS = {0.5: "half the margins", 1.0: "the margins as given", 2.0: "double margins"}


def _verdicts(validation: Validation) -> Markup:
    """Return the table of metrics: real and predicted values, margin, interval, verdict and reasons."""
    metrics = [item for item in validation.metrics if item.cases]
    found = {reason for item in metrics for reason in item.reasons}
    return fill(
        "verdicts",
        metrics=metrics,
        alone=len(validation.cases) == 1,
        alpha=validation.tolerances.alpha,
        reasons=[(reason_text(reason), REASONS[reason]) for reason in Reason if reason in found],
        error=error,
        perturbed_differences=validation.perturbed_differences,
    )


def _evidence(validation: Validation) -> Markup:
    """Return how the verdict depends on the margins and on doubtful runs, and what could have failed."""
    by_factor = {**validation.sensitivity, 1.0: validation.verdict}
    verdicts = [(FACTORS.get(factor, f"margins x {factor:g}"), by_factor[factor].value) for factor in sorted(by_factor)]
    if validation.without_outliers is not None:
        verdicts.append(("without the repetitions with signals H4 or H5", validation.without_outliers.value))
    if validation.by_own_limits is not None:
        verdicts.append(("by the limits of health of the runs themselves", validation.by_own_limits.value))
    tolerances, simulator = validation.tolerances, validation.simulator
    facts = [
        ("simulator", " ".join(filter(None, (simulator.name, simulator.version)))),
        ("margins", tolerances.source),
        (
            "decision",
            f"intervals leave out {100 * tolerances.alpha:g} % on each side (alpha); limit of a single case "
            f"{tolerances.kappa:g} margins (kappa); slowdowns bounded at {cell(validation.tau)} s (tau)",
        ),
    ]
    labels = {item.metric.name: item.metric.label for item in validation.metrics}
    return fill(
        "evidence",
        verdicts=verdicts,
        could_fail=validation.could_fail,
        could_not_fail=validation.could_not_fail,
        same_scheduler=validation.same_scheduler,
        facts=facts,
        hashes=[("tolerances", tolerances.sha256), ("arguments of the simulator", simulator.arguments_sha256)],
        dependence=validation.dependence,
        courses=validation.courses,
        remarks=[*validation.moving_averages, *validation.remarks],
        workloads=validation.workloads,
        intervals=[
            f"{labels.get(name, name)} {signed(low)} to {signed(high)}"
            for name, (low, high) in validation.population.items()
        ],
    )


VERDICTS = Section("Verdict by metric", 200, _verdicts, scope="validation")
EVIDENCE = Section("Evidence for the verdict", 250, _evidence, scope="validation")
