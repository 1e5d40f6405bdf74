"""Scoring: from the cases of an entry to its scores, one for each track."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.studies.board.board import WAIT, Kind, Score, Track, Worst, stored
from tracebed.studies.board.scores import inaccurate, of_clusters, pooled_sd
from tracebed.validation.verdict import validate
from tracebed.validation.verdict.cases import Case
from tracebed.validation.verdict.rule import REASONS, Reason, Verdict
from tracebed.validation.verdict.tolerances import Tolerances
from tracebed.validation.verdict.validation import CaseMetric, CaseResult, MetricVerdict, Validation


def scores_of(
    dataset: str,
    entry: str,
    kind: Kind,
    cases: Sequence[Case],
    tolerances: Tolerances,
    noise: Mapping[str, float],
) -> list[Score]:
    """Return the scores of an entry: cases whose run times are copies of the observed ones are a track of their own.

    Cases of calibration workloads do not count, nor do cases without a healthy real run, unless all are without.

    Args:
        dataset: name of the data set.
        entry: name of the entry.
        tolerances: the margins.
        noise: measured noise of the real runs, as `noise_of` returns it.

    Raises:
        InputError: the predictions cannot be compared with the real runs, or jobs are missing: a prediction without
            the jobs that wait longest would seem to be near.
    """
    whole = validate(cases, tolerances)
    for result in whole.cases:
        if result.unmatched > tolerances.unmatched:
            raise InputError(f"{100 * result.unmatched:.3g} % of the jobs of {result.case.name} ended in one run only")
    tracks: dict[Track, list[tuple[Case, CaseResult]]] = {"planned": [], "observed": []}
    for case, result in zip(cases, whole.cases, strict=True):
        if not result.calibration:
            tracks["observed" if result.copied else "planned"].append((case, result))
    found = []
    for track, own in tracks.items():
        fit = [case for case, result in own if is_healthy(result)]
        chosen = fit or [case for case, _ in own]
        if chosen:
            made = whole if len(chosen) == len(cases) else validate(chosen, tolerances)
            found.append(_score(dataset, entry, kind, track, made, noise))
    return found


def ceiling_of(dataset: str, cases: Sequence[CaseResult], tolerances: Tolerances) -> list[Score]:
    """Return the score of the real runs: each run as a prediction of the other runs of its case.

    No score without repetitions. Calibration workloads count: nothing was calibrated for a real run.
    """
    made = []
    for each in cases:
        runs = [run for run, own in zip(each.case.real, each.repetitions, strict=True) if not own.excluded]
        if len(runs) > 1:
            made += [
                Case(
                    name=f"{each.case.name}, {each.case.name_of(index)}",
                    workload=each.case.workload,
                    policy=each.case.policy,
                    real=tuple(runs[:index] + runs[index + 1 :]),
                    predicted=(_as_prediction(run),),
                    cluster=each.member.workload,
                )
                for index, run in enumerate(runs)
            ]
    return [_score(dataset, "real", "real", "planned", validate(made, tolerances), {})] if made else []


def noise_of(made: Validation) -> dict[str, float]:
    """Return gated metric -> standard deviation of one real run, in margins, pooled over the cases with repetitions."""
    found = {
        item.name: pooled_sd(
            [case.real_sd / case.margin for case in item.cases], [case.repeats - 1 for case in item.cases]
        )
        for item in made.metrics
        if item.gate
    }
    return {name: stored(value) for name, value in found.items() if math.isfinite(value)}


def is_healthy(result: CaseResult) -> bool:
    """Return whether a case has a real run without a cause to exclude it."""
    return any(not each.excluded for each in result.repetitions)


def _as_prediction(run: Run) -> Run:
    info = replace(run.info, source="real", execution="simulated")
    return Run(info, run.jobs, run.allocations, run.reconfigurations, run.nodes)


def _score(dataset: str, entry: str, kind: Kind, track: Track, made: Validation, noise: Mapping[str, float]) -> Score:
    """Return the score of a validation whose cases all count."""
    gated = {item.name: item for item in made.metrics if item.gate}
    errors = {name: _by_cluster(item, made, lambda case: abs(case.z)) for name, item in gated.items()}
    if not errors.get(WAIT):
        raise InputError("the mean wait is undefined", hint="the output needs a start and an end of each job")
    wait_s = _by_cluster(gated[WAIT], made, lambda case: abs(case.predicted - case.real_mean))
    per_job = {each.case.name: each.per_job for each in made.cases if each.per_job is not None}
    verdict, why = _verdict(made, noise)
    return Score(
        dataset=dataset,
        track=track,
        entry=entry,
        kind=kind,
        program=made.simulator.name,
        version=made.simulator.version,
        cases=len(made.cases),
        real_runs=made.real_runs,
        errors={name: {key: stored(value) for key, value in each.items()} for name, each in errors.items()},
        worst={
            name: Worst(case=item.worst.case, error=stored(item.worst.z)) for name, item in gated.items() if item.worst
        },
        wait_error_s=stored(float(np.mean(list(wait_s.values())))),
        placed=_mean({name: each.placed for name, each in per_job.items()}, made),
        noise_ratio=_mean({name: each.noise_ratio for name, each in per_job.items()}, made),
        verdict=verdict.value,
        why=why,
    )


def _by_cluster(item: MetricVerdict, made: Validation, figure: Callable[[CaseMetric], float]) -> dict[str, float]:
    """Return cluster -> mean of a figure of a metric, without the cases in which it is undefined."""
    return _means({case.case: figure(case) for case in item.deciding}, made)


def _mean(values: Mapping[str, float], made: Validation) -> float | None:
    """Return the mean over the clusters of a figure of the cases; None if it is undefined in all of them."""
    found = _means(values, made)
    return stored(float(np.mean(list(found.values())))) if found else None


def _means(values: Mapping[str, float], made: Validation) -> dict[str, float]:
    """Return cluster -> mean of a figure of the cases, without the cases in which it is NaN."""
    members = {each.case.name: each.member for each in made.cases}
    known = [name for name, value in values.items() if math.isfinite(value)]
    return of_clusters(
        [values[name] for name in known],
        [members[name].real_run for name in known],
        [members[name].workload for name in known],
    )


def _verdict(made: Validation, noise: Mapping[str, float]) -> tuple[Verdict, str]:
    """Return the verdict and what it is about.

    The repetitions of the cases decide first. Without a decision, an entry is inaccurate if a case is proved to be off
    with the noise that is assumed. Accuracy needs repetitions.
    """
    gated = [item for item in made.metrics if item.gate]
    if made.verdict is not Verdict.INCONCLUSIVE:
        return made.verdict, "; ".join(item.metric.label for item in gated if item.verdict is made.verdict)
    errors = {item.name: [case.z for case in item.deciding if math.isfinite(case.z)] for item in gated}
    if Reason.UNHEALTHY not in made.reasons and (off := inaccurate(errors, noise)):
        return Verdict.INACCURATE, "; ".join(item.metric.label for item in gated if item.name in off)
    return Verdict.INCONCLUSIVE, REASONS[made.reasons[0]] if made.reasons else ""
