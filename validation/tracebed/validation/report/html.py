"""The report of a validation: a self-contained HTML file, and one more for each case of a suite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tracebed.ground.errors import InputError
from tracebed.ground.outputs import REPORT
from tracebed.validation.pictures import Picture
from tracebed.validation.report.banner import banner
from tracebed.validation.report.interactive import scripts
from tracebed.validation.report.sections import Section, pictures_of, rendered_sections
from tracebed.validation.report.suites import cases
from tracebed.validation.report.templates import fill
from tracebed.validation.verdict.judging import Noises
from tracebed.validation.verdict.validate import validate
from tracebed.validation.verdict.validation import Validation


def write(
    validation: Validation,
    path: Path | str,
    more: Mapping[str, Section] | None = None,
    *,
    profile: Noises | None = None,
    case_pages: bool = True,
    outcome: str = "",
) -> Path:
    """Write the report to `path` atomically. The pages of several cases are written to a folder of this name beside it.

    Args:
        validation: the result for one simulator.
        path: the file.
        more: further sections of this report, by name.
        profile: noise of the testbed, for the verdicts on single cases in their pages.
        case_pages: whether to write the pages of several cases.
        outcome: the result of the gate; empty: the verdict.

    Raises:
        InputError: a file cannot be written, or the name of the file does not end in .html.
    """
    path = Path(path)
    case_pages = case_pages and len(validation.cases) > 1
    write_page(_page(validation, more, folder=path.stem if case_pages else "", outcome=outcome), path)
    if case_pages:
        for result in validation.cases:
            alone = validate(
                [result.case],
                validation.tolerances,
                profile=profile,
                tau=validation.tau,
                simulator=validation.simulator,
                allow_different_workloads=True,
            )
            page = _page(alone, None, suite=validation, above=f"../{path.name}", of_suite=outcome)
            write_page(page, path.with_name(path.stem) / f"{result.case.name}.html")
    return path


def render(validation: Validation, more: Mapping[str, Section] | None = None) -> str:
    """Return the report as an HTML document. The same validation gives the same text; `more` as in `write`.

    The page of a single case has all sections. The page of several cases has the sections about the validation, and
    links to the pages of the cases in a folder with the name of the simulator.
    """
    return _page(validation, more, folder=validation.simulator.name)


def _page(
    validation: Validation,
    more: Mapping[str, Section] | None,
    *,
    folder: str = "",
    suite: Validation | None = None,
    above: str = "",
    outcome: str = "",
    of_suite: str = "",
) -> str:
    """Return a page.

    Args:
        more: further sections.
        folder: folder with the pages of the cases, relative to this page.
        suite: validation with more cases.
        above: page of `suite`, relative to this page.
        outcome: the result of the gate; empty: the verdict.
        of_suite: that of `suite`.
    """
    alone = len(validation.cases) == 1
    subjects = {"validation": validation} | ({"pair": validation.pair} if alone else {})
    more = {**(more or {}), **({} if alone else {"cases": cases(folder)})}
    sections = list(rendered_sections(subjects, more))
    drawn = any("<figure data-chart=" in section.html for section in sections)
    simulator = validation.simulator
    return str(
        fill(
            "page",
            banner=banner(validation, outcome),
            title=validation.cases[0].case.name if alone else f"{len(validation.cases)} cases",
            simulator=" ".join(filter(None, (simulator.name, simulator.version))),
            sections=sections,
            suite=suite,
            of_suite=of_suite or (suite.verdict.value if suite else ""),
            above=above,
            scripts=scripts(validation.cases[0] if drawn else None),
        )
    )


def write_page(text: str, path: Path) -> Path:
    """Write a page to `path` atomically, in a folder that is made if it does not exist.

    Raises:
        InputError: the file cannot be written, or the name of the file does not end in .html.
    """
    if path.suffix.lower() not in (".html", ".htm"):  # do not overwrite a workload or a run.json by mistake
        raise InputError("the name of a report must end in .html", where=str(path), hint="name another file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path), hint="name another file") from error
    with REPORT.file(path) as file:
        file.write(text.encode())
    return path


def pictures(validation: Validation, more: Mapping[str, Section] | None = None) -> dict[str, Picture]:
    """Return the pictures of the report by name; `more` as in `write`."""
    alone = len(validation.cases) == 1
    return pictures_of({"validation": validation} | ({"pair": validation.pair} if alone else {}), more)
