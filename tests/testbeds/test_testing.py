"""The checks for extensions: tracebed's own extensions pass, planted defects fail."""

from __future__ import annotations

import doctest
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import pandas as pd
import pytest

from tests import packages
from tracebed.converters.formats import csv
from tracebed.converters.formats.format import Format, Marks
from tracebed.converters.formats.tools.files import Input
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.state import Decision, Reject, Start, State
from tracebed.testing import check_format, check_policy, formats, policies


@pytest.mark.parametrize("policy", registry.names())
def test_the_policies_of_tracebed_pass(policy: str) -> None:
    check_policy(policy, cases=6, no_starvation=policy not in ("firstfit", "leak"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "parameters"),
    [
        *(("deadline", {}), ("fcfs-malleable", {}), ("leak", {}), ("leak", {"waits": True})),
        ("leak", {"reserve": True, "contiguous": False}),
    ],
)
def test_policies_with_many_branches_pass_more_cases(policy: str, parameters: dict[str, bool]) -> None:
    check_policy(policy, parameters=parameters, cases=20)


def test_a_policy_that_starves_a_job_fails_with_the_option() -> None:
    check_policy("firstfit", cases=1)
    with pytest.raises(AssertionError, match="starves"):
        check_policy("firstfit", cases=1, no_starvation=True)


def test_the_examples_run() -> None:
    for module in (formats, policies):
        result = doctest.testmod(module)
        assert (result.failed, result.attempted > 0) == (0, True)


class Fcfs:
    """A policy that starts jobs in the order of submission; its subclasses have the defect in their names."""

    malleable: ClassVar[bool] = False

    def decide(self, state: State) -> Iterator[Decision]:
        for job in list(state.queue.jobs()):
            if state.jobs.nodes[job] > state.idle:
                return
            yield self.start(state, job)

    def start(self, state: State, job: int) -> Decision:
        return Start(job, state.jobs.nodes[job])


@dataclass(frozen=True)
class Correct(Fcfs):
    pass


@dataclass(frozen=True)
class ReadsTheClock(Fcfs):
    def start(self, state: State, job: int) -> Decision:
        time.monotonic()
        return super().start(state, job)


@dataclass(frozen=True)
class OpensAFile(Fcfs):
    def start(self, state: State, job: int) -> Decision:
        with open("/dev/null", encoding="utf-8"):
            return super().start(state, job)


@dataclass(frozen=True)
class Draws(Fcfs):
    def decide(self, state: State) -> Iterator[Decision]:
        jobs = [job for job in state.queue.jobs() if state.jobs.nodes[job] <= state.idle]
        if jobs:
            yield self.start(state, random.choice(jobs))


@dataclass(frozen=True)
class Remembers(Fcfs):
    """A policy that is correct for the first workload only."""

    seen: list[int] = field(default_factory=list)

    def decide(self, state: State) -> Iterator[Decision]:
        self.seen.append(id(state))
        jobs = list(state.queue.jobs())
        for job in reversed(jobs) if len(set(self.seen)) > 1 else jobs:
            if state.jobs.nodes[job] <= state.idle:
                yield self.start(state, job)


@dataclass(frozen=True)
class ChangesTheState(Fcfs):
    def start(self, state: State, job: int) -> Decision:
        state.reserved[job] = state.now
        return super().start(state, job)


@dataclass(frozen=True)
class Forgets(Fcfs):
    def decide(self, state: State) -> Iterator[Decision]:
        for job in list(state.queue.jobs()):
            if job % 5 and state.jobs.nodes[job] <= state.idle:
                yield self.start(state, job)


@dataclass(frozen=True)
class RejectsAll(Fcfs):
    def start(self, state: State, job: int) -> Decision:
        return Reject(job, "")


def test_a_policy_without_a_defect_passes() -> None:
    check_policy(Correct, cases=10)


@pytest.mark.parametrize(
    ("policy", "violation"),
    [
        (ReadsTheClock, "reads a clock"),
        (OpensAFile, "opens a file"),
        (Draws, "differs a second time"),
        pytest.param(Remembers, "differs", marks=pytest.mark.slow),
        (ChangesTheState, "modifies the scheduler state"),
        (Forgets, "is unknown at the end"),
        (RejectsAll, "is rejected without a reason"),
    ],
)
def test_a_policy_with_a_defect_fails(policy: type[Any], violation: str) -> None:
    with pytest.raises(AssertionError, match=violation):
        check_policy(policy)


@pytest.mark.parametrize(
    ("table", "change", "check"),
    [
        ("allocations", lambda t: pd.concat([t, t.iloc[[0]]]), "cores"),
        ("allocations", lambda t: t.assign(node=t["node"] + 100), "cores"),
        ("allocations", lambda t: t.assign(end=t["end"] + 1.0), "work"),
        ("allocations", lambda t: t.assign(count=t["count"] + 1), "sizes"),
        ("jobs", lambda t: t.assign(start=t["start"] - 1e6), "jobs"),
        ("jobs", lambda t: t.assign(nodes=10**6), "jobs"),
    ],
)
def test_a_run_that_breaks_an_invariant_fails(table: str, change: Any, check: str) -> None:
    """The run is checked even for defects that the scheduler already refuses."""
    case = policies._Case.simulate(registry.load("easy"), policies.workloads.draw(3), 3, "easy")
    for one in ("jobs", "cores", "sizes", "work"):
        getattr(case, f"check_{one}")()
    setattr(case.run, table, change(getattr(case.run, table)))
    with pytest.raises(AssertionError, match="policy easy, workload 3"):
        getattr(case, f"check_{check}")()


@pytest.mark.parametrize("format", ["parquet", "csv", "swf", "elastisim", "slurm", "ub-slurm"])
def test_the_formats_of_tracebed_pass(format: str) -> None:
    seconds = 1.0 if format == "ub-slurm" else 1e-6  # events have whole seconds
    check_format(format, cases=5, damages=100, atol=seconds)


def test_a_format_with_a_shortest_job_passes_within_it() -> None:
    check_format("batsim", cases=4, atol=0.01)
    with pytest.raises(AssertionError, match="column run_time"):
        check_format("batsim", cases=4)


def recognizes(file: Input) -> bool:
    return file.head.startswith(b'{"mine"')


def write(workload: Workload, file: BinaryIO) -> None:
    columns = {name: workload.column(name).tolist() for name in ("job_id", "submit_time", "run_time", "nodes")}
    file.write(json.dumps({"mine": columns}).encode())


def read(file: Input) -> Workload:
    try:
        return Workload(pd.DataFrame(json.loads(file.data)["mine"]), where=file.where)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"is damaged: {type(error).__name__}", where=file.where) from error


MINE = Format("mine", "for a test", recognizes, suffixes=(".mine",), read=read, write=write)


def _in_a_hurry(file: Input) -> Workload:
    return Workload(pd.DataFrame(json.loads(file.data)["mine"]), where=file.where)


def _halved(file: Input) -> Workload:
    table = read(file).table
    return Workload(table.assign(nodes=(table["nodes"] + 1) // 2))


def _timed(workload: Workload, file: BinaryIO) -> None:
    write(workload, file)
    file.write(f"\n{time.perf_counter_ns()}".encode())


def test_a_format_without_a_defect_passes() -> None:
    check_format(MINE, cases=5, damages=50)


@pytest.mark.parametrize(
    ("format", "violation"),
    [
        (replace(MINE, read=_in_a_hurry), "not InputError"),
        (replace(MINE, read=_halved), "column nodes"),
        (replace(MINE, read=lambda file: Workload(read(file).table.iloc[:1])), "1 are read"),
        (replace(MINE, write=_timed), "two outputs of the same workload differ"),
        (replace(MINE, recognizes=lambda file: False), "does not recognize its own output"),
        (replace(MINE, read=csv.read, write=csv.write, recognizes=lambda file: True, marks=Marks.LOOSE), "csv"),
        (replace(MINE, read=None, write=None), "neither a reader nor a writer"),
        (replace(MINE, write=None), "`examples` are required"),
    ],
)
def test_a_format_with_a_defect_fails(format: Format, violation: str) -> None:
    with pytest.raises(AssertionError, match=violation):
        check_format(format)


def test_a_format_that_is_only_read_is_checked_by_examples(tmp_path: Path) -> None:
    path = tmp_path / "a.mine"
    path.write_text(json.dumps({"mine": {"job_id": ["1"], "submit_time": [0], "run_time": [1], "nodes": [1]}}))
    check_format(replace(MINE, write=None), examples=[path], damages=50)
    path.write_text('{"mine": {"job_id": [], "submit_time": [], "run_time": [], "nodes": []}}')
    with pytest.raises(InputError, match="contains no jobs"):
        check_format(replace(MINE, write=None), examples=[path])


def test_a_package_checks_its_policy_with_what_tracebed_installs(tmp_path: Path) -> None:
    module = """
        from dataclasses import dataclass
        from typing import ClassVar
        from tracebed.orchestrator.scheduling.state import Start

        @dataclass(frozen=True)
        class Greedy:
            malleable: ClassVar[bool] = False
            def decide(self, state):
                for job in list(state.queue.jobs()):
                    if state.jobs.nodes[job] <= state.idle:
                        yield Start(job, state.jobs.nodes[job])
        """
    entry = {"tracebed.policies": {"greedy": "greedy:Greedy"}}
    site = packages.install(tmp_path / "greedy", {"greedy.py": module}, entry)
    done = packages.python(
        site, "from tracebed.testing import check_policy; check_policy('greedy', cases=10)", cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
