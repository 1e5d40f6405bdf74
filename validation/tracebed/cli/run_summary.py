"""What the commands that make runs write and print of them."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tracebed.api as tb
from tracebed.cli.console import print_json, print_table
from tracebed.cli.messages import warn
from tracebed.ground.states import JobState

SHOWN = ("makespan_s", "mean_wait_s", "mean_response_s", "utilization")
"""The metrics of a run that each command that makes a run prints."""


def saved(run: tb.Run, output: Path, *, replace: bool) -> dict[str, float]:
    """Save a run. Return the metrics that its summary shows, which are computed while the files are written."""
    with ThreadPoolExecutor(1) as thread:
        shown = thread.submit(tb.figures, run, SHOWN)
        run.save(output, replace=replace)
    return shown.result()


def summary(
    run: tb.Run,
    output: Path,
    as_json: bool,
    more: Mapping[str, Any] | None = None,
    *,
    shown: Mapping[str, float] | None = None,
) -> None:
    """Print what the run in a folder amounts to, and its warnings. `more` are further keys of the JSON document.

    `shown` are the metrics `SHOWN`, if they are known.
    """
    info = run.info
    for warning in info.warnings:
        warn(warning)
    for reason in dict.fromkeys(info.unknown.values()):
        warn(f"{', '.join(name for name, why in info.unknown.items() if why == reason)} unknown: {reason}")
    shown, late = tb.figures(run, SHOWN) if shown is None else shown, info.lateness_ms
    facts = {
        "run": str(output),
        "execution": info.execution,
        "policy": info.policy,
        "nodes": run.total_nodes,
        **{name: info.counts[name] for name in ("jobs", *JobState) if name in info.counts},
        **shown,
        "resizes": tb.resizes(run),
        **({"jobs_on_shared_nodes": shared} if (shared := run.jobs_on_shared_nodes) else {}),
        **{f"lateness_{key}_ms": late[key] for key in ("p50", "p99", "max") if key in late},
        "state": info.state,
        **({"health": info.health["state"]} if info.health else {}),
    }
    for cause in info.health.get("causes", []):
        warn(f"the run is {cause['state']}: {cause['text']}")
    if wider := info.health.get("wider", []):
        others = f" and {len(wider) - 1} more" if len(wider) > 1 else ""
        warn(f"the limits of --health are wider than the defaults ({wider[0]}{others}), by which runs are judged")
        for cause in info.health["defaults"]["causes"]:
            warn(f"by the defaults the run is {cause['state']}: {cause['text']}")
    if as_json:
        print_json("tracebed-run/1", facts | ({"health": info.health} if info.health else {}) | dict(more or {}))
    else:
        titles = {name: metric.title for name, metric in tb.metric_definitions().items()}
        print_table(["", ""], [[titles.get(name, name.replace("_", " ")), value] for name, value in facts.items()])
