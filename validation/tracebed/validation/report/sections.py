"""Registry of report sections, from entry points of the group `tracebed.report_sections`.

A package adds a section by one object and one line in its `pyproject.toml`:

    [project.entry-points."tracebed.report_sections"]
    energy = "my_package:SECTION"
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from tracebed.ground.errors import InputError
from tracebed.ground.registry import Registry
from tracebed.validation.pictures import Picture, drawn_in
from tracebed.validation.report.style import NARROW, STYLE, WIDE, svg
from tracebed.validation.report.templates import fill

MOST_DATA = 1_000_000  # largest size of the data of a figure that a page offers, bytes of CSV

Part = Markup | Picture | Figure | str
Content = Part | tuple[Part, ...]
"""Content of a section: HTML (`Markup`), a picture, a matplotlib figure, text, or a tuple of these. Text is escaped,
HTML is not."""


Scope = Literal["pair", "validation", "whatif", "runs", "grid", "forecast"]


@dataclass(frozen=True)
class Section:
    """A section of the report.

    `content` is called with the matplotlib style of the report. The URL of an artist (`set_url`) becomes its tooltip.
    """

    title: str
    order: int
    """Sort key of the sections. The sections of tracebed have 100, 200, 300, ..."""
    content: Callable[[Any], Content | None]
    """Return the content for the subject of `scope`, or None to omit the section."""
    half: bool = False
    """Whether a wide screen shows two such sections side by side."""
    scope: Scope = "pair"
    """`pair`: a section about a real run and its prediction (`Comparison`), in the page of one case.
    `validation`: a section about all cases and repetitions (`Validation`).
    `whatif`: a section about a change of a slurm.conf (`WhatIf`).
    `forecast`: a section about the waiting jobs of a cluster (`Forecast`).
    `runs`: a section about any number of runs (a mapping, name -> `Run`).
    `grid`: a section about simulated cells (an `ExperimentFile`)."""
    folded: bool = False
    """Whether the content is folded below its title on screens."""


class RenderedSection(NamedTuple):
    """A section rendered as HTML."""

    name: str
    title: str
    html: Markup
    half: bool
    folded: bool


SECTIONS: Registry[Section] = Registry("tracebed.report_sections", "report section", Section)


def rendered_sections(
    subjects: Mapping[str, Any], more: Mapping[str, Section] | None = None
) -> Iterator[RenderedSection]:
    """Yield the sections of all installed packages that have content, in their order.

    Args:
        subjects: scope -> the subject of the sections with this scope. Sections with other scopes are omitted.
        more: further sections of this report, by name.

    Raises:
        InputError: an entry point is not a section, or a section returns an object of another type than `Content`.
    """
    for section, name in _sections(subjects, more):
        with mpl.rc_context(STYLE):
            content = section.content(subjects[section.scope])
            if content is not None:
                html = _html(content, name, section.title)
                yield RenderedSection(name, section.title, html, section.half, section.folded)


def _sections(subjects: Mapping[str, Any], more: Mapping[str, Section] | None) -> list[tuple[Section, str]]:
    """Return the sections of the subjects and their names, in their order."""
    named = [(section, name) for name, section in SECTIONS.all()]
    named += [(section, name) for name, section in (more or {}).items()]
    named = [each for each in named if each[0].scope in subjects]
    return sorted(named, key=lambda each: (each[0].order, each[1]))


def _html(content: Any, name: str, title: str) -> Markup:
    if isinstance(content, tuple):
        return Markup("").join(_html(part, f"{name}-{number}", title) for number, part in enumerate(content, 1))
    if isinstance(content, Picture):
        return figure_html(content, {"wide": content.draw(WIDE), "narrow": content.draw(NARROW)}, name, title)
    if isinstance(content, Figure):
        return figure_html(Picture(partial(_constant, content)), {"any": content}, name, title)
    if isinstance(content, str):
        return escape(content)
    raise InputError(
        f"returns {type(content).__name__}",
        where=f"report section {name}",
        hint="return Markup, a Picture, a matplotlib Figure, or text",
    )


def figure_html(picture: Picture, sizes: Mapping[str, Figure], name: str, title: str) -> Markup:
    """Return a figure as HTML, with its data for a download.

    `sizes`: the figures, `wide` for screens and `narrow` for phones, or `any` for both. `name` is unique in the page;
    `title` is the alternative text, if the picture has none.
    """
    text = _offered(picture, next(iter(sizes.values())))
    drawn = [(size, Markup(svg(figure, f"{name}-{size}"))) for size, figure in sizes.items()]
    table = base64.b64encode(zlib.compress(text, 9)).decode() if text else ""
    return fill("picture", picture=picture, drawn=drawn, alt=picture.alt or title, name=name, table=table)


def _offered(picture: Picture, figure: Figure) -> bytes:
    """Return the data of a picture as CSV; empty if they are more than a page offers."""
    if picture.is_large:
        return b""
    data = drawn_in(figure) if picture.data is None else picture.data()
    # Each value takes at least the byte of its separator, so that large data need not be written.
    text = data.to_csv(index=False, float_format="%.10g").encode() if data.size <= MOST_DATA else b""
    return text if len(text) <= MOST_DATA else b""


def pictures_of(subjects: Mapping[str, Any], more: Mapping[str, Section] | None = None) -> dict[str, Picture]:
    """Return the pictures of the sections of a page by name; arguments as for `rendered_sections`."""
    pictures = {}
    for section, name in _sections(subjects, more):
        content = section.content(subjects[section.scope])
        parts = content if isinstance(content, tuple) else (content,)
        for number, part in enumerate(parts, 1):
            if isinstance(part, Picture | Figure):
                shown = Picture(partial(_constant, part)) if isinstance(part, Figure) else part
                pictures[f"{name}-{number}" if len(parts) > 1 else name] = shown
    return pictures


def _constant(figure: Figure, _: float) -> Figure:
    return figure
