"""Checks of outputs, so that a name that cannot be written is an error before the work and not after it."""

from __future__ import annotations

from pathlib import Path


def check_run(path: Path, *, replace: bool = False, real: bool = True) -> None:
    """Raise InputError unless a run can be written to the folder `path`.

    Args:
        path: the folder.
        replace: whether an earlier run in `path` is replaced.
        real: whether the run may be real. A prediction never replaces a finished real run.
    """
    from tracebed.orchestrator.run import check_target

    check_target(path, replace=replace, real=real)


def check_workload(path: Path, format: str | None = None, *, replace: bool = False) -> None:
    """Raise InputError unless a workload can be written to `path`.

    Args:
        path: the file or folder.
        format: name of the format; by default the name of the file tells it.
        replace: whether an earlier workload in `path` is replaced.
    """
    from tracebed.converters.formats.writing import check_output

    check_output(path, format, replace=replace)


def check_export(to: str, path: Path, *, replace: bool = False) -> None:
    """Raise InputError unless a run can be exported to `path`.

    Args:
        to: name of the exporter.
        path: the file.
        replace: whether an earlier export to this format in `path` is replaced.
    """
    from tracebed.validation.export.exporter import kind_of

    kind_of(to).check(path, replace=replace)


def check_picture(path: Path) -> None:
    """Raise InputError unless the name of `path` is that of a picture which can be drawn."""
    from tracebed.converters.pictures import check_name

    check_name(path)
