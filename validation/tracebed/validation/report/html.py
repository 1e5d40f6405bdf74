"""The report of a validation: a self-contained HTML file, and one more for each case of a suite.

The head of a report has the verdict, the deciding numbers, and the places and causes of the differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tracebed.ground.display import counted
from tracebed.ground.errors import InputError
from tracebed.ground.outputs import REPORT
from tracebed.validation.pictures import Picture
from tracebed.validation.report.interactive import scripts
from tracebed.validation.report.sections import Section, pictures_of, rendered_sections
from tracebed.validation.report.templates import fill
from tracebed.validation.report.verdicts import cases
from tracebed.validation.report.words import error, extent, real_side, size
from tracebed.validation.verdict.breakdown import QUANTITIES, causes, scaled_run_times, uniform_bias
from tracebed.validation.verdict.gate import WORSE
from tracebed.validation.verdict.noise import NoiseProfile
from tracebed.validation.verdict.rule import Verdict
from tracebed.validation.verdict.validate import validate
from tracebed.validation.verdict.validation import CaseMetric, MetricVerdict, Validation

SYMBOLS = {Verdict.ACCURATE: "✓", Verdict.INACCURATE: "✗", Verdict.INCONCLUSIVE: "?"}
FAR = 3  # largest number of places in the head


def write(
    validation: Validation,
    path: Path | str,
    more: Mapping[str, Section] | None = None,
    *,
    profile: NoiseProfile | None = None,
    case_pages: bool = True,
    outcome: str = "",
) -> Path:
    """Write the report to `path` atomically. The pages of several cases are written to a folder of this name beside it.

    Args:
        more: further sections of this report, by name.
        profile: noise of the testbed, for the verdicts on single cases in their pages.
        outcome: the result of the gate; empty: the verdict.
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
    """Return the report as an HTML document, the same text for the same validation; `more` as in `write`."""
    # The page of several cases has the sections about the validation, and links to the pages of the cases in a folder
    # with the name of the simulator.
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

    `folder` has the pages of the cases. `suite` is a validation with more cases, `above` its page and `of_suite` its
    outcome. Paths are relative to this page. An empty outcome is the verdict.
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
    """Write a page, whose name ends in .html, to `path` atomically, in a folder that is made if it does not exist."""
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


@dataclass(frozen=True)
class Tile:
    """A number that decides: one gated metric."""

    label: str
    error: str  # size of the error, without an interval
    margin: str  # the margin; over several cases with the worst case
    state: str  # verdict on the metric


@dataclass(frozen=True)
class Banner:
    """The head of a report."""

    symbol: str
    verdict: str  # class of the colors: that of a verdict
    outcome: str  # the result of the gate, or the verdict
    headline: str
    tiles: tuple[Tile, ...]
    where: tuple[str, ...]  # the metrics and cases with the largest errors; empty if all are within their margins
    why: tuple[str, ...]
    noise: str  # the noise ratio of the waits; empty if unknown
    facts: str  # number of repetitions and predictions, and how the jobs were executed


def banner(validation: Validation, outcome: str = "") -> Banner:
    """Return the head of the report. `outcome` is the result of the gate; empty: the verdict."""
    shown = Verdict.INACCURATE if outcome.startswith(WORSE) else validation.verdict
    gated = [item for item in validation.metrics if item.gate]
    headline = validation.headline
    return Banner(
        symbol=SYMBOLS[shown],
        verdict=shown.value,
        outcome=outcome or validation.verdict.value,
        headline=headline[:1].upper() + headline[1:],
        tiles=tuple(Tile(item.metric.label, size(item), extent(item), item.verdict.value) for item in gated),
        where=_where(gated),
        why=_main_cause(validation, gated),
        noise=validation.noise.removeprefix("noise ratio of the "),
        facts=_facts(validation),
    )


def _where(gated: list[MetricVerdict]) -> tuple[str, ...]:
    """Return the metrics and cases with the largest errors beyond their margins."""
    far = [(abs(case.z), item, case) for item in gated for case in item.cases if abs(case.z) > 1]
    far.sort(key=lambda each: -each[0])
    texts = [f"{_place(item, case)}: {error(item, case)}" for _, item, case in far[:FAR]]
    if len(far) > FAR:
        texts.append(f"and {len(far) - FAR} more beyond their margins")
    return tuple(texts)


def _place(item: MetricVerdict, case: CaseMetric) -> str:
    return item.metric.label + (f" of {case.case}" if len(item.cases) > 1 else "")


def _main_cause(validation: Validation, gated: list[MetricVerdict]) -> tuple[str, ...]:
    """Return the cause of the largest error of a metric that is not accurate, in the case with this error."""
    # A uniform bias of the run times concerns every metric. Classes of jobs have a part in the error of a mean only.
    results = {result.case.name: result.pair for result in validation.cases}
    off = [item for item in gated if item.verdict is not Verdict.ACCURATE]
    far = [(abs(case.z), item, case) for item in off for case in item.deciding if abs(case.z) > 1]
    far.sort(key=lambda each: -each[0])
    for _, item, case in far[:1]:
        if scaled := scaled_run_times(results[case.case].predicted):
            return (f"{_place(item, case)}: {scaled}",)
        if (bias := uniform_bias(results[case.case].jobs)) is not None:
            return (f"{_place(item, case)}: {bias.sentence}",)
    for _, item, case in [each for each in far if each[1].metric.mean_of in QUANTITIES][:1]:
        pair = results[case.case]
        return tuple(f"{_place(item, case)}: {cause}" for cause in causes(pair.jobs, pair.real, item.metric.mean_of))
    return ()


def _facts(validation: Validation) -> str:
    """Return how much the verdict is based on: cases, repetitions, predictions."""
    repetitions = [one for result in validation.cases for one in result.repetitions]
    included = sum(not one.excluded for one in repetitions)
    several = len(validation.cases) > 1
    cases = f"{counted(len(validation.cases), 'case')} of {counted(validation.workloads, 'workload')}"
    parts = [cases] if several else []
    left = f" ({len(repetitions) - included} more excluded)" if included < len(repetitions) else ""
    shared = f" of {counted(validation.real_runs, 'real run')}" if validation.real_runs < included else ""
    parts += [counted(included, "real repetition") + left + shared]
    parts += [counted(sum(len(result.case.predicted) for result in validation.cases), "prediction")]
    sides = sorted({real_side(one.run.info) for one in repetitions})
    return f"{', '.join(parts)}; {' and '.join(sides)}"
