"""Summary of validations in Markdown, for the page of a CI job: the table of metrics first, details folded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tracebed.ground.display import cell, counted
from tracebed.validation.latex import PaperTable
from tracebed.validation.report.words import percent
from tracebed.validation.verdict.gate import FAILED, Gate, outcome
from tracebed.validation.verdict.rule import REASONS, Verdict
from tracebed.validation.verdict.validation import MetricVerdict, Validation

LIMIT = 1000 * 1024
"""Largest size, bytes. GitHub rejects a step summary above 1024 KiB; other commands of the step may add to it."""

MARK = "\n<!-- tracebed -->\n"  # last line of a summary, by which `outputs.SUMMARY` recognizes the file
SINGLE = ("error [interval]", "error / margin")  # columns for one case, between the verdict and the margin
SEVERAL = ("mean abs. error / margin", "worst case", "cases beyond 1, 2 margins", "mean error / margin [interval]")
"""Columns for several cases."""


def markdown(judgment: Gate) -> str:
    """Return the summary of the validations of one or several simulators, at most `LIMIT` bytes of UTF-8.

    Args:
        judgment: the verdicts, and what decides whether they pass.
    """
    parts = [f"## {plain(name)}: {FAILED}\n\n{plain(why)}\n" for name, why in judgment.failures.items()]
    parts += [_overview(judgment.of(item), item) for item in judgment.validations]
    text = "\n".join(parts)
    size, left_out = len(text.encode()), 0
    for item in judgment.validations:
        for title, body in _details(item):
            block = f"\n<details><summary>{title}</summary>\n\n{body}\n</details>\n"
            size += len(block.encode())
            if size > LIMIT - 200:  # the note below
                left_out += 1
            else:
                text += block
    note = f"\nToo long for this summary: {left_out} tables. The report and the JSON document have them.\n"
    return text + (note if left_out else "") + MARK


def number(z: float) -> str:
    """Return an error in margins as text, with its sign; a dash if undefined."""
    return "-" if math.isnan(z) else f"{z:+.2f}".replace("-0.00", "+0.00")


def reasons_text(metric: MetricVerdict) -> str:
    """Return the reasons for the verdict on a metric as text."""
    return "; ".join(REASONS[reason] for reason in metric.reasons)


def _overview(own: Gate, validation: Validation) -> str:
    """Return the result, the findings and the table of metrics of one simulator, whose gate is `own`."""
    simulator = validation.simulator
    name = " ".join(word for word in (simulator.name, simulator.version) if word)
    lines = [f"## {plain(name)}: {outcome(own, validation)}", "", plain(validation.headline), ""]
    for text in filter(None, (validation.noise, validation.resizes)):
        lines += [plain(text), ""]
    lines += [f"- {'**worse than the baseline**: ' if f.failed else ''}{plain(f.text)}" for f in own.findings]
    lines += [""] if own.findings else []
    several = len(validation.cases) > 1
    columns = ("metric", "verdict", *(SEVERAL if several else SINGLE), "margin", "margin needed", "reason")
    lines += table(columns, [_row(metric, several) for metric in validation.metrics])
    if notes := [*validation.courses, *validation.dependence, *validation.moving_averages, *validation.remarks]:
        lines += ["", *(f"- {plain(text)}" for text in notes)]
    return "\n".join([*lines, ""])


def _row(metric: MetricVerdict, several: bool) -> tuple[str, ...]:
    """Return the row of a metric for one case, or for several."""
    worst, cases = metric.worst, len(metric.deciding)
    middle: tuple[str, ...] = (metric.error, number(metric.z))
    if several:
        middle = (
            "-" if math.isnan(metric.mean_absolute) else f"{metric.mean_absolute:.2f}",
            f"{number(worst.z)} ({worst.case})" if worst else "-",
            f"{metric.beyond(1)}, {metric.beyond(2)} of {cases}",
            f"{number(metric.z)} [{number(metric.low)}, {number(metric.high)}]",
        )
    verdict = metric.verdict.value
    return (
        metric.metric.title,
        f"**{verdict}**" if metric.gate and metric.verdict is not Verdict.ACCURATE else verdict,
        *middle,
        metric.margin.words(metric.metric.unit) + ("" if metric.evidence else ", run times not tested"),
        metric.margin_needed,
        reasons_text(metric),
    )


def verdict_table(validation: Validation) -> PaperTable:
    """Return the verdicts on the gated metrics for a paper: with units, n, and intervals."""
    several = len(validation.cases) > 1
    of_case = () if several else ("real, mean", "predicted")
    heads = ("metric", *of_case, *(SEVERAL if several else SINGLE), "margin", "n", "verdict")
    rows = []
    for metric in validation.gated:
        title, _, *middle, margin, _, _ = _row(metric, several)
        first, counts = metric.deciding[0], sorted({case.repeats for case in metric.deciding})
        means = [] if several else [cell(first.real_mean), cell(first.predicted)]
        n = "-".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        rows.append((title, *means, *middle, margin.removesuffix(", gate"), n, metric.verdict.value))
    simulator, level = validation.simulator, 100 * (1 - 2 * validation.tolerances.alpha)
    caption = (
        f"Predictions of {simulator.name} {simulator.version}".rstrip()
        + f" ({counted(simulator.runs, 'run')}) and the "
        f"real runs of {counted(len(validation.cases), 'case')}, n repetitions each. In brackets: the {level:g} % "
        "interval of the mean error, predicted - real (Student's t over the repetitions). The interval is of these "
        "workloads, not over seeds of a model."
    )
    return PaperTable(heads, rows, caption)


def _details(validation: Validation) -> Iterator[tuple[str, str]]:
    """Yield the title and the body of each folded part: warnings, runs, and a table of cases for each metric."""
    name = plain(validation.simulator.name)
    if validation.warnings:
        yield f"{name}: warnings ({len(validation.warnings)})", "\n".join(f"- {plain(w)}" for w in validation.warnings)
    excluded = [
        (result.case.name, repetition.name, repetition.excluded)
        for result in validation.cases
        for repetition in result.repetitions
        if repetition.excluded
    ]
    if excluded:
        rows = table(("case", "repetition", "reason"), excluded)
        yield f"{name}: excluded repetitions ({len(excluded)})", "\n".join(rows)
    columns = ("case", "real runs", "real, mean", "predicted", "error", "error / margin", "interval", "real, CV")
    for metric in validation.metrics:
        cases = [
            (
                item.case,
                str(item.repeats),
                cell(item.real_mean),
                cell(item.predicted),
                percent(item.relative_error),
                number(item.z),
                f"{number(item.low)} to {number(item.high)}",
                "-" if math.isnan(item.noise_cv) else f"{100 * item.noise_cv:.2f} %",
            )
            for item in metric.cases
        ]
        yield f"{name}: {metric.metric.title}, {len(cases)} cases", "\n".join(table(columns, cases))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table whose columns are aligned in plain text, too."""
    texts = [list(columns), *([plain(text) for text in row] for row in rows)]
    widths = [max(len(row[index]) for row in texts) for index in range(len(columns))]
    padded = [[text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in texts]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return [lines[0], rule, *lines[1:]]


def plain(text: str) -> str:
    """Return text that Markdown shows as it is, on one line: names of files and jobs may contain any character."""
    for letter in "\\`<|":
        text = text.replace(letter, f"\\{letter}")
    return " ".join(text.split())
