"""What if: the backtest of a log under its slurm.conf, and the effect of a change, or of malleable jobs.

The effect is that on the same jobs in both clusters: jobs that the changed cluster refuses are left out of both.
Otherwise the others would wait less because less work is done, not because the cluster is better.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tracebed.converters.description import local_dates
from tracebed.converters.perturbation import Perturbation
from tracebed.converters.workload import BoolArray, FloatArray, Workload
from tracebed.ground.display import counted, json_values
from tracebed.ground.errors import InputError
from tracebed.machine.calendar import Calendar
from tracebed.operators.whatif.change import Change, changed_cluster
from tracebed.operators.whatif.classes import Answer, Changed, JobClass, classes_of, headlines
from tracebed.operators.whatif.log import Log, log_of
from tracebed.operators.whatif.malleable import (
    MEASURED,
    MEASURED_WORDS,
    Malleable,
    candidates_of,
)
from tracebed.operators.whatif.members import Predicted, Side, ensemble, mean_of, predictions
from tracebed.operators.whatif.outages import OutageEffect, calendar_of, effect_of
from tracebed.operators.whatif.refused import Refused, Remedy, beyond
from tracebed.operators.whatif.resizing import FIT, Resizing, resizing
from tracebed.operators.whatif.shares import percent, spread
from tracebed.orchestrator.runs.steps import Steps
from tracebed.orchestrator.simulation.outages import OutageModel
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.slurm.conf import read
from tracebed.slurm.conf_lines import lines_of
from tracebed.slurm.machine import OVER_S, SlurmCluster
from tracebed.slurm.simulation.demands import longest_limits
from tracebed.validation.moving_average import WINDOW_S, moving_means, window_length, window_starts

SCHEMA = "tracebed-whatif/1"
BINS = 400
"""Bins of the courses of queue length and utilization."""
MOST_WINDOWS = 1000
MOST_PARTITIONS = 3
"""Partitions with columns in the table of several changes."""
WIDE = "with more cores on a node than any node has"
MISFIT = 0.10
"""Share of the jobs of a log that cannot run on the cluster, from which the slurm.conf is not that of the log."""
HOUR_S = 3600.0
IN_SOME = "some of the predictions never start it"


@dataclass(frozen=True)
class WhatIf:
    """A backtest, and the effect of a change if there is one.

    Attributes:
        name: name of the log.
        change: the change in words; empty: there is none.
        partitions: the partitions that the change names.
        machines: the cluster as it was, and the changed one if there is a change.
        classes: classes of jobs, all jobs first.
        jobs: the judged jobs: `job_id`, `submit` (s), `partition`, `queue`, `group`, `cores`, `node_class` (class of
            the nodes on which the first member starts the job), and the waits `logged`, `predicted` and `changed` (s,
            means over the members; NaN: the changed cluster refuses the job).
        refused: the work that the changed cluster does not do; None without a change.
        windows: the moving average of the wait: `time` (s, middle of a window), and a column for each of the waits. If
            the change refuses jobs, it is that of the others.
        courses: `time` (s, beginning of a bin), and `waiting_...` (jobs) and `busy_...` (share of the cores) of each.
        members: members of each ensemble.
        perturbation: largest changes of their input.
        notes: assumptions about the log, and jobs that are left out.
        not_modeled: what is not modeled of both files, a sentence for each group of settings.
        outages: what the outages of nodes do to the backtest; None: none are given.
        malleable: what malleability would bring; None: no job is malleable.
        alternatives: the answers to several changes, each alone, which share this backtest; empty: there is one change,
            or none.
        unix_start: Unix time of second 0; None: unknown.
        zone: time zone of the log.
    """

    name: str
    change: tuple[str, ...]
    partitions: tuple[str, ...]
    machines: tuple[SlurmCluster, ...]
    classes: tuple[JobClass, ...]
    jobs: pd.DataFrame
    refused: Refused | None
    windows: pd.DataFrame
    window_s: float
    courses: pd.DataFrame
    members: int
    perturbation: Perturbation
    notes: tuple[str, ...]
    not_modeled: tuple[str, ...]
    unix_start: float | None
    zone: str
    outages: OutageEffect | None = None
    malleable: Resizing | None = None
    alternatives: tuple[WhatIf, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """The answers, a sentence each: refused work, the changed partitions, all jobs, and others; or the backtest.

        The last one is what the outages do to the backtest, if there are any. Of several changes, the first sentence
        names that with the largest fall, and a sentence follows for each.
        """
        if self.alternatives:
            found = [f"with {each.title}: {sentence}" for each in self.alternatives for sentence in each.main]
            return [_largest_fall(self.alternatives), *found]
        if self.malleable is not None:
            parts = [each.sentence for each in self.headlines if each.by == "partition" and self.change]
            return [*self.malleable.sentences, *parts]
        outages = [] if self.outages is None else [self.outages.sentence]
        if self.refused is None:
            return [self.backtest, *outages]
        answers = [] if self.refused.much else [each.sentence for each in self.headlines]
        return [*filter(None, [self.refused.sentence]), *answers, *outages]

    @property
    def title(self) -> str:
        """The change in words; empty: there is none."""
        if self.alternatives:
            return f"{counted(len(self.alternatives), 'change')}, each alone"
        return "; ".join(self.change)

    @property
    def main(self) -> list[str]:
        """Of `sentences`, those about refused work, the partitions that the change names, and all jobs."""
        named = [each for each in self.headlines if each.by == "all" or each.name in self.partitions]
        answers = [] if self.refused is None or self.refused.much else [each.sentence for each in named]
        return [*([self.refused.sentence] if self.refused and self.refused.sentence else []), *answers]

    @property
    def answer(self) -> str:
        """The answer in one sentence: about all jobs, with the refused work, or about the change with most effect."""
        if self.alternatives or self.malleable is not None or self.refused is None or self.refused.much:
            return self.sentences[0]
        return "; ".join(filter(None, [self.classes[0].sentence, self.refused.sentence]))

    @property
    def of_changes(self) -> tuple[list[str], list[list[str]]]:
        """Columns and rows of the table of several changes: effects on all jobs, and on the largest partitions."""
        largest = sorted((each for each in self.classes if each.by == "partition"), key=lambda each: -each.jobs)
        names = [self.classes[0].title, *(each.title for each in largest[:MOST_PARTITIONS])]
        rows = []
        for answer in self.alternatives:
            classes = {each.title: each for each in answer.classes}
            own = [classes[name] for name in names]
            effects = [f"[{each.effect_text}]" if each.doubt and not each.much else each.effect_text for each in own]
            assert answer.refused is not None
            refused = sum(answer.refused.shares)
            rows.append([answer.title, *effects, classes[names[0]].doubt, f"{percent(refused)} %" if refused else "-"])
        return ["change", *names, "inconclusive", "work refused"], rows

    @property
    def comparison(self) -> str:
        """Which jobs and members are compared, in words; empty: all of the backtest, or none, or there is no change."""
        every = self.classes[0]
        if self.refused is None or self.refused.much:
            return ""
        found = []
        if self.malleable is not None:
            cell = self.malleable.cells[0]
            of_backtest = f"predicted and error are of the {self.members} members of the backtest"
            found.append(f"changed and effect are of {cell.seeds * cell.draws} members, {of_backtest}")
        if every.compared < every.jobs:
            jobs = f"{every.compared:,} of the {every.jobs:,} judged jobs"
            found.append(f"changed and effect are of {jobs}, those that start in both clusters")
        return "; ".join(found)

    @property
    def contrast(self) -> str:
        """What the changed side of figures is, in words."""
        return "the same under the changed slurm.conf" if self.malleable is None else "the same with malleable jobs"

    @property
    def headlines(self) -> list[JobClass]:
        """The classes of `sentences`."""
        return headlines(self.classes, self.partitions)

    @property
    def backtest(self) -> str:
        """The error of the model on the log in words."""
        every = self.classes[0]
        moving = "" if every.moving is None else f"; moving average of the wait: {every.moving.sentence}"
        error = "unknown, since no job waited" if math.isnan(every.error) else spread(every.error)
        return f"the model's own error on this log is {error}{moving}"

    @property
    def span(self) -> str:
        """The time of the judged jobs in words, with the time zone."""
        ends = self.jobs["submit"].iloc[[0, -1]].to_numpy(dtype=np.float64)
        dates = local_dates(ends, self.unix_start, self.zone)
        if dates is None:
            return f"{(ends[1] - ends[0]) / 3600:,.3g} h, dates unknown"
        first, last = (f"{date:%Y-%m-%d %H:%M}" for date in dates)
        return f"{first} to {last}, time zone {self.zone}"

    def to_json(self) -> dict[str, Any]:
        """Return the document of `tracebed whatif --json`."""
        found = {
            "schema": SCHEMA,
            "log": {"name": self.name, "time_zone": self.zone, "unix_start": self.unix_start, "jobs": len(self.jobs)},
            "change": list(self.change),
            "clusters": [
                {
                    "nodes": len(machine.nodes),
                    "cores": cores_of(machine),
                    "partitions": [each.name for each in machine.partitions],
                }
                for machine in self.machines
            ],
            "members": self.members,
            "perturbation": vars(self.perturbation),
            "backtest": self.backtest,
            "refused": None if self.refused is None else self.refused.to_json(),
            "sentences": self.sentences,
            "classes": [each.to_json() for each in self.classes],
            "notes": list(self.notes),
            "not_modeled": list(self.not_modeled),
            "outages": None if self.outages is None else self.outages.to_json(),
            "malleable": None if self.malleable is None else self.malleable.to_json(),
            "alternatives": [
                {
                    "change": list(each.change),
                    "refused": None if each.refused is None else each.refused.to_json(),
                    "sentences": each.sentences,
                    "classes": [own.to_json() for own in each.classes],
                }
                for each in self.alternatives
            ],
        }
        return dict(json_values(found))


def _largest_fall(answers: Sequence[WhatIf]) -> str:
    """Return the sentence about the change with the largest fall of the waits of all jobs that is an answer."""
    falls = [each for each in answers if each.classes[0].answer is Answer.FALL]
    if not falls:
        return f"none of the {len(answers)} changes has an answer that the waits of all jobs fall"
    best = min(falls, key=lambda each: each.classes[0].shares[0])
    return f"of {len(answers)} changes, {best.title} has the largest fall: {best.classes[0].sentence}"


def whatif_each(
    workload: Workload,
    files: Sequence[Path],
    changes: Sequence[Change],
    *,
    members: int = 16,
    on_progress: Callable[[int], None] | None = None,
    **how: Any,
) -> WhatIf:
    """Return the backtest, with the answer to each of several changes alone as `alternatives`.

    The arguments are those of `whatif`. The changes share the predictions of the cluster as it was.
    """
    zone = workload.provenance.time_zone or ""
    base = read(*files, plain=True, zone=zone)
    for change in changes:  # an invalid one is reported before the simulations
        changed_cluster(base, files, change, zone)
    total, done = (1 + (how.get("outages") is not None) + len(changes)) * members, itertools.count(1)
    how |= {"members": members, "shared": {}}
    if on_progress is not None:
        how["on_progress"] = lambda _: on_progress(min(next(done), total))
    found, *answers = (whatif(workload, files, change, **how) for change in (Change(), *changes))
    notes = [f"{each.title}: {note}" for each in answers for note in each.notes if note not in found.notes]
    unmodeled = dict.fromkeys(text for each in (found, *answers) for text in each.not_modeled)
    return replace(found, alternatives=tuple(answers), notes=(*found.notes, *notes), not_modeled=tuple(unmodeled))


def whatif(
    workload: Workload,
    files: Sequence[Path],
    change: Change,
    *,
    name: str = "log",
    outages: Calendar | OutageModel | None = None,
    malleable: Malleable | None = None,
    costs: tuple[Overheads, str] = (MEASURED, MEASURED_WORDS),
    members: int = 16,
    perturbation: Perturbation,
    workers: int | None = None,
    on_progress: Callable[[int], None] | None = None,
    shared: dict[str, list[Predicted]] | None = None,
) -> WhatIf:
    """Predict a log under its slurm.conf and under a changed one, and compare both with each other and with the log.

    The arguments are those of `tracebed.api.whatif`; `files` is what `slurm.conf.read` takes, and None `workers` are as
    many as there are cores. With `malleable` jobs, there is no change, and there are no outages; `costs`: what resizes
    cost, and the origin of these times in words. `shared` are the predictions of the cluster as it was, with the
    outages and without them, which several changes share; they are added if they are missing.
    """
    shared = {} if shared is None else shared
    zone = workload.provenance.time_zone or ""
    clusters = [read(*files, plain=True, zone=zone)]
    slurm_machines = [clusters[0].known_machine()]
    void: list[str] = []
    if change:
        changed_conf, void = changed_cluster(clusters[0], files, change, zone)
        clusters.append(changed_conf)
        slurm_machines.append(changed_conf.known_machine())
    conf = clusters[0].where
    machines = [machine.cluster for machine in slurm_machines]
    log = log_of(workload, machines[0], name)
    _check_partitions(log, machines[0], name, conf)
    if malleable is not None:  # an invalid condition or share is reported before the simulations
        candidates_of(log.workload, machines[0], malleable.where, malleable.release).check(malleable.shares)
    origin = workload.provenance.unix_start
    known: dict[str, Any] = {} if origin is None else {"epoch_s": float(origin)}
    if malleable is not None:
        known["release"] = malleable.release
    edges = np.linspace(log.begin, log.end, BINS + 1)
    sides = [Side(machine, known, longest_limits(log.workload, machine.cluster)) for machine in slurm_machines]
    out_notes: list[str] = []
    if outages is not None:
        calendars, out_notes = calendar_of(outages, log.workload, slurm_machines, name)
        sides = [replace(side, outages=calendar) for side, calendar in zip(sides, calendars, strict=True)]
    total = (len(sides) + (outages is not None)) * members  # without refused jobs, which need more members
    if malleable is not None:
        total += malleable.simulations(members)
    done = itertools.count(1)

    def tick(_: int) -> None:
        if on_progress:
            on_progress(min(next(done), total))

    predict = partial(ensemble, perturbation=perturbation, edges=edges, workers=workers, on_progress=tick)
    base = shared.get("base") or predict(log.workload, sides[0], range(members))
    shared["base"] = base
    misfits = _misfits(log, base[0], machines[0], name, conf)
    notes = [*void, *log.notes, *out_notes, *misfits, *_overfull(log, base[0], machines[0])]
    waits = np.stack([member.wait for member in base])
    rows = log.judged & np.isfinite(waits).all(axis=0)
    if not rows.any():
        raise InputError("no judged job starts in all predictions", where=name, hint="check the slurm.conf")
    jobs, changed, found = _jobs(log, base[0], waits.mean(axis=0))[rows].reset_index(drop=True), None, [base]
    effect_of_outages = None
    if outages is not None:
        idle = shared.get("idle") or predict(log.workload, replace(sides[0], outages=None), range(members))
        shared["idle"] = idle
        if never := _stranded(log, waits, idle):
            notes.append(f"{counted(never, 'judged job')} never start in a prediction with the outages: left out")
        own = _classes_of_outages(log, waits, idle, rows)
        hits = [member.hit for member in base]
        effect_of_outages = effect_of(calendars[0], slurm_machines[0], (log.begin, edges[-1]), hits, own)
    if change:
        effect = _effect_of(log.workload, base, (sides[0], replace(sides[1], remedy=change.remedy)), predict)
        changed = effect.changed.of(rows)
        jobs = jobs.assign(changed=changed.after.mean(axis=0))
        found.append(effect.members)
    answer = None
    if malleable is not None:
        starts = np.isfinite(base[0].wait)
        candidates = candidates_of(log.workload, machines[0], malleable.where, malleable.release, starts)
        candidates.check(malleable.shares)
        run = partial(
            predictions, log.workload, perturbation=perturbation, edges=edges, workers=workers, on_progress=tick
        )
        answer, pairs = resizing(log, base, sides[0], malleable, candidates, costs, run)
        notes += [*candidates.notes, *clusters[0].of_layer, *answer.notes]
        if not answer.sweep:
            changed = replace(pairs.changed, much=answer.cells[0].much).of(rows)
            jobs = jobs.assign(changed=changed.after.mean(axis=0))
            found = [list(pairs.before), list(pairs.after)]
    classes = classes_of(jobs, waits[:, rows], changed)
    refused = effect.refused if change else None
    if answer is not None and not answer.sweep:
        classes = [replace(each, most_error=FIT) for each in classes]
        refused = _nothing_refused(log, base[0])
    windows, window_s = _windows(jobs, changed)
    return WhatIf(
        name=name,
        change=change.words(lines_of(Path(conf))) if answer is None else answer.words,
        partitions=change.partitions,
        machines=tuple(machines),
        classes=tuple(classes),
        jobs=jobs,
        refused=refused,
        windows=windows,
        window_s=window_s,
        courses=_courses(log, found, [*machines, machines[0]], edges),
        members=members,
        perturbation=perturbation,
        notes=tuple(notes),
        not_modeled=tuple(dict.fromkeys(text for each in clusters for text in each.differences)),
        unix_start=origin,
        zone=zone or "UTC",
        outages=effect_of_outages,
        malleable=answer,
    )


def _nothing_refused(log: Log, first: Predicted) -> Refused:
    """Return that no work of the log is refused: malleable jobs start at the size that they request."""
    ran = np.isfinite(log.workload.floats("logged_start")) & np.isfinite(first.wait)
    held = float((first.cores * first.run_time)[ran].sum() / HOUR_S)
    return Refused(Remedy.LEAVE_OUT, 0, 0.0, 0, 0.0, 0, held, {})


def _stranded(log: Log, waits: FloatArray, without: Sequence[Predicted]) -> int:
    """Return the number of judged jobs that start in all predictions without the outages, and not in all with them."""
    start = np.isfinite([member.wait for member in without]).all(axis=0)
    return int((log.judged & start & ~np.isfinite(waits).all(axis=0)).sum())


def _classes_of_outages(log: Log, waits: FloatArray, without: Sequence[Predicted], rows: BoolArray) -> list[JobClass]:
    """Return the classes of the judged jobs that start in all predictions: without the outages, and changed by them."""
    before = np.stack([member.wait for member in without])
    rows = rows & np.isfinite(before).all(axis=0)
    held = without[0].cores * np.maximum(without[0].run_time, 1.0)
    changed = Changed(before, waits, np.zeros(len(rows)), held).of(rows)
    jobs = _jobs(log, without[0], before.mean(axis=0))[rows].reset_index(drop=True)
    return classes_of(jobs, before[:, rows], changed)


class _Effect(NamedTuple):
    """The effect of a change on all jobs of the log, the members of the changed cluster, and what it refuses."""

    changed: Changed
    members: list[Predicted]
    refused: Refused


def _effect_of(
    workload: Workload,
    base: Sequence[Predicted],
    sides: Sequence[Side],
    predict: Callable[[Workload, Side, range], list[Predicted]],
) -> _Effect:
    """Return the effect of a change.

    `base` are the members of the log in the cluster as it was. `sides` are this cluster, and the changed one. The
    function `predict` returns the members of a workload on a cluster.
    """
    new = sides[1]
    (probe,) = predict(workload, new, range(1))
    kept = ~(np.isfinite(base[0].wait) & ~np.isfinite(probe.wait))
    if kept.all():
        before, after = base, [probe, *predict(workload, new, range(1, len(base)))]
    else:
        some = Workload(workload.columns.take(kept), workload.provenance)
        before, after = (predict(some, side.of(kept), range(len(base))) for side in sides)
    waits = np.full((2, len(base), len(workload)), np.nan)
    waits[:, :, kept] = [[member.wait for member in members] for members in (before, after)]
    refused = ~kept | (np.isfinite(waits[0]).all(axis=0) & ~np.isfinite(waits[1]).all(axis=0))
    held = base[0].cores * base[0].run_time
    shorter = np.nan_to_num(base[0].run_time - probe.run_time)
    cut = (shorter > OVER_S) & ~refused
    lost = np.where(refused, held, np.where(cut, base[0].cores * shorter, 0.0))
    ran = np.isfinite(workload.floats("logged_start")) & np.isfinite(base[0].wait)
    adapted = beyond(workload, new.longest) if new.remedy is not Remedy.LEAVE_OUT else np.zeros(len(workload), bool)
    found = Refused(
        new.remedy,
        int((refused & ran).sum()),
        float(lost[refused & ran].sum() / HOUR_S),
        int((cut & ran).sum()),
        float(lost[cut & ran].sum() / HOUR_S),
        int((adapted & ran).sum()),
        float(held[ran].sum() / HOUR_S),
        Counter(probe.reasons.get(job, IN_SOME) for job in np.flatnonzero(refused & ran).tolist()),
    )
    return _Effect(Changed(waits[0], waits[1], lost, held, found.much), after, found)


def _check_partitions(log: Log, machine: SlurmCluster, name: str, conf: str) -> None:
    """Raise InputError if many jobs are in partitions that the cluster lacks."""
    names = log.workload.partitions()
    gone = names[[machine.partition(each) is None for each in names]].value_counts()
    if gone.sum() >= MISFIT * len(names):
        worst = ", ".join(f"{partition} {jobs:,}" for partition, jobs in gone.head(4).items())
        what = f"{gone.sum():,} of {len(names):,} jobs are in partitions that {conf} lacks: {worst}"
        own = ", ".join(each.name for each in machine.partitions)
        hint = f"give the slurm.conf of the log, with its partitions; this one has {own}"
        raise InputError(what, where=name, hint=hint)


def _misfits(log: Log, member: Predicted, machine: SlurmCluster, name: str, conf: str) -> list[str]:
    """Return what cannot run on the cluster, as notes. A share of the jobs of `MISFIT` or more is an InputError."""
    found = Counter({WIDE: log.wide})
    examples: dict[str, str] = {}
    for (partition, reason), count in member.rejected.most_common():
        kind = reason if "no partition" in reason else f"partition {partition}: {reason.partition(': ')[0]}"
        found[kind] += count
        examples.setdefault(kind, reason.partition(": ")[2])
    total, jobs = sum(found.values()), len(log.workload) + log.wide
    worst = "; ".join(
        f"{counted(count, 'job')}, {kind}" + (f" ({examples[kind]})" if examples.get(kind) else "")
        for kind, count in found.most_common(4)
        if count
    )
    if total >= MISFIT * jobs:
        partitions = ", ".join(each.name for each in machine.partitions)
        largest = max(machine.cores_of(kind) for kind in machine.kinds)
        what = f"{total:,} of {jobs:,} jobs cannot run on the cluster of {conf}: {worst}"
        hint = (
            f"give the slurm.conf of the log; this one has the partitions {partitions}, nodes of up to {largest} cores"
        )
        raise InputError(what, where=name, hint=hint)
    what = f"{total:,} of {jobs:,} jobs cannot run on the cluster of the slurm.conf and are left out: {worst}"
    return [what] if total else []


def _overfull(log: Log, member: Predicted, machine: SlurmCluster) -> list[str]:
    """Return as a note which partition is too small for the jobs that ran in it at a time, if one is."""
    names, found = log.workload.partitions().to_numpy(), {}
    for number, partition in enumerate(machine.partitions):
        most = _busy(log, member, names == partition.name).values.max(initial=0.0)
        size = sum(machine.cores_of(machine.nodes[node][1]) for node in machine.members(number))
        if most > size:
            what = f"jobs of partition {partition.name} held up to {most:,.0f} cores at a time, and it has {size:,}"
            found[most / size] = f"{what}: the slurm.conf is not that of the log, or jobs shared cores"
    return [found[max(found)]] if found else []


def _busy(log: Log, member: Predicted, rows: BoolArray) -> Steps:
    """Return the cores that some of the jobs of the log held."""
    start, end = log.workload.floats("logged_start"), log.workload.floats("logged_end")
    end = np.where(np.isfinite(end), end, start + log.workload.floats("run_time"))
    rows = rows & np.isfinite(start)
    return Steps.count(start[rows], end[rows], member.cores[rows])


def _jobs(log: Log, first: Predicted, predicted: FloatArray) -> pd.DataFrame:
    """Return the table of jobs, with the mean wait of the ensemble, and the classes of nodes of its first member."""
    texts = {name: log.workload.texts(name).to_numpy() for name in ("job_id", "queue", "group")}
    texts["partition"] = log.workload.partitions().to_numpy()
    texts["node_class"] = first.node_class  # a log does not say which nodes a job held
    submit = log.workload.floats("submit_time")
    return pd.DataFrame({**texts, "submit": submit, "cores": log.cores, "logged": log.wait, "predicted": predicted})


def _windows(jobs: pd.DataFrame, changed: Changed | None) -> tuple[pd.DataFrame, float]:
    """Return the moving averages of the waits, and the length of a window, s."""
    if changed is not None and changed.compared.any():
        jobs = jobs.assign(predicted=changed.before.mean(axis=0))[changed.compared]
    else:
        jobs = jobs.drop(columns="changed", errors="ignore")
    names = [name for name in ("logged", "predicted", "changed") if name in jobs]
    submit = jobs["submit"].to_numpy(dtype=np.float64)
    length = max(window_length(submit, WINDOW_S), 1.0)
    starts = window_starts(submit, length)
    starts = starts[:: max(1, len(starts) // MOST_WINDOWS)]
    means, _ = moving_means(submit, np.stack([jobs[name].to_numpy(dtype=np.float64) for name in names]), starts, length)
    return pd.DataFrame({"time": starts + length / 2, **dict(zip(names, means, strict=True))}), length


def _courses(
    log: Log, found: Sequence[Sequence[Predicted]], machines: Sequence[SlurmCluster], edges: FloatArray
) -> pd.DataFrame:
    """Return the courses of queue length and utilization: logged, and means over the members."""
    start, submit = log.workload.floats("logged_start"), log.workload.floats("submit_time")
    ran = np.isfinite(start)
    queue = Steps.count(submit, np.where(ran, start, edges[-1]))  # the others wait when the log ends
    busy = _busy(log, found[0][0], ran)
    size = cores_of(machines[0])
    columns = {"time": edges[:-1], "waiting_logged": queue.means(edges), "busy_logged": busy.means(edges) / size}
    for name, members, machine in zip(("predicted", "changed"), found, machines, strict=False):
        columns[f"waiting_{name}"] = mean_of(member.waiting for member in members)
        columns[f"busy_{name}"] = mean_of(member.busy for member in members) / cores_of(machine)
    return pd.DataFrame(columns)


def cores_of(machine: SlurmCluster) -> int:
    """Return the number of cores of a cluster."""
    return sum(machine.cores_of(kind) for _, kind in machine.nodes)


def document(found: WhatIf) -> str:
    """Return the JSON document as text."""
    return json.dumps(found.to_json(), indent=2) + "\n"
