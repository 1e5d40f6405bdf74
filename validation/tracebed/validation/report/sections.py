"""Registry of report sections, from entry points of the group `tracebed.report_sections`.

A package adds a section by one object and one line in its `pyproject.toml`:

    [project.entry-points."tracebed.report_sections"]
    energy = "my_package:SECTION"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from tracebed.errors import InputError
from tracebed.registry import Registry
from tracebed.validation.report.style import NARROW, STYLE, WIDE, svg
from tracebed.validation.report.templates import fill


@dataclass(frozen=True)
class Picture:
    """A figure with a caption, drawn in two widths: for screens and for phones."""

    draw: Callable[[float], Figure]
    """Return the figure in the given width, inches."""
    caption: str = ""
    alt: str = ""
    """Alternative text for screen readers."""
    title: str = ""
    """Title below that of the section, for one of several contents."""
    chart: str = ""
    """Name of the interactive chart that replaces the figure: `gantt`, `utilization`, `queue`, `differences`,
    `scatter`; empty for a figure without such a chart."""
    about_figure: str = ""
    """Part of the caption that applies to the figure only, not to its interactive chart."""


Part = Markup | Picture | Figure | str
Content = Part | tuple[Part, ...]
"""Content of a section: HTML (`Markup`), a picture, a matplotlib figure, text, or a tuple of these. Text is escaped,
HTML is not."""


Scope = Literal["pair", "validation", "whatif"]


@dataclass(frozen=True)
class Section:
    """A section of the report.

    `content` is called with the matplotlib style of the report. The URL of an artist (`set_url`) becomes its tooltip.
    """

    title: str
    order: int
    """Sort key of the sections. The sections of tracebed have 100, 200, 300, ..."""
    content: Callable[[Any], Content | None]
    """Return the content for a `Comparison`, a `Validation` or a `WhatIf`, depending on `scope`, or None to omit the
    section."""
    half: bool = False
    """Whether a wide screen shows two such sections side by side."""
    scope: Scope = "pair"
    """`pair`: a section about a real run and its prediction (`Comparison`), in the page of one case.
    `validation`: a section about all cases and repetitions (`Validation`).
    `whatif`: a section about a change of a slurm.conf (`WhatIf`)."""
    folded: bool = False
    """Whether the content is folded below its title on screens."""


class RenderedSection(NamedTuple):
    """A section rendered as HTML."""

    name: str
    title: str
    html: Markup
    half: bool
    folded: bool


SECTIONS: Registry[Section] = Registry("tracebed.report_sections", "report section")


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
    found = [(_checked(name, section), name) for name, section in SECTIONS.all()]
    found += [(section, name) for name, section in (more or {}).items()]
    for section, name in sorted(found, key=lambda each: (each[0].order, each[1])):
        if section.scope not in subjects:
            continue
        with mpl.rc_context(STYLE):
            content = section.content(subjects[section.scope])
            if content is not None:
                html = _html(content, name, section.title)
                yield RenderedSection(name, section.title, html, section.half, section.folded)


def _checked(name: str, section: Any) -> Section:
    if not isinstance(section, Section):
        where = SECTIONS.entries[name].value
        raise InputError(f"is a {type(section).__name__}, not a report section", where=where, hint="use a Section")
    return section


def _html(content: Any, name: str, title: str) -> Markup:
    if isinstance(content, tuple):
        return Markup("").join(_html(part, f"{name}-{number}", title) for number, part in enumerate(content, 1))
    if isinstance(content, Picture):
        sizes = {"wide": content.draw(WIDE), "narrow": content.draw(NARROW)}
        drawn = [(size, Markup(svg(figure, f"{name}-{size}"))) for size, figure in sizes.items()]
        return fill("picture", picture=content, drawn=drawn, alt=content.alt or title)
    if isinstance(content, Figure):
        drawn = [("any", Markup(svg(content, name)))]
        return fill("picture", picture=Picture(lambda _: content), drawn=drawn, alt=title)
    if isinstance(content, str):
        return escape(content)
    raise InputError(
        f"returns {type(content).__name__}",
        where=f"report section {name}",
        hint="return Markup, a Picture, a matplotlib Figure, or text",
    )
