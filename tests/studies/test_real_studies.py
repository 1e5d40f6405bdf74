"""Studies by real runs: the scenarios of the papers on a testbed, and their tables."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from tracebed.benchmarks.node_manager import Equipartition
from tracebed.cli import tracebed
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError, TestbedError
from tracebed.orchestrator.calibrating import drom_overhead as overhead
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.testbeds.inventory import load_inventory
from tracebed.studies.ledger.ledger import of_findings
from tracebed.studies.papers import dmr_gain_slope, drom, sd, throughput
from tracebed.studies.papers.base import PAPERS, Findings, FindingsTable, Settings, percent
from tracebed.validation.metrics.summary import metrics

pytestmark = pytest.mark.usefixtures("no_process_is_left")


FORMS = ("csv", "pdf", "png", "svg")


@pytest.fixture
def nodes(tmp_path: Path) -> str:
    """Two emulated nodes of 16 cores, as in the DROM paper."""
    path = tmp_path / "nodes.yaml"
    path.write_text("groups: {all: {nodes: 'n[1-2]', cores: 16, emulated: true}}\n", encoding="utf-8")
    return str(path)


def change(text: str) -> float:
    """Return a relative change that a table prints."""
    return float(text.removesuffix(" %")) / 100


@pytest.mark.slow
def test_equipartition_delays_the_first_job_and_not_the_second(tmp_path: Path, nodes: str) -> None:
    """By the model: 2000 s at 0 and at 1000 s. Serially the jobs end at 2000 and 4000 s, shared at 2900 and 3900 s."""
    found = drom.high_priority(Settings(tmp_path / "study", nodes, 1, 500.0))
    simulated, _, replayed = found.tables
    assert simulated.rows[0] == ["CoreNeuron of 2000 s at 1000 s", "-2.5 %", "+45.0 %", "-3.3 %", "+16.0 %"]
    (_, total, first, second, average), _ = replayed.rows
    assert change(first) > 0.25  # 0.45 by the model; a busy machine delays either run
    assert abs(change(second)) < 0.25 and abs(change(total)) < 0.25 and change(average) > 0.0
    again = drom.high_priority(Settings(tmp_path / "study", nodes, 1, 500.0))  # from the runs that are complete
    assert again.tables == found.tables


def no_replays(*_: Any) -> dict[str, list[drom.Outcome]]:
    return {mode: [drom.Outcome(1.0, (1.0, 1.0))] for mode in drom.MODES}


@pytest.mark.usefixtures("unrendered")
def test_no_efficiency_gives_both_figures_of_the_high_priority_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: str
) -> None:
    """DROM paper, section 6.2: -2.5 and -10 %. If the first job ends first, the average gains less than the total."""
    monkeypatch.setattr(drom, "_replayed", no_replays)
    measured = drom.high_priority(Settings(tmp_path, nodes, 1)).measured
    assert measured is not None
    swept = measured.table[measured.table["by"] == "sweep"].set_index(["second", "mode"])
    for second in swept.index.unique("second"):
        serial, shared = swept.loc[(second, "serial")], swept.loc[(second, "share")]
        total, average = (shared[name] / serial[name] - 1 for name in ("total_s", "average_response_s"))
        assert not (abs(total + 0.025) < 0.01 and average < -0.03), second
    rows = {(row.element, row.assumption): row for row in of_findings("drom-high-priority", measured, "").rows}
    assert rows["figure 13", ""].matches and rows["figure 15", ""].has_wrong_sign
    assert rows["figure 13", "CoreNeuron of 670 s after 370 s"].matches
    assert rows["figure 15", "CoreNeuron of 670 s after 370 s"].matches
    drawn = {path.name for path in (tmp_path / "plots").iterdir()}
    assert drawn == {f"figure-{number}.{form}" for number in (13, 14, 15) for form in FORMS}


@pytest.mark.usefixtures("unrendered")
def test_two_ranks_on_a_node_are_nodes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: str
) -> None:
    """Conf. 2 of the simulations: 4 x 8. One core of 8 less leaves 32 tasks on 7 threads: 5 rounds, as 64 on 15."""
    monkeypatch.setattr(drom, "_replayed", no_replays)
    found = drom.in_situ(Settings(tmp_path, nodes, 1))
    by_case = {row[0]: [*map(change, row[1:])] for row in found.tables[0].rows}
    assert len(by_case) == 16
    for analytics in drom.ANALYTICS:  # balanced ranks of 8 cores lose the share of a rank of 16
        assert by_case[f"nest Conf. 1 + {analytics}"] == by_case[f"nest Conf. 2 + {analytics}"]
    loss = 80 * (1 - 0.8 / (0.8 + 0.9 * 0.2))  # 64 / 5 of 16 cores, and a tenth of the time does not depend on cores
    assert by_case["nest Conf. 1 + pils 2"][1] == pytest.approx(loss / 2000, abs=1e-3)
    assert all(total < 0 and second < -0.9 and average < -0.37 for total, _, second, average in by_case.values())
    assert found.measured is not None
    rows = {(row.element, row.assumption): row for row in of_findings("drom-in-situ", found.measured, "").rows}
    for element in ("section 6.1, reference", "figure 9"):  # the printed overhead needs malleability points
        assert rows[element, "malleability points each 20 s"].ours[0] > 0
        assert rows[element, "linear simulations"].ours[0] == pytest.approx(0, abs=1e-12)
    assert rows["section 6.1, reference", ""].has_wrong_sign
    drawn = {path.name for path in (tmp_path / "plots").iterdir()}
    assert drawn == {f"figure-{number}.{form}" for number in range(4, 13) for form in FORMS}
    table = pd.read_csv(tmp_path / "plots" / "figure-8.csv").set_index(["place", "mode", "by"])["seconds"]
    serial, shared = (table["4 x 8, pils 2", mode, "simulation"] for mode in drom.MODES)
    assert shared / serial - 1 == pytest.approx(by_case["nest Conf. 2 + pils 2"][3], abs=1e-3)


@pytest.mark.parametrize("analytics", drom.ANALYTICS.values())
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_analytics_job_takes_the_cores_that_the_node_manager_takes(analytics: drom.Analytics, ranks: int) -> None:
    """A rank of Conf. 2 has half a node as a node of its own: there it loses what it loses on the node of the paper."""
    node = Equipartition([range(8), range(8, 16)])
    node.start("simulation", ranks, 16)
    node.start("analytics", 1, analytics.cores(16))
    left = sorted(map(len, node.masks()["simulation"]))
    _, job = drom._in_situ_pair("nest", analytics, 16, ranks=ranks)
    whole = 16 // ranks
    lost = min(job.cores, whole // 2)  # split=even
    touched = ranks if job.nodes is None else job.nodes // 2
    assert left == sorted([whole - lost] * touched + [whole] * (ranks - touched))


@pytest.mark.slow
def test_the_replay_of_a_paper_is_listed_run_and_saved_by_the_command(tmp_path: Path, nodes: str) -> None:
    listed = CliRunner().invoke(tracebed, ["experiment", "--list"])
    assert listed.exit_code == 0 and "drom-in-situ" in listed.stdout and "section 6.1" in listed.stdout
    arguments = ["experiment", "drom-high-priority", "--inventory", nodes, "--repetitions", "1", "--speed", "1000"]
    done = CliRunner().invoke(tracebed, [*arguments, "--json", "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["tables"][2]["rows"][0][0] == "CoreNeuron of 2000 s at 1000 s"
    page = (tmp_path / "out" / "drom-high-priority" / "findings.md").read_text(encoding="utf-8")
    assert page.startswith("# High-priority job") and "| CoreNeuron of 670 s at 370 s |" in page and "emulated" in page


STAND_IN = """
import json, sys
from tracebed import malleable
with malleable.attach() as m:
    print(json.dumps({"run_time_s": 1.5 if m.malleable else 1.0, "cpu_s": len(m.cpus)}))
"""


def test_the_overhead_is_that_of_a_program_with_a_table_beside_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overhead, "PROGRAM", STAND_IN)
    monkeypatch.setenv("TRACEBED_DROM_TABLE", str(tmp_path / "another"))  # the plain program must not see it
    runs = [dict(run) for run in overhead.pairs(2, 1)]
    assert [(run["repetition"], run["mode"]) for run in runs] == [(1, "plain"), (1, "drom"), (2, "drom"), (2, "plain")]
    found = drom.overhead(Settings(tmp_path, repetitions=2))
    cores = f"{len(os.sched_getaffinity(0)):.3f} s"
    assert found.tables[0].rows == [
        ["run time", "1.000 s", "1.500 s", "1.5000", "1.5000 to 1.5000"],
        ["CPU time", cores, cores, "1.0000", "1.0000 to 1.0000"],
    ]
    row, _ = of_findings("drom-overhead", found.measured, "").rows
    assert row.ours == [pytest.approx(0.5)] and not row.matches
    monkeypatch.setattr(overhead, "PROGRAM", "raise SystemExit('no memory')")
    with pytest.raises(TestbedError, match=r"status 1: \['no memory'\]"):
        next(overhead.pairs(1, 1))
    with pytest.raises(InputError, match="runs a program on this machine"):
        drom.overhead(Settings(tmp_path, speed=10.0))


def test_the_overhead_is_measured_with_pils(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drom, "ITERATIONS", 3)
    steps: list[str] = []
    found = drom.overhead(Settings(tmp_path, repetitions=1, on_step=steps.append))
    assert steps == ["pair 1 of 1"] and found.measured is not None
    measured = found.measured.table.set_index("mode")
    assert set(measured.index) == {"plain", "drom"}
    assert (measured["cpu_s"] > 3 * overhead.TASKS * overhead.TASK_S / 10).all()


def test_nodes_of_one_core_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text("groups: {all: {nodes: 'n[1-2]', cores: 1, emulated: true}}\n", encoding="utf-8")
    with pytest.raises(InputError, match="a node has one core, which two jobs cannot share"):
        drom.in_situ(Settings(tmp_path / "study", str(path)))


def test_the_configurations_of_table_1_are_scaled_to_the_cores() -> None:
    assert [*drom._distinct(16)] == [
        "pils 1, 16 of 16 cores",
        "pils 2, 1 of 16 cores",
        "pils 3, 4 of 16 cores",
        "stream, 2 of 16 cores",
    ]
    assert [*drom._distinct(2)] == ["pils 1, 2 of 2 cores", "pils 2, 1 of 2 cores", "stream, 1 of 2 cores"]


def test_an_unknown_experiment_is_refused() -> None:
    with pytest.raises(InputError, match="unknown experiment 'drom'"):
        PAPERS.load("drom")


def test_findings_are_a_page() -> None:
    found = Findings("T", [FindingsTable("one", ("a", "b"), [[1, percent(200.0, 150.0)]])], ["a note"])
    assert found.markdown() == "# T\n\n## one\n\n| a | b |\n|---|---|\n| 1 | -25.0 % |\n\n- a note\n"


@pytest.mark.slow
def test_the_real_run_of_sd_policy_has_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: str) -> None:
    """A small workload on two nodes: each figure of the paper has a row, with the changes in replays and simulated."""
    draw = sd.sd_5

    def crowded(**machine: int) -> Workload:
        table = draw(12, largest=1, **machine).table
        return Workload(table.assign(submit_time=0.01 * table["submit_time"]))

    monkeypatch.setattr(sd, "sd_5", crowded)
    monkeypatch.setattr(sd, "SEEDS", range(1))
    found = sd.sd_5_real(Settings(tmp_path / "study", nodes, 1, 1000.0))
    *rows, guests, better = found.tables[0].rows
    assert [row[0] for row in rows] == list(sd.FIGURES)
    assert all(-1 < change(text) < 10 for row in rows for text in row[3:5])
    ledger = of_findings("sd-5-real", found.measured, "command")
    assert [row.printed for row in ledger.rows if row.counts and row.element == "figure 9"] == [
        -0.07,
        -0.16,
        -0.16,
        -0.06,
    ]
    replayed = [row for row in ledger.rows if row.assumption == "replayed"]
    assert [row.printed for row in replayed] == [-0.07, -0.16, -0.16, -0.06]
    assert [percent(1, 1 + row.ours[0]) for row in replayed] == [row[3] for row in rows]
    assert sorted(path.name for path in (tmp_path / "study" / "runs").iterdir()) == ["sd-1", "static-1"]
    bars = pd.read_csv(tmp_path / "study" / "plots" / "figure-9.csv").groupby("source")["change_percent"].apply(list)
    assert bars.pop("printed") == [-7.0, -16.0, -16.0, -6.0]
    (real,) = [source for source in bars.index if source.startswith("replayed, emulated, ")]
    assert [percent(1, 1 + value / 100) for value in bars.pop(real)] == [row[3] for row in rows]
    assert [*bars.index] == ["simulated, 1 draws"]
    assert guests[:2] == ["guests", "0"] and better[:2] == ["guests_better", "nan"]
    assert int(guests[2]) > 0  # a study of rigid jobs would compare nothing but two kinds of backfill


def test_jobs_of_workload_5_may_arrive_faster_and_run_for_3_s_or_more() -> None:
    drawn = sd.sd_5(200)
    faster = sd._faster(drawn)
    assert faster.floats("submit_time") == pytest.approx(0.4 * drawn.floats("submit_time"))
    assert drawn.floats("run_time").min() < 3
    assert [*faster.floats("run_time")] == [max(3.0, seconds) for seconds in drawn.floats("run_time")]
    assert [*faster.floats("time_limit")] == [max(3.0, seconds) for seconds in drawn.floats("time_limit")]


@pytest.mark.slow
def test_the_throughput_of_malleable_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Malleable jobs wait less and run longer, as in the paper, simulated and replayed."""
    monkeypatch.setattr(throughput, "JOBS", (100,))
    monkeypatch.setattr(throughput, "OF_CURVES", 100)
    monkeypatch.setattr(throughput, "SEEDS", range(2))
    monkeypatch.setattr(throughput, "WINDOW", 20)
    found = throughput.dmr_throughput(Settings(tmp_path / "study", None, 1, 200.0))
    simulated, assumptions, replayed = found.tables
    by_case = {row[0]: [*map(change, row[1:])] for row in simulated.rows}
    wait, run, response, makespan, _ = by_case["production, 100 jobs"]
    assert wait < -0.5 and 0.5 < run < 0.6 and response < -0.3 and makespan < -0.1
    assert by_case["large, 100 jobs"][2] == pytest.approx(-0.5, abs=0.1)
    floors = {row[0]: change(row[2]) for row in assumptions.rows}
    assert floors["floor=min"] > 1.5  # the wrong signs come from this floor
    ledger = of_findings("dmr-throughput", found.measured, "command")
    known = {(row.element, row.claim): row for row in ledger.rows}
    assert known["figure 13", "the most seen configuration is 8 jobs"].ours == [8.0]
    assert known["figure 10", "up to 77 % lower"].printed == -0.77
    assert not [row.element for row in ledger.rows if row.counts and row.ours and row.has_wrong_sign]
    plots = {path.name for path in (tmp_path / "study" / "plots").iterdir()}
    assert plots == {f"figure-{number}.{suffix}" for number in range(8, 17) for suffix in ("png", "svg", "pdf", "csv")}
    assert [row[0] for row in replayed.rows] == list(throughput.FIGURES)
    fixed, malleable = (metrics(Run.load(folder)) for folder in sorted((tmp_path / "study" / "runs").iterdir()))
    assert [row[3] for row in replayed.rows] == [percent(fixed[name], malleable[name]) for name in throughput.FIGURES]


# The experiment `dmr-gain-slope`: its tables, and runs on emulated nodes.


def test_the_figures_of_the_paper_stand_beside_those_measured() -> None:
    run_times, sizes = dmr_gain_slope.findings({3: 10.0, 6: 2.4, 12: 1.0, 24: 0.5, 48: 0.6}).tables
    names = [name for who in ("tracebed", "table 1", "table 3") for name in (f"{who}: s", f"{who}: gain")]
    assert run_times.columns == ("processes", *names)
    assert [list(row) for row in run_times.rows] == [
        [3, "10", "", "238", "", "1382", ""],
        [6, "2.4", "76.00%", "68", "71.43%", "345", "75.04%"],
        [12, "1", "14.00%", "40", "11.76%", "155", "13.75%"],
        [24, "0.5", "5.00%", "44", "-1.68%", "152", "0.22%"],
        [48, "0.6", "-1.00%", "60", "-6.72%", "171", "-1.37%"],
    ]
    assert sizes.columns == ("size", "tracebed", "table 1", "table 3")
    assert [list(row) for row in sizes.rows] == [["minimum", 6, 3, 6], ["preferred", 6, 6, 6], ["maximum", 24, 12, 24]]


def test_the_spread_of_gains_and_sizes_is_part_of_the_findings() -> None:
    """The sign of a small gain decides the greatest size, so each repetition has its own."""
    each = [{3: 10.0, 6: 2.4, 12: 1.0, 24: 0.9}, {3: 10.0, 6: 2.0, 12: 1.0, 24: 1.3}]
    spread = dmr_gain_slope.findings(each[0], (dmr_gain_slope.SENSITIVE,), each).tables[2]
    assert spread.title == "tracebed, spread over 2 repetitions"
    assert [list(row) for row in spread.rows] == [
        ["gain of 6 processes", "76.00%", "80.00%"],
        ["gain of 12 processes", "10.00%", "14.00%"],
        ["gain of 24 processes", "-3.00%", "1.00%"],
        ["minimum", "6", "6"],
        ["preferred", "6", "6"],
        ["maximum", "12", "24"],
    ]


def test_times_of_other_sizes_than_those_of_the_paper_have_rows_of_their_own() -> None:
    run_times, sizes = dmr_gain_slope.findings({3: 4.0, 4: 2.0}).tables
    assert [list(row)[:4] for row in run_times.rows][:3] == [
        [3, "4", "", "238"],
        [4, "2", "50.00%", ""],
        [6, "", "", "68"],
    ]
    assert list(sizes.rows[1]) == ["preferred", 4, 6, 6]


def test_the_sizes_of_the_paper_are_used_where_they_fit() -> None:
    assert dmr_gain_slope._ranks(46) == [1, 4, 10, 22, 46]
    assert dmr_gain_slope._ranks(12) == [1, 4, 10]
    assert dmr_gain_slope._ranks(9) == [1, 2, 4, 8]
    assert dmr_gain_slope._ranks(2) == [1, 2]


def test_runs_are_measured_and_kept(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text("groups: {all: {nodes: 'n[1-4]', cores: 1, emulated: true}}\n", encoding="utf-8")
    words = ["experiment", "dmr-gain-slope", "--inventory", str(nodes), "--repetitions", "2", "--speed", "1000"]
    done = CliRunner().invoke(tracebed, [*words, "--json", "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    rows = facts["tables"][0]["rows"]
    measured = {row[0]: float(row[1]) for row in rows if row[1]}
    assert list(measured) == [3, 4, 6]
    assert measured[3] >= 0.6  # the time of the work is slept
    assert all(time >= 0.6 / (processes - 2) for processes, time in measured.items())
    assert PAPERS.load("dmr-gain-slope")(Settings(tmp_path / "out" / "dmr-gain-slope", str(nodes), 2, 1000.0)).facts()[
        "tables"
    ] == [{**table, "columns": tuple(table["columns"])} for table in facts["tables"]]
    run = Run.load(tmp_path / "out" / "dmr-gain-slope" / "runs" / "all")
    causes = [{"text": "a rank was late"}]
    disturbed = Run(replace(run.info, health={**run.info.health, "causes": causes}), run.jobs)
    inventory = load_inventory(nodes)
    notes = dmr_gain_slope._notes(inventory, Settings(tmp_path, repetitions=2), disturbed)
    assert notes[-1] == "The runs were disturbed: a rank was late."
    with pytest.raises(InputError, match="other settings"):
        dmr_gain_slope.run(Settings(tmp_path / "out" / "dmr-gain-slope", str(nodes), 3, 1000.0))


def test_one_node_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text("groups: {all: {nodes: 'n[1-1]', cores: 4, emulated: true}}\n", encoding="utf-8")
    with pytest.raises(InputError, match="has one node"):
        dmr_gain_slope.run(Settings(tmp_path / "study", str(path)))
