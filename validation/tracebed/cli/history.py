"""The history of a baseline, of `tracebed metrics BASELINE`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from tracebed.cli.console import print_json, print_table
from tracebed.cli.messages import emit
from tracebed.ground.errors import InputError


def is_baseline(path: Path) -> bool:
    """Return whether a path is the name of a baseline, and not of a run."""
    return path.suffix in (".yaml", ".yml", ".json") and not path.is_dir()


def print_history(baselines: Sequence[Path], reports: Mapping[str, Path], *, as_json: bool) -> None:
    """Print how the verdicts of a baseline changed, and draw the errors of its gated metrics."""
    import tracebed.api as tb

    if other := next((path for kind, path in reports.items() if kind != "picture"), None):
        raise InputError("not a picture", where=str(other), hint="a baseline becomes .svg, .png, .pdf or .csv")
    found = tb.history(*baselines)
    gated = found.table[found.table["gate"]]
    if as_json:
        print_json("tracebed-history/1", {"versions": found.table.to_dict("records")})
    else:
        titles = tb.metric_definitions()
        names = list(dict.fromkeys(gated["metric"]))
        keys = ["version", "date", "simulator", "verdict"]
        errors = (
            gated.pivot_table("z", keys, "metric", sort=False, dropna=False).reindex(columns=names).dropna(how="all")
        )
        rows = [[version, str(date)[:10], *rest] for version, date, *rest in errors.reset_index().to_numpy()]
        heads = [titles[name].label if name in titles else name for name in names]
        print_table([*keys, *heads], rows)
        click.echo("Errors are in margins.")
    if "picture" in reports:
        emit(f"picture: {found.picture.save(reports['picture'])}")
