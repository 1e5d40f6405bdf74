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
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.machine.machine import Machine, NodeClass
from tracebed.machine.sources import SOURCES, YAML, MachineSource, read_machine
from tracebed.orchestrator.executors import Options
from tracebed.orchestrator.replay.session import ReplayOptions
from tracebed.orchestrator.run import Run, RunInfo, run_of_jobs, workload_facts
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.state import Decision, Reject, Start, State
from tracebed.orchestrator.setup import Setup
from tracebed.testing import (
    check_executor,
    check_format,
    check_machine,
    check_policy,
    executors,
    formats,
    machines,
    policies,
    workloads,
)


@pytest.mark.parametrize("policy", registry.names())
def test_the_policies_of_tracebed_pass(policy: str) -> None:
    starving = ("firstfit", "leak", "max-min-fairness", "min-total-duration")
    check_policy(policy, cases=6, no_starvation=policy not in starving)


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
    for module in (executors, formats, machines, policies):
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
        ("allocations", lambda t: t.assign(node=t["node"] + 100), "nodes"),
        ("allocations", lambda t: t.assign(end=t["end"] + 1.0), "work"),
        ("allocations", lambda t: t.assign(count=t["count"] + 1), "sizes"),
        ("jobs", lambda t: t.assign(start=t["start"] - 1e6), "jobs"),
        ("jobs", lambda t: t.assign(nodes=10**6), "jobs"),
    ],
)
def test_a_run_that_breaks_an_invariant_fails(table: str, change: Any, check: str) -> None:
    """The run is checked even for defects that the scheduler already refuses."""
    case = policies._Case.simulate(registry.load("easy"), policies.workloads.draw(3), 3, "easy")
    for one in ("jobs", "cores", "nodes", "sizes", "work"):
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


# -- executors

WORK = workloads.draw(3)
MACHINE = Machine.of_system(WORK.provenance.system)


@pytest.mark.parametrize(("executor", "policy"), [("simulator", "easy"), ("simulator", "pref"), ("slurm", "slurm")])
def test_the_executors_of_tracebed_pass(executor: str, policy: str) -> None:
    for seed in range(4):
        work = workloads.draw(seed)
        check_executor(executor, work, Machine.of_system(work.provenance.system), Setup.of(policy))


def test_an_executor_that_does_not_predict_may_give_other_bytes(tmp_path: Path) -> None:
    options = ReplayOptions(output=tmp_path / "run", name="mine")
    work = workloads.draw(1)
    check_executor("replay", work, read_machine("virtual"), Setup.of("easy", speed=1e5), options)


class AtOnce:
    """An executor without a defect; its subclasses have the defect in their names."""

    options = Options
    predicts = True

    def accepts(self, machine: Machine, setup: Setup) -> bool:
        return True

    def execute(self, workload: Workload, machine: Machine, setup: Setup, options: Options) -> Run:
        setup, _ = setup.resolved(len(machine.nodes))
        return self.run(workload.runnable()[0], self.info(workload, machine, setup, options))

    def info(self, workload: Workload, machine: Machine, setup: Setup, options: Options) -> RunInfo:
        facts = workload_facts(workload, options.name)
        return RunInfo("at-once", "simulated", list(machine.nodes), facts, setup)

    def run(self, jobs: Workload, info: RunInfo) -> Run:
        start = jobs.floats("submit_time")
        return run_of_jobs(jobs, info, start=start, end=start + jobs.floats("run_time"))


class AcceptsNothing(AtOnce):
    def accepts(self, machine: Machine, setup: Setup) -> bool:
        return False


class ReturnsATable(AtOnce):
    def run(self, jobs: Workload, info: RunInfo) -> Any:
        return jobs.table


class LosesAJob(AtOnce):
    def run(self, jobs: Workload, info: RunInfo) -> Run:
        return super().run(Workload(jobs.table.iloc[1:]), info)


class InventsAJob(AtOnce):
    def run(self, jobs: Workload, info: RunInfo) -> Run:
        return super().run(Workload(pd.concat([jobs.table, jobs.table.iloc[:1].assign(job_id="own")])), info)


class MovesASubmission(AtOnce):
    def run(self, jobs: Workload, info: RunInfo) -> Run:
        return super().run(Workload(jobs.table.assign(submit_time=jobs.table["submit_time"] + 1)), info)


class HasOtherNodes(AtOnce):
    def run(self, jobs: Workload, info: RunInfo) -> Run:
        info.nodes = list(Machine(classes=(NodeClass(count=3),)).nodes)
        return super().run(jobs, info)


class NamesNoWorkload(AtOnce):
    def run(self, jobs: Workload, info: RunInfo) -> Run:
        info.workload = {}
        return super().run(jobs, info)


class ForgetsThePolicy(AtOnce):
    def run(self, jobs: Workload, info: RunInfo) -> Run:
        info.setup = Setup()
        return super().run(jobs, info)


class StartsJobsBeforeTheirSubmission(AtOnce):
    def run(self, jobs: Workload, info: RunInfo) -> Run:
        start = jobs.floats("submit_time") - 1
        return run_of_jobs(jobs, info, start=start, end=start + jobs.floats("run_time"))


class GivesACoreTwice(AtOnce):
    def run(self, jobs: Workload, info: RunInfo) -> Run:
        start = jobs.floats("submit_time")
        columns = {
            "job_id": jobs.column("job_id"),
            "node": 0,
            "count": 1,
            "start": start,
            "end": start + 1e6,
            "cores": 1,
        }
        return run_of_jobs(jobs, info, start=start, end=start + 1e6, allocations=pd.DataFrame(columns))


class RecordsAnObject(AtOnce):
    def run(self, jobs: Workload, info: RunInfo) -> Run:
        info.parameters = {"beside": Path("x")}
        return super().run(jobs, info)


class RecordsTheTime(AtOnce):
    def run(self, jobs: Workload, info: RunInfo) -> Run:
        info.parameters = {"at": time.perf_counter()}
        return super().run(jobs, info)


class ResolvesNothing(AtOnce):
    def execute(self, workload: Workload, machine: Machine, setup: Setup, options: Options) -> Run:
        return self.run(workload.runnable()[0], self.info(workload, machine, setup, options))


class FailsForAnUnknownPolicy(AtOnce):
    def execute(self, workload: Workload, machine: Machine, setup: Setup, options: Options) -> Run:
        if setup.scheduling.policy != "easy":
            raise KeyError(setup.scheduling.policy)
        return super().execute(workload, machine, setup, options)


def test_an_executor_without_a_defect_passes() -> None:
    for seed in range(5):
        work = workloads.draw(seed)
        check_executor(AtOnce(), work, Machine.of_system(work.provenance.system), Setup.of("easy"))


@pytest.mark.parametrize(
    ("executor", "violation"),
    [
        (AcceptsNothing, "does not accept"),
        (ReturnsATable, "returns DataFrame, not a Run"),
        (LosesAJob, "is missing in the run"),
        (InventsAJob, "job own is not a job of the workload"),
        (MovesASubmission, "submit time of another job"),
        (HasOtherNodes, "not the nodes of the machine"),
        (NamesNoWorkload, "is not `workload_facts"),
        (ForgetsThePolicy, "policy of the run is not known, not easy"),
        (StartsJobsBeforeTheirSubmission, "cannot be saved and read again.*before its submission"),
        (GivesACoreTwice, "cannot be saved and read again.*while other jobs hold"),
        (RecordsAnObject, "cannot be saved and read again.*not JSON serializable"),
        (RecordsTheTime, "gives another run.json a second time"),
        (ResolvesNothing, "an unknown policy is not refused: call `setup.resolved"),
        (FailsForAnUnknownPolicy, "an unknown policy raises KeyError, not InputError"),
    ],
)
def test_an_executor_with_a_defect_fails(executor: type[AtOnce], violation: str) -> None:
    with pytest.raises(AssertionError, match=rf"^executor {executor.__name__}: .*{violation}"):
        check_executor(executor(), WORK, MACHINE, Setup.of("easy"))


def test_a_class_is_not_an_executor() -> None:
    with pytest.raises(InputError, match="is not an executor"):
        check_executor(AtOnce, WORK, MACHINE, Setup.of("easy"))  # type: ignore[arg-type]


# -- sources of machines

OWN = MachineSource(
    "a file of this test",
    recognizes=lambda path: path.suffix == ".own",
    read=lambda path: Machine(classes=(NodeClass(count=2),)),
)
FILES = {
    "inventory": ("inventory.yaml", "nodes:\n- {name: 'e[1-4]', cores: 4, sockets: 2, emulated: true}\n"),
    "slurm": ("slurm.conf", "NodeName=n[1-3] CPUs=4\nNodeName=g1 CPUs=8 Gres=gpu:2\nPartitionName=main Nodes=n[1-3]\n"),
    "yaml": ("machine.yaml", "classes:\n- {count: 4, cores: 4}\npartitions:\n- {name: batch, default: true}\n"),
}


@pytest.mark.parametrize("source", SOURCES.names())
def test_the_sources_of_machines_of_tracebed_pass(source: str, tmp_path: Path) -> None:
    name, text = FILES.get(source, ("", ""))
    for part in (text, text.replace("\n", "\r\n")) if text else ():
        (tmp_path / name).write_bytes(part.encode())
        check_machine(source, tmp_path / name)
    if source == "elastisim":
        write_workload(WORK, tmp_path / "e", "elastisim")
        check_machine(source, tmp_path / "e/platform.xml")
    for suffix in ("parquet", "csv", "swf") if source == "workload" else ():
        write_workload(WORK, tmp_path / f"w.{suffix}")
        check_machine(source, tmp_path / f"w.{suffix}")
    assert text or [*tmp_path.iterdir()]


@dataclass(frozen=True, kw_only=True)
class Powered(Machine):
    """A machine with more than `Machine` has, whose JSON values do not name its source."""

    power_w: float = 100.0

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "power_w": self.power_w}


@dataclass(frozen=True, kw_only=True)
class Executed(Machine):
    """A machine that names its executor, which its JSON values lose."""

    executor: ClassVar[str] = "slurm"


def _numbered(path: Path) -> Machine:
    counter = path.with_suffix(".count")
    counter.write_text(f"{counter.read_text() if counter.exists() else ''}x")
    return Machine(classes=(NodeClass(count=len(counter.read_text())),))


def _hasty(path: Path) -> Machine:
    return Machine(classes=(NodeClass(count=json.loads(path.read_text())["nodes"]),))


def _anonymous(path: Path) -> Machine:
    if not path.read_text().endswith("}"):
        raise InputError("is not complete")
    return _hasty(path)


@pytest.mark.parametrize(
    ("source", "violation"),
    [
        (replace(YAML, recognizes=lambda path: False), "does not recognize"),
        (replace(YAML, last=False), "is recognized by other sources, too: yaml"),
        (replace(OWN, read=lambda path: path), "returns PosixPath, not a Machine"),
        (replace(OWN, read=_numbered), "another one when it is read again"),
        (replace(OWN, read=lambda path: Powered(classes=(NodeClass(count=2),))), "power_w: unknown key"),
        (replace(OWN, read=lambda path: Executed(classes=(NodeClass(count=2),))), "another machine"),
        (replace(OWN, read=_hasty), "raises JSONDecodeError, not InputError"),
        (replace(OWN, read=_anonymous), "the error does not name the file: is not complete"),
    ],
)
def test_a_source_of_machines_with_a_defect_fails(source: MachineSource, violation: str, tmp_path: Path) -> None:
    path = tmp_path / ("machine.yaml" if "recognize" in violation else "machine.own")
    path.write_text(FILES["yaml"][1] if "recognize" in violation else '{"nodes": 4}')
    with pytest.raises(AssertionError, match=violation):
        check_machine(source, path)


def test_a_source_of_machines_without_a_defect_passes(tmp_path: Path) -> None:
    (tmp_path / "machine.own").write_text("two")
    check_machine(OWN, tmp_path / "machine.own")


def test_what_is_no_source_of_machines_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown source of machines 'jaml'"):
        check_machine("jaml", tmp_path)
    with pytest.raises(InputError, match="there is no such file"):
        check_machine("yaml", tmp_path / "no.yaml")


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
