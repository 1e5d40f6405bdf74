"""The ledger of a study: a row for each claim of a paper, with the printed figure, ours, and whether they match.

Experiments by simulation and by real runs make the same rows, from a table of figures and a list of claims. The rules
by which a figure matches are fixed before the result.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pandas as pd
from pydantic import ConfigDict, Field

from tracebed.converters.workload import BoolArray
from tracebed.ground.errors import InputError
from tracebed.ground.files import replacing
from tracebed.ground.stored import Part, StoredFile
from tracebed.studies.papers.paper import load_paper, paper_of
from tracebed.validation.experiments.experiment import KEYS, Experiment, Point
from tracebed.validation.experiments.experiment_schema import OF_WORKLOADS, Claim, Rule, Where, as_list
from tracebed.validation.experiments.file import ExperimentFile
from tracebed.validation.experiments.runner import GridResult
from tracebed.validation.experiments.views.averages import GROUP, REPLICATE, reference
from tracebed.validation.setups import AXES
from tracebed.validation.significance import PERCENTS
from tracebed.validation.statistics import half_width, percentile

WITHIN = 0.05  # largest accepted distance of a number: a share of the printed value, or of a change a difference
NEAR = 0.10  # distance up to which a number counts as near
ROUNDING = 1e-9


def distance(printed: float, ours: float, *, is_change: bool) -> float:
    """Return ours / printed - 1, or ours - printed for a change. NaN if the printed value is 0 and no change."""
    if is_change:
        return ours - printed
    return ours / printed - 1.0 if printed else math.nan


def is_near(printed: float, ours: float, within: float, *, is_change: bool, relative: bool = False) -> bool:
    """Return whether the distance, or its share of a printed change (`relative`), is at most `within`."""
    # A change must also have the printed sign.
    if is_change and has_wrong_sign(printed, ours):
        return False
    if not is_change and not printed:
        return ours == 0.0
    scale = abs(printed) if relative and is_change and printed else 1.0
    return abs(distance(printed, ours, is_change=is_change)) <= (within + ROUNDING) * scale


def has_wrong_sign(printed: float, ours: float) -> bool:
    """Return whether a change has another sign than the printed one, which is not 0."""
    return printed != 0.0 and (ours == 0.0 or (printed > 0.0) != (ours > 0.0))


def matches(rule: Rule, printed: float | None, ours: Sequence[float], *, is_change: bool) -> bool | None:
    """Return whether our figures (of an order, one per point) match the printed value; None if one is missing."""
    if not ours or any(math.isnan(value) for value in ours):
        return None
    if rule is Rule.ORDER:
        return all(first < second for first, second in pairwise(ours))
    value = 0.0 if printed is None else printed
    if rule is Rule.SIGN:
        return not has_wrong_sign(value, ours[0])
    if rule is Rule.AT_MOST:
        return ours[0] <= value + ROUNDING * abs(value)
    if rule is Rule.AT_LEAST:
        return ours[0] >= value - ROUNDING * abs(value)
    return is_near(value, ours[0], WITHIN, is_change=is_change)


FILE = "ledger.json"
SETTINGS = [*(key for key in KEYS if key in AXES), "processes", "outages"]
"""Keys whose first value counts, unless a claim names another; the other values are further rows."""
REPETITION = "repetition"
Values = Mapping[Any, Any]  # a row of a table: key or figure -> value
CELL = "cell"  # the column of the identities of cells: points with the same one are one simulation
PARTIAL = "only some of these points were computed"
DECIDED = 0.95  # coverage of the interval of a step of an order
MOST_RUNS = 1_000_000


class Row(Part):
    """A claim beside our figure."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    element: str
    """The printed place."""
    claim: str
    """The words of the paper."""
    figure: str
    """Name of a metric, or of a figure that the study measures."""
    at: str
    """The points of the figure, as text."""
    assumption: str
    """What was assumed in place of the defaults of the study. Such rows do not count."""
    fitted: bool
    """Whether a constant was fitted to the printed figure. Such rows do not count."""
    rule: Rule = Field(strict=False)
    printed: float | None
    is_change: bool
    """Whether the figures are relative changes: -0.25 for 25 % less."""
    ours: list[float]
    """Our figure, or for an order the figures of its points. Empty: not computed."""
    low: float | None
    """Lower end of the interval of our figure: the middle 95 % of the runs."""
    high: float | None
    runs: int
    """Number of seeds, perturbed inputs or repetitions."""
    distance: float | None
    """ours / printed - 1, or ours - printed for a change."""
    matches: bool | None
    """Whether our figure matches by the rule; None: not computed."""
    note: str
    reason: str
    """Why our figure differs."""
    experiment: str
    """The study or command behind the reason."""

    @property
    def key(self) -> tuple[str | float | None, ...]:
        """What names the claim of the row, and its rule."""
        return self.element, self.figure, self.at, self.rule, self.printed

    @property
    def counts(self) -> bool:
        """Whether the row is under the defaults of the study, and no constant was fitted to it."""
        return not self.assumption and not self.fitted

    @property
    def verdict(self) -> str:
        """Whether our figure matches, as text."""
        return {None: "not computed", True: "yes", False: "no"}[self.matches]

    @property
    def has_wrong_sign(self) -> bool:
        """Whether a printed change has the other sign here."""
        signed = self.is_change and self.rule in (Rule.NUMBER, Rule.SIGN) and self.printed is not None
        return signed and bool(self.ours) and has_wrong_sign(self.printed or 0.0, self.ours[0])


class Ledger(StoredFile):
    """The rows of a study."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    KIND: ClassVar[str] = "ledger"
    HINT: ClassVar[str] = "`tracebed experiment NAME` writes ledgers"

    file_schema: Annotated[Literal["tracebed-ledger/1"], Field(alias="schema")] = "tracebed-ledger/1"
    study: str
    """Name of the experiment."""
    paper: str = ""
    """Name of the paper; empty for a study of no shipped paper."""
    command: str
    """The command, without the folders of its inputs."""
    date: str
    """Day of the run, YYYY-MM-DD, UTC."""
    version: str
    """Version of tracebed."""
    whole: bool
    """Whether all points of the study were computed."""
    rows: list[Row]

    @property
    def runs(self) -> int:
        """Largest number of seeds, perturbed inputs or repetitions of a row."""
        return max((row.runs for row in self.rows), default=0)

    def write(self, folder: Path) -> Path:
        """Write `ledger.json` and `ledger.csv` into the folder of the study, and return the path of the first."""
        with replacing(folder / "ledger.csv") as stream:
            stream.write(self._csv().encode())
        with replacing(folder / FILE) as stream:
            stream.write(self.json_text.encode())
        return folder / FILE

    def _csv(self) -> str:
        lines = io.StringIO()
        writer = csv.DictWriter(lines, ["paper", "study", *Row.model_fields, "command"])
        writer.writeheader()
        same = {"paper": self.paper, "study": self.study, "command": self.command}
        for row in self.rows:
            words = {"matches": row.verdict, "ours": " ".join(f"{value:.12g}" for value in row.ours)}
            writer.writerow({**row.model_dump(mode="json"), **words, **same})
        return lines.getvalue()


@dataclass(frozen=True)
class Measured:
    """The figures of a study: a row per point and run."""

    table: pd.DataFrame
    keys: Sequence[str]  # columns that name a point
    replicate: Sequence[str]  # columns that name a run of a point: seed, perturbed input, repetition
    _equal: dict[tuple[str, str], BoolArray] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], keys: Sequence[str]) -> Measured:
        """Return the figures of rows with a key `repetition`, which a simulated point may lack."""
        table = pd.DataFrame(list(rows))
        return cls(table.reindex(columns=list(dict.fromkeys([*table, *keys, REPETITION]))), keys, [REPETITION])

    def equal(self, key: str, wanted: Any) -> BoolArray:
        """Return whether each row has the value, or one of the list of values, in a column."""
        where = key, repr(wanted)
        if where not in self._equal:
            self._equal[where] = self.table[key].isin(wanted if isinstance(wanted, list) else [wanted]).to_numpy()
        return self._equal[where]


def of_grid(file: ExperimentFile, done: GridResult, command: str) -> Ledger:
    """Return the ledger of simulated cells.

    Args:
        command: the command that computed them, as text.
    """
    all_rows = len(file.experiment.points()) * len(file.experiment.windows)
    rows = rows_of_experiment(file.experiment, done.table)
    return _ledger(file.name, command, rows, whole=not done.failed and len(done.table) == all_rows)


def of_findings(study: str, measured: Measured | None, command: str) -> Ledger:
    """Return the ledger of an experiment by real runs. Without figures, no row was computed.

    Args:
        study: name of the experiment.
        command: the command that measured them, as text.
    """
    paper = paper_of(study)
    claims = load_paper(paper).claims_of(study) if paper else []
    return _ledger(study, command, rows_of(claims, measured or Measured.of([], ())), whole=measured is not None)


def not_run(study: str, claims: Iterable[Claim]) -> Ledger:
    """Return the ledger of a study that has not run."""
    rows = rows_of(claims, Measured.of([], ()))
    return Ledger(study=study, paper="", command="", date="", version="", whole=False, rows=rows)


def explained(ledger: Ledger, claims: Iterable[Claim]) -> Ledger:
    """Return a ledger with the words and reasons of the present claims. The rules remain those of the run."""
    now = {row.key: row for row in not_run(ledger.study, claims).rows}
    words = ("claim", "reason", "experiment")
    rows = [
        row.model_copy(update={name: getattr(now[row.key], name) for name in words}) if row.key in now else row
        for row in ledger.rows
    ]
    return ledger.model_copy(update={"rows": rows})


def _ledger(study: str, command: str, rows: list[Row], *, whole: bool) -> Ledger:
    return Ledger(
        study=study,
        paper=paper_of(study),
        command=command,
        date=datetime.now(UTC).date().isoformat(),
        version=version("tracebed"),
        whole=whole,
        rows=rows,
    )


def rows_of(claims: Iterable[Claim], measured: Measured) -> list[Row]:
    """Return a row per claim about a table without windows and settings."""
    return [_row(claim, measured, {}, "") for claim in claims]


def rows_of_experiment(experiment: Experiment, table: pd.DataFrame) -> list[Row]:
    """Return the rows of an experiment: the defaults of each claim first, then other windows and settings."""
    # The default of a claim is the first window, and the settings of the first point of the grid that fits the claim.
    # Rows of other windows and settings are left out if they were not computed.
    own = (experiment.seeds[0], experiment.perturbations[0])
    points = [point for point in experiment.points() if (point.seed, point.perturbation) == own]
    measured = Measured(table, [*GROUP, "window"], REPLICATE)
    kept = []
    of_workloads = {*OF_WORKLOADS, *experiment.shares_of_jobs}  # equal in all windows and settings
    for claim in experiment.published:
        conditions = list(_conditions(claim, experiment, points))
        rows = [
            _row(claim, measured, where, text)
            for where, text in conditions[: 1 if claim.figure in of_workloads else None]
        ]
        kept += [row for index, row in enumerate(rows) if row.ours or not index]
    return kept


def _conditions(claim: Claim, experiment: Experiment, points: Sequence[Point]) -> Iterator[tuple[Where, str]]:
    """Yield the windows and settings under which a claim is compared, each with its name; the defaults have none."""
    named = {key for where in claim.places for key in where}
    keys = [key for key in SETTINGS if key not in named]
    fitting = [point for point in points if point.fits(claim.places[0])]
    settings = list(dict.fromkeys(tuple(getattr(point, key) for key in keys) for point in fitting)) or [()]
    windows = [claim.window] if claim.window else list(experiment.windows)
    for values in settings:
        for window in windows:
            where = {**dict(zip(keys, values, strict=False)), "window": window}
            default = {**dict(zip(keys, settings[0], strict=False)), "window": windows[0]}
            yield where, _text({key: value for key, value in where.items() if value != default[key]})


def _row(claim: Claim, measured: Measured, where: Where, condition: str) -> Row:
    """Return the row of a claim under further conditions `where`, which have a name unless they are the defaults."""
    rows = _relevant(claim, measured, where)
    keys = [*measured.keys, *(key for key in where if key not in measured.keys)]
    ours = _figures(claim, _averaged(rows, keys, claim.figure), keys, where)
    by_run: dict[tuple[Any, ...], list[Values]] = {}
    for point in rows:
        by_run.setdefault(tuple(point[name] for name in measured.replicate), []).append(point)
    each = [found for run in _distinct(by_run.values()) if (found := _figures(claim, run, keys, where))]
    single = [values[0] for values in each] if claim.rule is not Rule.ORDER and len(each) > 1 else []
    notes = [PARTIAL if ours and not _is_complete(claim, rows, where) else "", claim.note]
    if claim.rule is Rule.ORDER and len(each) > 1:
        notes.append(f"so in {sum(bool(_matches(claim, values)) for values in each)} of {len(each)} runs")
        if needed := _runs_needed(each):
            notes.append(f"not decided: about {needed:,} runs are needed")
    return Row(
        element=claim.element,
        claim=claim.claim,
        figure=claim.figure,
        at=_points_text(claim),
        assumption=", ".join(filter(None, (claim.assumption, condition))),
        fitted=claim.fitted,
        rule=claim.rule,
        printed=claim.value,
        is_change=claim.is_change,
        ours=ours,
        low=percentile(single, PERCENTS[0]) if single else None,
        high=percentile(single, PERCENTS[1]) if single else None,
        runs=len(each),
        distance=_distance(claim, ours),
        matches=_matches(claim, ours),
        note="; ".join(filter(None, notes)),
        reason=claim.reason,
        experiment=claim.experiment,
    )


def _distinct(runs: Iterable[list[Values]]) -> list[list[Values]]:
    """Return the runs without repetitions of the same cells: with all jobs malleable, all seeds are one run."""
    kept: dict[Any, list[Values]] = {}
    for number, run in enumerate(runs):
        cells = [point.get(CELL) for point in run]
        kept.setdefault(number if None in cells else tuple(sorted(cells)), run)
    return list(kept.values())


def _runs_needed(each: Sequence[Sequence[float]]) -> int:
    """Return how many runs an order would need; 0 if the runs, shape (runs, points), decide it."""
    # An order is decided if each step is larger than the half-width of its interval, or if one is so in the other
    # direction. The half-width is expected to fall with the root of the number of runs.
    steps = np.diff(np.array(each, dtype=np.float64), axis=1)
    means = steps.mean(axis=0)
    halves = np.array([half_width(step, DECIDED) for step in steps.T])
    if (means <= -halves).any() or (means > halves).all():
        return 0
    with np.errstate(divide="ignore"):
        needed = len(each) * (halves / np.abs(means)) ** 2
    return math.ceil(min(float(needed.max()), MOST_RUNS))


def _matches(claim: Claim, ours: Sequence[float]) -> bool | None:
    return matches(claim.rule, claim.value, ours, is_change=claim.is_change)


def _distance(claim: Claim, ours: Sequence[float]) -> float | None:
    if not ours or claim.value is None or claim.rule is Rule.SIGN:
        return None
    found = distance(claim.value, ours[0], is_change=claim.is_change)
    return None if math.isnan(found) else found


def _relevant(claim: Claim, measured: Measured, where: Where) -> list[Values]:
    """Return the rows of the table, without missing figures, that a claim names. A missing value of a key is None."""
    table = measured.table
    if claim.figure not in table or not len(table):
        return []
    wanted = [{**where, **place} for place in (*claim.places, *([claim.relative_to] if claim.relative_to else []))]
    if unknown := {key for place in wanted for key in place} - set(table):
        hint = f"use some of {', '.join(map(str, table))}"
        raise InputError(f"the study has no key {min(unknown)!r}", hint=hint)
    cell = [CELL] if CELL in table else []
    columns = dict.fromkeys([*measured.keys, *where, *measured.replicate, *cell, claim.figure])
    named = np.zeros(len(table), dtype=bool)
    for place in wanted:
        named |= np.logical_and.reduce([measured.equal(key, value) for key, value in place.items()])
    records = table[list(columns)][named & table[claim.figure].notna().to_numpy()].to_dict("records")
    return [{str(key): None if value != value else value for key, value in row.items()} for row in records]


def _averaged(rows: Iterable[Values], keys: Sequence[str], figure: str) -> list[Values]:
    """Return the means of a figure over the runs of each point."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row[figure])
    return [{**dict(zip(keys, at, strict=True)), figure: fmean(values)} for at, values in groups.items()]


def _figures(claim: Claim, points: Sequence[Values], keys: Sequence[str], where: Where) -> list[float]:
    """Return the figure of each place of a claim; nothing if one was not computed, or a baseline is 0."""
    base, free = None, [key for key in keys if key not in (claim.relative_to or {})]
    if claim.relative_to is not None:
        base = [point for point in points if _fits(point, {**where, **claim.relative_to})]
    combined: Mapping[str, Callable[[list[float]], float]] = {"mean": fmean, "least": min, "greatest": max}
    figures = []
    for place in claim.places:
        values = []
        for point in points:
            if _fits(point, {**where, **place}):
                over = 1.0 if base is None else reference(base, point, free, claim.figure)
                values.append(point[claim.figure] / over - (base is not None) if over else math.nan)
        values = [value for value in values if not math.isnan(value)]
        if not values:
            return []
        figures.append(float(combined[claim.take](values)))
    return figures


def _fits(point: Values, where: Where) -> bool:
    return all(point[key] in as_list(wanted) for key, wanted in where.items())


def _is_complete(claim: Claim, rows: Sequence[Values], where: Where) -> bool:
    """Return whether every value that a claim names occurs in the rows."""
    for place in (*claim.places, claim.relative_to or {}):
        points = [point for point in rows if _fits(point, {**where, **place})]
        there = {key: {point[key] for point in points} for key in place}
        if any(value not in there[key] for key, wanted in place.items() for value in as_list(wanted)):
            return False
    return True


def _text(where: Where) -> str:
    """Return keys and values as text: `policy easy, share 0/0.2`."""
    return ", ".join(f"{key} {'/'.join(map(_value_text, as_list(value)))}" for key, value in where.items())


def _value_text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _points_text(claim: Claim) -> str:
    """Return the points of a claim as text."""
    text = _text(claim.at)
    if claim.order:
        text = ": ".join(filter(None, (text, " < ".join(map(_text, claim.order)))))
    if claim.take != "mean":
        text = f"{claim.take} of {text}"
    return text if claim.relative_to is None else f"{text} against {_text(claim.relative_to)}"
