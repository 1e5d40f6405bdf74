"""Random faults in a replay on local nodes, containers and SSH hosts: no job is lost or run twice.

    tox -e chaos                           # 50 faults, 300 jobs, six minutes; prints the seed
    TRACEBED_CHAOS_SEED=7 tox -e chaos     # the same faults again
    TRACEBED_CHAOS_FAULTS=10 tox -e chaos  # as in .ci/run

Containers need `dockerd`, SSH hosts `sshd` and network namespaces, both of them root. Without them, these groups of
nodes are left out, and the test says so.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import psutil
import pytest

from tests.oracles.survival import KEEP, Case, assert_every_job_ended_once, assert_no_rank_ran_twice, count
from tests.patience import GUARD_S, patience
from tests.servers import dockerd, sshd
from tracebed.benchmarks.node_table import FOLDER
from tracebed.converters.workload import Workload
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.recovery import recovered
from tracebed.orchestrator.run import JOURNAL
from tracebed.orchestrator.testbeds.agent import spool
from tracebed.orchestrator.testbeds.agent.claims import SPACE
from tracebed.orchestrator.testbeds.docker.provider import CLAIMS_LABEL, NODE_LABEL, TESTBED_LABEL
from tracebed.orchestrator.testbeds.provider import AGENT_MODULE

pytestmark = pytest.mark.usefixtures("no_process_is_left")

FAULTS = int(os.environ.get("TRACEBED_CHAOS_FAULTS") or 50)
JOBS, SPEED = 6 * FAULTS, 200.0
LOCAL, BOXES, HOSTS = 4, 3, 3
SILENCE_S = 4.0
"""Time after which a silent agent is given up in this test, s."""
HOOK = KEEP + f"from tracebed.orchestrator.replay import outages; outages.SILENCE = {SILENCE_S}\n"


def say(text: str) -> None:
    """Tell the user of the test."""
    sys.stderr.write(f"{text}\n")


class Fault(NamedTuple):
    """A fault: what happens, to which of the possible targets, after which pause, and for how long, s."""

    kind: str
    target: int
    after: float
    lasts: float


def plan(seed: int, kinds: list[str]) -> list[Fault]:
    """Return the faults of a seed. The same seed and kinds give the same faults."""
    draw = random.Random(seed)
    return [
        Fault(draw.choice(kinds), draw.randrange(1000), draw.uniform(0.2, 1.5), draw.uniform(0.5, 1.5 * SILENCE_S))
        for _ in range(FAULTS)
    ]


def jobs(seed: int) -> Workload:
    """Return jobs of one to four nodes that keep ten nodes busy for some seven seconds a fault."""
    draw = np.random.default_rng(seed)
    nodes = draw.integers(1, 5, JOBS)
    run_time = draw.exponential(800.0, JOBS) + 20.0
    malleable = draw.random(JOBS) < 0.5
    table = {
        "job_id": [f"job {number}" for number in range(JOBS)],
        "submit_time": np.sort(draw.uniform(0.0, 400.0 * FAULTS, JOBS)),
        "run_time": run_time,
        "time_limit": 1.5 * run_time,
        "nodes": nodes,
        "cores_per_node": 2,
        "kind": np.where(malleable, "malleable", "rigid"),
        "nodes_min": np.where(malleable, 1, nodes),
        "nodes_max": np.where(malleable, 4, nodes),
        "speedup": "amdahl",
        "speedup_parameters": "0.95",
    }
    return Workload(pd.DataFrame(table))


class Place:
    """The nodes on which the faults happen. What is started for the test is in `stack`."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        """Start what the nodes need, as far as it can be started here."""
        self.groups = [f"  local:\n    provider: local\n    cores: 2\n    emulated: true\n    nodes: n[1-{LOCAL}]"]
        self.kinds = ["kill replayer", "kill agent", "kill agent", "stop agent", "stop agent"]
        self.client: Any = None
        self.network: sshd.Network | None = None
        self.home = folder
        self.testbeds: set[str] = set()
        """The testbeds of the containers seen so far."""
        if reason := dockerd.reason_to_skip():
            say(f"without containers: {reason}")
        else:
            self._add_boxes(os.environ.get("TRACEBED_TEST_ENGINE") or stack.enter_context(dockerd.engine()))
        programs = [name for name in ("sshd", "ssh-keygen", "ip") if shutil.which(name, path=sshd.SEARCHED) is None]
        if programs or os.geteuid():
            say(f"without SSH hosts: no {', '.join(programs)}" if programs else "without SSH hosts: needs root")
        else:
            self._add_hosts(stack.enter_context(sshd.Network(folder / "net", HOSTS)))

    def _add_boxes(self, address: str) -> None:
        import docker

        dockerd.load_base(address)
        self.client = docker.DockerClient(address)
        self.kinds += ["pause box", "kill box"]
        self.groups.append(
            f"  boxes:\n    provider: docker\n    daemon: {address}\n    base: {dockerd.BASE}\n"
            f"    cores: 2\n    emulated: true\n    nodes: b[1-{BOXES}]"
        )

    def _add_hosts(self, network: sshd.Network) -> None:
        self.network = network
        self.home = network.hidden
        known, config = network.folder / "known_hosts", network.folder / "ssh_config"
        known.write_text("".join(host.known() for host in network.hosts.values()))
        config.write_text("".join(host.config(name, known) for name, host in network.hosts.items()))
        self.kinds += ["cut link", "cut link"]
        self.groups.append(
            f"  hosts:\n    provider: ssh\n    config: {config}\n    known_hosts: {known}\n"
            f"    cores: 2\n    emulated: true\n    nodes: h[1-{HOSTS}]"
        )

    @property
    def inventory(self) -> str:
        """The text of the inventory."""
        return "grain_s: 0.05\nheartbeat_s: 0.4\nlinger_s: 60\ngroups:\n" + "\n".join(self.groups) + "\n"

    def boxes(self) -> list[Any]:
        """Return the containers that are nodes, by name."""
        if self.client is None:
            return []
        own = f"{CLAIMS_LABEL}={os.environ[SPACE]}"  # the engine may have containers of other tests
        found = self.client.containers.list(all=True, filters={"label": own})
        self.testbeds |= {box.labels[TESTBED_LABEL] for box in found}
        return sorted(found, key=lambda box: str(box.labels[NODE_LABEL]))

    def agents(self) -> list[psutil.Process]:
        """Return the agents on the hosts, and the commands that joined one of them."""
        found = []
        for name in self.network.hosts if self.network else ():
            assert self.network is not None
            for pid in sshd.call("ip", "netns", "pids", self.network.namespace(name)).split():
                with contextlib.suppress(psutil.Error):
                    process = psutil.Process(int(pid))
                    found += [process] if AGENT_MODULE in process.cmdline() else []
        return found

    def left(self) -> list[str]:
        """Return what is left on the nodes after a replay."""
        found = [str(box.labels) for box in self.boxes()] + [str(agent) for agent in self.agents()]
        if self.client is not None:
            found += [
                str(network.attrs) for network in self.client.networks.list(filters={"label": "tracebed.testbed"})
            ]
        if self.network is not None:
            found += [str(path) for host in self.network.hosts.values() for path in host.home.iterdir()]
        return found


class Mischief:
    """The faults, done to a replay that is running."""

    def __init__(self, case: Case, place: Place, process: subprocess.Popen[bytes]) -> None:
        """Begin with the replayer `process`."""
        self.case, self.place, self.process = case, place, process
        self.done: Counter[str] = Counter()

    def do(self, fault: Fault) -> None:
        """Do a fault, wait, and end it."""
        with contextlib.suppress(psutil.NoSuchProcess):  # the agent has ended meanwhile
            end = getattr(self, "_" + fault.kind.replace(" ", "_"))(fault.target)
            self.done[fault.kind] += 1
            time.sleep(fault.lasts)
            if end is not None:
                end()

    def _kill_replayer(self, target: int) -> None:
        self.case.kill(self.process)
        pauses = sum(entry.kind == "pause" for entry in self.case.entries())
        self.process = self.case.start("--resume", hook=HOOK)
        self.case.wait_until(self.process, count("pause", pauses + 1))

    def _agent(self, target: int) -> psutil.Process:
        [folder] = self.case.working
        agents = journal.read(folder / JOURNAL)[0]["agents"]
        local = sorted(name for name in agents if name.startswith("n"))
        return psutil.Process(agents[local[target % len(local)]]["pid"])

    def _kill_agent(self, target: int) -> None:
        agents = [agent for agent in self.place.agents() if not _is_rank(agent)]
        chosen = agents[target % len(agents)] if agents and target % 2 else self._agent(target)
        assert AGENT_MODULE in chosen.cmdline()
        chosen.kill()

    def _stop_agent(self, target: int) -> Callable[[], None]:
        agent = self._agent(target)
        assert AGENT_MODULE in agent.cmdline()
        agent.send_signal(signal.SIGSTOP)
        return lambda: agent.send_signal(signal.SIGCONT) if agent.is_running() else None

    def _pause_box(self, target: int) -> Callable[[], None] | None:
        return self._box(target, "pause", "unpause")

    def _kill_box(self, target: int) -> Callable[[], None] | None:
        return self._box(target, "kill", None)

    def _box(self, target: int, begin: str, end: str | None) -> Callable[[], None] | None:
        from docker.errors import APIError

        boxes = [box for box in self.place.boxes() if box.status == "running"]
        if not boxes:
            return None
        box = boxes[target % len(boxes)]

        def call(method: str) -> None:
            with contextlib.suppress(APIError):  # the testbed has replaced the container meanwhile
                getattr(box, method)()

        call(begin)
        return None if end is None else lambda: call(end)

    def _cut_link(self, target: int) -> Callable[[], None]:
        network = self.place.network
        assert network is not None
        name = sorted(network.hosts)[target % len(network.hosts)]
        network.cut(name)
        return lambda: network.restore(name)


def _is_rank(process: psutil.Process) -> bool:
    """Return whether a process is a rank, which has the command of the agent that forked it."""
    parent = process.parent()
    return parent is not None and AGENT_MODULE in parent.cmdline()


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Return a folder for the temporary files of the replay, which must be empty at the end."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def tables() -> set[Path]:
    """Return the tables of CPUs of all agents of this machine."""
    return set(FOLDER.glob(f"{spool.PREFIX}*"))


def test_a_replay_survives_random_faults(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = int(os.environ.get("TRACEBED_CHAOS_SEED") or secrets.randbelow(10**6))
    say(f"TRACEBED_CHAOS_SEED={seed}")
    shared = tables()
    with contextlib.ExitStack() as stack:
        place = Place(tmp_path, stack)
        monkeypatch.setenv("TMPDIR", str(temporary))  # of the replay, not of the servers
        home = place.home / "case"
        home.mkdir()
        case = Case(home, jobs(seed), place.inventory, "--speed", str(SPEED), "--policy", "pref", "--no-live")
        stack.callback(case.end)
        mischief = Mischief(case, place, case.start(hook=HOOK))
        case.wait_until(mischief.process, count("launched", 2))
        for fault in plan(seed, place.kinds):
            time.sleep(fault.after)
            assert mischief.process.poll() is None, f"seed {seed}: the replay ended before {fault}: {case.errors}"
            mischief.do(fault)
        assert mischief.process.wait(patience(1200)) == 0, case.errors
        run = case.finish(mischief.process)
        say(f"faults: {dict(mischief.done)}; outages: {len(run.info.outages)}; pauses: {len(run.info.pauses)}")
        say(f"restarts: {run.jobs['restarts'].sum()}; states: {Counter(run.jobs['state'])}")
        assert_every_job_ended_once(run, journal.read(home / "run" / JOURNAL)[1])
        assert_no_rank_ran_twice(home / "kept" / "spool")
        assert run.info.state == "completed"
        assert run.info.health["state"] == "unhealthy"
        pd.testing.assert_frame_equal(recovered(home / "run" / JOURNAL).jobs, run.jobs)
        assert not case.working
        until = time.monotonic() + GUARD_S  # agents that could not be reached end after `linger_s`
        while (left := [*place.left(), *(tables() - shared)]) and time.monotonic() < until:
            time.sleep(1.0)
        assert left == []
        assert [path.name for path in temporary.iterdir() if path.name.startswith("tracebed")] == []
