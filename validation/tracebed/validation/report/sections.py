"""Registry of report sections, from entry points of the group `tracebed.report_sections`.

A package adds a section by one object and one line in its `pyproject.toml`:

    [project.entry-points."tracebed.report_sections"]
    energy = "my_package:SECTION"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from tracebed.errors import InputError
from tracebed.registry import Registry
from tracebed.validation.report.style import NARROW, STYLE, WIDE, svg
from tracebed.validation.report.templates import fill
from tracebed.validation.verdict import Comparison


@dataclass(frozen=True)
class Picture:
    """A figure with a caption, drawn in two widths: for screens and for phones."""

    draw: Callable[[float], Figure]
    """Return the figure in the given width, inches."""
    caption: str = ""
    alt: str = ""
    """Alternative text for screen readers."""


Content = Markup | Picture | Figure | str
"""Content of a section: HTML (`Markup`), a picture, a matplotlib figure, or text. Text is escaped, HTML is not."""


@dataclass(frozen=True)
class Section:
    """A section of the report.

    `content` is called with the matplotlib style of the report. The URL of an artist (`set_url`) becomes its tooltip.
    """

    title: str
    order: int
    """Sort key of the sections. The sections of tracebed have 100, 200, 300, ..."""
    content: Callable[[Comparison], Content | None]
    """Return the content for a comparison, or None to omit the section."""
    half: bool = False
    """Whether a wide screen shows two such sections side by side."""


class Shown(NamedTuple):
    """A section rendered as HTML."""

    name: str
    title: str
    html: Markup
    half: bool


SECTIONS: Registry[Section] = Registry("tracebed.report_sections", "report section")


def shown(comparison: Comparison, more: Mapping[str, Section] | None = None) -> Iterator[Shown]:
    """Yield the sections of all installed packages that have content for a comparison, in their order.

    Args:
        comparison: the comparison.
        more: further sections of this report, by name.

    Raises:
        InputError: an entry point is not a section, or a section returns an object of another type than `Content`.
    """
    found = [(_checked(name, section), name) for name, section in SECTIONS.all()]
    found += [(section, name) for name, section in (more or {}).items()]
    for section, name in sorted(found, key=lambda each: (each[0].order, each[1])):
        with mpl.rc_context(STYLE):
            content = section.content(comparison)
            if content is not None:
                yield Shown(name, section.title, _html(content, name, section.title), section.half)


def _checked(name: str, section: Any) -> Section:
    if not isinstance(section, Section):
        where = SECTIONS.entries[name].value
        raise InputError(f"is a {type(section).__name__}, not a report section", where=where, hint="use a Section")
    return section


def _html(content: Any, name: str, title: str) -> Markup:
    if isinstance(content, Picture):
        sizes = {"wide": content.draw(WIDE), "narrow": content.draw(NARROW)}
        drawn = [(size, Markup(svg(figure, f"{name}-{size}"))) for size, figure in sizes.items()]
        return fill("picture", drawn=drawn, caption=content.caption, alt=content.alt or title)
    if isinstance(content, Figure):
        return fill("picture", drawn=[("any", Markup(svg(content, name)))], caption="", alt=title)
    if isinstance(content, str):
        return escape(content)
    raise InputError(
        f"returns {type(content).__name__}",
        where=f"report section {name}",
        hint="return Markup, a Picture, a matplotlib Figure, or text",
    )
