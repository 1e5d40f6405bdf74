"""`tracebed metrics`: the metrics of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

import tracebed.api as tb
from tracebed.cli.console import change, explain_falls, print_json, print_table
from tracebed.cli.messages import emit, progress, warn
from tracebed.cli.options import (
    DURATION,
    OutputPath,
    check_alone,
    duration,
    gathered,
    json_option,
    option,
    replace_option,
    shared,
    tau_option,
)
from tracebed.cli.reports import FIGURES, ReportFile, by_kind, save_figures
from tracebed.ground.display import cell as shown
from tracebed.ground.errors import InputError
from tracebed.ground.outputs import NOISE

if TYPE_CHECKING:
    import pandas as pd


def is_baseline(path: Path) -> bool:
    """Return whether a path is the name of a baseline, and not of a run."""
    return path.suffix in (".yaml", ".yml", ".json") and not path.is_dir()


def print_history(baselines: Sequence[Path], reports: Mapping[str, Path], *, as_json: bool) -> None:
    """Print how the verdicts of a baseline changed and where its errors step, and write the page or the picture."""
    if other := reports.get("figures") or reports.get("latex"):
        hint = "a baseline becomes .html, .svg, .png, .pdf or .csv"
        raise InputError("not a page or a picture", where=str(other), hint=hint)
    found = tb.history(*baselines)
    steps = found.steps
    gated = found.table[found.table["gate"]]
    if as_json:
        print_json(
            "tracebed-history/1", {"versions": found.table.to_dict("records"), "steps": steps.to_dict("records")}
        )
    else:
        titles = tb.metric_definitions()
        names = list(dict.fromkeys(gated["metric"]))
        keys = ["version", "date", "simulator", "verdict"]
        errors = (
            gated.pivot_table("z", keys, "metric", sort=False, dropna=False).reindex(columns=names).dropna(how="all")
        )
        rows = [[version, str(date)[:10], *rest] for version, date, *rest in errors.reset_index().to_numpy()]
        labels = {name: titles[name].label if name in titles else name for name in names}
        print_table([*keys, *labels.values()], rows)
        click.echo("Errors are in margins.")
        changes: dict[tuple[str, str], list[str]] = {}
        for step in steps.to_dict("records"):
            if step["metric"] in labels:
                place = (step["simulator"], " ".join(filter(None, (step["version"], step["date"][:10]))))
                text = f"{labels[step['metric']]} {step['before']:+.2f} to {step['after']:+.2f}"
                changes.setdefault(place, []).append(text)
        for (simulator, at), texts in changes.items():
            click.echo(f"step of {simulator} at {at}: {'; '.join(texts)}")
    if "html" in reports:
        emit(f"report: {found.page(reports['html'])}")
    if "picture" in reports:
        emit(f"picture: {found.picture.save(reports['picture'])}")


NOISE_SCHEMA = "tracebed-noise-floor/1"


def print_noise(
    runs: Sequence[Path], output: Path, tolerances_file: Path | None, *, replace: bool, tau: float, as_json: bool
) -> None:
    """Print the noise of repetitions, and write the noise profile to `output`.

    `runs` are real runs, folders of repetitions, or folders of experiments; `tolerances_file` has margins for the
    repetitions needed, in place of the defaults. Raises InputError if the repetitions are too few for a profile.
    """
    tolerances = tb.Tolerances.load(tolerances_file) if tolerances_file is not None else tb.Tolerances.default()
    with progress("reading the runs"):
        floor = tb.noise(list(runs), tau=tau)
    if as_json:
        print_json(NOISE_SCHEMA, _noise_document(floor, tolerances))
    else:
        _print_floor(floor, tolerances)
    for reason in floor.left_out:
        warn(f"excluded: {reason}")
    for text in floor.unusual:
        warn(f"unusual in outcome, included: {text}")
    for note in floor.notes:
        (emit if tb.NO_JOURNAL in note else warn)(note)  # runs of recorded suites have none: nothing to be mended
    if floor.profile is None:
        what = "the repetitions are too few for a noise profile"
        raise InputError(what, hint="a profile needs five repetitions of a workload and policy, or more of several")
    floor.profile.save(output, replace=replace)
    emit(f"noise profile: {output}")


def _noise_document(floor: tb.NoiseFloor, tolerances: tb.Tolerances) -> dict[str, Any]:
    return {
        "cells": [vars(item) | {"cv": item.cv} for item in floor.cells],
        "repeats_needed": tb.repeats_for(floor, tolerances),
        "profile": floor.profile.model_dump(mode="json", by_alias=True) if floor.profile else None,
        "left_out": list(floor.left_out),
        "unusual": list(floor.unusual),
        "notes": list(floor.notes),
        "selections": {
            name: {metric: noise.model_dump(mode="json") for metric, noise in pooled.items()}
            for name, pooled in floor.selections.items()
        },
    }


def _print_floor(floor: tb.NoiseFloor, tolerances: tb.Tolerances) -> None:
    """Print the cells with the gated metrics, and a line per metric with its pooled noise."""
    known = tb.metric_definitions()
    gated = [name for name, margin in tolerances.margins.items() if margin.gate and name in known]
    by_cell: dict[str, dict[str, Any]] = {}
    for item in floor.cells:
        by_cell.setdefault(item.cell, {})[item.metric] = item
    rows = []
    for cell, items in by_cell.items():
        figures = [_cell_figure(items[name]) if name in items else None for name in gated]
        rows.append([cell, max(item.repetitions for item in items.values()), *figures])
    print_table(["cell", "n", *(known[name].title for name in gated)], rows)
    click.echo("mean ± standard deviation of a repetition (coefficient of variation)\n")
    needed = tb.repeats_for(floor, tolerances)
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


def _cell_figure(item: tb.CellNoise) -> str:
    """Return mean, standard deviation and coefficient of variation as text; the mean of a single run."""
    if item.repetitions < 2:
        return shown(item.mean)
    cv = "-" if item.cv != item.cv else f"{item.cv:.2%}"
    return f"{shown(item.mean)} ± {shown(item.sd)} ({cv})"


UNKNOWN = "significance is unknown: `tracebed simulate --perturb` gives the figures of a run their intervals"
CORE_CHANGES = {"applied": "applied", "median_s": "median (s)", "p99_s": "p99 (s)", "max_s": "longest (s)"}
"""Figure of the changes of cores -> its name."""


def _definitions(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print the installed metrics with their definitions and margins, and end the command."""
    if not value or ctx.resilient_parsing:
        return
    rows = [
        (f"{metric.title}: {metric.docs}", metric.name, metric.margin.words(metric.unit) if metric.margin else "")
        for metric in tb.metric_definitions().values()
    ]
    print_table(["metric", "key", "margin"], rows)
    ctx.exit()


@dataclass(frozen=True)
class Measures:
    """What is measured, and over which jobs."""

    tau: float = shared(tau_option)
    window: str = option(
        default="arrivals",
        metavar="arrivals|full|START:END",
        help="Time in which utilization, throughput and loss of capacity are measured: first to last submission, the "
        "whole run, or between two instants after the first submission (seconds, or 90s, 15m, 2h, 1d).",
    )
    after: float = option(
        type=DURATION,
        default=0.0,
        show_default=False,
        metavar="S",
        help="Warm-up: leave out jobs submitted in the first S seconds.",
    )
    power: str = option(
        default="100:5",
        metavar="IDLE:CORE",
        help="Power of an idle node and of a busy core for the modelled energy, in watts, if the machine of the run "
        "does not say them.",
    )
    grid: str | None = option(
        metavar="GRID",
        help="Grid of the nodes, such as 8x16, for distances and fragmentation.  [default: that of the run]",
    )
    ended: bool = option(help="Leave out jobs that have not ended by the last submission.")

    @property
    def keywords(self) -> dict[str, Any]:
        """The options, as `tracebed.api.measured` takes them. Raises InputError if one is invalid."""
        return vars(self) | {"window": _window(self.window), "power": _power_model(self.power)}


@dataclass(frozen=True)
class Outputs:
    """What is written besides the table, or in its place."""

    by: Literal["user", "account", "partition", "class", "size"] | None = option(
        help="Print jobs, node hours, waits and slowdowns by user, account, partition, class of nodes or size "
        "(requested nodes) in place of the metrics: the 20 with the most node hours, and the others together."
    )

    noise: Path | None = option(
        type=OutputPath(NOISE),
        metavar="FILE.yaml",
        help="The runs are repetitions of real runs: print how much their metrics vary, and how many repetitions a "
        "verdict needs, and write the noise profile of the testbed.",
    )
    tolerances: Path | None = option(
        help="With --noise: margins for the repetitions needed.  [default: those of the metrics]"
    )
    reports: tuple[Path, ...] = option(
        "--report",
        type=OutputPath(ReportFile("html", "latex", "picture")),
        metavar="FILE|FOLDER",
        help="Write a page with the metrics, curves, distributions and Gantt charts of all runs (.html), or a LaTeX "
        f"table of the metrics with margins (.tex); may be repeated: {FIGURES}. Of baselines: the page of their errors "
        "and steps (.html), or the picture (.svg, .png, .pdf, .csv).",
    )


@click.command(epilog="\b\nExample:\n  tracebed metrics runs/real runs/sim --window 0:2h")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@gathered("measures", Measures)
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_definitions,
    help="Print the definitions and margins of all metrics, and exit.",
)
@gathered("outputs", Outputs)
@replace_option
@json_option
def metrics(runs: tuple[Path, ...], measures: Measures, outputs: Outputs, replace: bool, as_json: bool) -> None:
    """Print the metrics of runs: makespan, waits, responses, slowdowns, utilization, operations.

    Several runs are shown side by side. The figures of a run of `tracebed simulate --perturb` are followed by the
    interval over the runs with perturbed input, and a second table has the significant differences of the other runs
    from the first.

    With --noise, RUN is a real run, a folder of repetitions (rep-01, rep-02, ...), or the folder of an experiment. All
    runs must be from testbeds with the same settings. The profile supplies the noise to `tracebed compare --noise`
    where a real run was not repeated.

    With --by, the table has a row per user, account, partition, class of nodes or size. A job belongs to the class of
    most of its nodes.

    In place of runs, RUN is a baseline of --baseline that is kept in Git, or several baselines: how their verdicts
    changed from commit to commit.
    """
    if outputs.noise is not None:
        check_alone("noise", ("runs", "tolerances", "replace", "tau", "as_json"))
        print_noise(runs, outputs.noise, outputs.tolerances, replace=replace, tau=measures.tau, as_json=as_json)
        return
    if outputs.tolerances is not None or replace:
        raise InputError("--tolerances and --replace are for a noise profile", hint="add --noise FILE")
    if outputs.by is not None:
        check_alone("by", ("runs", "tau", "after", "ended", "as_json"))
        print_by(runs, outputs.by, measures, as_json=as_json)
        return
    if all(map(is_baseline, runs)):
        check_alone("report", ("runs", "reports", "as_json"))
        print_history(runs, by_kind(outputs.reports), as_json=as_json)
        return
    options = measures.keywords
    sets: dict[str, tb.FolderMetrics] = {}
    for path in dict.fromkeys(runs):
        with progress(f"measuring {path.name}"):
            sets[str(path)] = tb.measured(path, **options)
    found = {
        run: each.metrics | ({"perturbed": each.intervals} if each.intervals else {}) for run, each in sets.items()
    }
    first, *others = sets
    for run, each in sets.items():
        if each.virtual:
            warn(f"{run} is a replay on virtual nodes, not a real run")
    for other in others:
        if sets[other].workload != sets[first].workload:
            warn(f"{other} and {first} have different workloads (the hashes differ)")
    against = {run: tb.differences(sets[first], sets[run]) for run in others}
    _draw(found, by_kind(outputs.reports))
    if as_json:
        sides = [{"run": run, "metrics": figures} for run, figures in found.items()]
        facts = [
            {"run": run, "against": first, "metrics": {name: each.to_json() for name, each in metrics.items()}}
            for run, metrics in against.items()
        ]
        print_json("tracebed-metrics/1", {"runs": sides} | ({"differences": facts} if others else {}))
        return
    _show(found)
    if any(each.differ is not None for metrics in against.values() for each in metrics.values()):
        _show_differences(first, against)


def print_by(runs: Sequence[Path], by: str, measures: Measures, *, as_json: bool) -> None:
    """Print the figures of the jobs of runs by class."""
    tables: dict[str, pd.DataFrame] = {}
    for path in dict.fromkeys(runs):
        with progress(f"measuring {path.name}"):
            tables[str(path)] = tb.metrics_by(path, by, tau=measures.tau, after=measures.after, ended=measures.ended)
    if as_json:
        sides = [{"run": run, "classes": table.to_dict("records")} for run, table in tables.items()]
        print_json("tracebed-metrics-by/1", {"by": by, "tau": measures.tau, "runs": sides})
        return
    names = _names(tables)
    rows = [
        [label, *([name] if len(names) > 1 else []), *figures]
        for name, table in zip(names, tables.values(), strict=True)
        for label, _, *figures in table.itertuples(index=False)
    ]
    heads = ["jobs", "node hours", "wait, mean (s)", "wait, median (s)", "bounded slowdown, mean"]
    several = ["run"] if len(names) > 1 else []
    print_table([by, *several, *heads], rows, keys=1 + len(several))


def _draw(found: dict[str, dict[str, Any]], reports: dict[str, Path]) -> None:
    """Write the reports of the runs."""
    if not reports:
        return
    if "picture" in reports:
        hint = "write a page (.html) or a folder of figures"
        raise InputError("a picture is for baselines", where=str(reports["picture"]), hint=hint)
    names = dict(zip(found, _names(found), strict=True))
    runs = {names[path]: tb.Run.load(Path(path)) for path in found}
    if "latex" in reports:
        tb.write_latex(reports["latex"], _paper_table(found))
        emit(f"table: {reports['latex']}")
    if "html" in reports:
        with progress("drawing the report"):
            page = tb.runs_page(runs, reports["html"], {names[path]: each for path, each in found.items()})
        emit(f"report: {page}")
    if "figures" in reports:
        save_figures(runs, reports["figures"])


def _paper_table(found: Mapping[str, Mapping[str, Any]]) -> tb.PaperTable:
    """Return the metrics of runs that have a margin, for a paper; n is the number of jobs that finished."""
    sides = list(found.values())
    rows = [
        [metric.title, *(tb.with_interval(side[name], side.get("perturbed", {}).get(name)) for side in sides)]
        for name, metric in tb.metric_definitions().items()
        if metric.margin and not all(name in side["undefined"] for side in sides)
    ]
    rows.append(["n, finished jobs", *(side["jobs_finished"] for side in sides)])
    interval = "No intervals: one run each, without repetitions and seeds."
    if any("perturbed" in side for side in sides):
        interval = "In parentheses: the middle 95 % of the runs with perturbed input."
    tau, window = sides[0]["tau"], sides[0]["utilization_window"]["name"]
    caption = f"Metrics over the n jobs of each run that finished (bounded slowdown: tau {tau:g} s; window of the "
    return tb.PaperTable(["", *_names(found)], rows, f"{caption}utilization: {window}). {interval}")


def _names(found: Mapping[str, Any]) -> list[str]:
    """Return the names of the folders of the runs, or their paths if the names are not distinct."""
    names = [Path(path).name for path in found]
    return names if len(set(names)) == len(names) else list(found)


def _show_differences(first: str, against: dict[str, dict[str, tb.Difference]]) -> None:
    """Print the differences between the first run and the others."""
    rows = [
        [metric.title, *(change(found.get(name)) for found in against.values())]
        for name, metric in tb.metric_definitions().items()
        if any(found[name].differ is not None for found in against.values() if name in found)
    ]
    click.echo("")
    print_table([f"against {Path(first).name}", *(Path(run).name for run in against)], rows)
    explain_falls((each.low, each.base) for found in against.values() for each in found.values())
    for run, found in against.items():
        if pairs := max((each.pairs for each in found.values()), default=0):
            emit(f"{run}: {pairs} pairs of runs with the same perturbed input")
        elif all(each.differ is None for each in found.values()):
            emit(f"{run}: {UNKNOWN}")
        else:
            emit(f"{run}: not the same perturbed inputs; a difference is significant if the intervals do not overlap")


def _window(text: str) -> str | tuple[float, float]:
    """Parse `arrivals`, `full` or START:END."""
    start, colon, end = text.partition(":")
    return (duration(start), duration(end)) if colon else text


def _power_model(text: str) -> tb.PowerModel:
    """Parse IDLE:CORE, in watts."""
    idle, _, core = text.partition(":")
    try:
        return tb.PowerModel(float(idle), float(core))
    except ValueError:
        raise InputError(f"--power {text} is not IDLE:CORE", hint="for example --power 100:5, in watts") from None


def _show(found: dict[str, dict[str, Any]]) -> None:
    """Print the metrics of the runs, one column per run."""
    known = tb.metric_definitions()
    sides = list(found.values())
    rows: list[list[Any]] = [
        [metric.title, *(tb.with_interval(side[name], side.get("perturbed", {}).get(name)) for side in sides)]
        for name, metric in known.items()
        if not all(name in side["undefined"] for side in sides)
    ]
    rows += [
        [f"jobs {state}", *(side["jobs_by_state"].get(state, 0) for side in sides)]
        for state in dict.fromkeys(state for side in sides for state in side["jobs_by_state"])
    ]
    for kind, stage in dict.fromkeys(
        (kind, stage) for side in sides for kind, stages in side["reconfiguration_s"].items() for stage in stages
    ):
        times = [side["reconfiguration_s"].get(kind, {}).get(stage, {}) for side in sides]
        rows += [[f"{kind}, {stage}, {what} (s)", *(time.get(what) for time in times)] for what in ("median", "p95")]
    for cause in dict.fromkeys(cause for side in sides for cause in side["core_changes"]):
        changes = [side["core_changes"].get(cause, {}) for side in sides]
        for key, what in CORE_CHANGES.items():
            rows.append([f"changes of cores, {cause}, {what}", *(change.get(key) for change in changes)])
    for behaviour in dict.fromkeys(name for side in sides for name in side["deadlines_by_behaviour"]):
        rates = [side["deadlines_by_behaviour"].get(behaviour, {}) for side in sides]
        for key in dict.fromkeys(key for rate in rates for key in rate):
            what = known[key].label if key in known else "jobs with a deadline"
            rows.append([f"behavior {behaviour}, {what}", *(rate.get(key) for rate in rates)])
    windows = [side["utilization_window"] for side in sides]
    rows.append(["window", *(window["name"] for window in windows)])
    rows += [[f"window, {end} (s)", *(window[f"{end}_s"] for window in windows)] for end in ("start", "end")]
    rows.append(["tau (s)", *(side["tau"] for side in sides)])
    print_table(["", *_names(found)], rows)
    for path, side in found.items():
        if side["energy"]["figures"] == "machine":
            emit(f"{path}: the modelled energy is that of the power of the nodes of its machine, by state")
        if note := side["energy"]["clock"]:
            emit(f"{path}: {note}")
        for reason in dict.fromkeys(side["undefined"].values()):
            metrics = [known[name] for name, why in side["undefined"].items() if why == reason]
            if labels := [item.label for item in metrics if not (item.of_malleable_jobs or item.optional)]:
                emit(f"{path}: {reason}: no {', '.join(labels)}")
