"""Nodes without a replay: facts, health, what is made and removed, and the commands `tracebed nodes`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner, Result

import tracebed.api as tb
from tests.patience import GUARD_S
from tests.servers.agents import Agent
from tests.servers.sshd import Sshd
from tracebed.cli import tracebed
from tracebed.ground.cpus import format_cpus
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.testbeds import links
from tracebed.orchestrator.testbeds.agent import facts
from tracebed.orchestrator.testbeds.checking.health import SIGNALS, judge, read_limits, signals_of
from tracebed.orchestrator.testbeds.checking.preparation import take_down
from tracebed.orchestrator.testbeds.checking.survey import NodeReport, described, with_facts
from tracebed.orchestrator.testbeds.inventory import load_inventory
from tracebed.orchestrator.testbeds.local import LocalProvider
from tracebed.orchestrator.testbeds.nodes import AGENTS, Group, Inventory, Node
from tracebed.orchestrator.testbeds.ssh import SshSettings
from tracebed.orchestrator.testbeds.testbed import AgentTestbed

pytestmark = pytest.mark.usefixtures("no_process_is_left")

FACTS: dict[str, Any] = {
    "host": {"cpu": "model", "kernel": "6.1"},
    "topology": {"sockets": 1, "cores": 4, "cpus": 4, "threads_per_core": 1.0, "numa_nodes": 1},
    "cpus": "0-3",
    "cpus_by_socket": ["0-3"],
    "governor": ["performance"],
    "memory": {"total_mib": 8000, "free_mib": 6000, "swap_mib": 0},
    "disk": {"path": "/tmp", "total_mib": 9000, "free_mib": 5000, "shared_free_mib": 4000},
    "cgroup": {"version": 2, "cpus": None, "memory_mib": None, "processes": None},
    "load": [0.1, 0.1, 0.1],
    "pressure": {"cpu": 0.0, "io": 0.0, "memory": 0.0},
}
QUIET = [
    (0.0, {"cpu_s": 0.0, "busy_s": 10.0, "steal_s": 0.0}),
    (2.0, {"cpu_s": 0.01, "busy_s": 10.02, "steal_s": 0.0}),
]


def report(name: str = "n", *, rate: float | None = None, **facts: Any) -> NodeReport:
    """Return the report of a healthy computing node of four cores, with other facts."""
    node = Node(name, 4, 1, (0, 1, 2, 3), duty=1.0, memory_mib=4000)
    clock = {"offset_s": 100.0, "round_trip_s": 0.001}
    return NodeReport(node, "g", None, FACTS | facts, rate, clock, 0.01, list(QUIET))


def state(of: NodeReport) -> tuple[str, list[str]]:
    (health,) = judge([of], read_limits())
    return health.state, [cause.signal for cause in health.causes]


def test_a_quiet_node_is_healthy() -> None:
    (health,) = judge([report()], read_limits())
    assert (health.state, health.reason) == ("healthy", "")
    assert health.signals.keys() <= SIGNALS.keys()
    assert health.signals["outside_load"] == pytest.approx(0.01 / 8)


@pytest.mark.parametrize(
    ("facts", "signal", "found"),
    [
        ({"load": [3.0, 0, 0]}, "load", "degraded"),
        ({"pressure": {"cpu": 0.7, "io": None, "memory": None}}, "cpu_pressure", "unhealthy"),
        ({"pressure": {"cpu": 0.0, "io": 0.3, "memory": 0}}, "io_pressure", "degraded"),
        ({"pressure": {"cpu": 0.0, "io": 0.0, "memory": 0.5}}, "memory_pressure", "unhealthy"),
        ({"memory": {"total_mib": 8000, "free_mib": 100, "swap_mib": 0}}, "memory_free_mib", "unhealthy"),
        ({"disk": FACTS["disk"] | {"free_mib": 100}}, "disk_free_mib", "degraded"),
        ({"disk": FACTS["disk"] | {"shared_free_mib": 1}}, "shared_free_mib", "degraded"),
        ({"cgroup": FACTS["cgroup"] | {"cpus": 3.5}}, "cpu_quota", "unhealthy"),
        ({"cgroup": FACTS["cgroup"] | {"memory_mib": 3999}}, "memory_limit", "unhealthy"),
        ({"cgroup": FACTS["cgroup"] | {"processes": 100}}, "process_limit", "unhealthy"),
    ],
)
def test_each_fact_beyond_its_limit_is_a_cause(facts: dict[str, Any], signal: str, found: str) -> None:
    assert state(report(**facts)) == (found, [signal])


def test_limits_that_suffice_are_no_cause() -> None:
    enough = {"version": 2, "cpus": 4.0, "memory_mib": 4000, "processes": 5000}
    assert state(report(cgroup=enough)) == ("healthy", [])


def test_the_load_by_other_processes_is_measured_between_samples() -> None:
    busy = report()
    busy.samples[1] = (2.0, {"cpu_s": 0.01, "busy_s": 14.0, "steal_s": 0.4})
    assert state(busy) == ("unhealthy", ["outside_load", "steal"])
    assert signals_of(busy)["outside_load"] == pytest.approx((4.0 - 0.01) / 8)


def test_clocks_and_round_trips_are_judged() -> None:
    far = report()
    far.clock, far.wall_offset_s = {"offset_s": 0.0, "round_trip_s": 0.7}, -3.0
    assert state(far) == ("unhealthy", ["clock_offset_s", "round_trip_s"])


def test_a_node_that_computes_slower_than_its_group_is_unhealthy() -> None:
    reports = [report(f"n{number}", rate=rate) for number, rate in enumerate((1e6, 1.01e6, 0.7e6, 0.99e6))]
    found = judge(reports, read_limits())
    assert [health.state for health in found] == ["healthy", "healthy", "unhealthy", "healthy"]
    assert "deviation of the work rate" in found[2].reason and "(limit 15.0%)" in found[2].reason
    reports[2].group = "slow"
    assert {health.state for health in judge(reports, read_limits())} == {"healthy"}


def test_an_emulated_node_may_share_a_busy_machine() -> None:
    busy = report(load=[12.0, 0, 0])
    busy.node = Node("e", 48, emulated=True)
    assert state(busy) == ("healthy", [])


def test_a_node_without_an_agent_is_unhealthy() -> None:
    silent = NodeReport(Node("n", 1, emulated=True), "g", "no route to host")
    (health,) = judge([silent], read_limits())
    assert (health.state, health.reason) == ("unhealthy", "no route to host")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("all: {lode: {degraded: 1}}\n", 1, "unknown signal 'lode'.*mean load"),
        ("all: {load: {worse: 1}}\n", 1, "worse"),
        ("everything: {}\n", 1, "everything"),
        ("all:\n  load:\n    degraded: -1\n", 3, "degraded"),
    ],
)
def test_wrong_thresholds_are_refused_by_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    (tmp_path / "health.yaml").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_limits(tmp_path / "health.yaml")
    assert str(caught.value).startswith(f"{tmp_path / 'health.yaml'}:{line}: ")


def test_facts_tell_the_cpus_of_a_node() -> None:
    node = Node("n", 0, provider="ssh", duty=0.5)
    found = with_facts(node, FACTS | {"cpus_by_socket": ["0,2", "1,3"]})
    assert (found.cores, found.sockets, found.cpus, found.duty) == (4, 2, (0, 2, 1, 3), 0.5)
    uneven = with_facts(node, FACTS | {"cpus_by_socket": ["0-2", "3"]})
    assert (uneven.cores, uneven.sockets) == (4, 1)


# The commands, with real agents.


def call(*arguments: object, status: int = 0) -> Result:
    done = CliRunner().invoke(tracebed, ["nodes", *map(str, arguments)], standalone_mode=False)
    if isinstance(done.exception, Exception):
        raise done.exception
    assert (done.return_value or 0) == status, done.output
    return done


LENIENT = "all: {memory_free_mib: {unhealthy: 1}}\n"
IMPOSSIBLE = "all: {memory_free_mib: {unhealthy: 100000000}}\n"


def test_facts_of_emulated_nodes() -> None:
    assert "emulated" not in call("facts", "emulated-4").stdout
    document = json.loads(call("facts", "emulated-4", "--json").stdout)
    assert document["schema"] == "tracebed-nodes/1"
    assert [node["node"] for node in document["nodes"]] == ["n1", "n2", "n3", "n4"]
    facts = document["nodes"][0]["facts"]
    assert facts["memory"]["total_mib"] > 0 and facts["topology"]["cpus"] >= 1
    assert facts["cpus_by_socket"] and abs(document["nodes"][0]["wall_offset_s"]) < 60.0


def test_facts_of_computing_nodes_claim_no_cpu(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text("nodes:\n  - {name: n, cpus: auto}\n")
    with tb_agents(tmp_path):
        assert call("facts", tmp_path / "two.yaml").stdout


def tb_agents(folder: Path) -> Any:
    """Return a testbed whose agent has claimed the CPU of node n."""
    return AgentTestbed(load_inventory(folder / "two.yaml"), folder / "spool")


def test_check_judges_and_writes_the_healthy_nodes(tmp_path: Path) -> None:
    (tmp_path / "lenient.yaml").write_text(LENIENT)
    (tmp_path / "impossible.yaml").write_text(IMPOSSIBLE)
    healthy = call("check", "emulated-4", "--seconds", "0", "--health", tmp_path / "lenient.yaml")
    assert healthy.stdout.count("healthy") == 4
    done = call("check", "emulated-4", "--seconds", "0", "--health", tmp_path / "impossible.yaml", "--json", status=4)
    document = json.loads(done.stdout)
    assert {node["state"] for node in document["nodes"]} == {"unhealthy"}
    assert document["nodes"][0]["causes"][0]["signal"] == "memory_free_mib"
    assert "unhealthy: n1, n2, n3, n4" in done.stderr


@pytest.mark.slow
def test_a_node_that_cannot_be_reached_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "lenient.yaml").write_text(LENIENT)
    text = "groups:\n  here: {nodes: 'e[1-2]', cores: 2, emulated: true}\n"
    text += "  far: {provider: ssh, address: 127.0.0.1, port: 1, cores: 1, emulated: true, nodes: far}\n"
    (tmp_path / "mixed.yaml").write_text(text)
    options = ("--seconds", "0", "--health", tmp_path / "lenient.yaml", "-o", tmp_path / "good.yaml")
    done = call("check", tmp_path / "mixed.yaml", *options, status=4)
    assert "unhealthy: far" in done.stderr and "port 1 cannot be reached" in done.stdout
    written = load_inventory(tmp_path / "good.yaml")
    assert [node.name for node in written.nodes] == ["e1", "e2"]
    assert written.kind == "local"
    assert call("facts", tmp_path / "mixed.yaml", status=4).stdout.count("cannot be reached") == 1


def test_no_inventory_is_written_without_a_healthy_node(tmp_path: Path) -> None:
    (tmp_path / "impossible.yaml").write_text(IMPOSSIBLE)
    options = ("--seconds", "0", "--health", tmp_path / "impossible.yaml", "-o", tmp_path / "good.yaml")
    with pytest.raises(tb.TestbedError, match="all nodes are unhealthy"):
        call("check", "emulated-4", *options)
    assert not (tmp_path / "good.yaml").exists()


def test_the_load_by_others_is_a_signal_of_computing_nodes(tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    (tmp_path / "one.yaml").write_text(f"nodes:\n  - {{name: c, cpus: {cpu}}}\n")
    (health,) = tb.nodes_check(tmp_path / "one.yaml", seconds=0.3)
    assert {"outside_load", "rate_deviation"} <= health.signals.keys()
    assert health.signals["rate_deviation"] == 0.0


def test_local_nodes_need_nothing() -> None:
    assert "were ready" in call("up", "emulated-4").stdout
    document = json.loads(call("up", "emulated-4", "--json").stdout)
    assert document["groups"] == [
        {"group": "nodes", "provider": "local", "nodes": ["n1", "n2", "n3", "n4"], "steps": [], "made": False}
    ]
    assert call("down", "emulated-4").stdout == "nothing to remove\n"


def test_the_schema_is_printed() -> None:
    assert json.loads(call("schema").stdout)["$id"] == "tracebed-inventory-1.json"


# Over SSH.


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    """An SSH configuration that names the hosts a and b, which are one real server on this machine."""
    with Sshd(tmp_path / "server") as server:
        (tmp_path / "known").write_text(server.known())
        path = tmp_path / "ssh_config"
        path.write_text("Include /nowhere/*\n" + server.config("a b", tmp_path / "known"))
        yield path


@pytest.mark.slow
def test_an_ssh_configuration_goes_from_facts_to_a_replay(config: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cores of node 'a' is unknown"):
        load_inventory(config)
    up = json.loads(call("up", config, "--json").stdout)["groups"]
    assert [group["made"] for group in up] == [True]
    call("facts", config, "-o", tmp_path / "nodes.yaml")
    written = load_inventory(tmp_path / "nodes.yaml")
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    assert [(node.name, sorted(node.cpus or ())) for node in written.nodes] == [("a", list(cpus)), ("b", list(cpus))]
    assert written.groups[0].settings.model_dump(exclude_unset=True) == {"config": str(config)}
    done = call("down", config)
    assert "nothing to remove" not in done.stdout
    assert call("down", config).stdout == "nothing to remove\n"
    # The two hosts are one machine, whose CPUs one agent claims. Only one of them can be replayed on.
    one = tmp_path / "one"
    one.write_text(config.read_text().replace("Host a b", "Host a"))
    work = tb.scale(tb.generate("cirne", jobs=4, nodes=8, seed=3), nodes=1)
    run = tb.replay(work, "easy", one, speed=1e6, output=tmp_path / "run")
    assert run.info.parameters["testbed"] == "ssh"
    assert Run.load(tmp_path / "run").info.nodes[0].cores == len(cpus)


@pytest.mark.slow
def test_an_ansible_inventory_is_replayed_on(tmp_path: Path) -> None:
    with Sshd(tmp_path / "server") as server:
        (tmp_path / "known").write_text(server.known())
        variables = {
            "ansible_host": server.address,
            "ansible_port": server.port,
            "ansible_ssh_private_key_file": str(server.key),
            "tracebed_known_hosts": str(tmp_path / "known"),
            "tracebed_cores": 2,
            "tracebed_emulated": True,
        }
        names = ["n1", "n2", "n3"]
        listed = {"_meta": {"hostvars": dict.fromkeys(names, variables)}, "all": {"hosts": names}}
        (tmp_path / "hosts.json").write_text(json.dumps(listed))
        work = tb.scale(tb.generate("cirne", jobs=10, nodes=8, seed=3), nodes=3)
        run = tb.replay(work, "easy", tmp_path / "hosts.json", speed=1e6)
        assert run.info.parameters["testbed"] == "ssh"
        assert set(run.jobs["state"]) == {"completed"} and run.jobs["nodes"].max() > 1
        assert [node.name for node in run.info.nodes] == ["n1", "n2", "n3"]
        assert call("down", tmp_path / "hosts.json").stdout == "nothing to remove\n"  # the replay has removed it


@pytest.mark.slow
def test_what_a_killed_controller_has_made_is_removed(config: Path, tmp_path: Path) -> None:
    script = "import sys, time, tracebed.api as tb; tb.nodes_up(sys.argv[1]); print('up', flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", script, str(config)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    steps = [step for group in tb.nodes_down(config) for step in group["steps"]]
    assert steps
    assert tb.nodes_down(config)[0]["steps"] == []


def on_hosts(config: Path) -> Inventory:
    nodes = tuple(Node(name, 1, emulated=True, provider="ssh") for name in "ab")
    group = Group("hosts", "ssh", SshSettings(config=str(config)), nodes, "hosts")
    return Inventory("i", "agents", nodes, groups=(group,))


@pytest.mark.slow
def test_nodes_with_files_that_cannot_be_copied_stay_up(config: Path, tmp_path: Path) -> None:
    inventory, spool = on_hosts(config), tmp_path / "spool"
    testbed = AgentTestbed(inventory, spool)
    testbed.start()
    there = Path(testbed._launchers[0].provider.spool(inventory.nodes[0]), "job-1", "a.out")
    there.parent.mkdir(parents=True)
    there.write_text("result")
    (spool / "job-1").write_text("in the way")
    with pytest.warns(UserWarning) as caught:
        testbed.stop()
    assert [str(warning.message).partition(" (")[0] for warning in caught] == [
        f"host a: the files of the jobs of node a cannot be written to {spool}: File exists",
        "group hosts: stays up: files of jobs on its nodes could not be copied here",
    ]
    assert there.read_text() == "result"
    assert len(take_down(inventory)[0]["steps"]) == 1


@pytest.mark.slow
def test_nodes_that_another_process_uses_stay_up(config: Path, tmp_path: Path) -> None:
    inventory = on_hosts(config)
    first, second = (AgentTestbed(inventory, tmp_path / name) for name in ("first", "second"))
    first.start()
    second.start()
    try:
        with pytest.warns(UserWarning, match="group hosts: stays up: another process uses the nodes"):
            first.stop()
        with pytest.raises(tb.TestbedError, match="group hosts: is not taken down: another process uses the nodes"):
            take_down(inventory)
        second.send(0, {"type": "sample", "calibrate": False})
        assert second.receive(time.monotonic() + GUARD_S)[0].message["type"] == "heartbeat"
    finally:
        second.stop()  # it has made nothing
        assert len(take_down(inventory)[0]["steps"]) == 1
    with AgentTestbed(inventory, tmp_path / "third"):
        pass
    assert take_down(inventory)[0]["steps"] == []


def test_known_needs_the_answer_of_nodes_without_cores() -> None:
    inventory = tb.Inventory("i", "agents", (Node("a", 0, provider="ssh"),))
    with pytest.raises(tb.TestbedError, match="node a: the number of cores is unknown, and the agent did not start: x"):
        described(inventory, [NodeReport(inventory.nodes[0], "g", "x")])


def test_a_group_without_a_provider_leaves_no_connection_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Remote(LocalProvider):
        def close(self) -> None:
            closed.append(self.group.name)

    monkeypatch.setattr("tracebed.orchestrator.testbeds.local.LocalProvider", Remote)
    nodes = Node("n0", 1, emulated=True), Node("n1", 1, emulated=True, provider="absent")
    inventory = Inventory("test", AGENTS, nodes)
    with pytest.raises(InputError, match="absent"):
        take_down(inventory)
    assert closed == [inventory.groups[0].name]


# -- the facts of a node, read from /proc and /sys, compared with those of psutil --------------------------------------


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


def test_the_facts_of_this_machine_are_those_of_psutil(tmp_path: Path) -> None:
    found = facts.host_facts()
    assert found["cpus"] == psutil.cpu_count()
    assert found["cores"] == psutil.cpu_count(logical=False)
    assert found["memory_mib"] == psutil.virtual_memory().total // 2**20
    assert found["name"] == os.uname().nodename
    text = "MemTotal: 4096 kB\nMemFree: 1024 kB\nMemAvailable: 3072 kB\nSwapTotal: 2048 kB\nSwapFree: 1024 kB"
    made = write(tmp_path, {"meminfo": text}) / "meminfo"  # that of the machine changes all the time
    assert facts.memory(made) == {"total_mib": 4, "free_mib": 3, "swap_mib": 1}


def test_an_agent_tells_the_facts_of_its_node(tmp_path: Path) -> None:
    with Agent(tmp_path) as agent:
        agent.greet()
        agent.tell({"type": "facts"})
        found = agent.hear("facts")["facts"]
    documented = Path(__file__).parents[2] / "docs" / "reference" / "protocol.md"
    section = documented.read_text().split("### Facts")[1].split("###")[0]
    assert [key for key in found if f"`{key}`" not in section] == []
    assert found["cpus"] == format_cpus(os.sched_getaffinity(0))
    assert found["kernel_of_jobs"] in ("c", "numpy") and found["python"] and found["uptime_s"] > 0
    assert found["disk"]["path"] == str(tmp_path)
    assert found["disk"]["total_mib"] == shutil.disk_usage(tmp_path).total // 2**20
    assert json.dumps(found)


def test_the_topology_of_two_sockets_with_hyperthreads(tmp_path: Path) -> None:
    files = {"cpu/online": "0-7"}
    for cpu in range(8):  # CPUs 0-3 and 4-7 are the first and second threads of the same cores
        files[f"cpu/cpu{cpu}/topology/physical_package_id"] = str(cpu % 4 // 2)
        files[f"cpu/cpu{cpu}/topology/core_id"] = str(cpu % 2)
        files[f"node/node{cpu % 4 // 2}/cpulist"] = ""
    shape = facts.topology(write(tmp_path, files) / "cpu")
    assert shape == {"sockets": 2, "cores": 4, "cpus": 8, "threads_per_core": 2.0, "numa_nodes": 2}


def test_a_machine_that_hides_its_topology_has_one_core_per_cpu(tmp_path: Path) -> None:
    shape = facts.topology(tmp_path / "cpu")
    count = os.cpu_count()
    assert shape == {"sockets": 1, "cores": count, "cpus": count, "threads_per_core": 1.0, "numa_nodes": None}


def test_limits_of_control_groups_are_the_smallest_of_all_levels(tmp_path: Path) -> None:
    root = write(
        tmp_path / "cgroup",
        {
            "cgroup.controllers": "cpu memory pids",
            "a/cpu.max": "150000 100000",
            "a/memory.max": "1073741824",
            "a/b/cpu.max": "max 100000",
            "a/b/memory.max": "max",
            "a/b/pids.max": "500",
        },
    )
    own = write(tmp_path, {"own": "0::/a/b"}) / "own"
    assert facts.cgroup(root, own) == {"version": 2, "cpus": 1.5, "memory_mib": 1024, "processes": 500}
    root = write(
        tmp_path / "old",
        {
            "cpu,cpuacct/docker/x/cpu.cfs_quota_us": "50000",
            "cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000",
            "cpu,cpuacct/cpu.cfs_quota_us": "-1",
            "memory/docker/x/memory.limit_in_bytes": "268435456",
            "memory/memory.limit_in_bytes": "9223372036854771712",
        },
    )
    own = write(tmp_path, {"own": "4:cpu,cpuacct:/docker/x\n3:memory:/docker/x\n2:pids:/"}) / "own"
    assert facts.cgroup(root, own) == {"version": 1, "cpus": 0.5, "memory_mib": 256, "processes": None}
    assert facts.cgroup(tmp_path / "no", tmp_path / "no") == {
        "version": None,
        "cpus": None,
        "memory_mib": None,
        "processes": None,
    }


def test_files_that_the_kernel_hides_leave_facts_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "_text", lambda path: None)
    found = facts.node_facts(tmp_path / "not" / "there")
    assert found["memory"] == {"total_mib": None, "free_mib": None, "swap_mib": None}
    assert found["governor"] == [] and found["pressure"] == {"cpu": None, "io": None, "memory": None}
    assert found["disk"]["free_mib"] > 0 and found["host"]["cpu"] == os.uname().machine


def test_facts_that_a_changed_agent_sends_are_checked(tmp_path: Path) -> None:
    sent = json.loads(json.dumps(facts.node_facts(tmp_path)))

    def kind(changed: dict[str, Any]) -> str:
        return str(links.read_event(json.dumps({"type": "facts", "time": 0.0, "facts": changed}).encode())["type"])

    assert kind(sent) == "facts"
    for name in (*links.FACTS, "cpus", "cpus_by_socket", "governor", "load", "python", "clock_s"):
        assert kind({key: value for key, value in sent.items() if key != name}) == "error", name
        for wrong in (None, [None], {}, "x-y"):
            if not (name == "python" and isinstance(wrong, str)):
                assert kind({**sent, name: wrong}) == "error", (name, wrong)
    for name, fields in links.FACTS.items():
        for field in fields:
            assert kind({**sent, name: {**sent[name], field: [1]}}) == "error", (name, field)
    assert kind({**sent, "topology": {**sent["topology"], "cpus": 0}}) == "error"
    assert kind({**sent, "load": []}) == "error"
    assert kind({**sent, "cpus": ""}) == "error"
