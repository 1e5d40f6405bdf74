"""Pages of reports: rendering and parsing."""

from __future__ import annotations

import html.parser
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from markupsafe import Markup
from matplotlib.figure import Figure

from tracebed.orchestrator.run import Run
from tracebed.validation.pictures import Picture
from tracebed.validation.report import html as report
from tracebed.validation.report import sections
from tracebed.validation.report.templates import fill
from tracebed.validation.verdict.cases import Case
from tracebed.validation.verdict.validate import validate
from tracebed.validation.verdict.validation import Validation

VOID = {"meta", "br", "rect", "circle", "path", "image", "use", "line", "polyline", "polygon"}


def rendered(real: Run, predicted: Run) -> str:
    """Return the report of a prediction of one real run."""
    return report.render(validated(real, predicted))


@contextmanager
def without_pictures() -> Iterator[None]:
    """Leave the pictures of reports empty, for tests of words: the pictures take most of the time of a report."""
    html = sections._html

    def undrawn(content: object, name: str, title: str) -> Markup:
        if not isinstance(content, Picture | Figure):
            return html(content, name, title)
        picture = content if isinstance(content, Picture) else Picture(lambda _: content)
        drawn = [(size, Markup("<svg></svg>")) for size in ("wide", "narrow")]
        return fill("picture", picture=picture, drawn=drawn, alt=picture.alt or title, name=name, table="")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sections, "_html", undrawn)
        yield


def plain(found: Validation) -> str:
    """Return a report with empty pictures."""
    with without_pictures():
        return report.render(found)


def validated(real: Run, predicted: Run) -> Validation:
    """Return the result for a prediction of one real run."""
    return validate([Case.of([real], [predicted])])


class Outline(html.parser.HTMLParser):
    """A parser that collects what a browser would fetch or run, and checks that tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "srcset", "action", "data", "poster"):
                self.references.append(value or "")
            if name == "id":
                self.ids.append(value or "")
            assert not name.startswith("on")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag
