"""Warnings of a comparison: differences that make two runs less comparable."""

from __future__ import annotations

from typing import Any

from tracebed.orchestrator.run import Run, RunInfo
from tracebed.orchestrator.setup import UNKNOWN_POLICY
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.validation.metrics import total_cores
from tracebed.validation.verdict.evidence import imposed
from tracebed.validation.verdict.matching import Matching
from tracebed.validation.verdict.screening import lateness

Figures = dict[str, Any]
"""The dictionary of `metrics`."""


def comparability_warnings(
    real: Run, predicted: Run, figures: tuple[Figures, Figures], matching: Matching, same_workload: bool
) -> list[str]:
    """Return the warnings about differences that make the two runs less comparable, one sentence each.

    Args:
        figures: metrics of the real run and of the prediction.
        same_workload: whether the workloads have the same hash.
    """
    found = []
    if not same_workload:
        found.append("the runs have different workloads; jobs were matched by id")
    found += _jobs(matching)
    if real.info.policy == predicted.info.policy == UNKNOWN_POLICY:
        found.append("the policies of both runs are unknown: whether they are the same was not checked")
    elif real.info.policy == UNKNOWN_POLICY:
        found.append(f"the policy of the real run is unknown; the prediction is made under {predicted.info.policy}")
    found += [f"{what}: real {x}, predicted {y}" for what, x, y in _facts(real, predicted) if x != y]
    if predicted.info.state != "completed":
        found.append(f"the prediction is {predicted.info.state}")
    if late := lateness(real, figures[0]):
        found.append(f"{late}; replay with a lower --speed")
    if skewed := figures[1]["clock_skew_jobs"]:
        found.append(f"{skewed:,} jobs of the prediction start before their submission or end before their start")
    if by := imposed(real.info):
        found.append(
            f"the run times of the real run were imposed ({by}): run-time metrics, and the part of responses and "
            "slowdowns that is run time, are no evidence for the prediction"
        )
    return found


def _jobs(matching: Matching) -> list[str]:
    found = []
    if matching.unmatched:
        share = 100 * matching.unmatched_share
        found.append(
            f"{matching.unmatched:,} jobs ({share:.1f} % of all) have no counterpart: "
            f"{matching.only_real:,} ended only in the real run, {matching.only_predicted:,} only in the "
            f"prediction, {matching.unlike:,} in neither run, in different states"
        )
    if matching.states_differ:
        found.append(f"{matching.states_differ:,} jobs ended in a different state than predicted")
    return found


def _facts(real: Run, predicted: Run) -> list[tuple[str, Any, Any]]:
    """Return (what, real, predicted) of the parameters that should be equal in both runs."""
    a, b = real.info, predicted.info
    facts: list[tuple[str, Any, Any]] = []
    if a.policy != UNKNOWN_POLICY:
        facts.append(("policy differs", a.policy, b.policy))
    if _has_parameters(a) and a.policy in {b.policy, UNKNOWN_POLICY}:
        ours, theirs = a.policy_parameters, b.policy_parameters
        if new := sorted(theirs.keys() - ours):  # of an older version
            values = ", ".join(f"{name} {theirs[name]}" for name in new)
            facts.append(("policy parameters are not recorded", "unknown", values))
        for name in sorted(ours):
            value, predicted_value = ours[name], theirs.get(name, "not recorded")
            if isinstance(value, bool) and predicted_value in ("yes", "no"):  # a boolean in older versions
                value = "yes" if value else "no"
            facts.append((f"policy parameter {name} differs", value, predicted_value))
    facts += [
        ("number of nodes differs", len(a.nodes), len(b.nodes)),
        ("number of cores differs", total_cores(real), total_cores(predicted)),
    ]
    if b.setup.timing.overheads != Overheads():
        facts.append(("speed differs", a.speed, b.speed))  # the speed matters only with overheads
    ours, theirs = a.settings, b.settings
    return facts + [(f"{key} differs", ours[key], theirs[key]) for key in sorted(ours.keys() & theirs)]


def _has_parameters(real: RunInfo) -> bool:
    """Return whether a real run has its policy parameters.

    A batch system records its whole configuration, of which a policy of the same name has a part. A log or a file of
    another program may record none.
    """
    recorded = real.source != "log" and not real.imported
    return not real.batch and bool(real.policy_parameters or recorded)
