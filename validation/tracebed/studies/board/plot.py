"""The plot of the board: the errors of each entry on each data set, as an SVG image that is equal on all machines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from tracebed.studies.board.board import WAIT, Board, Score, Track
from tracebed.studies.board.words import program_of

FILE = "board.svg"
WIDTH, LEFT, RIGHT = 860, 250, 20
LINE, HEAD, FOOT = 18, 26, 82
LEAST, MOST = 0.01, 100.0
"""Ends of the axis, in margins; smaller and larger errors are at the ends."""
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
    found = []
    for value in (0.01, 0.1, 1.0, 10.0, 100.0):
        mark = ' class="margin"' if value == 1 else ""
        found.append(f'<line{mark} x1="{_x(value):.1f}" x2="{_x(value):.1f}" y1="12" y2="{bottom:g}"/>')
        text = f"{value:g}" if value != LEAST else f"≤ {value:g}"
        found.append(_text(_x(value), bottom + 15, text, anchor="end" if value == MOST else "middle"))
    name = "|error| of the mean wait, margins (red: one margin)"
    return [*found, _text((LEFT + WIDTH - RIGHT) / 2, bottom + 33, name, anchor="middle")]


def _line(score: Score, y: float) -> list[str]:
    """Return the name of an entry, its dots, and the tick at their mean."""
    colour = COLOURS[_colour(score)]
    program = program_of(score)
    name = score.entry if program in ("", score.entry) else f"{score.entry} ({program})"
    dots = [
        f'<circle cx="{_x(value):.1f}" cy="{y:g}" r="3.5" fill="{colour}" fill-opacity="0.55"/>'
        for value in score.errors[WAIT].values()
    ]
    x = _x(score.wait.mean)
    tick = f'<line class="mean" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 7:g}" y2="{y + 7:g}" style="stroke:{colour}"/>'
    return [_text(LEFT - 10, y + 4, name, anchor="end"), *dots, tick]


def _legend(board: Board, bottom: float) -> list[str]:
    """Return the meaning of the colours that occur, and of the marks."""
    there = {_colour(each) for each in board.scores if each.kind != "control"}
    found, x = [], 20
    for key in (key for key in COLOURS if key in there):
        found.append(f'<circle cx="{x}" cy="{bottom + 50:g}" r="3.5" fill="{COLOURS[key]}"/>')
        found.append(_text(x + 8, bottom + 54, MEANINGS[key]))
        x += 30 + 7 * len(MEANINGS[key])
    note = "dot: a workload; tick: the mean over workloads; grey: noise, the mean error of real against real"
    return [*found, _text(16, bottom + 72, note)]


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
