"""The study of the published runs whose nodes are off at night: its jobs, its figures, its files and its ledger."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.oracles import fulda
from tracebed.machine.machine import Machine, NodeClass
from tracebed.machine.power import NodePower, Sleep, Tariff
from tracebed.machine.sources import read_machine
from tracebed.orchestrator.simulation.engine import missing
from tracebed.orchestrator.simulation.nights import rules_of, simulate
from tracebed.studies.nights import study
from tracebed.studies.nights.study import CLUSTERS, KEY, published

LEDGER = Path(__file__).parents[2] / "docs" / "explanation" / "nights-ledger.csv"
needs_engine = pytest.mark.skipif(bool(missing()), reason=missing())
Row = tuple[int, float, int, float]
"""Number, submission, nodes and run time of a job."""


def log_of(rows: list[Row]) -> study.Log:
    """Return a log of jobs, whose limits are those of logs without limits."""
    numbers, submit, nodes, run_time = zip(*rows, strict=True)
    limit = np.array(run_time) * 1.25
    return study.Log(
        numbers, np.array(submit), np.array(run_time), limit + 3600 - limit % 3600, np.array(nodes, dtype=np.int64)
    )


def drawn_rows(nodes: int) -> list[Row]:
    draw = random.Random(7)
    return [(at, float(at * 400), draw.randint(1, nodes), float(draw.randint(10, 20_000))) for at in range(400)]


@pytest.mark.parametrize("share", [0, 50, 100])
def test_the_jobs_are_those_of_the_published_generator(share: int) -> None:
    """The plain simulator's generator is written from theirs, number by number."""
    rows = drawn_rows(40)
    jobs = fulda.jobs_of(rows, 60, share, "S3")
    found = study.inputs_of(log_of(rows), 60, share, "S3")
    for name in found._fields:
        assert np.asarray(getattr(found, name)).tolist() == [getattr(job, name) for job in jobs], name


@needs_engine
@pytest.mark.parametrize("scheduler", ["easy", "msa"])
@pytest.mark.parametrize(("share", "interval"), [(0.0, 1), (0.3, 1), (0.3, 10)])
def test_the_figures_are_those_of_a_plain_sum(scheduler: str, share: float, interval: int) -> None:
    rows, nodes = drawn_rows(40), 60
    watts = fulda.Watts(idle=190, busy=362, boot=201, shutdown=156, off=5)
    power = NodePower(busy_w=362, idle_w=190, off_w=5, boot_w=201, shutdown_w=156, boot_s=159, shutdown_s=10)
    tariff = Tariff(
        grid_price=0.18,
        grid_co2_kg=0.264,
        solar_price=0.06,
        solar_co2_kg=0.04,
        solar_w=9000,
        solar_night=0.001,
        sunset="22:00",
    )
    sleep = Sleep(rule="windows", share=share) if share else None
    machine = Machine(classes=(NodeClass(count=nodes, cores=1, power=power),), sleep=sleep, tariff=tariff)
    rules = rules_of(machine, {"easy": "firstfit", "msa": "min"}[scheduler])._replace(interval_s=interval)
    inputs = study.inputs_of(log_of(rows), nodes, 50, "S0")
    found = study.figures(inputs, simulate(inputs, rules), rules, machine, 2.0)
    jobs = fulda.jobs_of(rows, nodes, 50, "S0")
    plain = fulda.Fulda(jobs, nodes, scheduler, share, interval=interval).run()
    summed = fulda.figures(plain, fulda.Machine(nodes, watts, 9.0))
    assert {name: found[name] for name in summed} == pytest.approx(summed, rel=1e-9)


@needs_engine
def test_waits_and_run_times_without_nights_are_those_of_print(reference_data: Callable[[str], Path]) -> None:
    """Of all seeds with malleable jobs only, under EASY: 63 million seconds of waits agree to the last digits."""
    log = study.read_log("cori-knl", reference_data("logs/cori-knl"))
    machine = read_machine("cori-knl-fulda")
    rules = rules_of(machine, "firstfit")._replace(share=0.0)
    shown = published().set_index(KEY)
    for seed in ("S0", "S3", "S7"):
        jobs = study.inputs_of(log, len(machine.nodes), 100, seed)
        found = study.figures(jobs, simulate(jobs, rules), rules, machine, 2.0)
        row = shown.loc["cori_knl", 100, seed, "rigid_easy_backfill", "F0"]
        assert found["wait_mean_s"] == pytest.approx(row["wait_mean_s"], rel=1e-8)
        assert found["runtime_mean_s"] == pytest.approx(row["runtime_mean_s"], rel=3e-7)
        assert found["energy_total_kwh"] == pytest.approx(row["energy_total_kwh"], rel=3e-4)


CORI = (
    '"Job","User","Project","Account Name","Host Name","Partition","QOS","Submit","Start","End","Wait Time",'
    '"Elapsed Secs","CPUs","Nodes Allocated","Node Hours Charged","Raw Hours","Machine Hours","Charge Factor"\n'
)


def write_log(path: Path) -> Path:
    """Write a log of 30 jobs, of which two fit on the machine at a time."""
    lines = [CORI]
    for number in range(30):
        at = f"2022-11-07 {number // 2:02}:{30 * (number % 2):02}:00"
        end = f"2022-11-07 {number // 2 + 1:02}:{30 * (number % 2):02}:00"
        lines.append(
            f'"{number + 1}","u","p","a","cori knl","regular_knl","regular","{at}","{at}","{end}","0","3600",'
            '"1196800","4400","0","4400","0","0"\n'
        )
    path.write_text("".join(lines))
    return path


@needs_engine
@pytest.mark.filterwarnings("ignore:.*columns left out")
def test_the_command_writes_ledger_page_and_pictures(call: Callable[..., Any], tmp_path: Path) -> None:
    path = write_log(tmp_path / "knl.csv")
    status, out, said = call("experiment", "nights", "--log", f"cori-knl={path}", "-o", "out")
    assert status == 0, said
    folder = tmp_path / "out" / "nights"
    table = pd.read_csv(folder / "runs.csv")
    assert len(table) == 90
    assert {*table["in_interval"]} <= {"yes", "no"}
    assert (table["turnaround_low_s"] <= table["turnaround_mean_s"]).all()
    assert (table["turnaround_mean_s"] <= table["turnaround_high_s"]).all()
    page = (folder / "findings.md").read_text()
    for name in ("savings", "runs"):
        assert f"(plots/{name}.svg)" in page
        assert (folder / "plots" / f"{name}.svg").exists()
    assert "Logs that were not given: cori-haswell, theta." in page
    assert "cori_knl" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "needs a public log"),
        (("--log", "knl.csv"), "--log 'knl.csv' matches no log"),
        (("--log", "cori-knl=knl.csv", "--speed", "2"), "omit --inventory and --speed"),
    ],
)
def test_what_the_study_cannot_use_is_refused(
    words: tuple[str, ...], says: str, call: Callable[..., Any], tmp_path: Path
) -> None:
    write_log(tmp_path / "knl.csv")
    status, _, said = call("experiment", "nights", *words)
    assert (status, says in said) == (2, True), said


def test_a_study_without_logs_refuses_a_log(call: Callable[..., Any]) -> None:
    status, _, said = call("experiment", "dmr-gain-slope", "--log", "x.csv")
    assert (status, "omit --log" in said) == (2, True), said


def test_savings_are_relative_to_rigid_jobs_of_the_same_seed() -> None:
    rows = []
    for number, (seed, mal) in enumerate(product(("S0", "S3", "S7"), (0, 100))):
        scheduler = "min_steal_agreement" if mal else "rigid_easy_backfill"
        base = 100.0 * (number // 2 + 1)
        factor = (0.5, 0.6, 0.7)[number // 2] if mal else 1.0
        figures = {"turnaround_mean_s": base * factor, "energy_total_kwh": base, "days": 2.0 if mal else 1.0}
        shown = {"published_turnaround_mean_s": base, "published_energy_total_kwh": base}
        window = {"published_window_start_s": 0.0, "published_window_end_s": 86_400.0}
        key = dict(zip(KEY, ("cori_knl", mal, seed, scheduler, "F0"), strict=True))
        rows.append(key | figures | shown | window)
    found = study.savings(pd.DataFrame(rows)).set_index("figure")
    assert found.loc["turnaround", "ours"] == pytest.approx(-40.0)
    assert found.loc["turnaround", "ours_half"] == pytest.approx(4.303 * 10 / 3**0.5, rel=1e-3)
    assert found.loc["turnaround", "print"] == 0.0
    assert found.loc["energy a day", "ours"] == pytest.approx(-50.0)


def test_the_ledger_covers_the_runs_whose_logs_are_public() -> None:
    ledger = pd.read_csv(LEDGER)
    shown = published()
    shown = shown[shown["cluster"] != "theta"]
    assert {*map(tuple, ledger[KEY].to_numpy())} == {*map(tuple, shown[KEY].to_numpy())}
    both = ledger.merge(shown, on=KEY, suffixes=("", "_print"))
    for name in study.FIGURES:
        assert np.allclose(both[f"published_{name}"], both[f"{name}_print"], rtol=1e-6)
    assert {*ledger["cluster"]} <= {*CLUSTERS}
    assert all(read_machine(CLUSTERS[name].machine).sleep for name in {*ledger["cluster"]})
