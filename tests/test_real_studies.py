"""Studies by real runs: the scenarios of the papers on a testbed, and their tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tracebed.errors import InputError
from tracebed.orchestrator.cli import tracebed
from tracebed.validation.studies.real import drom
from tracebed.validation.studies.real.base import STUDIES, Findings, FindingsTable, Settings, percent

pytestmark = pytest.mark.usefixtures("no_process_is_left")


@pytest.fixture
def nodes(tmp_path: Path) -> str:
    """Two emulated nodes of 16 cores, as in the DROM paper."""
    path = tmp_path / "nodes.yaml"
    path.write_text("groups: {all: {nodes: 'n[1-2]', cores: 16, emulated: true}}\n", encoding="utf-8")
    return str(path)


def change(text: str) -> float:
    """Return a relative change that a table prints."""
    return float(text.removesuffix(" %")) / 100


def test_equipartition_delays_the_first_job_and_not_the_second(tmp_path: Path, nodes: str) -> None:
    """By the model: 2000 s at 0 and at 1000 s. Serially the jobs end at 2000 and 4000 s, shared at 3000 and 4000 s."""
    found = drom.high_priority(Settings(tmp_path / "study", nodes, 1, 500.0))
    [[name, total, first, second, average, *paper]] = found.tables[0].rows
    assert (name, paper) == ("nest + coreneuron", ["-2.5 %", "-10 %"])
    assert change(total) == pytest.approx(0.0, abs=0.1)
    assert change(first) == pytest.approx(0.5, abs=0.15)
    assert change(second) == pytest.approx(0.0, abs=0.15)
    assert change(average) == pytest.approx(0.2, abs=0.12)
    again = drom.high_priority(Settings(tmp_path / "study", nodes, 1, 500.0))  # from the runs that are complete
    assert again == found


def test_a_study_is_listed_run_and_saved_by_the_command(tmp_path: Path, nodes: str) -> None:
    listed = CliRunner().invoke(tracebed, ["study", "--list"])
    assert listed.exit_code == 0 and "drom-in-situ" in listed.stdout and "section 6.1" in listed.stdout
    arguments = ["study", "drom-high-priority", "--inventory", nodes, "--repetitions", "1", "--speed", "1000", "--json"]
    done = CliRunner().invoke(tracebed, [*arguments, "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["tables"][0]["rows"][0][0] == "nest + coreneuron"
    page = (tmp_path / "out" / "findings.md").read_text(encoding="utf-8")
    assert page.startswith("# High-priority job") and "| nest + coreneuron |" in page and "emulated" in page


def test_nodes_of_one_core_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text("groups: {all: {nodes: 'n[1-2]', cores: 1, emulated: true}}\n", encoding="utf-8")
    with pytest.raises(InputError, match="a node has one core, which two jobs cannot share"):
        drom.in_situ(Settings(tmp_path / "study", str(path)))


def test_the_configurations_of_table_1_are_scaled_to_the_cores() -> None:
    assert [asked for *_, asked in drom._analytics(16)] == [16, 1, 4, 2]
    assert [(application, asked) for _, application, asked in drom._analytics(2)] == [
        ("pils", 2),
        ("pils", 1),
        ("stream", 1),
    ]


def test_an_unknown_study_is_refused() -> None:
    with pytest.raises(InputError, match="unknown study 'drom'"):
        STUDIES.load("drom")


def test_findings_are_a_page() -> None:
    found = Findings("T", [FindingsTable("one", ("a", "b"), [[1, percent(200.0, 150.0)]])], ["a note"])
    assert found.markdown() == "# T\n\n## one\n\n| a | b |\n|---|---|\n| 1 | -25.0 % |\n\n- a note\n"
