"""The picture of the board: a lane per data set and track, with the distance of each entry to the real runs.

Places on the axis are percentages, so that one drawing fits a phone and a screen. Colours are the variables of a
page's style, or, in a file of its own, those of light paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files

from tracebed.studies.board.board import Board, Lane, Score, interval, number, program_of

LEFT, SPAN = 2.0, 96.0  # the axis, % of the width
LANE, HEAD, FOOT = 44, 26, 76  # heights, px
WIDTH = 860  # of the picture in a file of its own, px
LEAST, MOST = 0.01, 100.0  # ends of the axis, in margins; smaller and larger errors are at the ends
NEAR = 2.5  # distance of two marks below which one is drawn higher, % of the width
SHAPES = {
    "published": ("published output", "M0-7L7 0L0 7L-7 0Z"),
    "tracebed": ("tracebed, run here", "M5.5 0A5.5 5.5 0 1 1-5.5 0A5.5 5.5 0 1 1 5.5 0Z"),
    "accasim": ("AccaSim, run here", "M-5-5H5V5H-5Z"),
    "entered": ("entered by a file", "M0-7L6.5 5H-6.5Z"),
}
"""Kind of an entry, or its program -> meaning and outline of its mark."""
STYLE, PAPER = (files(__package__) / name for name in ("picture.css", "paper.css"))
"""The style of the marks, and the colours of a picture in a file of its own."""


def row_id(score: Score) -> str:
    """Return the anchor of the figures of a score in the page."""
    return f"{score.dataset}/{score.track}/{score.entry}"


def picture(board: Board, page: str = "", *, alone: bool = False) -> str:
    """Return the picture as SVG, whose marks are links to `row_id` in `page`; `alone`: as a file of its own."""
    lanes = list(board.lanes())
    height = HEAD + LANE * len(lanes) + FOOT
    size = f'width="{WIDTH}" height="{height}"' if alone else f'width="100%" style="height:{height}px"'
    space = ' xmlns="http://www.w3.org/2000/svg"' if alone else ""
    parts = [
        f'<svg{space} class="board" {size} role="group" aria-label="Distance of each entry to the real runs, in '
        'margins, by data set">',
        f"<style>{PAPER.read_text(encoding='utf-8') if alone else ''}{STYLE.read_text(encoding='utf-8')}</style>",
        *(['<rect width="100%" height="100%" style="fill:var(--paper)"/>'] if alone else []),
        *_axis(HEAD + LANE * len(lanes)),
    ]
    for index, (dataset, track, ceiling, entries) in enumerate(lanes):
        parts += _lane(f"{dataset}, {track}", ceiling, entries, HEAD + LANE * index, page)
    return "\n".join([*parts, *_legend(lanes, HEAD + LANE * len(lanes) + 30), "</svg>"]) + "\n"


def _axis(bottom: float) -> Iterator[str]:
    yield f'<rect class="within" width="{_x(1.0):.2f}%" y="{HEAD}" height="{bottom - HEAD}"/>'
    yield _text(0, 12, "nearer to reality", "soft")
    yield _text(100, 12, "farther", "soft", anchor="end")
    for value in (LEAST, 0.1, 1.0, 10.0, MOST):
        x, mark = _x(value), ' class="margin"' if value == 1 else ""
        yield f'<line{mark} x1="{x:.2f}%" x2="{x:.2f}%" y1="{HEAD}" y2="{bottom}"/>'
        text = {LEAST: f"≤ {LEAST:g}", 1.0: "1 margin", MOST: f"≥ {MOST:g}"}.get(value, f"{value:g}")
        yield _text(x, bottom + 14, text, "soft", anchor={LEAST: "start", MOST: "end"}.get(value, "middle"))
    yield _text(_x(1.0), 12, "10 %, at least 10 s", "soft", anchor="middle")


def _lane(name: str, ceiling: Score | None, entries: Sequence[Score], y: float, page: str) -> Iterator[str]:
    """Yield the name of a lane, its nearest entry, the noise of reality, and the marks."""
    best = entries[0]
    yield f'<line x1="0" x2="100%" y1="{y}" y2="{y}"/>'
    yield _text(0, y + 14, name, "name")
    figure = f'<tspan class="value"> {number(best.wait.mean)}</tspan>'
    yield f'<text x="100%" y="{y + 14}" text-anchor="end">{escape(best.entry)}{figure}</text>'
    if ceiling:
        title = f"{name}: real runs are {number(ceiling.wait.mean)} margins from each other"
        band = f'<rect class="noise" width="{_x(ceiling.wait.mean):.2f}%" y="{y + 19}" height="{LANE - 20}"/>'
        yield f'<a href="{_link(page, ceiling)}"><title>{escape(title)}</title>{band}</a>'
    lifts, beside, last = {}, 0, -NEAR
    for each in entries:  # marks at nearly one place go up and down, so that each can be seen
        x = _x(each.wait.mean)
        beside = beside + 1 if x - last < NEAR else 0
        lifts[each.entry], last = (0, -7, 7)[beside % 3], x
    for each in reversed(entries):  # the nearest one is on top
        title = f"{each.entry} on {name}: off by {interval(each.wait)} margins ({number(each.wait_error_s)} s)"
        kind = ' class="nearest"' if each is best else ""
        yield (
            f'<a href="{_link(page, each)}"{kind}><title>{escape(title)}</title>'
            f"{_mark(_kind(each), f'{_x(each.wait.mean):.2f}%', y + 31 + lifts[each.entry])}</a>"
        )


def _legend(lanes: Sequence[Lane], y: float) -> Iterator[str]:
    there = {_kind(each) for *_, entries in lanes for each in entries}
    for index, kind in enumerate(kind for kind in SHAPES if kind in there):
        meaning = SHAPES[kind][0]
        x, down = 10 + 165 * (index % 2), y + 18 * (index // 2)
        yield _mark(kind, f"{x}", down - 4)
        yield f'<text class="soft" x="{x + 12}" y="{down}">{escape(meaning)}</text>'
    yield f'<rect class="noise" x="4" width="12" y="{y + 27}" height="10"/>'
    yield f'<text class="soft" x="22" y="{y + 36}">noise: real runs from each other, if repeated</text>'


def _mark(kind: str, x: str, y: float) -> str:
    shape = f'<circle class="touch" r="9"/><path class="{kind}" d="{SHAPES[kind][1]}"/>'
    return f'<svg x="{x}" y="{y:g}" overflow="visible" width="1" height="1">{shape}</svg>'


def _kind(score: Score) -> str:
    if score.kind in ("published", "entered"):
        return score.kind
    return "accasim" if program_of(score) == "accasim" else "tracebed"


def _link(page: str, score: Score) -> str:
    return escape(f"{page}#{row_id(score)}")


def _x(value: float) -> float:
    """Return the place of an error on the logarithmic axis, % of the width."""
    share = math.log(min(max(value, LEAST), MOST) / LEAST) / math.log(MOST / LEAST)
    return LEFT + share * SPAN


def _text(x: float, y: float, text: str, kind: str = "", *, anchor: str = "start") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.4g}%" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'
