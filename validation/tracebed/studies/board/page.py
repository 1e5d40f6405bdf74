"""The page of the board: its tables as Markdown, in the text of `page.md`, and its plot.

The plot has the errors of each entry on each data set, as an SVG image that is equal on all machines.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from tracebed.ground.display import markdown_table
from tracebed.ground.files import replacing
from tracebed.studies.board.board import (
    FILE,
    QUANTITIES,
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
from tracebed.studies.board.entries import SHIPPED
from tracebed.validation.metrics import all_metrics

PLOT = "board.svg"
WIDTH, LEFT, RIGHT = 860, 250, 20
LINE, HEAD, FOOT = 18, 26, 82
LEAST, MOST = 0.01, 100.0  # ends of the axis, in margins; smaller and larger errors are at the ends
COLOURS = {"published": "#c2410c", "accasim": "#15803d", "tracebed": "#1d4ed8", "entered": "#7e22ce", "real": "#475569"}
"""Kind of an entry, or its program -> colour of its dots."""
MEANINGS = {
    "published": "published output",
    "accasim": "AccaSim, run here",
    "tracebed": "tracebed, run here",
    "entered": "entered by a file",
    "real": "real against real",
}


def plot(board: Board) -> str:
    """Return the plot: a line per entry, a dot per workload, a tick at the mean, and the noise as a band."""
    body: list[str] = []
    y = 12
    for dataset, track, ceiling, entries in lanes(board):
        rows = ([ceiling] if ceiling else []) + entries
        top, y = y, y + HEAD
        body.append(_text(8, y - 8, f"{dataset}, run times {track}", weight="bold"))
        if ceiling:
            band = _x(ceiling.wait.mean)
            body.append(
                f'<rect x="{LEFT}" y="{top + HEAD - 4}" width="{band - LEFT:.1f}" height="{len(rows) * LINE}"/>'
            )
        for each in rows:
            body += _line(each, y + LINE / 2 - 4)
            y += LINE
        y += 8
    return "\n".join([*_head(y + FOOT), *_axis(y), *body, *_legend(board, y), "</svg>"]) + "\n"


def lanes(board: Board) -> Iterator[tuple[str, Track, Score | None, list[Score]]]:
    """Yield (data set, track, real against real, entries) of each data set and track that has entries."""
    tracks: tuple[Track, ...] = ("planned", "observed")
    for dataset in board.datasets:
        for track in tracks:
            if entries := board.of(dataset, track):
                yield dataset, track, board.ceiling(dataset) if track == "planned" else None, entries


def _head(height: float) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
        'font-family="sans-serif" font-size="12" role="img" aria-label="Errors of the mean wait, in margins">',
        f'<rect width="{WIDTH}" height="{height:g}" fill="white" style="fill:white"/>',
        "<style>rect{fill:#e2e8f0} line{stroke:#cbd5e1} .margin{stroke:#b91c1c} .mean{stroke-width:2}</style>",
    ]


def _axis(bottom: float) -> list[str]:
    """Return the lines of the axis, with the margin in another colour."""
    elements = []
    for value in (0.01, 0.1, 1.0, 10.0, 100.0):
        mark = ' class="margin"' if value == 1 else ""
        elements.append(f'<line{mark} x1="{_x(value):.1f}" x2="{_x(value):.1f}" y1="12" y2="{bottom:g}"/>')
        text = f"{value:g}" if value != LEAST else f"≤ {value:g}"
        elements.append(_text(_x(value), bottom + 15, text, anchor="end" if value == MOST else "middle"))
    name = "|error| of the mean wait, margins (red: one margin)"
    return [*elements, _text((LEFT + WIDTH - RIGHT) / 2, bottom + 33, name, anchor="middle")]


def _line(score: Score, y: float) -> list[str]:
    """Return the name of an entry, its dots, and the tick at their mean."""
    colour = COLOURS[_colour(score)]
    program = program_of(score)
    name = score.entry if program in ("", score.entry) else f"{score.entry} ({program})"
    dots = [
        f'<circle cx="{_x(value):.1f}" cy="{y:g}" r="3.5" fill="{colour}" fill-opacity="0.55"/>'
        for value in score.errors[score.measure].values()
    ]
    x = _x(score.wait.mean)
    tick = f'<line class="mean" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 7:g}" y2="{y + 7:g}" style="stroke:{colour}"/>'
    return [_text(LEFT - 10, y + 4, name, anchor="end"), *dots, tick]


def _legend(board: Board, bottom: float) -> list[str]:
    """Return the meaning of the colours that occur, and of the marks."""
    there = {_colour(each) for each in board.scores if each.kind != "control"}
    elements, x = [], 20
    for key in (key for key in COLOURS if key in there):
        elements.append(f'<circle cx="{x}" cy="{bottom + 50:g}" r="3.5" fill="{COLOURS[key]}"/>')
        elements.append(_text(x + 8, bottom + 54, MEANINGS[key]))
        x += 30 + 7 * len(MEANINGS[key])
    note = "dot: a workload; tick: the mean over workloads; grey: noise, the mean error of real against real"
    return [*elements, _text(16, bottom + 72, note)]


def _colour(score: Score) -> str:
    """Return the key of the colour of an entry."""
    if score.kind in ("published", "entered", "real"):
        return score.kind
    return "accasim" if score.program == "accasim" else "tracebed"


def _x(value: float) -> float:
    """Return the place of an error on the logarithmic axis."""
    share = math.log(min(max(value, LEAST), MOST) / LEAST) / math.log(MOST / LEAST)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'


TEXT = files(__package__) / "page.md"  # the text of the page, with places for the tables
PAGE = "board.md"
COLUMNS = ("entry", "program", "error", "worst", "s", "against {}", "largest other error", "placed", "noise", "verdict")
MALLEABLE = (
    "entry",
    "resizes at the right job: precision / recall",
    "within 15 s: precision / recall",
    "off by, s",
    "area per job",
    "area of the machine",
    "start, s",
    "response, s",
)
RUN_TIMES = {
    "planned": "Run times as planned: what a simulator could have known.",
    "observed": "Run times copied from the real runs: they could not have failed. No comparison with planned ones.",
}


def write(board: Board, folder: Path) -> None:
    """Write the scores, the page and the plot into a folder."""
    board.save(folder / FILE, replace=True)
    for name, text in ((PAGE, page(board)), (PLOT, plot(board))):
        with replacing(folder / name) as stream:
            stream.write(text.encode())


def page(board: Board) -> str:
    """Return the page."""
    return Template(TEXT.read_text(encoding="utf-8")).substitute(
        date=board.date,
        version=board.version,
        findings="\n".join(_filled(text, 2) for text in _findings(board)),
        datasets=markdown_table(
            ("data set", "institution", "real runs", "workloads that count", "unhealthy runs", "noise of the wait"),
            [
                (f"[{name}](#{name.replace('.', '')})", each.institution, *_counts(each))
                for name, each in board.datasets.items()
            ],
        ),
        entries=_comments_off(SHIPPED.read_text(encoding="utf-8")),
        scores="\n\n".join(_dataset(board, name, facts) for name, facts in board.datasets.items()),
        controls=markdown_table(
            ("data set", "control", "track found", "error", "placed", "noise", "verdict", "how it fails"),
            [_control(board, each) for name in board.datasets for each in board.controls(name)],
        ),
    )


def _findings(board: Board) -> Iterator[str]:
    """Yield a sentence for each data set and track: the nearest entry beside the published one and the real runs."""
    for dataset, track, ceiling, entries in lanes(board):
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


def _counts(facts: Facts) -> tuple[str, str, str, str]:
    noise = facts.noise.get(WAIT)
    text = "-" if noise is None else f"{number(noise)} margins"
    return str(facts.real_runs), str(facts.clusters), str(facts.unhealthy), text


def _dataset(board: Board, name: str, facts: Facts) -> str:
    """Return the section of a data set."""
    at = f", commit {facts.commit}" if facts.commit else ""
    origin = f"{facts.institution}. Source: {facts.source}{at}. Licence: {facts.licence or 'none stated'}. "
    parts = [
        f"### {name}",
        _filled(f"{facts.title}. {facts.note[:1].upper()}{facts.note[1:]}."),
        _filled(f"{origin}Cite: {facts.citation}."),
    ]
    for _, track, ceiling, entries in (lane for lane in lanes(board) if lane[0] == name):
        reference = next((each for each in entries if each.kind == "published"), entries[0])
        rows = [_real(ceiling)] if ceiling else []
        rows += [_row(each, reference) for each in entries]
        columns = [column.format(reference.entry) for column in COLUMNS]
        parts += [RUN_TIMES[track], markdown_table(columns, rows), *_malleable(entries, facts.malleable)]
    parts += [_filled(f"Not scored: {entry}, since {why}") for entry, why in facts.failed.items()]
    return "\n\n".join(parts)


def _malleable(entries: Sequence[Score], noise: Malleable | None) -> Iterator[str]:
    """Yield the table of the malleable jobs of a track, the smallest area first; nothing without resizes."""
    rows = [(each.entry, each.malleable) for each in entries if each.malleable is not None]
    if not rows:
        return
    rows.sort(key=lambda row: (math.inf if row[1].area is None else row[1].area, row[0]))
    yield "Malleable jobs:"
    if noise is not None:
        rows.insert(0, ("*real against real*", noise))
    yield markdown_table(MALLEABLE, [(name, *_figures(each, noise)) for name, each in rows])


def _figures(own: Malleable, noise: Malleable | None) -> Iterator[str]:
    """Yield the figures of malleable jobs; a difference with its ratio to that between real runs in parentheses."""
    yield f"{share(own.precision)} / {share(own.recall)}"
    yield f"{share(own.precision_near)} / {share(own.recall_near)}"
    for name in ("time_s", "area", "machine_area", "start_s", "response_s"):
        value, between = getattr(own, name), getattr(noise, name) if noise else None
        text = number(value) if name.endswith("_s") or value is None else f"{number(100 * value)} %"
        yield f"{text} ({number(value / between)})" if value is not None and between and own is not noise else text


def _row(score: Score, reference: Score) -> tuple[str, ...]:
    return (
        score.entry,
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


def _real(score: Score) -> tuple[str, ...]:
    return "*real against real*", "", *_errors(score), "", _other(score), share(score.placed), "1", ""


def _errors(score: Score) -> tuple[str, str, str]:
    """Return the error of the measure with its interval, the worst case, and the error in s."""
    worst = score.worst[score.measure].error
    return interval(score.wait), f"{'+' if worst > 0 else ''}{number(worst)}", number(score.wait_error_s)


def _other(score: Score) -> str:
    name, value = score.largest_other
    return f"{all_metrics()[name].label}: {number(value)}" if name else "-"


def _control(board: Board, score: Score) -> tuple[str, ...]:
    return (
        score.dataset,
        CONTROLS[score.entry].replace("wait", QUANTITIES[score.measure]),
        score.track,
        interval(score.wait),
        share(score.placed),
        number(score.noise_ratio),
        score.verdict,
        failure(board, score),
    )


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
