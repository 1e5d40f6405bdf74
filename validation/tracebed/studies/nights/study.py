"""The study `nights`: 270 published runs whose nodes are off at night, predicted from the logs, each beside print.

Schäfer et al. (EESP at SC26, "Saving Energy Costs and Time on Supercomputers") publish the figures of each run
(run_metrics.csv, README.md in this folder). Nothing is fitted: the jobs are those of the logs with the draws of the
published generator, the rules are those of the executor `nights`, and the machines are the shipped ones. Small causes
decide some of these runs, so that each is predicted again with run times that differ by some microseconds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from scipy import stats

from tracebed.converters.cleaning.audit import clean
from tracebed.converters.cleaning.recipes import load_recipe
from tracebed.converters.formats.reading import read_raw
from tracebed.converters.formats.tools.files import paths_at
from tracebed.converters.malleability import Thresholds, malleable_sizes
from tracebed.converters.workload import FloatArray, IntArray
from tracebed.ground.errors import InputError, TracebedError
from tracebed.machine.calendar import Clock
from tracebed.machine.machine import Machine
from tracebed.machine.sources import read_machine
from tracebed.orchestrator.simulation.nights import Inputs, Outcome, Rules, rules_of, simulate
from tracebed.studies.papers import base
from tracebed.validation.experiments.pools import LocalPool
from tracebed.validation.metrics.power import ASLEEP, KWH_J, PARTS, PowerUse, Supply, solar_power
from tracebed.validation.pictures import COLORS, PAGE, STYLE, legend, panels, save


@dataclass(frozen=True)
class Cluster:
    """A log, its machine, and what the configuration of the published runs says of both."""

    machine: str
    threshold_s: float
    """The window of a run begins with the first job that waits for longer (`wait_threshold_s` of profiles.json)."""
    interval_s: int
    """Scheduling interval (`scheduling_interval` of main.json)."""
    settings: dict[str, dict[str, Any]]
    """Step of the recipe of the log -> its parameters. The logs of Cori have no limits, and their records end at
    midnight: the published jobs lack the second before it."""


CORI: dict[str, dict[str, Any]] = {
    "merge_split": {"count_gaps": False},
    "missing_limits": {"rounding": "next-hour"},
}
CLUSTERS = {
    "cori_haswell": Cluster("cori-haswell-fulda", 2.0, 1, CORI),
    "cori_knl": Cluster("cori-knl-fulda", 2.0, 1, CORI),
    "theta": Cluster("theta-fulda", 20.0, 10, {"window": {"start": "2023-01-12", "end": "2023-01-26"}}),
}
"""Value of `cluster` -> the cluster."""
LOGS = {name.replace("_", "-"): name for name in CLUSTERS}
"""Name of a log, and of its recipe -> value of `cluster`."""
KEY = ["cluster", "mal", "seed", "scheduler", "policy"]
SCHEDULERS = {"rigid_easy_backfill": "firstfit", "min_steal_agreement": "min"}
BASE, MALLEABLE = SCHEDULERS
OFF = {"F0": 0.0, "F10": 0.1, "F30": 0.3}
"""Policy -> share of the nodes that is off at night."""
FIGURES = (
    *("wait_mean_s", "turnaround_mean_s", "runtime_mean_s"),
    *("energy_total_kwh", "off_fraction_mean", "cost_total_usd", "co2_total_kg"),
)
SAMPLE_S = 60
CLOSE = 0.03
SHIFT_S = 30e-6
"""Run times of the perturbed predictions differ by at most this time: about the error of the published times."""
COVERAGE = 0.95
FACTORS = ((0.10, 0.5, 0.7), (0.25, 0.7, 0.95), (0.55, 0.95, 1.05), (0.80, 1.05, 1.5), (math.inf, 1.5, 3.0))
"""Predicted run times as factors of the real ones: up to this part of the jobs, uniform from and to."""
FEWEST = 3  # perturbed predictions from which on the interval of a run is meaningful


def published() -> pd.DataFrame:
    """Return the published figures, one row a run, in the order of the file.

    The columns `KEY` name the run: `mal` is a whole number, the others are text. The other columns are numbers.
    """
    with as_file(files("tracebed.studies.nights") / "run_metrics.csv") as path:
        return pd.read_csv(path)


class Log(NamedTuple):
    """The jobs of a cleaned log, in the order of the published job lists. Arrays of shape (jobs,)."""

    number: tuple[int, ...]
    submit: FloatArray
    run_time: FloatArray
    limit: FloatArray
    nodes: IntArray


def read_log(name: str, path: Path) -> Log:
    """Return the jobs of a log.

    Args:
        name: of `LOGS`.
        path: the file, or the folder of the files.

    Raises:
        InputError: the log cannot be read or cleaned.
    """
    recipe = load_recipe(name).with_settings(CLUSTERS[LOGS[name]].settings)
    workload = clean(read_raw(paths_at(path), **recipe.read), recipe.steps, system=recipe.system).workload
    ids = [str(text).partition("-")[0] for text in workload.column("job_id")]  # repeated ones have a suffix
    submit = workload.floats("submit_time")
    order = np.lexsort((np.array(ids), submit))
    run_time, limit = (workload.floats(column)[order] for column in ("run_time", "time_limit"))
    numbers = tuple(int(ids[row]) for row in order.tolist())
    return Log(numbers, submit[order] - submit.min(), run_time, limit, workload.ints("nodes")[order])


def inputs_of(log: Log, nodes: int, share: int, seed: str) -> Inputs:
    """Return the jobs with the draws of the published generator: one generator a job, by seed and number.

    Args:
        log: the jobs.
        nodes: of the machine.
        share: of malleable jobs, %.
        seed: of the draws.
    """
    kinds, factors = [], []
    for number in log.number:
        draw = random.Random(f"{seed}{number}")
        kinds.append(draw.choices("RMm", (100 - share, 0, share))[0])
        drawn = draw.random()
        factors.append(next(draw.uniform(low, high) for upto, low, high in FACTORS if drawn < upto))
    predicted = np.minimum(np.ceil(1.1 * np.array(factors) * log.run_time), np.floor(log.limit))
    part, low, high = malleable_sizes(log.nodes, nodes, Thresholds())
    malleable = np.array(kinds) == "m"
    # The application of the published runs takes the time of the log to be without loss.
    efficiency = (1 / ((1 - part) + part / log.nodes)) / log.nodes
    low, high = (np.where(malleable, size, log.nodes) for size in (low, high))
    iterations = np.where(malleable, log.run_time, 1.0)
    run_time = log.run_time / efficiency
    return Inputs(log.submit, run_time, iterations, part, np.maximum(predicted, 1.0), log.nodes, low, high, malleable)


def _changes(at: FloatArray, change: FloatArray, samples: FloatArray, side: Any) -> FloatArray:
    """Return the sums of the changes before the samples (`left`), or until them (`right`)."""
    order = np.argsort(at, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(change[order])])
    return np.asarray(sums[np.searchsorted(at[order], samples, side)])


def figures(inputs: Inputs, outcome: Outcome, rules: Rules, machine: Machine, threshold_s: float) -> dict[str, float]:
    """Return the figures of a run: means over jobs, and sums over samples, of which each counts until the next one.

    Raises:
        InputError: no job before the last submission waits for longer than `threshold_s`.
    """
    wait, run = outcome.start - inputs.submit, outcome.end - outcome.start
    end = float(inputs.submit.max())
    begin = float(inputs.submit[wait > threshold_s + 1e-4].min(initial=end))
    if begin >= end:
        what = f"no job waits for more than {threshold_s:g} s"
        raise InputError(what, hint="the log is not that of the published runs")
    counted = inputs.submit >= begin
    samples = np.arange(begin // SAMPLE_S * SAMPLE_S, end, SAMPLE_S)
    held = {name: np.asarray(values) for name, values in outcome.columns.items()}
    busy = _changes(held["held_begin"], held["held_count"], samples, "left")
    busy -= _changes(held["held_end"], held["held_count"], samples, "left")
    order = np.lexsort((np.arange(len(held["power_node"])), held["power_node"]))
    node, at, state = (held[f"power_{name}"][order].astype(np.float64) for name in ("node", "time", "state"))
    before = np.where(np.diff(node, prepend=-1) != 0, 0, np.roll(state, 1)) if len(node) else state
    # Events before a sample in the same second count: the published program writes times with six digits.
    shutdown, off, boot = (
        _changes(at, (state == number).astype(float) - (before == number), samples, "right") for number in (1, 2, 3)
    )
    power, tariff = machine.classes[0].power, machine.tariff
    assert power is not None and tariff is not None  # of the shipped machines
    counts = (busy, rules.nodes - shutdown - off - boot - busy, boot, shutdown, off)
    watts = (power.busy_w, power.idle_w, *map(power.watts, ASLEEP))
    edges = np.append(np.maximum(samples, begin), end)
    parts = dict(zip(PARTS, (count * each for count, each in zip(counts, watts, strict=True)), strict=True))
    supply = Supply.of(PowerUse(edges, parts), solar_power(tariff, Clock(), begin, end), begin, end)
    return {
        "window_start_s": begin,
        "wait_mean_s": float(wait[counted].mean()),
        "turnaround_mean_s": float((wait + run)[counted].mean()),
        "runtime_mean_s": float(run[counted].mean()),
        "energy_total_kwh": (supply.grid_j + supply.solar_j) / KWH_J,
        "off_fraction_mean": float((off * np.diff(edges)).sum() / (rules.nodes * (end - begin))),
        "cost_total_usd": supply.cost(tariff),
        "co2_total_kg": supply.co2_kg(tariff),
        "days": (end - begin) / 86_400,
    }


@dataclass(frozen=True)
class Task:
    """The runs of a log with the same jobs."""

    cluster: str
    log: Log
    share: int
    seed: str
    perturbed: int
    """Number of perturbed predictions of each run."""


def predicted(task: Task) -> list[dict[str, Any]]:
    """Return a row for each run of a task. `turnaround_low_s` and `turnaround_high_s` are the ends of the interval in
    which the mean turnaround of another perturbed prediction is (Student, `COVERAGE`)."""
    cluster = CLUSTERS[task.cluster]
    machine = read_machine(cluster.machine)
    jobs = inputs_of(task.log, len(machine.nodes), task.share, task.seed)
    shifts = np.random.default_rng(0).uniform(-SHIFT_S, SHIFT_S, (task.perturbed, len(jobs.submit)))
    rows = []
    for scheduler, policy in SCHEDULERS.items():
        for name, share in OFF.items():
            rules = rules_of(machine, policy)._replace(share=share, interval_s=cluster.interval_s)
            run, *others = (
                figures(each, simulate(each, rules), rules, machine, cluster.threshold_s)
                for each in (jobs, *(jobs._replace(run_time=jobs.run_time + shift) for shift in shifts))
            )
            key = (task.cluster, task.share, task.seed, scheduler, name)
            means = np.array([each["turnaround_mean_s"] for each in (run, *others)])
            half = math.nan
            if len(others) >= FEWEST:
                half = stats.t.isf((1 - COVERAGE) / 2, len(others)) * means.std(ddof=1) * (1 + 1 / len(means)) ** 0.5
            ends = {"turnaround_low_s": means.mean() - half, "turnaround_high_s": means.mean() + half}
            rows.append(dict(zip(KEY, key, strict=True)) | run | ends)
    return rows


def ledger(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return a row for each run: figures, the published ones, the differences, and whether print is in the interval."""
    shown = published().set_index(KEY)[[*FIGURES, "window_start_s", "window_end_s", "jobs_completed_window_submit"]]
    table = pd.DataFrame(rows).join(shown.add_prefix("published_"), on=KEY)
    for name in FIGURES:
        table[f"{name}_difference"] = table[name] / table[f"published_{name}"] - 1
    known = table["turnaround_high_s"].notna()
    inside = table["published_turnaround_mean_s"].between(table["turnaround_low_s"], table["turnaround_high_s"])
    table["in_interval"] = inside.map({True: "yes", False: "no"}).where(known, "unknown")
    return table.sort_values(KEY, ignore_index=True)


def agreement(table: pd.DataFrame) -> base.FindingsTable:
    """Return how many runs are close to print."""
    columns = {
        "turnaround": table["turnaround_mean_s_difference"].abs() <= CLOSE,
        "energy": table["energy_total_kwh_difference"].abs() <= CLOSE,
        "cost": table["cost_total_usd_difference"].abs() <= CLOSE,
        "same window": table["window_start_s"] == table["published_window_start_s"],
        "in the interval": table["in_interval"] == "yes",
    }
    columns["both"] = columns["turnaround"] & columns["energy"]
    names = ["turnaround", "energy", "both", "cost", "same window", "in the interval"]
    kind = ["cluster", "scheduler", "policy"]
    groups = table[kind].assign(**columns).groupby(kind)
    rows = [[*key, len(group), *(int(group[name].sum()) for name in names)] for key, group in groups]
    title = f"Runs within {CLOSE:.0%} of print, by figure"
    return base.FindingsTable(title, [*kind, "runs", *names], rows)


def savings(table: pd.DataFrame) -> pd.DataFrame:
    """Return the changes of energy a day and turnaround by night and malleable jobs, %.

    The base is "EASY" with rigid jobs and all nodes on, of the same seed. A row for each cluster, policy, share of
    malleable jobs, and figure: mean over the seeds and half of the interval, of the prediction and of print.
    """
    days = (table["published_window_end_s"] - table["published_window_start_s"]) / 86_400
    energy = {"ours": table["energy_total_kwh"] / table["days"], "print": table["published_energy_total_kwh"] / days}
    times = {"ours": table["turnaround_mean_s"], "print": table["published_turnaround_mean_s"]}
    rows = []
    plain = (table["scheduler"] == BASE) & (table["mal"] == 0) & (table["policy"] == "F0")
    groups = table[table["scheduler"] == MALLEABLE].groupby(["cluster", "policy", "mal"])
    for (cluster, policy, mal), group in groups:
        own = plain & (table["cluster"] == cluster)
        for name, sources in (("energy a day", energy), ("turnaround", times)):
            row: dict[str, Any] = {"cluster": cluster, "policy": policy, "malleable": mal, "figure": name}
            for source, values in sources.items():
                bases = values[own].set_axis(table["seed"][own])
                change = 100 * (values[group.index].to_numpy() / bases.loc[group["seed"]].to_numpy() - 1)
                half = stats.t.isf((1 - COVERAGE) / 2, len(change) - 1) * change.std(ddof=1) / len(change) ** 0.5
                row |= {source: change.mean(), f"{source}_half": half}
            rows.append(row)
    return pd.DataFrame(rows)


def saved(changes: pd.DataFrame) -> base.FindingsTable:
    """Return the table of the savings."""
    columns = ["cluster", "policy", "malleable", "energy a day, %", "published", "turnaround, %", "published"]
    rows = []
    for (cluster, policy, mal), group in changes.groupby(["cluster", "policy", "malleable"]):
        cells = [f"{row[each]:+.1f} ± {row[f'{each}_half']:.1f}" for _, row in group.iterrows() for each in SOURCES]
        rows.append([cluster, policy, f"{mal} %", *cells])
    return base.FindingsTable("What malleability saves: change against EASY, rigid jobs, all nodes on", columns, rows)


SOURCES = {"ours": "predicted", "print": "published"}


def draw_savings(changes: pd.DataFrame, folder: Path) -> Path:
    """Draw energy a day and turnaround over the share of malleable jobs, and return the path of the PNG file."""
    groups = [*changes.groupby(["cluster", "figure"])]
    with mpl.rc_context(STYLE):
        figure, axes = panels(
            len(groups), "Nodes off at night: change against rigid jobs with all nodes on", width=PAGE
        )
        for axis, ((cluster, name), group) in zip(axes, groups, strict=True):
            axis.axhline(0, color=COLORS[7], linewidth=0.6)
            for number, (policy, rows) in enumerate(group.groupby("policy")):
                for source, label in SOURCES.items():
                    shift, style = (-0.8, "-") if source == "ours" else (0.8, ":")
                    at, half = rows["malleable"] + shift + 2 * number, rows[f"{source}_half"]
                    lines = axis.errorbar(at, rows[source], half, elinewidth=0.7, capsize=2, label=f"{policy}, {label}")
                    lines[0].set(color=COLORS[number], linestyle=style, linewidth=1)
                    for artist in (*lines[1], *lines[2]):
                        artist.set_color(COLORS[number])
            axis.set_title(cluster, loc="left")
            axis.set_xticks(sorted({*group["malleable"]}))
            axis.set_xlabel("malleable jobs, %")
            axis.set_ylabel(f"{name}, %")
        legend(figure, axes)
        return save(figure, changes, folder, "savings")


def draw_runs(table: pd.DataFrame, folder: Path) -> Path:
    """Draw the turnaround of each run and its interval, in % of print, and return the path of the PNG file."""
    groups = [*table.groupby("cluster")]
    with mpl.rc_context(STYLE):
        figure, axes = panels(len(groups), "Mean turnaround of each run against print", wide=True, width=PAGE)
        for axis, (cluster, rows) in zip(axes, groups, strict=True):
            axis.axhspan(-100 * CLOSE, 100 * CLOSE, color=COLORS[6], alpha=0.4, linewidth=0)
            axis.axhline(0, color=COLORS[7], linewidth=0.6)
            ticks = {}
            for number, ((scheduler, policy), runs) in enumerate(rows.groupby(["scheduler", "policy"])):
                at = number * 17 + np.arange(len(runs))
                print_s = runs["published_turnaround_mean_s"]
                low, middle, high = (
                    100 * (runs[f"turnaround_{name}_s"] / print_s - 1) for name in ("low", "mean", "high")
                )
                axis.vlines(at, low, high, color=COLORS[number], linewidth=1.2, alpha=0.6)
                axis.plot(at, middle, ".", color=COLORS[number], markersize=4)
                ticks[f"{'Min' if scheduler == MALLEABLE else 'EASY'} {policy}"] = at.mean()
            axis.set_xticks([*ticks.values()], [*ticks])
            axis.set_ylim(-40, 40)
            axis.set_title(cluster, loc="left")
            axis.set_ylabel("turnaround, % of print")
        return save(figure, table, folder, "runs")


def _notes(table: pd.DataFrame, perturbed: int) -> Iterator[str]:
    """Yield what the figures depend on."""
    where = {name: folder for folder, name in LOGS.items() if name not in {*table["cluster"]}}
    if where:
        yield f"Logs that were not given: {', '.join(where.values())}."
    yield (
        f"The interval of a run is that of another prediction whose run times differ by at most {SHIFT_S * 1e6:g} µs"
        f" (Student, {COVERAGE:.0%}, {perturbed} perturbed predictions)."
    )
    yield "Savings are means over three seeds with 95 % intervals (Student). Energy is by day: windows differ."


@base.reads(*LOGS)
def run(settings: base.Settings) -> base.Findings:
    """270 published runs whose nodes are off at night, on Cori and Theta (Schäfer et al., EESP at SC26): --log."""
    if settings.inventory or settings.speed is not None:
        raise InputError("the study nights simulates", hint="omit --inventory and --speed")
    if not settings.logs:
        hint = f"give one or more: {', '.join(f'--log {name}=PATH' for name in LOGS)}"
        raise InputError("the study nights needs a public log, which is not shipped with tracebed", hint=hint)
    shown, tasks = published(), []
    for name, path in settings.logs.items():
        log = read_log(name, path)
        settings.on_step(f"{name}: {len(log.number):,} jobs")
        known = shown[shown["cluster"] == LOGS[name]][["mal", "seed"]].drop_duplicates()
        tasks += [Task(LOGS[name], log, int(mal), seed, settings.repetitions) for mal, seed in known.to_numpy()]
    rows: list[dict[str, Any]] = []
    with LocalPool() as pool:
        for done, (_, found) in enumerate(pool.map(predicted, tasks), 1):
            if isinstance(found, TracebedError):
                raise found
            rows += found
            settings.on_step(f"{len(rows)} runs, {done} of {len(tasks)} job lists")
    table = ledger(rows)
    changes = savings(table)
    settings.folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(settings.folder / "runs.csv", index=False, float_format="%.10g")
    pictures = {
        "Change of energy and turnaround by night": draw_savings(changes, settings.folder / "plots"),
        "Turnaround of each run against print": draw_runs(table, settings.folder / "plots"),
    }
    return base.Findings(
        title="Nodes that are off at night: published runs, predicted",
        tables=[agreement(table), saved(changes)],
        notes=[*_notes(table, settings.repetitions)],
        pictures={caption: f"plots/{path.with_suffix('.svg').name}" for caption, path in pictures.items()},
    )
