"""Messages out of protocol, and what an agent may touch: no message ends an agent or leads out of its spool."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.oracles.survival import tables_of
from tests.patience import GUARD_S
from tests.servers.agents import FOREVER, Agent
from tracebed.ground.errors import InputError
from tracebed.orchestrator.testbeds.agent import spool
from tracebed.orchestrator.testbeds.agent.messages import LINE_LIMIT
from tracebed.orchestrator.testbeds.wheelhouse import wheel

NOBODY = 65534
NODE = {"name": "n1", "cores": 4, "cpus": None, "emulated": True}
pytestmark = pytest.mark.usefixtures("no_process_is_left")

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
