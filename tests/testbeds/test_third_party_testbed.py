"""A testbed from another package: installed, named by an inventory, replayed on, and checked by tracebed.testing."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.oracles.redecided import workload
from tests.packages import install, python, tracebed
from tests.patience import patience
from tracebed.converters.formats.writing import write_workload
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.testbeds.base import Event
from tracebed.orchestrator.testbeds.testbed import AgentTestbed
from tracebed.testing import check_testbed

pytestmark = pytest.mark.usefixtures("no_process_is_left")

RACK = """
    from tracebed.orchestrator.testbeds.testbed import AgentTestbed


    class Rack:
        # Nodes whose ranks meet over TCP.

        family = "AF_INET"

        def __init__(self, inventory, spool):
            self.inner = AgentTestbed(inventory, spool)
            self.nodes = self.inner.nodes

        @property
        def units_per_core_second(self):
            return self.inner.units_per_core_second

        @property
        def hosts(self):
            return [{**host, "rack": 7} for host in self.inner.hosts]

        @property
        def agents(self):
            return self.inner.agents

        @property
        def adopted(self):
            return self.inner.adopted

        @property
        def out(self):
            return self.inner.out

        def start(self, adopt=None):
            self.inner.start(adopt)

        def drop(self, node, reason):
            self.inner.drop(node, reason)

        def send(self, node, message):
            self.inner.send(node, {**message, "bind": "127.0.0.1"} if message["type"] == "launch" else message)

        def receive(self, until):
            return self.inner.receive(until)

        def stop(self):
            self.inner.stop()
"""
INVENTORY = """
testbed: rack
grain_s: 0.02
nodes:
  - {name: "n[1-4]", cores: 2, emulated: true}
"""


def test_a_testbed_of_another_package_replays_and_passes_the_checks(tmp_path: Path) -> None:
    site = install(tmp_path / "rack", {"rack.py": RACK}, {"tracebed.testbeds": {"rack": "rack:Rack"}})
    (tmp_path / "rack.yaml").write_text(INVENTORY)
    write_workload(workload(6), tmp_path / "w.parquet")
    options = ["--policy", "pref", "--inventory", "rack.yaml", "--speed", "1000", "-o", "run"]
    done = tracebed(site, "replay", "w.parquet", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = Run.load(tmp_path / "run")
    assert set(run.jobs["state"]) == {"completed"}
    assert run.info.parameters["testbed"] == "rack" and run.info.hosts[0]["rack"] == 7
    _, entries = journal.read(tmp_path / "run" / JOURNAL)
    assert {type(entry.data["address"]) for entry in entries if entry.kind == "listening"} == {list}  # host and port
    checks = "from tracebed.testing import check_testbed\nfrom rack import Rack\ncheck_testbed(Rack)\n"
    done = python(site, checks, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_testbed_that_is_not_installed_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "rack.yaml").write_text(INVENTORY)
    write_workload(workload(3), tmp_path / "w.parquet")
    options = ["--policy", "fcfs", "--inventory", "rack.yaml", "-o", "run"]
    done = tracebed(tmp_path, "replay", "w.parquet", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert "rack.yaml:2: unknown testbed 'rack' (one of agents)" in done.stderr, done.stderr


def test_the_local_testbed_passes_the_checks() -> None:
    check_testbed(AgentTestbed)


class Leaky(AgentTestbed):
    """A testbed that does not stop one of its agents."""

    forgotten: ClassVar[list[Any]] = []

    def stop(self) -> None:
        self.forgotten += [self._links._links.pop()] if len(self._links) else []
        super().stop()


class Blocking(AgentTestbed):
    """A testbed whose `send` waits for the agent."""

    def send(self, node: int, message: Mapping[str, Any]) -> None:
        super().send(node, message)
        time.sleep(0.01)


class Misnumbered(AgentTestbed):
    def receive(self, until: float | None) -> list[Event]:
        events = super().receive(until)
        return [event._replace(node=0) for event in events] if self.hosts else events  # start-up succeeds


class Early(AgentTestbed):
    def receive(self, until: float | None) -> list[Event]:
        return super().receive(0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (Leaky, "`stop` ends all processes"),
        (Blocking, "`send` does not block"),
        (Misnumbered, "an event has the index of its node"),
        (Early, "`receive` returns without events only at its timeout"),
    ],
)
def test_a_testbed_that_breaks_a_rule_fails_the_checks(broken: type[AgentTestbed], rule: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(rule)):
        check_testbed(broken, patience_s=min(patience(5.0), 30.0))  # 2,000 slow messages take 20 s
    for link in Leaky.forgotten:
        link.disconnect()()
