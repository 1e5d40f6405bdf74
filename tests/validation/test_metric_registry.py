"""The registry of metrics: tracebed's own in the documentation, third-party metrics in all commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import packages
from tests.cli.test_cli_verdicts import call
from tests.oracles import metric_tables
from tests.runs import fcfs_run
from tracebed.validation.metrics import Margin, all_metrics

DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDE = DOCS / "how-to" / "write-a-metric.md"


def test_the_documentation_has_the_tables_of_the_metrics() -> None:
    """`python -m tests.oracles.metric_tables` prints the tables."""
    assert metric_tables.definitions() in (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    assert metric_tables.margins() in (DOCS / "reference" / "tolerances.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_metrics_of_the_guide_are_measured_compared_and_reported(tmp_path: Path) -> None:
    site = packages.install(tmp_path / "guide", packages.files_of(GUIDE))
    fcfs_run(300, machine=4, stretch=10).save(tmp_path / "real")
    fcfs_run(300, machine=4, stretch=11, real=False).save(tmp_path / "sim")

    done = packages.tracebed(site, "metrics", "real", "sim", "--json", cwd=tmp_path)
    real, sim = (run["metrics"] for run in json.loads(done.stdout)["runs"])
    assert 0 < real["long_wait_share"] < sim["long_wait_share"] <= 1
    assert sim["p95_wait_s"] < sim["p99_wait_s"]
    assert "jobs that waited for more than 1 h" in packages.tracebed(site, "metrics", "sim", cwd=tmp_path).stdout

    sides = ("--real", "real", "--predicted", "sim")
    done = packages.tracebed(site, "compare", *sides, "--report", "report.html", "--json", cwd=tmp_path)
    found = {item["name"]: item for item in json.loads(done.stdout)["metrics"]}
    assert (found["p99_wait_s"]["gate"], found["p99_wait_s"]["delta"]) == (True, 0.15)
    assert (found["long_wait_share"]["gate"], found["long_wait_share"]["cases"][0]["margin"]) == (False, 0.01)
    assert "of 6 gated metrics" in json.loads(done.stdout)["headline"]
    assert (tmp_path / "report.html").read_text().count("wait, p99") >= 2  # in the verdict and in the table


@pytest.mark.slow
def test_duplicate_names_and_invalid_entry_points_are_refused(tmp_path: Path) -> None:
    fcfs_run(3).save(tmp_path / "run")
    code = """
        from tracebed.validation.metrics import Metric
        AGAIN = Metric(name="makespan_s", label="again", definition=lambda run: 0.0, docs="")
        TAU = Metric(name="tau", label="tau", definition=lambda run: 0.0, docs="")
        NUMBER = 7
        """
    for target, message in (
        ("AGAIN", "plugged:AGAIN: metric 'makespan_s' already exists"),
        ("TAU", "plugged:TAU: metric 'tau' already exists"),
        ("NUMBER", "plugged:NUMBER: not a metric"),
    ):
        entry = {"tracebed.metrics": {"own": f"plugged:{target}"}}
        site = packages.install(tmp_path / target, {"plugged.py": code}, entry)
        done = packages.tracebed(site, "metrics", "run", cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith(f"tracebed: {message}")


def test_the_command_prints_definitions_and_margins() -> None:
    shown = call("metrics", "--list").stdout
    for metric in all_metrics().values():
        assert metric.name in shown
        assert metric.docs in shown
    assert "10 %, at least 10 s, gate" in shown
    assert Margin(absolute=0.01).words() == "0.01, advisory"
