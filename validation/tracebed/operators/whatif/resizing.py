"""What malleability would bring: the log with some jobs malleable under a layer that resizes them, beside the same log.

Each pair is a member of the backtest and the same member (draws, perturbed input) with malleable jobs, which a seed
draws. There is a pair for each seed, each draw of a seed and each speedup model, and an interval is one over all of
them. Six seeds have a draw each; fewer have several, since two draws of a seed differ less than two seeds. The jobs
that are malleable in a pair are the same on both of its sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.workload import BoolArray, FloatArray
from tracebed.ground.display import cell as number_text
from tracebed.ground.display import effect
from tracebed.operators.whatif.classes import ALL, KIND, Answer, Changed, JobClass, shares_of
from tracebed.operators.whatif.log import Log
from tracebed.operators.whatif.malleable import MODELS, Candidates, Malleability, Malleable
from tracebed.operators.whatif.members import Held, Predicted, Side
from tracebed.operators.whatif.refused import MOST
from tracebed.operators.whatif.shares import log_error, percent, spread
from tracebed.orchestrator.runs.steps import Steps
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.slurm.resize_layer import EXCLUSIVE, GIVEN, GRES, SHARED
from tracebed.validation.significance import PERCENTS, paired

HOUR_S, DAY_S = 3600.0, 86400.0
NEARLY = 0.995
"""Share from which on a fall survives as a whole: resizes that come later may also do better by chance."""
RESPONSES = "response times"
FIT = math.log(2.0)
"""Error of the model from which on there is no answer: resizes would shorten a queue of twice or half the length."""
DRAWN = "Slurm's phases and submissions"
RIGID, MALLEABLE = "jobs that stay rigid", "malleable jobs"

NOTED = (EXCLUSIVE, GIVEN, GRES, SHARED)
"""Reasons of the layer that the notes about the candidates have, too."""

Predict = Callable[[Sequence[tuple[Side, int]]], list[Predicted]]


@dataclass(frozen=True)
class Figure:
    """A figure of the malleable log beside that of the log as it was: means over the pairs."""

    name: str
    unit: str
    before: float
    after: float
    shares: tuple[float, float, float]
    """The change as a share, and the middle 95 % of that of the pairs; NaN: it is undefined."""

    @property
    def text(self) -> str:
        """The change with its interval in percent; a dash if it is undefined."""
        return "-" if math.isnan(self.shares[0]) else effect(*self.shares, 1.0)

    def to_json(self) -> dict[str, Any]:
        """Return the figure as JSON values."""
        own = {"name": self.name, "unit": self.unit, "before": self.before, "after": self.after}
        return own | dict(zip(("relative", "relative_low", "relative_high"), self.shares, strict=True))


@dataclass(frozen=True)
class Cell:
    """A policy and a share, with the costs of the resizes.

    Attributes:
        policy: policy of the layer.
        release: release of Slurm.
        share: share of the candidates that is malleable.
        jobs: number of malleable jobs.
        candidates: number of jobs that can be malleable.
        every_job: number of jobs of the log.
        seeds: number of seeds.
        draws: number of draws of each seed, of phases and perturbed input.
        where: the conditions on the jobs; empty: none.
        classes: waits of all jobs, of those that stay rigid, and of the malleable ones, as far as there are any.
        responses: their response times, wait and run time.
        models: speedup model -> change of the mean wait of all jobs as a share, and its interval.
        figures: further figures.
        killed: mean number of malleable jobs that reach their limit only with the resizes.
        killed_share: their share of the core hours of the log.
        bounded: how many malleable jobs of the first pair the layer does not resize, or not expand, and why.
    """

    policy: str
    release: float
    share: float
    jobs: int
    candidates: int
    every_job: int
    seeds: int
    draws: int
    where: str
    classes: tuple[JobClass, ...]
    responses: tuple[JobClass, ...]
    models: Mapping[str, tuple[float, float, float]]
    figures: tuple[Figure, ...]
    killed: float
    killed_share: float
    bounded: tuple[str, ...]

    @property
    def every(self) -> JobClass:
        """The waits of all jobs."""
        return self.classes[0]

    @property
    def much(self) -> bool:
        """Whether so much work reaches its limit that waits are not compared."""
        return self.killed_share > MOST

    @property
    def words(self) -> str:
        """The share and the policy in words."""
        jobs = "jobs" + (f" with {self.where}" if self.where else "")
        able = f"{percent(self.share)} % of the {self.candidates:,} {jobs} that can be malleable"
        return f"{able} ({self.jobs:,} of all {self.every_job:,}) under {self.policy} on Slurm {self.release:.2f}"

    @property
    def over(self) -> str:
        """What the interval is over, in words."""
        models = f"the speedup models {' and '.join(MODELS)}"
        if self.seeds == 1:
            return f"over {self.draws} draws of {DRAWN} and {models}, all with the same malleable jobs"
        draws = "" if self.draws == 1 else f", each with {self.draws} draws of {DRAWN},"
        return f"over {self.seeds} seeds{draws} and {models}"

    @property
    def sentence(self) -> str:
        """The answer for all jobs in words, or why there is none."""
        every, own = self.every, f"the model's own error on this log is {spread(self.every.error)}"
        if self.much:
            work = f"{self.killed:,.1f} jobs with {percent(self.killed_share)} % of the core hours"
            return f"with {self.words}: no answer: on average, {work} reach their limit because of the resizes"
        change, low, high = map(percent, every.shares)
        between = " to ".join(percent(abs(share)) for share in sorted(every.shares[1:], key=abs))
        match every.answer:
            case Answer.FALL | Answer.RISE as answer:
                size = percent(abs(every.shares[0]))
                what = f"the mean wait would {answer} by {size} % ({between} %, {self.over})"
                return f"on this cluster, with {self.words}, {what}; {own}"
            case Answer.EQUAL:
                return f"on this cluster, with {self.words}, no wait would change ({self.over})"
            case Answer.ERROR if every.unfit:
                why = f"the model does not fit this log: its own error is {spread(every.error)}, beyond a factor of 2"
            case Answer.ERROR:
                why = f"the error of the model exceeds the effect ({change} %, {low} to {high} %); {own}"
            case Answer.CHANCE:
                why = f"chance exceeds the effect ({change} %, {low} to {high} %, {self.over}); {own}"
            case _:
                why = "no job waits, in the log or as the cluster was"
        return f"with {self.words}: no answer: {why}"

    def to_json(self) -> dict[str, Any]:
        """Return the cell as JSON values."""
        names = (
            "policy",
            "release",
            "share",
            "jobs",
            "candidates",
            "every_job",
            "seeds",
            "draws",
            "killed",
            "killed_share",
            "sentence",
        )
        models = {
            name: dict(zip(("relative", "relative_low", "relative_high"), each, strict=True))
            for name, each in self.models.items()
        }
        return {name: getattr(self, name) for name in names} | {
            "classes": [each.to_json() for each in self.classes],
            "responses": [_of_response(each) for each in self.responses],
            "models": models,
            "figures": [each.to_json() for each in self.figures],
        }


@dataclass(frozen=True)
class Resizing:
    """What malleability would bring.

    Attributes:
        cells: a cell for each policy and each share above 0, at the costs of the resizes.
        free: the same cell with resizes without costs; None for a sweep.
        costs: the costs of resizes.
        source: the origin of the costs in words.
        shares: the shares, also 0.
        staircase: nodes that the malleable jobs hold, and other jobs waiting, in a day of the first pair: `time` (s),
            `before` and `after` (nodes) from this time on; None for a sweep.
    """

    cells: tuple[Cell, ...]
    free: Cell | None
    costs: Overheads
    source: str
    shares: tuple[float, ...]
    staircase: pd.DataFrame | None

    @property
    def sweep(self) -> bool:
        """Whether there are several shares or policies."""
        return self.free is None

    @property
    def words(self) -> tuple[str, ...]:
        """The change in words; empty for a sweep, whose classes are those of the backtest."""
        return () if self.sweep else (self.cells[0].words,)

    @property
    def notes(self) -> list[str]:
        """What holds for the answer besides."""
        notes = [f"resizes cost {_costs(self.costs)}, {self.source}; launches and ends are as in the log"]
        for each in self.cells:
            bounded = [text for text in each.bounded if not any(known in text for known in NOTED)]
            notes += [f"{each.policy}, {percent(each.share)} %, first seed: {text}" for text in bounded]
            if each.killed:
                jobs = f"{each.killed:,.1f} malleable jobs ({percent(each.killed_share)} % of the core hours)"
                what = f"on average, {jobs} reach their time limit due to resizes"
                notes.append(f"{each.policy}, {percent(each.share)} %: {what}")
        return notes

    @property
    def survival(self) -> float:
        """Share of the fall of the mean wait with free resizes that remains at the costs; NaN: there is no fall."""
        if self.free is None or self.free.much or self.cells[0].much or self.free.every.answer is not Answer.FALL:
            return math.nan
        return self.cells[0].every.shares[0] / self.free.every.shares[0]

    @property
    def sentences(self) -> list[str]:
        """The answers, a sentence each."""
        if self.free is None:
            return [each.sentence for each in self.cells if each.share == max(self.shares)]
        (cell,) = self.cells
        found = [cell.sentence]
        if cell.much:
            return found
        if not math.isnan(self.survival):
            size = f"without costs of resizes, it would fall by {percent(-self.free.every.shares[0])} %"
            part = f"{percent(self.survival)} % of the fall" if self.survival < NEARLY else "the fall"
            found.append(f"{part} survives at the costs {self.source}: {size}")
        if cell.every.unfit:
            return found
        return [*found, *(each.sentence for each in (*cell.classes[1:], *cell.responses) if each.effect is not None)]

    def to_json(self) -> dict[str, Any]:
        """Return the answer as JSON values."""
        costs = {name: seconds for name, seconds in vars(self.costs).items() if seconds}
        return {
            "costs": costs,
            "source": self.source,
            "where": self.cells[0].where,
            "shares": list(self.shares),
            "survival": self.survival,
            "cells": [each.to_json() for each in self.cells],
            "free": None if self.free is None else self.free.to_json(),
        }


@dataclass(frozen=True)
class Pairs:
    """The pairs of a cell: the members as the cluster was, those with malleable jobs, and which jobs these are."""

    before: Sequence[Predicted]
    after: Sequence[Predicted]
    marks: BoolArray
    """Shape (pairs, jobs)."""
    models: Sequence[str]
    """Speedup model of each pair."""

    @property
    def changed(self) -> Changed:
        """The waits, as the effect of a change of a slurm.conf has them. No work is refused."""
        first = self.before[0]
        held = first.cores * np.maximum(np.nan_to_num(first.run_time), 1.0)  # a job that does not start has no core
        before, after = (np.stack([each.wait for each in side]) for side in (self.before, self.after))
        return Changed(before, after, np.zeros(len(held)), held)


def resizing(
    log: Log,
    backtest: Sequence[Predicted],
    side: Side,
    asked: Malleable,
    candidates: Candidates,
    costs: tuple[Overheads, str],
    predict: Predict,
) -> tuple[Resizing, Pairs]:
    """Return what malleability would bring, and the pairs of the first cell.

    `backtest`: the members 0, 1, ... of the log as the cluster was. `side`: this cluster. `costs`: the costs of
    resizes, and their origin in words. `predict`: returns the member of each side and draw.
    """
    more = [draw for _, draw in asked.pairs if draw >= len(backtest)]
    base = dict(enumerate(backtest)) | dict(zip(more, predict([(side, draw) for draw in more]), strict=True))
    of_costs = [costs[0]] if asked.sweep else [costs[0], Overheads()]
    todo = [
        (
            replace(side, malleable=Malleability(candidates, share, seed, model, policy, asked.interval_s), costs=own),
            draw,
        )
        for policy, share in asked.cells
        for own in of_costs
        for model in MODELS
        for seed, draw in asked.pairs
    ]
    members, size = predict(todo), len(MODELS) * len(asked.pairs)
    cells, pairs = list[Cell](), list[Pairs]()
    for begin in range(0, len(todo), size):
        rows = slice(begin, begin + size)
        layers = [each.malleable for each, _ in todo[rows] if each.malleable is not None]
        own = Pairs(
            [base[draw] for _, draw in todo[rows]],
            members[rows],
            np.stack([layer.marked(len(log.workload)) for layer in layers]),
            [layer.model for layer in layers],
        )
        cells.append(_cell(log, own, asked, layers[0], backtest))
        pairs.append(own)
    free = None if asked.sweep else cells.pop()
    staircase = None if asked.sweep else _staircase(pairs[0], log)
    found = Resizing(tuple(cells), free, *costs, asked.shares, staircase)
    return found, pairs[0]


def _costs(costs: Overheads) -> str:
    """Return the costs of resizes in words."""
    each = f"{costs.expand_s:.3g} s until an expansion, " + (
        f"{costs.expand_rank_s:.3g} s more for each further node, " if costs.expand_rank_s else ""
    )
    return each + f"{costs.reconfiguration_s:.3g} s in which the job pauses, {costs.release_s:.3g} s until a release"


def _cell(log: Log, pairs: Pairs, asked: Malleable, layer: Malleability, backtest: Sequence[Predicted]) -> Cell:
    """Return a cell. `layer`: that of the first pair."""
    changed = pairs.changed
    rows = log.judged & np.isfinite([each.wait for each in backtest]).all(axis=0) & changed.compared
    marks = {ALL: np.broadcast_to(rows, pairs.marks.shape), RIGID: ~pairs.marks & rows, MALLEABLE: pairs.marks & rows}
    marks = {name: own for name, own in marks.items() if own.any(axis=1).all()}
    base = np.stack([each.wait for each in backtest])
    waits = Times("waits", log.wait, base, changed.before, changed.after)
    responses = _responses(log, backtest, pairs)
    models = dict[str, tuple[float, float, float]]()
    for model in MODELS:
        chosen = [at for at, name in enumerate(pairs.models) if name == model]
        models[model] = shares_of(*(side[chosen][:, rows].mean(axis=1) for side in (changed.before, changed.after)))
    killed = [after.killed & ~before.killed for before, after in zip(pairs.before, pairs.after, strict=True)]
    work = changed.held.sum()
    return Cell(
        policy=layer.policy,
        release=asked.release,
        share=layer.share,
        jobs=int(pairs.marks[0].sum()),
        candidates=len(layer.candidates.rows),
        every_job=len(rows),
        seeds=len(asked.seeds),
        draws=asked.draws,
        where=asked.where,
        classes=tuple(waits.of(name, own) for name, own in marks.items()),
        responses=tuple(responses.of(name, own) for name, own in marks.items()),
        models=models,
        figures=tuple(_figures(pairs, marks)),
        killed=float(np.mean([each.sum() for each in killed])),
        killed_share=float(np.mean([changed.held[each].sum() / work for each in killed])),
        bounded=pairs.after[0].bounded,
    )


@dataclass(frozen=True)
class Times:
    """Waits or response times of all jobs of a log, s.

    Attributes:
        name: what they are.
        logged: in the log, shape (jobs,).
        backtest: of the members by which the model is judged, shape (members, jobs).
        before: as the cluster was, shape (pairs, jobs).
        after: with malleable jobs.
    """

    name: str
    logged: FloatArray
    backtest: FloatArray
    before: FloatArray
    after: FloatArray

    def of(self, name: str, marks: BoolArray) -> JobClass:
        """Return a class of jobs, which may differ from pair to pair: `marks` has shape (pairs, jobs)."""
        backtest, own = (self.before, marks) if name != ALL else (self.backtest, self._all(marks))
        real, predicted = _means(np.broadcast_to(self.logged, backtest.shape), own), _means(backtest, own)
        errors = [log_error(predicted[at : at + 1], mean) for at, mean in enumerate(real.tolist())]
        low, high = np.percentile(predicted, PERCENTS).tolist()
        before, after = _means(self.before, marks), _means(self.after, marks)
        count = round(marks.sum(axis=1).mean())
        return JobClass(
            by="all" if name == ALL else KIND,
            name=name,
            jobs=count,
            logged_s=float(real.mean()),
            predicted_s=float(predicted.mean()),
            low_s=low,
            high_s=high,
            error=float(np.mean(errors)),
            moving=None,
            compared=count,
            lost=0.0,
            changed_s=float(after.mean()),
            effect=paired(before, after),
            shares=shares_of(before, after),
            most_error=FIT,
            figure=self.name,
        )

    def _all(self, marks: BoolArray) -> BoolArray:
        """Return the marks of all jobs, which are the same in each pair, for the members of the backtest."""
        return np.broadcast_to(marks[0], self.backtest.shape)


def _responses(log: Log, backtest: Sequence[Predicted], pairs: Pairs) -> Times:
    """Return the response times of the jobs."""
    base, before, after = (
        np.stack([each.wait + each.run_time for each in side]) for side in (backtest, pairs.before, pairs.after)
    )
    return Times(RESPONSES, log.wait + log.workload.floats("run_time"), base, before, after)


def _of_response(each: JobClass) -> dict[str, Any]:
    """Return the response times of a class as JSON values."""
    times = {"logged_s": each.logged_s, "predicted_s": each.predicted_s, "changed_s": each.changed_s}
    change = dict(zip(("relative", "relative_low", "relative_high"), each.shares, strict=True))
    words = {"answer": each.answer.value, "sentence": each.sentence}
    return {"class": each.name, "jobs": each.jobs, **times, "error": math.expm1(each.error), **change, **words}


def _means(values: FloatArray, marks: BoolArray) -> FloatArray:
    """Return the mean over the marked jobs of each member, shape (members,)."""
    return np.array([row[own].mean() for row, own in zip(values, marks, strict=True)])


def _figures(pairs: Pairs, marks: Mapping[str, BoolArray]) -> Iterator[Figure]:
    """Yield run times, hours held, the energy if the watts are known, and resizes.

    `marks`: the jobs of each kind whose times are compared.
    """
    sides = (pairs.before, pairs.after)
    if (own := marks.get(MALLEABLE)) is not None:
        runs = (_means(np.stack([each.run_time for each in side]), own) for side in sides)
        yield _figure(f"mean run time, {MALLEABLE}", "s", *runs)
    for unit in ("node", "core"):
        held = [np.stack([_hours(each.held, unit, pairs.marks.shape[1]) for each in side]) for side in sides]
        yield _figure(f"{unit} hours, {ALL}", "h", *(each.sum(axis=1) for each in held))
        yield _figure(
            f"{unit} hours, {MALLEABLE}", "h", *(np.where(pairs.marks, each, 0.0).sum(axis=1) for each in held)
        )
    energy = [np.array([each.energy_kwh for each in side]) for side in sides]
    if np.isfinite(energy).all():
        yield _figure("energy of the nodes", "kWh", *energy)
    for at, name in enumerate(("expansions", "shrinks")):
        yield _figure(name, "", *(np.array([each.resizes[at] for each in side], dtype=np.float64) for side in sides))


def _figure(name: str, unit: str, before: FloatArray, after: FloatArray) -> Figure:
    return Figure(name, unit, float(before.mean()), float(after.mean()), shares_of(before, after))


def _hours(held: Held, unit: str, jobs: int) -> FloatArray:
    """Return the node or core hours of each job. A node that jobs share counts for each of them."""
    amount = held.nodes if unit == "node" else held.cores
    return np.bincount(held.job, weights=amount * (held.end - held.start), minlength=jobs) / HOUR_S


def _staircase(pairs: Pairs, log: Log) -> pd.DataFrame:
    """Return the nodes of the malleable jobs of the first pair over the day of the log that resizes change most."""
    steps = [_steps(side[0].held, pairs.marks[0]) for side in (pairs.before, pairs.after)]
    times = np.union1d(*(each.times for each in steps))
    times = times[times >= log.begin]
    if not len(times):
        return pd.DataFrame({"time": [], "before": [], "after": []})
    before, after = (each.at(times) for each in steps)
    moved = Steps(times, np.abs(after - before))
    edges = np.arange(log.begin, min(log.end, times[-1]) + DAY_S, DAY_S)
    begin = edges[int(np.argmax(moved.means(edges)))] if len(edges) > 1 else log.begin
    own = (times > begin) & (times < begin + DAY_S)
    shown = np.concatenate(([begin], times[own], [min(begin + DAY_S, max(times[-1], begin))]))
    return pd.DataFrame({"time": shown, "before": steps[0].at(shown), "after": steps[1].at(shown)})


def _steps(held: Held, marked: BoolArray) -> Steps:
    """Return the nodes that the marked jobs hold over time."""
    rows = marked[held.job]
    return Steps.count(held.start[rows], held.end[rows], held.nodes[rows].astype(np.float64))


SWEEP = ("share", "policy", "malleable jobs", "wait, all", "rigid", "malleable", "response, all", "inconclusive")
CELL = ("figure", "as it was", "malleable", "change", "change without costs of resizes")


def columns_of(found: Resizing) -> tuple[str, ...]:
    """Return the names of the columns of `rows_of`."""
    return SWEEP if found.sweep else CELL


def rows_of(found: Resizing) -> list[list[str]]:
    """Return the table of a sweep, a row for each cell; or that of one cell, a row for each figure."""
    return (
        [_of_cell(each) for each in found.cells] if found.free is None else [*_of_figures(found.cells[0], found.free)]
    )


def _of_cell(each: Cell) -> list[str]:
    waits = {own.title: own.effect_text for own in each.classes}
    effects = [*(waits.get(name, "-") for name in (ALL, RIGID, MALLEABLE)), each.responses[0].effect_text]
    doubt = "work beyond limits" if each.much else each.every.doubt
    return [f"{percent(each.share)} %", each.policy, number_text(each.jobs), *effects, doubt]


def _of_figures(own: Cell, free: Cell) -> Iterator[list[str]]:
    yield from (_of_times("wait", *each) for each in zip(own.classes, free.classes, strict=True))
    for model in own.models:
        effects = [effect(*each.models[model], 1.0) for each in (own, free)]
        yield [f"mean wait, {ALL}, speedup of {model}", "", "", *effects]
    yield from (_of_times("response time", *each) for each in zip(own.responses, free.responses, strict=True))
    for first, second in zip(own.figures, free.figures, strict=True):
        name = f"{first.name} ({first.unit})" if first.unit else first.name
        yield [name, number_text(first.before), number_text(first.after), first.text, second.text]


def _of_times(name: str, one: JobClass, free: JobClass) -> list[str]:
    before = math.nan if one.effect is None else one.effect.base
    times = [number_text(before), number_text(one.changed_s)]
    return [f"mean {name}, {one.title} (s)", *times, one.effect_text, free.effect_text]
