"""Validations as annotations of files: workflow commands of GitHub, and a code-quality report of GitLab."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracebed.validation.report.markdown import number, reasons_text
from tracebed.validation.verdict.gate import Finding, OnInconclusive
from tracebed.validation.verdict.rule import Verdict
from tracebed.validation.verdict.validation import MetricVerdict, Validation

MOST = 10
"""Largest number of annotations of one kind that GitHub shows for a step."""


@dataclass(frozen=True)
class Annotation:
    """A message at a line of a file."""

    level: str
    """`error` or `warning`."""
    title: str
    text: str
    file: str
    """Empty: no file."""
    line: int


def annotate(
    validations: Sequence[Validation],
    inconclusive: OnInconclusive,
    findings: Iterable[Finding] = (),
    files: Sequence[Path | str] = (),
) -> list[str]:
    """Return the workflow commands that annotate files on GitHub: one per failed metric, at most `MOST` of a kind.

    Args:
        validations: one per simulator.
        inconclusive: consequence of an inconclusive verdict. `pass` gives no annotation.
        findings: differences from the baseline.
        files: the tolerances file, the suite file, ...: a metric is annotated at the line that sets its margin, else
            at the first line of the last file.
    """
    every = list(annotations_of(validations, inconclusive, findings, files))
    lines = []
    for level in ("error", "warning"):
        chosen = [item for item in every if item.level == level]
        if len(chosen) > MOST:
            rest = len(chosen) - MOST + 1
            chosen = chosen[: MOST - 1]
            chosen.append(Annotation(level, "tracebed", f"{rest} more: see the summary", chosen[0].file, 1))
        lines += [_command(item) for item in chosen]
    return lines


def code_quality(
    validations: Sequence[Validation],
    inconclusive: OnInconclusive,
    findings: Iterable[Finding] = (),
    files: Sequence[Path | str] = (),
) -> str:
    """Return the annotations as a code-quality report of GitLab (JSON). The arguments are those of `annotate`."""
    entries = [
        {
            "description": f"{item.title}: {item.text}",
            "check_name": "tracebed",
            "fingerprint": hashlib.sha256(f"{item.file} {item.title}".encode()).hexdigest(),
            "severity": "major" if item.level == "error" else "minor",
            "location": {"path": item.file, "lines": {"begin": item.line}},
        }
        for item in annotations_of(validations, inconclusive, findings, files)
    ]
    return json.dumps(entries, indent=2) + "\n"


def annotations_of(
    validations: Sequence[Validation],
    inconclusive: OnInconclusive,
    findings: Iterable[Finding],
    files: Sequence[Path | str],
) -> Iterator[Annotation]:
    """Yield an annotation per gated metric that fails or is inconclusive, and per finding."""
    for validation in validations:
        for metric in validation.metrics:
            level = _level(metric, inconclusive)
            if level:
                file, line = place(metric.metric.name, files)
                title = f"{validation.simulator.name}: {metric.metric.title} is {metric.verdict}"
                yield Annotation(level, title, _text(metric), file, line)
    for finding in findings:
        file, line = place(finding.metric, files)
        title = f"{finding.simulator}: {finding.title}, baseline"
        yield Annotation("error" if finding.failed else "warning", title, finding.text, file, line)


def _level(metric: MetricVerdict, inconclusive: OnInconclusive) -> str:
    """Return the level of the annotation of a metric; empty: no annotation."""
    if not metric.gate or metric.verdict is Verdict.ACCURATE:
        return ""
    if metric.verdict is Verdict.INACCURATE:
        return "error"
    return {OnInconclusive.FAIL: "error", OnInconclusive.WARN: "warning", OnInconclusive.PASS: ""}[inconclusive]


def _text(metric: MetricVerdict) -> str:
    """Return the error of a metric, its worst case and the reasons as a sentence."""
    text = f"error {number(metric.z)} margins, interval {number(metric.low)} to {number(metric.high)}"
    if len(metric.deciding) > 1:
        text = f"{metric.spread}; mean {text}"
    text += f"; margin {metric.margin.words(metric.metric.unit)}"
    return text + (f"; {reasons_text(metric)}" if metric.reasons else "")


def place(metric: str, files: Sequence[Path | str]) -> tuple[str, int]:
    """Return the file and the line that set the margin of a metric; else the last file and line 1."""
    from tracebed.validation.metrics import all_metrics

    known = all_metrics().get(metric)
    names = "|".join(re.escape(name) for name in (metric, known.short if known else "") if name)
    for path in files if names else ():
        for line, text in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
            if re.match(rf"\s*({names})\s*:", text):
                return str(path), line
    return (str(files[-1]), 1) if files else ("", 1)


def _command(item: Annotation) -> str:
    """Return the workflow command of an annotation."""
    where = f"file={_property(item.file)},line={item.line}," if item.file else ""
    return f"::{item.level} {where}title={_property(item.title)}::{_data(item.text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
