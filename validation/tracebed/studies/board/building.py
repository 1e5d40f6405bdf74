"""Building of the board: the data sets are copied, predicted by all entries, and scored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from tracebed.converters.workload import FloatArray
from tracebed.ground.errors import InputError
from tracebed.ground.files import replacing
from tracebed.ground.version import version
from tracebed.orchestrator.run import Run
from tracebed.studies.board.board import (
    QUANTITIES,
    Board,
    Facts,
    Kind,
    Malleable,
    Score,
    Track,
    Worst,
    program_of,
    stored,
)
from tracebed.studies.board.datasets import SUITE, datasets, fetch_from
from tracebed.studies.board.datasets import dataset as dataset_named
from tracebed.studies.board.entries import EntryFile
from tracebed.studies.board.scores import inaccurate, of_clusters, pooled_sd
from tracebed.validation.experiments.experiment_schema import TRACEBED
from tracebed.validation.experiments.file import load_experiment
from tracebed.validation.experiments.runner import predict_suite
from tracebed.validation.experiments.simulators import SuiteSimulator
from tracebed.validation.experiments.suite import Suite, cases_of, load_suite
from tracebed.validation.metrics import all_metrics
from tracebed.validation.verdict import validate
from tracebed.validation.verdict.cases import Case
from tracebed.validation.verdict.per_job import PerJob, per_job
from tracebed.validation.verdict.resizing import ResizeFigures, Resizing
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
    """Return the scores of an entry: cases whose run times are copies of the observed ones are a track of their own."""
    # Cases of calibration workloads do not count, nor do cases without a healthy real run, unless all are without. A
    # prediction without the jobs that wait longest would seem to be near: the entry has no score then.
    whole = validate(cases, tolerances)
    tracks: dict[Track, list[tuple[Case, CaseResult]]] = {"planned": [], "observed": []}
    for case, result in zip(cases, whole.cases, strict=True):
        if not result.calibration:
            tracks["observed" if result.copied else "planned"].append((case, result))
    scores = []
    for track, own in tracks.items():
        fit = [case for case, result in own if any(not each.excluded for each in result.repetitions)]  # healthy
        chosen = fit or [case for case, _ in own]
        for case, result in own:
            if case in chosen and result.unmatched > tolerances.unmatched:
                raise InputError(f"{100 * result.unmatched:.3g} % of the jobs of {case.name} ended in one run only")
        if chosen:
            made = whole if len(chosen) == len(cases) else validate(chosen, tolerances)
            scores.append(_score(dataset, entry, kind, track, made, noise))
    return scores


def ceiling_of(dataset: str, cases: Sequence[CaseResult], tolerances: Tolerances) -> list[Score]:
    """Return the score of the real runs, each as a prediction of the others of its case; none without repetitions."""
    # Calibration workloads count: nothing was calibrated for a real run.
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
    deviations = {
        item.name: pooled_sd(
            [case.real_sd / case.margin for case in item.cases], [case.repeats - 1 for case in item.cases]
        )
        for item in made.metrics
        if item.gate
    }
    return {name: stored(value) for name, value in deviations.items() if math.isfinite(value)}


def _as_prediction(run: Run) -> Run:
    info = replace(run.info, source="real", execution="simulated")
    return Run(info, run.jobs, run.allocations, run.reconfigurations, run.nodes)


def _score(dataset: str, entry: str, kind: Kind, track: Track, made: Validation, noise: Mapping[str, float]) -> Score:
    """Return the score of a validation whose cases all count."""
    gated = {item.name: item for item in made.metrics if item.gate}
    errors = {name: _by_cluster(item, made, lambda case: abs(case.z)) for name, item in gated.items()}
    measure = dataset_named(dataset).measure
    if not errors.get(measure):
        label = all_metrics()[measure].label
        raise InputError(f"{label} is undefined", hint="the output needs a start and an end of each job")
    wait_s = _by_cluster(gated[measure], made, lambda case: abs(case.predicted - case.real_mean))
    of_jobs = {each.case.name: found for each in made.cases if (found := _per_job(each, QUANTITIES[measure]))}
    verdict, why = _verdict(made, noise)
    return Score(
        dataset=dataset,
        track=track,
        entry=entry,
        kind=kind,
        program=made.simulator.name,
        version=made.simulator.version,
        measure=measure,
        cases=len(made.cases),
        real_runs=made.real_runs,
        errors={name: {key: stored(value) for key, value in each.items()} for name, each in errors.items()},
        worst={
            name: Worst(case=item.worst.case, error=stored(item.worst.z)) for name, item in gated.items() if item.worst
        },
        wait_error_s=stored(float(np.mean(list(wait_s.values())))),
        placed=_mean({name: each.placed for name, each in of_jobs.items()}, made),
        noise_ratio=_mean({name: each.noise_ratio for name, each in of_jobs.items()}, made),
        malleable=_malleable(made, lambda each: each.predicted),
        verdict=verdict.value,
        why=why,
    )


def _malleable(made: Validation, side: Callable[[Resizing], ResizeFigures | None]) -> Malleable | None:
    """Return the means of the figures of malleable jobs, of one side of each case; None without resizes."""
    own = {each.case.name: found for each in made.cases if each.resizing and (found := side(each.resizing))}
    if not own:
        return None
    paired = {
        f"{name}{'_near' * near}": _mean({case: getattr(each, name)(near=near) for case, each in own.items()}, made)
        for name in ("precision", "recall")
        for near in (False, True)
    }
    others = ("time_s", "area", "machine_area", "start_s", "response_s")
    means = {name: _mean({case: getattr(each, name) for case, each in own.items()}, made) for name in others}
    return Malleable(**paired, **means)


def _per_job(result: CaseResult, quantity: str) -> PerJob | None:
    """Return the differences of a case job by job, of the real runs that are not excluded, unless all are."""
    if result.per_job is None or result.per_job.quantity == quantity:
        return result.per_job
    pairs = zip(result.case.real, result.repetitions, strict=True)
    healthy = [run for run, repetition in pairs if not repetition.excluded]
    return per_job(healthy or result.case.real, result.case.predicted, quantity)


def _by_cluster(item: MetricVerdict, made: Validation, figure: Callable[[CaseMetric], float]) -> dict[str, float]:
    """Return cluster -> mean of a figure of a metric, without the cases in which it is undefined."""
    return _means({case.case: figure(case) for case in item.deciding}, made)


def _mean(values: Mapping[str, float], made: Validation) -> float | None:
    """Return the mean over the clusters of a figure of the cases; None if it is undefined in all of them."""
    means = _means(values, made)
    return stored(float(np.mean(list(means.values())))) if means else None


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
    """Return the verdict and what it is about: by the repetitions of the cases or, undecided, by assumed noise."""
    gated = [item for item in made.metrics if item.gate]
    if made.verdict is not Verdict.INCONCLUSIVE:
        return made.verdict, "; ".join(item.metric.label for item in gated if item.verdict is made.verdict)
    # Accuracy needs repetitions. An entry is inaccurate if a case is proved to be off with the noise that is assumed.
    errors = {item.name: [case.z for case in item.deciding if math.isfinite(case.z)] for item in gated}
    if Reason.UNHEALTHY not in made.reasons and (off := inaccurate(errors, noise)):
        return Verdict.INACCURATE, "; ".join(item.metric.label for item in gated if item.name in off)
    return Verdict.INCONCLUSIVE, REASONS[made.reasons[0]] if made.reasons else ""


# -- predictions that must fail: each keeps something of the real runs that a careless score takes for accuracy


CONTROLS = {
    "shuffled": "the real waits, shuffled among the jobs",
    "other-runs": "the mean wait of all other workloads, for each job",
    "observed": "the run times of the real run, entered as planned",
}
"""Name of a control -> its prediction: equal means and distributions for the wrong jobs, no knowledge of the workload,
or run times that no simulator could have known."""


def controls(cases: Sequence[Case], results: Sequence[CaseResult], quantity: str = "wait") -> dict[str, list[Case]]:
    """Return control -> its cases, without the controls that need what the data set lacks.

    `quantity` is the time of each job, `wait` or `response`, that is shuffled or replaced.
    """
    times = [_times(case.real[0], quantity) for case in cases]
    cases_by_control = {
        "shuffled": [
            _with(case, _changed(case, _shuffled(time, index), quantity))
            for index, (case, time) in enumerate(zip(cases, times, strict=True))
        ]
    }
    clusters = [result.member.workload for result in results]
    if len(set(clusters)) > 1:
        means = np.array([np.nanmean(time) for time in times])
        others = [float(means[[name != own for name in clusters]].mean()) for own in clusters]
        cases_by_control["other-runs"] = [
            _with(case, _changed(case, np.full(len(time), mean), quantity))
            for case, time, mean in zip(cases, times, others, strict=True)
        ]
    if not all(result.copied for result in results):
        cases_by_control["observed"] = [_with(case, _changed(case, None, observed=True)) for case in cases]
    return cases_by_control


def _with(case: Case, run: Run) -> Case:
    return replace(case, predicted=(run,))


def _times(run: Run, quantity: str) -> FloatArray:
    jobs = run.table("jobs")
    return np.asarray(jobs["start" if quantity == "wait" else "end"] - jobs["submit"], dtype=np.float64)


def _shuffled(times: FloatArray, seed: int) -> FloatArray:
    """Return the times in another order. The place of unknown ones, those of jobs that never started, is kept."""
    shuffled, known = times.copy(), np.isfinite(times)
    shuffled[known] = np.random.default_rng(seed).permutation(times[known])
    return shuffled


def _changed(case: Case, times: FloatArray | None, quantity: str = "wait", *, observed: bool = False) -> Run:
    """Return the first prediction of a case with other waits or responses (s, as in the real run) or run times."""
    base = case.predicted[0]
    # Runs with frames would convert them for each of the many uses of their tables.
    jobs, allocations = (base.table(name).frame() for name in ("jobs", "allocations"))
    real = case.real[0].table("jobs").frame()
    order = pd.Series(np.arange(len(real)), index=real["job_id"]).reindex(jobs["job_id"]).to_numpy()
    ran = (jobs["end"] - jobs["start"]).to_numpy(dtype=np.float64)
    if observed:
        ran = (real["end"] - real["start"]).to_numpy(dtype=np.float64)[order]
    if times is not None:
        at = jobs["submit"].to_numpy(dtype=np.float64) + times[order]
        if quantity == "wait":
            jobs["start"] = at
        else:
            jobs["start"] = np.minimum(jobs["start"], at)  # a shuffled response may be shorter than the wait
            ran = at - jobs["start"].to_numpy(dtype=np.float64)
    jobs["end"] = jobs["start"].to_numpy(dtype=np.float64) + ran
    # The allocations of a job keep their places in it: those of a malleable job are still a staircase.
    before, after = (
        table.set_index("job_id")[["start", "end"]].reindex(allocations["job_id"]).to_numpy(dtype=np.float64).T
        for table in (base.table("jobs").frame(), jobs)
    )
    length = before[1] - before[0]
    factor = np.divide(after[1] - after[0], length, out=np.zeros(len(length)), where=length > 0)
    moved = allocations.assign(
        **{name: after[0] + (allocations[name].to_numpy() - before[0]) * factor for name in ("start", "end")}
    )
    return Run(base.info, jobs, moved, base.table("reconfigurations"))


# -- the board


OBSERVED = "observed.yaml"  # the experiment file of a data set without the planned run times, beside that with them


@dataclass(frozen=True)
class Entry:
    """A simulator on the board."""

    kind: Kind
    simulator: SuiteSimulator

    def named(self, score: Score) -> Score:
        """Return a score with the name and the version of the simulator, which a table of its output does not have."""
        if self.kind != "entered" or program_of(score):
            return score
        return score.model_copy(update={"program": self.simulator.name, "version": self.simulator.spec.version})


def build(
    folder: Path,
    sources: Sequence[Path],
    entries: Sequence[EntryFile],
    only: Sequence[str] = (),
    on_dataset: Callable[[str], None] = lambda name: None,
    earlier: Board | None = None,
) -> tuple[Board, dict[str, str]]:
    """Return the board of the fetched data sets, and data set -> the reason why it is missing.

    Args:
        folder: folder of the copies and the predictions, which are not made again.
        sources: folders with local copies.
        entries: files of entries: the first one is that of tracebed.
        only: names of the data sets; empty for all.
        on_dataset: called with the name of the data set that is scored now.
        earlier: board whose scores stay: those of other data sets, and of entries by other files. With files of
            entries, the data sets of the earlier board are scored for these entries only.

    Raises:
        InputError: a name in `only` is unknown, there is no copy of any data set, or an entry is invalid.
    """
    facts = dict(earlier.datasets) if earlier else {}
    scores = list(earlier.scores) if earlier else []
    by_files = earlier is not None and len(entries) > 1
    scored, missing = False, {}
    for name in [dataset_named(each).name for each in only] or datasets():
        if not dataset_named(name).suite or (by_files and not any(each.predicts(name) for each in entries[1:])):
            continue
        try:
            file = _copy(name, folder / name, sources)
        except InputError as error:
            missing[name] = f"{error.what} ({error.hint})" if error.hint else error.what
            continue
        on_dataset(name)
        known = facts.get(name) if by_files else None
        facts[name], new_scores = _score_dataset(name, file, entries, known)
        tried = {each.entry for each in new_scores} | facts[name].failed.keys()
        others = [
            each
            for each in scores
            if each.dataset != name or (each.entry not in tried and (known or each.kind == "entered"))
        ]
        scores, scored = others + new_scores, True
    if not scored:
        what = next(iter(missing.values()), "no data set is chosen")
        raise InputError(f"no data set can be scored: {what}", hint="give a folder with copies: --from FOLDER")
    order = list(facts)
    scores.sort(key=lambda each: order.index(each.dataset))
    day = datetime.now(UTC).date().isoformat()
    return Board(date=day, version=version(), datasets=facts, scores=scores), missing


def _copy(name: str, folder: Path, sources: Sequence[Path]) -> Path:
    """Return the experiment file of a data set: that of an earlier copy, or of a new one from the sources."""
    file = folder / SUITE
    if file.is_file() and file.read_text(encoding="utf-8") == dataset_named(name).suite:
        return file
    return fetch_from(name, folder, sources)


def _score_dataset(
    name: str, file: Path, entries: Sequence[EntryFile], known: Facts | None
) -> tuple[Facts, list[Score]]:
    """Return the facts of a data set, and the scores of all entries; with `known` facts, of those by files only."""
    suite = _suite(file)
    own = _entries(name, suite, entries)
    if known is not None:
        own = {key: each for key, each in own.items() if each.kind == "entered"}
    failed: dict[str, str] = {}
    cases: dict[tuple[Track, str], list[Case]] = {}
    for track, variant in _variants(name, suite):
        # Outputs that exist are one prediction, whatever the run times of the workload are.
        chosen = {
            key: each.simulator for key, each in own.items() if track == "planned" or each.simulator.spec.kind != "runs"
        }
        output = file.parent / track
        predictions, without = predict_suite(replace(variant, simulators=chosen), output)
        failed |= without
        cases |= {(track, entry): each for entry, each in cases_of(variant, predictions, output).items()}
    scores: list[Score] = []
    if known is None:
        base = next(each for (_, entry), each in cases.items() if own[entry].simulator.spec.kind == TRACEBED)
        made = validate(base, suite.tolerances)
        noise = noise_of(made)
        scores = ceiling_of(name, made.cases, suite.tolerances)
    else:
        noise = known.noise
    for (_, entry), each in cases.items():
        try:
            unnamed = scores_of(name, entry, own[entry].kind, each, suite.tolerances, noise)
            scores += [own[entry].named(score) for score in unnamed]
        except InputError as error:
            failed[entry] = error.what
    if known is not None:
        kept = {entry: why for entry, why in known.failed.items() if entry not in own}
        return known.model_copy(update={"failed": kept | failed}), scores
    for control, each in controls(base, made.cases, QUANTITIES[dataset_named(name).measure]).items():
        scores += scores_of(name, control, "control", each, suite.tolerances, noise)
    return _facts(name, made, failed, noise), scores


def _suite(file: Path) -> Suite:
    """Return the suite of a data set. Its files may be runs: commands get each workload in one format."""
    loaded = load_experiment(str(file))
    suite = load_suite(loaded, loaded.selected({}), file.parent, {})
    cases = {name: replace(case, file=None) for name, case in suite.cases.items()}
    return replace(suite, cases=cases)


def _variants(name: str, suite: Suite) -> Iterator[tuple[Track, Suite]]:
    """Yield the suite of a data set, and the same suite with the observed run times where it has both."""
    yield "planned", suite
    recorded = suite.file.experiment.recorded
    if recorded is not None and (recorded.planned is not None or dataset_named(name).observed):
        raw = suite.file.source.raw
        file = suite.file.folder / OBSERVED
        # The workload of the file of planned run times is that of the first run without it.
        own = {key: value for key, value in raw["recorded"].items() if key != "planned"}
        own |= {} if recorded.planned is not None else {"run_times": "observed"}
        with replacing(file) as stream:
            stream.write(yaml.safe_dump(raw | {"recorded": own}, sort_keys=False).encode())
        yield "observed", _suite(file)


def _entries(name: str, suite: Suite, files: Sequence[EntryFile]) -> dict[str, Entry]:
    """Return the entries on a data set: those of its suite, then those of the files. Names must differ."""
    entries = {
        each: Entry("published" if simulator.spec.kind == "runs" else "simulated", simulator)
        for each, simulator in suite.simulators.items()
    }
    shipped = files[0]
    for file in files:
        for simulator in file.simulators(name, suite.file.folder):
            if simulator.name in entries and file is not shipped:
                what = f"the board has an entry {simulator.name} on {name}"
                raise InputError(what, where=file.source.where, hint="rename yours")
            entries.setdefault(simulator.name, Entry("simulated" if file is shipped else "entered", simulator))
    return entries


def _facts(name: str, made: Validation, failed: dict[str, str], noise: dict[str, float]) -> Facts:
    chosen = dataset_named(name)
    runs = {repetition.sha256: repetition.excluded for each in made.cases for repetition in each.repetitions}
    return Facts(
        **chosen.model_dump(include={"title", "institution", "source", "commit", "licence", "citation", "note"}),
        cases=len(made.cases),
        real_runs=len(runs),
        clusters=len({each.member.workload for each in made.cases if not each.calibration}),
        unhealthy=sum(bool(excluded) for excluded in runs.values()),
        noise=noise,
        malleable=_malleable(made, lambda each: each.real),
        failed=failed,
    )
