"""The agent alone: a process with a protocol of JSON lines."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.patience import GUARD_S
from tests.servers.agents import FOREVER, Agent, gone
from tracebed.benchmarks.lines import Lines
from tracebed.benchmarks.program import Program
from tracebed.orchestrator.testbeds.agent import spool
from tracebed.orchestrator.testbeds.agent.machine import Machine
from tracebed.orchestrator.testbeds.agent.messages import MessageFields, Outbox
from tracebed.orchestrator.testbeds.agent.node import AgentNode
from tracebed.orchestrator.testbeds.local import AGENT

RUN = "from tracebed.orchestrator.testbeds.agent.__main__ import main; main([])"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """Yield an agent that has sent hello."""
    with Agent(tmp_path) as found:
        found.greet()
        yield found


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """Yield an agent that has sent hello, for all invalid messages: none of them has an effect on the next."""
    with Agent(tmp_path_factory.mktemp("lasting")) as found:
        found.greet()
        yield found


def test_hello_describes_the_agent_and_its_host(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    with agent.process:
        agent.tell(agent.hello)
        answer = agent.hear("hello")
        assert answer["protocol"] == 2 and answer["pid"] == agent.process.pid
        assert answer["units_per_core_second"] is None
        assert answer["host"]["name"] == os.uname().nodename and answer["host"]["cpus"] == os.cpu_count()
        assert Path(answer["sockets"]).stat().st_mode & 0o777 == 0o700
        agent.tell({"type": "bye"})
        assert agent.process.wait(GUARD_S) == 0
    assert not Path(answer["sockets"]).exists()


def test_a_computing_node_is_calibrated_and_its_agent_pinned(tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    node = {"name": "n1", "cores": 1, "cpus": str(cpu), "emulated": False}
    agent = Agent(tmp_path, node=node, calibrate=True)
    with agent.process:
        agent.tell(agent.hello)
        answer = agent.hear("hello")
        assert answer["units_per_core_second"] > 1000
        assert answer["host"]["kernel_of_jobs"] in ("c", "numpy")
        assert os.sched_getaffinity(agent.process.pid) == {cpu}
        agent.process.terminate()
        assert agent.process.wait(GUARD_S) == 0


def test_cpus_that_the_machine_does_not_have_are_refused(tmp_path: Path) -> None:
    """The kernel ignores them when it binds a process: jobs would compute on fewer cores than their run says."""
    cpu = min(os.sched_getaffinity(0))
    node = {"name": "n1", "cores": 3, "cpus": f"{cpu},8000-8001", "emulated": False}
    agent = Agent(tmp_path, node=node)
    with agent.process:
        agent.tell(agent.hello)
        error = agent.hear("error")
        assert error["what"].startswith("the inventory has the CPUs 8000-8001, but an agent may use only the CPUs")
        assert "`tracebed nodes facts` shows its CPUs" in error["hint"]
        agent.tell({"type": "bye"})


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a part of a node needs two CPUs; this machine has one")
def test_a_rank_is_on_its_own_cpus_from_the_start(tmp_path: Path) -> None:
    """The node's other CPUs may belong to another job."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    show = "Pils.run = lambda self, launch, pipe: print(os.sched_getaffinity(0)) or 0"
    program = f"import os; from tracebed.benchmarks.applications.kernels import Pils; {show}; {RUN}"
    mask = ",".join(map(str, cpus))
    command = [sys.executable, "-P", "-c", program]
    agent = Agent(tmp_path, command, node={"name": "n1", "cores": 2, "cpus": mask, "emulated": False})
    with agent.process:
        agent.tell(agent.hello)
        agent.hear("hello")
        agent.launch("a", duty=1, cpus=str(cpus[1]), cores=1)
        agent.hear("ended")
        agent.process.terminate()
    assert (tmp_path / "job-a" / "n1.out").read_text() == f"{{{cpus[1]}}}\n"


def test_another_protocol_is_refused_naming_both(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    with agent.process:
        agent.tell(agent.hello | {"protocol": 7})
        what = agent.hear("error")["what"]
        assert "protocol is 7" in what and "supports 2" in what
        agent.launch("a")
        assert "before hello" in agent.hear("error")["what"]
        agent.tell(agent.hello)
        assert agent.hear("hello")["protocol"] == 2
        agent.tell(agent.hello)
        assert "hello arrived twice" in agent.hear("error")["what"]
        agent.tell({"type": "bye"})


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"nonsense\n", "nonsense"),
        (b"[1, 2]\n", "not a JSON object"),
        (b"{\xff}\n", "codec can't decode"),
        (b"\n", "Expecting value"),
        (b"{}\n", "unknown message type None"),
        (b'{"type": "dance"}\n', "unknown message type 'dance'"),
        (b'{"type": ["kill"]}\n', "unknown message type ['kill']"),
        (b'{"type": "kill"}\n', "lacks 'job'"),
        (b'{"type": "kill", "job": "j", "reason": "r"}\n', "job 'j' has no rank on this node"),
        (b'{"type": "resize", "job": "j", "request": 1, "members": []}\n', "job 'j' has no rank"),
        (b'{"type": "launch", "job": "j"}\n', "lacks 'rank'"),
        (b'{"type": "hello", "protocol": 2}\n', "hello arrived twice"),
    ],
)
def test_an_invalid_message_has_no_other_effect(lasting: Agent, line: bytes, what: str) -> None:
    lasting.tell(line)
    assert what in lasting.hear("error")["what"]
    lasting.launch("after", Program("pils", 1, 1, 1, rate=1e6))
    assert lasting.hear("ended")["state"] == "completed"


def test_a_message_in_pieces_and_two_in_one(agent: Agent) -> None:
    agent.tell(b'{"type": "ki')
    agent.tell(b'll", "job": "1", "reason": ""}\n{"type": "kill", "job": "2", "reason": ""}\n')
    assert "'1'" in agent.hear("error")["what"]
    assert "'2'" in agent.hear("error")["what"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rank": "n2"}, "'n2' does not belong to node 'n1'"),
        ({"cores": 5}, "cores is 5"),
        ({"cores": 0}, "cores is 0"),
        ({"cpus": "3-4", "cores": 2}, "not a subset of the node's CPUs 0-3"),
        ({"cpus": "", "cores": 1}, "not a subset of"),
        ({"cpus": "x"}, "not a CPU list"),
        ({"authkey": "xyz"}, "hexadecimal"),
        ({"family": "AF_PIPE"}, "AF_PIPE"),
        ({"leader": False}, "needs the address"),
        ({"program": FOREVER._asdict() | {"application": "linpack"}}, "unknown application 'linpack'"),
        ({"program": FOREVER._asdict() | {"iterations": -1}}, "iterations is -1"),
        ({"duty": 0.5}, "duty is 0.5, not 0 (emulated nodes)"),
        ({"duty": -1}, "duty is -1"),
        ({"duty": True}, "duty is True"),
        ({"clock": 7}, "clock is 7"),
        ({"work_s": 0.5}, "work_s is 0.5, not a number from 1"),
        ({"clock": "/nowhere/clock"}, "No such file"),
        ({"program": {}}, "lacks 'application'"),
        ({"family": "AF_INET"}, "needs an address to listen on"),
        ({"family": "AF_INET", "bind": "0.0.0.0"}, "every network can reach"),
        ({"family": "AF_INET", "bind": "localhost"}, "'localhost' is not a numeric IPv4 address"),
        ({"family": "AF_INET", "bind": "::1"}, "'::1' is not a numeric IPv4 address"),
        (
            {"family": "AF_INET", "leader": False, "address": ["localhost", 80]},
            "'localhost' is not a numeric IPv4 address",
        ),
        ({"family": "AF_INET", "leader": False, "address": "/tmp/x"}, "not an IPv4 address and a port"),
        ({"family": "agents", "leader": False}, "needs the address"),
    ],
)
def test_a_rank_that_cannot_be_launched_has_failed(lasting: Agent, changes: dict[str, Any], reason: str) -> None:
    lasting.launch("j", **changes)
    ended = lasting.hear("ended")
    assert (ended["job"], ended["state"], ended["units_done"]) == ("j", "failed", 0)
    assert reason in ended["reason"]
    assert lasting.children() == []


def test_a_leader_listens_on_one_address_only(agent: Agent) -> None:
    agent.launch("j", family="AF_INET", bind="127.0.0.1")
    host, port = agent.hear("listening")["address"]
    [rank] = agent.children()
    found = [connection.laddr for connection in rank.net_connections("inet")]
    assert found == [("127.0.0.1", port)] and host == "127.0.0.1"


def test_a_key_is_in_no_file_and_no_list_of_processes(agent: Agent) -> None:
    key = "5ec2e75ec2e75ec2e7"
    agent.start("j", authkey=key)
    [rank] = agent.children()
    for process in (rank.pid, agent.process.pid):
        for name in ("cmdline", "environ"):
            assert key.encode() not in Path(f"/proc/{process}/{name}").read_bytes()
    agent.tell({"type": "kill", "job": "j", "reason": "enough"})
    agent.hear("ended")
    agent.tell({"type": "launch", "job": "k", "rank": "n1", "leader": True, "authkey": key})
    agent.hear("ended")
    agent.tell({"type": "launch", "authkey": key})
    agent.hear("error")
    agent.tell(f'{{"authkey": "{key}", \n'.encode())
    agent.hear("error")
    files = [path for path in agent.spool.rglob("*") if path.is_file()]
    assert len(files) == 2
    said = json.dumps(agent.heard).encode()
    for text in (said, *(path.read_bytes() for path in files)):
        assert key.encode() not in text and bytes.fromhex(key) not in text


def test_a_job_from_launch_to_end(agent: Agent) -> None:
    agent.launch("a/../b", Program("pils", 10, 1001, 7, rate=1e6))
    ended = agent.hear("ended")
    kinds = [message["type"] for message in agent.heard[1:]]
    assert kinds == ["listening", "started", "progress", "work", "ended"]
    assert {message["job"] for message in agent.heard[1:]} == {"a/../b"}
    assert (ended["state"], ended["reason"], ended["exit_code"]) == ("completed", "", 0)
    assert ended["units_done"] == 1011 and ended["leader"] and ended["rank"] == "n1"
    assert ended["cpu_s"] > 0
    folder = agent.spool / "job-a%2f..%2fb"
    assert "n1: completed: 1011 units in 7 iterations" in (folder / "n1.out").read_text()


def test_ranks_report_their_work_as_often_as_their_launch_says(agent: Agent) -> None:
    work = Program("pils", 0, 3_000, 150, rate=1000.0)  # on two cores, 1.5 s
    agent.launch("often", work)
    agent.launch("rarely", work, work_s=60.0)
    for _ in range(2):
        agent.hear("ended")
    counts = Counter((message["job"], message["type"]) for message in agent.heard[1:] if "job" in message)
    assert counts["rarely", "work"] == 1 < counts["often", "work"]
    assert counts["rarely", "progress"] == 1 < counts["often", "progress"]


def test_jobs_run_side_by_side_and_are_killed_one_by_one(agent: Agent) -> None:
    for job in "abc":
        agent.start(job)
    assert len(agent.children()) == 3
    agent.launch("a")
    assert "has not ended on this node yet" in agent.hear("ended")["reason"]
    agent.tell({"type": "kill", "job": "b", "reason": "its time was over"})
    ended = agent.hear("ended")
    assert (ended["job"], ended["state"], ended["reason"]) == ("b", "killed", "its time was over")
    assert ended["exit_code"] == -signal.SIGTERM and len(agent.children()) == 2


def test_a_rank_that_ignores_the_term_is_killed(agent: Agent) -> None:
    agent.start("a")
    [child] = agent.children()
    child.suspend()  # a stopped process receives SIGTERM only when it continues
    while child.status() != psutil.STATUS_STOPPED:
        time.sleep(0.001)
    agent.tell({"type": "kill", "job": "a", "reason": "enough"})
    ended = agent.hear("ended")
    assert (ended["state"], ended["exit_code"]) == ("killed", -signal.SIGKILL)


def test_work_of_a_killed_rank_is_that_of_its_heartbeat(agent: Agent) -> None:
    agent.launch("a", Program("pils", 0, 10**9, 10**6, rate=1e6))  # 0.25 ms an iteration
    for _ in range(2):  # two events half a second apart, with a heartbeat in between
        agent.hear("progress")
    agent.tell({"type": "kill", "job": "a", "reason": "enough"})
    ended = agent.hear("ended")
    assert ended["units_done"] > 0 and ended["units_done"] % 1000 == 0


def test_a_rank_that_dies_has_failed(agent: Agent) -> None:
    agent.start("a")
    agent.children()[0].kill()
    ended = agent.hear("ended")
    assert ended["state"] == "failed" and "signal 9" in ended["reason"]
    assert ended["done"] is None


def test_the_end_of_the_work_of_a_rank_is_before_its_agent_has_reaped_it(agent: Agent) -> None:
    """Another rank may take its CPUs between the two."""
    agent.launch("a", Program("pils", 0, 100, 10, rate=1e6))
    started, ended = agent.hear("started"), agent.hear("ended")
    assert started["time"] <= ended["done"] <= ended["time"]


@pytest.mark.parametrize("way", ["end of input", "bye", "SIGTERM"])
def test_the_end_of_the_agent_is_the_end_of_its_jobs(agent: Agent, way: str) -> None:
    for job in "ab":
        agent.start(job)
    ranks = agent.children()
    assert agent.process.stdin is not None and agent.process.stdout is not None
    if way == "end of input":
        agent.process.stdin.close()
    elif way == "bye":
        agent.tell({"type": "bye"})
    else:
        agent.process.terminate()
    said = [json.loads(line) for line in agent.process.stdout]
    # The controller sees that the node is lost. An end of a rank would say that its job was killed.
    assert not [message for message in said if message["type"] == "ended"]
    assert agent.process.wait(GUARD_S) == 0
    assert not any(rank.is_running() for rank in ranks)


def test_a_killed_agent_leaves_no_rank(agent: Agent) -> None:
    agent.start("a")
    [rank] = agent.children()
    agent.process.kill()
    agent.process.wait(GUARD_S)
    assert gone(rank)


def test_an_agent_without_input_ends_at_once(tmp_path: Path) -> None:
    done = subprocess.run(AGENT, stdin=subprocess.DEVNULL, capture_output=True, timeout=GUARD_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_agent_ignores_control_c(agent: Agent) -> None:
    agent.process.send_signal(signal.SIGINT)
    agent.launch("a", Program("pils", 0, 1, 1, rate=1e6))
    assert agent.hear("ended")["state"] == "completed"


def test_heartbeats_name_the_jobs(tmp_path: Path) -> None:
    agent = Agent(tmp_path, heartbeat_s=0.01)
    with agent.process:
        agent.tell(agent.hello)
        assert agent.hear("heartbeat")["jobs"] == []
        agent.start("a")
        assert agent.hear("heartbeat")["jobs"] == ["a"]
        agent.tell({"type": "bye"})


def test_a_rank_inherits_no_descriptors_of_the_agent(agent: Agent) -> None:
    for job in "ab":
        agent.start(job)
    for rank in agent.children():
        folder = Path(f"/proc/{rank.pid}/fd")
        targets = {int(entry.name): str(entry.readlink()) for entry in folder.iterdir()}
        assert targets[0] == os.devnull
        assert targets[1] == targets[2] and targets[1].endswith("n1.out")
        assert not any(target.startswith("pipe:") for target in targets.values())  # the agent's input and output
        assert os.getsid(rank.pid) == rank.pid


def test_an_agent_imports_few_modules() -> None:
    heavy = [
        *("numpy", "pandas", "pydantic", "yaml", "click", "rich", "psutil"),
        *("dataclasses", "asyncio", "platform", "traceback"),
    ]
    code = f"import sys, tracebed.orchestrator.testbeds.agent.agent; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_agent_searches_no_other_packages_for_its_version_and_its_applications() -> None:
    code = (
        "import sys, tracebed.orchestrator.testbeds.agent.agent as agent\n"
        "from tracebed.benchmarks.applications import base\n"
        "print(agent.version(), type(base.load_application('pils', {})).__name__)\n"
        "print([module for module in ('importlib.metadata', 'sqlite3', 'difflib') if module in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{metadata.version('tracebed')} Pils\n[]\n"


def test_a_calibration_makes_no_heartbeat_late(tmp_path: Path) -> None:
    """The calibration takes 0.2 s, in which a heartbeat may be due: this is no disturbance of the agent."""
    selector = selectors.PollSelector()
    reader, writer = os.pipe()
    lines = Lines(selector, reader, writer, None)
    hello = {"node": {"name": "n1", "cores": 4, "emulated": True}, "spool": str(tmp_path), "calibrate": False}
    try:
        node = AgentNode(MessageFields(hello), selector, Outbox(lines), tmp_path, Machine())
        node.heartbeat_s, node.heartbeat_due = 3600.0, 0.0
        node.sample({"calibrate": True})
        assert node.heartbeat_due > time.monotonic()
    finally:
        spool.remove_tables(tmp_path)
        selector.close()
        os.close(reader)
        os.close(writer)
