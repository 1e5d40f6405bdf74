"""The report of a comparison as a self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tracebed.errors import InputError
from tracebed.files import replacing
from tracebed.validation.report.interactive import POLICY, charts
from tracebed.validation.report.sections import Section, shown
from tracebed.validation.report.templates import fill
from tracebed.validation.report.words import real_side
from tracebed.validation.verdict import Comparison


def write(comparison: Comparison, path: Path | str, more: Mapping[str, Section] | None = None) -> Path:
    """Write the report to `path` atomically. Raises InputError if the file cannot be written.

    Args:
        comparison: the comparison.
        path: the file.
        more: further sections of this report, by name.
    """
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):  # do not overwrite a workload or a run.json by mistake
        raise InputError("the name of a report must end in .html", where=str(path), hint="name another file")
    text = render(comparison, more)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path), hint="name another file") from error
    with replacing(path) as file:
        file.write(text.encode())
    return path


def render(comparison: Comparison, more: Mapping[str, Section] | None = None) -> str:
    """Return the report as an HTML document. The same comparison gives the same text; `more` as in `write`."""
    name = comparison.real.info.workload.get("name") or "a workload"
    real = real_side(comparison.real.info)
    sections = list(shown({"pair": comparison}, more))
    interactive = charts(comparison) if any("<figure data-chart=" in section.html for section in sections) else None
    policy = interactive.policy if interactive else POLICY
    return str(
        fill("page", c=comparison, name=name, real_side=real, sections=sections, charts=interactive, policy=policy)
    )
