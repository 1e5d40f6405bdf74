"""The stored board: the scores of all entries on all data sets, from which the page and the plot are made."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from tracebed.ground.stored import Part, StoredFile
from tracebed.studies.board.scores import Spread, paired, spread

FILE = "board.json"
WAIT = "mean_wait_s"
"""The metric by which entries are ordered, unless the data set names another one: `Score.measure`."""
QUANTITIES = {WAIT: "wait", "mean_response_s": "response"}
"""Measure -> the time of a job that is compared job by job, and shuffled by a control."""
DIGITS = 6  # significant digits of the stored figures
Track = Literal["planned", "observed"]
TRACKS: tuple[Track, ...] = ("planned", "observed")
Kind = Literal["real", "published", "simulated", "entered", "control"]


class Worst(Part):
    """The case with the largest error."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    case: str
    error: float
    """(predicted - real) / margin."""


class Malleable(Part):
    """Malleable jobs of an entry beside the real runs, means over the clusters. None: undefined."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    precision: float | None
    """Share of the predicted resizes that are paired with a real one of the same job and direction."""
    recall: float | None
    """Share of the real resizes that are paired with a predicted one of the same job and direction."""
    precision_near: float | None
    """Share of the predicted resizes that are paired with a real one, at most 15 s apart."""
    recall_near: float | None
    """Share of the real resizes that are paired with a predicted one, at most 15 s apart."""
    time_s: float | None
    """|difference| of the times of the latter pairs, mean, s."""
    area: float | None
    """Area between the staircases of malleable jobs / their real node seconds."""
    machine_area: float | None
    """Area between the allocated nodes of all jobs / real node seconds."""
    start_s: float | None
    """|difference| of the starts of malleable jobs, mean, s."""
    response_s: float | None
    """|difference| of the responses of malleable jobs, mean, s."""


class Score(Part):
    """An entry on a data set, with run times of one track."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    dataset: str
    """Key of the data set in `datasets`."""
    track: Track
    """Whether the run times were planned, or copied from the real run. Found from the runs."""
    entry: str
    """Name of the entry; (data set, track, entry) are unique."""
    kind: Kind
    """`real`: each real run as a prediction of the others; `published`: an output of others; `simulated`: by tracebed;
    `entered`: by a file; `control`: a prediction that must fail."""
    program: str
    """Program that made the prediction; empty or csv: unknown."""
    version: str
    """Version of the program."""
    measure: str = WAIT
    """Gated metric by which the entries of the data set are ordered."""
    cases: int
    """Number of cases that count."""
    real_runs: int
    """Number of distinct real runs that count."""
    errors: dict[str, dict[str, float]]
    """Gated metric -> cluster -> mean |error|, in margins."""
    worst: dict[str, Worst]
    """Gated metric -> the case with the largest error."""
    wait_error_s: float
    """|error| of the measure, mean over the clusters, s."""
    placed: float | None
    """Share of the jobs that start within 15 s of the real start after their submission."""
    noise_ratio: float | None
    """Distance to real runs / distance between real runs, job by job. None: no repetitions."""
    malleable: Malleable | None = None
    """Resizes and staircases of malleable jobs. None: no job is resized, or allocations are unknown."""
    verdict: str
    """accurate, inaccurate or inconclusive."""
    why: str
    """Metrics that are off, or the reason for an inconclusive verdict."""

    @property
    def wait(self) -> Spread:
        """|error| of the measure, mostly the mean wait, over the clusters, in margins."""
        return spread(list(self.errors[self.measure].values()))

    @property
    def largest_other(self) -> tuple[str, float]:
        """The gated metric other than the measure with the largest mean |error|, and this error; NaN without one."""
        others = {name: spread(list(each.values())).mean for name, each in self.errors.items() if name != self.measure}
        name = max(others, key=lambda each: others[each], default="")
        return name, others.get(name, math.nan)

    def against(self, other: Score) -> Spread | None:
        """Return the paired difference of |error| of the measure to that of another entry."""
        return paired(self.errors[self.measure], other.errors[self.measure])


Lane = tuple[str, Track, Score | None, list[Score]]


class Facts(Part):
    """A data set as it was scored."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    title: str
    institution: str
    """Where the real runs were made."""
    source: str
    """Address of the repository, or where the files are."""
    commit: str
    """Commit of the repository, empty without one."""
    licence: str
    """Licence of the files; empty: none is stated."""
    citation: str
    note: str
    """What a reader must know of the runs and of their conversion."""
    cases: int
    """Number of cases: a workload under a policy on a machine."""
    real_runs: int
    """Number of distinct real runs."""
    clusters: int
    """Number of workloads, those of calibration not counted."""
    unhealthy: int
    """Number of real runs with a cause to exclude them."""
    noise: dict[str, float]
    """Gated metric -> standard deviation of one real run, in margins, from repetitions; empty without."""
    failed: dict[str, str]
    """Entry -> why the entry has no score."""


class Board(StoredFile):
    """All scores."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    KIND: ClassVar[str] = "board"
    HINT: ClassVar[str] = "`tracebed validate --board` writes it"

    file_schema: Annotated[Literal["tracebed-board/1"], Field(alias="schema")] = "tracebed-board/1"
    date: str
    """Day of the computation, YYYY-MM-DD, UTC."""
    version: str
    """Version of tracebed."""
    datasets: dict[str, Facts]
    """Name -> data set."""
    scores: list[Score]
    """A row per data set, track and entry."""

    def of(self, dataset: str, track: Track) -> list[Score]:
        """Return the entries of a data set and a track without controls: the smallest error of the wait first."""
        scores = [
            each
            for each in self.scores
            if (each.dataset, each.track) == (dataset, track) and each.kind not in ("control", "real")
        ]
        return sorted(scores, key=lambda each: (each.wait.mean, each.entry))

    def lanes(self) -> Iterator[Lane]:
        """Yield (data set, track, real against real, entries) of each data set and track that has entries."""
        for dataset in self.datasets:
            for track in TRACKS:
                if entries := self.of(dataset, track):
                    yield dataset, track, self.ceiling(dataset) if track == "planned" else None, entries

    def ceiling(self, dataset: str) -> Score | None:
        """Return the row of the real runs of a data set, None without repetitions."""
        ceilings = [each for each in self.scores if each.dataset == dataset and each.kind == "real"]
        return ceilings[0] if ceilings else None

    def controls(self, dataset: str) -> list[Score]:
        """Return the controls of a data set, of both tracks."""
        return [each for each in self.scores if each.dataset == dataset and each.kind == "control"]


@dataclass(frozen=True)
class Change:
    """A row of the scores that differs between two boards; None: without the row."""

    before: Score | None
    after: Score | None

    @property
    def row(self) -> Score:
        """The row, as it was last."""
        row = self.after or self.before
        assert row is not None
        return row

    @property
    def kind(self) -> Literal["new", "changed", "gone"]:
        """What happened to the row."""
        return "new" if self.before is None else "gone" if self.after is None else "changed"


def changes(before: Board, after: Board) -> list[Change]:
    """Return the rows that are new, gone, or have other figures, without those in which only the version differs."""
    old, new = ({(each.dataset, each.track, each.entry): each for each in board.scores} for board in (before, after))
    pairs = [Change(old.get(key), new.get(key)) for key in old | new]
    return [pair for pair in pairs if _figures(pair.before) != _figures(pair.after)]


def _figures(score: Score | None) -> Score | None:
    return score and score.model_copy(update={"version": ""})


def stored(value: float) -> float:
    """Return a figure as it is stored: `DIGITS` significant digits."""
    return float(f"{value:.{DIGITS}g}")


def program_of(score: Score) -> str:
    """Return the program that made a prediction, as text; empty for a real run, or an output of an unnamed program."""
    if score.kind == "real" or score.program == "csv":
        return ""
    return score.program


def number(value: float | None) -> str:
    """Return a figure with three significant digits, and no exponent; a dash if unknown."""
    if value is None or math.isnan(value):
        return "-"
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 3)}f}"


def interval(found: Spread | None, *, signed: bool = False) -> str:
    """Return a mean with its interval as text; without one, the mean alone. An unsigned interval ends at 0."""
    if found is None:
        return "-"
    sign = "+" if signed and found.mean > 0 else ""
    if math.isnan(found.low):
        return sign + number(found.mean)
    low = found.low if signed else max(found.low, 0.0)
    return f"{sign}{number(found.mean)} [{number(low)}, {number(found.high)}]"


def share(value: float | None) -> str:
    """Return a share in percent as text; a dash if unknown."""
    return "-" if value is None else f"{100 * value:.0f} %"
