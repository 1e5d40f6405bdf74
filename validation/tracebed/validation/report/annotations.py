"""Validations as annotations of files: workflow commands of GitHub, and a code-quality report of GitLab."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracebed.ground.errors import ExitCode
from tracebed.validation.report.markdown import number, reasons_text
from tracebed.validation.verdict.gate import FAILED, Finding, OnInconclusive, gate, of_simulator, outcome
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
    failures: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the workflow commands that annotate files on GitHub: one per failed metric, at most `MOST` of a kind.

    Args:
        validations: one per simulator.
        inconclusive: consequence of an inconclusive verdict. `pass` gives no annotation.
        findings: differences from the baseline.
        files: the tolerances file, the suite file, ...: a metric is annotated at the line that sets its margin, else
            at the first line of the last file. A simulator is annotated at the line with its name, in any file.
        failures: simulator without a verdict -> why.
    """
    every = list(annotations_of(validations, inconclusive, findings, files, failures))
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
    failures: Mapping[str, str] | None = None,
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
        for item in annotations_of(validations, inconclusive, findings, files, failures)
    ]
    return json.dumps(entries, indent=2) + "\n"


def annotations_of(
    validations: Sequence[Validation],
    inconclusive: OnInconclusive,
    findings: Iterable[Finding],
    files: Sequence[Path | str],
    failures: Mapping[str, str] | None = None,
) -> Iterator[Annotation]:
    """Yield an annotation per simulator without a verdict, per gated metric that fails or is inconclusive, per finding.

    A simulator whose gate fails without any of these has an annotation of its own.
    """
    findings = list(findings)
    for name, why in (failures or {}).items():
        yield Annotation("error", f"{name}: {FAILED}", why, *place_of(name, files))
    for validation in validations:
        name, own = validation.simulator.name, of_simulator(validation, findings)
        policy = OnInconclusive.FAIL if validation.exit_code is ExitCode.UNHEALTHY else inconclusive
        levels = [(metric, _level(metric, policy)) for metric in validation.metrics]
        for metric, level in levels:
            if level:
                title = f"{name}: {metric.metric.title} is {metric.verdict}"
                yield Annotation(level, title, _text(metric), *place(metric.metric.name, files))
        shown = any(level == "error" for _, level in levels) or any(finding.failed for finding in own)
        if not shown and gate([validation], inconclusive, own) is not ExitCode.OK:
            title = f"{name}: {outcome(validation, inconclusive, own)}"
            yield Annotation("error", title, validation.headline, *place_of(name, files))
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
        for line, text in enumerate(_lines(path), 1):
            if re.match(rf"\s*({names})\s*:", text):
                return str(path), line
    return _first_line(files)


def place_of(simulator: str, files: Sequence[Path | str]) -> tuple[str, int]:
    """Return the file and the line that name a simulator, below `simulators`; else the last file and line 1."""
    for path in files:
        below = False
        for line, text in enumerate(_lines(path), 1):
            below = below or re.match(r"\s*simulators\s*:", text) is not None
            if below and re.match(rf"\s*(simulators\s*:.*[\s{{])?[\"']?{re.escape(simulator)}[\"']?\s*:", text):
                return str(path), line
    return _first_line(files)


def _lines(path: Path | str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


def _first_line(files: Sequence[Path | str]) -> tuple[str, int]:
    return (str(files[-1]), 1) if files else ("", 1)


def _command(item: Annotation) -> str:
    """Return the workflow command of an annotation."""
    where = f"file={_property(item.file)},line={item.line}," if item.file else ""
    return f"::{item.level} {where}title={_property(item.title)}::{_data(item.text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
