"""A provider for tests: nodes in network namespaces of this machine, each with its own monotonic clock.

The nodes are like nodes on other machines: their ranks meet over TCP, their clocks differ, and their files are in other
folders.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tracebed.orchestrator.testbeds.agent import spool
from tracebed.orchestrator.testbeds.local import AGENT, LocalChannel
from tracebed.orchestrator.testbeds.nodes import Group, Node
from tracebed.orchestrator.testbeds.provider import PROVIDERS
from tracebed.orchestrator.testbeds.replay_folder import agent_log
from tracebed.orchestrator.testbeds.settings import ProviderSettings

PROGRAMS = ("ip", "unshare")
OFFSET_S = 1000.0
"""Difference of the clocks of two neighboring nodes, s. The first node is this far ahead of this machine."""

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)),
    reason="namespaces need root and two programs: apt-get install iproute2 util-linux",
)


def tag() -> str:
    """Return the beginning of the names of the namespaces of this process."""
    return f"tb{os.getpid()}"


def existing() -> list[Path]:
    """Return the namespaces of this process, but not those of a process whose ID begins with the same digits."""
    return [path for path in Path("/run/netns").glob("tb*") if path.name.partition("-")[0] == tag()]


class NamespaceProvider:
    """Nodes in network namespaces that are joined by a bridge, which is in a namespace too."""

    name = "namespace"
    Settings = ProviderSettings
    shared = False
    fan_out = 2
    made = False

    def __init__(self, group: Group, folder: Path, on_step: Callable[[str], None]) -> None:
        self.group, self.folder, self.on_step = group, folder, on_step
        self.numbers = {node.name: number for number, node in enumerate(group.nodes, 1)}
        self.tag = tag()
        self.disks = Path(tempfile.gettempdir()) / f"{self.tag}-disks"

    def namespace(self, node: Node) -> str:
        return f"{self.tag}-{self.numbers[node.name]}"

    def up(self) -> None:
        if (Path("/run/netns") / self.tag).exists():
            return
        self.made = True
        ip("netns", "add", self.tag)
        ip("-n", self.tag, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.tag, "link", "set", "bridge", "up")
        for node, number in self.numbers.items():
            name, port = f"{self.tag}-{number}", f"port{number}"
            (self.disks / node / "tmp").mkdir(mode=0o700, parents=True)
            ip("netns", "add", name)
            ip("-n", self.tag, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", self.tag, "link", "set", port, "master", "bridge", "up")
            ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")
        self.on_step("the namespaces are made")

    def down(self) -> None:
        for path in existing():
            ip("netns", "delete", path.name)
        for folder in self.disks.glob(f"*/tmp/{spool.PREFIX}*"):  # of agents that were killed
            spool.remove_tables(folder)  # which the namespaces share
        shutil.rmtree(self.disks, ignore_errors=True)

    def close(self) -> None:
        pass

    def run(self, node: Node, arguments: Sequence[str]) -> LocalChannel:
        offset = str(int(OFFSET_S) * self.numbers[node.name])
        clock = ["unshare", "--time", "--monotonic", offset, "--fork", "--kill-child"]
        disk = ["env", f"TMPDIR={self.disks / node.name / 'tmp'}"]
        command = ["ip", "netns", "exec", self.namespace(node), *disk, *clock, *AGENT, *arguments]
        return LocalChannel(command, agent_log(self.folder, node))

    def spool(self, node: Node) -> str:
        return str(self.disks / node.name / "spool")

    def fetch(self, node: Node, target: Path) -> None:
        shutil.copytree(self.spool(node), target, dirs_exist_ok=True)

    def bind(self, node: Node) -> str | None:
        return f"10.77.0.{self.numbers[node.name]}"


def ip(*arguments: str) -> None:
    """Run the program `ip`."""
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def installed() -> Iterator[None]:
    """Install the provider for this process, and take down what is left at the end."""
    entries = PROVIDERS.entries
    entries["namespace"] = EntryPoint("namespace", "tests.servers.namespaces:NamespaceProvider", PROVIDERS.group)
    try:
        yield
    finally:
        del entries["namespace"]
        left = existing()
        for path in left:
            ip("netns", "delete", path.name)
        assert left == []
