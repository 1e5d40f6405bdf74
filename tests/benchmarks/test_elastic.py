"""Commands whose nodes change while they run: copies that come and go, checks of DMR, MPI, and torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import pandas as pd
import pytest

from tests.patience import until
from tests.runs import replaying
from tests.servers.agents import Agent
from tests.servers.ports import free_ports
from tracebed.benchmarks.mpi import aligner, program
from tracebed.benchmarks.mpi.launch import LOOPBACK, mpiexec
from tracebed.benchmarks.mpi.program import MODULE, ProgramParameters
from tracebed.benchmarks.program import Program
from tracebed.benchmarks.redistribution import Block
from tracebed.benchmarks.unmodified import INCLUDE
from tracebed.converters.workload import Workload
from tracebed.orchestrator.replay.programs import AllowedCommands
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.testbeds.agent.claims import SPACE
from tracebed.orchestrator.testbeds.nodes import Inventory, Node

pytestmark = pytest.mark.usefixtures("no_process_is_left")
CPUS = sorted(os.sched_getaffinity(0))
CPU = CPUS[0]
COPY = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("terminated", flush=True)))
print("begun", os.environ["TRACEBED_RANK"], os.environ["TRACEBED_NODES"], flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
"""
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('begun', flush=True); time.sleep(600)"
)
CHECKS = """
import os, time
from tracebed.benchmarks.dmr import SizeRange
from tracebed.benchmarks.dmr_manager import ADDRESS, request_decision
size = 1
while True:
    answer = request_decision(os.environ[ADDRESS], size, SizeRange(1, 1, 9))
    print(answer.action.value, answer.size, flush=True)
    size = answer.size
"""
CHECKS_IN_C = r"""
#include "tracebed_dmr.h"
static const char *NAMES[] = {"none", "expand", "shrink"};
int main(void) {
    int size = 1;
    for (;; usleep(1000)) {
        tb_dmr_action action = tb_dmr_request(size, 1, 9, 1, &size);
        printf("%s %d\n", NAMES[action], size);
        fflush(stdout);
    }
}
"""
DASK = """
import os, sys, time
file, end = sys.argv[1] + "/scheduler.json", sys.argv[1] + "/end"
options = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1"]
if os.environ["TRACEBED_RANK"] != "0":
    while not os.path.exists(file): time.sleep(0.05)
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", file]
    os.execv(sys.executable, [*worker, *options])
from distributed import Client, LocalCluster
cluster = LocalCluster(n_workers=0, host="127.0.0.1", protocol="tcp", dashboard_address=None)
client, items, total = Client(cluster), 0, 0
client.write_scheduler_file(file + ".part")
os.rename(file + ".part", file)
while not os.path.exists(end):
    total += sum(client.gather(client.map(lambda item: item**2, range(items, items + 8), pure=False)))
    items += 8
    print(len(client.scheduler_info()["workers"]), total == sum(item**2 for item in range(items)), flush=True)
client.shutdown()
"""
"""A program of Dask: the first copy has the scheduler and the client, the others are workers."""
WITH_TRACEBED = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
DEBIAN = "/usr/bin/python3"
"""The Python of Debian's package python3-torch."""
BARE = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
TORCHRUN = [DEBIAN, "-m", "torch.distributed.run", "-r1", "-t1"]  # its default of -r is an error under Python 3.11
TRAINING = str(Path(__file__).parents[1] / "servers" / "elastic_training.py")


class Nodes:
    """Nodes n0, n1, ... with an agent each, and a job whose leader is on n0."""

    def __init__(self, folder: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Start the agents. All nodes share a CPU."""
        claims = os.environ.get(SPACE, "")
        self.agents: list[Agent] = []
        self.folder, self.request, self.members, self.work = folder, 0, list[int](), Program("command", 0, 1, 1, 1.0)
        for number in range(count):
            (folder / f"n{number}").mkdir()
            monkeypatch.setenv(SPACE, f"{claims}-{number}")
            node = {"name": f"n{number}", "cores": 1, "cpus": str(CPU), "emulated": False}
            self.agents.append(Agent(folder / f"n{number}", node=node))
            self.agents[-1].greet()

    def start(self, backend: str, *arguments: str, nodes: int = 1, **environment: str) -> None:
        """Start a command on the first `nodes` nodes."""
        command = {"arguments": list(arguments), "environment": environment, "folder": None}
        parameters = {"name": "it", "backend": backend}
        self.work = Program("command", 0, 1, 1, 1.0, parameters=parameters, command=command)
        self.members = list(range(nodes))
        names = [f"n{number}" for number in self.members]
        self.agents[0].launch("1", self.work, duty=1, cpus=str(CPU), members=names)
        self.address = self.agents[0].hear("listening")["address"]
        for number in self.members[1:]:
            self._launch(number, names)
        self.agents[0].hear("started")

    def _launch(self, number: int, names: list[str]) -> None:
        given = {"leader": False, "address": self.address, "members": names, "cpus": str(CPU)}
        self.agents[number].launch("1", self.work, duty=1, **given)

    def resize(self, nodes: int) -> dict[str, Any]:
        """Change the job to the first `nodes` nodes, and return the event of the leader."""
        names, before = [f"n{number}" for number in range(nodes)], self.members
        self.request += 1
        self.members = list(range(nodes))
        for number in self.members[len(before) :]:
            self._launch(number, names)
        self.agents[0].tell({"type": "resize", "job": "1", "members": names, "request": self.request})
        event = self.agents[0].hear("resized")
        for number in before[nodes:]:
            assert self.agents[number].hear("ended")["reason"] == "released"
        return event

    def output(self, number: int) -> str:
        """Return what the copies on a node have said, without the last lines of their ranks."""
        text = (self.folder / f"n{number}" / "job-1" / f"n{number}.out").read_text()
        return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(f"n{number}: "))

    def ended(self) -> list[dict[str, Any]]:
        return [self.agents[number].hear("ended") for number in self.members]


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    found = Nodes(tmp_path, 4, monkeypatch)
    yield found
    for agent in found.agents:
        agent.__exit__()


def test_copies_come_and_go_with_the_nodes(nodes: Nodes, tmp_path: Path) -> None:
    nodes.start("elastic", sys.executable, "-c", COPY, str(tmp_path / "end"), nodes=2)
    assert until(lambda: nodes.output(1) == "begun 1 n0,n1\n")
    event = nodes.resize(3)
    assert event["members"] == ["n0", "n1", "n2"]
    assert event["stages"]["spawn_s"] > 0
    assert until(lambda: nodes.output(2) == "begun 2 n0,n1,n2\n")
    nodes.resize(1)
    assert nodes.output(1) == "begun 1 n0,n1\nterminated\n"
    assert nodes.output(2) == "begun 2 n0,n1,n2\nterminated\n"
    nodes.resize(2)
    assert until(lambda: nodes.output(1) == "begun 1 n0,n1\nterminated\nbegun 1 n0,n1\n")
    (tmp_path / "end").touch()
    assert [end["state"] for end in nodes.ended()] == ["completed"] * 2
    assert nodes.output(0) == "begun 0 n0,n1\n"


@pytest.mark.slow
def test_a_copy_that_ignores_its_termination_is_killed(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.start("elastic", sys.executable, "-c", STUBBORN, nodes=2)
    assert until(lambda: "begun" in nodes.output(1))
    nodes.resize(1)


def test_a_copy_that_fails_ends_the_job(nodes: Nodes) -> None:
    code = "import os, sys, time; sys.exit(3) if os.environ['TRACEBED_RANK'] == '1' else time.sleep(600)"
    nodes.start("elastic", sys.executable, "-c", code)
    nodes.resize(2)
    assert nodes.ended()[0]["reason"] == "on n1: the command ended with status 3"


@pytest.mark.parametrize(
    "language", ["python", pytest.param("c", marks=pytest.mark.skipif(which("gcc") is None, reason="gcc"))]
)
def test_a_command_with_checks_of_dmr_changes_its_processes_itself(nodes: Nodes, tmp_path: Path, language: str) -> None:
    command = [sys.executable, "-c", CHECKS]
    if language == "c":
        (tmp_path / "checks.c").write_text(CHECKS_IN_C)
        command = [str(tmp_path / "checks")]
        subprocess.run(["gcc", f"-I{INCLUDE}", str(tmp_path / "checks.c"), "-o", *command], check=True)
    nodes.start("dmr", *command, nodes=2, **WITH_TRACEBED)
    assert until(lambda: "none 2" in nodes.output(0))
    assert nodes.output(0).startswith("expand 2\n")
    event = nodes.resize(4)
    assert event["stages"]["redistribution_s"] > 0
    assert "expand 4" in nodes.output(0)
    nodes.resize(1)
    assert "shrink 1" in nodes.output(0)
    assert [nodes.output(number) for number in (1, 2, 3)] == [""] * 3


@pytest.mark.skipif(len(CPUS) < 2, reason="two CPUs make two real nodes; this machine has one")
def test_a_policy_shrinks_an_elastic_command_for_another_job(tmp_path: Path) -> None:
    """The second job lets the first one end."""
    code = f"open({str(tmp_path / 'end')!r}, 'w')"
    commands = {
        "copies": {"arguments": [sys.executable, "-c", COPY, str(tmp_path / "end")]},
        "end": {"arguments": [sys.executable, "-c", code]},
    }
    (tmp_path / "commands.yaml").write_text(json.dumps({"commands": commands}))
    table = {
        "job_id": ["elastic", "short"],
        "submit_time": [0.0, 0.5],
        "run_time": [600.0, 1.0],
        "nodes": [2, 1],
        "kind": ["malleable", "rigid"],
        "nodes_min": [1, 1],
        "nodes_max": [2, 1],
        "application": "command",
        "application_parameters": ["name=copies backend=elastic", "name=end"],
    }
    nodes = Inventory("two", "agents", tuple(Node(f"n{cpu}", 1, 1, (cpu,), False, 1.0) for cpu in CPUS[:2]))
    options = replaying(commands=AllowedCommands.read(tmp_path / "commands.yaml"))
    run = replay(Workload(pd.DataFrame(table)), nodes, "pref", tmp_path / "run", **options)
    assert run.jobs["state"].tolist() == ["completed"] * 2, run.jobs["reason"].tolist()
    applied = run.reconfigurations[run.reconfigurations["state"] == "applied"]
    assert applied["kind"].tolist()[:1] == ["shrink"], run.reconfigurations.T.to_string()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mpi4py") is None, reason="pip install 'tracebed[mpi]'")
def test_a_job_of_mpi_spawns_and_releases_processes_and_loses_no_element(nodes: Nodes, tmp_path: Path) -> None:
    iterations, elements, report = 400, 2**14, tmp_path / "report.json"
    parameters = ProgramParameters([1, 3], elements, iterations // 2, False, str(report))
    command = [*mpiexec(), sys.executable, "-m", MODULE, json.dumps(parameters._asdict())]
    nodes.start("dmr", *command, **LOOPBACK, **WITH_TRACEBED)
    for size in (3, 2):
        nodes.resize(size)
    assert [end["state"] for end in nodes.ended()] == ["completed"] * 2
    result = json.loads(report.read_text())
    assert [stages[:2] for stages in result["stages"]] == [[1, 3], [3, 2]]
    assert result["valid"]
    assert result["checksum"] == program.vector_checksum(program.vector_after(Block(0, elements), iterations))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mpi4py") is None or which("cc") is None, reason="pip install 'tracebed[mpi]', gcc")
def test_a_job_of_the_pipelined_aligner_gets_and_releases_nodes(nodes: Nodes, tmp_path: Path) -> None:
    """The program of MPI in C has no JSON of its own: TRACEBED_DMR is all that it gets from its job."""
    program, output = aligner.build(tmp_path), tmp_path / "chunks"
    command = [*mpiexec(3), str(program), "malleable", str(output), "60000", "800", "1", "3", "3", "4"]
    nodes.start("dmr", *command, nodes=3, **LOOPBACK)
    for size in (4, 3):
        nodes.resize(size)
    assert [end["state"] for end in nodes.ended()] == ["completed"] * 3
    *changes, last = [line for line in nodes.output(0).splitlines() if line[0] in "34{"]
    assert [line.split(" processes")[0] for line in changes] == ["3 to 4", "4 to 3"]
    result = json.loads(last)
    alone = aligner.run(program, "original", 2, 60_000)
    assert (result["processes"], result["reads"], result["checksum"]) == (3, 60_000, alone.checksum)
    assert sorted(int(line.split()[0]) for line in output.read_text().splitlines()) == list(range(800))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("distributed") is None, reason="pip install 'tracebed[dask]'")
def test_workers_of_dask_come_and_go_and_every_item_counts_once(nodes: Nodes, tmp_path: Path) -> None:
    nodes.start("elastic", sys.executable, "-c", DASK, str(tmp_path), nodes=2)
    for size in (2, 3, 2):
        if size != len(nodes.members):
            nodes.resize(size)
        assert until(lambda size=size: nodes.output(0).endswith(f"{size - 1} True\n"))
    (tmp_path / "end").touch()
    assert [end["state"] for end in nodes.ended()] == ["completed"] * 2
    assert " False" not in nodes.output(0)


def torchrun(sizes: str, folder: Path) -> list[str]:
    """Return the command of a training whose number of nodes changes. Skip the test if Debian's Python has no torch."""
    if subprocess.run([DEBIAN, "-c", "import torch"], env=BARE, capture_output=True, check=False).returncode:
        pytest.skip("apt-get install python3-torch")
    (port,) = free_ports(1)
    meet = ["--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_id=1", "--max_restarts=99"]
    quick = ["--monitor_interval=0.1", "--rdzv_conf=last_call_timeout=1,join_timeout=60"]
    return [*TORCHRUN, *meet, *quick, "--nproc_per_node=1", f"--nnodes={sizes}", TRAINING, str(folder)]


def losses(folder: Path) -> list[tuple[int, int, float]]:
    """Return the step, the number of workers and the loss of each step of a training."""
    if not (folder / "losses").exists():
        return []
    lines = [line.split() for line in (folder / "losses").read_text().splitlines(keepends=True) if line[-1] == "\n"]
    return [(int(step), int(workers), float(loss)) for step, workers, loss in lines]


@pytest.mark.slow
def test_the_loss_of_torchrun_does_not_depend_on_its_resizes(nodes: Nodes, tmp_path: Path) -> None:
    elastic, plain = tmp_path / "elastic", tmp_path / "plain"
    for folder in (elastic, plain):
        folder.mkdir()
    nodes.start("elastic", *torchrun("2:4", elastic), nodes=2, **BARE)
    assert until(lambda: len(losses(elastic)) > 3)
    for size in (4, 2):
        nodes.resize(size)
        assert until(lambda size=size: [workers for _, workers, _ in losses(elastic)][-1] == size)
    (elastic / "end").touch()
    assert [end["state"] for end in nodes.ended()] == ["completed"] * 2
    found = losses(elastic)
    last = found[-1][0]
    # The plain restart: two workers, stopped after half of the steps and started again.
    for steps in (last // 2, last):
        again = [
            *TORCHRUN,
            "--nproc_per_node=2",
            "--rdzv_backend=c10d",
            "--rdzv_endpoint=localhost:0",
            TRAINING,
            str(plain),
        ]
        subprocess.run(again, env={**BARE, "STEPS": str(steps)}, capture_output=True, check=True)
    expected = {step: loss for step, _, loss in losses(plain)}
    assert {step: loss for step, _, loss in found} == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert {workers for _, workers, _ in found} == {2, 4}
