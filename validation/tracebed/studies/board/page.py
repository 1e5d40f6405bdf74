"""The pages of the board: its tables as Markdown, in the text of `page.md`, and as HTML, with the picture."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import NamedTuple

from markupsafe import Markup

from tracebed.ground.display import markdown_table
from tracebed.ground.files import replacing
from tracebed.studies.board.board import (
    FILE,
    QUANTITIES,
    TRACKS,
    WAIT,
    Board,
    Facts,
    Malleable,
    Score,
    Track,
    interval,
    number,
    program_of,
    share,
)
from tracebed.studies.board.building import CONTROLS
from tracebed.studies.board.entries import EXAMPLE, SHIPPED
from tracebed.studies.board.picture import picture, row_id
from tracebed.validation.metrics import all_metrics
from tracebed.validation.report.interactive import scripts
from tracebed.validation.report.templates import fill

TEXT = files(__package__) / "page.md"  # the text of the page, with places for the tables
PAGE, HTML, PICTURE = "board.md", "board.html", "board.svg"
DATASETS = ("data set", "institution", "real runs", "workloads that count", "unhealthy runs", "noise of the wait")
CONTROL = ("data set", "control", "track found", "error", "placed", "noise", "verdict", "how it fails")
COLUMNS = ("entry", "program", "error", "worst", "s", "against {}", "largest other error", "placed", "noise", "verdict")
MALLEABLE = [
    "entry",
    "resizes at the right job: precision / recall",
    "within 15 s: precision / recall",
    "off by, s",
    "area per job",
    "area of the machine",
    "start, s",
    "response, s",
]
REAL = "real against real"
RUN_TIMES = {
    "planned": "Run times as planned: what a simulator could have known.",
    "observed": "Run times copied from the real runs: they could not have failed. No comparison with planned ones.",
}


def write(board: Board, folder: Path) -> None:
    """Write the scores, the pages and the picture into a folder."""
    board.save(folder / FILE, replace=True)
    for name, text in ((PAGE, page(board)), (HTML, html(board)), (PICTURE, picture(board, HTML, alone=True))):
        with replacing(folder / name) as stream:
            stream.write(text.encode())


def page(board: Board) -> str:
    """Return the page."""
    return Template(TEXT.read_text(encoding="utf-8")).substitute(
        date=board.date,
        version=board.version,
        findings="\n".join(_filled(text, 2) for text in _findings(board)),
        datasets=markdown_table(
            DATASETS,
            [(f"[{name}](#{name.replace('.', '')})", *_counts(each)) for name, each in board.datasets.items()],
        ),
        enter=EXAMPLE.read_text(encoding="utf-8").rstrip(),
        entries=_comments_off(SHIPPED.read_text(encoding="utf-8")),
        scores="\n\n".join(_dataset(board, name, facts) for name, facts in board.datasets.items()),
        controls=markdown_table(CONTROL, _controls(board)),
    )


def html(board: Board) -> str:
    """Return the page as an HTML document without references to other files: the same text for the same board."""
    named = {name: metric.label for name, metric in all_metrics().items()}
    return str(
        fill(
            "board",
            scripts=scripts(),
            sections=[],
            board=board,
            headline=_headline(board),
            picture=Markup(picture(board)),  # its texts are escaped
            run_times=RUN_TIMES,
            datasets=(DATASETS, [(name, _counts(facts)) for name, facts in board.datasets.items()]),
            tables={name: (_about(facts), list(_tables(board, name))) for name, facts in board.datasets.items()},
            malleable=MALLEABLE,
            controls=(CONTROL, _controls(board)),
            labels=named,
            number=number,
            row_id=row_id,
            enter=EXAMPLE.read_text(encoding="utf-8"),
        )
    )


def _headline(board: Board) -> str:
    """Return how many nearest entries are within a margin of reality, and within the noise of reality."""
    lanes = list(board.lanes())
    counts = {}
    for track in TRACKS:
        near = [entries[0].wait.mean <= 1 for _, own, _, entries in lanes if own == track]
        counts[track] = f"{sum(near)} of {len(near)}"
    repeated = [entries[0].wait.mean <= ceiling.wait.mean for *_, ceiling, entries in lanes if ceiling]
    return (
        f"The nearest simulator is less than a margin from reality in {counts['planned']} comparisons with planned run "
        f"times and {counts['observed']} with observed ones. Where reality was repeated, it is within the distance of "
        f"the real runs from each other in {sum(repeated)} of {len(repeated)}."
    )


def _findings(board: Board) -> Iterator[str]:
    """Yield a sentence for each data set and track: the nearest entry beside the published one and the real runs."""
    for dataset, track, ceiling, entries in board.lanes():
        best, *_ = entries
        published = [each for each in entries if each.kind == "published" and each is not best]
        wrong = sum(each.verdict == "inaccurate" for each in entries)
        ratio = "" if best.noise_ratio is None else f", with a noise ratio of {number(best.noise_ratio)}"
        parts = [f"nearest is `{best.entry}`, off by {_size(best)}{ratio}"]
        for each in published:
            parts.append(f"the published output of {each.entry} is off by {_size(each)}")
            difference = best.against(each)
            if difference is not None and math.isfinite(difference.low):
                nearer = "nearer" if difference.high < 0 else "not proved to be nearer"
                parts.append(f"`{best.entry}` is {nearer} over the {difference.clusters} workloads")
        if ceiling:
            parts.append(f"the real runs are off by {_size(ceiling)} from each other")
        parts.append(f"inaccurate: {wrong} of {len(entries)} entries")
        yield f"- **{dataset}**, run times {track}: {'; '.join(parts)}."


def _size(score: Score) -> str:
    return f"{number(score.wait.mean)} margins ({number(score.wait_error_s)} s)"


def _counts(facts: Facts) -> tuple[str, ...]:
    noise = facts.noise.get(WAIT)
    text = "-" if noise is None else f"{number(noise)} margins"
    return facts.institution, str(facts.real_runs), str(facts.clusters), str(facts.unhealthy), text


def _dataset(board: Board, name: str, facts: Facts) -> str:
    """Return the section of a data set."""
    parts = [f"### {name}", *map(_filled, _about(facts))]
    for table in _tables(board, name):
        parts += [RUN_TIMES[table.track], _markdown(table.columns, table.rows)]
        if table.malleable:
            parts += ["Malleable jobs.", _markdown(MALLEABLE, table.malleable)]
    parts += [_filled(f"Not scored: {entry}, since {why}") for entry, why in facts.failed.items()]
    return "\n\n".join(parts)


def _markdown(columns: Sequence[str], rows: Rows) -> str:
    """Return a table in Markdown, with the name of the real runs in italics."""
    return markdown_table(columns, [(f"*{row[0]}*", *row[1:]) if row[0] == REAL else row for _, row in rows])


def _about(facts: Facts) -> tuple[str, str]:
    at = f", commit {facts.commit}" if facts.commit else ""
    origin = f"{facts.institution}. Source: {facts.source}{at}. Licence: {facts.licence or 'none stated'}. "
    return f"{facts.title}. {facts.note[:1].upper()}{facts.note[1:]}.", f"{origin}Cite: {facts.citation}."


Rows = list[tuple[Score | None, tuple[str, ...]]]
"""Texts of the rows of a table, with the score that each of them is about; None: there is none."""


class Table(NamedTuple):
    """The scores on a data set with the run times of one track."""

    track: Track
    columns: list[str]
    rows: Rows
    """The real runs, then the entries: the nearest first."""
    malleable: Rows
    """The malleable jobs of these, by the columns `MALLEABLE`: the smallest area first; empty without resizes."""


def _tables(board: Board, name: str) -> Iterator[Table]:
    for _, track, ceiling, entries in (lane for lane in board.lanes() if lane[0] == name):
        reference = next((each for each in entries if each.kind == "published"), entries[0])
        rows: Rows = [(each, _row(each, reference)) for each in ([ceiling] if ceiling else []) + entries]
        noise = board.datasets[name].malleable
        yield Table(track, [column.format(reference.entry) for column in COLUMNS], rows, _malleable(entries, noise))


def _malleable(entries: Sequence[Score], noise: Malleable | None) -> Rows:
    """Return the rows of `Table.malleable`. `noise`: the figures of the real runs beside each other."""
    found = [(each, each.malleable) for each in entries if each.malleable is not None]
    found.sort(key=lambda row: (math.inf if row[1].area is None else row[1].area, row[0].entry))
    rows: Rows = [(score, (_name(score), *_figures(each, noise))) for score, each in found]
    return [(None, (REAL, *_figures(noise, None))), *rows] if rows and noise else rows


def _figures(own: Malleable, noise: Malleable | None) -> Iterator[str]:
    """Yield the figures of malleable jobs; a difference with its ratio to that between real runs in parentheses."""
    yield f"{share(own.precision)} / {share(own.recall)}"
    yield f"{share(own.precision_near)} / {share(own.recall_near)}"
    for name in ("time_s", "area", "machine_area", "start_s", "response_s"):
        value, between = getattr(own, name), getattr(noise, name) if noise else None
        text = number(value) if name.endswith("_s") or value is None else f"{number(100 * value)} %"
        yield f"{text} ({number(value / between)})" if value is not None and between else text


def _name(score: Score) -> str:
    return REAL if score.kind == "real" else score.entry


def _row(score: Score, reference: Score) -> tuple[str, ...]:
    if score.kind == "real":
        return _name(score), "", *_errors(score), "", _other(score), share(score.placed), "1", ""
    return (
        _name(score),
        _program(score),
        *_errors(score),
        "" if score is reference else interval(score.against(reference), signed=True),
        _other(score),
        share(score.placed),
        number(score.noise_ratio),
        f"{score.verdict}: {score.why}" if score.verdict == "inaccurate" else score.verdict,
    )


def _program(score: Score) -> str:
    """Return the program of an entry with its version, and whether its output was published."""
    name = program_of(score)
    version = score.version if name not in ("", "tracebed") else ""
    return " ".join(filter(None, (name, version, "(published output)" if score.kind == "published" else "")))


def _errors(score: Score) -> tuple[str, str, str]:
    """Return the error of the measure with its interval, the worst case, and the error in s."""
    worst = score.worst[score.measure].error
    return interval(score.wait), f"{'+' if worst > 0 else ''}{number(worst)}", number(score.wait_error_s)


def _other(score: Score) -> str:
    name, value = score.largest_other
    return f"{all_metrics()[name].label}: {number(value)}" if name else "-"


def _controls(board: Board) -> list[tuple[str, ...]]:
    return [
        (
            name,
            CONTROLS[score.entry].replace("wait", QUANTITIES[score.measure]),
            score.track,
            interval(score.wait),
            share(score.placed),
            number(score.noise_ratio),
            score.verdict,
            failure(board, score),
        )
        for name in board.datasets
        for score in board.controls(name)
    ]


def failure(board: Board, score: Score) -> str:
    """Return how a control fails, as text: by copied run times, its verdict, or fewer placed jobs than the best."""
    # A control that does not fail shows that the data set tells nothing.
    if score.entry == "observed" and score.track == "observed":
        return "its run times are found to be copies"
    if score.verdict == "inaccurate":
        return f"off: {score.why}"
    best = max((each.placed or 0.0 for each in board.of(score.dataset, score.track)), default=0.0)
    if (score.placed or 0.0) < best:
        return f"places fewer jobs than the best entry, {share(best)}"
    return "**not at all**: the data set does not tell it from a prediction"


def _comments_off(text: str) -> str:
    """Return the lines of a YAML file without those that are comments."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def _filled(text: str, indent: int = 0) -> str:
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False, subsequent_indent=" " * indent)
