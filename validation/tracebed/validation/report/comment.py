"""The comment on a pull request: the verdict on each simulator, and the change of its errors against the base."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tracebed.ground.display import counted
from tracebed.validation.report.history import label_of
from tracebed.validation.report.markdown import number, plain, table
from tracebed.validation.statistics import half_width
from tracebed.validation.verdict.baseline import GROWTH, Baseline, SimulatorBaseline

LIMIT = 60_000  # characters; GitHub rejects a comment of more than 65,536
LEVEL = 0.95  # of the intervals of differences


class Base(NamedTuple):
    """Results with which those of a pull request are compared."""

    name: str  # as text: the commit and its day
    results: Baseline


def comment(document: Mapping[str, Any], base: Base | None, links: Mapping[str, str]) -> str:
    """Return the comment in Markdown.

    Args:
        document: the content of verdict.json.
        base: the results with which the change is shown; None: there are none.
        links: text -> address, at the end of the comment.
    """
    now = Baseline.of(document["simulators"])
    parts = []
    for name, why in document["failed"].items():
        parts += [f"### {plain(name)}: {document['outcomes'][name]}", "", plain(why), ""]
    for each in document["simulators"]:
        name = each["simulator"]["name"]
        parts += [f"### {plain(name)}: {document['outcomes'][name]}", "", plain(each["headline"]), ""]
        parts += [f"- **worse than the baseline**: {plain(f['text'])}" for f in each["findings"] if f["failed"]]
        before = base.results.simulators.get(name) if base else None
        parts += ["", *_changes(now.simulators[name], before), ""]
        if base and before:
            parts += [*_notes(now.simulators[name], before, base.name), ""]
        else:
            parts += [f"No results of {plain(name)} at the base, so no change is shown.", ""]
    text = "\n".join(parts)
    if len(text) > LIMIT:
        text = text[: text.rindex("\n", 0, LIMIT)] + "\n\nToo long for a comment: the reports have the rest.\n"
    return text + "\n" + " · ".join(f"[{name}]({address})" for name, address in links.items()) + "\n"


def _changes(now: SimulatorBaseline, before: SimulatorBaseline | None) -> list[str]:
    """Return the table of the metrics: those of the verdict, and the others that changed."""
    rows = []
    for metric, item in now.metrics.items():
        was = before.metrics.get(metric) if before else None
        difference = differences(now, before, metric) if before else np.empty(0)
        if not item.gate and not np.any(np.abs(difference) >= GROWTH):
            continue
        verdict = item.verdict if was is None or was.verdict == item.verdict else f"{was.verdict} → {item.verdict}"
        rows.append(
            (
                label_of(metric) + ("" if item.gate else "*"),
                verdict,
                *(number(np.nan if each is None or each.z is None else each.z) for each in (was, item)),
                *_difference(difference),
            )
        )
    return table(("error, margins", "verdict", "base", "now", "difference", f"{LEVEL:.0%} interval"), rows)


def differences(now: SimulatorBaseline, before: SimulatorBaseline, metric: str) -> np.ndarray:
    """Return the change of the error of a metric in each workload, in margins, shape (workloads,).

    It is the mean over the cases of the workload in which both errors are defined. The real runs of a case are the
    same on both sides, so that their noise is not in the change.
    """
    was, found = before.metrics.get(metric), now.metrics[metric]
    changes: dict[str, list[float]] = {}
    for case, item in found.cases.items():
        old = was.cases.get(case) if was else None
        if old is not None and old.z is not None and item.z is not None:
            changes.setdefault(now.inputs[case].workload, []).append(item.z - old.z)
    return np.array([np.mean(each) for each in changes.values()])


def _difference(changes: np.ndarray) -> tuple[str, str]:
    """Return the mean change over the workloads, and its interval by Student's t."""
    if not len(changes):
        return "-", "-"
    if not changes.any():
        return "0", "-"  # a deterministic simulator that did not change: no statistic
    mean = float(changes.mean())
    if len(changes) < 2:
        return number(mean), "-"
    half = half_width(changes, LEVEL)
    return number(mean), f"{number(mean - half)} to {number(mean + half)}"


def _notes(now: SimulatorBaseline, before: SimulatorBaseline, name: str) -> Iterator[str]:
    """Yield what the table compares, and what weakens the comparison."""
    both = [case for case in now.inputs if case in before.inputs]
    workloads = len({now.inputs[case].workload for case in both})
    yield (
        f"Base: {plain(name)}. A difference is now - base, the mean over {counted(len(both), 'case')} of "
        f"{counted(workloads, 'workload')}; its interval is that over the workloads (Student's t). "
        "An asterisk: advisory, not part of the verdict."
    )
    if other := [case for case in both if now.inputs[case].real != before.inputs[case].real]:
        yield f"The real runs of {counted(len(other), 'case')} are not those of the base."
    if missing := before.inputs.keys() ^ now.inputs.keys():
        yield f"Only on one side: {', '.join(map(plain, sorted(missing)))}."
    if now.tolerances != before.tolerances:
        yield "**The tolerances are not those of the base, so that the errors have other units.**"
