"""ElastiSim compared with tracebed: rigid jobs under a script of its own, and malleable jobs under our policies.

Run by `tox -e peers` where the program of ElastiSim is; docs/explanation/peers.md has the results.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tracebed.api as tb
from tests.oracles import elastisim_programs as programs
from tests.oracles.peer_schedules import Machine, Schedule, cirne
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.drivers.elastisim import outputs
from tracebed.machine.nodes import nodes_of
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import EngineChoice, predict
from tracebed.validation.simulators.simulator import SimulateOptions, simulate

SCRIPT = Path(__file__).with_name("elastisim_script.py")
TIMEOUT_S = 300.0
GRAIN_S = 600.0
JOBS = 300
ENGINES: dict[str, EngineChoice] = {"tracebed": "auto", "its Python": "python"}
RESIZES = ["job_id", "kind", "nodes_from", "nodes_to", "state"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program, or skip the test."""
    return programs.real(tmp_path_factory.mktemp("elastisim"))


def with_whole_limits(workload: Workload, machine: Machine) -> Workload:
    """Return the jobs with limits in whole seconds above their run times: ElastiSim has no others."""
    table = workload.table[["job_id", "submit_time", "run_time", "nodes"]].copy()
    table["time_limit"] = np.ceil(1.5 * table["run_time"]) + 60.0
    return Workload(table, Provenance(system=System(machine.nodes, 1)))


def by_script(workload: Workload, policy: str, program: Path, folder: Path) -> Schedule:
    """Simulate with ElastiSim under the script; return its schedule, and the CPU time of its program alone."""
    write_workload(workload, folder, format="elastisim")
    address = json.loads((folder / "configuration.json").read_text())["zmq_url"]
    interface = os.environ | {"PYTHONPATH": str(programs.ROOT.parent / "shared" / "peers" / "elastisim")}
    script = subprocess.Popen([sys.executable, str(SCRIPT), policy, address], cwd=folder, env=interface)
    try:
        begun = cpu_time_of_children()
        command = [str(program), "configuration.json", "--log=root.thresh:warning"]
        subprocess.run(command, cwd=folder, check=True, timeout=TIMEOUT_S)
        seconds = cpu_time_of_children() - begun
        assert script.wait(TIMEOUT_S) == 0
    finally:
        script.kill()
        script.wait()
    waits = outputs.statistics(folder / outputs.STATISTICS)["wait"].to_numpy()
    starts = dict(zip(workload.column("job_id"), workload.floats("submit_time") + waits, strict=True))
    return Schedule(starts, seconds, float(outputs.unit(waits).max()))


def cpu_time_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(simulate: Callable[[], Run], rounds: int = 3) -> tuple[Run, Schedule]:
    """Return a run, its schedule, and the CPU time of this process and its children, the best of all rounds."""
    took = []
    for _ in range(rounds):
        begun = time.process_time() + cpu_time_of_children()
        run = simulate()
        took.append(time.process_time() + cpu_time_of_children() - begun)
    return run, Schedule(dict(zip(run.jobs["job_id"], run.jobs["start"], strict=True)), min(took))


def submissions(workload: Workload) -> pd.Series:
    return pd.Series(workload.floats("submit_time"), index=workload.column("job_id"))


@pytest.mark.parametrize("policy", ["fcfs", "easy"])
def test_rigid_jobs_under_a_script_that_does_not_know_us(
    program: Path, policy: str, report: Callable[[str], None], reference_data: Callable[[str], Path], tmp_path: Path
) -> None:
    """Every job starts when it starts in ElastiSim, to the digits that ElastiSim prints."""
    workload = with_whole_limits(*cirne(reference_data))
    (tmp_path / "elastisim").mkdir()
    peer = by_script(workload, policy, program, tmp_path / "elastisim")
    path = tmp_path / "w.parquet"
    write_workload(workload, path)
    for name, engine in ENGINES.items():
        _, own = timed(lambda engine=engine: predict(read_workload(path), None, policy, engine=engine))
        report(own.line("cirne", policy, name, submissions(workload), peer))
        assert own.apart(peer) == 0
    report(peer.line("cirne", policy, "ElastiSim", submissions(workload), peer))


@pytest.mark.parametrize("policy", ["pref", "min", "avg", "keep-pref"])
def test_malleable_jobs_under_our_policy(
    program: Path, policy: str, report: Callable[[str], None], reference_data: Callable[[str], Path]
) -> None:
    """Our policy decides in both, and each job is resized between iterations: the starts and the resizes are equal."""
    drawn = with_whole_limits(*cirne(reference_data))
    workload = tb.make_malleable(Workload(drawn.table.head(JOBS), drawn.provenance), share=0.5, seed=1)
    options = {"policy_parameters": {"calls": "event"}, "overheads": Overheads(grain_s=GRAIN_S)}
    given = SimulateOptions(timeout_s=TIMEOUT_S, options={"program": str(program)}, **options)
    nodes = nodes_of(workload.provenance.system)
    run, peer = timed(lambda: simulate("elastisim", workload, nodes, policy, given), rounds=1)
    for name, engine in ENGINES.items():
        other, own = timed(lambda engine=engine: predict(workload, None, policy, engine=engine, **options))
        report(own.line("malleable", policy, name, submissions(workload), peer))
        assert own.apart(peer) == 0
        assert other.reconfigurations[RESIZES].equals(run.reconfigurations[RESIZES])
    report(peer.line("malleable", policy, "ElastiSim", submissions(workload), peer))
