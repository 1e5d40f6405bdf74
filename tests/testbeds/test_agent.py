"""The agent alone: a process with a protocol of JSON lines."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.oracles.survival import tables_of
from tests.patience import GUARD_S
from tests.servers.agents import FOREVER, Agent
from tracebed.benchmarks.lines import Lines
from tracebed.benchmarks.program import Program
from tracebed.ground.errors import InputError
from tracebed.orchestrator.testbeds.agent import spool
from tracebed.orchestrator.testbeds.agent.machine import Machine
from tracebed.orchestrator.testbeds.agent.messages import LINE_LIMIT, MessageFields, Outbox
from tracebed.orchestrator.testbeds.agent.node import AgentNode
from tracebed.orchestrator.testbeds.local import AGENT
from tracebed.orchestrator.testbeds.wheelhouse import wheel

pytestmark = pytest.mark.usefixtures("no_process_is_left")
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


# -- messages out of protocol, and what an agent may touch -------------------------------------------------------------

NOBODY = 65534
NODE = {"name": "n1", "cores": 4, "cpus": None, "emulated": True}

words = st.sampled_from(
    ["n1", "j", "", "../../x", "/etc/passwd", "\0", "0-3", "AF_INET", "agents", "0.0.0.0", "\ud800"]
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**30, -(10**400), 2**63, 1e308, float("nan"), float("-inf")])
    | st.floats()
    | st.text(max_size=8)
    | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
FIELDS: dict[str, Any] = {
    "protocol": st.just(2),
    "node": st.just(NODE),
    "heartbeat_s": st.just(3600.0),
    "spool": st.just("/nowhere"),
    "calibrate": st.booleans(),
    "time": st.floats(-1e6, 1e6),
    "seen": st.integers(),
    "job": st.sampled_from("jkj") | words,
    "rank": st.sampled_from(["n1", "n1", "n1", "n2"]),
    "leader": st.booleans(),
    "members": st.just(["n1"]) | st.lists(words, unique=True),
    "address": st.sampled_from([None, "n2", "n2", "/nowhere", ["127.0.0.1", 1], ["localhost", 1], [1, 2, 3]]),
    "bind": st.sampled_from(["127.0.0.1", "127.0.0.1", None, "localhost", ""]),
    "family": st.sampled_from(["AF_UNIX", "AF_INET", "agents"]),
    "authkey": st.just("00"),
    "cpus": st.none() | st.just("0-1"),
    "cores": st.integers(1, 4),
    "program": st.just(FOREVER._asdict()),
    "duty": st.just(0),
    "clock": st.none(),
    "request": st.integers(),
    "reason": words,
    "stream": st.integers(1, 3),
    "to": st.just("n1"),
    "offset": st.integers(0, 9),
    "received": st.integers(-1, 9),
    "data": st.sampled_from(["", "aGVsbG8=", "x"]),
    "closed": st.booleans(),
    "again": st.booleans(),
    "windows": st.integers(),
    "seconds": st.floats(0.001, 1),
}


LAUNCH = "job rank leader members address bind family authkey cpus cores program duty clock"
KINDS = {
    "hello": "protocol node heartbeat_s spool calibrate seen",
    "ping": "time seen",
    "facts": "",
    "launch": LAUNCH,
    "resize": "job request members",
    "resize ": "job request cpus",
    "kill": "job reason",
    "sample": "calibrate",
    "measure": "windows seconds cores",
    "reach": "bind",
    "reach ": "address",
    "relay": "job rank stream to offset received data closed again",
    "dance": "",
}


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Draw a message of the protocol, in which up to two fields are missing or have any other value."""
    kind = draw(st.sampled_from([*KINDS, "launch", "relay", "resize"]))
    names = KINDS[kind].split()
    message: dict[str, Any] = {"type": kind.strip()} | {name: draw(FIELDS[name]) for name in names}
    count = draw(st.sampled_from([0, 0, 1, 2])) if names else 0
    for name in draw(st.lists(st.sampled_from(names), min_size=count, max_size=count)) if count else ():
        if draw(st.booleans()):
            message.pop(name, None)
        else:
            message[name] = draw(values)
    return json.dumps(message).encode() + b"\n"


lines = st.one_of(
    messages(),
    messages(),
    messages(),
    values.map(lambda value: json.dumps(value).encode() + b"\n"),
    st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"") + b"\n"),
)


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Agent]:
    """Yield one agent for all examples, which must survive all of them."""
    with tempfile.TemporaryDirectory() as folder, Agent(Path(folder), linger_s=600.0) as found:
        found.greet()
        yield found


def read_all(agent: Agent) -> None:
    """Read the answers to all messages so far: a heartbeat among these would not be the answer to the next `sample`."""
    agent.tell({"type": (last := f"dance {time.monotonic_ns()}")})
    while last not in agent.hear("error")["what"]:
        pass


@settings(suppress_health_check=list(HealthCheck))
@given(batch=st.lists(lines, min_size=1, max_size=5))
def test_an_agent_answers_the_next_valid_message_whatever_came_before(fuzzed: Agent, batch: list[bytes]) -> None:
    for line in batch:
        if b'"bye"' not in line:
            fuzzed.tell(line)
    read_all(fuzzed)
    fuzzed.tell({"type": "sample", "calibrate": False})
    fuzzed.hear("heartbeat")
    for event in fuzzed.heard:
        assert event["type"] in ("hello", "heartbeat", "error", "ended", "facts", "calibrated", "relay", "resized") or (
            event["type"] in ("listening", "started", "progress", "work", "reachable", "reached")
        )
        assert "Traceback" not in json.dumps(event)
    fuzzed.heard.clear()


def test_a_fuzzed_agent_has_written_no_error_and_leaves_no_rank(fuzzed: Agent) -> None:
    """The jobs that messages happened to start can be killed as any other."""
    read_all(fuzzed)
    fuzzed.tell({"type": "sample", "calibrate": False})
    for job in (jobs := fuzzed.hear("heartbeat")["jobs"]):
        fuzzed.tell({"type": "kill", "job": job, "reason": "enough"})
    for _ in jobs:
        fuzzed.hear("ended")
    assert fuzzed.children() == []
    fuzzed.tell({"type": "bye"})
    assert fuzzed.process.wait(GUARD_S) == 0
    assert fuzzed.process.stderr is not None and fuzzed.process.stderr.read() == b""


@pytest.mark.parametrize("first", [False, True], ids=["after hello", "before hello"])
@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"[" * 200_000 + b"]" * 200_000 + b"\n", "nested too deeply"),
        (b'{"type": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001 + b"\n", "nested too deeply"),
        (b'{"type": "kill", "job": ' + b"9" * 10_000 + b"}\n", "Exceeds the limit"),
        (b'{"type": "ping", "time": NaN}\n', "NaN is not a number"),
        (b'{"type": "ping", "time": -Infinity}\n', "-Infinity is not a number"),
        (b'"\xc3\x28"\n', "can't decode"),
        (b"\xff\xfe{\x00}\x00\n", "can't decode"),
        (b"x" * (LINE_LIMIT + 1) + b"\n", f"more than {LINE_LIMIT} bytes"),
        (b"x" * (8 * LINE_LIMIT) + b"\n", f"more than {LINE_LIMIT} bytes"),
    ],
)
def test_a_line_that_is_no_message_is_refused(tmp_path: Path, line: bytes, what: str, first: bool) -> None:
    with Agent(tmp_path) as agent:
        if not first:
            agent.greet()
        agent.tell(line)
        error = agent.hear("error")["what"]
        assert what in error and len(error) < 1000
        if first:
            agent.greet()
        agent.tell({"type": "sample", "calibrate": False})
        agent.hear("heartbeat")
        assert psutil.Process(agent.process.pid).memory_info().rss < 120 * 2**20


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"cores": 10**9}, "cores is 1000000000"),
        ({"cores": True}, "cores is True"),
        ({"name": "../n1"}, "not a plain file name"),
        ({"name": ".."}, "not a plain file name"),
        ({"name": ""}, "not a plain file name"),
        ({"name": "a\0"}, "name is"),
        ({"emulated": False, "cpus": "0-999999999"}, "exceeds CPU"),
        ({"emulated": False, "cpus": "0-1"}, "4 cores, but 2 CPUs"),
        ({"emulated": 1}, "emulated is 1"),
    ],
)
def test_a_node_that_cannot_be_is_refused(tmp_path: Path, changes: dict[str, Any], what: str) -> None:
    with Agent(tmp_path) as agent:
        agent.tell(agent.hello | {"node": NODE | changes})
        assert what in agent.hear("error")["what"]
        agent.greet()


@pytest.mark.parametrize("value", [0, -1, "1", None, 1e10, True])
def test_an_interval_of_heartbeats_that_cannot_be_is_refused(tmp_path: Path, value: object) -> None:
    with Agent(tmp_path) as agent:
        agent.tell(agent.hello | {"heartbeat_s": value})
        assert "heartbeat_s is" in agent.hear("error")["what"]


@pytest.mark.parametrize(
    "job", ["../../x", "..", ".", "/etc", "a/b", "a\nb", "\ud800x", "-rf", "x" * 4000, "job-a", "~"]
)
def test_no_job_leads_out_of_the_spool(tmp_path: Path, job: str) -> None:
    folder = tmp_path / "spool"
    with Agent(folder) as agent:
        agent.greet()
        agent.launch(job, FOREVER._replace(parallel_units=1, iterations=1))
        ended = agent.hear("ended")
    assert ended["job"] == job
    assert [path.name for path in tmp_path.iterdir()] == ["spool"]
    assert all(path.parent == folder and path.name.startswith("job-") for path in folder.iterdir())


def test_a_rank_has_the_name_of_its_node(tmp_path: Path) -> None:
    with Agent(tmp_path / "spool") as agent:
        agent.greet()
        agent.launch("j", rank="../../x")
        assert "does not belong to node" in agent.hear("ended")["reason"]


def test_what_an_agent_makes_is_private(tmp_path: Path) -> None:
    with Agent(tmp_path / "new" / "spool", linger_s=600.0) as agent:
        sockets = Path(agent.greet()["sockets"])
        agent.start("j")
        for folder in (sockets, agent.spool, agent.spool / "job-j"):
            assert folder.stat().st_mode & 0o777 == 0o700
        for path in (*sockets.iterdir(), *(agent.spool / "job-j").iterdir()):
            assert path.stat().st_mode & 0o077 == 0


def test_a_spool_to_which_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    with Agent(tmp_path) as agent:
        for name, what in (("open", "can write to"), ("link", "can write to"), ("file", "File exists")):
            agent.tell(agent.hello | {"spool": str(tmp_path / name)})
            assert what in agent.hear("error")["what"]
        agent.tell(agent.hello | {"spool": "relative"})
        assert "not an absolute path" in agent.hear("error")["what"]
        agent.greet()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user, and so to be root")
def test_a_spool_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    with Agent(tmp_path) as agent:
        agent.tell(agent.hello)
        assert "only its own user" in agent.hear("error")["what"]


def test_plain_names() -> None:
    assert spool.plain_name("node-1.example") == "node-1.example"
    with pytest.raises(InputError):
        spool.plain_name("x" * 201)


@pytest.fixture
def wheel_folder() -> Iterator[Path]:
    """Yield a folder that all users can read, with the files of the wheel that nodes get."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        with zipfile.ZipFile(wheel(Path(name))) as archive:
            archive.extractall(name)
        subprocess.run(["chmod", "-R", "a+rX", name], check=True)
        yield Path(name)


def test_an_agent_runs_as_an_ordinary_user_with_python_alone(wheel_folder: Path) -> None:
    """No package is installed for this Python but the wheel of tracebed, as on a node."""
    code = f"import sys; sys.path.insert(0, {str(wheel_folder)!r});"
    code += "from tracebed.orchestrator.testbeds.agent.__main__ import main; main([])"
    python = sys.executable
    as_user: list[str] = []
    home = Path(tempfile.mkdtemp(dir="/tmp"))
    if os.geteuid() == 0:
        os.chown(home, NOBODY, NOBODY)
        as_user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
        if subprocess.run([*as_user, python, "-c", ""], check=False, capture_output=True).returncode:
            python = "/usr/bin/python3"  # the Python of the tests is in a private folder of root
    try:
        with Agent(home / "spool", [*as_user, python, "-S", "-P", "-c", code]) as agent:
            sockets = Path(agent.greet()["sockets"])
            agent.launch("j", FOREVER._replace(parallel_units=1, iterations=1))
            assert agent.hear("ended")["state"] == "completed"
            agent.tell({"type": "facts"})
            agent.hear("facts")
            if os.geteuid() == 0:
                assert sockets.stat().st_uid == (home / "spool" / "job-j" / "n1.out").stat().st_uid == NOBODY
                assert psutil.Process(agent.process.pid).uids() == (NOBODY, NOBODY, NOBODY)
            agent.tell({"type": "bye"})
            assert agent.process.wait(GUARD_S) == 0
            assert agent.process.stderr is not None and agent.process.stderr.read() == b""
    finally:
        shutil.rmtree(home)
    assert not sockets.exists() and not tables_of([str(sockets)])
