"""The report of a validation: a self-contained HTML file, and one more for each case of a suite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tracebed.errors import InputError
from tracebed.files import replacing
from tracebed.validation.report.banner import banner
from tracebed.validation.report.interactive import POLICY, charts
from tracebed.validation.report.sections import Section, shown
from tracebed.validation.report.suites import case_page
from tracebed.validation.report.templates import fill
from tracebed.validation.verdict.validate import validate
from tracebed.validation.verdict.validation import Validation


def write(validation: Validation, path: Path | str, more: Mapping[str, Section] | None = None) -> Path:
    """Write the report to `path` atomically and, for several cases, a page for each case below its folder.

    Args:
        validation: the result for one simulator.
        path: the file.
        more: further sections of this report, by name.

    Raises:
        InputError: a file cannot be written, or the name of the file does not end in .html.
    """
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):  # do not overwrite a workload or a run.json by mistake
        raise InputError("the name of a report must end in .html", where=str(path), hint="name another file")
    _write(render(validation, more), path)
    if len(validation.cases) > 1:
        for result in validation.cases:
            alone = validate([result.case], validation.tolerances, tau=validation.tau, simulator=validation.simulator)
            up = ("../" + path.name, validation)
            _write(_page(alone, None, up), path.parent / case_page(validation, result.case.name))
    return path


def render(validation: Validation, more: Mapping[str, Section] | None = None) -> str:
    """Return the report as an HTML document. The same validation gives the same text; `more` as in `write`.

    The page of a single case has all sections. The page of several cases has the sections about the validation, and
    links to the pages of the cases.
    """
    return _page(validation, more, None)


def _page(validation: Validation, more: Mapping[str, Section] | None, suite: tuple[str, Validation] | None) -> str:
    alone = len(validation.cases) == 1
    subjects = {"validation": validation} | ({"pair": validation.pair} if alone else {})
    simulator = validation.simulator
    title = validation.cases[0].case.name if alone else f"{len(validation.cases)} cases"
    sections = list(shown(subjects, more))
    drawn = any("<figure data-chart=" in section.html for section in sections)
    interactive = charts(validation.pair) if drawn else None
    return str(
        fill(
            "page",
            banner=banner(validation),
            title=title,
            simulator=" ".join(filter(None, (simulator.name, simulator.version))),
            sections=sections,
            suite=suite,
            charts=interactive,
            policy=interactive.policy if interactive else POLICY,
        )
    )


def _write(text: str, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path), hint="name another file") from error
    with replacing(path) as file:
        file.write(text.encode())
