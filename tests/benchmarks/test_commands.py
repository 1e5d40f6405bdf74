"""The application `command`: any allowed program as a job, and what happens when the program misbehaves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from click.testing import CliRunner

from tests.patience import until
from tests.runs import replaying
from tests.servers.agents import Agent, gone
from tracebed.benchmarks.affinity import processes_of, strays
from tracebed.benchmarks.program import Program
from tracebed.cli import tracebed
from tracebed.converters.formats.writing import write_workload
from tracebed.converters.workload import Workload
from tracebed.ground.cpus import format_cpus
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.orchestrator.replay.programs import AllowedCommands
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.testbeds.nodes import Inventory, Node

CPUS = tuple(sorted(os.sched_getaffinity(0)))[:2]
pytestmark = pytest.mark.usefixtures("no_process_is_left")
needs_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
SECRET = "0f1e2d3c4b5a"
SLEEP = "import time; print('begun', flush=True); time.sleep(600)"
CHILDREN = """
import signal, subprocess, sys, threading, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
shell = ["sh", "-c", "trap '' TERM; (sleep 600 & echo forked; sleep 600); true"]
subprocess.Popen(shell, stdout=subprocess.PIPE).stdout.readline()
print("begun", flush=True)
time.sleep(600)
"""


def program(
    *arguments: str,
    environment: dict[str, str] | None = None,
    folder: str | None = None,
    memory_mib: int = 0,
    **parameters: str,
) -> Program:
    """Return a program that runs a command, by default Python code."""
    run = [sys.executable, "-c", *arguments] if len(arguments) == 1 else list(arguments)
    command = {"arguments": run, "environment": environment or {}, "folder": folder}
    named = {"name": "it", **parameters}
    return Program("command", 0, 1, 1, rate=1e6, parameters=named, memory_mib=memory_mib, command=command)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    node = {"name": "n1", "cores": len(CPUS), "cpus": ",".join(map(str, CPUS)), "emulated": False}
    with Agent(tmp_path, node=node) as agent:
        agent.greet()
        yield agent


def start(agent: Agent, work: Program) -> list[psutil.Process]:
    """Start a command, and return its processes once it has said that it has begun."""
    agent.start("1", work, duty=1)
    assert until(lambda: "begun" in output(agent))
    (rank,) = agent.children()
    (watchdog,) = rank.children()
    return [psutil.Process(pid) for pid in processes_of(watchdog.pid)[1:]]


def ended(agent: Agent, work: Program) -> dict[str, Any]:
    agent.launch("1", work, duty=1)
    return agent.hear("ended")


def output(agent: Agent) -> str:
    return (agent.spool / "job-1" / "n1.out").read_text()


def kill(agent: Agent) -> dict[str, Any]:
    agent.tell({"type": "kill", "job": "1", "reason": "enough"})
    return agent.hear("ended")


def test_a_command_runs_in_its_folder_with_its_environment(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import os, sys; print(os.getcwd(), os.environ['GREETING'], os.environ['TRACEBED_RANK'],"
        " os.environ['TRACEBED_RANKS'], os.environ['TRACEBED_NODES'], os.environ['TRACEBED_CORES'],"
        " 'PYTHONPATH' in os.environ, sys.stdin.read() == '', sorted(os.sched_getaffinity(0)))"
    )
    end = ended(agent, program(code, environment={"GREETING": "$HOME; ls"}, folder=str(tmp_path)))
    assert (end["state"], end["reason"], end["exit_code"]) == ("completed", "", 0)
    assert end["cpu_s"] > 0 and end["checksum"] is None
    assert end["planned_s"] is None  # a plan of 0 s would make each run with commands unhealthy
    assert output(agent).splitlines()[0] == f"{tmp_path} $HOME; ls 0 1 n1 {len(CPUS)} False True {list(CPUS)}"
    end = ended(agent, program("import os; print(os.getcwd())"))
    assert str(tmp_path / "job-1") in output(agent)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["import sys; sys.exit(3)"], "the command ended with status 3"),
        (["import os; os.abort()"], "the command was killed by signal 6 (Aborted)"),
        (["/no/such/program", "x"], "the command cannot be started: [Errno 2] No such file or directory"),
        ([os.devnull, "x"], "the command cannot be started: [Errno 13] Permission denied"),
    ],
)
def test_a_command_that_crashes_or_cannot_start_fails_its_job(agent: Agent, arguments: list[str], reason: str) -> None:
    end = ended(agent, program(*arguments))
    assert end["state"] == "failed"
    assert end["reason"].startswith(reason)


def test_a_command_that_was_not_allowed_does_not_run(agent: Agent) -> None:
    work = program(SLEEP)._replace(command={})
    assert "command 'it' is not allowed" in ended(agent, work)["reason"]
    for command in ({"arguments": []}, {"arguments": ["a\0b"], "environment": {}, "folder": None}):
        assert "the command is invalid" in ended(agent, work._replace(command=command))["reason"]


def test_a_killed_command_ends_with_its_job(agent: Agent) -> None:
    (command,) = start(agent, program(SLEEP))
    command.kill()
    end = agent.hear("ended")
    assert (end["state"], end["reason"]) == ("failed", "the command was killed by signal 9 (Killed)")


def test_a_command_may_end_in_an_orderly_way_when_its_job_is_killed(agent: Agent) -> None:
    code = (
        "import os, signal, sys, time\n"  # a handler must not print while the program prints
        "signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'saved'), sys.exit(0)))\n"
        "print('begun', flush=True)\nwhile True: time.sleep(1)"
    )
    start(agent, program(code))
    end = kill(agent)
    assert (end["state"], end["reason"]) == ("killed", "enough")
    assert "saved" in output(agent)


def test_a_command_that_ignores_sigterm_is_killed_with_all_that_it_started(agent: Agent) -> None:
    processes = start(agent, program(CHILDREN))
    assert len(processes) >= 4
    assert kill(agent)["state"] == "killed"
    assert all(map(gone, processes))


def test_children_that_outlive_their_command_are_ended(agent: Agent) -> None:
    code = (
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print(p.pid, flush=True)"
    )
    assert ended(agent, program(code))["state"] == "completed"
    assert not psutil.pid_exists(int(output(agent).split()[0]))


@pytest.mark.parametrize("victim", ["agent", "rank", "watchdog"])
def test_nothing_outlives_its_agent_its_rank_or_its_watchdog(agent: Agent, victim: str) -> None:
    processes = start(agent, program(CHILDREN))
    (rank,) = agent.children()
    (watchdog,) = rank.children()
    {"agent": psutil.Process(agent.process.pid), "rank": rank, "watchdog": watchdog}[victim].kill()
    if victim != "agent":
        end = agent.hear("ended")
        assert end["state"] == "failed"
        assert ("watchdog of the command was killed" if victim == "watchdog" else "signal 9") in end["reason"]
    assert all(map(gone, [rank, watchdog, *processes]))


def test_a_command_stands_still_while_its_agent_has_no_controller(tmp_path: Path) -> None:
    node = {"name": "n1", "cores": 1, "cpus": str(CPUS[0]), "emulated": False}
    with Agent(tmp_path, node=node, linger_s=60.0) as agent:
        attach = agent.greet()["attach"]
        (command,) = start(agent, program(SLEEP))
        agent.hang_up()
        assert until(lambda: command.status() == psutil.STATUS_STOPPED)
        with agent.attach(attach) as other:
            assert other.greet()["adopted"] == ["1"]
            assert until(lambda: command.status() != psutil.STATUS_STOPPED)
            other.tell({"type": "kill", "job": "1", "reason": "enough"})
            assert other.hear("ended")["state"] == "killed"


def test_a_command_that_uses_too_much_memory_is_ended(agent: Agent) -> None:
    code = "import time\nheld = [b'\\1' * 2**20 for _ in range(200)]\nprint('held', flush=True)\ntime.sleep(600)"
    end = ended(agent, program(code, memory_mib=100))
    assert end["state"] == "failed"
    assert end["reason"].startswith("out of memory: the command used ") and end["reason"].endswith(" MiB of 100 MiB")
    assert ended(agent, program("held = b'\\1' * 2**24", memory_mib=500))["state"] == "completed"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small disk")
def test_a_command_that_fills_its_disk_fails_and_says_so(tmp_path: Path) -> None:
    """The agent runs in a mount namespace of its own, with a spool of 2 MiB."""
    spool = tmp_path / "spool"
    spool.mkdir()
    mounts = 'mount -t tmpfs -o size=2m none "$0" && chmod 700 "$0" && exec "$@"'
    if subprocess.run(["unshare", "-m", "sh", "-c", mounts, str(spool), "true"], capture_output=True).returncode:
        pytest.skip("mount namespaces are not permitted here")
    from tracebed.orchestrator.testbeds.local import AGENT

    node = {"name": "n1", "cores": 1, "cpus": str(CPUS[0]), "emulated": False}
    with Agent(spool, ["unshare", "-m", "sh", "-c", mounts, str(spool), *AGENT], node=node) as agent:
        agent.greet()
        code = "import sys\nwhile True:\n    sys.stdout.write('x' * 4096)\n    sys.stdout.flush()"
        end = ended(agent, program(code))
        assert end["state"] == "failed" and end["reason"].startswith("the command ended with status ")
        agent.launch("2", program("pass"), duty=1)
        assert agent.hear("ended")["job"] == "2"  # failed if its output cannot be created
        assert agent.process.poll() is None


def follow_cpus(agent: Agent, path: str, backend: str, threads: Callable[[int], bool]) -> None:
    """Run a program on two CPUs, one and two again. `threads` says whether it comes to have a number of threads."""
    agent.start("1", program(path, "", backend=backend), duty=1)
    assert threads(2)
    for cpus, count in ((CPUS[:1], 1), (CPUS, 2)):
        agent.tell({"type": "resize", "job": "1", "cpus": ",".join(map(str, cpus)), "request": count})
        agent.hear("resized")
        assert threads(count)
    kill(agent)


@needs_cpus
@pytest.mark.parametrize("backend", ["affinity", "rigid"])
def test_a_command_follows_its_cpus_with_all_threads_and_processes(agent: Agent, backend: str) -> None:
    processes = start(agent, program(CHILDREN, backend=backend))
    assert not any(strays(process.pid, CPUS) for process in processes)
    agent.tell({"type": "resize", "job": "1", "cpus": str(CPUS[0]), "request": 1})
    assert agent.hear("resized")["cpus"] == str(CPUS[0])
    moved = [not strays(process.pid, CPUS[:1]) for process in processes]
    assert moved == [backend == "affinity"] * len(processes)
    agent.tell({"type": "resize", "job": "1", "cpus": ",".join(map(str, CPUS)), "request": 2})
    agent.hear("resized")
    assert all(os.sched_getaffinity(process.pid) == set(CPUS) for process in processes)
    agent.tell({"type": "resize", "job": "1", "members": ["n1"], "request": 3})
    assert "a command keeps its nodes" in agent.hear("error")["what"]
    kill(agent)


def test_a_command_stands_still_while_its_rank_holds_no_cpu(agent: Agent) -> None:
    """Another job takes all CPUs of the node, and ends."""
    processes = start(agent, program(CHILDREN, backend="affinity"))
    agent.launch("2", program("print('begun')\nimport time\ntime.sleep(600)"), duty=1)
    assert agent.hear("resized")["cpus"] == ""
    assert until(lambda: all(process.status() == psutil.STATUS_STOPPED for process in processes))
    agent.tell({"type": "kill", "job": "2", "reason": "enough"})
    assert agent.hear("resized")["cpus"] == format_cpus(CPUS)
    assert until(lambda: all(process.status() != psutil.STATUS_STOPPED for process in processes))
    kill(agent)


def test_the_samples_of_the_node_have_the_cpu_time_of_commands(agent: Agent) -> None:
    code = (
        "import subprocess, sys, time\nburn = 'import time\\nwhile time.process_time() < 0.5: pass'\n"
        "subprocess.run([sys.executable, '-c', burn])\n"
        "while time.process_time() < 0.5: pass\nprint('begun', flush=True)\ntime.sleep(600)"
    )
    start(agent, program(code))
    agent.tell({"type": "sample", "calibrate": False})
    assert agent.hear("heartbeat")["sample"]["cpu_s"] >= 0.95
    kill(agent)


@needs_cpus
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_the_openmp_program_of_the_documentation_follows_its_cpus(agent: Agent, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/make-a-program-malleable.md").read_text()
    source = textwrap.dedent(
        "    #include <omp.h>" + page.partition("    #include <omp.h>")[2].partition("\n\nThe ")[0]
    )
    (tmp_path / "steps.c").write_text(source.replace("step < 1000", "step < 1000000"))
    subprocess.run(["gcc", "-O1", "-fopenmp", "-Wall", "-Werror", "steps.c", "-o", "steps"], cwd=tmp_path, check=True)

    def threads(count: int) -> bool:
        return until(lambda: f": {count} threads" in "".join(output(agent).splitlines()[-1:]))

    follow_cpus(agent, str(tmp_path / "steps"), "affinity", threads)


@needs_cpus
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_an_openmp_program_that_chooses_no_number_of_threads_has_one_on_each_cpu(agent: Agent, tmp_path: Path) -> None:
    source = """
    #include <stdio.h>
    int main(void) {
        while (1) {
            int threads = 0;
            #pragma omp parallel reduction(+ : threads)
            for (int i = threads = 1; i < 1000000; i++) __asm__ volatile("");
            printf("%d threads\\n", threads);
            fflush(stdout);
        }
    }
    """
    (tmp_path / "steps.c").write_text(source)
    subprocess.run(["gcc", "-O1", "-fopenmp", "-Wall", "-Werror", "steps.c", "-o", "steps"], cwd=tmp_path, check=True)

    def threads(count: int) -> bool:
        return until(lambda: output(agent).splitlines()[-2:-1] == [f"{count} threads"])

    follow_cpus(agent, str(tmp_path / "steps"), "openmp", threads)


# In a replay.


def jobs(**columns: object) -> Workload:
    first = {"job_id": "a", "submit_time": 0.0, "run_time": 1.0, "nodes": 1, "kind": "rigid", "application": "command"}
    return Workload(pd.DataFrame({name: [value] for name, value in (first | columns).items()}))


def computing(nodes: int) -> Inventory:
    return Inventory("few", "agents", tuple(Node(f"n{i}", 1, 1, (CPUS[i],), False, 1.0) for i in range(nodes)))


@pytest.fixture
def allowed(tmp_path: Path) -> AllowedCommands:
    code = (
        "import os, sys, pathlib\n"
        "rank = os.environ['TRACEBED_RANK']\n"
        "pathlib.Path(sys.argv[1], 'rank-' + rank).write_text(os.environ['TRACEBED_NODES'])\n"
        "sys.exit(int(rank) if sys.argv[2] == 'fail' else 0)"
    )
    lines = [
        f"  {name}:\n    environment: {{TOKEN: {SECRET}}}\n"
        f"    arguments: [{sys.executable}, -c, {code!r}, {tmp_path}, {name}]\n"
        for name in ("succeed", "fail")
    ]
    (tmp_path / "commands.yaml").write_text("commands:\n" + "".join(lines))
    return AllowedCommands.read(tmp_path / "commands.yaml")


@pytest.mark.parametrize(
    ("columns", "allow", "what"),
    [
        ({}, False, "job a: runs a command, and no command is allowed"),
        ({"application_parameters": "name=other"}, True, "job a: command 'other' is not allowed"),
        (
            {"application_parameters": "name=succeed", "kind": "malleable", "nodes_min": 1, "nodes_max": 2},
            True,
            "job a: a command cannot change its number of nodes",
        ),
        (
            {"application_parameters": "name=succeed", "kind": "malleable", "nodes_min": 1, "nodes_max": 1},
            True,
            "job a: a malleable job runs a rigid command",
        ),
        ({"application_parameters": "name=succeed backend=dlb"}, True, "job a: command.backend cannot be 'dlb'"),
    ],
)
def test_a_command_that_cannot_run_is_refused_before_the_replay(
    tmp_path: Path, allowed: AllowedCommands, columns: dict[str, object], allow: bool, what: str
) -> None:
    options = replaying(commands=allowed if allow else None)
    with pytest.raises(InputError) as refused:
        replay(jobs(**columns), computing(1), "fcfs", tmp_path / "run", **options)
    assert str(refused.value).startswith(what) and refused.value.hint
    assert not (tmp_path / "run").exists()


@needs_cpus
@pytest.mark.parametrize("name", ["succeed", "fail"])
def test_a_command_of_two_nodes_has_a_copy_on_each(tmp_path: Path, allowed: AllowedCommands, name: str) -> None:
    workload = jobs(nodes=2, application_parameters=f"name={name}")
    run = replay(workload, computing(2), "fcfs", tmp_path / "run", **replaying(commands=allowed))
    (job,) = run.jobs.to_dict("records")
    assert job["state"] == (JobState.COMPLETED if name == "succeed" else JobState.FAILED)
    if name == "fail":  # the copies of the other nodes are ended at once
        assert job["reason"] == "on n1: the command ended with status 1"
    else:
        assert [(tmp_path / f"rank-{rank}").read_text() for rank in range(2)] == ["n0,n1"] * 2
    assert run.info.parameters["allowed_commands"] == allowed.sha256
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert files and not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_the_command_line_allows_commands(tmp_path: Path, allowed: AllowedCommands) -> None:
    """On emulated nodes, the job takes its run time, and the command does not run."""
    write_workload(jobs(application_parameters="name=succeed"), tmp_path / "w.parquet")
    command = ["replay", str(tmp_path / "w.parquet"), "--policy", "fcfs", "--inventory", "emulated-4", "-o"]
    refused = CliRunner().invoke(tracebed, [*command, str(tmp_path / "no")])
    assert isinstance(refused.exception, InputError) and "--allow-commands FILE" in str(refused.exception.hint)
    done = CliRunner().invoke(tracebed, [*command, str(tmp_path / "yes"), "--allow-commands", allowed.where])
    assert done.exit_code == 0, done.output
    (job,) = Run.load(tmp_path / "yes").jobs.to_dict("records")
    assert job["state"] == JobState.COMPLETED
    assert not (tmp_path / "rank-0").exists()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("commands: {}", "commands: must not be empty"),
        ("commands: {a: {arguments: []}}", "commands.a.arguments: must not be empty"),
        ("commands: {a: {arguments: ls -l}}", "commands.a.arguments: must be a list"),
        ("commands: {a: {arguments: [ls, 1]}}", "commands.a.arguments.1: must be text"),
        ("commands: {a: {arguments: [ls], shell: true}}", "commands.a.shell: unknown key"),
        ("commands: {a: {arguments: [ls], folder: here}}", "commands.a.folder: must match"),
        ("commands: {a b: {arguments: [ls]}}", "commands.a b"),
    ],
)
def test_an_invalid_file_of_commands_is_an_error_with_its_line(tmp_path: Path, text: str, what: str) -> None:
    file = tmp_path / "commands.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as refused:
        AllowedCommands.read(file)
    assert f"{file}:1: {what}" in str(refused.value)
