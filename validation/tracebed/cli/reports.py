"""`--report`: pages, summaries and pictures, by the ending of the name; a folder has each figure for a paper."""

from __future__ import annotations

from pathlib import Path

import tracebed.api as tb
from tracebed.cli.messages import emit, progress
from tracebed.ground.errors import InputError
from tracebed.ground.outputs import JUNIT, LATEX, PICTURE, REPORT, SUMMARY, OutputKind

KINDS: dict[str, tuple[OutputKind, tuple[str, ...]]] = {
    "html": (REPORT, (".html", ".htm")),
    "markdown": (SUMMARY, (".md",)),
    "junit": (JUNIT, (".xml",)),
    "latex": (LATEX, (".tex",)),
    "picture": (PICTURE, (".png", ".svg", ".pdf", ".csv")),
}
"""Kind of a report -> its output, and the endings of its files."""
FIGURES = (
    "a name without ending is a folder for each figure as wide as one column (3.5 inches) and two (7.16), as .svg, "
    ".png and .pdf, with its data as .csv"
)


def kind_of(path: Path) -> str:
    """Return the kind of a report by the ending of its name: `figures` without ending; empty if it is unknown."""
    if not path.suffix:
        return "figures"
    return next((kind for kind, (_, endings) in KINDS.items() if path.suffix.lower() in endings), "")


class ReportFile:
    """A report: a file of one of some kinds, or a folder of figures."""

    renewed = True

    def __init__(self, *kinds: str) -> None:
        """Take the accepted kinds of `KINDS`."""
        self.kinds = kinds

    def check(self, path: Path, *, replace: bool = False) -> None:
        """Check that a report of this kind can be written to `path`; raise InputError otherwise."""
        kind = kind_of(path)
        if kind == "figures":
            tb.check_folder(path)
        elif kind in self.kinds:
            KINDS[kind][0].check(path, replace=replace)
        else:
            known = ", ".join(ending for each in self.kinds for ending in KINDS[each][1])
            hint = f"let the name end in {known}, or name a folder"
            raise InputError("the name does not end like that of a report", where=str(path), hint=hint)


def by_kind(paths: tuple[Path, ...]) -> dict[str, Path]:
    """Return the reports by their kinds. Raises InputError if two are of one kind."""
    found = {kind_of(path): path for path in paths}
    if len(found) < len(paths):
        raise InputError("two reports of one kind are given", hint="give --report once for each kind of file")
    return found


def save_figures(subject: tb.Pictured, folder: Path) -> None:
    """Write the pictures of runs, of a verdict or of an error budget to a folder."""
    with progress("drawing the figures"):
        written = tb.save_pictures(subject, folder)
    emit(f"figures: {folder}, {len(written)} files")
