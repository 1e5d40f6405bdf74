"""Predicts the published runs of a program whose nodes are off at night, from the logs, and compares the figures.

    tracebed clean cori-knl/ --recipe cori-knl --set missing_limits.rounding=next-hour -o cori_knl.parquet
    tracebed clean cori-haswell/ --recipe cori-haswell --set missing_limits.rounding=next-hour -o cori_haswell.parquet
    python -m tests.oracles.fulda_study cori_knl.parquet cori_haswell.parquet ledger.csv

Schäfer et al. (EESP at SC26, "Saving Energy Costs and Time on Supercomputers"). Nothing is fitted: the jobs are those
of the logs with the draws of the published generator, the rules are those of the executor `nights`, and the machines
are the shipped ones. A cleaned log has the name of its machine (`cluster` of the published table; `theta` likewise).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from tests.oracles.fulda import jobs_of
from tests.oracles.fulda_published import KEY, MACHINES, published
from tracebed.converters.formats.reading import read_workload
from tracebed.machine.machine import Machine
from tracebed.machine.power import NodePower, Tariff, seconds_of_day
from tracebed.machine.sources import read_machine
from tracebed.orchestrator.simulation.nights import Inputs, Outcome, Rules, rules_of, simulate

THRESHOLD_S = {"cori_haswell": 2.0, "cori_knl": 2.0, "theta": 20.0}
"""The means begin with the first job that waits for longer."""
SAMPLE_S = 60
SCHEDULERS = {"rigid_easy_backfill": "firstfit", "min_steal_agreement": "min"}
FIGURES = ("wait_mean_s", "turnaround_mean_s", "runtime_mean_s", "energy_total_kwh", "off_fraction_mean")
FIGURES += ("cost_total_usd", "co2_total_kg")
CLOSE = 0.03
T_95 = 4.303
"""Of Student's t with two degrees of freedom: three seeds."""


class Drawn(NamedTuple):
    """The jobs of a log for a share of malleable jobs and a seed."""

    cluster: str
    share: int
    seed: str
    inputs: Inputs


def inputs_of(rows: list[tuple[int, float, int, float]], nodes: int, share: int, seed: str) -> Inputs:
    """Return the inputs for a log (id, submit, nodes, run time)."""
    jobs = jobs_of(rows, nodes, share, seed)
    names = ("submit", "run_time", "iterations", "part", "predicted", "pref", "low", "high", "malleable")
    return Inputs(*(np.array([getattr(job, name) for job in jobs]) for name in names))


def log_rows(path: Path) -> list[tuple[int, float, int, float]]:
    """Return (id, submit, nodes, run time) of the jobs of a cleaned log. Ids that are repeated there have a suffix."""
    log = read_workload(path)
    ids = [int(str(name).partition("-")[0]) for name in log.column("job_id")]
    columns = (log.floats("submit_time").tolist(), log.ints("nodes").tolist(), log.floats("run_time").tolist())
    return [*zip(ids, *columns, strict=True)]


def _changes(at: np.ndarray, change: np.ndarray, samples: np.ndarray, side: str) -> np.ndarray:
    """Return the sums of the changes before the samples (`left`), or until them (`right`)."""
    order = np.argsort(at, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(change[order])])
    return sums[np.searchsorted(at[order], samples, side)]


def solar_kw(begin: np.ndarray, end: np.ndarray, tariff: Tariff) -> np.ndarray:
    """Return the mean power of the panels from `begin` to `end`, kW."""
    rise, fall = (seconds_of_day(name, getattr(tariff, name)) for name in ("sunrise", "sunset"))

    def light(until: np.ndarray) -> np.ndarray:
        return until // 86_400 * (fall - rise) + np.clip(until % 86_400 - rise, 0, fall - rise)

    share = (light(end) - light(begin)) / (end - begin)
    return tariff.solar_w / 1000 * (share + tariff.solar_night * (1 - share))


def figures(inputs: Inputs, outcome: Outcome, rules: Rules, machine: Machine, threshold_s: float) -> dict[str, float]:
    """Return the figures of a run: means over jobs, and sums over samples, of which each counts until the next one."""
    wait = outcome.start - inputs.submit
    begin, end = inputs.submit[wait > threshold_s + 1e-4].min(), inputs.submit.max()
    counted = inputs.submit >= begin
    samples = np.arange(0, end + SAMPLE_S, SAMPLE_S)
    left, right = np.maximum(samples, begin), np.minimum(samples + SAMPLE_S, end)
    samples, left, right = (values[right > left] for values in (samples, left, right))
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
    power: NodePower = machine.classes[0].power  # type: ignore[assignment]
    watts = (rules.nodes - shutdown - off - boot) * power.idle_w + busy * (power.busy_w - power.idle_w)
    watts += shutdown * power.shutdown_w + off * power.off_w + boot * power.boot_w
    hours, tariff = (right - left) / 3600, machine.tariff
    assert tariff is not None
    demand = watts / 1000 * hours
    solar = np.minimum(demand, solar_kw(left, right, tariff) * hours)
    run = outcome.end - outcome.start
    return {
        "window_start_s": float(begin),
        "wait_mean_s": float(wait[counted].mean()),
        "turnaround_mean_s": float((wait + run)[counted].mean()),
        "runtime_mean_s": float(run[counted].mean()),
        "energy_total_kwh": float(demand.sum()),
        "off_fraction_mean": float((off * hours).sum() / (rules.nodes * hours.sum())),
        "cost_total_usd": float(((demand - solar) * tariff.grid_price + solar * tariff.solar_price).sum()),
        "co2_total_kg": float(((demand - solar) * tariff.grid_co2_kg + solar * tariff.solar_co2_kg).sum()),
        "days": float((end - begin) / 86_400),
    }


def predicted(drawn: Drawn) -> list[dict[str, object]]:
    """Return a row for each run of these jobs."""
    machine = read_machine(MACHINES[drawn.cluster])
    rows = []
    for scheduler, policy in SCHEDULERS.items():
        for off in (0, 10, 30):
            rules = rules_of(machine, policy)._replace(share=off / 100)
            key = (drawn.cluster, drawn.share, drawn.seed, scheduler, f"F{off}")
            run = figures(drawn.inputs, simulate(drawn.inputs, rules), rules, machine, THRESHOLD_S[drawn.cluster])
            rows.append(dict(zip(KEY, key, strict=True)) | run)
    return rows


def ledger(logs: list[Path]) -> pd.DataFrame:
    """Return a row for each published run on these logs: figures, the published ones, and the differences."""
    printed = published().set_index(KEY)
    tasks = []
    for path in logs:
        rows = log_rows(path)
        nodes = len(read_machine(MACHINES[path.stem]).nodes)
        known = printed.loc[path.stem].reset_index()[["mal", "seed"]].drop_duplicates()
        tasks += [Drawn(path.stem, mal, seed, inputs_of(rows, nodes, mal, seed)) for mal, seed in known.to_numpy()]
    with ProcessPoolExecutor(2) as pool:
        table = pd.DataFrame([row for rows in pool.map(predicted, tasks) for row in rows])
    shown = printed[[*FIGURES, "window_start_s", "window_end_s", "jobs_completed_window_submit"]].add_prefix(
        "published_"
    )
    table = table.join(shown, on=KEY)
    for name in FIGURES:
        table[f"{name}_difference"] = table[name] / table[f"published_{name}"] - 1
    return table.sort_values(KEY, ignore_index=True)


def lines(table: pd.DataFrame) -> Iterator[str]:
    """Yield the lines of the tables of docs/explanation/nights.md."""
    pair = ("turnaround_mean_s", "energy_total_kwh")
    close = {name: table[f"{name}_difference"].abs() <= CLOSE for name in pair}
    table = table.assign(
        both=close[pair[0]] & close[pair[1]],
        turnaround=close[pair[0]],
        energy=close[pair[1]],
        cost=table["cost_total_usd_difference"].abs() <= CLOSE,
        window=table["window_start_s"] == table["published_window_start_s"],
    )
    yield "| cluster | scheduler | policy | runs | turnaround | energy | both | cost | same window |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for key, rows in table.groupby(["cluster", "scheduler", "policy"]):
        counts = [int(rows[name].sum()) for name in ("turnaround", "energy", "both", "cost", "window")]
        yield f"| {' | '.join(map(str, key))} | {len(rows)} | {' | '.join(map(str, counts))} |"
    yield ""
    yield "| cluster | policy | malleable | energy a day, % | published | turnaround, % | published |"
    yield "|---|---|---|---|---|---|---|"
    yield from saved(table)


def saved(table: pd.DataFrame) -> Iterator[str]:
    """Yield what malleable jobs (`min_steal_agreement`) save against "EASY" with rigid jobs and all nodes on."""
    days = (table["published_window_end_s"] - table["published_window_start_s"]) / 86_400
    table = table.assign(
        ours=table["energy_total_kwh"] / table["days"], theirs=table["published_energy_total_kwh"] / days
    )
    base = table[(table["scheduler"] == "rigid_easy_backfill") & (table["mal"] == 0) & (table["policy"] == "F0")]
    base = base.set_index(["cluster", "seed"])
    for (cluster, policy, mal), rows in table[table["scheduler"] == "min_steal_agreement"].groupby(
        ["cluster", "policy", "mal"]
    ):
        at = pd.MultiIndex.from_frame(rows[["cluster", "seed"]])
        cells = []
        for name in ("ours", "theirs", "turnaround_mean_s", "published_turnaround_mean_s"):
            change = 100 * (rows[name].to_numpy() / base.loc[at, name].to_numpy() - 1)
            cells.append(f"{change.mean():+.1f} ± {T_95 * change.std(ddof=1) / len(change) ** 0.5:.1f}")
        yield f"| {cluster} | {policy} | {mal} % | {' | '.join(cells)} |".replace("%|", " %|")


def main() -> None:
    """Write the ledger, and print the tables."""
    *logs, output = map(Path, sys.argv[1:])
    table = ledger(logs)
    table.to_csv(output, index=False, float_format="%.10g")
    sys.stdout.write("\n".join(lines(table)) + "\n")


if __name__ == "__main__":
    main()
