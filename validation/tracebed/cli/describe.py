"""`tracebed describe`: the statistics of a workload, to check it after cleaning."""

from __future__ import annotations

import math
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import tracebed.api as tb
from tracebed.cli.console import UNBOUNDED, duration_text, load_workload, print_json, print_table
from tracebed.cli.logs import Reading, or_unknown, system_of
from tracebed.cli.messages import emit, progress
from tracebed.cli.options import OutputPath, gathered, json_option, option, workload_argument
from tracebed.ground.display import cell
from tracebed.ground.errors import InputError
from tracebed.ground.outputs import PICTURE

BLOCKS = " ▏▎▍▌▋▊▉█"
COLUMNS = " ▁▂▃▄▅▆▇█"


def bars(title: str, counts: Mapping[str, int], width: int = 24) -> list[str]:
    """Return a bar chart as lines of equal length: label, bar, share."""
    total, top = sum(counts.values()) or 1, max(counts.values(), default=0) or 1
    label = max(map(len, counts), default=0)
    lines = [
        f"{name:>{label}} {_bar(count / top, width)} {count / total:6.1%} {count:>9,}" for name, count in counts.items()
    ]
    longest = max(map(len, [title, *lines]))
    return [f"{line:{longest}}" for line in [title, *lines]]


def _bar(share: float, width: int) -> str:
    eighths = max(round(share * width * 8), int(share > 0))
    return f"{'█' * (eighths // 8) + BLOCKS[eighths % 8].strip():{width}}"


def columns(title: str, counts: Mapping[str, int], *, height: int = 5, width: int = 2, every: int = 1) -> list[str]:
    """Return a column chart as `height` lines and an axis that names every `every`-th column."""
    top = max(counts.values(), default=0) or 1
    levels = [max(round(count / top * height * 8), int(count > 0)) for count in counts.values()]
    lines = [
        "".join(COLUMNS[min(max(level - 8 * row, 0), 8)] * width + " " for level in levels).rstrip()
        for row in reversed(range(height))
    ]
    axis = "".join(f"{name:<{every * (width + 1)}}" for name in list(counts)[::every])
    lines = [f"{title} (highest {top:,})", *lines, axis.rstrip()]
    longest = max(map(len, lines))
    return [f"{line:{longest}}" for line in lines]


def area(
    title: str,
    mean: Sequence[float],
    highest: Sequence[float],
    *,
    limit: float | None,
    ends: tuple[str, str],
    top: float | None = None,
    width: int = 64,
    height: int = 8,
) -> list[str]:
    """Return an area chart as lines: solid up to the mean, shaded up to the maximum, with a line at the limit.

    Args:
        title: title of the chart.
        mean: mean of each bin; bins have equal width.
        highest: maximum of each bin.
        limit: value at which a line is drawn; None draws no line.
        ends: labels under the first and the last bin.
        top: maximum of all charts that share this scale.
        width: width of the chart in characters.
        height: largest number of lines, without the line of the limit.
    """
    top = max(top or 0.0, *highest, limit or 0.0) or 1.0
    below = height if limit is None else max(1, int(height * limit / top))
    size = (limit or top) / below  # the height of one line of text; the limit is a multiple of it
    rows = max(below, math.ceil(top / size - 1e-9))
    count = min(width, len(mean))
    cells = [(i * len(mean) // count, (i + 1) * len(mean) // count) for i in range(count)]
    means = [sum(mean[a:b]) / (b - a) for a, b in cells]
    peaks = [max(highest[a:b]) for a, b in cells]
    label = max(len(f"{value:,.0f}") for value in (top, limit or 0.0))
    repeat = width // count
    lines = []
    for row in reversed(range(rows)):
        text = "".join(_cell(m / size - row, p / size - row) * repeat for m, p in zip(means, peaks, strict=True))
        name = f"{top:,.0f}" if row == rows - 1 and top != limit else ""
        lines.append(f"{name:>{label}} {text}".rstrip())
        if limit is not None and row == below:
            lines.append(_limit_line(limit, label, means, peaks, repeat))
    if limit is not None and rows == below:
        lines.insert(0, _limit_line(limit, label, means, peaks, repeat))
    axis = f"{ends[0]}{ends[1]:>{max(count * repeat - len(ends[0]), len(ends[1]) + 1)}}"
    return [title, *lines, f"{'':{label}} {axis}"]


def _cell(mean: float, highest: float) -> str:
    """Return the character of a cell, given the mean and the maximum relative to the cell (0: bottom, 1: top)."""
    if mean > 0.0:
        return COLUMNS[min(max(round(8 * mean), 1), 8)]
    return "░" if highest > 1e-9 else " "


def _limit_line(limit: float, label: int, means: Sequence[float], peaks: Sequence[float], repeat: int) -> str:
    marks = ("█" if m > limit else "░" if p > limit else "─" for m, p in zip(means, peaks, strict=True))
    return f"{limit:>{label},.0f} " + "".join(mark * repeat for mark in marks)


def side_by_side(left: list[str], right: list[str], gap: str = "    ") -> list[str]:
    """Return two blocks of lines side by side."""
    blank = " " * len(left[0])
    rows = max(len(left), len(right))
    left, right = left + [blank] * (rows - len(left)), right + [""] * (rows - len(right))
    return [f"{a}{gap}{b}".rstrip() for a, b in zip(left, right, strict=True)]


HEADS = {
    **{"jobs": "jobs", "gpu_jobs": "GPU jobs", "nodes": "nodes", "cores": "CPUs", "gpus": "GPUs"},
    **{"core_hours": "core hours", "gpu_hours": "GPU hours", "core_demand": "demand", "gpu_demand": "of GPUs"},
}
TIMES = {"run_time_s": ("run time", ("median", "p95")), "wait_s": ("wait", ("mean", "median", "p95"))}
DEMANDS = {"node": "demand", "gpu": "of GPUs", "memory": "of memory"}
MUCH = 1.0
"""Demand above which a queue grows for as long as the log lasts."""


def print_partitions(facts: Mapping[str, Any]) -> None:
    """Print a row for each partition, and a line for each demand above 100 %; nothing without partitions."""
    found = facts["by_partition"]
    if len(found) < 2:
        return
    shown = found if len(found) > 2 else found[:1]
    known = {name: title for name, title in HEADS.items() if any(row[name] for row in found)}
    times = [(name, of) for name, (_, each) in TIMES.items() for of in each if found[-1][name][of] is not None]
    heads = ["partition", *known.values(), *(f"{TIMES[name][0]}, {of}" for name, of in times)]
    print_table(heads, [_row(row, known, times) for row in shown], spare=("GPU hours", "run time, p95", "wait, median"))
    for row in shown:
        for name, what in (("core_demand", "CPUs"), ("gpu_demand", "GPUs")):
            if row[name] is not None and row[name] > MUCH:
                of = f"partition {row['partition']}" if row["partition"] else "all partitions"
                click.echo(f"demand above 100 %: the jobs of {of} need {100 * row[name]:.0f} % of its {what}")
    click.echo()


def _row(row: Mapping[str, Any], known: Mapping[str, str], times: list[tuple[str, str]]) -> tuple[Any, ...]:
    cells = []
    for name in known:
        value = row[name]
        if name.endswith("_demand"):
            value = _percent(value)
        cells.append(round(value) if isinstance(value, float) else value)
    lengths = (row[name][of] for name, of in times)
    return (row["partition"] or "all", *cells, *(None if value is None else duration_text(value) for value in lengths))


def print_classes(facts: Mapping[str, Any]) -> None:
    """Print what each class of nodes has, the demand of its jobs, and why other jobs cannot run; nothing: no class."""
    classes = facts["node_classes"]
    if not classes:
        return
    rows = [
        (
            *(kind["names"], kind["nodes"], kind["cpus"]),
            None if kind["memory_mib"] is None else f"{kind['memory_mib']:,} MiB",
            ",".join(f"{name}:{count}" for name, count in kind["gres"].items()) or None,
            *(",".join(kind["features"]) or None, ", ".join(kind["partitions"]) or None),
        )
        for kind in classes
    ]
    text = ("class", "features", "partitions")
    print_table(["class", "nodes", "CPUs", "memory", "gres", "features", "partitions"], rows, text=text)
    click.echo()
    rows = [
        (
            *(kind["names"], kind["jobs"], kind["jobs_only"], round(kind["node_hours"]), round(kind["gpu_hours"])),
            *(_percent(kind[f"{what}_demand"]) for what in DEMANDS),
        )
        for kind in classes
    ]
    heads = ["class", "jobs", "only here", "node hours", "GPU hours", *DEMANDS.values()]
    print_table(heads, rows, text=("class",))
    for reason in facts["unserved"]:
        jobs = f"{reason['jobs']:,} job{'' if reason['jobs'] == 1 else 's'}"
        click.echo(f"no class can serve {jobs} (first: {reason['first']}): {reason['reason']}")
    click.echo()


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.0f} %"


Facts = Mapping[str, Any]

AS_IS = ", unless --machine FILE is given"
QUANTILES = {
    "nodes": "nodes",
    "cores_per_node": "cores per node",
    "run_time_s": "run time, s",
    "time_limit_s": "time limit, s",
    "accuracy": "run time / limit",
    "interarrival_s": "between arrivals, s",
}


@dataclass(frozen=True)
class Description:
    """What is described."""

    before: Path | None = option(
        metavar="WORKLOAD", help="Workload or raw log before cleaning, to be shown side by side."
    )
    plot: Path | None = option(type=OutputPath(PICTURE), help="Write a plot to this file: .png, .svg or .pdf.")
    dictionary: bool = option(
        "--list", help="Print the meaning of each column, and the number of jobs for which it is known."
    )
    system: str | None = option(
        metavar="NODESxCORES|@FILE",
        help="Machine of the workload, if its file does not name it: 64x48; @FILE is --machine FILE.",
    )
    machine: tuple[str, ...] = option(
        metavar="FILE|NAME",
        help="File that describes the machine (a slurm.conf, an inventory, YAML), for the demand by partition and by "
        "class of nodes, and the jobs that no class can serve. Or the machine whose jobs are read from a log of "
        "several. May be repeated.",
    )

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the machine: those of `--machine` that exist, and those of tracebed that it names."""
        system = self.system or ""
        of_system = [system[1:]] if system.startswith("@") else []
        return tuple(map(Path, [*of_system, *filter(_is_machine, self.machine)]))

    @property
    def name(self) -> str | None:
        """The machine whose jobs are read from a log of several. Raises InputError if two are given."""
        names = [name for name in self.machine if not _is_machine(name)]
        if len(names) > 1:
            what = f"--machine {names[0]!r} and {names[1]!r} are no files"
            raise InputError(what, hint="give a file of the machine, or one name of a machine in the log")
        return names[0] if names else None


def _is_machine(name: str) -> bool:
    return Path(name).exists() or name in (*tb.inventories(), *tb.shipped_machines())


@click.command()
@workload_argument
@gathered("description", Description)
@gathered("reading", Reading, "format", "columns")
@json_option
def describe(workload: Path, description: Description, reading: Reading, as_json: bool) -> None:
    """Sizes, run times, load, occupation and arrivals of a workload: table and plot.

    --from, --columns and --machine NAME concern WORKLOAD, or the log of --before if one is given.

    \b
    Example:
      tracebed describe knl.parquet --before cori-knl/ --plot knl.png
      tracebed describe knl.parquet --list
      tracebed describe sacct.txt --machine slurm.conf
    """
    before, plot, system = description.before, description.plot, description.system
    options = reading.keywords | ({} if description.name is None else {"machine": description.name})
    if description.dictionary:
        if before is not None or plot is not None or system is not None or description.files:
            raise InputError("--list and --before, --plot, --system or a file of --machine", hint="give one of them")
        _print_dictionary(load_workload(workload, **options), workload, as_json)
        return
    if plot is not None:
        tb.check_picture(plot)
    machine = tb.read_machine(*description.files) if description.files else None
    if machine is not None and system is not None and not system.startswith("@"):
        raise InputError("both --system and a file of --machine are given", hint="give one of them")
    chosen = system_of(system) if machine is None else machine
    earlier = None if before is None else _facts(before, options)
    facts = _facts(workload, options if before is None else {}, chosen)
    if plot is not None:
        with progress(f"drawing {plot.name}"):
            tb.plot_description(facts, plot, before=earlier)
    if as_json:
        print_json("tracebed-describe/1", facts if earlier is None else {**facts, "before": earlier})
    else:
        _print_facts(workload, facts, pooled=machine is None or machine.plain)
        print_partitions(facts)
        print_classes(facts)
        if before is not None and earlier is not None:
            _print_both(before, earlier, facts)
        _print_charts(facts)
        _print_occupation(facts, earlier)
        _print_steps(facts)
    if plot is not None:
        emit(f"picture: {plot}")


def _print_dictionary(loaded: tb.Workload, path: Path, as_json: bool) -> None:
    """Print the columns of the table, then the missing columns with their defaults."""
    rows = tb.dictionary(loaded)
    if as_json:
        print_json("tracebed-dictionary/1", {"jobs": len(loaded), "columns": rows})
        return
    wide = max(len(row["column"]) for row in rows)
    there = [row for row in rows if row["default"] is None]
    click.secho(f"{path}: {len(loaded):,} jobs", bold=True)
    for row in there:
        says = "" if row["known"] == len(loaded) else f" ({row['known']:,} jobs)"
        click.echo(_folded(f"{row['column']:{wide}}  {row['type']:7}  ", row["meaning"] + says))
    click.secho("\nmissing, with default", bold=True)
    for row in rows[len(there) :]:
        click.echo(_folded(f"{row['column']:{wide}}  {row['type']:7}  {row['default']:9}  ", row["meaning"]))


def _facts(path: Path, reading: Mapping[str, Any], system: tb.System | tb.Machine | None = None) -> dict[str, Any]:
    """Return the statistics of a workload. Its jobs are not kept, so two workloads need not fit into memory."""
    with progress(f"describing {path.name}"):
        return tb.describe_log(path, system, **reading)


def _print_facts(path: Path, facts: Facts, *, pooled: bool) -> None:
    """Print the main statistics. `pooled`: whether the machine has equal nodes, so that jobs lose their demands."""
    one = "; they count as one machine of equal nodes" + AS_IS if pooled else ""
    without = "; they count as jobs without GPUs" + AS_IS if pooled else ""
    whole = " count as whole nodes" + AS_IS if pooled else ""
    system = facts["system"]
    cores = system["cores_per_node"]
    machine = f"{or_unknown(system['nodes'])} nodes of {or_unknown(cores)} core{'' if cores == 1 else 's'}"
    rows = [
        ("jobs", f"{facts['jobs']:,}"),
        ("system", f"{machine}, {system['name']}" if system["name"] else machine),
        ("submitted within", duration_text(facts["span_s"])),
        ("from", facts["first_submit"] or f"{facts['first_submit_s']:,.0f} s"),
        ("to", facts["last_submit"] or f"{facts['last_submit_s']:,.0f} s"),
        ("work", f"{_whole(facts['node_hours'])} node hours"),
        ("offered load", _load(facts["offered_load"])),
        *(("  scaled", _load_step(step)) for step in facts["offered_load_steps"]),
        ("occupation", _occupation(facts)),
        ("kinds", _counted(facts["kinds"])),
        ("statuses", _counted(facts["statuses"])),
    ]
    if len(facts["partitions"]) > 1:
        rows.append(("partitions", f"{_counted(facts['partitions'])}{one}"))
    if facts["gpu_jobs"]:
        rows.append(("GPUs", f"{facts['gpu_jobs']:,} jobs{without}"))
    if facts["jobs_on_parts_of_nodes"]:
        what = f"{facts['jobs_on_parts_of_nodes']:,} jobs on parts of nodes{whole}"
        rows.append(("shared nodes", what))
    unknown = {name.replace("_", " "): count for name, count in facts["unknown"].items() if count}
    if unknown:
        rows.append(("not known", _counted(unknown)))
    width = max(len(name) for name, _ in rows)
    click.secho(str(path), bold=True)
    for name, value in rows:
        click.echo(_folded(f"{name:{width}}  ", value))
    click.echo()
    order = ("min", "p25", "median", "p75", "p95", "max", "mean")
    known = {name: title for name, title in QUANTILES.items() if facts[name]["mean"] is not None}
    rows_of_quantiles = [(title, *(_whole(facts[name][q]) for q in order)) for name, title in known.items()]
    print_table(["", *order], rows_of_quantiles, spare=("p25", "p75"))
    click.echo()
    _print_cumulative(facts)


def _print_cumulative(facts: Facts) -> None:
    """Print the sizes and run times that half, 90 % and 99 % of the jobs, and of their node hours, do not exceed."""
    rows = []
    for name, title, shown in (("nodes", "nodes", "{:,.0f}".format), ("run_time_s", "run time", duration_text)):
        found = facts["cumulative"][name]
        for weight in ("jobs", "node_hours"):
            if found is not None and found[weight] is not None:
                of = weight.replace("_", " ")
                rows.append((f"{title}, of the {of}", *(shown(v) for v in found[f"{weight}_within"].values())))
    if rows:
        print_table(["at most", "50 %", "90 %", "99 %"], rows)
        click.echo()


def _print_both(path: Path, before: Facts, after: Facts) -> None:
    """Print the figures that cleaning changes, in two columns."""
    was, now = _figures(before), _figures(after)
    click.echo(f"before: {path}")
    print_table(["", "before", "after"], [(title, was[title], now[title]) for title in now])
    click.echo()


def _figures(facts: Facts) -> dict[str, str]:
    occupation = facts["occupation"] or {}

    def of_occupation(name: str, form: str = ",.0f") -> str:
        value = occupation.get(name)
        return "not known" if value is None else f"{value:{form}}"

    return {
        "jobs": f"{facts['jobs']:,}",
        "nodes of the system": or_unknown(facts["system"]["nodes"]),
        "submitted from": _instant(facts, facts["first_submit_s"]),
        "to": _instant(facts, facts["last_submit_s"]),
        "work, node hours": f"{facts['node_hours']:,.0f}",
        "offered load": _load(facts["offered_load"]),
        "occupation, node hours": of_occupation("node_hours"),
        "  mean, nodes": of_occupation("mean", ",.1f"),
        "  highest, nodes": of_occupation("highest"),
        "  above capacity, of time": of_occupation("share_of_time_above_capacity", ".2%"),
        "  above capacity, node hours": of_occupation("node_hours_above_capacity"),
        "largest job, nodes": "not known" if facts["nodes"]["max"] is None else f"{facts['nodes']['max']:,.0f}",
        "median run time": duration_text(facts["run_time_s"]["median"]),
        "longest run time": duration_text(facts["run_time_s"]["max"]),
        **{f"no {name.replace('_', ' ')}": f"{jobs:,}" for name, jobs in facts["unknown"].items()},
    }


def _print_charts(facts: Facts) -> None:
    sizes = {
        f"{bin['from']:,}" if bin["from"] == bin["to"] else f"{bin['from']:,}–{bin['to']:,}": bin["jobs"]
        for bin in facts["nodes_histogram"]
    }
    times = {
        f"under {duration_text(bin['to_s'])}" if bin["to_s"] else f"{duration_text(bin['from_s'])} and more": bin[
            "jobs"
        ]
        for bin in facts["run_time_histogram"]
    }
    _print_beside(
        *(bars(title, counts) for title, counts in {"Requested nodes": sizes, "Run time": times}.items() if counts)
    )
    by_hour = {str(hour): jobs for hour, jobs in enumerate(facts["arrivals_by_hour"])}
    charts = [columns("Arrivals by hour of the day", by_hour, every=3)]
    if facts["arrivals_by_weekday"]:
        charts.append(columns("By weekday", facts["arrivals_by_weekday"], width=3))
    _print_beside(*charts)


def _print_occupation(facts: Facts, before: Facts | None) -> None:
    """Print charts of the occupied nodes over time, before and after in one scale."""
    shown = {"": facts} if before is None else {", before": before, ", after": facts}
    tops = [one["occupation"]["highest"] for one in shown.values() if one["occupation"]]
    for when, one in shown.items():
        if one["occupation"]:
            over_time = one["occupation"]["over_time"]
            part = "" if one["occupation"]["whole"] else f", {tb.MOST_NODE_HOURS:.0%} of the node hours"
            marks = "█ mean, ░ highest" + (", ─ capacity" if one["system"]["nodes"] else "")
            title = f"Node occupation{when}{part} ({marks})"
            ends = (_instant(one, over_time["edges_s"][0]), _instant(one, over_time["edges_s"][-1]))
            series = (over_time["mean"], over_time["highest"])
            lines = area(title, *series, limit=one["system"]["nodes"], ends=ends, top=max(tops))
            click.echo("\n".join(lines) + "\n")


def _print_beside(*charts: list[str]) -> None:
    """Print charts side by side if the terminal is wide enough, else below each other."""
    if len(charts) == 2 and len(charts[0][0]) + 4 + len(charts[1][0]) <= _width():
        charts = (side_by_side(*charts),)
    for chart in charts:
        click.echo("\n".join(line.rstrip() for line in chart) + "\n")


def _print_steps(facts: Facts) -> None:
    for number, step in enumerate(facts["steps"], 1):
        click.echo(_folded(f"step {number}: ", step))


def _width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else UNBOUNDED


def _folded(name: str, value: str) -> str:
    """Return the line `name` `value`, wrapped to the terminal and indented to the value."""
    room = max(_width() - len(name), 20)
    return name + f"\n{'':{len(name)}}".join(textwrap.wrap(value, room, break_on_hyphens=False) or [""])


def _instant(facts: Facts, seconds: float) -> str:
    """Return an instant as a chart's axis shows it."""
    date = tb.local_time(facts["clock"], seconds)
    return duration_text(seconds) if date is None else f"{date:%Y-%m-%d %H:%M}"


def _load(load: float | None) -> str:
    if load is None:
        return "not known"
    return f"{load:.3f}" + ("; more than the system can do" if load > 1.0 else "")


def _load_step(step: Mapping[str, float | None]) -> str:
    spelt = {name: _load(load) for name, load in step.items()}
    return f"{spelt['before']}, in the window {spelt['in_window']}, after {spelt['after']}"


def _occupation(facts: Facts) -> str:
    """Return the occupation in a line, or the reason why it is unknown."""
    found, capacity = facts["occupation"], facts["system"]["nodes"]
    if found is None:
        return "not known: no job has nodes, a logged start and a logged end"
    text = f"mean {found['mean']:,.1f}, highest {found['highest']:,} nodes"
    if capacity is None:
        return text
    return text + f"; above {capacity:,} for {found['share_of_time_above_capacity']:.2%} of the time"


def _whole(value: float) -> str:
    """Return a number as a table does, but without decimals from 100 on."""
    return cell(round(value) if abs(value) >= 100 else value)


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name or 'not known'} {count:,}" for name, count in counts.items())
