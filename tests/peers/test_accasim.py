"""AccaSim (Galleguillos et al. 2020) compared with tracebed: the same SWF, the same machine, the same process.

AccaSim packs a job's processors core by core onto idle cores, so its machine is a pool of cores. The tracebed
machine has as many nodes of one core. AccaSim uses whole seconds, so workloads are rounded for both simulators.
Run by `tox -e peers`; docs/explanation/peers.md has the results.
"""

from __future__ import annotations

import collections
import collections.abc
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.oracles.peer_schedules import Machine, Schedule, cirne, ricc
from tracebed.converters.formats.reading import read_workload
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.workload import Workload
from tracebed.machine import machine
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.prediction import EngineChoice, predict
from tracebed.testing import check_executor, workloads

collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]  # removed in Python 3.10, needed by AccaSim

from accasim.base.additional_data import AdditionalData  # noqa: E402
from accasim.base.allocator_class import FirstFit  # noqa: E402
from accasim.base.scheduler_class import EASYBackfilling, FirstInFirstOut  # noqa: E402
from accasim.base.simulator_class import Simulator  # noqa: E402

DISPATCHERS = {"fcfs": FirstInFirstOut, "easy": EASYBackfilling}
READ_BY_BOTH = ["job_id", "submit_time", "run_time", "time_limit", "nodes"]
ROUNDS = 3


class Starts(AdditionalData):  # type: ignore[misc]
    """An observer in AccaSim that records the start of each job that ends; cheaper than AccaSim's own output."""

    def __init__(self) -> None:
        super().__init__()
        self.of: dict[str, float] = {}

    def exec_after_completion(self, removed_jobs: Sequence[Any]) -> None:
        self.of.update((job.id, float(job.start_time)) for job in removed_jobs)

    def set_event_manager(self, event_manager: object) -> None:
        """Do nothing: AccaSim has no event manager at the first call and would reject None."""

    def exec_before_submission(self, *_: Any) -> None: ...
    def exec_after_submission(self) -> None: ...
    def exec_before_dispatching(self, *_: Any) -> None: ...
    def exec_after_dispatching(self, *_: Any) -> None: ...
    def exec_before_completion(self) -> None: ...
    def stop(self) -> None: ...


def accasim(swf: Path, machine: Machine, policy: str) -> dict[str, float]:
    """Simulate with AccaSim, without output files, and return its schedule."""
    system = swf.with_suffix(".json")
    system.write_text(json.dumps({"groups": {"g": {"core": machine.cores}}, "resources": {"g": machine.nodes}}))
    starts = Starts()
    simulator = Simulator(
        str(swf),
        str(system),
        DISPATCHERS[policy](FirstFit()),
        additional_data=[starts],
        scheduling_output=False,
        statistics_output=False,
        show_statistics=False,
        RESULTS_FOLDER_PATH=str(swf.parent),
        LOG_LEVEL="WARNING",
    )
    simulator.start_simulation()
    return starts.of


def ours(swf: Path, machine: Machine, policy: str, engine: EngineChoice = "auto") -> dict[str, float]:
    """Predict with tracebed from the same file, and return the schedule."""
    nodes = [NodeFacts(f"n{number}", 1) for number in range(machine.nodes * machine.cores)]
    jobs = predict(read_workload(swf), nodes, policy, engine=engine).jobs
    return dict(zip(jobs["job_id"], jobs["start"], strict=True))


def timed(simulate: Callable[..., dict[str, float]], swf: Path, machine: Machine, policy: str) -> Schedule:
    took = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        starts = simulate(swf, machine, policy)
        took.append(time.process_time() - begun)
    return Schedule(starts, min(took))


def write_swf(workload: Workload, folder: Path) -> Path:
    """Write a workload as SWF in whole seconds for both programs.

    The memory is omitted: AccaSim stops if only some jobs have it, and allocates it if its machine has memory.
    """
    table = workload.table[READ_BY_BOTH].copy()
    for name in ("submit_time", "run_time", "time_limit"):
        table[name] = np.rint(table[name])
    path = folder / "w.swf"
    write_workload(Workload(table, workload.provenance), path, whole_seconds=True)
    return path


def hand_written(folder: Path, *jobs: tuple[float, float, float, int]) -> Path:
    """Return a workload of (submit time, run time, limit, cores), with ids from 1."""
    table = pd.DataFrame(list(jobs), columns=["submit_time", "run_time", "time_limit", "nodes"])
    return write_swf(Workload(table.assign(job_id=[str(number + 1) for number in range(len(jobs))])), folder)


@pytest.mark.filterwarnings("ignore::tracebed.ground.errors.Tolerated")
@pytest.mark.parametrize("policy", ["fcfs", "easy"])
@pytest.mark.parametrize("drawn", [cirne, ricc])
def test_schedules_and_speed(
    drawn: Callable[..., tuple[Workload, Machine]],
    policy: str,
    reference_data: Callable[[str], Path],
    report: Callable[[str], None],
    tmp_path: Path,
) -> None:
    """FCFS: every job starts at the same second. EASY: AccaSim's policy differs (see below), so both are reported."""
    workload, machine = drawn(reference_data)
    swf = write_swf(workload, tmp_path)
    submits = read_workload(swf).table.set_index("job_id")["submit_time"]
    peer = timed(accasim, swf, machine, policy)
    own = timed(ours, swf, machine, policy)
    python = timed(partial(ours, engine="python"), swf, machine, policy)
    programs = {"AccaSim": peer, "tracebed": own, "its Python": python}
    if policy == "easy":  # similar to AccaSim's policy
        programs["firstfit"] = timed(ours, swf, machine, "firstfit")
    for name, schedule in programs.items():
        report(schedule.line(drawn.__name__, policy, name, submits, peer))
    assert python.starts == own.starts
    if policy == "fcfs":
        assert peer.starts == own.starts


def test_easy_of_accasim_does_not_protect_the_head(tmp_path: Path) -> None:
    """Job 2 is reserved for the end of job 1, at 100. AccaSim starts the long job 3 before, which delays job 2."""
    swf = hand_written(tmp_path, (10, 90, 90, 2), (20, 10, 10, 4), (30, 1000, 1000, 2))
    machine = Machine(1, 4)
    assert ours(swf, machine, "easy") == {"1": 10, "2": 100, "3": 110}
    assert accasim(swf, machine, "easy") == {"1": 10, "2": 1030, "3": 30}


def test_easy_of_accasim_does_not_start_the_head_before_its_reservation(tmp_path: Path) -> None:
    """Job 1 ends at 20, long before its limit. Job 2 could start then but waits until the limit, 110."""
    swf = hand_written(tmp_path, (10, 10, 100, 4), (12, 10, 10, 4), (15, 5, 5, 4))
    machine = Machine(1, 4)
    assert ours(swf, machine, "easy") == {"1": 10, "2": 20, "3": 30}
    assert accasim(swf, machine, "easy") == {"1": 10, "2": 110, "3": 20}


def test_accasim_does_not_schedule_after_a_job_of_zero_length(tmp_path: Path) -> None:
    """Job 2 ends as it starts, at 20. Job 3 could start, but AccaSim does not schedule until the next event, at 50."""
    swf = hand_written(tmp_path, (10, 10, 10, 4), (12, 0, 5, 4), (15, 5, 5, 4), (50, 5, 5, 1))
    machine = Machine(1, 4)
    assert ours(swf, machine, "fcfs") == {"1": 10, "2": 20, "3": 20, "4": 50}
    assert accasim(swf, machine, "fcfs") == {"1": 10, "2": 20, "3": 50, "4": 55}


def test_accasim_passes_the_check_of_executors() -> None:
    work = workloads.draw(1)
    check_executor("accasim", work, machine.Machine.of_system(work.provenance.system), Setup.of("easy"))
