"""Each option of `tracebed experiment` with each registered experiment: the option is followed, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracebed.orchestrator.replay import session
from tracebed.studies.papers import base as replays
from tracebed.studies.papers.base import PAPERS, Settings, Study
from tracebed.validation.experiments import runner as grid
from tracebed.validation.experiments.file import names as files

NODES = "groups: {all: {nodes: 'n[1-48]', cores: 16, emulated: true}}\n"
REAL = (
    "workloads: {small: w.csv}\npolicies: [easy]\ntestbed: {inventory: emulated-4, speed: 1e6}\nrepetitions: 1\n"
    "simulators: {tracebed: {}}\n"
)
RECORDED = (
    "workloads: [w1]\npolicies: [fcfs]\nrecorded: 'real/{workload}-{policy}/rep-*'\nsimulators: {mine: {runs: m}}\n"
)
GRID = "workloads: {small: w.csv}\npolicies: [easy, fcfs]\n"
OWN = {"grid.yaml": GRID, "real.yaml": REAL, "recorded.yaml": RECORDED}
OPTIONS: dict[str, tuple[str, ...]] = {
    "--only": ("--only", "policy=none-such"),
    "--log": ("--log", "no-such-log"),
    "--report": ("--report", "artifact"),
    "--workers": ("--workers", "1"),
    "--dask": ("--dask", "tcp://127.0.0.1:1"),
    "--sensitivity": ("--sensitivity",),
    "--choice": ("-x", "interval_s=10"),
    "--inventory": ("--inventory", "nodes.yaml"),
    "--repetitions": ("--repetitions", "2"),
    "--speed": ("--speed", "500"),
    "--json": ("--json",),
}


@pytest.fixture
def nothing_runs(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return the function that runs a command; no replay and no simulation may start."""

    def started(*_: Any, **__: Any) -> None:
        pytest.fail("a run was started")

    for module, name in ((replays, "replay"), (session, "replay"), (grid, "run")):
        monkeypatch.setattr(module, name, started)
    Path("w.csv").write_text("job_id,submit_time,run_time,nodes\n1,0,10,1\n2,1,10,2\n")
    Path("nodes.yaml").write_text(NODES)
    for file, text in OWN.items():
        Path(file).write_text(text)
    return call


@pytest.mark.parametrize("name", [*files(), *PAPERS.names(), *OWN])
def test_show_prints_and_runs_nothing(name: str, nothing_runs: Callable[..., Any], tmp_path: Path) -> None:
    status, out, said = nothing_runs("experiment", name, "--show")
    assert status == 0, said
    assert "about:" in out or "workloads:" in out
    assert not Path("experiments").exists()
    for option, words in OPTIONS.items():
        status, _, said = nothing_runs("experiment", name, "--show", *words)
        assert (status, words[0] in said or option in said) == (2, True), (option, said)


@pytest.mark.parametrize("name", [*files(), *PAPERS.names(), *OWN])
def test_a_dry_run_follows_or_refuses_each_option(name: str, nothing_runs: Callable[..., Any], tmp_path: Path) -> None:
    """A value that does not exist must be an error, so an option that is accepted is not ignored."""
    wrong = {"--only", "--log"}
    for option, words in OPTIONS.items():
        status, out, said = nothing_runs("experiment", name, "--dry-run", *words, "-o", str(tmp_path / "out"))
        if status == 0:
            assert option not in wrong, f"{option} is ignored"
            if option == "--json":
                json.loads(out)
            if name in PAPERS.names() and option == "--speed":
                assert all(" 500 " in line or "500.0" in line for line in out.splitlines()[1:]), out
        else:
            assert status == 2
            named = (
                option,
                words[0],
                words[-1],
                words[-1].partition("=")[2] or words[0],
                "sensitivity",
                "are recorded",
                "does not list its replays",
            )
            assert any(name in said for name in named), (option, said)
    assert not (tmp_path / "out/runs").exists()


@pytest.mark.parametrize("name", PAPERS.names())
def test_a_dry_run_lists_the_replays_that_the_study_makes(name: str, nothing_runs: Callable[..., Any]) -> None:
    words = ("experiment", name, "--dry-run", "--inventory", "nodes.yaml", "--repetitions", "2", "--json", "-o", "out")
    status, out, said = nothing_runs(*words)
    study = PAPERS.load(name)
    if not isinstance(study, Study):  # it runs a program on this machine
        assert (status, "does not list its replays" in said) == (2, True)
        return
    assert status == 0
    rows = json.loads(out)["replays"]
    wanted = [each.folder for each in study.replays(Settings(Path("out"), "nodes.yaml", 2))]
    assert [row["replay"] for row in rows] == wanted
    assert len(set(wanted)) == len(wanted)
    assert not any(row["done"] for row in rows) and all(row["shortest_s"] > 0 for row in rows)
    assert not Path("out").exists()


def test_list_and_ledger_refuse_what_they_would_ignore(nothing_runs: Callable[..., Any]) -> None:
    for mode in (("--list",), ("kassel", "--ledger")):
        for words in OPTIONS.values():
            if (mode[0], words) != ("--list", ("--json",)):
                status, _, said = nothing_runs("experiment", *mode, *words)
                assert (status, "does not apply to" in said) == (2, True), said
