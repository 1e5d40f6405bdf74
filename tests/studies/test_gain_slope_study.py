"""The experiment `dmr-gain-slope`: its tables, and runs on emulated nodes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tracebed.cli import tracebed
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.testbeds.inventory import load_inventory
from tracebed.studies.papers import dmr_gain_slope
from tracebed.studies.papers.base import PAPERS, Settings

pytestmark = pytest.mark.usefixtures("no_process_is_left")


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
