"""The facts of a node, read from /proc and /sys, compared with those of psutil."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.servers.agents import Agent
from tracebed.ground.cpus import format_cpus
from tracebed.orchestrator.testbeds.agent import facts
from tracebed.orchestrator.testbeds.links import FACTS, read_event


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
        return str(read_event(json.dumps({"type": "facts", "time": 0.0, "facts": changed}).encode())["type"])

    assert kind(sent) == "facts"
    for name in (*FACTS, "cpus", "cpus_by_socket", "governor", "load", "python", "clock_s"):
        assert kind({key: value for key, value in sent.items() if key != name}) == "error", name
        for wrong in (None, [None], {}, "x-y"):
            if not (name == "python" and isinstance(wrong, str)):
                assert kind({**sent, name: wrong}) == "error", (name, wrong)
    for name, fields in FACTS.items():
        for field in fields:
            assert kind({**sent, name: {**sent[name], field: [1]}}) == "error", (name, field)
    assert kind({**sent, "topology": {**sent["topology"], "cpus": 0}}) == "error"
    assert kind({**sent, "load": []}) == "error"
    assert kind({**sent, "cpus": ""}) == "error"
