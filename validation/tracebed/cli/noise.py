"""The noise of repeated real runs: the tables and the file of `tracebed metrics --noise`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracebed.cli.console import print_json, print_table
from tracebed.cli.messages import emit, progress, warn
from tracebed.ground.errors import InputError

if TYPE_CHECKING:
    from tracebed.api.noises import CellNoise, NoiseFloor, Tolerances

SCHEMA = "tracebed-noise-floor/1"


def print_noise(
    runs: Sequence[Path], output: Path, *, replace: bool, tolerances_file: Path | None, tau: float, as_json: bool
) -> None:
    """Print the noise of repetitions, and write the noise profile.

    Args:
        runs: real runs, folders of repetitions, or folders of experiments.
        output: file of the noise profile.
        replace: whether an earlier noise profile is replaced.
        tolerances_file: margins for the repetitions needed, in place of the defaults.
        tau: threshold of the bounded slowdown, s.
        as_json: whether to print JSON in place of tables.

    Raises:
        InputError: a run cannot be used, or the repetitions are too few for a profile.
    """
    import tracebed.api as tb
    from tracebed.api.noises import NO_JOURNAL, Tolerances

    tolerances = Tolerances.load(tolerances_file) if tolerances_file is not None else Tolerances.default()
    with progress("reading the runs"):
        floor = tb.noise(list(runs), tau=tau)
    if as_json:
        print_json(SCHEMA, _document(floor, tolerances))
    else:
        _print(floor, tolerances)
    for reason in floor.left_out:
        warn(f"excluded: {reason}")
    for text in floor.unusual:
        warn(f"unusual in outcome, included: {text}")
    for note in floor.notes:
        (emit if NO_JOURNAL in note else warn)(note)  # runs of recorded suites have none: nothing to be mended
    if floor.profile is None:
        what = "the repetitions are too few for a noise profile"
        raise InputError(what, hint="a profile needs five repetitions of a workload and policy, or more of several")
    floor.profile.save(output, replace=replace)
    emit(f"noise profile: {output}")


def _document(floor: NoiseFloor, tolerances: Tolerances) -> dict[str, Any]:
    from tracebed.api.noises import repeats_for

    return {
        "cells": [vars(item) | {"cv": item.cv} for item in floor.cells],
        "repeats_needed": repeats_for(floor, tolerances),
        "profile": floor.profile.model_dump(mode="json", by_alias=True) if floor.profile else None,
        "left_out": list(floor.left_out),
        "unusual": list(floor.unusual),
        "notes": list(floor.notes),
        "selections": {
            name: {metric: noise.model_dump(mode="json") for metric, noise in pooled.items()}
            for name, pooled in floor.selections.items()
        },
    }


def _print(floor: NoiseFloor, tolerances: Tolerances) -> None:
    """Print the cells with the gated metrics, and a line per metric with its pooled noise."""
    from tracebed.api.measures import metric_definitions
    from tracebed.api.noises import repeats_for

    known = metric_definitions()
    gated = [name for name, margin in tolerances.margins.items() if margin.gate and name in known]
    by_cell: dict[str, dict[str, Any]] = {}
    for item in floor.cells:
        by_cell.setdefault(item.cell, {})[item.metric] = item
    rows = []
    for cell, items in by_cell.items():
        figures = [_figure(items[name]) if name in items else None for name in gated]
        rows.append([cell, max(item.repetitions for item in items.values()), *figures])
    print_table(["cell", "n", *(known[name].title for name in gated)], rows)
    click.echo("mean ± standard deviation of a repetition (coefficient of variation)\n")
    needed = repeats_for(floor, tolerances)
    lines = []
    for name, repeats in needed.items():
        pooled = floor.profile.noise(name) if floor.profile else None
        lines.append(
            [
                known[name].label,
                f"{pooled.log_sd:.2%}" if pooled else None,
                *(f"{found[name].log_sd:.2%}" if name in found else None for found in floor.selections.values()),
                f"{pooled.df:g}" if pooled else None,
                tolerances.margins[name].words(known[name].unit),
                "more than 1,000" if repeats is None else repeats,
            ]
        )
    print_table(["metric", "pooled noise", *floor.selections, "df", "margin", "repetitions needed"], lines)
    click.echo("repetitions of each cell with which an exact prediction is accurate with a probability of 80 %")


def _figure(item: CellNoise) -> str:
    """Return mean, standard deviation and coefficient of variation as text; the mean of a single run."""
    from tracebed.ground.display import cell as shown

    if item.repetitions < 2:
        return shown(item.mean)
    cv = "-" if item.cv != item.cv else f"{item.cv:.2%}"
    return f"{shown(item.mean)} ± {shown(item.sd)} ({cv})"
