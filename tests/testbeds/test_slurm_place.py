"""The provider `slurm`: agents in a real allocation of Slurm, all of whose nodes are this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.oracles.redecided import workload
from tests.patience import GUARD_S
from tests.runs import replaying
from tests.servers.agents import hear, wait
from tests.servers.slurmd import Slurm, reason_to_skip
from tracebed.converters.formats.writing import write_workload
from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.testbeds import launcher
from tracebed.orchestrator.testbeds.checking.survey import survey
from tracebed.orchestrator.testbeds.nodes import Group, Inventory, Node
from tracebed.orchestrator.testbeds.testbed import AgentTestbed
from tracebed.slurm.allocation import seconds
from tracebed.slurm.provider import SlurmProvider, SlurmSettings
from tracebed.testing import check_provider, check_testbed

pytestmark = pytest.mark.slow

COUNT = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if reason := reason_to_skip():
        pytest.skip(reason)
    slurm = Slurm(tmp_path_factory.mktemp("slurm") / "cluster", nodes=COUNT)
    try:
        slurm.up()
        yield slurm
    finally:
        slurm.down()


@pytest.fixture
def slurm(cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """Yield the cluster. After the test, Slurm has no jobs."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    yield cluster
    left = jobs(cluster)
    cluster("scancel", "--me")
    wait(lambda: not jobs(cluster), "end of the jobs")
    assert left == []


def jobs(slurm: Slurm) -> list[str]:
    return slurm("squeue", "--noheader", "--format=%i %j %T").splitlines()


def steps(slurm: Slurm) -> list[str]:
    return slurm("squeue", "--steps", "--noheader", "--format=%j").split()


def group(count: int = COUNT, **settings: Any) -> Group:
    nodes = tuple(Node(f"a{number}", 2, emulated=True, provider="slurm") for number in range(1, count + 1))
    # Clusters of other workers have nodes on this machine, too: folders on nodes are named after the mark.
    # Processes of a test have the mark of their worker, by their environment.
    return Group("lent", "slurm", SlurmSettings(**settings), nodes, f"mark {os.environ.get('PYTEST_XDIST_WORKER')}")


def inventory(group: Group, **parameters: Any) -> Inventory:
    return Inventory("test", "agents", group.nodes, grain_s=0.02, groups=(group,), **parameters)


def provider(folder: Path, count: int = COUNT, **settings: Any) -> SlurmProvider:
    return SlurmProvider(group(count, **settings), folder, lambda step: None)


def test_the_provider_satisfies_its_contract(slurm: Slurm) -> None:
    check_provider(SlurmProvider, group(2))


def test_the_testbed_satisfies_its_contract(slurm: Slurm) -> None:
    check_testbed(AgentTestbed, inventory(group(listen=True), network="tcp"))


@pytest.mark.parametrize("network", ["tcp", "agents"])
def test_a_replay_takes_an_allocation_and_releases_it(slurm: Slurm, tmp_path: Path, network: str) -> None:
    lent = inventory(group(options=["--time=10"], listen=True), network=network)
    run = replay(workload(nodes=COUNT), lent, "pref", tmp_path / "run", **replaying(speed=100))
    assert set(run.jobs["state"]) == {"completed"}
    assert run.info.parameters["testbed"] == "slurm"
    wait(lambda: not jobs(slurm), "end of the allocation")


def test_nodes_with_a_file_system_of_their_own_get_tracebed(slurm: Slurm, tmp_path: Path) -> None:
    folder = tmp_path / "there"
    with AgentTestbed(inventory(group(folder=str(folder))), tmp_path / "spool") as testbed:
        assert sorted(path.name for path in folder.glob("n*")) == ["n1", "n2", "n3"]
        assert testbed.family == "agents"
    assert not folder.exists()
    assert jobs(slurm) == []


def test_an_allocation_whose_nodes_lack_python_is_released(slurm: Slurm, tmp_path: Path) -> None:
    lent = inventory(group(folder=str(tmp_path / "there"), python="python3.99"))
    what = r"host n1: .*python3\.99.*; errors also at host n2, host n3 \(install Python 3.11"
    with pytest.warns(UserWarning, match="python3.99"), pytest.raises(TestbedError, match=what):
        AgentTestbed(lent, tmp_path / "spool").start()
    assert jobs(slurm) == []


def test_the_message_of_salloc_about_a_wrong_option_is_shown(slurm: Slurm, tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match=r"salloc: unrecognized option '--partion=main' \(`options` of the group"):
        provider(tmp_path, options=["--partion=main"]).up()


def test_a_check_of_nodes_names_why_there_is_no_allocation(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "RETRY_S", 0.01)
    lent = inventory(group(1, options=["--partition=nowhere"]))
    (report,) = survey(lent)
    assert report.error is not None and "there is no allocation of Slurm: " in report.error
    assert "Invalid partition name" in report.error


def test_a_given_allocation_stays(slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm("salloc", "--no-shell", "--nodes=2", "--time=5", "--job-name=mine")
    number = jobs(slurm)[0].split()[0]
    try:
        with pytest.raises(TestbedError, match=f"allocation {number} has 2 nodes, but the group has 3"):
            provider(tmp_path, job=int(number)).up()
        given = provider(tmp_path, 2, job=int(number))
        given.up()
        assert not given.made
        assert given.left_s is not None
        assert 200 < given.left_s <= 300
        channel = given.run(given.group.nodes[0], [])
        wait(lambda: steps(slurm), "step")
        given.down()
        assert steps(slurm) == []
        channel.kill()
        monkeypatch.setenv("SLURM_JOB_ID", number)
        inside = provider(tmp_path, 2)
        inside.up()
        assert not inside.made
        inside.down()
        assert jobs(slurm) == [f"{number} mine RUNNING"]
    finally:
        slurm("scancel", number)
        wait(lambda: not jobs(slurm), "end of the allocation")
    with pytest.raises(TestbedError, match=f"allocation {number} is .*, not RUNNING"):
        provider(tmp_path, 2, job=int(number)).up()


def test_another_process_uses_the_allocation_and_takes_it_down(slurm: Slurm, tmp_path: Path) -> None:
    first, second = provider(tmp_path), provider(tmp_path)
    first.up()
    second.up()
    assert (first.made, second.made) == (True, False)
    assert len(jobs(slurm)) == 1
    provider(tmp_path).down()
    provider(tmp_path).down()
    assert jobs(slurm) == []


def test_an_allocation_that_slurm_refuses_is_an_error(slurm: Slurm, tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match=r"group lent: .*Invalid partition"):
        provider(tmp_path, options=["--partition=none"]).up()


def test_more_nodes_than_slurm_has_are_refused(slurm: Slurm, tmp_path: Path) -> None:
    """Slurm keeps such a request pending, for example until its partition is larger."""
    begun = time.monotonic()
    with pytest.raises(TestbedError, match=r"group lent: Slurm cannot grant 9 nodes: Partition\w+ \(use fewer nodes"):
        provider(tmp_path, 9).up()
    assert time.monotonic() < begun + GUARD_S  # the limit of the wait is an hour
    assert jobs(slurm) == []


def test_an_allocation_shorter_than_the_replay_is_refused(slurm: Slurm, tmp_path: Path) -> None:
    lent = inventory(group(options=["--time=1"]))
    with pytest.raises(TestbedError, match=r"the allocation ends in [0-9]+ s, but the replay takes at least [0-9]+ s"):
        replay(workload(nodes=COUNT), lent, "easy", tmp_path / "run", **replaying(speed=1))
    assert jobs(slurm) == []


def test_a_request_that_waits_too_long_is_withdrawn(slurm: Slurm, tmp_path: Path) -> None:
    slurm("salloc", "--no-shell", "--nodes=3", "--time=5", "--job-name=other")
    other = jobs(slurm)[0].split()[0]
    what = r"Slurm has not granted 3 nodes within 5 s: Resources \(raise `wait_s`"
    with pytest.raises(TestbedError, match=what) as caught:
        provider(tmp_path, wait_s=5.0).up()
    assert caught.value.transient
    assert jobs(slurm) == [f"{other} other RUNNING"]
    slurm("scancel", other)
    wait(lambda: not jobs(slurm), "end of the allocation")


REPLAY = ["replay", "w.parquet", "--policy", "easy", "--inventory", "i.yaml", "--speed", "100", "-o", "run"]


@pytest.mark.parametrize("arguments", [REPLAY, ["nodes", "up", "i.yaml"]], ids=lambda words: words[0])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_withdraws_a_request_that_waits(
    slurm: Slurm, tmp_path: Path, number: signal.Signals, arguments: list[str]
) -> None:
    slurm("salloc", "--no-shell", f"--nodes={COUNT}", "--time=5", "--job-name=other")
    (other,) = jobs(slurm)
    write_workload(workload(2, nodes=COUNT), tmp_path / "w.parquet")
    names = ", ".join(f"a{index}" for index in range(1, COUNT + 1))
    keys = f"provider: slurm, options: [--time=5], cores: 2, emulated: true, nodes: [{names}]"
    (tmp_path / "i.yaml").write_text(f"groups: {{lent: {{{keys}}}}}\n")
    command = [sys.executable, "-c", "from tracebed.cli import main; main()", *arguments]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait(lambda: any(job.endswith(" PENDING") for job in jobs(slurm)), "request")
        process.send_signal(number)
        output = process.communicate(timeout=GUARD_S)[0]
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, output
    assert jobs(slurm) == [other]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["i.yaml", "w.parquet"], output
    slurm("scancel", other.split()[0])
    wait(lambda: not jobs(slurm), "end of the allocation")


def test_an_allocation_is_requested_once_for_all_nodes(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "RETRY_S", 0.01)
    slurm("salloc", "--no-shell", "--nodes=3", "--time=5", "--job-name=other")
    steps: list[str] = []
    with pytest.raises(TestbedError, match="there is no allocation of Slurm"):
        AgentTestbed(inventory(group(wait_s=2.0)), tmp_path / "spool", drain=True, on_step=steps.append).start()
    assert steps == ["waiting for an allocation of 3 nodes"]
    (other,) = jobs(slurm)
    assert other.endswith("other RUNNING")
    slurm("scancel", other.split()[0])
    wait(lambda: not jobs(slurm), "end of the allocation")


def test_an_agent_is_not_a_reason_to_request_an_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    own = provider(tmp_path)
    node = own.group.nodes[0]
    for call in (lambda: own.run(node, []), lambda: own.spool(node), lambda: own.fetch(node, tmp_path)):
        with pytest.raises(TestbedError, match="node a1: there is no allocation of Slurm") as caught:
            call()
        assert caught.value.transient


def test_missing_commands_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TestbedError, match="the program squeue is missing"):
        provider(tmp_path).up()


def test_a_folder_that_nodes_do_not_share_is_noticed(slurm: Slurm, tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    absent.mkdir()
    lent = provider(absent)
    lent.on_step = lambda step: shutil.rmtree(absent, ignore_errors=True)  # when it waits: the nodes are this machine
    with pytest.raises(TestbedError, match=rf"{absent} is missing \(set `folder:`"):
        lent.up()
    lent.down()


def test_an_agent_that_stands_still_is_killed_with_its_step(slurm: Slurm, tmp_path: Path) -> None:
    with AgentTestbed(inventory(group(1)), tmp_path / "spool") as testbed:
        pid = testbed.agents["a1"]["pid"]
        os.kill(pid, signal.SIGSTOP)
        testbed.drop(0, "is silent")
        hear(testbed, "back")
        assert not Path("/proc", str(pid)).exists()


CONTROLLER = """
import json, sys, time
from pathlib import Path
from tests.servers.agents import start_a_job
from tests.testbeds.test_slurm_place import *

folder = Path(sys.argv[1])
testbed = AgentTestbed(inventory(group(2), linger_s=float(sys.argv[2])), folder / "spool")
testbed.start()
start_a_job(testbed, "a1", "a2")
(folder / "part").write_text(json.dumps(testbed.agents))
(folder / "part").rename(folder / "started")
while True:
    testbed.receive(None)
"""


def killed_controller(slurm: Slurm, folder: Path, linger_s: float) -> dict[str, Any]:
    """Start a testbed in another process, kill the process, and return its agents."""
    import json

    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    controller = subprocess.Popen([sys.executable, "-c", CONTROLLER, str(folder), str(linger_s)], env=environment)
    try:
        wait((folder / "started").exists, "testbed")
        assert len(steps(slurm)) == 2
    finally:
        controller.kill()
        controller.wait()
    return json.loads((folder / "started").read_text())  # type: ignore[no-any-return]


def test_agents_end_some_time_after_their_controller_was_killed(slurm: Slurm, tmp_path: Path) -> None:
    killed_controller(slurm, tmp_path, linger_s=1.0)
    wait(lambda: not steps(slurm), "end of the agents")
    provider(tmp_path / "spool", 2).down()


def test_down_releases_the_allocation_of_a_killed_controller(slurm: Slurm, tmp_path: Path) -> None:
    left = killed_controller(slurm, tmp_path, linger_s=600.0)
    provider(tmp_path / "spool", 2).down()
    assert jobs(slurm) == []
    assert not any(Path("/proc", str(facts["pid"])).exists() for facts in left.values())


def test_another_controller_takes_over_the_agents(slurm: Slurm, tmp_path: Path) -> None:
    left = killed_controller(slurm, tmp_path, linger_s=600.0)
    testbed = AgentTestbed(inventory(group(2)), tmp_path / "spool")
    testbed.start(adopt=left)
    try:
        assert {name: facts["pid"] for name, facts in testbed.agents.items()} == {
            name: facts["pid"] for name, facts in left.items()
        }
    finally:
        testbed.stop()
    assert jobs(slurm) == []  # the first testbed had noted that it took the allocation


@pytest.mark.parametrize(
    "option", ["-N4", "partition=x", "--nodes=3", "--job-name=x", "--no-shell", "--node=1", "--job=2"]
)
def test_options_that_tracebed_sets_are_refused(option: str) -> None:
    with pytest.raises(ValidationError):
        SlurmSettings(options=[option])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5:00", 300.0), ("1:02:03", 3723.0), ("2-00:00:01", 172801.0), ("UNLIMITED", None), ("NOT_SET", None)],
)
def test_times_left(text: str, expected: float | None) -> None:
    assert seconds(text) == expected
